//! A contestant: processes that stay alive for the whole bench, and block in `read()` while another
//! one is measured. The protocol is in the crate's documentation.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use tempfile::TempDir;

/// Maximum time to start: `mpirun` alone may take seconds on a busy machine.
const START: Duration = Duration::from_secs(60);
/// Maximum time to end after `quit`, and again after SIGTERM.
const LEAVE: Duration = Duration::from_secs(3);
/// Maximum bytes of a process's last output in an error.
const LAST_WORDS: usize = 2000;

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) name: String,
    /// The control folder is appended; `{ranks}` is replaced.
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Start the command once per rank, with its `SAMITE_BENCH_RANK`, instead of once.
    pub(crate) each_rank: bool,
}

/// The answer of a contestant to a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Value(f64),
    /// A JSON object.
    Object(String),
    Unsupported,
    /// The command failed with this message; the contestant can be asked again.
    Failed(String),
}

/// Running processes, and the fifos to them. Its drop ends all of them.
#[derive(Debug)]
pub(crate) struct Contestant {
    name: String,
    processes: Vec<Process>,
    controls: Vec<OwnedFd>,
    out: OwnedFd,
    heard: Vec<u8>,
    // Last: the folder is removed when the processes are gone.
    folder: TempDir,
}

#[derive(Debug)]
struct Process {
    child: Child,
    death: OwnedFd,
}

impl Contestant {
    /// Starts `ranks` ranks, pinned in turn to `cpus` unless that is empty, and waits until they
    /// are ready.
    pub(crate) fn start(launch: &Launch, ranks: u32, cpus: &[usize]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("samite-bench-").tempdir()?;
        let controls = (0..ranks)
            .map(|rank| fifo(&folder.path().join(format!("ctl.{rank}"))))
            .collect::<Result<_>>()?;
        let mut contestant = Contestant {
            name: launch.name.clone(),
            processes: Vec::new(),
            controls,
            out: fifo(&folder.path().join("out"))?,
            heard: Vec::new(),
            folder,
        };
        let copies = if launch.each_rank { ranks } else { 1 };
        for rank in 0..copies {
            let mut command = command(launch, ranks, cpus, contestant.folder.path());
            if launch.each_rank {
                command.env("SAMITE_BENCH_RANK", rank.to_string());
            }
            contestant.spawn(command)?;
        }
        match contestant.line(START, "starting")?.as_str() {
            "ready" => Ok(contestant),
            other => bail!("{} said `{other}` instead of `ready`", launch.name),
        }
    }

    /// Sends one command to all ranks and waits for the answer, `deadline` at most.
    pub(crate) fn ask(&mut self, command: &str, deadline: Duration) -> Result<Answer> {
        for control in &self.controls {
            rustix::io::write(control, format!("{command}\n").as_bytes())
                .with_context(|| format!("{}: cannot write to the fifo of a rank", self.name))?;
        }
        let line = self.line(deadline, command)?;
        if line == "unsupported" {
            return Ok(Answer::Unsupported);
        }
        if let Some(text) = line.strip_prefix("error ") {
            return Ok(Answer::Failed(text.to_owned()));
        }
        if line.starts_with('{') {
            return Ok(Answer::Object(line));
        }
        let value = line
            .parse()
            .with_context(|| format!("{} answered `{line}` to `{command}`", self.name))?;
        Ok(Answer::Value(value))
    }

    fn spawn(&mut self, mut command: Command) -> Result<()> {
        let words = File::options()
            .create(true)
            .append(true)
            .open(self.words())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(words.try_clone()?)
            .stderr(words)
            // A process group of its own, so that it can be ended as a whole.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{}: cannot start {:?}", self.name, command.get_program()))?;
        let death = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        self.processes.push(Process { child, death });
        Ok(())
    }

    fn words(&self) -> PathBuf {
        self.folder.path().join("words")
    }

    /// Returns the next line of rank 0. `doing` says what it is busy with.
    fn line(&mut self, timeout: Duration, doing: &str) -> Result<String> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(at) = self.heard.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=at).collect();
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "{} gave no answer within {timeout:?} ({doing}){}",
                    self.name,
                    self.last_words()
                );
            }
            self.listen(left, doing)?;
        }
    }

    /// Waits until rank 0 writes something or a process ends.
    fn listen(&mut self, left: Duration, doing: &str) -> Result<()> {
        let mut watched = vec![PollFd::new(&self.out, PollFlags::IN)];
        watched.extend(
            self.processes
                .iter()
                .map(|p| PollFd::new(&p.death, PollFlags::IN)),
        );
        if wait(&mut watched, left)? == 0 {
            return Ok(());
        }
        let spoke = !watched[0].revents().is_empty();
        let dead = watched[1..].iter().position(|p| !p.revents().is_empty());
        if spoke {
            let mut bytes = [0; 256];
            let count = rustix::io::read(&self.out, &mut bytes)?;
            self.heard.extend_from_slice(&bytes[..count]);
        } else if let Some(index) = dead {
            let status = self.processes[index].status()?;
            bail!(
                "{} ended with {status} ({doing}){}",
                self.name,
                self.last_words()
            );
        }
        Ok(())
    }

    /// Returns the process id of each process that was started.
    #[cfg(test)]
    pub(crate) fn process_ids(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().map(|process| process.child.id())
    }

    fn last_words(&self) -> String {
        let said = fs::read(self.words()).unwrap_or_default();
        let tail = &said[said.len().saturating_sub(LAST_WORDS)..];
        match String::from_utf8_lossy(tail).trim() {
            "" => String::new(),
            text => format!("; it last said:\n{text}"),
        }
    }

    fn all_gone(&mut self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        self.processes.iter().all(|process| {
            let left = end.saturating_duration_since(Instant::now());
            let mut death = [PollFd::new(&process.death, PollFlags::IN)];
            matches!(wait(&mut death, left), Ok(1))
        })
    }

    fn signal(&self, signal: Signal) {
        for process in &self.processes {
            // It may have ended already, which is fine: it was not reaped.
            let _ = kill_process_group(Pid::from_child(&process.child), signal);
        }
    }
}

impl Process {
    /// Returns the status of a process that has ended, without reaping it: until the contestant is
    /// dropped, its number stays taken, so that no other process group is hit by the signals.
    fn status(&self) -> Result<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::PidFd(self.death.as_fd()), options)?;
        let ended = ended.context("the kernel does not say how the process ended")?;
        // As `wait` encodes it: the code in the second byte, or a signal in the first.
        Ok(ExitStatus::from_raw(match ended.exit_status() {
            Some(code) => code << 8,
            None => ended.terminating_signal().unwrap_or(0),
        }))
    }
}

impl Drop for Contestant {
    /// Asks before it kills: launchers remove their own files if they can end by themselves.
    fn drop(&mut self) {
        for control in &self.controls {
            // If the fifo is full, its rank is not reading; the signals follow.
            let _ = rustix::io::write(control, b"quit\n");
        }
        if !self.all_gone(LEAVE) {
            self.signal(Signal::TERM);
            self.all_gone(LEAVE);
        }
        self.signal(Signal::KILL);
        for process in &mut self.processes {
            // The child was killed, so this returns; an error cannot be handled here.
            let _ = process.child.wait();
        }
    }
}

fn command(launch: &Launch, ranks: u32, cpus: &[usize], folder: &Path) -> Command {
    let argv: Vec<String> = launch
        .argv
        .iter()
        .map(|arg| arg.replace("{ranks}", &ranks.to_string()))
        .collect();
    let (program, args) = argv
        .split_first()
        .map_or(("", &[][..]), |(p, a)| (p.as_str(), a));
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(folder)
        .envs(launch.env.iter().cloned())
        .env("SAMITE_BENCH_RANKS", ranks.to_string())
        // The launchers' session folders are removed with ours.
        .env("TMPDIR", folder)
        .env_remove("SAMITE_BENCH_CPUS");
    if !cpus.is_empty() {
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        command.env("SAMITE_BENCH_CPUS", list.join(","));
    }
    command
}

/// Creates a fifo and opens both of its ends: opening never blocks, a rank that starts late finds
/// its commands, and all ranks read end of file when this process is gone.
fn fifo(path: &Path) -> Result<OwnedFd> {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR)
        .with_context(|| format!("cannot make the fifo {}", path.display()))?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn wait(watched: &mut [PollFd<'_>], timeout: Duration) -> io::Result<usize> {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as _,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(watched, Some(&timeout)) {
        Ok(ready) => Ok(ready),
        Err(rustix::io::Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launch {
        Launch {
            name: "shell".to_owned(),
            // $0 is the control folder, which is appended.
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: Vec::new(),
            each_rank: false,
        }
    }

    #[test]
    fn answers_come_back_in_order() {
        let script = r#"exec 3<"$0/ctl.0" 4>"$0/out"; echo ready >&4
            while read -r word rest <&3; do case $word in
                quit) exit 0;; barrier) echo 2.5e-1 >&4;; idle) echo error broken >&4;;
                *) echo unsupported >&4;; esac; done"#;
        let mut shell = Contestant::start(&shell(script), 1, &[]).unwrap();
        let timeout = Duration::from_secs(20);
        assert_eq!(
            shell.ask("barrier 1 1", timeout).unwrap(),
            Answer::Value(0.25)
        );
        assert_eq!(
            shell.ask("latency 8 1 1", timeout).unwrap(),
            Answer::Unsupported
        );
        assert_eq!(
            shell.ask("idle 1", timeout).unwrap(),
            Answer::Failed("broken".to_owned())
        );
    }

    #[test]
    fn a_dead_contestant_is_named_with_its_last_words() {
        let script = r#"echo ready >"$0/out"; read -r line <"$0/ctl.0"; echo sorry; exit 3"#;
        let mut shell = Contestant::start(&shell(script), 1, &[]).unwrap();
        let error = shell
            .ask("barrier 1 1", Duration::from_secs(20))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("shell ended with exit status: 3"),
            "{error}"
        );
        assert!(error.ends_with("sorry"), "{error}");
        // Its number is not given to another process before the contestant is dropped.
        let number = shell.process_ids().next().unwrap();
        assert!(Path::new(&format!("/proc/{number}")).exists());
    }

    #[test]
    fn a_signal_that_ended_a_contestant_is_named() {
        let script = r#"echo ready >"$0/out"; read -r line <"$0/ctl.0"; kill -9 $$"#;
        let mut shell = Contestant::start(&shell(script), 1, &[]).unwrap();
        let error = shell.ask("barrier 1 1", Duration::from_secs(20));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("shell ended with signal: 9"), "{error}");
    }

    #[test]
    fn silence_ends_at_the_deadline_and_nothing_stays() {
        let script = r#"trap '' TERM; echo ready >"$0/out"; sleep 1000"#;
        let mut shell = Contestant::start(&shell(script), 1, &[]).unwrap();
        let folder = shell.folder.path().to_owned();
        let error = shell
            .ask("barrier 1 1", Duration::from_millis(50))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no answer within 50ms"), "{error}");
        drop(shell);
        assert!(!folder.exists());
    }
}
