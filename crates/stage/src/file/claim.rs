//! Which process writes a file: only one at a time, and readers can tell whether it is alive.
//!
//! Two signs show it. The *lock* (`flock`) ends with its holder, on any machine; but a surviving
//! fork of the writer holds it, too. The *mark* names the writing process, in unused bytes of the
//! first head; but only on the same machine can another process check whether that process is
//! alive, and one that runs another program (`exec`) is still the same process.
//!
//! | lock | mark | the file is being written |
//! |---|---|---|
//! | free | of a living process, "without the lock" | yes: a fork of the writer had the lock before |
//! | free | any other, or none | no |
//! | held | of a process that is gone, or cleared | no: a fork holds the lock |
//! | held | any other, or none | yes |
//!
//! ```text
//!   byte 64  machine    u64, hash of its boot and of the PID namespace; 0 if the system does not tell
//!        72  process    u32, 0 if a writer has cleared its mark; then u32, 1 if it has the lock
//!        80  beginning  u64, when the process began, in ticks since the boot
//!        88  checksum   u64, xxh3 of the 24 bytes before
//! ```
//!
//! Claims of a file are made one after another: a claiming process holds the lock of the temporary
//! file beside it, in which a new file begins, until its mark is written.

use super::error::{FileError, io};
use super::file_of;
use super::frame::{ALIGN, Frames, HEAD, word};
use crate::process;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use samite_mem::OwnerProcess;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// How often a writer tries to lock, and how long it waits between: readers lock only for a moment.
const LOOKS: u32 = 20;
const LOOK: Duration = Duration::from_millis(1);
/// How often a file may be renamed while it is opened: once for each process that believes it is
/// this rank.
const CLAIMS: u32 = 16;

/// The exclusive right to claim the file of a rank.
#[derive(Debug)]
pub(super) struct Turn {
    fresh: Frames,
    place: PathBuf,
    rank: u32,
    is_named: bool,
}

impl Turn {
    /// Creates the folder if it is missing.
    ///
    /// # Errors
    /// [`FileError::InUse`]: another process claims the file. The system refuses.
    pub(super) fn take(folder: &Path, rank: u32) -> Result<Self, FileError> {
        fs::create_dir_all(folder).map_err(io("make the folder", folder))?;
        let path = file_of(folder, rank);
        let place = path.with_extension("new");
        for _ in 0..CLAIMS {
            let file = options().create(true).open(&place);
            let fresh = Frames::new(file.map_err(io("open", &place))?, &path);
            if !lock(&fresh)? {
                break;
            }
            // The previous holder may have renamed it: then there is another one.
            if fresh.is_at(&place)? {
                return Ok(Turn {
                    fresh,
                    place,
                    rank,
                    is_named: false,
                });
            }
        }
        Err(FileError::InUse { path, rank })
    }

    /// Claims the existing file for this process alone.
    ///
    /// # Errors
    /// [`FileError::InUse`]: a process writes it. The system refuses.
    pub(super) fn old(&self) -> Result<Option<Claim>, FileError> {
        let path = &self.fresh.path;
        match options().open(path) {
            Ok(file) => Claim::of(Frames::new(file, path), self.rank).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io("open", path)(error)),
        }
    }

    /// Returns a new, empty file that no other process sees before it is [named](Self::name). The
    /// old one is not truncated: its readers may continue.
    pub(super) fn fresh(&self) -> Result<Claim, FileError> {
        self.fresh.cut(0)?;
        Ok(Claim {
            frames: self.fresh.clone(),
            rank: self.rank,
            has_lock: true,
            mark: None,
        })
    }

    /// Makes the new file that of the rank.
    pub(super) fn name(mut self) -> Result<(), FileError> {
        fs::rename(&self.place, &self.fresh.path).map_err(io("rename", &self.fresh.path))?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_named {
            // If it cannot be removed, the next process takes it.
            let _ = fs::remove_file(&self.place);
        }
    }
}

/// The right to write a file, until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) frames: Frames,
    rank: u32,
    has_lock: bool,
    /// The mark in the file, and the process that wrote it, because a fork has a copy. `None` until
    /// this process begins to write.
    mark: Option<(Mark, OwnerProcess)>,
}

impl Claim {
    /// Claims a file.
    ///
    /// # Errors
    /// [`FileError::InUse`]: a process writes the file. The system refuses.
    pub(super) fn of(frames: Frames, rank: u32) -> Result<Self, FileError> {
        let has_lock = lock(&frames)?;
        if is_marked_as_written(&frames, !has_lock)? {
            let path = frames.path.clone();
            return Err(FileError::InUse { path, rank });
        }
        Ok(Claim {
            frames,
            rank,
            has_lock,
            mark: None,
        })
    }

    /// Marks the file as written by this process; it has a head.
    pub(super) fn begin(&mut self) -> Result<(), FileError> {
        let mark = Mark::own(self.has_lock);
        self.frames.put(Mark::AT, &mark.bytes())?;
        self.mark = Some((mark, OwnerProcess::current()));
        Ok(())
    }

    /// Checks that this process may write.
    ///
    /// # Errors
    /// [`FileError::InUse`]: this process is a fork of the writer.
    pub(super) fn check(&mut self) -> Result<(), FileError> {
        if !self.is_own() {
            let path = self.frames.path.clone();
            let rank = self.rank;
            return Err(FileError::InUse { path, rank });
        }
        if !self.has_lock && try_lock(&self.frames)? {
            // The fork that held the lock is gone.
            self.has_lock = true;
            self.begin()?;
        }
        Ok(())
    }

    /// Returns true if this process began to write, rather than one of which it is a fork.
    /// `OwnerProcess` distinguishes them even if the process id was reused. The process id detects
    /// a fork by the system call, which the library does not see.
    fn is_own(&self) -> bool {
        let own = |(mark, owner): &(Mark, OwnerProcess)| {
            owner.is_current() && mark.process == std::process::id()
        };
        self.mark.as_ref().is_some_and(own)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_own() {
            // A fork may still hold the lock.
            let _ = self.frames.put(Mark::AT, &Mark::NOBODY.bytes());
        }
    }
}

/// Returns whether a process writes this file now; `None` if the file system has no locks. Takes
/// the lock for a moment.
///
/// # Errors
/// The system refuses.
pub(super) fn is_written(frames: &Frames) -> Result<Option<bool>, FileError> {
    let is_locked = match flock(&frames.file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(&frames.file, FlockOperation::Unlock);
            false
        }
        Err(Errno::WOULDBLOCK) => true,
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => return Ok(None),
        Err(error) => return Err(io("lock", &frames.path)(error.into())),
    };
    is_marked_as_written(frames, is_locked).map(Some)
}

/// Implements the table above.
fn is_marked_as_written(frames: &Frames, is_locked: bool) -> Result<bool, FileError> {
    let mark = Mark::of(frames)?;
    Ok(match mark {
        Some(mark) if is_locked => mark.is_alive() != Some(false),
        Some(mark) => !mark.has_lock && mark.is_alive() == Some(true),
        None => is_locked,
    })
}

/// Returns true if this process has the lock. Retries, because readers take it for moments. File
/// systems without locks always grant it.
fn lock(frames: &Frames) -> Result<bool, FileError> {
    for _ in 0..LOOKS {
        if try_lock(frames)? {
            return Ok(true);
        }
        std::thread::sleep(LOOK);
    }
    Ok(false)
}

fn try_lock(frames: &Frames) -> Result<bool, FileError> {
    match flock(&frames.file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(io("lock", &frames.path)(error.into())),
    }
}

/// The process that writes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    machine: u64,
    process: u32,
    has_lock: bool,
    beginning: u64,
}

impl Mark {
    const AT: u64 = HEAD as u64;
    const NOBODY: Mark = Mark {
        machine: 0,
        process: 0,
        has_lock: false,
        beginning: 0,
    };

    fn own(has_lock: bool) -> Mark {
        let process = std::process::id();
        let status = i32::try_from(process).ok().and_then(process::status);
        Mark {
            machine: machine(),
            process,
            has_lock,
            beginning: status.map_or(0, |status| status.began),
        }
    }

    fn bytes(&self) -> [u8; 32] {
        let process = u64::from(self.process) | u64::from(self.has_lock) << 32;
        let mut bytes = [0; 32];
        let words = [self.machine, process, self.beginning];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes[..24]);
        bytes[24..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Returns the mark of a file; `None` if there is none, or an incomplete one.
    fn of(frames: &Frames) -> Result<Option<Mark>, FileError> {
        if frames.length()? < ALIGN {
            return Ok(None);
        }
        let mut bytes = [0; 32];
        frames.read(Self::AT, &mut bytes)?;
        let word = |index| word(&bytes, index);
        let mark = Mark {
            machine: word(0),
            process: word(1) as u32,
            has_lock: word(1) >> 32 == 1,
            beginning: word(2),
        };
        Ok((mark.bytes() == bytes).then_some(mark))
    }

    /// Returns whether its process is alive; `None` if this process cannot know.
    fn is_alive(&self) -> Option<bool> {
        if self.process == 0 {
            return Some(false);
        }
        if self.machine == 0 || self.machine != machine() {
            return None;
        }
        let number = i32::try_from(self.process).ok()?;
        // A process that this one may not signal is alive as well.
        if test_kill_process(Pid::from_raw(number)?) == Err(Errno::SRCH) {
            return Some(false);
        }
        let is_it = |status: process::Status| status.began == self.beginning && !status.is_over;
        Some(process::status(number).is_none_or(is_it))
    }
}

/// Returns what processes must have in common for their ids to be comparable; 0 if the system does
/// not tell.
fn machine() -> u64 {
    let boot = process::boot();
    match fs::metadata("/proc/self/ns/pid") {
        Ok(space) if !boot.is_empty() => xxh3_64(format!("{boot} {}", space.ino()).as_bytes()),
        _ => 0,
    }
}

fn options() -> fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path) -> Frames {
        let path = folder.join("rank-0.samite");
        let file = options().create(true).truncate(false).open(&path);
        Frames::new(file.unwrap(), &path)
    }

    /// The table at the top of this file: both signs together show whether a writer is alive.
    #[test]
    fn lock_and_mark_say_who_writes() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, reader) = (file(folder.path()), file(folder.path()));
        writer.put(0, &[0; ALIGN as usize]).unwrap();
        let own = Mark::own(true);
        let later = |mark: Mark| Mark {
            beginning: mark.beginning + 1,
            ..mark
        };
        let elsewhere = |mark: Mark| Mark {
            machine: mark.machine + 1,
            ..mark
        };
        let without = Mark::own(false);
        // The bytes are no mark; with the lock free, and held.
        for (mark, free, held) in [
            (None, false, true),
            (Some(Mark::NOBODY), false, false),
            (Some(own), false, true),
            (Some(without), true, true),
            (Some(later(own)), false, false),
            (Some(later(without)), false, false),
            (Some(elsewhere(own)), false, true),
            (Some(elsewhere(without)), false, true),
        ] {
            let bytes = mark.map_or([7; 32], |mark| mark.bytes());
            writer.put(Mark::AT, &bytes).unwrap();
            assert_eq!(is_written(&reader).unwrap(), Some(free), "{mark:?}, free");
            assert!(try_lock(&writer).unwrap());
            assert_eq!(is_written(&reader).unwrap(), Some(held), "{mark:?}, held");
            flock(&writer.file, FlockOperation::Unlock).unwrap();
        }
    }
}
