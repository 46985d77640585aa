//! The errors between reading a workflow file and the end of its job.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use crate::plan::Name;

/// Why a job could not be started, or did not end successfully.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The workflow file cannot be read.
    #[error("cannot read the workflow {}{}", path.display(), meant(near.as_deref()))]
    ReadWorkflow {
        /// The file.
        path: PathBuf,
        /// Which file was probably meant, if it does not exist.
        near: Option<PathBuf>,
        /// The error of the system.
        source: io::Error,
    },
    /// The workflow file contains a mistake.
    #[error("{}:{line}: {message}", path.display())]
    Workflow {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what to write instead.
        message: String,
    },
    /// `--set` or `--PARAMETER` does not fit the workflow.
    #[error("{0}")]
    Setting(String),
    /// A process that a process manager has started cannot become a unit.
    #[error("{0}")]
    Managed(String),
    /// A program of the job does not exist.
    #[error("{program}: there is no program `{command}` ({looked}); nothing was started")]
    NoSuchProgram {
        /// The program's name in the job.
        program: String,
        /// The command as written.
        command: String,
        /// Where it was searched for.
        looked: String,
    },
    /// A program of the job exists, but cannot be executed.
    #[error("{program}: {} is not executable: {remedy}; nothing was started", path.display())]
    NotExecutable {
        /// The program's name in the job.
        program: String,
        /// The file.
        path: PathBuf,
        /// What to do.
        remedy: String,
    },
    /// The plan has no unit to start.
    #[error("the job {job} has no unit to start; give at least one program with one unit")]
    NothingToRun {
        /// The job.
        job: String,
    },
    /// The system refused to start another process.
    #[error(
        "{unit} could not be started: the system allowed no more processes after {started} of {wanted} units \
         (limit of this user: {}); all units were ended; raise `ulimit -u` or the container's limit, or use fewer units",
        limit.map_or("none, so the container has one".to_owned(), |limit| limit.to_string())
    )]
    ProcessLimit {
        /// The unit that did not start.
        unit: Name,
        /// How many units had started.
        started: usize,
        /// How many units the job has.
        wanted: usize,
        /// The user's process limit, if there is one.
        limit: Option<u64>,
    },
    /// The limit of open files does not allow even one pipe per unit.
    #[error(
        "{units} units need {needed} file descriptors, but the limit is {limit}; raise `ulimit -n` or use fewer units"
    )]
    FileLimit {
        /// How many units the job has.
        units: usize,
        /// How many descriptors they need.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// The settings and edges do not fit into the environment of a process.
    #[error(
        "the settings and edges of the job {job} take {bytes} bytes, but a process can be given at most {most}; nothing was started; use fewer edges, or leave out some of their `variables`"
    )]
    SettingsTooLong {
        /// The job.
        job: String,
        /// The length of their text.
        bytes: usize,
        /// The maximum.
        most: usize,
    },
    /// A process could not be started for another reason.
    #[error("{name} could not be started, so all other processes of the job were ended")]
    Spawn {
        /// The process.
        name: Name,
        /// The error of the system.
        source: io::Error,
    },
    /// The agent ended before it was ready.
    #[error(
        "the agent {exit} before it was ready{}; no unit was started",
        said_last(said)
    )]
    AgentStart {
        /// How it ended.
        exit: Exit,
        /// Its last lines.
        said: Vec<String>,
    },
    /// The agent was not ready in time.
    #[error(
        "the agent was not ready within {seconds} s{}; no unit was started",
        said_last(said)
    )]
    AgentSilent {
        /// The deadline.
        seconds: u64,
        /// Its last lines.
        said: Vec<String>,
    },
    /// The agent ended while units were running.
    #[error(
        "the agent {exit} while units were running{}; what was only in its memory is lost, and the units were ended",
        said_last(said)
    )]
    AgentLost {
        /// How it ended.
        exit: Exit,
        /// Its last lines.
        said: Vec<String>,
    },
    /// A host of the job cannot take part, or was lost.
    #[error("host {host} cannot take part, or was lost: {why}{}", said_last(said))]
    Host {
        /// Its name.
        host: String,
        /// What happened.
        why: String,
        /// The last lines of its start command.
        said: Vec<String>,
    },
    /// A unit failed; the others were ended.
    #[error(
        "{unit} {exit}{}{}; the other units were ended",
        ended_before(after),
        said_last(said)
    )]
    UnitFailed {
        /// The unit.
        unit: Name,
        /// How it ended.
        exit: Exit,
        /// Its last lines, oldest first.
        said: Vec<String>,
        /// The units that had ended without an error before, if this one failed because another one
        /// had ended, and none failed by itself.
        after: Vec<Name>,
    },
    /// A unit failed because what it did does not fit what another one did.
    #[error(
        "{}{}; the other units were ended",
        dispute(culprits, by, unit, *exit),
        said_last(said)
    )]
    UnitsDisagree {
        /// The units that most of those that failed name in their errors.
        culprits: Vec<Name>,
        /// The units that failed.
        by: Vec<Name>,
        /// The first of these.
        unit: Name,
        /// How it ended.
        exit: Exit,
        /// Its last lines, oldest first.
        said: Vec<String>,
    },
    /// The job ran for longer than its `timeout`.
    #[error(
        "the job was ended because it ran for longer than its timeout of {}; raise `job.timeout`, or do less",
        humantime::format_duration(*after)
    )]
    TimedOut {
        /// The timeout.
        after: std::time::Duration,
    },
    /// A file for the output of units could not be created.
    #[error("cannot create {} for the output of units; nothing was started", path.display())]
    CreateOutput {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A program would read output that is not complete when it starts.
    #[error("{} is the standard input of {reader}, {}; nothing was started", path.display(), clash(reader, writer))]
    InputIsOutput {
        /// The file.
        path: PathBuf,
        /// The program that has it as standard input.
        reader: String,
        /// A program whose output the file gets, and which does not come before the other.
        writer: String,
    },
    /// A file for the output of units could not be written.
    #[error("cannot write the output of units to {}", path.display())]
    OutputFile {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A user, or the system, asked the job to end.
    #[error("the job was ended by {}", signal_name(*signal))]
    Interrupted {
        /// The signal that was sent to the launcher.
        signal: i32,
    },
    /// A system call for signals, pipes or polling failed.
    #[error("the launcher cannot {what}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

samite_mem::error_codes!(Error, "launch", {
    ReadWorkflow = 700, Workflow = 701, Setting = 702, NoSuchProgram = 703, NotExecutable = 704,
    NothingToRun = 705, ProcessLimit = 706, FileLimit = 707, Spawn = 708, AgentStart = 709,
    AgentSilent = 710, AgentLost = 711, UnitFailed = 712, Interrupted = 713, System = 714,
    SettingsTooLong = 715, UnitsDisagree = 716, TimedOut = 717, OutputFile = 718,
    CreateOutput = 719, InputIsOutput = 720, Host = 721, Managed = 722,
});

impl Error {
    /// Returns the exit code of a command that ends with this error: that of the unit that failed
    /// first (128 + signal if a signal killed it), 2 for a wrong file or option, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnitFailed { exit, .. } | Self::UnitsDisagree { exit, .. } => exit.code(),
            // As the command `timeout` has it.
            Self::TimedOut { .. } => 124,
            Self::Interrupted { signal } => Exit::Signal(*signal).code(),
            Self::ReadWorkflow { .. }
            | Self::Workflow { .. }
            | Self::Setting(_)
            | Self::NoSuchProgram { .. }
            | Self::NotExecutable { .. }
            | Self::NothingToRun { .. }
            | Self::CreateOutput { .. }
            | Self::InputIsOutput { .. }
            | Self::SettingsTooLong { .. } => 2,
            _ => 1,
        }
    }

    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System {
            what,
            source: source.into(),
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Exit {
    /// Returns true for an exit with code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// Returns the code that a shell would show: the exit code, or 128 + signal.
    pub fn code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            // `wait` returns only for processes that have ended in one of these two ways.
            (None, None) => Self::Code(1),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(0) => f.write_str("ended"),
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", signal_name(*signal)),
        }
    }
}

/// Formats a signal as "signal 9 (SIGKILL)".
fn signal_name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

fn meant(near: Option<&Path>) -> String {
    near.map_or(String::new(), |near| {
        format!(" (did you mean `{}`?)", near.display())
    })
}

fn said_last(said: &[String]) -> String {
    match said {
        [] => ", and printed nothing".to_owned(),
        [line] => format!("; the last thing it said: {line}"),
        lines => format!("; the last thing it said:\n    {}\n", lines.join("\n    ")),
    }
}

fn ended_before(after: &[Name]) -> String {
    match after {
        [] => String::new(),
        after => format!(", after {} had ended without an error", list(after, "and")),
    }
}

/// Says why a program must not read the output of another one, or of itself.
fn clash(reader: &str, writer: &str) -> String {
    if reader == writer {
        return "which would read its own output from it; use another file".to_owned();
    }
    format!(
        "which would find it empty or incomplete, because it gets the output of {writer}, and {reader} does not come after {writer}; write `after = [\"{writer}\"]` for {reader}, or use another file"
    )
}

/// Says between whom a contradiction is, and how the unit ended that found it.
fn dispute(culprits: &[Name], by: &[Name], unit: &Name, exit: Exit) -> String {
    let others: Vec<Name> = culprits
        .iter()
        .filter(|name| *name != unit)
        .cloned()
        .collect();
    // Of two units that contradict each other, nobody knows which one is right.
    if others.len() < culprits.len() {
        return match others[..] {
            [] => format!("{unit} {exit}"),
            _ => format!("{unit} {exit}, at odds with {}", list(&others, "and")),
        };
    }
    let name = if by.len() == 1 { "names" } else { "name" };
    let them = if culprits.len() == 1 { "it" } else { "them" };
    let (culprits, by) = (list(culprits, "or"), list(by, "and"));
    format!("{culprits} is the likely cause: {by} {name} {them}; {unit} {exit}")
}

/// Formats names as "a.0, a.1 and a.2"; of many, only the first.
fn list(names: &[Name], word: &str) -> String {
    const MOST: usize = 4;
    let mut all: Vec<String> = names.iter().take(MOST).map(Name::to_string).collect();
    match names.len().saturating_sub(MOST) {
        0 => {}
        more => all.push(format!("{more} more")),
    }
    match all.pop() {
        Some(last) if all.is_empty() => last,
        Some(last) => format!("{} {word} {last}", all.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_the_shell() {
        assert_eq!(Exit::Code(3).code(), 3);
        assert_eq!(Exit::Signal(9).code(), 137);
        assert_eq!(Error::Interrupted { signal: 2 }.exit_code(), 130);
    }

    #[test]
    fn a_failure_names_unit_signal_and_last_words() {
        let error = Error::UnitFailed {
            unit: Name::unit("solver", 1),
            exit: Exit::Signal(9),
            said: vec!["step 3".into()],
            after: Vec::new(),
        };
        assert_eq!(
            error.to_string(),
            "solver.1 was killed by signal 9 (SIGKILL); the last thing it said: step 3; the other units were ended"
        );
    }

    #[test]
    fn a_consequence_says_who_had_ended_before() {
        let error = Error::UnitFailed {
            unit: Name::unit("solver", 9),
            exit: Exit::Code(1),
            said: vec!["solver.0 was lost".into()],
            after: (0..6).map(|rank| Name::unit("solver", rank)).collect(),
        };
        let sentence = "solver.9 ended with exit code 1, after solver.0, solver.1, solver.2, solver.3 and 2 more had ended without an error; the last thing";
        assert!(error.to_string().starts_with(sentence), "{error}");
    }
}
