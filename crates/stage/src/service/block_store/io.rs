//! The thread that reads and writes the file of spilled buffers, so that a slow disk delays only
//! the processes that wait for its data.
//!
//! Jobs are done one after another, in the order in which they were queued: reads, the freeing and
//! later writes of a reused range keep their order. The thread starts with the first job. When the
//! store ends, it finishes the current job and ends.

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;
use samite_mem::lease::Readable;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// A job of the thread on the file.
#[derive(Debug)]
pub(super) enum Job {
    /// Writes a part of a buffer, which does not change while this lease of it is held.
    Write {
        at: u64,
        from: Readable,
        part: Range<u64>,
    },
    /// Reads `len` bytes.
    Read { at: u64, len: u64 },
    /// Returns the blocks of a range to the file system.
    Free(Range<u64>),
    /// Truncates the file, which has no buffers any more.
    FreeAll,
    /// For tests: blocks the disk until told to continue, or until the test times out.
    #[cfg(test)]
    Stall(Receiver<()>),
    /// For tests: ends the thread.
    #[cfg(test)]
    Panic,
}

/// The number of a job.
pub(super) type JobId = u64;

/// The bytes that were read; empty for other jobs.
pub(super) type Done = io::Result<Vec<u8>>;

/// The state that thread and store share.
#[derive(Debug, Default)]
struct Results {
    done: Mutex<VecDeque<(JobId, Done)>>,
    /// The store ends: queued jobs are not done.
    is_over: AtomicBool,
    /// The thread has ended.
    has_ended: AtomicBool,
}

impl Results {
    fn done(&self) -> MutexGuard<'_, VecDeque<(JobId, Done)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread, as the store sees it.
#[derive(Debug)]
pub(super) struct Io {
    jobs: Sender<(JobId, Job)>,
    results: Arc<Results>,
}

impl Io {
    /// Starts the thread. It calls `wake` when the result of a job can be taken, and when it ends.
    pub(super) fn start(folder: PathBuf, wake: impl Fn() + Send + 'static) -> io::Result<Io> {
        let results = Arc::new(Results::default());
        let (jobs, queue) = channel();
        let theirs = Ending(results.clone(), wake);
        let thread = Builder::new().name("block store".to_owned());
        thread.spawn(move || serve(folder, &queue, &theirs))?;
        Ok(Io { jobs, results })
    }

    /// Queues a job. Returns `false` if the thread has ended.
    pub(super) fn push(&self, id: JobId, job: Job) -> bool {
        self.jobs.send((id, job)).is_ok()
    }

    /// Returns true if [`Io::take`] has a result, or the thread has ended.
    pub(super) fn has_news(&self) -> bool {
        !self.results.done().is_empty() || self.has_ended()
    }

    pub(super) fn take(&self) -> Option<(JobId, Done)> {
        self.results.done().pop_front()
    }

    /// Returns true if the thread has ended, which happens only by a panic. Its earlier results can
    /// be taken by then.
    pub(super) fn has_ended(&self) -> bool {
        // ORDERING: Acquire, with the Release in `Ending::drop`: all results are seen.
        self.results.has_ended.load(Ordering::Acquire)
    }
}

impl Drop for Io {
    /// Makes the thread end after its current job, without waiting: a disk may hang, and a fork has
    /// no such thread.
    fn drop(&mut self) {
        // ORDERING: Relaxed: a hint, which the thread may see late.
        self.results.is_over.store(true, Ordering::Relaxed);
    }
}

/// Tells the store when the thread ends, also by a panic.
struct Ending<W: Fn()>(Arc<Results>, W);

impl<W: Fn()> Drop for Ending<W> {
    fn drop(&mut self) {
        // ORDERING: Release, with the Acquire in `has_ended`.
        self.0.has_ended.store(true, Ordering::Release);
        self.1();
    }
}

fn serve<W: Fn()>(folder: PathBuf, queue: &Receiver<(JobId, Job)>, ending: &Ending<W>) {
    let Ending(results, wake) = ending;
    // Exceeding the file size limit should fail the job. The signal would end the process.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    let mut file = Spilled { folder, file: None };
    for (id, job) in queue {
        // ORDERING: Relaxed: see `Io::drop`.
        if results.is_over.load(Ordering::Relaxed) {
            return;
        }
        // The lease ends before the store gets the result, because the store may free the buffer at
        // once.
        let done = file.carry_out(job);
        results.done().push_back((id, done));
        wake();
    }
}

/// The file, and the folder in which the first write creates it.
struct Spilled {
    folder: PathBuf,
    /// Has no name in any folder, so it disappears with this process.
    file: Option<File>,
}

impl Spilled {
    fn carry_out(&mut self, job: Job) -> Done {
        match job {
            Job::Write { at, from, part } => {
                if self.file.is_none() {
                    self.file = Some(tempfile::tempfile_in(&self.folder)?);
                }
                let all: &[u8] = from.as_slice();
                let part = &all[part.start as usize..part.end as usize];
                self.file()?.write_all_at(part, at).map(|()| Vec::new())
            }
            Job::Read { at, len } => {
                let mut bytes = vec![0; len as usize];
                self.file()?.read_exact_at(&mut bytes, at)?;
                Ok(bytes)
            }
            Job::Free(range) => {
                // A hole returns the blocks, and keeps the offsets of other ranges.
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let (file, length) = (self.file()?, range.end - range.start);
                retry_on_intr(|| fallocate(file, hole, range.start, length))?;
                Ok(Vec::new())
            }
            Job::FreeAll => self.file()?.set_len(0).map(|()| Vec::new()),
            #[cfg(test)]
            Job::Stall(until) => {
                for _ in 0..2 {
                    let _ = until.recv_timeout(std::time::Duration::from_secs(20));
                }
                Ok(Vec::new())
            }
            #[cfg(test)]
            Job::Panic => panic!("as in a test"),
        }
    }

    fn file(&self) -> io::Result<&File> {
        Ok(self.file.as_ref().ok_or(io::ErrorKind::NotFound)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A sleeping store is woken when a result can be taken, and when the thread has died.
    #[test]
    fn each_result_and_the_end_wake_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let (rung, rings) = channel();
        let io = Io::start(folder.path().to_owned(), move || rung.send(()).unwrap()).unwrap();
        for id in 1..=3 {
            assert!(io.push(id, Job::Read { at: 0, len: 1 }));
            rings.recv_timeout(TIMEOUT).expect("it is woken");
            assert!(io.has_news());
            let (done, result) = io.take().expect("a result");
            assert_eq!((done, result.is_err()), (id, true), "there is no file yet");
        }
        assert!(!io.has_news() && io.push(4, Job::Panic));
        rings.recv_timeout(TIMEOUT).expect("it is woken");
        assert!(io.has_ended() && io.has_news());
    }

    #[test]
    fn a_disk_that_hangs_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (rung, rings) = channel();
        let io = Io::start(folder.path().to_owned(), move || rung.send(()).unwrap()).unwrap();
        let (go_on, until) = sync_channel(0);
        assert!(io.push(1, Job::Stall(until)) && io.push(2, Job::FreeAll));
        go_on.send(()).expect("it hangs");
        drop(io);
        go_on.send(()).expect("it still hangs");
        let rung: Vec<()> = std::iter::from_fn(|| rings.recv_timeout(TIMEOUT).ok()).collect();
        assert_eq!(
            rung.len(),
            2,
            "the first job and the end: the second is not done"
        );
    }
}
