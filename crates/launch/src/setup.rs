//! What a unit is started with, besides its executable.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// The arguments, the environment and the files of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Environment variables in addition to the launcher's own.
    pub env: BTreeMap<String, String>,
    /// Its working directory, which is created if it does not exist; `None`: that of the launcher.
    pub cwd: Option<PathBuf>,
    /// The file that is its standard input; `None`: it has none.
    pub stdin: Option<PathBuf>,
    /// The file that gets its standard output, in place of the launcher's caller. Units with the
    /// same file share it line by line.
    pub stdout: Option<PathBuf>,
    /// The file that gets its standard error, likewise.
    pub stderr: Option<PathBuf>,
}
