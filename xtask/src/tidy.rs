//! `cargo xtask tidy`: checks the house rules that no compiler checks.
//!
//! Errors: `unsafe` outside its allowed files, a crate that does not forbid it, an `unsafe` or a
//! stronger ordering without its comment, meaningless file names, dependencies that point up,
//! comments and Markdown wider than 100 characters. Only reported: long files, and the amount of
//! `unsafe`.

use crate::arrows::wrong_arrows;
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// A file with more lines needs a reason.
const LONG: usize = 500;
/// The maximum width of comments and Markdown in characters. The formatter handles the code.
const WIDTH: usize = 100;
/// How many lines above its code a `SAFETY:` or `ORDERING:` may begin.
const NEAR: usize = 12;
const BANNED_NAMES: &[&str] = &[
    "util", "utils", "common", "manager", "helper", "helpers", "misc",
];
/// Where `unsafe` is allowed: one whole crate, and these files of others. Those crates deny it, and
/// allow it in that module.
const UNSAFE_CRATE: &str = "crates/mem/";
const UNSAFE_FILES: &[&str] = &[
    "bench/peers/lamellar/src/ffi.rs",
    "workloads/lammps/src/ffi.rs",
    "crates/engines/src/bitcode/ffi.rs",
    "crates/engines/src/bitcode/link.rs",
    "crates/engines/src/bitcode/module.rs",
    "crates/engines/src/elf/load.rs",
    "crates/engines/src/native/host.rs",
    "crates/engines/src/native/run.rs",
    "crates/engines/src/wasm/window.rs",
    "crates/pmix/src/ffi.rs",
    "crates/ucx/src/ffi.rs",
    "crates/ucx/src/signals.rs",
    "crates/ucx/src/worker/callbacks.rs",
    "crates/ucx/src/worker/endpoints.rs",
    "crates/ucx/src/worker/mod.rs",
    // Is compiled into kernels only, which run in a sandbox.
    "crates/mobile-macros/guest/prelude.rs",
];
/// Orderings that pair with another place. `Relaxed` needs no partner.
const PAIRED: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// Runs all checks. Fails if one finds an error.
pub(crate) fn tidy() -> Result<()> {
    eprintln!("+ cargo xtask tidy");
    let files = output(
        "git",
        &[
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            "*.rs",
            "*.md",
        ],
    )?;
    let mut wrong = wrong_arrows()?;
    let mut unsafe_lines = 0;
    // Skips files that are deleted but still in the index.
    for path in files.lines().filter(|path| Path::new(path).exists()) {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        wrong.extend(too_wide(path, &text));
        if path.ends_with(".md") {
            continue;
        }
        let source = Source::new(path, &text);
        wrong.extend(source.wrong());
        unsafe_lines += source.unsafe_lines().count();
        let length = text.lines().count();
        if length > LONG {
            println!("long: {path} has {length} lines; above {LONG} a file wants a reason");
        }
    }
    println!("unsafe: {unsafe_lines} lines");
    for sentence in &wrong {
        println!("wrong: {sentence}");
    }
    if !wrong.is_empty() {
        bail!("{} rules of the house are broken", wrong.len());
    }
    Ok(())
}

/// A source file, with its code separated from its comments.
struct Source<'a> {
    path: &'a str,
    lines: Vec<&'a str>,
    /// The first line of the test module, where orderings need no comments.
    tests: usize,
}

impl<'a> Source<'a> {
    fn new(path: &'a str, text: &'a str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let is_test_file = path.contains("/tests/") || path.ends_with("tests.rs");
        // The attribute may also stand above a single item, far above the tests.
        let opens_tests = |pair: &[&str]| {
            pair[0].trim() == "#[cfg(test)]"
                && words(pair[1]).any(|word| word == "mod")
                && pair[1].ends_with('{')
        };
        let module = lines.windows(2).position(opens_tests);
        let tests = if is_test_file {
            0
        } else {
            module.unwrap_or(lines.len())
        };
        Self { path, lines, tests }
    }

    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(name) = self.banned_name() {
            wrong.push(format!(
                "{}: `{name}` says nothing; name it after what it holds",
                self.path
            ));
        }
        wrong.extend(self.wrong_attributes());
        for line in self.unsafe_lines() {
            let at = format!("{}:{}", self.path, line + 1);
            if !self.may_be_unsafe() {
                wrong.push(format!(
                    "{at}: `unsafe` lives in {UNSAFE_CRATE} and in {}",
                    UNSAFE_FILES.join(", ")
                ));
            } else if opens_block(&code(self.lines[line])) && !self.has_near(line, "SAFETY:") {
                wrong.push(format!("{at}: `unsafe` without a SAFETY: comment"));
            }
        }
        for line in self
            .ordering_lines()
            .filter(|&line| !self.has_near(line, "ORDERING:"))
        {
            let at = format!("{}:{}", self.path, line + 1);
            wrong.push(format!(
                "{at}: an ordering without an ORDERING: comment that names its partner"
            ));
        }
        wrong
    }

    fn banned_name(&self) -> Option<&'a str> {
        self.path
            .trim_end_matches(".rs")
            .split(['/', '_'])
            .find(|word| BANNED_NAMES.contains(word))
    }

    fn is_crate_root(&self) -> bool {
        self.path.ends_with("src/lib.rs") || self.path.ends_with("src/main.rs")
    }

    /// Returns true if `unsafe` is allowed here.
    fn may_be_unsafe(&self) -> bool {
        self.path.starts_with(UNSAFE_CRATE) || UNSAFE_FILES.contains(&self.path)
    }

    /// Checks that every crate but `mem` forbids `unsafe`, or denies it and allows it in the listed
    /// files alone.
    fn wrong_attributes(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.path.starts_with(UNSAFE_CRATE) {
            return wrong;
        }
        let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let homes = UNSAFE_FILES.iter().filter_map(|file| {
            let module = file.strip_prefix(folder)?.strip_prefix('/')?;
            module
                .strip_suffix("/mod.rs")
                .or(module.strip_suffix(".rs"))
                .filter(|module| !module.contains('/'))
        });
        let homes: Vec<&str> = homes.collect();
        let has_homes = UNSAFE_FILES.iter().any(|file| {
            let inside = file.strip_prefix(folder);
            inside.is_some_and(|inside| inside.starts_with('/'))
        });
        let wanted = match has_homes {
            true => "#![deny(unsafe_code)]",
            false => "#![forbid(unsafe_code)]",
        };
        if self.is_crate_root() && !self.lines.iter().any(|line| line.trim() == wanted) {
            wrong.push(format!("{}: has no {wanted}", self.path));
        }
        for (at, line) in self.lines.iter().enumerate() {
            let is_known = ["#![forbid(unsafe_code)]", wanted].contains(&line.trim());
            if is_known || !words(&code(line)).any(|word| word == "unsafe_code") {
                continue;
            }
            let mut after = self.lines[at..].iter();
            let module = after.find_map(|line| line.trim().strip_prefix("mod ")?.strip_suffix(';'));
            if !module.is_some_and(|module| homes.contains(&module)) {
                let place = format!("{}:{}", self.path, at + 1);
                wrong.push(format!("{place}: allows `unsafe` where it has no home"));
            }
        }
        wrong
    }

    fn unsafe_lines(&self) -> impl Iterator<Item = usize> {
        let is_unsafe = |line: &&str| words(&code(line)).any(|word| word == "unsafe");
        self.lines
            .iter()
            .enumerate()
            .filter(move |(_, line)| is_unsafe(line))
            .map(|(index, _)| index)
    }

    fn ordering_lines(&self) -> impl Iterator<Item = usize> {
        let has_ordering = |line: &str| {
            let is_use = line.trim_start().starts_with("use ");
            let code = code(line);
            let mut names = words(&code);
            !is_use && names.any(|word| PAIRED.contains(&word)) && code.contains("Ordering")
        };
        let lines = self.lines.iter().enumerate().take(self.tests);
        lines
            .filter(move |(_, line)| has_ordering(line))
            .map(|(index, _)| index)
    }

    /// Returns true if `word` is on this line or shortly above it.
    fn has_near(&self, line: usize, word: &str) -> bool {
        self.lines[line.saturating_sub(NEAR)..=line]
            .iter()
            .any(|line| line.contains(word))
    }
}

/// Returns the lines of comments in a source file, or of Markdown, that are too wide.
fn too_wide(path: &str, text: &str) -> Vec<String> {
    let mut wide = Vec::new();
    let mut is_code = false;
    for (at, line) in text.lines().enumerate() {
        let prose = match path.ends_with(".md") {
            true => Some(line),
            false => line.trim_start().strip_prefix("//"),
        };
        let Some(prose) = prose.map(|prose| prose.trim_start_matches(['/', '!', ' '])) else {
            // A code block ends with its comment.
            is_code = false;
            continue;
        };
        if prose.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && line.chars().count() > WIDTH && can_be_wrapped(prose) {
            wide.push(format!("{path}:{}: wider than {WIDTH} characters", at + 1));
        }
    }
    wide
}

/// Returns true unless the line is a table, the definition of a link, or one long word such as a
/// URL.
fn can_be_wrapped(prose: &str) -> bool {
    let is_link = prose.starts_with('[') && prose.contains("]: ");
    let is_item = prose.starts_with("- ") || prose.starts_with("* ");
    let words = prose.split_whitespace().skip(usize::from(is_item)).count();
    !prose.starts_with('|') && !is_link && words > 1
}

/// Returns true for a block or an implementation, which needs a reason for its soundness, unlike a
/// declaration.
fn opens_block(code: &str) -> bool {
    code.contains("unsafe {") || code.contains("unsafe impl")
}

/// Returns the line without its comment and the contents of its strings. An unterminated string
/// takes the rest of the line.
fn code(line: &str) -> String {
    let (mut code, mut is_text) = (String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if is_text => _ = letters.next(),
            '"' => is_text = !is_text,
            _ if is_text => {}
            '/' if letters.peek() == Some(&'/') => break,
            // A quotation mark as a character.
            '\'' if letters.peek() == Some(&'"') => _ = letters.next(),
            _ => code.push(letter),
        }
    }
    code
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, text: &str) -> Vec<String> {
        Source::new(path, text).wrong()
    }

    #[test]
    fn unsafe_away_from_home_is_wrong() {
        let text = "fn f() { unsafe { g() } }\n";
        assert_eq!(wrong("crates/stage/src/index.rs", text).len(), 1);
        assert_eq!(wrong("crates/mem/src/ring.rs", text).len(), 1);
        assert!(wrong("crates/mem/src/ring.rs", &format!("// SAFETY: I1.\n{text}")).is_empty());
        assert!(
            wrong(
                "crates/stage/src/index.rs",
                "// unsafe\nlet a = \"unsafe\";\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn unsafe_behind_a_string_is_seen() {
        let hidden = "let a = f(\"text // \\\" \"); unsafe { g() }\n";
        assert_eq!(wrong("crates/stage/src/index.rs", hidden).len(), 1);
        let letter = "let a = '\"'; unsafe { g() }\n";
        assert_eq!(wrong("crates/stage/src/index.rs", letter).len(), 1);
    }

    #[test]
    fn crates_forbid_unsafe() {
        assert_eq!(wrong("nowhere/src/lib.rs", "//! Hello.\n").len(), 1);
        assert!(wrong("nowhere/src/lib.rs", "#![forbid(unsafe_code)]\n").is_empty());
        assert_eq!(
            wrong("nowhere/src/lib.rs", "#![deny(unsafe_code)]\n").len(),
            2
        );
        let allowed = "#![allow(unsafe_code)]\n";
        assert_eq!(wrong("nowhere/tests/all.rs", allowed).len(), 1);
        assert!(wrong("crates/mem/src/lib.rs", allowed).is_empty());
    }

    #[test]
    fn only_files_that_are_named_are_homes() {
        let text = "// SAFETY: F1.\nunsafe { g() }\n";
        assert!(wrong("workloads/lammps/src/ffi.rs", text).is_empty());
        assert_eq!(wrong("crates/stage/src/ffi.rs", text).len(), 1);
        let root = |module: &str| {
            let allowed = format!("#[allow(\n    unsafe_code,\n)]\nmod {module};\n");
            format!("#![deny(unsafe_code)]\n{allowed}")
        };
        assert!(wrong("workloads/lammps/src/lib.rs", &root("ffi")).is_empty());
        assert_eq!(wrong("workloads/lammps/src/lib.rs", &root("melt")).len(), 1);
        assert_eq!(wrong("workloads/nas/src/lib.rs", &root("ffi")).len(), 3);
        let open = "#[allow(unsafe_code)]\nmod ffi;\n";
        assert_eq!(wrong("workloads/lammps/src/lib.rs", open).len(), 1);
    }

    #[test]
    fn orderings_name_their_partner() {
        let text = "a.store(1, Ordering::Release);\n";
        assert_eq!(wrong("crates/mem/src/ring.rs", text).len(), 1);
        let explained = format!("// ORDERING: Release, pairs with Acquire in poll.\n{text}");
        assert!(wrong("crates/mem/src/ring.rs", &explained).is_empty());
        assert!(wrong("crates/mem/src/ring.rs", "a.load(Ordering::Relaxed);\n").is_empty());
        assert!(
            wrong(
                "crates/mem/src/ring.rs",
                &format!("#[cfg(test)]\nmod tests {{\n{text}")
            )
            .is_empty()
        );
        let item = format!("#[cfg(test)]\nmod simulated;\n{text}");
        assert_eq!(wrong("crates/mem/src/ring.rs", &item).len(), 1);
    }

    #[test]
    fn comments_and_markdown_are_as_wide_as_a_screen() {
        let words = |count: usize| "words ".repeat(count);
        let wide = |path: &str, text: String| too_wide(path, &text).len();
        for (path, before) in [("a.rs", "//! "), ("a.rs", "    // "), ("a.md", "* ")] {
            assert_eq!(wide(path, format!("{before}{}", words(17))), 1, "{before}");
            assert_eq!(wide(path, format!("{before}{}", words(14))), 0, "{before}");
            assert_eq!(wide(path, format!("{before}{}", "x".repeat(200))), 0);
        }
        // Width is counted in characters, not bytes.
        assert_eq!(wide("a.md", format!("a {}", "\u{e9}".repeat(98))), 0);
        assert_eq!(wide("a.md", format!("a {}", "\u{e9}".repeat(99))), 1);
        assert_eq!(wide("a.rs", format!("let code = {}", words(40))), 0);
        for free in ["| a | ", "[link]: https://example.org "] {
            assert_eq!(wide("a.md", format!("{free}{}", words(20))), 0, "{free}");
            assert_eq!(
                wide("a.rs", format!("/// {free}{}", words(20))),
                0,
                "{free}"
            );
        }
        let long = words(20);
        let fenced = format!("```text\n{long}\n```\n{long}\n");
        assert_eq!(
            too_wide("a.md", &fenced),
            ["a.md:4: wider than 100 characters"]
        );
        let fenced = format!("/// ```text\n/// {long}\nfn f() {{}}\n// {long}\n");
        assert_eq!(
            too_wide("a.rs", &fenced),
            ["a.rs:4: wider than 100 characters"]
        );
    }

    #[test]
    fn names_that_say_nothing_are_wrong() {
        assert_eq!(wrong("crates/mem/src/utils.rs", "").len(), 1);
        assert_eq!(wrong("crates/mem/src/segment_manager.rs", "").len(), 1);
    }
}
