//! The descendants of this process: finds them in `/proc`, signals them through descriptors (so a
//! reused process id is not hit), reaps them, and ends them together.

use anyhow::{Context, Result};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, set_parent_process_death_signal, waitpid,
};
use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The commands by which this program starts itself as [`start`] and [`spin`].
pub(crate) const START: &str = "stress-start";
pub(crate) const SPIN: &str = "stress-spin";

/// A process, as `/proc/PID/stat` shows it.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    pub(super) name: String,
    state: char,
}

impl Process {
    /// Parses `stat`. The name is in brackets and may contain brackets. The fields after the last
    /// one are fixed.
    fn parse(stat: &str) -> Option<Process> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        Some(Process {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            name: name.to_owned(),
            state: words.next()?.chars().next()?,
            parent: words.next()?.parse().ok()?,
        })
    }

    /// Returns true if it can run: it has neither ended nor been stopped.
    pub(super) fn goes_on(&self) -> bool {
        !matches!(self.state, 'T' | 't') && !self.has_ended()
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Makes orphans below this process its children, so that none escapes.
pub(super) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("orphans cannot be adopted")
}

/// Returns all live processes below `root`, without `root` itself.
pub(super) fn below(root: Pid) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in stats.filter_map(|stat| Process::parse(&stat)) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![root.as_raw_pid()];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid.as_raw_pid());
            found.push(child);
        }
    }
    found.retain(|process| !process.has_ended());
    found
}

/// Returns a descriptor for signalling a process, or `None` if it has ended.
pub(super) fn handle(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Sends a signal. Returns false if the process has ended.
pub(super) fn signal(process: &OwnedFd, signal: Signal) -> bool {
    pidfd_send_signal(process, signal).is_ok()
}

/// Reaps adopted orphans that have ended. `ours` are waited for elsewhere.
pub(super) fn reap(ours: &[Pid]) {
    let me = getpid().as_raw_pid();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ended = entries
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| Process::parse(&stat))
        .filter(|process| process.parent == me && process.has_ended());
    for process in ended.filter(|process| !ours.contains(&process.pid)) {
        let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
    }
}

/// Maximum time until killed processes are gone: one that sleeps in the kernel may stay.
const GONE: Duration = Duration::from_secs(10);

/// Kills all processes below this one, until none is left.
pub(super) fn end_all() {
    let end = Instant::now() + GONE;
    loop {
        let left = below(getpid());
        if left.is_empty() {
            return;
        }
        if Instant::now() > end {
            eprintln!("xtask: these were killed and do not end: {left:?}");
            return;
        }
        for process in left.iter().filter_map(|process| handle(process.pid)) {
            signal(&process, Signal::KILL);
        }
        reap(&[]);
        std::thread::yield_now();
    }
}

/// Returns a command that runs `program` so that it ends with this process, however this one ends.
pub(super) fn bound(program: &std::ffi::OsStr) -> Command {
    let mut command = ourselves(START);
    // Ctrl-C reaches only this process, which then ends the others.
    command.arg(program).process_group(0);
    command
}

/// Returns a command that runs another part of this program. The path in `/proc` is right even if
/// the file was replaced meanwhile.
pub(super) fn ourselves(part: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(part);
    command
}

fn end_with_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid().is_none_or(Pid::is_init) {
        std::process::exit(1);
    }
}

/// Runs in a separate process: becomes another program, which ends when its parent does.
pub(crate) fn start(line: &[std::ffi::OsString]) -> ExitCode {
    end_with_parent();
    let error = match line {
        [program, arguments @ ..] => Command::new(program).args(arguments).exec(),
        [] => std::io::ErrorKind::InvalidInput.into(),
    };
    eprintln!("xtask: {line:?} cannot be started: {error}");
    ExitCode::FAILURE
}

/// Runs in a separate process: keeps a core busy until it is ended.
pub(crate) fn spin() -> ! {
    end_with_parent();
    loop {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn names_may_hold_brackets() {
        let process = Process::parse("17 (a) b (c) S 3 17 17 0").expect("a line of the system");
        assert_eq!((process.pid.as_raw_pid(), process.parent), (17, 3));
        assert_eq!((process.name.as_str(), process.state), ("a) b (c", 'S'));
    }

    #[test]
    fn processes_below_one_are_found() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & sleep 1000 & echo; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut line = [0];
        let output = shell.stdout.as_mut().expect("it is a pipe");
        std::io::Read::read_exact(output, &mut line).expect("the shell prints a line");
        let found = below(Pid::from_child(&shell));
        assert_eq!(found.len(), 2, "{found:?}");
        for process in &found {
            assert!(process.goes_on());
            let handle = handle(process.pid).expect("it runs");
            assert!(signal(&handle, Signal::KILL));
        }
        shell.wait().expect("its children have ended");
        assert!(below(Pid::from_child(&shell)).is_empty());
    }
}
