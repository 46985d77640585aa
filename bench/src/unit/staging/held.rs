//! The memory of processes: of all in the job (the units, the agent, and the launcher), or of one
//! program of another job.
//!
//! The sum over a job is that of the proportional set sizes (PSS), with one change: pages of memory
//! files are counted once, by the files, instead of in fractions by the processes. Otherwise, a
//! page that a second process maps between the two readings would count fully in the first and
//! again as a half in the second; at rest both sums are equal.

use super::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two readings.
const LOOK: Duration = Duration::from_micros(500);
/// The same if each reading has to find the processes first.
const LOOK_ASIDE: Duration = Duration::from_millis(10);

/// Returns the bytes of all processes of the job, each with its share of common memory.
pub(super) fn held_now() -> u64 {
    sum(&processes())
}

/// Returns the launcher and its children.
fn processes() -> Vec<i32> {
    let Some(launcher) = rustix::process::getppid() else {
        return Vec::new();
    };
    let launcher = launcher.as_raw_nonzero().get();
    let mut processes = children(launcher);
    processes.push(launcher);
    processes
}

fn children(launcher: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid| parent(*pid) == Some(launcher))
        .collect()
}

/// Returns true if the process runs this program: `samite unit PROGRAM …`, or `samite agent …`.
fn runs(pid: i32, program: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip(1).take(2);
    words.any(|word| word == program.as_bytes())
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may contain anything: the state, and then the parent.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn sum(processes: &[i32]) -> u64 {
    let own = processes.iter().filter_map(|pid| {
        let sizes = sizes(*pid)?;
        Some(size(&sizes, "Pss:")?.saturating_sub(size(&sizes, "Pss_Shmem:")?))
    });
    let files = processes.iter().flat_map(|pid| memory_files(*pid));
    let files: BTreeMap<u64, u64> = files.collect();
    own.chain(files.into_values()).sum()
}

/// Returns the memory files that a process has open: inode and bytes of each.
fn memory_files(pid: i32) -> Vec<(u64, u64)> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let paths = open.flatten().map(|entry| entry.path());
    let is_memory = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"))
    };
    let files = paths
        .filter(is_memory)
        .filter_map(|path| fs::metadata(path).ok());
    files
        .map(|file| (file.ino(), file.blocks() * 512))
        .collect()
}

/// Returns `None` if the process is gone.
fn held_by(pid: i32) -> Option<u64> {
    size(&sizes(pid)?, "Pss:")
}

fn sizes(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()
}

fn size(sizes: &str, which: &str) -> Option<u64> {
    let line = sizes.lines().find_map(|line| line.strip_prefix(which))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Reads the memory repeatedly in a thread.
pub(super) struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
    idle: u64,
}

impl Watch {
    /// Starts to watch the job; `idle` is subtracted.
    pub(super) fn begin(idle: u64) -> Watch {
        let processes = processes();
        Watch::looking(idle, LOOK, move || sum(&processes))
    }

    /// Starts to watch a program: the largest memory of one of its processes, among those that a
    /// launcher has started.
    pub(super) fn of_program(launcher: u32, program: &str) -> Watch {
        let program = program.to_owned();
        Watch::looking(0, LOOK_ASIDE, move || {
            let all = children(launcher as i32).into_iter();
            let held = all.filter(|pid| runs(*pid, &program)).filter_map(held_by);
            held.max().unwrap_or(0)
        })
    }

    fn looking(idle: u64, pause: Duration, look: impl Fn() -> u64 + Send + 'static) -> Watch {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut most = look();
            // ORDERING: Relaxed, the thread is joined before its result is used.
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(pause);
                most = most.max(look());
            }
            most
        });
        Watch {
            is_over,
            thread,
            idle,
        }
    }

    /// Returns the maximum that it saw, in bytes; fails if it saw no process.
    pub(super) fn end(self) -> Result<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        let most = self.thread.join().ok().context("the watch has failed")?;
        ensure!(most > 0, "no process to watch was seen");
        Ok(most.saturating_sub(self.idle) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_sees_no_process_fails() {
        let none = Watch::of_program(std::process::id(), "no-such-program");
        assert!(none.end().is_err());
        assert!(Watch::begin(0).end().is_ok());
    }

    #[test]
    fn memory_that_is_touched_is_seen() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = held_by(own).unwrap();
        let bytes = vec![1u8; 64 << 20];
        let after = held_by(own).unwrap();
        assert!(after >= before + (60 << 20), "{before} {after}");
        drop(bytes);
        assert!(parent(own).is_some() && held_by(0).is_none());
    }
}
