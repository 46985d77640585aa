//! The program that is compiled to WebAssembly: the prelude, and the tokens of the kernel, each on
//! a line of its own, so that the line of an error says which token it is about.

use proc_macro2::{Delimiter, Ident, Spacing, Span, TokenStream, TokenTree};
use std::fmt::Write;

const PRELUDE: &str = include_str!("../guest/prelude.rs");

/// What the compiler calls in a kernel by itself, and `main`, which it would rename.
const BY_COMPILER: &[&str] = &[
    "memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "main", "fmod", "fmodf", "fmax",
    "fmaxf", "fmin", "fminf", "ldexp", "ldexpf",
];

/// Returns whether kernels call a function of this name: WebAssembly would call the entry of this
/// name in its place.
pub(crate) fn is_called(name: &str) -> bool {
    BY_COMPILER.contains(&name) || of_real_numbers().any(|called| called == name)
}

/// The functions behind the methods of real numbers, as the table in the prelude names them:
/// `method(arguments) double single;`.
fn of_real_numbers() -> impl Iterator<Item = &'static str> {
    let table = PRELUDE.split_once("\n    real! {\n");
    let table = table.and_then(|(_, rest)| rest.split_once('}'));
    let rows = table.into_iter().flat_map(|(table, _)| table.split(';'));
    let names = rows.filter_map(|row| row.split_once(')'));
    names.flat_map(|(_, names)| names.split_whitespace())
}

/// A program, with the place of each line of it in the source of the user.
pub(crate) struct Source {
    pub(crate) text: String,
    places: Vec<Span>,
}

impl Source {
    /// Returns the program for a function or a module. An entry is its name, and the path of its
    /// function from the item. `path` is what the item may call `samite::mobile`.
    pub(crate) fn new(
        item: &TokenStream,
        is_module: bool,
        entries: &[(Ident, String)],
        path: &syn::Path,
    ) -> Source {
        let first = entries.first().map(|(name, _)| name.span());
        let first = first.unwrap_or_else(Span::call_site);
        let mut source = Source {
            text: PRELUDE.to_owned(),
            // A mistake that shows there is one in the type of a kernel.
            places: vec![first; PRELUDE.lines().count()],
        };
        let here = Span::call_site();
        source.line(&named(path), here);
        source.line("mod kernel {", here);
        source.line("use crate::guest::*;", here);
        source.tokens(item, is_module.then_some("use crate::guest::Real as _;"));
        for (name, path) in entries {
            let export = name.to_string();
            let export = export.trim_start_matches("r#");
            source.line(&format!("export!({export:?}, {path});"), name.span());
        }
        source.line("}", here);
        source
    }

    /// Returns the tokens as they are compiled, for their hash.
    pub(crate) fn text_of(item: &TokenStream) -> String {
        let (text, places) = (String::new(), Vec::new());
        let mut source = Source { text, places };
        source.tokens(item, None);
        source.text
    }

    /// Returns the place of a line, counted from 1.
    pub(crate) fn place(&self, line: usize) -> Span {
        let at = self.places.get(line.wrapping_sub(1)).copied();
        at.unwrap_or_else(Span::call_site)
    }

    fn line(&mut self, text: &str, place: Span) {
        // A token of several lines: a text in quotation marks.
        let lines = text.matches('\n').count() + 1;
        self.text.push_str(text);
        self.text.push('\n');
        self.places.extend(std::iter::repeat_n(place, lines));
    }

    /// Adds tokens. `last` is added at the end of each block in braces among them: of the contents
    /// of a module.
    fn tokens(&mut self, tokens: &TokenStream, last: Option<&str>) {
        let mut joint: Option<(String, Span)> = None;
        for token in tokens.clone() {
            let (before, place) = joint.take().unwrap_or((String::new(), token.span()));
            match token {
                TokenTree::Group(group) => {
                    let (open, close) = brackets(group.delimiter(), &group.stream());
                    self.line(&format!("{before}{open}"), group.span_open());
                    self.tokens(&group.stream(), None);
                    if let (Delimiter::Brace, Some(last)) = (group.delimiter(), last) {
                        self.line(last, group.span_close());
                    }
                    self.line(close, group.span_close());
                }
                TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint => {
                    joint = Some((format!("{before}{punct}"), place));
                }
                other => self.line(&format!("{before}{other}"), place),
            }
        }
        if let Some((text, place)) = joint {
            self.line(&text, place);
        }
    }
}

/// Returns the items with which a path means the prelude. It does so already under the names that
/// the prelude gives.
fn named(path: &syn::Path) -> String {
    let segments = path.segments.iter();
    let mut names = segments.map(|segment| segment.ident.to_string());
    let first = names.next().unwrap_or_default();
    let inner: Vec<String> = names.collect();
    let mut items = match first.as_str() {
        "samite" | "samite_mobile" | "crate" | "self" | "super" => String::new(),
        other => format!("extern crate self as {other}; "),
    };
    if !inner.is_empty() && inner != ["mobile"] {
        inner
            .iter()
            .for_each(|name| items += &format!("pub mod {name} {{ "));
        items += "pub use crate::guest::*;";
        items += &" }".repeat(inner.len());
    }
    items
}

/// Returns the brackets of a group. An expression that a macro has passed on has none of its own,
/// but is a group: it gets parentheses, so that it stays one.
fn brackets(delimiter: Delimiter, inside: &TokenStream) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => {
            let mut tokens = inside.clone().into_iter();
            let first = tokens.next().map(|token| token.to_string());
            match first.is_none_or(|first| first == "pub") || tokens.next().is_none() {
                true => ("", ""),
                false => ("(", ")"),
            }
        }
    }
}

/// Writes bytes as a hexadecimal number.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc_macro2::Group;
    use quote::quote;

    #[test]
    fn tokens_are_on_lines_of_their_own() {
        let text = Source::text_of(&quote!(
            fn f<'a>(a: &'a u8) -> u64 {
                1 << (*a >> 1)
            }
        ));
        let lines: Vec<_> = text.lines().collect();
        let expected = [
            "fn", "f", "<", "'a", ">", "(", "a", ":", "&", "'a", "u8", ")", "->", "u64", "{", "1",
            "<<", "(", "*", "a", ">>", "1", ")", "}",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_functions_that_kernels_call() {
        let called = [
            "sqrt", "sqrtf", "fma", "rintf", "log", "pow", "atan2", "tanh", "tanhf", "memcpy",
            "main",
        ];
        for name in called {
            assert!(is_called(name), "{name}");
        }
        for name in ["sum", "entry", "mul_add", "ln", "real", "a", ""] {
            assert!(!is_called(name), "{name}");
        }
    }

    /// What a macro has passed on as one expression stays one.
    #[test]
    fn groups_without_brackets() {
        let group = |inside| TokenTree::Group(Group::new(Delimiter::None, inside));
        let (sum, single, visibility) = (
            group(quote!(1 + 2)),
            group(quote!(7)),
            group(quote!(pub(crate))),
        );
        let text = |tokens| Source::text_of(&tokens).replace('\n', "");
        assert_eq!(text(quote!(#sum * 3)), "(1+2)*3");
        assert_eq!(text(quote!(#single * 3)), "7*3");
        assert_eq!(text(quote!(#visibility #single)), "pub(crate)7");
    }

    #[test]
    fn a_line_has_the_place_of_its_token() {
        let item = quote!(
            fn f() -> &str {
                "two\nlines"
            }
        );
        let source = Source::new(&item, false, &[], &syn::parse_quote!(other::part::mobile));
        assert_eq!(source.text.lines().count(), source.places.len());
    }
}
