//! One process of a job: its start, signals to it, its end.

use crate::error::{Error, Exit};
use crate::limits::{self, Pipes};
use crate::output::{Event, Output, Stream};
use crate::plan::{Name, Plan};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, kill_process_group, waitid,
};
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A process that was started. It leads its own group, and is killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: Name,
    pub(crate) output: Output,
    child: Child,
    exit: Option<Exit>,
}

impl Process {
    /// Starts all units of the plan, in order. If one cannot be started, all are ended.
    pub(crate) fn start_units(
        plan: &Plan,
        pipes: Pipes,
        on_start: &mut dyn FnMut(u32),
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<Self>, Error> {
        let wanted = plan.units();
        let mut units = Vec::with_capacity(wanted);
        for program in &plan.programs {
            for rank in 0..program.units {
                let name = Name::unit(&program.name, rank);
                let mut command = command(
                    plan,
                    program.cpus.of(rank),
                    program.command.as_os_str(),
                    &program.args,
                );
                command
                    .envs(&program.env)
                    .env("SAMITE_PROGRAM", &program.name)
                    .env("SAMITE_RANK", rank.to_string())
                    .env("SAMITE_SIZE", program.units.to_string())
                    .env("SAMITE_UNIT", units.len().to_string())
                    .env("SAMITE_UNITS", wanted.to_string());
                let unit = start_unit(command, name.clone(), pipes, program.prefix)
                    .map_err(|source| spawn_error(name, units.len(), wanted, source))?;
                // The guard learns of the group first: the launcher may be killed in `on_event`.
                on_start(unit.pid());
                on_event(Event::Started {
                    name: &unit.name,
                    pid: unit.pid(),
                });
                units.push(unit);
            }
        }
        Ok(units)
    }

    /// Starts the agent. Returns its standard output; its standard error is its output.
    pub(crate) fn start_agent(plan: &Plan, argv: &[OsString]) -> Result<(Self, PipeReader), Error> {
        let name = Name::agent();
        let start = || {
            let (program, args) = argv
                .split_first()
                .ok_or_else(|| io::Error::other("its command is empty"))?;
            let mut command = command(plan, None, program, args);
            let (ready, stdout) = io::pipe()?;
            let (reader, stderr) = io::pipe()?;
            let child = command.stdout(stdout).stderr(stderr).spawn()?;
            let output = Output::new(true, vec![(Stream::Stderr, reader)]);
            Ok((
                Self {
                    name: Name::agent(),
                    output,
                    child,
                    exit: None,
                },
                ready,
            ))
        };
        start().map_err(|source| Error::Spawn { name, source })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.exit.is_some()
    }

    /// Sends a signal to the process and to everything that it started.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            let _ = kill_process_group(self.group(), signal);
            // The process may have joined another group (a shell with job control does). It is not
            // reaped, so the number is still its own.
            let has_moved = getpgid(Some(self.group())) != Ok(self.group());
            if has_moved || signal == Signal::KILL {
                let _ = kill_process(self.group(), signal);
            }
        }
    }

    /// Checks whether the process has ended; if so, kills what it left behind and reaps it.
    ///
    /// Returns how it ended, once.
    pub(crate) fn reap(&mut self) -> Option<Exit> {
        if self.exit.is_some() {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = match waitid(WaitId::Pid(self.group()), options) {
            Ok(None) => return None,
            // It is not reaped yet, so its number cannot have been reused: the group that is killed
            // is its own.
            Ok(Some(_)) => {
                self.signal(Signal::KILL);
                self.child.wait()
            }
            // Other code in this process reaped it, which is not allowed; it is only known to have
            // ended. Its number may be that of another process by now, so nothing is killed.
            Err(error) => Err(error.into()),
        };
        self.exit = Some(status.map_or(Exit::Code(1), Exit::from));
        self.exit
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
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
            let _ = self.child.wait();
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
    command
        .args(args)
        .env("SAMITE_DOMAIN", &plan.domain)
        .env("SAMITE_JOB", &plan.id)
        .env("SAMITE_LAUNCHER", std::process::id().to_string())
        .env("SAMITE_CONFIG", &plan.config)
        // A unit in its own group could not read from the terminal anyway: it would be stopped.
        .stdin(Stdio::null())
        .process_group(0);
    command
}

fn start_unit(mut command: Command, name: Name, pipes: Pipes, prefix: bool) -> io::Result<Process> {
    let (stdout, out) = io::pipe()?;
    let mut readers = vec![(Stream::Stdout, stdout)];
    match pipes {
        Pipes::Merged => command.stderr(out.try_clone()?),
        Pipes::Separate => {
            let (stderr, err) = io::pipe()?;
            readers.push((Stream::Stderr, stderr));
            command.stderr(err)
        }
    };
    let child = command.stdout(out).spawn()?;
    Ok(Process {
        name,
        output: Output::new(prefix, readers),
        child,
        exit: None,
    })
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
