//! The outcome of `samite run` as JSON (`--outcome FILE`): the exit code, the error, and for each
//! process that ran as a unit when it started and how it ended. Times are in seconds from the start
//! of the run.
//!
//! The file is empty while a job runs. It is written once, at the end, also if the job fails or is
//! interrupted; a launcher that is killed leaves it empty. If the command line or the workflow is
//! wrong, the file says that.

use crate::exit_code;
use crate::screen::warn;
use anyhow::{Context, Result};
use samite_launch::{Error, Event, Exit, Name, Plan};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Records what happens, if the user wants to know.
pub(crate) struct Outcome {
    file: Option<(PathBuf, File)>,
    runs: Vec<Run>,
    begin: Instant,
}

/// A run of a job; those of a sweep are several.
#[derive(Serialize)]
struct Run {
    job: String,
    domain: String,
    /// The values of this run of a sweep, as `size = 512, method = cg`.
    #[serde(skip_serializing_if = "String::is_empty")]
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<PathBuf>,
    /// In UTC.
    started: String,
    seconds: f64,
    exit_code: u8,
    cause: Option<Cause>,
    units: Vec<Unit>,
}

/// Why a job failed.
#[derive(Serialize)]
struct Cause {
    /// The name and the number of the error, as in `docs/errors.md`, if it has them.
    error: Option<&'static str>,
    number: Option<u16>,
    message: String,
    /// The units that were the cause.
    units: Vec<String>,
}

/// A process.
#[derive(Serialize)]
struct Unit {
    unit: String,
    program: String,
    rank: u32,
    pid: u32,
    started: f64,
    /// `None`, as the exit, if it was ended because the job could not be started.
    ended: Option<f64>,
    #[serde(flatten)]
    exit: Option<How>,
    /// Whether it failed, and the unit was started again.
    again: bool,
}

/// How a process ended.
#[derive(Serialize)]
struct How {
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
}

/// The whole file.
#[derive(Serialize)]
struct Written<'a> {
    exit_code: u8,
    /// The last line of `samite run`, if it failed.
    error: Option<String>,
    runs: &'a [Run],
}

impl Outcome {
    /// Creates the file, so that a wrong path is found before the job runs.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn new(path: Option<&Path>) -> Result<Outcome> {
        let create = |path: &Path| {
            let file = File::create(path);
            let file = file.with_context(|| format!("cannot create {}", path.display()))?;
            anyhow::Ok((path.to_owned(), file))
        };
        Ok(Outcome {
            file: path.map(create).transpose()?,
            runs: Vec::new(),
            begin: Instant::now(),
        })
    }

    /// Writes the outcome of a command that is refused, so that nobody takes the outcome of an
    /// earlier run for that of this one.
    pub(crate) fn refuse(path: &Path, error: &anyhow::Error) {
        let written = Outcome::new(Some(path))
            .and_then(|mut outcome| outcome.write(exit_code(error), Some(error)));
        if let Err(error) = written {
            warn(format_args!("{error:#}"));
        }
    }

    /// Begins a run.
    pub(crate) fn begin(&mut self, plan: &Plan, label: &str, folder: Option<&Path>) {
        self.begin = Instant::now();
        self.runs.push(Run {
            job: plan.job.clone(),
            domain: plan.domain.clone(),
            label: label.to_owned(),
            folder: folder.map(Path::to_owned),
            started: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            seconds: 0.0,
            exit_code: 0,
            cause: None,
            units: Vec::new(),
        });
    }

    /// Records an event of the run.
    pub(crate) fn note(&mut self, event: &Event<'_>) {
        let now = seconds(self.begin.elapsed());
        let Some(run) = self.runs.last_mut() else {
            return;
        };
        match event {
            Event::Started { name, pid } => {
                let Some(rank) = name.rank() else {
                    return;
                };
                run.units.push(Unit {
                    unit: name.to_string(),
                    program: name.program().to_owned(),
                    rank,
                    pid: *pid,
                    started: now,
                    ended: None,
                    exit: None,
                    again: false,
                });
            }
            Event::Ended {
                name,
                exit,
                again,
                at,
            } => {
                let ended = at.saturating_duration_since(self.begin);
                let name = name.to_string();
                // The last one of this name: a unit that is started again is another process.
                let mut units = run.units.iter_mut().rev();
                if let Some(unit) = units.find(|unit| unit.unit == name) {
                    unit.ended = Some(seconds(ended));
                    unit.exit = Some(How::from(*exit));
                    unit.again = *again;
                }
            }
            _ => {}
        }
    }

    /// Records how the run ended.
    pub(crate) fn end(&mut self, error: Option<&anyhow::Error>) {
        let taken = self.begin.elapsed();
        if let Some(run) = self.runs.last_mut() {
            run.seconds = seconds(taken);
            run.exit_code = error.map_or(0, exit_code);
            run.cause = error.map(Cause::of);
        }
    }

    /// Writes the file. `code`: the exit code of `samite run`.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&mut self, code: u8, error: Option<&anyhow::Error>) -> Result<()> {
        let Some((path, mut file)) = self.file.take() else {
            return Ok(());
        };
        let text = serde_json::to_string_pretty(&Written {
            exit_code: code,
            error: error.map(said),
            runs: &self.runs,
        })?;
        let written = file.write_all(format!("{text}\n").as_bytes());
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Cause {
    fn of(error: &anyhow::Error) -> Cause {
        let launch = error.downcast_ref::<Error>();
        let names = |names: &[Name]| names.iter().map(Name::to_string).collect();
        Cause {
            error: launch.map(|error| error.code().name()),
            number: launch.map(|error| error.code().number()),
            message: said(error),
            units: match launch {
                Some(Error::UnitFailed { unit, .. } | Error::ProcessLimit { unit, .. }) => {
                    vec![unit.to_string()]
                }
                // The agent is no unit.
                Some(Error::Spawn { name, .. }) if name.rank().is_some() => vec![name.to_string()],
                Some(Error::UnitsDisagree { culprits, .. }) => names(culprits),
                _ => Vec::new(),
            },
        }
    }
}

impl From<Exit> for How {
    fn from(exit: Exit) -> How {
        How {
            exit_code: exit.code(),
            signal: match exit {
                Exit::Signal(signal) => Some(signal),
                Exit::Code(_) => None,
            },
        }
    }
}

/// Returns what `samite run` says of an error.
fn said(error: &anyhow::Error) -> String {
    match error.downcast_ref::<clap::Error>() {
        // It begins with a label, and ends with the usage.
        Some(error) => {
            let text = error.render().to_string();
            text.trim_start_matches("error: ").trim_end().to_owned()
        }
        None => format!("{error:#}"),
    }
}

/// Returns a time in seconds, to a millisecond.
fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blamed(error: Error) -> Vec<String> {
        Cause::of(&anyhow::Error::from(error).context("the run with n = 1")).units
    }

    #[test]
    fn a_unit_that_could_not_be_started_is_the_cause() {
        let spawn = |name| Error::Spawn {
            name,
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        assert_eq!(blamed(spawn(Name::unit("a", 1))), ["a.1"]);
        assert!(blamed(spawn(Name::agent())).is_empty());
        let unit = Name::unit("a", 7);
        let limit = Error::ProcessLimit {
            unit,
            started: 7,
            wanted: 9,
            limit: None,
        };
        assert_eq!(blamed(limit), ["a.7"]);
    }
}
