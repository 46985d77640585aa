//! Checks which crate uses which: dependencies only point to lower floors.

use crate::command::output;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The part of the output of `cargo metadata` that is needed here.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: String,
    pub(crate) workspace_root: String,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: String,
    pub(crate) targets: Vec<Target>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// The place of a package in the workspace.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    Floor(u8),
    /// Used only by the tests of every floor.
    Testkit,
    /// The developer's commands: outside the house.
    Xtask,
}

pub(crate) fn metadata() -> Result<Metadata> {
    let text = output("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    serde_json::from_str(&text).context("cargo metadata cannot be read")
}

/// Returns a sentence for each dependency that points up or sideways, and for each crate without a
/// floor.
pub(crate) fn wrong_arrows() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let mut places = BTreeMap::new();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let path = package.manifest_path.strip_prefix(&metadata.workspace_root);
        match place(path.unwrap_or(&package.manifest_path)) {
            Some(place) => _ = places.insert(package.name.as_str(), place),
            None => wrong.push(format!(
                "{}: has no floor; give it one in xtask/src/arrows.rs",
                package.name
            )),
        }
    }
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            let arrow = (
                places.get(package.name.as_str()),
                places.get(dependency.name.as_str()),
            );
            let (Some(&from), Some(&to)) = arrow else {
                continue;
            };
            let test_only = dependency.kind.as_deref() == Some("dev");
            if !is_allowed(from, to, test_only) {
                wrong.push(format!(
                    "{} ({from:?}) uses {} ({to:?}); arrows point to lower floors only",
                    package.name, dependency.name
                ));
            }
        }
    }
    Ok(wrong)
}

/// Returns the place of a manifest by its path within the workspace.
fn place(path: &str) -> Option<Place> {
    let mut folders = path.trim_start_matches('/').split('/');
    Some(match (folders.next()?, folders.next()?) {
        ("crates", "mem" | "ucx" | "pmix") => Place::Floor(1),
        ("crates", "fabric" | "engines" | "mobile-macros") => Place::Floor(2),
        ("crates", "pgas" | "dsm" | "stage" | "mobile" | "launch") => Place::Floor(3),
        ("crates", "samite") => Place::Floor(4),
        // Below the workloads, which share them; they use nothing of the house.
        ("crates", "report") | ("workloads", "relaxation") => Place::Floor(4),
        ("crates", "testkit") => Place::Testkit,
        ("workloads" | "bench" | "bindings", _) => Place::Floor(5),
        ("cli", _) => Place::Floor(6),
        ("xtask", _) => Place::Xtask,
        _ => return None,
    })
}

fn is_allowed(from: Place, to: Place, test_only: bool) -> bool {
    match (from, to) {
        (Place::Floor(from), Place::Floor(to)) => to < from,
        (_, Place::Testkit) => test_only,
        (Place::Testkit, Place::Floor(_)) => true,
        (Place::Xtask, _) | (_, Place::Xtask) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_down() {
        let room = |name| place(&format!("/crates/{name}/Cargo.toml")).expect("known");
        let (fabric, stage, dsm) = (room("fabric"), room("stage"), room("dsm"));
        let workload = |name| place(&format!("/workloads/{name}/Cargo.toml")).expect("known");
        assert!(is_allowed(stage, fabric, false));
        assert!(!is_allowed(fabric, stage, true));
        assert!(!is_allowed(stage, dsm, false));
        assert!(is_allowed(stage, Place::Testkit, true));
        assert!(!is_allowed(stage, Place::Testkit, false));
        assert!(is_allowed(
            workload("laplace"),
            workload("relaxation"),
            false
        ));
        assert!(is_allowed(workload("lammps"), room("report"), false));
        assert!(!is_allowed(
            workload("steering"),
            workload("laplace"),
            false
        ));
        assert!(!is_allowed(room("report"), room("samite"), false));
        assert_eq!(place("/crates/stray/Cargo.toml"), None);
    }
}
