//! What becomes of grandchildren when the launcher is killed: `samite guard`.
//!
//! The kernel ends units with their launcher, and not what they started. So one more process reads which groups there
//! are from a pipe that only the launcher holds open, and kills them when the pipe closes.

use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The last line of a launcher that has ended all groups itself.
const DONE: &str = "done";

/// Reads the groups of a launcher (`+123`, and `-123` for one that has ended) until it is gone, and kills those that it
/// left. For the process `samite guard`, with its standard input.
pub fn guard(lines: impl BufRead) {
    for group in groups_left(lines) {
        // It may have ended by itself.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn groups_left(lines: impl BufRead) -> HashSet<Pid> {
    let mut groups = HashSet::new();
    for line in lines.lines().map_while(Result::ok) {
        let group = |number: &str| number.parse().ok().and_then(Pid::from_raw);
        if line == DONE {
            groups.clear();
        } else if let Some(group) = line.strip_prefix('+').and_then(group) {
            groups.insert(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(group) {
            groups.remove(&group);
        }
    }
    groups
}

/// The launcher's end; when it is dropped the guard ends and kills nobody.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn start(starter: &Path) -> io::Result<Self> {
        let child = Command::new(starter)
            .arg("guard")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What the terminal sends to the launcher's group is not for it.
            .process_group(0)
            .spawn()?;
        Ok(Self(child))
    }

    /// A group of this number was started.
    pub(crate) fn watch(&mut self, group: u32) {
        self.say(format_args!("+{group}"));
    }

    /// A group has ended.
    pub(crate) fn forget(&mut self, group: u32) {
        self.say(format_args!("-{group}"));
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        if let Some(pipe) = &mut self.0.stdin
            && let Err(error) = pipe.write_all(format!("{line}\n").as_bytes())
        {
            tracing::warn!(%error, "the guard is gone: what units started would survive a kill -9 of the launcher");
            self.0.stdin = None;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.say(format_args!("{DONE}"));
        self.0.stdin = None;
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_ended_are_left_alone() {
        let left = |text: &str| {
            let left = groups_left(text.as_bytes()).into_iter();
            left.map(|group| group.as_raw_nonzero().get())
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(left("+10\n+11\n-10\n+12\n"), [11, 12].into());
        assert_eq!(left("+10\n+11\ndone\n"), [].into());
        assert_eq!(left("+0\n+x\n+7"), [7].into());
    }
}
