//! Reads what the attribute is on, and writes the items that are added.

use crate::compile::{Mistake, VARIABLE};
use crate::source::{Source, hexadecimal, is_called};
use proc_macro2::{Ident, Literal, Spacing, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::{Error, Item, ItemFn, ItemMod, LitStr, Path, Result, Signature, Token, Visibility};

/// Bytes of the hash of the source in the name of a function.
const HASH: usize = 8;

/// Compiles a program, if that can be done here.
type Compile = fn(&Source) -> std::result::Result<Option<Vec<u8>>, Vec<Mistake>>;

/// Expands the attribute.
pub(crate) fn expand(options: TokenStream, item: TokenStream, compile: Compile) -> TokenStream {
    let expanded = path(options).and_then(|path| {
        check_tokens(&item)?;
        let parsed = syn::parse2(item.clone())?;
        Kernels::of(&parsed).map(|kernels| kernels.expand(&path, &item, parsed, compile))
    });
    expanded.unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#item #error)
    })
}

/// Reads the options: `crate = "path"`.
fn path(options: TokenStream) -> Result<Path> {
    if options.is_empty() {
        return Ok(syn::parse_quote!(::samite::mobile));
    }
    let read = |input: syn::parse::ParseStream<'_>| {
        input.parse::<Token![crate]>()?;
        input.parse::<Token![=]>()?;
        input.parse::<LitStr>()
    };
    let parsed = syn::parse::Parser::parse2(read, options);
    let parsed = parsed.map_err(|error| {
        let text = "`#[mobile]` has one option: `crate = \"path\"`, where `samite::mobile` is";
        Error::new(error.span(), text)
    })?;
    parsed.parse()
}

/// What expands to something else in another build: two programs would have one name.
const VARIES: &[&str] = &[
    "cfg",
    "cfg_attr",
    "env",
    "option_env",
    "include",
    "include_str",
    "include_bytes",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "line",
    "column",
    "file",
    "module_path",
];

/// Refuses macros and attributes whose meaning depends on the build ([`VARIES`]).
fn check_tokens(tokens: &TokenStream) -> Result<()> {
    let mut before = None;
    let mut name: Option<Ident> = None;
    for token in tokens.clone() {
        // `name!`, but not `name != 0`, or `#[name`
        let is_macro = matches!(&token, TokenTree::Punct(punct)
            if punct.as_char() == '!' && punct.spacing() == Spacing::Alone);
        if let Some(name) = name.take_if(|_| is_macro) {
            check_name(&name)?;
        }
        if let TokenTree::Group(group) = &token {
            if let (Some('#'), Some(TokenTree::Ident(name))) =
                (before, group.stream().into_iter().next())
            {
                check_name(&name)?;
            }
            check_tokens(&group.stream())?;
        }
        before = match &token {
            TokenTree::Punct(punct) if punct.as_char() == '!' && before == Some('#') => before,
            TokenTree::Punct(punct) => Some(punct.as_char()),
            _ => None,
        };
        name = match token {
            TokenTree::Ident(name) => Some(name),
            _ => None,
        };
    }
    Ok(())
}

fn check_name(name: &Ident) -> Result<()> {
    match VARIES.iter().any(|varies| name == varies) {
        true => Err(Error::new_spanned(
            name,
            format!(
                "`{name}` depends on the build, and a kernel is the same in all of them: pass the \
                 value in the payload"
            ),
        )),
        false => Ok(()),
    }
}

/// What the attribute is on.
struct Kernels {
    name: Ident,
    entries: Vec<Ident>,
    is_module: bool,
}

impl Kernels {
    fn of(item: &Item) -> Result<Kernels> {
        match item {
            Item::Fn(function) => {
                check(&function.sig)?;
                let name = function.sig.ident.clone();
                Ok(Kernels {
                    entries: vec![name.clone()],
                    name,
                    is_module: false,
                })
            }
            Item::Mod(module) => Ok(Kernels {
                entries: entries(module)?,
                name: module.ident.clone(),
                is_module: true,
            }),
            other => Err(Error::new_spanned(
                other,
                "`#[mobile]` is for a function, or for a module of functions",
            )),
        }
    }

    /// The path of an entry from where the item is.
    fn path_of(&self, entry: &Ident) -> String {
        match self.is_module {
            true => format!("{}::{entry}", self.name),
            false => entry.to_string(),
        }
    }

    fn expand(
        &self,
        path: &Path,
        item: &TokenStream,
        parsed: Item,
        compile: Compile,
    ) -> TokenStream {
        let entries = self.entries.iter();
        let entries: Vec<_> = entries
            .map(|entry| (entry.clone(), self.path_of(entry)))
            .collect();
        let source = Source::new(item, self.is_module, &entries, path);
        let (wasm, mistakes) = match compile(&source) {
            Ok(wasm) => (wasm, Vec::new()),
            Err(mistakes) => (None, mistakes),
        };
        let mistakes = mistakes.iter().map(|Mistake { line, text }| {
            quote_spanned!(source.place(*line)=> ::core::compile_error!(#text);)
        });
        let mistakes: TokenStream = mistakes.collect();
        let added = |visibility| self.added(path, item, wasm.as_deref(), visibility);
        match parsed {
            Item::Mod(mut module) => {
                let added = added(&Visibility::Public(Token![pub](self.name.span())));
                if let Some((_, items)) = &mut module.content {
                    items.push(Item::Verbatim(added));
                }
                quote!(#module #mistakes)
            }
            parsed => {
                let (name, visibility) = (&self.name, visibility_of(&parsed));
                let added = added(&visibility);
                let doc = format!("What `#[mobile]` has made of [`fn@{name}`]: its capsule.");
                quote! {
                    #item
                    #[doc = #doc]
                    #[allow(non_camel_case_types, dead_code)]
                    #visibility struct #name {}
                    impl #name { #added }
                    #mistakes
                }
            }
        }
    }

    /// The items that are added.
    fn added(
        &self,
        path: &Path,
        item: &TokenStream,
        wasm: Option<&[u8]>,
        visibility: &Visibility,
    ) -> TokenStream {
        let hash = blake3::hash(Source::text_of(item).as_bytes());
        let hash = hexadecimal(&hash.as_bytes()[..HASH]);
        // These items are inside of a module, and beside a function.
        let name = match self.is_module {
            true => format!("#{hash}"),
            false => format!("::{}#{hash}", self.name),
        };
        let exports = self.entries.iter().map(|entry| {
            let entry = entry.to_string();
            entry.trim_start_matches("r#").to_owned()
        });
        let functions = self.entries.iter().map(|entry| {
            // A wrong type is shown at the name of the function.
            quote_spanned!(entry.span()=> .and(#entry))
        });
        let has_wasm = wasm.is_some();
        let wasm = match wasm.map(Literal::byte_string) {
            Some(wasm) => quote!(::core::option::Option::Some(#wasm)),
            None => quote!(::core::option::Option::None),
        };
        let kernels = quote!(#path::Kernels {
            name: ::core::concat!(::core::module_path!(), #name),
            entries: &[#(#exports),*],
            wasm: #wasm,
        });
        quote! {
            /// Whether the capsule has WebAssembly: it does if the compiler had the target
            /// `wasm32-unknown-unknown`.
            #[allow(dead_code, unreachable_pub)]
            #visibility const HAS_WASM: bool = {
                // The build depends on this variable.
                const _: ::core::option::Option<&str> = ::core::option_env!(#VARIABLE);
                #has_wasm
            };

            /// Makes the capsule: the name of the functions, and the WebAssembly if there is one.
            ///
            /// # Errors
            /// `Error::BadCapsule`: too many entries, or too long a name.
            #[allow(dead_code, unreachable_pub)]
            #visibility fn capsule() -> ::core::result::Result<#path::Capsule, #path::Error> {
                #kernels.capsule()
            }

            /// Lets this unit run the functions themselves when the capsule is called here.
            #[allow(dead_code, unreachable_pub)]
            #visibility fn define(mobile: &#path::Mobile) {
                #kernels.define(mobile, #path::Function::default() #(#functions)*);
            }
        }
    }
}

fn visibility_of(item: &Item) -> Visibility {
    match item {
        Item::Fn(ItemFn { vis, .. }) => vis.clone(),
        _ => Visibility::Inherited,
    }
}

/// The kernels of a module.
fn entries(module: &ItemMod) -> Result<Vec<Ident>> {
    let Some((_, items)) = &module.content else {
        let text = "`#[mobile]` needs a module with its contents in braces";
        return Err(Error::new_spanned(module, text));
    };
    let mut entries = Vec::new();
    for item in items {
        if let Item::Fn(function) = item
            && !matches!(function.vis, Visibility::Inherited)
        {
            check(&function.sig)?;
            entries.push(function.sig.ident.clone());
        }
    }
    match entries.is_empty() {
        true => Err(Error::new_spanned(
            &module.ident,
            "this module has no kernel: kernels are its functions that are not private",
        )),
        false => Ok(entries),
    }
}

/// Checks the name of a kernel, and what can be seen of its type.
fn check(signature: &Signature) -> Result<()> {
    let is_plain = signature.asyncness.is_none()
        && matches!(signature.safety, syn::Safety::Default)
        && signature.abi.is_none()
        && signature.variadic.is_none()
        && signature.generics.params.is_empty();
    if !is_plain || signature.inputs.len() != 2 {
        return Err(Error::new_spanned(
            signature,
            "a kernel has the type `fn(&mut Context, &[u8]) -> Result<(), Trap>`, without \
             generic parameters. In a module, private functions may have any type",
        ));
    }
    let name = signature.ident.to_string();
    let name = name.trim_start_matches("r#");
    match is_called(name) {
        true => Err(Error::new_spanned(
            &signature.ident,
            format!("`{name}` is a function that kernels call: give it another name"),
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "pub(crate) mod kernels {
        use samite::mobile::{Context, Trap};
        const ONE: u64 = 1;
        pub fn first(context: &mut Context, payload: &[u8]) -> Result<(), Trap> { Ok(()) }
        fn private<T>(of: T) -> T { of }
        fn exp(of: f64) -> f64 { of }
        pub fn r#second(context: &mut Context, payload: &[u8]) -> Result<(), Trap> { Ok(()) }
    }";

    fn expanded(options: &str, item: &str, compile: Compile) -> String {
        let options = options.parse().expect("tokens");
        let expanded = expand(options, item.parse().expect("tokens"), compile);
        // What comes out is Rust, also after a mistake.
        syn::parse2::<syn::File>(expanded.clone()).expect("items");
        expanded.to_string().replace(' ', "")
    }

    fn refused(options: &str, item: &str) -> String {
        let expanded = expanded(options, item, |_| panic!("nothing is compiled"));
        let (_, error) = expanded.split_once("compile_error!{").expect("an error");
        error.to_owned()
    }

    #[test]
    fn with_and_without_wasm() {
        let with = expanded("", MODULE, |source| {
            assert!(
                source
                    .text
                    .contains(r##"export!("second", kernels::r#second)"##)
            );
            assert!(
                source.text.contains("\nprivate\n"),
                "a token is on each line"
            );
            assert!(!source.text.contains(r#"export!("private""#));
            Ok(Some(b"\0asm".to_vec()))
        });
        let without = expanded("", MODULE, |_| Ok(None));
        assert!(with.contains(r#"Option::Some(b"\0asm")"#), "{with}");
        assert!(
            without.contains("wasm:::core::option::Option::None"),
            "{without}"
        );
        for expanded in [with, without] {
            assert!(
                expanded.contains(r#"entries:&["first","second"]"#),
                "{expanded}"
            );
            assert!(expanded.contains("::samite::mobile::Kernels"), "{expanded}");
            assert!(expanded.contains(".and(first).and(r#second)"), "{expanded}");
        }
    }

    #[test]
    fn the_path_of_the_crate() {
        let function =
            "fn sum(context: &mut Context, payload: &[u8]) -> Result<(), Trap> { Ok(()) }";
        let other = expanded("crate = \"::other::mobile\"", function, |_| Ok(None));
        assert!(other.contains("::other::mobile::Kernels"), "{other}");
        assert!(!other.contains("samite"), "{other}");
        let error = refused("wasm", function);
        assert!(error.contains("hasoneoption"), "{error}");
    }

    /// Another source has another name: it is not run in place of the first one.
    #[test]
    fn the_name_has_the_hash_of_the_source() {
        let of = |body: &str| {
            let text =
                format!("fn sum(c: &mut Context, p: &[u8]) -> Result<(), Trap> {{ {body} }}");
            let expanded = expanded("", &text, |_| Ok(None));
            let (_, name) = expanded.split_once("module_path!(),\"").expect("a name");
            name.split_once('"').expect("an end").0.to_owned()
        };
        assert_eq!(of("Ok( () )"), of("Ok(())"));
        assert_ne!(of("Ok(())"), of("c.reply(p)"));
        assert!(of("Ok(())").starts_with("::sum#"), "{}", of("Ok(())"));
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let cases = [
            ("struct Sum;", "foramodule"),
            ("mod kernels;", "contentsinbraces"),
            ("mod kernels { fn private() {} }", "notprivate"),
            ("fn sum(payload: &[u8]) {}", "fn(&mutContext"),
            ("async fn sum(a: A, b: B) {}", "fn(&mutContext"),
            ("fn sum<T>(a: A, b: T) {}", "fn(&mutContext"),
            ("mod kernels { pub fn sum() {} }", "fn(&mutContext"),
            (
                "fn exp(a: A, b: B) {}",
                "`exp` is a function that kernels call",
            ),
            (
                "mod kernels { pub fn r#memcpy(a: A, b: B) {} }",
                "`memcpy` is a function that kernels call",
            ),
            ("#[cfg(test)] fn sum(a: A, b: B) {}", "dependsonthebuild"),
            (
                "mod kernels { #![cfg_attr(test, x)] pub fn sum(a: A, b: B) {} }",
                "dependsonthebuild",
            ),
            (
                "fn sum(a: A, b: B) { if core::cfg!(unix) {} }",
                "dependsonthebuild",
            ),
            (
                "fn sum(a: A, b: B) { debug_assert!(true); }",
                "dependsonthebuild",
            ),
            (
                "fn sum(a: A, b: B) { fails(line!(), b) }",
                "`line`dependsonthebuild",
            ),
            (
                "fn sum(a: A, b: B) { core::column!(); }",
                "`column`dependsonthebuild",
            ),
            (
                "mod kernels { pub fn sum(a: A, b: B) { file!(); } }",
                "`file`dependsonthebuild",
            ),
            (
                "mod kernels { pub fn sum(a: A, b: B) {} fn of() { module_path!(); } }",
                "`module_path`dependsonthebuild",
            ),
        ];
        for (item, expected) in cases {
            let error = refused("", item);
            assert!(
                error.contains(&expected.replace(' ', "")),
                "{item}: {error}"
            );
        }
    }
}
