//! The programs that are part of this executable.

use crate::{server, zarr};
use anyhow::{Context, Result, bail};
use clap::Parser;
use samite::Fabric;
use samite_kernels::job::{gups, histogram, index_gather, sort};
use samite_lammps::job::{melt, msd};
use samite_laplace::job::{analysis, array, solver};
use samite_launch::Program;
use samite_nas::job::{cg, is};
use samite_synthetic::{reader, writer};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

/// Their names, as used in a workflow's `command`.
pub(crate) const BUILTINS: &[&str] = &[
    "laplace-solver",
    "laplace-analysis",
    "laplace-array",
    "laplace-steered",
    "laplace-monitor",
    "laplace-steered-check",
    "lammps-melt",
    "lammps-msd",
    "synthetic-writer",
    "synthetic-reader",
    "stage-server",
    "stage-archive",
    "stage-replay",
    "nas-is",
    "nas-cg",
    "gups",
    "histogram",
    "index-gather",
    "file-sort",
];

/// Returns the name of a workflow's program if it is a built-in one.
pub(crate) fn name_of(program: &Program) -> Option<&OsStr> {
    let [unit, name, ..] = &program.setup.args[..] else {
        return None;
    };
    let is_own = std::env::current_exe().is_ok_and(|own| own == program.command);
    (is_own && unit == "unit").then_some(name)
}

/// Returns true if the program is the built-in staging server.
pub(crate) fn is_server(program: &Program) -> bool {
    name_of(program).is_some_and(|name| name == "stage-server")
}

/// Runs a built-in program as a unit.
pub(crate) fn unit(name: &str, args: &[OsString]) -> Result<ExitCode> {
    let args = std::iter::once(OsString::from(name)).chain(args.iter().cloned());
    match name {
        "laplace-solver" => start(args, solver::run),
        "laplace-analysis" => start(args, analysis::run),
        "laplace-array" => start(args, array::run),
        "laplace-steered" => start(args, samite_steering::solver::run),
        "laplace-monitor" => start(args, samite_steering::monitor::run),
        "laplace-steered-check" => start(args, samite_steering::check::run),
        "lammps-melt" => start(args, melt::run),
        "lammps-msd" => start(args, msd::run),
        "synthetic-writer" => start(args, writer::run),
        "synthetic-reader" => start(args, reader::run),
        "stage-server" => {
            server::run(&join()?, &server::ServerArgs::parse_from(args))?;
            Ok(ExitCode::SUCCESS)
        }
        "stage-archive" => {
            zarr::archive(&join()?, &zarr::ArchiveArgs::parse_from(args))?;
            Ok(ExitCode::SUCCESS)
        }
        "stage-replay" => {
            zarr::replay(&join()?, &zarr::ReplayArgs::parse_from(args))?;
            Ok(ExitCode::SUCCESS)
        }
        "nas-is" => start(args, is::run),
        "nas-cg" => start(args, cg::run),
        "gups" => start(args, gups::run),
        "histogram" => start(args, histogram::run),
        "index-gather" => start(args, index_gather::run),
        "file-sort" => start(args, sort::run),
        _ => bail!(
            "there is no built-in program {name}; there are {}",
            BUILTINS.join(", ")
        ),
    }
}

/// Parses the arguments of a program, joins and runs it.
fn start<A: Parser, E: Error + Send + Sync + 'static>(
    args: impl Iterator<Item = OsString>,
    run: impl FnOnce(&Fabric, &A, &mut dyn Write) -> Result<(), E>,
) -> Result<ExitCode> {
    let args = A::parse_from(args);
    run(&join()?, &args, &mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

fn join() -> Result<Fabric> {
    samite::init().context("this process could not become a unit")
}
