//! The workflows that come with Samite, each once, small: they run, and their results are verified.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn samite(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_samite"))
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .args(arguments)
        .output()
        .expect("samite can be started")
}

fn workflow(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows");
    folder.join(name).display().to_string()
}

/// Runs a job that must succeed; what it prints.
fn succeeds(arguments: &[&str]) -> String {
    let output = samite(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("SUCCESSFUL"), "{text}{errors}");
    text
}

/// Runs a workflow with its parameters given as `--name value`.
fn runs(name: &str, parameters: &[&str]) -> String {
    let path = workflow(name);
    succeeds(&[&["run", &path], parameters].concat())
}

#[test]
fn integer_sort() {
    let text = runs("is.toml", &["--class", "S", "--units", "3"]);
    assert!(text.contains("SUCCESSFUL: 51 of 51 checks"), "{text}");
}

#[test]
fn conjugate_gradients() {
    let text = runs("cg.toml", &["--class", "S", "--units", "2"]);
    assert!(text.contains("zeta is 8.597177507"), "{text}");
}

#[test]
fn random_updates() {
    let text = runs("gups.toml", &["--words-log2", "12", "--units", "2"]);
    assert!(text.contains("updates       16384\n"), "{text}");
}

#[test]
fn histogram() {
    runs("histogram.toml", &["--updates", "10000"]);
}

#[test]
fn index_gather() {
    runs("index-gather.toml", &["--reads", "10000"]);
}

#[test]
fn pointer_chase() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let report = folder.path().join("chase.html");
    let report = report.display().to_string();
    let small = [
        "--servers",
        "3",
        "--words",
        "1000",
        "--depth",
        "64",
        "--repeats",
        "2",
    ];
    let text = runs("chase.toml", &[&small[..], &["--report", &report]].concat());
    assert!(
        text.contains("gets / moved") && text.contains("35 of 35"),
        "{text}"
    );
    let page = std::fs::read_to_string(report).expect("there is a report");
    assert!(page.contains("<svg"), "a page without a plot");
}

#[test]
fn laplace_on_an_array() {
    let text = runs(
        "laplace-array.toml",
        &["--size", "60", "--steps", "20", "--units", "4"],
    );
    assert!(text.contains("3600 of 3600 cells are equal"), "{text}");
}

#[test]
fn sort_of_a_file() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let [input, output] = ["input", "output"].map(|name| folder.path().join(name));
    std::fs::write(&input, "pear\napple\nquince\napple\n").expect("it can be written");
    let path = |path: &PathBuf| path.display().to_string();
    runs(
        "sort.toml",
        &["--input", &path(&input), "--output", &path(&output)],
    );
    let sorted = std::fs::read_to_string(&output).expect("the result is there");
    assert_eq!(sorted, "apple\napple\npear\nquince\n");
}

#[test]
fn a_program_needs_no_workflow() {
    let text = succeeds(&["run", "-n", "2", "nas-is", "--class", "s"]);
    assert!(text.contains("[nas-is.0]"), "{text}");
}

#[test]
fn a_program_that_fails_ends_the_job() {
    let sort = workflow("sort.toml");
    let output = samite(&["run", &sort, "--input", "/nowhere/at/all"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("/nowhere/at/all could not be read"),
        "{errors}"
    );
}
