//! One process of a job: its start, signals to it, its end.

use crate::error::{Error, Exit};
use crate::files::{OutputFiles, open_input};
use crate::hosts::{Link, RemoteUnit};
use crate::limits::{self, Pipes};
use crate::output::{Event, Output, Stream, pipe};
use crate::plan::{Name, Plan, Program};
use crate::setup::Setup;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, kill_process_group, waitid,
};
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The place of a unit in its job.
#[derive(Debug)]
pub(crate) struct UnitPlace {
    /// The number of its program in the plan.
    pub(crate) program: usize,
    pub(crate) rank: u32,
    /// Its number in the job.
    pub(crate) unit: usize,
    /// How many units have been started, for messages.
    pub(crate) started: usize,
}

/// A process that was started. It leads its own group, and is killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: Name,
    pub(crate) output: Output,
    /// The signal that asks it to end.
    pub(crate) stop: Signal,
    /// How long it may take to end after that, if it differs from the others.
    pub(crate) grace: Option<Duration>,
    /// When it is killed, after it was asked to end.
    pub(crate) kill_at: Option<Instant>,
    /// How the unit failed, and when it is started again.
    pub(crate) again: Option<(Exit, Instant)>,
    /// How often the unit was started again.
    pub(crate) restarts: u32,
    was_killed: bool,
    body: Body,
    exit: Option<Exit>,
    /// When its end was noticed.
    pub(crate) ended_at: Option<Instant>,
}

/// Where a process is.
#[derive(Debug)]
enum Body {
    Here(Child),
    OnHost(RemoteUnit),
}

impl Process {
    /// Has a host start a unit of the plan. Its start is reported later.
    pub(crate) fn start_on_host(
        plan: &Plan,
        place: &UnitPlace,
        files: &OutputFiles,
        unit: RemoteUnit,
    ) -> Self {
        let program = &plan.programs[place.program];
        let output = output_of(program, place.rank, Vec::new(), files);
        let name = Name::unit(&program.name, place.rank);
        let mut unit = Self::of(name, output, Body::OnHost(unit));
        (unit.stop, unit.grace) = (program.stop_signal, program.grace);
        unit
    }

    /// Starts a unit of the plan.
    pub(crate) fn start_unit(
        plan: &Plan,
        place: &UnitPlace,
        pipes: Pipes,
        files: &OutputFiles,
    ) -> Result<Self, Error> {
        let (wanted, rank) = (plan.units(), place.rank);
        let program = &plan.programs[place.program];
        let name = Name::unit(&program.name, rank);
        let setup = program.setup_of(rank);
        let mut command = command(
            plan,
            program.cpus.of(rank),
            program.command.as_os_str(),
            &setup.args,
        );
        command
            .envs(&setup.env)
            .env("SAMITE_PROGRAM", &program.name)
            .env("SAMITE_RANK", rank.to_string())
            .env("SAMITE_SIZE", program.units.to_string())
            .env("SAMITE_UNIT", place.unit.to_string())
            .env("SAMITE_UNITS", wanted.to_string());
        let output = |readers| output_of(program, rank, readers, files);
        let unit = settle(&mut command, setup)
            .and_then(|()| start_unit(command, name.clone(), pipes, output));
        let mut unit = unit.map_err(|source| spawn_error(name, place.started, wanted, source))?;
        (unit.stop, unit.grace) = (program.stop_signal, program.grace);
        Ok(unit)
    }

    /// Starts the agent. Returns its standard output; its standard error is its output.
    pub(crate) fn start_agent(plan: &Plan, argv: &[OsString]) -> Result<(Self, PipeReader), Error> {
        let name = Name::agent();
        let start = || {
            let (program, args) = argv
                .split_first()
                .ok_or_else(|| io::Error::other("its command is empty"))?;
            let mut command = command(plan, None, program, args);
            let (ready, stdout) = pipe()?;
            let (reader, stderr) = pipe()?;
            let child = command.stdout(stdout).stderr(stderr).spawn()?;
            let output = Output::new(true, vec![(Stream::Stderr, reader)]);
            Ok((Self::new(Name::agent(), output, child), ready))
        };
        start().map_err(|source| Error::Spawn { name, source })
    }

    fn new(name: Name, output: Output, child: Child) -> Self {
        Self::of(name, output, Body::Here(child))
    }

    fn of(name: Name, output: Output, body: Body) -> Self {
        Self {
            name,
            output,
            stop: Signal::TERM,
            grace: None,
            kill_at: None,
            again: None,
            restarts: 0,
            was_killed: false,
            body,
            exit: None,
            ended_at: None,
        }
    }

    /// Asks the process to end: by its signal, and by SIGCONT if it is stopped and could not handle
    /// that. It is killed when it takes longer than `grace`, or its own.
    pub(crate) fn ask_to_end(&mut self, grace: Duration) {
        self.signal(self.stop);
        self.signal(Signal::CONT);
        self.kill_at = Instant::now().checked_add(self.grace.unwrap_or(grace));
    }

    /// Kills the process if the time in which it should have ended is over.
    pub(crate) fn kill_if_late(&mut self, now: Instant) {
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill();
        }
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        (self.was_killed, self.kill_at) = (true, None);
    }

    /// Returns true if the launcher has killed it.
    pub(crate) fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Returns the event of its start; `None`: its host has not reported it yet.
    pub(crate) fn started(&self) -> Option<Event<'_>> {
        let name = &self.name;
        self.pid().map(|pid| Event::Started { name, pid })
    }

    /// Returns the event of its end.
    pub(crate) fn ended(&self, exit: Exit, again: bool) -> Event<'_> {
        Event::Ended {
            name: &self.name,
            exit,
            again,
            at: self.ended_at.unwrap_or_else(Instant::now),
        }
    }

    /// Returns its process id; `None`: its host has not reported it yet.
    fn pid(&self) -> Option<u32> {
        match &self.body {
            Body::Here(child) => Some(child.id()),
            Body::OnHost(unit) => unit.pid,
        }
    }

    /// Returns the process id of a child of this process.
    pub(crate) fn child(&self) -> Option<u32> {
        self.pid().filter(|_| matches!(self.body, Body::Here(_)))
    }

    /// Returns whether it runs at the other end of this connection.
    pub(crate) fn is_at(&self, link: &std::cell::RefCell<Link>) -> bool {
        matches!(&self.body, Body::OnHost(unit) if unit.is_at(link))
    }

    /// Returns what is known of a unit on a host.
    pub(crate) fn on_host(&mut self) -> Option<&mut RemoteUnit> {
        match &mut self.body {
            Body::OnHost(unit) => Some(unit),
            Body::Here(_) => None,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.exit.is_some()
    }

    /// Sends a signal to the process and to everything that it started.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.exit.is_some() {
            return;
        }
        let group = match &self.body {
            Body::Here(child) => Pid::from_child(child),
            Body::OnHost(unit) => return unit.signal(signal.as_raw()),
        };
        let _ = kill_process_group(group, signal);
        // The process may have joined another group (a shell with job control does). It is not
        // reaped, so the number is still its own.
        let has_moved = getpgid(Some(group)) != Ok(group);
        if has_moved || signal == Signal::KILL {
            let _ = kill_process(group, signal);
        }
    }

    /// Checks whether the process has ended; if so, kills what it left behind and reaps it.
    ///
    /// Returns how it ended, once.
    pub(crate) fn reap(&mut self) -> Option<Exit> {
        if self.exit.is_some() {
            return None;
        }
        let pid = match &self.body {
            Body::Here(child) => Pid::from_child(child),
            Body::OnHost(unit) => {
                self.exit = unit.ended;
                return self.exit;
            }
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = match waitid(WaitId::Pid(pid), options) {
            Ok(None) => return None,
            // It is not reaped yet, so its number cannot have been reused: the group that is killed
            // is its own.
            Ok(Some(_)) => {
                self.signal(Signal::KILL);
                self.wait()
            }
            // Other code in this process reaped it, which is not allowed; it is only known to have
            // ended. Its number may be that of another process by now, so nothing is killed.
            Err(error) => Err(error.into()),
        };
        self.exit = Some(status.map_or(Exit::Code(1), Exit::from));
        self.exit
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.body {
            Body::Here(child) => child.wait(),
            Body::OnHost(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Returns where the output of a unit goes.
fn output_of(
    program: &Program,
    rank: u32,
    readers: Vec<(Stream, PipeReader)>,
    files: &OutputFiles,
) -> Output {
    let setup = program.setup_of(rank);
    let outputs = [&setup.stdout, &setup.stderr];
    let outputs = outputs.map(|path| files.get(path.as_ref()));
    let output = Output::new(program.prefix, readers).into_files(outputs);
    output.ready_after(program.ready.clone())
}

/// Stops these processes and then this one. When this one is continued, it continues them.
pub(crate) fn stop_with(processes: &[Process]) {
    for process in processes {
        process.signal(Signal::STOP);
    }
    // This call returns only after SIGCONT.
    let stopped = kill_process(getpid(), Signal::STOP);
    for process in processes {
        process.signal(Signal::CONT);
    }
    if let Err(error) = stopped {
        tracing::warn!(%error, "the launcher cannot stop");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit.is_none() {
            self.signal(Signal::KILL);
            let _ = self.wait();
        }
    }
}

/// Creates the command of a process: through the starter if there is one, in its own group, with
/// the part of the environment that all processes share.
fn command(plan: &Plan, cpus: Option<&str>, program: &OsStr, args: &[OsString]) -> Command {
    let mut command = match &plan.starter {
        Some(starter) => {
            let mut command = Command::new(starter);
            command
                .arg("exec-unit")
                .arg("--parent")
                .arg(std::process::id().to_string());
            if let Some(cpus) = cpus {
                command.arg("--cpus").arg(cpus);
            }
            command.arg("--").arg(program);
            command
        }
        None => Command::new(program),
    };
    // What units print is shown line by line, and Python keeps it back where it prints to a pipe.
    const UNBUFFERED: &str = "PYTHONUNBUFFERED";
    if std::env::var_os(UNBUFFERED).is_none() {
        command.env(UNBUFFERED, "1");
    }
    command
        .args(args)
        .env("SAMITE_DOMAIN", &plan.domain)
        .env("SAMITE_JOB", &plan.id)
        .env("SAMITE_LAUNCHER", std::process::id().to_string())
        .env("SAMITE_CONFIG", &plan.config)
        // A unit in its own group could not read from the terminal anyway: it would be stopped. It
        // may get a file instead.
        .stdin(Stdio::null())
        .process_group(0);
    command
}

/// Sets the working directory and the standard input.
fn settle(command: &mut Command, setup: &Setup) -> io::Result<()> {
    let about = |path: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    if let Some(path) = &setup.stdin {
        let file = open_input(path).map_err(|error| about(path, error))?;
        command.stdin(file);
    }
    if let Some(folder) = &setup.cwd {
        // `new/.` cannot be created: its components leave the dot out.
        let folder: PathBuf = folder.components().collect();
        std::fs::create_dir_all(&folder).map_err(|error| about(&folder, error))?;
        command.current_dir(folder);
    }
    Ok(())
}

fn start_unit(
    mut command: Command,
    name: Name,
    pipes: Pipes,
    output: impl FnOnce(Vec<(Stream, PipeReader)>) -> Output,
) -> io::Result<Process> {
    let (stdout, out) = pipe()?;
    let mut readers = vec![(Stream::Stdout, stdout)];
    match pipes {
        Pipes::Merged => command.stderr(out.try_clone()?),
        Pipes::Separate => {
            let (stderr, err) = pipe()?;
            readers.push((Stream::Stderr, stderr));
            command.stderr(err)
        }
    };
    let child = command.stdout(out).spawn()?;
    Ok(Process::new(name, output(readers), child))
}

fn spawn_error(unit: Name, started: usize, wanted: usize, source: io::Error) -> Error {
    if source.raw_os_error() == Some(rustix::io::Errno::AGAIN.raw_os_error()) {
        Error::ProcessLimit {
            unit,
            started,
            wanted,
            limit: limits::processes(),
        }
    } else {
        Error::Spawn { name: unit, source }
    }
}
