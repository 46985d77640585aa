//! One program from its start to its end, under pressure.

use super::processes::{self, SPIN, bound, ourselves};
use super::stops::Stops;
use anyhow::{Context, Result};
use rustix::process::{Pid, getpid};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many spin beside a suite.
const SPINNERS: usize = 8;
/// How often the processes are looked at.
const TICK: Duration = Duration::from_millis(5);
/// What outlives a program ends by itself within this time, or was left behind.
const GRACE: Duration = Duration::from_secs(10);

/// What is done to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pressure {
    /// Random processes of it are stopped for up to a second each
    Stops,
    /// Eight processes spin beside it
    Spinners,
}

impl Pressure {
    pub(super) const BOTH: [Pressure; 2] = [Pressure::Stops, Pressure::Spinners];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pressure::Stops => "stops",
            Pressure::Spinners => "spinners",
        }
    }
}

/// What runs.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) folder: PathBuf,
}

/// How a round ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// None: it did not end in time.
    pub(super) status: Option<ExitStatus>,
    pub(super) stops: u64,
    pub(super) time: Duration,
    /// The names of processes that it left behind.
    pub(super) left: Vec<String>,
}

/// Ends everything that was started here when it goes out of scope.
struct EndAll;

impl Drop for EndAll {
    fn drop(&mut self) {
        processes::end_all();
    }
}

/// Runs a program; its output goes to `log`. None when `interrupted` was set meanwhile. Whatever
/// happens, nothing that was started here runs when this returns.
pub(super) fn round(
    program: &Program,
    pressure: Pressure,
    seed: u64,
    limit: Duration,
    log: &Path,
    interrupted: &AtomicBool,
) -> Result<Option<Ended>> {
    let _end_all = EndAll;
    let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = bound(&program.path);
    command
        .args(&program.arguments)
        .current_dir(&program.folder)
        .stdin(std::process::Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    let mut spinners = match pressure {
        Pressure::Stops => Vec::new(),
        Pressure::Spinners => spinners()?,
    };
    let mut root = started(&mut command)?;
    let mut stops = (pressure == Pressure::Stops).then(|| Stops::new(seed));

    let start = Instant::now();
    let ours: Vec<Pid> = spinners
        .iter()
        .chain([&root])
        .map(Pid::from_child)
        .collect();
    let status = loop {
        if interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if let Some(status) = root.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > limit {
            break None;
        }
        if let Some(stops) = &mut stops {
            stops.step(&ours);
        }
        processes::reap(&ours);
        std::thread::sleep(TICK);
    };

    // What is stopped goes on before it is asked who is left.
    let done = stops.map_or(0, |stops| stops.done);
    for spinner in &mut spinners {
        spinner.kill()?;
        spinner.wait()?;
    }
    let time = start.elapsed();
    let left = match status {
        Some(_) => left_behind(interrupted),
        None => Vec::new(),
    };
    Ok(Some(Ended {
        status,
        stops: done,
        time,
        left,
    }))
}

fn spinners() -> Result<Vec<Child>> {
    (0..SPINNERS)
        .map(|_| started(ourselves(SPIN).stdin(std::process::Stdio::null())))
        .collect()
}

fn started(command: &mut Command) -> Result<Child> {
    command
        .spawn()
        .with_context(|| format!("{command:?} cannot be started"))
}

/// What outlives the program for longer than it may.
fn left_behind(interrupted: &AtomicBool) -> Vec<String> {
    let start = Instant::now();
    loop {
        let left = processes::below(getpid());
        if left.is_empty() || start.elapsed() > GRACE || interrupted.load(Ordering::Relaxed) {
            return left.into_iter().map(|process| process.name).collect();
        }
        processes::reap(&[]);
        std::thread::sleep(TICK);
    }
}
