//! Output files that get their names when they are complete, and what becomes of them when the
//! process is told to end before.
//!
//! A file is written as `.partial-NAME` beside its name. It is removed when it is given up, and,
//! after [`remove_at_signals`], also by SIGTERM, SIGINT and SIGHUP, unless the process ignores them
//! (`nohup`); an encoder that writes it is ended first. After `kill -9` it stays, and the next run
//! writes it. It is locked, so that two runs do not write it at a time.

use std::fs::{File, Metadata, TryLockError, remove_file, rename};
use std::io::{Read, Result as IoResult};
use std::os::unix::fs::MetadataExt;
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
    /// Where it is written until then, and the file that it replaces. A device or a pipe is
    /// written directly.
    replaces: Option<(PathBuf, PathBuf)>,
    /// From its creation until it has its name. Its lock keeps other runs from writing it.
    file: Option<File>,
}

impl Partial {
    pub(crate) fn new(path: &Path) -> Self {
        let target = samite_report::target(path);
        let replaces = target.and_then(|target| {
            // The ending stays, because ffmpeg chooses the format by it.
            let mut partial = std::ffi::OsString::from(".partial-");
            partial.push(target.file_name()?);
            Some((target.with_file_name(partial), target))
        });
        Self {
            path: path.to_path_buf(),
            replaces,
            file: None,
        }
    }

    /// Its name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is written.
    pub(crate) fn written(&self) -> &Path {
        match &self.replaces {
            Some((written, _)) => written,
            None => &self.path,
        }
    }

    /// Creates it. Fails if another run writes it.
    pub(crate) fn create(&mut self) -> Result<File, Error> {
        let mut open = open(); // No signal between the two.
        let Some((written, _)) = &self.replaces else {
            return File::create(&self.path).map_err(|source| self.error("created", source));
        };
        let created = loop {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false);
            let file = file.open(written);
            let file = file.map_err(|source| self.error("created", source))?;
            // Some file systems have no locks.
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                return Err(Error::Output {
                    path: self.path.clone(),
                    why: "another run is writing it: give each run an output of its own",
                });
            }
            // That run may have completed it since it was opened here.
            if is_at(&file, written) {
                break file;
            }
        };
        let copy = created.set_len(0).and_then(|()| created.try_clone());
        open.files.push(written.clone());
        self.file = Some(created);
        drop(open);
        copy.map_err(|source| self.error("created", source))
    }

    /// Checks that somebody has written to it.
    pub(crate) fn is_written(&self) -> Result<(), Error> {
        let metadata = self.written().metadata();
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
        if let (Some((written, target)), Some(_)) = (&self.replaces, &self.file) {
            let mut open = open();
            let renamed = rename(written, target);
            renamed.map_err(|source| self.error("completed", source))?;
            open.files.retain(|file| file != written);
            drop(open);
            self.file = None;
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
        if let (Some((written, _)), Some(_)) = (&self.replaces, &self.file) {
            let mut open = open();
            _ = remove_file(written);
            open.files.retain(|file| file != written);
        }
    }
}

/// Whether a path leads to an open file.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), path.metadata()) {
        (Ok(file), Ok(path)) => id(file) == id(path),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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
        let mut partial = Partial::new(&folder.path().join("out"));
        partial.create().unwrap();
        kill_process(rustix::process::getpid(), Signal::HUP).unwrap();
        partial.complete().unwrap();
        assert!(folder.path().join("out").exists());
    }

    #[test]
    fn one_run_writes_a_file_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut one = Partial::new(&path);
        one.create().unwrap().write_all(b"one").unwrap();
        let mut other = Partial::new(&path);
        let error = other.create().unwrap_err().to_string();
        assert!(error.contains("another run"), "{error}");
        drop(other);
        one.complete().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        // What a run that was killed has left is written again.
        std::fs::write(folder.path().join(".partial-out"), "a long rest").unwrap();
        let mut next = Partial::new(&path);
        next.create().unwrap().write_all(b"next").unwrap();
        next.complete().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "next");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_a_link_leads_to_is_replaced() {
        let [links, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [link, path] = [links.path().join("link"), folder.path().join("out")];
        std::fs::write(&path, "before").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut partial = Partial::new(&link);
        partial.create().unwrap().write_all(b"after").unwrap();
        partial.complete().unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "after");
    }
}
