//! Compiles a kernel to WebAssembly, with the compiler that runs this macro.

use crate::source::Source;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const TARGET: &str = "wasm32-unknown-unknown";

/// The environment variable that says whether to compile.
pub(crate) const VARIABLE: &str = "SAMITE_MOBILE_WASM";

/// Longest module, as engines accept it.
const CODE_MAX: usize = 1 << 20;

/// The most mistakes that are shown of one kernel.
const SHOWN: usize = 5;

/// What a kernel may use, for those who have used something else.
const REMEDY: &str = "a kernel has `core`, `Context`, `Trap::failed`, and the items inside of \
    `#[mobile]`. Put functions, types and constants that it needs into a module with it, and \
    `#[mobile]` on the module. `SAMITE_MOBILE_WASM=off` builds without WebAssembly";

/// Small modules: 270 bytes for a kernel that adds up words. With link-time optimisation, what
/// `core` has for the texts of panics is left out.
///
/// Warnings are those of the native build. Lints that are errors by default stay errors: they find
/// numbers that fit into the `usize` of the native build, and not into this one.
const FLAGS: &[&str] = &[
    "--edition=2024",
    "--crate-type=cdylib",
    "--crate-name=kernel",
    "-Awarnings",
    "--error-format=short",
    "-Copt-level=3",
    "-Clto=fat",
    "-Ccodegen-units=1",
    "-Cpanic=abort",
    "-Cstrip=symbols",
    "-Ctarget-feature=+simd128",
    // The runtime gives a kernel its memory, with the granted segments behind it.
    "-Clink-arg=--import-memory=samite,memory",
    "-Clink-arg=--compress-relocations",
];

/// A mistake in a kernel, and the line of it in the program; 0 if it has none.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Compiles a program. Returns `None` if this machine cannot, or is told not to.
pub(crate) fn compile(source: &Source) -> Result<Option<Vec<u8>>, Vec<Mistake>> {
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "off") {
        return Ok(None);
    }
    match compiler() {
        Some(compiler) => run(compiler, source).map(Some),
        None => Ok(None),
    }
}

/// Returns the compiler, if it has the target.
fn compiler() -> Option<&'static Path> {
    static COMPILER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || candidates().find(|compiler| has_target(compiler));
    COMPILER.get_or_init(find).as_deref()
}

/// The compiler that cargo was told to use, and the one that runs this macro: this process, or the
/// one beside it if this is clippy, rustdoc or an editor.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let told = std::env::var_os("RUSTC").map(PathBuf::from);
    let process = std::env::current_exe().ok();
    let folder = process.as_deref().and_then(Path::parent);
    let beside = ["rustc", "../bin/rustc"].map(|name| folder.map(|folder| folder.join(name)));
    let beside = beside.into_iter().flatten().filter(|path| path.is_file());
    (told.into_iter().chain(beside)).chain([PathBuf::from("rustc")])
}

fn has_target(compiler: &Path) -> bool {
    let asked = command(compiler)
        .args(["--print=target-libdir", "--target", TARGET])
        .output();
    let Ok(answer) = asked else { return false };
    let folder = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().starts_with("libcore-"))
}

/// A compiler that does not take part in the build that runs this macro.
fn command(compiler: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.stdin(Stdio::null());
    for jobs in ["CARGO_MAKEFLAGS", "MAKEFLAGS", "MFLAGS"] {
        command.env_remove(jobs);
    }
    command
}

fn run(compiler: &Path, source: &Source) -> Result<Vec<u8>, Vec<Mistake>> {
    let failed = |text: String| vec![mistake(0, &text)];
    let io = |error: std::io::Error| failed(format!("{}: {error}", compiler.display()));
    let folder = tempfile::tempdir().map_err(io)?;
    std::fs::write(folder.path().join("kernel.rs"), &source.text).map_err(io)?;
    let ran = command(compiler)
        .current_dir(folder.path())
        .args(FLAGS)
        .args(["--target", TARGET, "-o", "kernel.wasm", "kernel.rs"])
        .output()
        .map_err(io)?;
    if !ran.status.success() {
        return Err(mistakes(&String::from_utf8_lossy(&ran.stderr)));
    }
    let code = std::fs::read(folder.path().join("kernel.wasm")).map_err(io)?;
    match code.len() <= CODE_MAX {
        true => Ok(code),
        false => Err(failed(format!(
            "the module has {} bytes, and units accept {CODE_MAX} at most",
            code.len()
        ))),
    }
}

/// Reads the output of the compiler.
fn mistakes(output: &str) -> Vec<Mistake> {
    let mut found: Vec<Mistake> = (output.lines())
        .filter_map(|line| {
            // kernel.rs:LINE:COLUMN: error[CODE]: TEXT
            let mut parts = line.strip_prefix("kernel.rs:")?.splitn(3, ':');
            let number = parts.next()?.parse().ok()?;
            let text = parts.nth(1)?.trim().strip_prefix("error")?;
            let (code, text) = text.split_once(": ")?;
            Some(mistake(number, format!("{text} {code}").trim()))
        })
        .collect();
    if found.is_empty() {
        found.push(mistake(0, output));
    }
    if let Some(more) = found.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        found.truncate(SHOWN);
        found[SHOWN - 1].text += &format!("\n(and {more} more)");
    }
    if let Some(first) = found.first_mut() {
        first.text = format!("{}\n{REMEDY}", first.text);
    }
    found
}

fn mistake(line: usize, text: &str) -> Mistake {
    let text = format!("this kernel does not compile to WebAssembly: {text}");
    Mistake { line, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc_macro2::{Ident, Span, TokenStream};

    fn source(item: &str) -> Source {
        source_with("sum", item, "samite::mobile")
    }

    fn source_with(name: &str, item: &str, path: &str) -> Source {
        let item: TokenStream = item.parse().expect("tokens");
        let entry = Ident::new(name, Span::call_site());
        let path = syn::parse_str(path).expect("a path");
        Source::new(&item, false, &[(entry, name.to_owned())], &path)
    }

    fn can_compile(test: &str) -> bool {
        let remedy = "install the target: rustup target add wasm32-unknown-unknown";
        samite_testkit::require(test, compiler().is_some(), remedy)
    }

    #[test]
    fn a_kernel_is_small_and_imports_its_memory() {
        if !can_compile("a_kernel_is_small_and_imports_its_memory") {
            return;
        }
        let source = source(
            "fn sum(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
                let mut total = 0;
                for at in (0..context.len(0)?).step_by(8) {
                    total += context.load(0, at)?;
                }
                context.reply(&total.to_le_bytes())
            }",
        );
        let code = compile(&source).expect("a kernel").expect("a compiler");
        println!("{} bytes", code.len());
        assert!(code.starts_with(b"\0asm"));
        assert!(code.len() < 1000, "{} bytes", code.len());
        let import = b"\x06samite\x06memory\x02\x00";
        assert!(code.windows(import.len()).any(|found| found == import));
    }

    #[test]
    fn a_kernel_uses_the_path_that_is_given() {
        if !can_compile("a_kernel_uses_the_path_that_is_given") {
            return;
        }
        for path in ["sm", "::sm::mobile", "sm::parts::moved", "crate::parts"] {
            let item = format!(
                "fn sum(context: &mut {path}::Context, _: &[u8]) -> Result<(), {path}::Trap> {{
                    context.reply(&[])
                }}"
            );
            let code = compile(&source_with("sum", &item, path));
            assert!(code.expect(path).is_some());
        }
    }

    #[test]
    fn a_kernel_may_have_a_name_of_the_prelude() {
        if !can_compile("a_kernel_may_have_a_name_of_the_prelude") {
            return;
        }
        for name in ["entry", "payload", "run"] {
            let item = format!(
                "fn {name}(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {{
                    context.reply(payload)
                }}"
            );
            let code = compile(&source_with(name, &item, "samite::mobile"));
            assert!(code.expect(name).is_some());
        }
    }

    #[test]
    fn methods_of_real_numbers_are_there() {
        if !can_compile("methods_of_real_numbers_are_there") {
            return;
        }
        let source = source(
            "fn sum(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
                use crate::guest::Real as _;
                let x = payload.len() as f64;
                let y = x.asinh() + x.acosh() + x.atanh() + x.tanh().cbrt().powi(3);
                let y = (y.log(x) as f32).div_euclid(3.0).rem_euclid(2.0).log(2.0).asinh();
                context.reply(&(x.div_euclid(3.0) + f64::from(y)).to_le_bytes())
            }",
        );
        let code = compile(&source).expect("a kernel").expect("a compiler");
        let import = b"\x03env";
        assert!(!code.windows(import.len()).any(|found| found == import));
    }

    /// `usize` has 32 bits here. What the native compiler only warns of is no error.
    #[test]
    fn a_number_that_does_not_fit_is_refused() {
        if !can_compile("a_number_that_does_not_fit_is_refused") {
            return;
        }
        for (number, says) in [
            ("0xffff_ffff_ffff", "literal out of range for `usize`"),
            ("1 << 40", "this arithmetic operation will overflow"),
            ("1 << 31", ""),
        ] {
            let source = source(&format!(
                "fn sum(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {{
                    let Unused = 0;
                    let most: usize = {number};
                    context.reply(&(payload.len() as u64 & most as u64).to_le_bytes())
                }}"
            ));
            match compile(&source) {
                Ok(code) => assert!(says.is_empty() && code.is_some(), "{number}"),
                Err(mistakes) => {
                    assert!(
                        !says.is_empty() && mistakes[0].text.contains(says),
                        "{mistakes:?}"
                    );
                    assert!(mistakes[0].line > 0, "{mistakes:?}");
                }
            }
        }
    }

    #[test]
    fn mistakes_have_a_place_and_a_remedy() {
        if !can_compile("mistakes_have_a_place_and_a_remedy") {
            return;
        }
        let item = "fn sum(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
            let text = \"a text
                of two lines\";
            let all = std::vec::Vec::new();
            context.reply(&helper(payload))
        }";
        let source = source(item);
        let mistakes = compile(&source).expect_err("it uses what is not there");
        let tokens: Vec<_> = (mistakes.iter())
            .map(|mistake| source.text.lines().nth(mistake.line - 1))
            .collect();
        assert_eq!(tokens, [Some("std"), Some("helper")], "{mistakes:?}");
        let (first, second) = (&mistakes[0].text, &mistakes[1].text);
        assert!(first.contains("`#[mobile]` on the module"), "{first}");
        assert!(second.contains("cannot find function `helper`"), "{second}");
    }
}
