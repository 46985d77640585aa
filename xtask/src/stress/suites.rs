//! Lists the suites, and what is left out of them.

use super::round::Program;
use crate::arrows::{Metadata, Package, metadata};
use crate::parts::PARTS;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is not run under stress, and why. The second string is a prefix of test names in a suite,
/// without the suite's own; if empty, the whole suite is left out.
pub(super) const LEFT_OUT: &[(&str, &str, &str)] = &[
    (
        "fabric/simulated",
        "",
        "one process: the network is simulated, its seeds are its stress",
    ),
    (
        "mem/loom",
        "",
        "one process: all interleavings of a model, with `cargo xtask loom`",
    ),
    ("mem/ring", "", "threads of one process"),
    ("cli/domain", "", "has no tests: what the others share"),
    ("stage/staged", "", "has no tests: what the others share"),
    ("launch/decoders", "", "one process"),
    ("samite/decoders", "", "one process"),
    ("stage/hostile", "", "one process"),
    (
        "stage/simulated",
        "",
        "one process: the network is simulated, its seeds are its stress",
    ),
    ("stage/stream", "", "one process"),
    ("xtask/stress", "", "a test of this command"),
    (
        "cli/run",
        "ends::ctrl_z_",
        "stops the launcher and its units itself, and waits until they are",
    ),
    (
        "fabric/faults",
        "stopped::",
        "stops its units itself, and relies on it that they stay stopped",
    ),
    (
        "stage/faults",
        "frozen::",
        "stops its coordinator itself, and relies on it that it stays stopped",
    ),
    (
        "dsm/faults",
        "a_writer_that_is_stopped",
        "stops a unit itself, and relies on it that it stays stopped",
    ),
    (
        "dsm/faults",
        "a_reader_that_is_stopped",
        "stops a unit itself, and relies on it that it stays stopped",
    ),
    (
        "pgas/litmus",
        "progress::",
        "stops a unit itself, and relies on it that it stays stopped",
    ),
    (
        "launch/job",
        "ends::a_stopped_unit_is_ended_too",
        "its unit stops itself, and is to stay stopped",
    ),
    (
        "laplace/job",
        "a_stopped_analysis",
        "stops the analysis itself, and relies on it that it stays stopped",
    ),
];

/// The name of the test binary that has most of a crate's suites, each as a module.
pub(crate) const TOGETHER: &str = "suite";

/// The tests of one file or folder below `tests`, or below `tests/suite`.
#[derive(Debug)]
pub(super) struct Suite {
    /// The folder of its crate and its own name: `pgas/lock`.
    pub(super) name: String,
    package: String,
    target: String,
    /// What the names of its tests begin with: `lock::`. Empty if it has a binary of its own.
    module: String,
    folder: PathBuf,
    zarr: bool,
}

/// Returns the suites whose name begins with `wanted`, or all without it.
pub(super) fn suites(wanted: Option<&str>) -> Result<Vec<Suite>> {
    let metadata = metadata()?;
    let mut found: Vec<Suite> = metadata
        .packages
        .iter()
        .flat_map(|package| of_package(&metadata, package))
        .filter(|suite| wanted.is_none_or(|wanted| suite.name.starts_with(wanted)))
        .filter(|suite| left_out(&suite.name, "").is_none())
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if found.is_empty() {
        bail!(
            "no suite is called \"{}\"; `cargo xtask stress --list` has their names",
            wanted.unwrap_or_default()
        );
    }
    Ok(found)
}

/// Returns the modules of all binaries [`TOGETHER`], as the names of their tests begin: `lock::`.
pub(crate) fn modules() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let packages = metadata.packages.iter();
    let suites = packages.flat_map(|package| of_package(&metadata, package));
    let modules = suites.map(|suite| suite.module);
    Ok(modules.filter(|module| !module.is_empty()).collect())
}

fn of_package(metadata: &Metadata, package: &Package) -> Vec<Suite> {
    let folder = Path::new(&package.manifest_path).parent();
    let folder = folder.unwrap_or(Path::new(&metadata.workspace_root));
    let short = folder.file_name().unwrap_or_default().to_string_lossy();
    let suite = |name: &str, target: &str, module: String| Suite {
        name: format!("{short}/{name}"),
        package: package.name.clone(),
        target: target.to_owned(),
        module,
        folder: folder.to_owned(),
        zarr: package.features.contains_key("zarr"),
    };
    let targets = package.targets.iter();
    targets
        .filter(|target| target.kind.iter().any(|kind| kind == "test"))
        .flat_map(|target| match &*target.name {
            TOGETHER => modules_of(folder)
                .into_iter()
                .map(|module| suite(&module, TOGETHER, format!("{module}::")))
                .collect(),
            own => vec![suite(own, own, String::new())],
        })
        .collect()
}

/// Returns the modules of a crate's `tests/suite`.
fn modules_of(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("tests").join(TOGETHER));
    let entries = entries.into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.path().file_stem()?.to_str().map(str::to_owned));
    names.filter(|name| name != "main").collect()
}

/// Returns why a test or, with an empty name, a suite is left out, if it is.
fn left_out(suite: &str, test: &str) -> Option<&'static str> {
    let applies = |(of, beginning, _): &&(&str, &str, &str)| {
        *of == suite && (beginning.is_empty() || !test.is_empty() && test.starts_with(beginning))
    };
    LEFT_OUT.iter().find(applies).map(|(.., why)| *why)
}

/// The part of the output of `cargo test --message-format=json` that names the program.
#[derive(Deserialize)]
struct Artifact {
    target: crate::arrows::Target,
    executable: Option<PathBuf>,
}

impl Suite {
    /// Builds the suite and counts its tests; with `only`, those whose name contains it.
    pub(super) fn build(&self, only: Option<&str>) -> Result<(Program, usize)> {
        let mut line = vec![
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ];
        line.extend(["--package", &self.package, "--test", &self.target]);
        let has_cc = || {
            PARTS
                .iter()
                .any(|part| part.name == "cc" && part.is_present())
        };
        if self.zarr && has_cc() {
            line.push("--features=zarr");
        }
        let messages = crate::command::output("cargo", &line)?;
        let artifacts = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
        let is_ours = |artifact: &Artifact| {
            artifact.target.name == self.target
                && artifact.target.kind.iter().any(|kind| kind == "test")
        };
        let path = artifacts
            .filter(is_ours)
            .find_map(|artifact| artifact.executable.map(OsString::from))
            .with_context(|| format!("cargo built no program for {}", self.name))?;
        let tests = self.tests(&path, only)?;
        let count = tests.len();
        let mut arguments: Vec<OsString> = vec!["--exact".into()];
        arguments.extend(tests.into_iter().map(OsString::from));
        let folder = self.folder.clone();
        Ok((
            Program {
                path,
                arguments,
                folder,
            },
            count,
        ))
    }

    /// Returns the full names of its tests, without those that are left out.
    fn tests(&self, path: &OsString, only: Option<&str>) -> Result<Vec<String>> {
        let mut list = Command::new(path);
        list.args(["--list", "--format=terse"])
            .current_dir(&self.folder);
        let list = list.stderr(Stdio::inherit()).output();
        let list = list.with_context(|| format!("{} cannot be started", self.name))?;
        let list = String::from_utf8(list.stdout).context("names of tests are text")?;
        let all: Vec<&str> = list
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .collect();
        let own = |test: &&str| test.strip_prefix(&*self.module).map(str::to_owned);
        let mut tests: Vec<String> = all.iter().filter_map(own).collect();
        for (of, beginning, _) in LEFT_OUT {
            if *of == self.name && !tests.iter().any(|test| test.starts_with(beginning)) {
                bail!(
                    "{of} has no test {beginning} to be left out; mend xtask/src/stress/suites.rs"
                );
            }
        }
        tests.retain(|test| left_out(&self.name, test).is_none());
        tests.retain(|test| only.is_none_or(|only| test.contains(only)));
        if tests.is_empty() {
            bail!(
                "{} has no test whose name contains \"{}\"",
                self.name,
                only.unwrap_or_default()
            );
        }
        let full = |test: String| self.module.clone() + &test;
        Ok(tests.into_iter().map(full).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_suites_are_left_out_by_name() {
        assert!(left_out("mem/ring", "").is_some());
        assert!(left_out("mem/ring", "any").is_some());
        assert!(left_out("fabric/faults", "").is_none());
        assert!(left_out("fabric/faults", "stopped::a").is_some());
        assert!(left_out("fabric/faults", "deaths::a").is_none());
        assert!(left_out("fabric/contract", "stopped::a").is_none());
    }

    #[test]
    fn what_is_left_out_exists() {
        let metadata = metadata().expect("this is a workspace");
        let packages = metadata.packages.iter();
        let all: Vec<Suite> = packages
            .flat_map(|package| of_package(&metadata, package))
            .collect();
        for (suite, ..) in LEFT_OUT {
            assert!(all.iter().any(|known| known.name == *suite), "{suite}");
        }
    }
}
