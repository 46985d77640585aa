//! `README.md` and `docs/README.md`: the listing is an example, what they list is there, and all
//! links of all documents lead somewhere.

use crate::examples::programs::Programs;
use crate::examples::tutorial::{blocks, listings, shows_in};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns what `samite` prints for these words.
fn printed(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_samite"))
        .current_dir(root())
        .args(words)
        .output()
        .expect("samite can be started");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn its_program_is_an_example_and_prints_what_it_shows() {
    assert_eq!(listings(&blocks("README.md")), ["neighbours.rs"]);
    let lines = Programs::new().run("-n 4 target/debug/neighbours");
    shows_in("README.md", "neighbours", &lines);
}

/// A package can contain them that depends on `samite` alone, or for a picture also on `png`.
#[test]
fn examples_use_no_other_crate() {
    let files = std::fs::read_dir(root().join("crates/samite/examples")).expect("it is there");
    for file in files {
        let path = file.expect("it can be listed").path();
        let text = read(&path);
        for line in text.lines().filter(|line| line.starts_with("use ")) {
            let is_known = ["use samite::", "use std::"]
                .iter()
                .any(|known| line.starts_with(known));
            assert!(is_known, "{}: {line}", path.display());
        }
        // Otherwise what `Pod` derives looks for a `bytemuck` of the package.
        if text.contains("Pod, Zeroable)]") {
            let says_where = text.contains("#[bytemuck(crate = \"samite::bytemuck\")]");
            assert!(says_where, "{}", path.display());
        }
    }
}

#[test]
fn its_options_are_those_of_the_workflow() {
    let help = printed(&["run", "workflows/laplace.toml", "--help"]);
    for option in ["--size", "--units", "--readers"] {
        assert!(read(&root().join("README.md")).contains(option));
        assert!(help.contains(option), "{option}? {help}");
    }
}

#[test]
fn every_workflow_and_every_command_is_listed() {
    let overview = read(&root().join("docs/README.md"));
    let files = std::fs::read_dir(root().join("workflows")).expect("there are workflows");
    for file in files {
        let name = file.expect("it can be listed").file_name();
        let line = format!("samite run workflows/{}", name.display());
        assert!(overview.contains(&line), "docs/README.md has no `{line}`");
    }
    let help = printed(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains(&"run"), "{help}");
    for name in commands {
        let is_listed = overview.contains(&format!("| `samite {name}"));
        assert!(is_listed, "docs/README.md has no row for `samite {name}`");
    }
}

/// Returns the text without its blocks of code, in which brackets are no links.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns what can follow `#` in a link to this text: its headings as GitHub writes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let letters = words.chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            letter if letter.is_alphanumeric() || letter == '-' || letter == '_' => Some(letter),
            _ => None,
        });
        letters.collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut documents = Vec::new();
    for folder in [root(), root().join("docs")] {
        let files = std::fs::read_dir(folder).expect("there are documents");
        let paths = files.map(|file| file.expect("it can be listed").path());
        documents.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    assert!(documents.len() > 10, "{documents:?}");
    let mut anchors_of = HashMap::new();
    let mut broken = Vec::new();
    for document in documents {
        let text = prose(&read(&document));
        let folder = document.parent().expect("it is in a folder");
        for rest in text.split("](").skip(1) {
            let link = rest.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => folder.join(file),
            };
            let is_right = target.exists()
                && (anchor.is_empty()
                    || anchors_of
                        .entry(target.clone())
                        .or_insert_with(|| anchors(&read(&target)))
                        .contains(&anchor.to_owned()));
            if !is_right {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
