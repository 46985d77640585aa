//! The programs that are part of this executable.

use anyhow::{Context, Result, bail};
use clap::Parser;
use samite_laplace::job::{analysis, solver};
use std::ffi::OsString;
use std::process::ExitCode;

/// Their names, as a workflow's `command` knows them.
pub(crate) const BUILTINS: &[&str] = &["laplace-solver", "laplace-analysis"];

/// Runs a built-in program as a unit.
pub(crate) fn unit(name: &str, args: &[OsString]) -> Result<ExitCode> {
    let args = std::iter::once(OsString::from(name)).chain(args.iter().cloned());
    let out = &mut std::io::stdout();
    match name {
        "laplace-solver" => {
            let args = solver::Args::parse_from(args);
            solver::run(&join()?, &args, out)?;
        }
        "laplace-analysis" => {
            let args = analysis::Args::parse_from(args);
            analysis::run(&join()?, &args, out)?;
        }
        _ => bail!(
            "there is no built-in program {name}; there are {}",
            BUILTINS.join(" and ")
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn join() -> Result<samite::Fabric> {
    samite::init().context("this process could not become a unit")
}
