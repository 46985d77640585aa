//! `samite run`: makes a plan from the command line, and runs it.

use crate::ends::Ends;
use crate::hosts::HostsArgs;
use crate::outcome::Outcome;
use crate::screen::{Screen, Stalled, note, printable, warn};
use crate::words::is_workflow;
use crate::{builtin, doctor, edges, exit_code, settings};
use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, ValueEnum, ValueHint};
use samite::config::Resolved;
use samite::dsm::log::Level;
use samite::stage::{Configuration, Method, Stage};
use samite::{Fabric, FabricConfig, Identity};
use samite_launch::{
    Builtins, Error, Event, Interrupts, Plan, Program, Run, Workflow, find_program, nearest,
};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Refuses an option in place of the file, which would otherwise become its name.
fn file_of_outcome(word: &str) -> Result<PathBuf, String> {
    match word.starts_with('-') {
        true => Err(format!(
            "a file is missing before it; a file of this name is ./{word}"
        )),
        false => Ok(word.into()),
    }
}

/// Options of `samite run`; a workflow adds its own.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Units of PROGRAM to start
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    units: Option<u32>,
    /// Name under which the processes find each other [default: the job's name and a unique
    /// number]. If no `samite agent` of this name runs, this job starts one, which ends with the
    /// job
    #[arg(long, value_name = "NAME", conflicts_with = "hosts")]
    domain: Option<String>,
    /// Change a setting; `samite config show` prints them all
    #[arg(long, value_name = "NAME=VALUE", action = ArgAction::Append)]
    config: Vec<String>,
    /// Change the workflow: a parameter, program.NAME.units (cpus, command, prefix, env.VARIABLE),
    /// or edge.PROGRAM.STREAM.rate (as, redistribute, limit_steps, limit_bytes, operators, tokens)
    /// of the edge by which PROGRAM reads what it calls STREAM
    #[arg(long, value_name = "NAME=VALUE", action = ArgAction::Append)]
    set: Vec<String>,
    /// Run a job although `samite doctor` says that it cannot run
    #[arg(long)]
    force: bool,
    /// Write the outcome to this file, as JSON: the exit code, the error, and when each unit
    /// started and how it ended
    #[arg(
        long,
        value_name = "FILE.json",
        value_hint = ValueHint::FilePath,
        value_parser = file_of_outcome
    )]
    outcome: Option<PathBuf>,
    /// Show which unit printed a line
    #[arg(
        long,
        value_name = "YES|NO",
        default_value = "yes",
        hide_possible_values = true
    )]
    tag_output: YesNo,
    #[command(flatten)]
    hosts: HostsArgs,
    /// A workflow FILE.toml, or a program and its arguments
    #[arg(
        required = true,
        value_name = "FILE.toml | PROGRAM ARGS",
        value_hint = ValueHint::FilePath,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    target: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum YesNo {
    Yes,
    No,
}

/// The command line makes no sense.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Adds the parameters of a workflow to the options of `run` or `doctor`.
pub(crate) fn with_parameters(
    command: clap::Command,
    name: &str,
    workflow: &Workflow,
) -> Result<clap::Command> {
    let own = command.get_subcommands().find(|own| own.get_name() == name);
    let own = own.into_iter().flat_map(clap::Command::get_arguments);
    let of_all = command.get_arguments().filter(|arg| arg.is_global_set());
    let own = own.chain(of_all);
    let mut taken: Vec<&str> = own.filter_map(Arg::get_long).collect();
    taken.push("help");
    let parameters = workflow.parameters();
    if let Some(clash) = parameters
        .iter()
        .find(|parameter| taken.contains(&parameter.name.as_str()))
    {
        let message = format!(
            "{}: the parameter `{}` is an option of `samite {name}` already; give it another name",
            workflow.path().display(),
            clash.name
        );
        return Err(UsageError(message).into());
    }
    let heading = format!("Parameters of {}", workflow.path().display());
    let option = |parameter: samite_launch::Parameter| {
        let help = match &parameter.default {
            Some(default) => format!("{} [default: {default}]", parameter.help),
            None => format!("{} [required]", parameter.help),
        };
        let help = help.trim_start().to_owned();
        Arg::new(parameter_id(&parameter.name))
            .long(parameter.name)
            .value_name("VALUE")
            .help(help)
            .help_heading(heading.clone())
            .allow_hyphen_values(true)
    };
    let options: Vec<Arg> = parameters.into_iter().map(option).collect();
    if name == "doctor" {
        return Ok(command.mut_subcommand(name, |doctor| doctor.args(options)));
    }
    Ok(command.mut_subcommand("run", |run| {
        // Options after the file are ours, not a program's.
        run.mut_arg("target", |target| {
            target
                .trailing_var_arg(false)
                .allow_hyphen_values(false)
                .action(ArgAction::Set)
                .num_args(1)
                .value_name("FILE.toml")
                .help("The workflow")
        })
        .mut_arg("units", |units| units.hide(true))
        .args(options)
    }))
}

/// Returns the option id of a parameter, which differs from the ids of our own options.
fn parameter_id(name: &str) -> String {
    format!("parameter {name}")
}

/// Returns the command line's assignments to a workflow as `NAME=VALUE`: its parameters as options,
/// and `--set`, in their order on the command line. The last one counts.
pub(crate) fn assignments(matches: &ArgMatches, workflow: Option<&Workflow>) -> Vec<String> {
    let parameters = workflow.map(Workflow::parameters).unwrap_or_default();
    let given = |name: &String| {
        let id = parameter_id(name);
        let on_line = matches.value_source(&id) == Some(ValueSource::CommandLine);
        let value = on_line.then(|| matches.get_one::<String>(&id)).flatten()?;
        Some((matches.index_of(&id)?, format!("{name}={value}")))
    };
    let parameters = parameters
        .iter()
        .filter_map(|parameter| given(&parameter.name));
    let set = matches.get_many::<String>("set").unwrap_or_default();
    let set = matches
        .indices_of("set")
        .into_iter()
        .flatten()
        .zip(set.cloned());
    let mut all: Vec<(usize, String)> = parameters.chain(set).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, assignment)| assignment).collect()
}

pub(crate) fn run(
    args: &RunArgs,
    workflow: Option<Workflow>,
    assignments: &[String],
) -> Result<ExitCode> {
    let mut outcome = Outcome::new(args.outcome.as_deref())?;
    let result = run_all(args, workflow, assignments, &mut outcome);
    let code = result.as_ref().map_or_else(exit_code, |()| 0);
    if let Err(error) = outcome.write(code, result.as_ref().err()) {
        // That of the job is more important.
        if result.is_ok() {
            return Err(error);
        }
        warn(format_args!("{error:#}"));
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Runs the program, or all runs of the workflow.
fn run_all(
    args: &RunArgs,
    workflow: Option<Workflow>,
    assignments: &[String],
    outcome: &mut Outcome,
) -> Result<()> {
    let executable = std::env::current_exe().context("cannot find the samite executable")?;
    let Some(mut workflow) = workflow else {
        let plan = plan_of_program(args, &executable)?;
        let settings = settings::resolve(None, &args.config)?;
        let plan = prepare(args, &executable, plan, &settings, None)?;
        calibrate();
        outcome.begin(&plan, "", None);
        let job = Job::new(plan, None, &settings);
        return run_job(args, job, &Interrupts::install()?, outcome);
    };
    if args.units.is_some() {
        let message = format!(
            "-n is for a program, but {} is a workflow, which says how many units each of its programs has (--set program.NAME.units=N)",
            workflow.path().display()
        );
        return Err(UsageError(message).into());
    }
    for assignment in assignments {
        workflow.set(assignment)?;
    }
    // All runs of a sweep are checked before the first one starts.
    let runs = workflow.runs()?;
    let mut jobs = Vec::new();
    for run in &runs {
        let job = || {
            let (plan, settings) = plan_of_workflow(args, &executable, &run.workflow)?;
            let plan = prepare(args, &executable, plan, &settings, Some(&run.workflow))?;
            Ok(Job::new(plan, Some(&run.workflow), &settings))
        };
        jobs.push(about(run, job())?);
    }
    calibrate();
    sweep(args, &runs, jobs, &Interrupts::install()?, outcome)
}

/// Measures the copy engines if nobody has done so on this host: the units read the saved figures.
fn calibrate() {
    samite::calibration::load_or_measure(|what| note(format_args!("{what}")));
}

/// Says which run of a sweep an error is about.
pub(crate) fn about<T>(run: &Run, result: Result<T>) -> Result<T> {
    match run.folder {
        Some(_) => result.with_context(|| format!("the run with {}", run.label)),
        None => result,
    }
}

/// Runs all jobs, one after the other. The first failure is reported when all have ended.
fn sweep(
    args: &RunArgs,
    runs: &[Run],
    jobs: Vec<Job>,
    interrupts: &Interrupts,
    outcome: &mut Outcome,
) -> Result<()> {
    let (all, mut failed) = (runs.len(), 0);
    let mut first = None;
    for (number, (run, job)) in runs.iter().zip(jobs).enumerate() {
        if let Some(folder) = &run.folder {
            let (number, label) = (number + 1, &run.label);
            note(format_args!(
                "run {number} of {all}: {label} (in {})",
                folder.display()
            ));
        }
        outcome.begin(&job.plan, &run.label, run.folder.as_deref());
        let Err(error) = run_job(args, job, interrupts, outcome) else {
            continue;
        };
        if all == 1 {
            return Err(error);
        }
        let label = &run.label;
        // The run may have failed before the signal came, and then reports that.
        if interrupts.were_heard() {
            return Err(error.context(format!("the sweep was ended in the run with {label}")));
        }
        warn(format_args!("{error:#}"));
        failed += 1;
        first.get_or_insert_with(|| error.context(format!("the run with {label}")));
    }
    match first {
        Some(error) => Err(error.context(format!("{failed} of {all} runs failed; the first one"))),
        None => Ok(()),
    }
}

/// Returns the plan of a workflow, and its settings.
fn plan_of_workflow(
    args: &RunArgs,
    executable: &Path,
    workflow: &Workflow,
) -> Result<(Plan, Resolved)> {
    let mut plan = Plan::new(workflow.job());
    plan.programs = workflow.programs(&Builtins {
        executable: executable.to_owned(),
        names: builtin::BUILTINS,
    })?;
    let mut settings = settings::resolve(Some(workflow), &args.config)?;
    settings::settle_folders(workflow, &mut settings)?;
    settings.config.edge = edges::edges(workflow, &settings)?;
    settings::check_streams(workflow, &settings.config.edge, &settings)?;
    plan.check_inputs()?;
    plan.timeout = workflow.timeout()?;
    warn_of_replicas(&plan.programs, &settings.config.stage.configuration());
    Ok((plan, settings))
}

/// Completes a plan, and refuses one that cannot run.
fn prepare(
    args: &RunArgs,
    executable: &Path,
    mut plan: Plan,
    settings: &Resolved,
    workflow: Option<&Workflow>,
) -> Result<Plan> {
    plan.id = unique(&plan.job)?;
    plan.starter = Some(executable.to_owned());
    // A separate domain, unless the user gave a name to share.
    plan.domain = args.domain.clone().unwrap_or_else(|| plan.id.clone());
    match args.hosts.are_given() {
        true => args.hosts.complete(&mut plan, executable)?,
        false => plan.agent = crate::agent::command(executable, &plan.domain)?,
    }
    // An agent that already runs has its own budget.
    let budget = settings.config.memory.budget.set().map(|bytes| bytes.get());
    let budget = budget.filter(|_| plan.agent.is_some());
    // What other machines have is not known here.
    if !args.force && !args.hosts.are_given() {
        if let Some(why) = crate::agent::too_small(plan.units() as u64, budget) {
            return Err(UsageError(why).into());
        }
        doctor::refuse(workflow, &plan.programs, settings, plan.agent.is_some())?;
    }
    plan.config = settings.to_units();
    plan.grace = settings.config.launch.grace.get();
    plan.listen = plan.grace / 5;
    Ok(plan)
}

/// A job to run.
struct Job {
    plan: Plan,
    /// How streams are configured, with the edges.
    streams: Configuration,
    /// The streams that somebody is expected to open, each with the origin of its settings.
    meant: Vec<(String, String)>,
    /// The folder of the event logs of chunks, if they are on.
    log: Option<PathBuf>,
}

impl Job {
    fn new(plan: Plan, workflow: Option<&Workflow>, settings: &Resolved) -> Job {
        let streams = Configuration {
            edges: settings.config.edge.clone(),
            ..settings.config.stage.configuration()
        };
        let mut meant = settings::meant_streams(workflow, settings);
        // The names of edges were compared before. Nobody knows who opens files.
        meant.retain(|(name, _)| {
            streams.edges.is_empty() && streams.stream(name).method != Method::File
        });
        let log = settings.config.dsm.log_settings();
        let log = (log.level != Level::Off).then(|| log.folder_of(&plan.domain));
        Job {
            plan,
            streams,
            meant,
            log,
        }
    }
}

/// Runs a job, and records how it ended.
fn run_job(args: &RunArgs, job: Job, interrupts: &Interrupts, outcome: &mut Outcome) -> Result<()> {
    let result = run_to_end(args, job, interrupts, outcome);
    outcome.end(result.as_ref().err());
    let Err(error) = &result else {
        return Ok(());
    };
    if error.is::<Unread>() {
        let code = exit_code(error);
        // Prints nothing more: if the output is not read, an error may not be read either.
        let _ = outcome.write(code, Some(error));
        std::process::exit(code.into());
    }
    result
}

/// The output of a job was not read, and a signal has ended the wait for its reader.
#[derive(Debug)]
struct Unread;

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("all units had ended, and not all of their output was read")
    }
}

fn run_to_end(
    args: &RunArgs,
    Job {
        mut plan,
        streams,
        meant,
        log,
    }: Job,
    interrupts: &Interrupts,
    outcome: &mut Outcome,
) -> Result<()> {
    let screen = Screen::start(args.tag_output == YesNo::Yes)?;
    plan.backlog = Some(screen.backlog());
    // The hosts of a job tell their agents themselves.
    let mut ends = plan.hosts.is_empty().then(|| Ends::of(&plan));
    let mut unused = Vec::new();
    let result = samite_launch::run(&plan, Some(interrupts), &mut |event| {
        // A unit that is started again may still join.
        if let Event::Ended {
            name,
            exit,
            again: false,
            ..
        } = &event
            && let Some(ends) = &mut ends
        {
            ends.tell(name, *exit);
        }
        outcome.note(&event);
        screen.show(&event);
        // Others may use the domain of an agent that this job has not started.
        if let (Event::UnitsEnded, Some(_)) = (&event, &plan.agent) {
            unused = unused_of(&plan.domain, &streams, &meant);
        }
    });
    let interrupted = matches!(result, Err(Error::Interrupted { .. }));
    let result = result.map_err(anyhow::Error::from);
    let shown = match screen.close(interrupts, interrupted.then_some(plan.grace)) {
        Ok(shown) => shown,
        Err(Stalled { signal }) => {
            let interrupted = signal.map(|signal| Error::Interrupted { signal }.into());
            // A job that had failed before reports that.
            let ended = result.and(interrupted.map_or(Ok(()), Err));
            return ended.context(Unread);
        }
    };
    if let Some(log) = log.filter(|log| log.is_dir()) {
        let log = log.display().to_string();
        note(format_args!(
            "what happened to chunks: samite trace {}",
            printable(&log)
        ));
    }
    result.and_then(|()| shown.context("cannot write the output of the units"))?;
    for sentence in unused {
        note(format_args!("{}", printable(&sentence)));
    }
    Ok(())
}

/// Returns a name that no other run has: process ids are reused, and containers number them
/// separately.
fn unique(job: &str) -> Result<String> {
    let mut bytes = [0; 6];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the system has no random numbers")?;
    let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{job}-{}-{random}", std::process::id()))
}

/// Warns if a stream asks for more replicas than there are servers: it gets one per server.
fn warn_of_replicas(programs: &[Program], streams: &Configuration) {
    let servers = programs.iter();
    let servers = servers.filter(|program| builtin::is_server(program));
    let servers: u32 = servers.map(|program| program.units).sum();
    let all = [("", &streams.all)].into_iter();
    let own = streams.streams.iter();
    for (name, settings) in all.chain(own.map(|(name, settings)| (name.as_str(), settings))) {
        if settings.method == Method::Server && servers > 0 && settings.replicas > servers {
            let dot = if name.is_empty() { "" } else { "." };
            note(format_args!(
                "stage{dot}{name}.replicas is {}, but there are only {servers} servers: each of them keeps one copy of every block",
                settings.replicas
            ));
        }
    }
}

/// How long the agent of a job may take to say what the job has opened.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Returns sentences about edges that no program has used, about subscriptions to variables that no
/// step had, and about settings of streams that nobody opened: their names are probably misspelt,
/// and nobody else complains.
fn unused_of(domain: &str, streams: &Configuration, meant: &[(String, String)]) -> Vec<String> {
    let config = FabricConfig {
        background: true,
        deadline: LAST_WORDS,
        ..FabricConfig::default()
    };
    let unused = || -> Result<Vec<String>> {
        let fabric = Fabric::join(domain, Identity::by_hand("samite-run"), config)?;
        let stage = Stage::join_with(&fabric, streams.clone())?;
        let mut sentences = stage.unused(LAST_WORDS)?;
        if !meant.is_empty()
            && let Ok(Some(opened)) = stage.opened(LAST_WORDS)
        {
            sentences.extend(unopened(meant, &opened));
        }
        Ok(sentences)
    };
    unused().unwrap_or_else(|error| {
        tracing::debug!(domain, "what was opened is not known: {error:#}");
        Vec::new()
    })
}

/// Returns a sentence for each of these streams that was not opened.
fn unopened(meant: &[(String, String)], opened: &BTreeSet<String>) -> impl Iterator<Item = String> {
    let all: Vec<&str> = opened.iter().map(String::as_str).collect();
    let missing = meant.iter().filter(|(name, _)| !opened.contains(name));
    missing.map(move |(name, origin)| {
        let instead = match (nearest(name, all.iter().copied()), all.join(", ")) {
            _ if all.is_empty() => "no program opened any stream".to_owned(),
            (Some(near), all) => format!("did you mean {near}? These were opened: {all}"),
            (None, all) => format!("these were opened: {all}"),
        };
        format!(
            "{origin}: there are settings for the stream {name}, which nobody opened: {instead}"
        )
    })
}

/// Returns the plan of `samite run -n N PROGRAM ARGS`. As in a workflow, the name of a built-in
/// program means that program.
fn plan_of_program(args: &RunArgs, samite: &Path) -> Result<Plan> {
    if !args.set.is_empty() {
        return Err(UsageError("--set changes a workflow, but this is a program".into()).into());
    }
    let (command, arguments) = args.target.split_first().context("no program was given")?;
    if is_workflow(command) {
        let message = format!(
            "{} is a workflow, which says how many units each of its programs has: leave out -n",
            command.display()
        );
        return Err(UsageError(message).into());
    }
    if command.as_encoded_bytes().starts_with(b"-") {
        let message = format!(
            "`samite run` has no option {}; `samite run --help` lists those that it has",
            command.display()
        );
        return Err(UsageError(message).into());
    }
    let command_text = command.to_string_lossy();
    let name = Path::new(command).file_name().map_or_else(
        || command_text.clone().into_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let mut all = arguments.to_vec();
    let path = if builtin::BUILTINS.contains(&&*command_text) {
        // A built-in program is this executable with the command `unit`.
        all.splice(..0, ["unit".into(), command.clone()]);
        samite.to_path_buf()
    } else {
        find_program(&name, command, Path::new(""))?
    };
    let mut plan = Plan::new(name.clone());
    plan.programs.push(
        Program::new(name, path)
            .units(args.units.unwrap_or(1))
            .args(all),
    );
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two launchers of the same job with the same process id, in two containers.
    #[test]
    fn no_two_runs_have_the_same_name() {
        let names = [(); 2].map(|()| unique("job").expect("there are random numbers"));
        assert_ne!(names[0], names[1]);
        let beginning = format!("job-{}-", std::process::id());
        assert!(names.iter().all(|name| name.starts_with(&beginning)));
    }
}
