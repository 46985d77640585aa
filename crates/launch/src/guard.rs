//! Ends grandchildren if the launcher is killed: `samite guard`.
//!
//! The kernel ends units together with their launcher, but not processes that they started. So one
//! more process reads the numbers of all groups from a pipe that only the launcher holds open, and
//! kills these groups when the pipe closes.

use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Reads the groups of a launcher (`+123`, and `-123` for one that has ended) until the launcher is
/// gone, and kills those that are left. For the process `samite guard`, with its standard input.
pub fn guard(lines: impl BufRead) {
    for group in groups_left(lines) {
        // The group may have ended by itself.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn groups_left(mut lines: impl BufRead) -> HashSet<Pid> {
    let mut groups = HashSet::new();
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
        // An incomplete number would be that of another group.
        let Some(whole) = line.strip_suffix('\n') else {
            break;
        };
        if let Some(group) = whole.strip_prefix('+').and_then(group) {
            groups.insert(group);
        } else if let Some(group) = whole.strip_prefix('-').and_then(group) {
            groups.remove(&group);
        }
        line.clear();
    }
    groups
}

/// Parses the number of a group. It is never 1: a signal to group 1 would go to all processes.
fn group(number: &str) -> Option<Pid> {
    let number: i32 = number.parse().ok()?;
    (number > 1).then(|| Pid::from_raw(number)).flatten()
}

/// The launcher's end of the pipe. It never waits for the guard, which may have been stopped: what
/// does not fit into the pipe is sent with the next message. When this is dropped, the launcher has
/// ended all groups itself, so the guard is killed.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    /// `None` if the guard is gone.
    pipe: Option<ChildStdin>,
    unsent: Vec<u8>,
}

impl Guard {
    pub(crate) fn start(starter: &Path) -> io::Result<Self> {
        let mut process = Command::new(starter)
            .arg("guard")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals that the terminal sends to the launcher's group are not for it.
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take();
        let guard = Self {
            process,
            pipe,
            unsent: Vec::new(),
        };
        if let Some(pipe) = &guard.pipe {
            // Only this end is non-blocking: the guard waits for its lines.
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(guard)
    }

    /// Reports a group that was started.
    pub(crate) fn watch(&mut self, group: u32) {
        self.say(format_args!("+{group}"));
    }

    /// Reports a group that has ended.
    pub(crate) fn forget(&mut self, group: u32) {
        self.say(format_args!("-{group}"));
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        self.unsent.extend(format!("{line}\n").as_bytes());
        if let Err(error) = self.send() {
            tracing::warn!(%error, "the guard is gone: what units started would survive a kill -9 of the launcher");
            self.pipe = None;
        }
    }

    /// Sends as much as fits into the pipe.
    fn send(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            self.unsent.clear();
            return Ok(());
        };
        while !self.unsent.is_empty() {
            match pipe.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before the pipe closes, because that would make the guard kill the groups.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_testkit::fuzz;

    #[test]
    fn groups_that_ended_are_left_alone() {
        let left = |text: &str| {
            let left = groups_left(text.as_bytes()).into_iter();
            left.map(|group| group.as_raw_nonzero().get())
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(left("+10\n+11\n-10\n+12\n"), [11, 12].into());
        assert_eq!(left("+0\n+1\n+-5\n+x\n+7\n"), [7].into());
        // The launcher was killed while it wrote a number.
        assert_eq!(left("+12\n+3456"), [12].into());
    }

    #[test]
    fn no_lines_break_a_guard() {
        let name = "guard::tests::no_lines_break_a_guard";
        fuzz::rounds(name, 3000, |_, random| {
            let mut text = Vec::new();
            for _ in 0..random.u32(..20) {
                let number = match random.bool() {
                    true => fuzz::word(random).to_string(),
                    false => random.i32(-3..12).to_string(),
                };
                let line = [
                    random.choice(&["+", "-", ""]).unwrap_or(&""),
                    &*number,
                    "\n",
                ];
                text.extend(line.concat().into_bytes());
            }
            if random.bool() {
                fuzz::mutate(random, &mut text);
            }
            let groups = groups_left(&*text);
            assert!(groups.iter().all(|group| group.as_raw_nonzero().get() > 1));
        });
    }

    /// Writes a program for [`Guard::start`].
    fn starter(folder: &Path, script: &str) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join("starter");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Sends far more than fits into a pipe to a guard that is stopped and reads nothing.
    #[test]
    fn a_stopped_guard_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut guard = Guard::start(&starter(folder.path(), "kill -STOP $$")).unwrap();
        for group in 1_000_000..1_030_000 {
            guard.watch(group);
        }
        assert!(!guard.unsent.is_empty());
        let number = guard.process.id();
        drop(guard);
        assert!(!Path::new(&format!("/proc/{number}")).exists());
    }

    /// What did not fit is sent when there is space again, complete and in order.
    #[test]
    fn what_a_guard_could_not_be_told_comes_later() {
        let folder = tempfile::tempdir().unwrap();
        let (heard, begin) = (folder.path().join("heard"), folder.path().join("begin"));
        let script = format!(
            "while [ ! -e {} ]; do sleep 0.01; done; exec cat > {}",
            begin.display(),
            heard.display()
        );
        let mut guard = Guard::start(&starter(folder.path(), &script)).unwrap();
        (1..20_000).for_each(|group| guard.watch(group));
        assert!(!guard.unsent.is_empty());
        std::fs::write(&begin, "").unwrap();
        while !guard.unsent.is_empty() {
            guard.send().unwrap();
            std::thread::yield_now();
        }
        let wanted: String = (1..20_000).map(|group| format!("+{group}\n")).collect();
        while std::fs::metadata(&heard).map_or(0, |file| file.len()) < wanted.len() as u64 {
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_to_string(&heard).unwrap(), wanted);
    }
}
