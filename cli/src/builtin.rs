//! The programs that are part of this executable.

use crate::screen::{print, say};
use crate::{server, zarr};
use anyhow::{Context, Result, bail};
use clap::error::ErrorKind;
use clap::{ColorChoice, Command, CommandFactory, Parser};
use samite::Fabric;
use samite_chase::job as chase;
use samite_kernels::job::{gups, histogram, index_gather, sort};
use samite_lammps::job::{melt, msd};
use samite_laplace::job::{analysis, array, solver};
use samite_launch::Program;
use samite_nas::job::{cg, is};
use samite_synthetic::{reader, writer};
use samite_video::job::{report, sink, source, worker};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

/// A program of this executable, which a workflow names in `command`.
pub(crate) struct Builtin {
    name: &'static str,
    /// Its command line.
    options: fn() -> Command,
    /// Parses its arguments and runs one unit of it.
    run: fn(Arguments) -> Result<ExitCode>,
}

/// A command line, the name of the program first.
type Arguments = Vec<OsString>;

const PROGRAMS: [Builtin; 25] = [
    Builtin {
        name: "laplace-solver",
        options: solver::Args::command,
        run: |words| start(words, solver::run),
    },
    Builtin {
        name: "laplace-analysis",
        options: analysis::Args::command,
        run: |words| start(words, analysis::run),
    },
    Builtin {
        name: "laplace-array",
        options: array::Args::command,
        run: |words| start(words, array::run),
    },
    Builtin {
        name: "laplace-steered",
        options: samite_steering::solver::Args::command,
        run: |words| start(words, samite_steering::solver::run),
    },
    Builtin {
        name: "laplace-monitor",
        options: samite_steering::monitor::Args::command,
        run: |words| start(words, samite_steering::monitor::run),
    },
    Builtin {
        name: "laplace-steered-check",
        options: samite_steering::check::Args::command,
        run: |words| start(words, samite_steering::check::run),
    },
    Builtin {
        name: "lammps-melt",
        options: melt::Args::command,
        run: |words| start(words, melt::run),
    },
    Builtin {
        name: "lammps-msd",
        options: msd::Args::command,
        run: |words| start(words, msd::run),
    },
    Builtin {
        name: "synthetic-writer",
        options: writer::Args::command,
        run: |words| start(words, writer::run),
    },
    Builtin {
        name: "synthetic-reader",
        options: reader::Args::command,
        run: |words| start(words, reader::run),
    },
    Builtin {
        name: "video-source",
        options: source::Args::command,
        run: |words| start(words, source::run),
    },
    Builtin {
        name: "video-worker",
        options: worker::Args::command,
        run: |words| start(words, worker::run),
    },
    Builtin {
        name: "video-sink",
        options: sink::Args::command,
        run: |words| start(words, sink::run),
    },
    Builtin {
        name: "video-report",
        options: report::Args::command,
        run: |words| start(words, report::run),
    },
    Builtin {
        name: "stage-server",
        options: server::ServerArgs::command,
        run: |words| {
            let args = server::ServerArgs::parse_from(words);
            server::run(&join()?, &args)?;
            Ok(ExitCode::SUCCESS)
        },
    },
    Builtin {
        name: "chunk-server",
        options: server::ChunkServerArgs::command,
        run: |words| {
            server::ChunkServerArgs::parse_from(words);
            server::run_chunk_server(&join()?)?;
            Ok(ExitCode::SUCCESS)
        },
    },
    Builtin {
        name: "stage-archive",
        options: zarr::ArchiveArgs::command,
        run: |words| {
            let args = zarr::ArchiveArgs::parse_from(words);
            zarr::archive(&join()?, &args)?;
            Ok(ExitCode::SUCCESS)
        },
    },
    Builtin {
        name: "stage-replay",
        options: zarr::ReplayArgs::command,
        run: |words| {
            let args = zarr::ReplayArgs::parse_from(words);
            zarr::replay(&join()?, &args)?;
            Ok(ExitCode::SUCCESS)
        },
    },
    Builtin {
        name: "nas-is",
        options: is::Args::command,
        run: |words| start(words, is::run),
    },
    Builtin {
        name: "nas-cg",
        options: cg::Args::command,
        run: |words| start(words, cg::run),
    },
    Builtin {
        name: "gups",
        options: gups::Args::command,
        run: |words| start(words, gups::run),
    },
    Builtin {
        name: "histogram",
        options: histogram::Args::command,
        run: |words| start(words, histogram::run),
    },
    Builtin {
        name: "index-gather",
        options: index_gather::Args::command,
        run: |words| start(words, index_gather::run),
    },
    Builtin {
        name: "chase",
        options: chase::Args::command,
        run: |words| start(words, chase::run),
    },
    Builtin {
        name: "file-sort",
        options: sort::Args::command,
        run: |words| start(words, sort::run),
    },
];

impl Builtin {
    /// Returns what it does, in a sentence.
    fn what(&self) -> String {
        let about = (self.options)().get_about().cloned();
        about.unwrap_or_default().to_string()
    }
}

/// Their names.
pub(crate) const BUILTINS: &[&str] = &{
    let mut names = [""; PROGRAMS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = PROGRAMS[at].name;
        at += 1;
    }
    names
};

/// Options of `samite programs`.
#[derive(clap::Args)]
pub(crate) struct ProgramsArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the built-in programs, and what each does.
pub(crate) fn list(args: &ProgramsArgs) -> Result<ExitCode> {
    if args.json {
        let programs = PROGRAMS.iter();
        let programs =
            programs.map(|one| serde_json::json!({ "name": one.name, "what": one.what() }));
        let programs: Vec<serde_json::Value> = programs.collect();
        say(format_args!(
            "{}\n",
            serde_json::to_string_pretty(&programs)?
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = BUILTINS.iter().map(|name| name.len()).max().unwrap_or(0);
    for program in &PROGRAMS {
        let (name, what) = (program.name, program.what());
        say(format_args!("{name:width$}  {what}\n"))?;
    }
    let more = "`samite run NAME --help` shows the options of one, `samite run -n N NAME` runs it";
    say(format_args!("\n{more}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the help of a built-in program if its arguments ask for it. Returns true if they did.
///
/// # Errors
/// The help cannot be printed.
pub(crate) fn help(name: &OsStr, args: &[OsString], color: ColorChoice) -> Result<bool> {
    let Some(program) = PROGRAMS.iter().find(|program| name == program.name) else {
        return Ok(false);
    };
    let words = [name.to_owned()].into_iter().chain(args.iter().cloned());
    let usage = format!("samite run [-n N] {}", program.name);
    let options = (program.options)().color(color);
    match options.bin_name(usage).try_get_matches_from(words) {
        Err(shown) if shown.kind() == ErrorKind::DisplayHelp => {
            print(&shown)?;
            Ok(true)
        }
        // The units report mistakes in their arguments.
        _ => Ok(false),
    }
}

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

/// Returns whether there is a built-in program of this name.
pub(crate) fn is_one(name: &OsStr) -> bool {
    PROGRAMS.iter().any(|program| name == program.name)
}

/// Runs a built-in program as a unit. `words`: its name and its arguments.
pub(crate) fn unit(words: Vec<OsString>) -> Result<ExitCode> {
    let name = words.first().context("no built-in program was named")?;
    match PROGRAMS.iter().find(|program| name == program.name) {
        Some(program) => (program.run)(words),
        None => bail!(
            "there is no built-in program {}; `samite programs` lists them",
            name.display()
        ),
    }
}

/// Parses the arguments of a program, joins and runs it.
fn start<A: Parser, E: Error + Send + Sync + 'static>(
    words: Arguments,
    run: impl FnOnce(&Fabric, &A, &mut dyn Write) -> Result<(), E>,
) -> Result<ExitCode> {
    let args = A::parse_from(words);
    run(&join()?, &args, &mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

fn join() -> Result<Fabric> {
    samite::init().context("this process could not become a unit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_of_the_programs_are_well_formed() {
        for program in &PROGRAMS {
            (program.options)().debug_assert();
            assert!(!program.what().is_empty(), "{}", program.name);
        }
    }
}
