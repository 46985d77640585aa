//! Output files that get their names when they are complete, and what becomes of them when the
//! process is told to end before.
//!
//! A file is written as `.partial-NAME` beside its name. It is removed when it is given up, and,
//! after [`remove_at_signals`], also by SIGTERM, SIGINT and SIGHUP, unless the process ignores them
//! (`nohup`); an encoder that writes it is ended first. After `kill -9` it stays.

use std::fs::{File, remove_file, rename};
use std::io::{Read, Result as IoResult};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};

use crate::Error;

/// What has to be done before this process may end.
struct Open {
    files: Vec<PathBuf>,
    encoders: Vec<Pid>,
}

static OPEN: Mutex<Open> = Mutex::new(Open {
    files: Vec::new(),
    encoders: Vec::new(),
});

fn open() -> MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets SIGTERM, SIGINT and SIGHUP remove incomplete files before they end this process. For
/// programs; the second call does nothing.
pub(crate) fn remove_at_signals() -> IoResult<()> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| result = start());
    result
}

fn start() -> IoResult<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let heard = [SIGTERM, SIGINT, SIGHUP].into_iter();
    for signal in heard.filter(|signal| !has_signal(&status, "SigIgn:", *signal)) {
        let (mut told, tells) = UnixStream::pair()?;
        pipe::register(signal, tells)?;
        std::thread::Builder::new()
            .name("end of output".to_owned())
            .spawn(move || {
                if told.read_exact(&mut [0]).is_ok() {
                    // Until the end, so that no encoder starts and no file is made any more.
                    let open = open();
                    give_up(&open);
                    // Fails only for signals without a default.
                    _ = emulate_default_handler(signal);
                }
            })?;
    }
    Ok(())
}

/// Whether a signal is among those of a line of `/proc/self/status`.
fn has_signal(status: &str, line: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let mask = lines.find_map(|text| text.strip_prefix(line));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn give_up(open: &Open) {
    for encoder in &open.encoders {
        // Both fail only if it has ended.
        _ = kill_process(*encoder, Signal::KILL);
        _ = waitpid(Some(*encoder), WaitOptions::empty());
    }
    for file in &open.files {
        _ = remove_file(file);
    }
}

/// A child process that writes an incomplete file, as long as this exists. The caller has waited
/// for it before that.
#[derive(Debug)]
pub(crate) struct Encodes(Option<Pid>);

impl Encodes {
    /// Starts it.
    pub(crate) fn start(mut command: Command) -> IoResult<(Child, Self)> {
        let mut open = open(); // No signal between the two.
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        open.encoders.push(pid);
        Ok((child, Self(Some(pid))))
    }

    /// Starts a process that writes no file.
    pub(crate) fn start_other(mut command: Command) -> IoResult<(Child, Self)> {
        Ok((command.spawn()?, Self(None)))
    }
}

impl Drop for Encodes {
    fn drop(&mut self) {
        if let Some(own) = self.0 {
            open().encoders.retain(|pid| *pid != own);
        }
    }
}

/// A file that gets its name when it is complete.
pub(crate) struct Partial {
    path: PathBuf,
    /// Where it is written until then. A device or a pipe is written directly.
    written: PathBuf,
}

impl Partial {
    pub(crate) fn new(path: &Path) -> Self {
        let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        let written = match path.file_name() {
            Some(name) if !is_special => {
                // The ending stays, because ffmpeg chooses the format by it.
                let mut partial = std::ffi::OsString::from(".partial-");
                partial.push(name);
                path.with_file_name(partial)
            }
            _ => path.to_path_buf(),
        };
        Self {
            path: path.to_path_buf(),
            written,
        }
    }

    /// Where it is written.
    pub(crate) fn written(&self) -> &Path {
        &self.written
    }

    pub(crate) fn create(&self) -> Result<File, Error> {
        let mut open = open(); // No signal between the two.
        let created = File::create(&self.written);
        let created = created.map_err(|source| self.error("created", source))?;
        if self.written != self.path {
            open.files.push(self.written.clone());
        }
        Ok(created)
    }

    /// Checks that somebody has written to it.
    pub(crate) fn is_written(&self) -> Result<(), Error> {
        let metadata = self.written.metadata();
        let metadata = metadata.map_err(|source| self.error("completed", source))?;
        match metadata.is_file() && metadata.len() == 0 {
            true => Err(Error::Output {
                path: self.path.clone(),
                why: "ffmpeg has left it empty",
            }),
            false => Ok(()),
        }
    }

    pub(crate) fn complete(mut self) -> Result<(), Error> {
        if self.written != self.path {
            let mut open = open();
            let renamed = rename(&self.written, &self.path);
            renamed.map_err(|source| self.error("completed", source))?;
            open.files.retain(|file| *file != self.written);
            self.written = self.path.clone();
        }
        Ok(())
    }

    fn error(&self, doing: &'static str, source: std::io::Error) -> Error {
        Error::File {
            path: self.path.clone(),
            doing,
            source,
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.written != self.path {
            let mut open = open();
            // The file may not exist, if it could not be created.
            _ = remove_file(&self.written);
            open.files.retain(|file| *file != self.written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test that runs again in a process that ignores SIGHUP.
    const TEST: &str = "partial::tests::a_signal_that_is_ignored_stays_ignored";
    const AGAIN: &str = "SAMITE_VIDEO_TEST_IGNORES";

    #[test]
    fn a_signal_that_is_ignored_stays_ignored() {
        if std::env::var_os(AGAIN).is_none() {
            let own = std::env::current_exe().unwrap();
            // As `nohup` does it.
            let status = Command::new("sh")
                .args(["-c", r#"trap "" HUP; exec "$0" --exact "$1""#])
                .args([own.as_os_str(), TEST.as_ref()])
                .env(AGAIN, "1")
                .status();
            assert!(status.unwrap().success());
            return;
        }
        remove_at_signals().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let [ignored, caught] = ["SigIgn:", "SigCgt:"]
            .map(|line| [SIGHUP, SIGTERM].map(|signal| has_signal(&status, line, signal)));
        assert_eq!((ignored, caught), ([true, false], [false, true]));
        // So it does nothing.
        let folder = tempfile::tempdir().unwrap();
        let partial = Partial::new(&folder.path().join("out"));
        partial.create().unwrap();
        kill_process(rustix::process::getpid(), Signal::HUP).unwrap();
        partial.complete().unwrap();
        assert!(folder.path().join("out").exists());
    }
}
