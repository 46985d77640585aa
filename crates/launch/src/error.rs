//! What can go wrong between a workflow file and the end of its job.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::plan::Name;

/// Why a job could not be started, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The workflow file cannot be read.
    #[error("cannot read the workflow {}", path.display())]
    ReadWorkflow {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The workflow file says something that it cannot mean.
    #[error("{}:{line}: {message}", path.display())]
    Workflow {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what to write instead.
        message: String,
    },
    /// `--set` or `--PARAMETER` does not fit the workflow.
    #[error("{0}")]
    Setting(String),
    /// A program of the job is not there.
    #[error("{program}: there is no program `{command}` ({looked}); nothing was started")]
    NoSuchProgram {
        /// The program's name in the job.
        program: String,
        /// The command as written.
        command: String,
        /// Where it was looked for.
        looked: String,
    },
    /// A program of the job is there, but cannot be run.
    #[error("{program}: {} is not executable: run `chmod +x` on it; nothing was started", path.display())]
    NotExecutable {
        /// The program's name in the job.
        program: String,
        /// The file.
        path: PathBuf,
    },
    /// The plan has no unit to start.
    #[error("the job {job} has no unit to start; give at least one program with one unit")]
    NothingToRun {
        /// The job.
        job: String,
    },
    /// The system refused another process.
    #[error(
        "{unit} could not be started: the system allowed no more processes after {started} of {wanted} units \
         (limit of this user: {}); all units were ended; raise `ulimit -u` or the container's limit, or use fewer units",
        limit.map_or("none, so the container has one".to_owned(), |limit| limit.to_string())
    )]
    ProcessLimit {
        /// The unit that did not start.
        unit: Name,
        /// Units that had started.
        started: usize,
        /// Units in the job.
        wanted: usize,
        /// The user's process limit, if there is one.
        limit: Option<u64>,
    },
    /// Even one pipe per unit is more than the limit of open files.
    #[error(
        "{units} units need {needed} file descriptors, but the limit is {limit}; raise `ulimit -n` or use fewer units"
    )]
    FileLimit {
        /// Units in the job.
        units: usize,
        /// Descriptors that they need.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A process could not be started for another reason.
    #[error("{name} could not be started, so all other processes of the job were ended")]
    Spawn {
        /// The process.
        name: Name,
        /// What the system says.
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
    /// A unit failed; the others were ended.
    #[error("{unit} {exit}{}; the other units were ended", said_last(said))]
    UnitFailed {
        /// The unit.
        unit: Name,
        /// How it ended.
        exit: Exit,
        /// Its last lines, oldest first.
        said: Vec<String>,
    },
    /// The person, or the system, asked the job to end.
    #[error("the job was ended by {}", signal_name(*signal))]
    Interrupted {
        /// The signal that the launcher was sent.
        signal: i32,
    },
    /// Signals, pipes or polls do not work.
    #[error("the launcher cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

samite_mem::error_codes!(Error, "launch", {
    ReadWorkflow = 700, Workflow = 701, Setting = 702, NoSuchProgram = 703, NotExecutable = 704,
    NothingToRun = 705, ProcessLimit = 706, FileLimit = 707, Spawn = 708, AgentStart = 709,
    AgentSilent = 710, AgentLost = 711, UnitFailed = 712, Interrupted = 713, System = 714,
});

impl Error {
    /// The exit code of a command that ends with this error: that of the unit that failed first
    /// (128 + signal when it was killed), 2 for a file or an option that is wrong, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnitFailed { exit, .. } => exit.code(),
            Self::Interrupted { signal } => Exit::Signal(*signal).code(),
            Self::ReadWorkflow { .. }
            | Self::Workflow { .. }
            | Self::Setting(_)
            | Self::NoSuchProgram { .. }
            | Self::NotExecutable { .. }
            | Self::NothingToRun { .. } => 2,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// True for an exit with code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// The code that a shell would show: the exit code, or 128 + signal.
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
            // `wait` returns only for processes that ended in one of these two ways.
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

/// "signal 9 (SIGKILL)".
fn signal_name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

fn said_last(said: &[String]) -> String {
    match said {
        [] => ", without a word".to_owned(),
        [line] => format!("; the last thing it said: {line}"),
        lines => format!("; the last thing it said:\n    {}\n", lines.join("\n    ")),
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
        };
        assert_eq!(
            error.to_string(),
            "solver.1 was killed by signal 9 (SIGKILL); the last thing it said: step 3; the other units were ended"
        );
    }
}
