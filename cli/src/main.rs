//! The `samite` command.
#![forbid(unsafe_code)]

mod agent;
mod bench;
mod builtin;
mod capsule;
mod copy_probe;
mod doctor;
mod edges;
mod ends;
mod hosts;
mod info;
mod join;
mod network;
mod outcome;
mod process;
mod ps;
mod run;
mod screen;
mod server;
mod settings;
mod shell;
mod style;
mod top;
mod trace;
mod words;
mod zarr;

use anyhow::Result;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use outcome::Outcome;
use samite_launch::{ExecUnit, Workflow};
use std::ffi::OsString;
use std::process::ExitCode;
use style::{Out, StyleArgs};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use words::Words;

const EXAMPLES: &str = "\
Examples:
  samite run workflows/laplace.toml            run a workflow
  samite run workflows/laplace.toml --help     what this workflow lets you change
  samite run -n 4 ./program --its-option       four units of a program
  samite doctor                                is this machine ready?
  samite doctor workflows/laplace.toml         what will this workflow need?
  samite programs                              the programs that come with samite
  samite ps                                    which jobs are running?
  samite top                                   what is going on in them?
  samite trace                                 what did the last one do with its chunks?
  samite config show --origin                  all settings, and where each is from";

/// One memory for many processes: runs programs that see each other's data.
#[derive(Parser)]
#[command(name = "samite", version, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    style: StyleArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run a workflow, or N units of a program
    Run(run::RunArgs),
    /// Become a unit of the job that mpirun, mpiexec or srun has started: mpirun -n 4 samite join P
    Join(join::JoinArgs),
    /// Show transports, copy engines and memory, and why each is or is not chosen
    Info(info::InfoArgs),
    /// Check this machine, and what a workflow will need of it, before it runs
    Doctor(doctor::DoctorArgs),
    /// List the programs that come with samite
    Programs(builtin::ProgramsArgs),
    /// List your domains and jobs that run on this machine, with their processes
    Ps(ps::PsArgs),
    /// Watch a running domain: streams, chunks, queues, memory, who waits for whom
    Top(top::TopArgs),
    /// Show, export and check what a run did with coherent chunks (--config dsm.log=full)
    Trace(trace::TraceArgs),
    /// Show settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Make, show, sign and verify capsules: code that travels to the data
    #[command(subcommand)]
    Capsule(capsule::CapsuleCommand),
    /// Print the JSON schema of workflow files, for editors
    Schema,
    /// Print what makes a shell complete the words of samite
    Completions(shell::CompletionsArgs),
    /// Print the manual page of samite, or write the pages of all commands to a folder
    Man(shell::ManArgs),
    /// Measure Samite beside its peers
    Bench(bench::BenchArgs),
    /// A rank of our contestant (started by `samite bench`)
    #[command(hide = true)]
    BenchUnit(bench::RankArgs),
    /// A rank of the contestant that measures limits (started by `samite bench`)
    #[command(hide = true)]
    BenchLimit(bench::RankArgs),
    /// Hold a guard of a chunk until it is killed
    #[command(hide = true)]
    BenchHolder,
    /// Call code that has never run, or be called (started by `samite bench mobile`)
    #[command(hide = true)]
    BenchFirst {
        /// The form of the code
        form: String,
    },
    /// Hold the memory of a domain that programs join by hand (`samite run` starts its own)
    Agent(agent::AgentArgs),
    /// Become a unit (started by `samite run`)
    #[command(hide = true)]
    ExecUnit(ExecUnitArgs),
    /// Run the units of this machine for a job on several (started by `samite run --hosts`)
    #[command(hide = true)]
    Host,
    /// End what units started when the launcher is killed (started by `samite run`)
    #[command(hide = true)]
    Guard,
    /// Read a word of another process (started by `samite doctor`)
    #[command(hide = true)]
    CopyProbe {
        /// The process
        pid: i32,
        /// The address of the word
        address: u64,
    },
    /// Run a built-in program as a unit (started by `samite run`)
    #[command(hide = true)]
    Unit {
        /// The built-in program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print all settings; what is printed can be used as a configuration file
    Show(settings::ShowArgs),
}

#[derive(Args)]
struct ExecUnitArgs {
    /// Processors that the unit may use, like 0-3,8
    #[arg(long)]
    cpus: Option<String>,
    /// The launcher; the unit ends when this is no longer its parent
    #[arg(long)]
    parent: Option<i32>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let ended = start();
    samite::dsm::log::flush_all();
    match ended {
        Ok(code) => code,
        Err(error) if error.is::<screen::NobodyReads>() => ExitCode::SUCCESS,
        Err(error) => {
            match error.downcast_ref::<clap::Error>() {
                // It cannot fail, as it prints on standard error.
                Some(error) => screen::print(error).unwrap_or_default(),
                None => screen::warn(format_args!("{error:#}")),
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

/// What the command line asks for.
struct Wish {
    /// `None`: nothing, so the help is printed.
    command: Option<Command>,
    workflow: Option<Workflow>,
    /// The assignments to the workflow.
    given: Vec<String>,
}

fn start() -> Result<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let command = Cli::command();
    let words = Words::read(&command, &arguments);
    style::choose(words.color);
    let mut command = command.color(words.color);
    if let Some((program, args)) = &words.program {
        let help = words.help.map(OsString::from).into_iter();
        let args: Vec<OsString> = help.chain(args.iter().cloned()).collect();
        if builtin::help(program, &args, words.color)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let wish = match read(command.clone(), &words, &arguments) {
        Ok(wish) => wish,
        Err(error) => {
            let parser = error.downcast_ref::<clap::Error>();
            if let Some(help) = parser.filter(|said| !said.use_stderr()) {
                screen::print(help)?;
                return Ok(ExitCode::SUCCESS);
            }
            // Without a target, this may be the target, for which the file was forgotten.
            let has_target = words.workflow.is_some() || words.program.is_some();
            if let Some(path) = words.outcome.as_ref().filter(|_| has_target) {
                Outcome::refuse(path, &error);
            }
            return Err(error);
        }
    };
    let Some(chosen) = wish.command else {
        let help = command.render_help();
        screen::say(format_args!("{}", style::text(Out::Stdout, &help)))?;
        return Ok(ExitCode::SUCCESS);
    };
    carry_out(chosen, wish.workflow, &wish.given)
}

/// Reads the command line, and the workflow first: the options of `run` and `doctor` depend on it.
/// Starts the log as the command line says.
///
/// # Errors
/// [`clap::Error`], also if it asks for help; a mistake in the workflow or in `SAMITE_LOG`.
fn read(mut command: clap::Command, words: &Words, arguments: &[OsString]) -> Result<Wish> {
    let workflow = words.workflow.as_deref().map(Workflow::read).transpose()?;
    if let Some(workflow) = &workflow {
        command = run::with_parameters(command, &words.command, workflow)?;
    }
    let matches = command.try_get_matches_from(arguments)?;
    let changes_workflows = |name: &str| ["run", "doctor"].contains(&name);
    let given = matches
        .subcommand()
        .filter(|(name, _)| changes_workflows(name))
        .map(|(_, matches)| run::assignments(matches, workflow.as_ref()));
    let cli = Cli::from_arg_matches(&matches)?;
    cli.style.apply();
    start_log(cli.style.level())?;
    Ok(Wish {
        command: cli.command,
        workflow,
        given: given.unwrap_or_default(),
    })
}

fn carry_out(chosen: Command, workflow: Option<Workflow>, given: &[String]) -> Result<ExitCode> {
    match chosen {
        Command::Run(args) => run::run(&args, workflow, given),
        Command::Join(args) => join::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Doctor(args) => doctor::doctor(&args, workflow, given),
        Command::Programs(args) => builtin::list(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Config(ConfigCommand::Show(args)) => settings::show(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Capsule(command) => capsule::run(command),
        Command::Schema => {
            screen::say(format_args!("{}", samite_launch::workflow_schema()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
        Command::Bench(args) => bench::run(&args),
        Command::BenchUnit(args) => {
            samite_bench::run_unit(args.folder(), bench::PROGRAMS).map(|()| ExitCode::SUCCESS)
        }
        Command::BenchHolder => samite_bench::run_holder().map(|()| ExitCode::SUCCESS),
        Command::BenchFirst { form } => samite_bench::run_first(&form).map(|()| ExitCode::SUCCESS),
        Command::BenchLimit(args) => {
            samite_bench::run_limit(args.folder()).map(|()| ExitCode::SUCCESS)
        }
        Command::Agent(args) => agent::run(&args),
        Command::ExecUnit(args) => exec_unit(args),
        Command::Host => hosts::serve(),
        Command::Guard => {
            samite_launch::guard(std::io::stdin().lock());
            Ok(ExitCode::SUCCESS)
        }
        Command::CopyProbe { pid, address } => {
            copy_probe::read(pid, address).map(|()| ExitCode::SUCCESS)
        }
        Command::Unit { words } => builtin::unit(words),
    }
}

/// Starts logging to standard error, controlled by `SAMITE_LOG=debug` or
/// `SAMITE_LOG=warn,samite_launch=trace`. `level`: what is logged if the variable is not set.
fn start_log(level: &str) -> Result<()> {
    let wanted = std::env::var_os("SAMITE_LOG").filter(|wanted| !wanted.is_empty());
    let wanted = wanted.map_or(level.into(), |wanted| wanted.to_string_lossy().into_owned());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // It would print them where the log could not be written.
        .log_internal_errors(false)
        .with_ansi(style::is_colored(style::Out::Stderr));
    let log = tracing_subscriber::registry().with(levels(&wanted)?);
    log.with(lines).init();
    Ok(())
}

/// Returns which events to log, as `SAMITE_LOG` says. The library would take a misspelt level for
/// the name of a part, and log nothing.
fn levels(wanted: &str) -> Result<Targets, run::UsageError> {
    let is_right = |part: &str| {
        let (name, level) = part.split_once('=').unwrap_or(("samite", part));
        let level = level.trim();
        let is_level = !level.is_empty() && level.parse::<LevelFilter>().is_ok();
        is_level && name.trim().starts_with("samite")
    };
    let is_right = wanted.split(',').all(is_right);
    let levels = is_right.then(|| wanted.parse().ok());
    levels.flatten().ok_or_else(|| {
        run::UsageError(format!(
            "SAMITE_LOG is `{wanted}`: write a level (off, error, warn, info, debug, trace), or levels of parts, like warn,samite_launch=trace"
        ))
    })
}

fn exec_unit(args: ExecUnitArgs) -> Result<ExitCode> {
    let unit = ExecUnit {
        cpus: args.cpus,
        parent: args.parent,
        command: args.command,
    };
    let error = unit.exec();
    let program = unit
        .command
        .first()
        .map(|program| program.to_string_lossy().into_owned());
    screen::warn(format_args!(
        "cannot run {}: {error}",
        program.unwrap_or_default()
    ));
    // As shells do for a program that exists but cannot be run.
    Ok(ExitCode::from(126))
}

/// Returns 2 for a wrong command line or input, a unit's own code if a unit failed, otherwise 1.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<samite_launch::Error>() {
        return error.exit_code();
    }
    let is_usage = error.is::<run::UsageError>() || error.is::<clap::Error>();
    if error.is::<samite::config::ConfigError>() || is_usage {
        2
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_misspelt_level_is_an_error() {
        for right in [
            "warn",
            "DEBUG",
            "off",
            "warn,samite_launch=trace",
            "samite=info",
        ] {
            assert!(levels(right).is_ok(), "{right}");
        }
        for wrong in [
            "loud",
            "warn,loud",
            "samite_launch",
            "samite_launch=loud",
            "=",
            ",",
            "ndarray=info",
        ] {
            let error = levels(wrong).expect_err(wrong).to_string();
            assert!(error.contains(&format!("`{wrong}`")), "{error}");
        }
    }
}
