//! The commands that other floors fill: each function here hands over to one of them.

use anyhow::{Result, bail};
use std::ffi::OsString;
use std::process::ExitCode;

/// Programs that are part of this executable.
pub(crate) const BUILTINS: &[&str] = &["laplace-solver", "laplace-analysis"];

/// Runs a built-in program as a unit.
pub(crate) fn unit(name: &str, args: &[OsString]) -> Result<ExitCode> {
    // BORDER(workloads): dispatch on the names in BUILTINS.
    let _ = args;
    bail!("the built-in program {name} is not in this build")
}
