//! `cargo xtask test` and `cargo xtask loom`.

use crate::aarch64;
use crate::arrows;
use crate::command::{cargo_with, output};
use crate::parts::{PARTS, Part};
use crate::stress::{TOGETHER, modules};
use anyhow::{Context, Result, bail};

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

/// Suites of processes that are run again on two hosts: two agents, and units that reach those of
/// the other one over UCX.
const ON_HOSTS: [&str; 8] = [
    "calls::",
    "chases::",
    "collective::results::",
    "keeping::",
    "methods::",
    "owners::",
    "replicas::",
    "streams::",
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
    let suites = check_names(&modules()?)?;
    loom(filter)?;
    let has = |name: &str| present.iter().any(|part| part.name == name);
    let mut environment = Vec::new();
    if require_all {
        environment.push(("SAMITE_TEST_REQUIRE_ALL", "1"));
    }
    // Building for another processor takes minutes: with a name, only if it is meant.
    let is_named = filter.is_none_or(|name| name.contains(aarch64::PART));
    let emulated = match (require_all || is_named) && has(aarch64::PART) {
        true => Some(aarch64::emulated()?),
        false => None,
    };
    if let Some((name, program)) = &emulated {
        environment.push((name, program));
    }
    let has_cc = has("cc");
    let line = |targets: &[&str], filters: &[&str]| {
        let mut line = vec!["test", "--workspace"];
        if has_cc {
            line.push("--features=samite-cli/zarr");
        }
        let words = [&line, targets, &["--"], filters].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run = |more: &[(&str, &str)], targets: &[&str], filters: &[&str]| {
        let environment = [&environment, more].concat();
        let line = line(targets, filters);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        cargo_with(&environment, &line)
    };
    let named: Vec<&str> = filter.into_iter().collect();
    run(&[], &["--doc"], &named)?;
    let together = ["--test", TOGETHER];
    // The test runner runs what any of its filters names. So with a name, it is asked for its tests
    // first, and gets the full names of those in the suites.
    let listed = match filter {
        Some(name) => {
            let line = line(&together, &[name, "--list", "--format=terse"]);
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            output("cargo", &line).context("the tests cannot be listed")?
        }
        None => String::new(),
    };
    let filters = match filter {
        Some(_) => on_nodes(&listed),
        None => suites.to_vec(),
    };
    if !filters.is_empty() {
        for nodes in ["2", "3"] {
            run(&[("SAMITE_TEST_NODES", nodes)], &together, &filters)?;
        }
    }
    if filter.is_none() && has("ucx") {
        run(&[("SAMITE_TEST_HOSTS", "2")], &together, &ON_HOSTS)?;
    }
    run(&[], &["--lib", "--bins", "--tests", "--examples"], &named)
}

/// Runs the tests that are ignored: one after the other, because of their memory.
pub(crate) fn ignored() -> Result<()> {
    let alone = "--test-threads=1";
    crate::command::cargo(&[
        "test",
        "--workspace",
        "--lib",
        "--tests",
        "--",
        "--ignored",
        alone,
    ])
}

/// Returns the suites that are run on nodes, if there is a module for each: the tests of a suite
/// that was renamed would be left out otherwise.
fn check_names(modules: &[String]) -> Result<&'static [&'static str]> {
    // Of a path of modules, only the first is known.
    let is_module = |suite: &&&str| {
        let first = suite.split_inclusive("::").next();
        modules.iter().any(|module| first == Some(module))
    };
    match ON_NODES
        .iter()
        .chain(&ON_HOSTS)
        .find(|suite| !is_module(suite))
    {
        Some(gone) => bail!(
            "xtask/src/tests.rs runs the suite `{gone}` on nodes or hosts, but no crate has a module of this name in tests/{TOGETHER}"
        ),
        None => Ok(&ON_NODES),
    }
}

/// Returns the filters for the tests in a list of the test runner that are run on nodes too; none
/// if there are no such tests.
fn on_nodes(listed: &str) -> Vec<&str> {
    let tests = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    let in_suite = |test: &&str| ON_NODES.iter().any(|suite| test.starts_with(suite));
    let mut filters: Vec<&str> = tests.filter(in_suite).collect();
    if !filters.is_empty() {
        filters.push("--exact");
    }
    filters
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

#[cfg(test)]
mod names {
    use super::*;

    #[test]
    fn a_suite_that_was_renamed_is_found() {
        let all = modules().expect("cargo knows the packages");
        check_names(&all).expect("all suites are there");
        let renamed = |module: &String| match module.as_str() {
            "faults::" => "failures::".to_owned(),
            _ => module.clone(),
        };
        let renamed: Vec<String> = all.iter().map(renamed).collect();
        let error = check_names(&renamed).expect_err("there is no module");
        assert!(error.to_string().contains("`faults::`"), "{error}");
    }

    #[test]
    fn a_name_without_its_suite_is_run_on_nodes() {
        let listed = "faults::lost::a_lost_reader: test\nlock::a_lost_owner: test\n\
                      streams::a_lost_writer: test\nlost_faults::it: test\n3: benchmark\n";
        let filters = [
            "faults::lost::a_lost_reader",
            "streams::a_lost_writer",
            "--exact",
        ];
        assert_eq!(on_nodes(listed), filters);
        assert!(on_nodes("lock::a_lost_owner: test\n").is_empty());
    }
}
