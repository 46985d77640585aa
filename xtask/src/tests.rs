//! `cargo xtask test` and `cargo xtask loom`.

use crate::arrows;
use crate::command::cargo_with;
use crate::parts::{PARTS, Part};
use crate::stress::TOGETHER;
use anyhow::{Result, bail};

/// Suites of processes that are run again with units that behave as if they were on 2 and on 3
/// nodes. Suites with such cases of their own (`everywhere!`) are not listed.
const ON_NODES: [&str; 8] = [
    "faults::",
    "graph::",
    "keeping::",
    "methods::",
    "streams::",
    "table_four::",
    "threads::",
    "watch::",
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
    let run = |more: &[(&str, &str)], targets: &[&str], filters: &[&str]| {
        let environment = [environment, more].concat();
        let mut line = vec!["test", "--workspace"];
        if present.iter().any(|part| part.name == "cc") {
            line.push("--features=samite-cli/zarr");
        }
        line.extend(targets);
        line.push("--");
        line.extend(filters);
        cargo_with(&environment, &line)
    };
    let named: Vec<&str> = filter.into_iter().collect();
    run(&[], &["--doc"], &named)?;
    // The test runner runs what any of its filters names, so a name has to be in one of the suites.
    let suites = match filter {
        Some(name) if ON_NODES.iter().any(|suite| name.contains(suite)) => vec![name],
        Some(_) => Vec::new(),
        None => ON_NODES.to_vec(),
    };
    if !suites.is_empty() {
        for nodes in ["2", "3"] {
            let nodes = [("SAMITE_TEST_NODES", nodes)];
            run(&nodes, &["--test", TOGETHER], &suites)?;
        }
    }
    run(&[], &["--lib", "--bins", "--tests", "--examples"], &named)
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
