//! `cargo xtask tidy`: the rules of the house that no compiler knows.
//!
//! Wrong: `unsafe` away from its homes, a crate that does not forbid it, an `unsafe` or a stronger
//! ordering without its comment, names that say nothing, arrows that point up. Only reported: files
//! that have become long, and how much `unsafe` there is.

use crate::arrows::wrong_arrows;
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// A file above this wants a reason.
const LONG: usize = 500;
/// How far above its code a `SAFETY:` or `ORDERING:` may begin.
const NEAR: usize = 12;
const BANNED_NAMES: &[&str] = &[
    "util", "utils", "common", "manager", "helper", "helpers", "misc",
];
/// Orderings that pair with another place; `Relaxed` counts things.
const PAIRED: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// Checks everything; fails when something is wrong.
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
        ],
    )?;
    let mut wrong = wrong_arrows()?;
    let mut unsafe_lines = 0;
    // A file that was deleted but not yet from the index is no file.
    for path in files.lines().filter(|path| Path::new(path).exists()) {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
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

/// A source file, its code apart from its comments.
struct Source<'a> {
    path: &'a str,
    lines: Vec<&'a str>,
    /// The first line of the test module, where comments about orderings are not asked for.
    tests: usize,
}

impl<'a> Source<'a> {
    fn new(path: &'a str, text: &'a str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let is_test_file = path.contains("/tests/") || path.ends_with("tests.rs");
        let module = lines.iter().position(|line| line.trim() == "#[cfg(test)]");
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
        if self.is_crate_root() && !self.may_be_unsafe() && !self.forbids_unsafe() {
            wrong.push(format!("{}: has no #![forbid(unsafe_code)]", self.path));
        }
        for line in self.unsafe_lines() {
            let at = format!("{}:{}", self.path, line + 1);
            if !self.may_be_unsafe() {
                wrong.push(format!(
                    "{at}: `unsafe` lives in crates/mem and in files called ffi.rs"
                ));
            } else if opens_block(code(self.lines[line])) && !self.has_near(line, "SAFETY:") {
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

    /// Whether `unsafe` is at home here: in `mem`, and in the ffi files of other crates, whose roots
    /// cannot forbid it then.
    fn may_be_unsafe(&self) -> bool {
        self.path.starts_with("crates/mem/")
            || self.path.ends_with("/ffi.rs")
            || (self.is_crate_root() && has_ffi_file(Path::new(self.path).parent()))
    }

    fn forbids_unsafe(&self) -> bool {
        self.lines
            .iter()
            .any(|line| line.trim() == "#![forbid(unsafe_code)]")
    }

    fn unsafe_lines(&self) -> impl Iterator<Item = usize> {
        let is_unsafe = |line: &&str| words(code(line)).any(|word| word == "unsafe");
        self.lines
            .iter()
            .enumerate()
            .filter(move |(_, line)| is_unsafe(line))
            .map(|(index, _)| index)
    }

    fn ordering_lines(&self) -> impl Iterator<Item = usize> {
        let has_ordering = |line: &str| {
            let is_use = line.trim_start().starts_with("use ");
            let mut names = words(code(line));
            !is_use && names.any(|word| PAIRED.contains(&word)) && code(line).contains("Ordering")
        };
        let lines = self.lines.iter().enumerate().take(self.tests);
        lines
            .filter(move |(_, line)| has_ordering(line))
            .map(|(index, _)| index)
    }

    /// Whether `word` is on this line or a little above.
    fn has_near(&self, line: usize, word: &str) -> bool {
        self.lines[line.saturating_sub(NEAR)..=line]
            .iter()
            .any(|line| line.contains(word))
    }
}

/// A block or an implementation states why it is sound; a declaration states what it asks.
fn opens_block(code: &str) -> bool {
    code.contains("unsafe {") || code.contains("unsafe impl")
}

fn has_ffi_file(folder: Option<&Path>) -> bool {
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    entries.into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        path.ends_with("ffi.rs") || (path.is_dir() && has_ffi_file(Some(&path)))
    })
}

/// The line without its comment and without the text of its strings.
fn code(line: &str) -> &str {
    let end = line.find("//").unwrap_or(line.len());
    let end = line.find('"').map_or(end, |quote| quote.min(end));
    &line[..end]
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
    fn crates_forbid_unsafe() {
        assert_eq!(wrong("nowhere/src/lib.rs", "//! Hello.\n").len(), 1);
        assert!(wrong("nowhere/src/lib.rs", "#![forbid(unsafe_code)]\n").is_empty());
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
    }

    #[test]
    fn names_that_say_nothing_are_wrong() {
        assert_eq!(wrong("crates/mem/src/utils.rs", "").len(), 1);
        assert_eq!(wrong("crates/mem/src/segment_manager.rs", "").len(), 1);
    }
}
