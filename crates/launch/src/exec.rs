//! What a new process does before it becomes its program: `samite exec-unit`.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A process that is about to become a unit.
#[derive(Debug, Clone)]
pub struct ExecUnit {
    /// The processors that it may use, such as `0-3,8`.
    pub cpus: Option<String>,
    /// The launcher. The process ends at once if that is no longer its parent.
    pub parent: Option<i32>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl ExecUnit {
    /// Becomes the program. The kernel kills it when the launcher ends for any reason. The signal
    /// mask and SIGPIPE are as in a fresh process.
    ///
    /// Returns only if this failed, with the reason.
    pub fn exec(&self) -> io::Error {
        match self.prepare() {
            Ok(mut command) => command.exec(),
            Err(error) => error,
        }
    }

    fn prepare(&self) -> io::Result<Command> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before the line above; then no signal will arrive.
        if self.parent.is_some() && getppid() != self.parent.and_then(Pid::from_raw) {
            return Err(io::Error::other("the launcher has ended"));
        }
        if let Some(list) = &self.cpus {
            sched_setaffinity(None, &cpu_set(list)?).map_err(|source| {
                io::Error::other(format!("cannot use the processors {list}: {source}"))
            })?;
        }
        let (program, args) = self
            .command
            .split_first()
            .ok_or_else(|| io::Error::other("no program was given"))?;
        let mut command = Command::new(program);
        command.args(args);
        Ok(command)
    }
}

/// Parses a list such as `0-3,8`.
fn cpu_set(list: &str) -> io::Result<CpuSet> {
    let invalid = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{list}` is not a list of processors; write it like 0-3,8"),
        )
    };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| invalid());
    let mut set = CpuSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= CpuSet::MAX_CPU {
            return Err(invalid());
        }
        for cpu in first..=last {
            set.set(cpu);
        }
    }
    Ok(set)
}

/// Returns true if `list` can be parsed as a list of processors.
pub(crate) fn is_cpu_list(list: &str) -> bool {
    cpu_set(list).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        let set = cpu_set("0-2, 5").expect("a list");
        let members: Vec<usize> = (0..8).filter(|&cpu| set.is_set(cpu)).collect();
        assert_eq!(members, [0, 1, 2, 5]);
        for bad in ["", "a", "3-1", "0-", "999999"] {
            assert!(!is_cpu_list(bad), "{bad:?}");
        }
    }
}
