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

/// The number of spinning processes beside a suite.
const SPINNERS: usize = 8;
/// The interval at which the processes are checked.
const TICK: Duration = Duration::from_millis(5);
/// A process that outlives the program for longer than this counts as left behind.
const GRACE: Duration = Duration::from_secs(10);

/// The kind of pressure on a program.
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

/// The program to run.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) folder: PathBuf,
}

/// How a round ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` if it did not end in time.
    pub(super) status: Option<ExitStatus>,
    pub(super) stops: u64,
    pub(super) time: Duration,
    /// The names of processes that it left behind.
    pub(super) left: Vec<String>,
}

/// Ends all processes started here when dropped.
struct EndAll;

impl Drop for EndAll {
    fn drop(&mut self) {
        processes::end_all();
    }
}

/// Runs a program with its output in `log`. Returns `None` if `interrupted` was set meanwhile. In
/// any case, nothing that was started here runs when this returns.
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

    // Stopped processes are continued before the remaining ones are listed.
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

/// Returns the processes that outlive the program for longer than [`GRACE`].
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
