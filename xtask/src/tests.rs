//! `cargo xtask test` and `cargo xtask loom`.

use crate::arrows;
use crate::command::cargo_with;
use crate::parts::{PARTS, Part};
use anyhow::{Result, bail};

/// Suites of processes that are run again with units that behave as if they were on 2 and on 3
/// nodes. Suites with such cases of their own (`everywhere!`) are not listed.
const ON_NODES: [&str; 8] = [
    "faults",
    "graph",
    "keeping",
    "methods",
    "streams",
    "table_four",
    "threads",
    "watch",
];

/// Runs loom and the documentation examples first and the tests of the workspace last, so that the
/// final summary is that of the tests.
pub(crate) fn test(require_all: bool, filter: Option<&str>) -> Result<()> {
    let (present, missing): (Vec<&Part>, Vec<&Part>) =
        PARTS.iter().partition(|part| part.is_present());
    for part in &missing {
        println!(
            "skipped: {}, {} (install: {})",
            part.name, part.purpose, part.install
        );
    }
    if require_all && !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|part| part.name).collect();
        bail!("--require-all, and missing: {}", names.join(", "));
    }
    loom(filter)?;
    let environment: &[_] = match require_all {
        true => &[("SAMITE_TEST_REQUIRE_ALL", "1")],
        false => &[],
    };
    let run = |more: &[(&str, &str)], targets: &[&str]| {
        let environment = [environment, more].concat();
        let mut line = vec!["test", "--workspace"];
        if present.iter().any(|part| part.name == "cc") {
            line.push("--features=samite-cli/zarr");
        }
        line.extend(targets);
        line.extend(filter);
        cargo_with(&environment, &line)
    };
    run(&[], &["--doc"])?;
    let suites: Vec<&str> = ON_NODES
        .into_iter()
        .flat_map(|suite| ["--test", suite])
        .collect();
    run(&[("SAMITE_TEST_NODES", "2")], &suites)?;
    run(&[("SAMITE_TEST_NODES", "3")], &suites)?;
    run(&[], &["--lib", "--bins", "--tests", "--examples"])
}

/// Runs the loom models. Loom replaces the atomics of a whole build, so it has its own build
/// folder.
pub(crate) fn loom(filter: Option<&str>) -> Result<()> {
    let flags = format!(
        "{} --cfg loom",
        std::env::var("RUSTFLAGS").unwrap_or_default()
    );
    let folder = format!("{}/loom", arrows::metadata()?.target_directory);
    let mut line = vec![
        "test",
        "--package",
        "samite-mem",
        "--release",
        "--test",
        "loom",
        "--target-dir",
        &folder,
    ];
    line.extend(filter);
    cargo_with(&[("RUSTFLAGS", flags.trim())], &line)
}
