//! The thread that reads and writes the file of what is spilled, so that a slow disk delays nobody
//! but those who wait for its bytes.
//!
//! Jobs are done one after another, in the order in which they were queued: a range that is given
//! back and used again is read, freed and written in this order. The thread starts with the first
//! job and ends with the store.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;
use samite_fabric::Bell;
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
use std::thread::{Builder, JoinHandle};

/// What the thread is asked to do with the file.
#[derive(Debug)]
pub(super) enum Job {
    /// Writes a part of a buffer, which nobody changes as long as this has a lease of it.
    Write {
        at: u64,
        from: Readable,
        part: Range<u64>,
    },
    /// Reads so many bytes.
    Read { at: u64, len: u64 },
    /// Gives the blocks of a range back to the file system.
    Free(Range<u64>),
    /// Nothing is in the file any more.
    FreeAll,
    /// For tests: a disk that does not answer until it is told, or until the time of the test is
    /// over.
    #[cfg(test)]
    Stall(Receiver<()>),
    /// For tests: the thread ends.
    #[cfg(test)]
    Panic,
}

/// A number of a job.
pub(super) type JobId = u64;

/// The bytes that were read; none for other jobs.
pub(super) type Done = io::Result<Vec<u8>>;

/// What thread and store share.
#[derive(Debug, Default)]
struct Results {
    done: Mutex<VecDeque<(JobId, Done)>>,
    /// The store ends: what is still in the queue is not done.
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
    jobs: Option<Sender<(JobId, Job)>>,
    results: Arc<Results>,
    thread: Option<JoinHandle<()>>,
}

impl Io {
    /// Starts the thread. It rings `bell` when a job is done.
    pub(super) fn start(folder: PathBuf, bell: Bell) -> io::Result<Io> {
        let results = Arc::new(Results::default());
        let (jobs, queue) = channel();
        let theirs = Ending(results.clone(), bell);
        let thread = Builder::new().name("block store".to_owned());
        let thread = thread.spawn(move || serve(folder, &queue, &theirs))?;
        Ok(Io {
            jobs: Some(jobs),
            results,
            thread: Some(thread),
        })
    }

    /// Queues a job; `false` if the thread has ended.
    pub(super) fn push(&self, id: JobId, job: Job) -> bool {
        let jobs = self.jobs.as_ref();
        jobs.is_some_and(|jobs| jobs.send((id, job)).is_ok())
    }

    /// Whether [`Io::take`] has something, or the thread has ended.
    pub(super) fn has_news(&self) -> bool {
        !self.results.done().is_empty() || self.has_ended()
    }

    pub(super) fn take(&self) -> Option<(JobId, Done)> {
        self.results.done().pop_front()
    }

    /// Whether the thread has ended, which it does by a panic alone. What it had done before can be
    /// taken by then.
    pub(super) fn has_ended(&self) -> bool {
        // ORDERING: Acquire, with the Release in `Ending::drop`: all results are seen.
        self.results.has_ended.load(Ordering::Acquire)
    }
}

impl Drop for Io {
    /// Waits for the job that is being done.
    fn drop(&mut self) {
        // ORDERING: Relaxed: a hint, which the thread may see late.
        self.results.is_over.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::warn!("the thread of the disk had panicked");
        }
    }
}

/// Tells the store when the thread ends, however that is.
struct Ending(Arc<Results>, Bell);

impl Drop for Ending {
    fn drop(&mut self) {
        // ORDERING: Release, with the Acquire in `has_ended`.
        self.0.has_ended.store(true, Ordering::Release);
        self.1.nudge();
    }
}

fn serve(folder: PathBuf, queue: &Receiver<(JobId, Job)>, ending: &Ending) {
    let Ending(results, bell) = ending;
    let mut file = Spilled { folder, file: None };
    for (id, job) in queue {
        // ORDERING: Relaxed: see `Io::drop`.
        if results.is_over.load(Ordering::Relaxed) {
            return;
        }
        // The lease of what is written ends before the store hears of it: it may free the buffer at
        // once.
        let done = file.carry_out(job);
        results.done().push_back((id, done));
        bell.nudge();
    }
}

/// The file, and where it is made with the first write.
struct Spilled {
    folder: PathBuf,
    /// Without a name in any folder: it goes with this process.
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
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let (file, length) = (self.file()?, range.end - range.start);
                retry_on_intr(|| fallocate(file, hole, range.start, length))?;
                Ok(Vec::new())
            }
            Job::FreeAll => self.file()?.set_len(0).map(|()| Vec::new()),
            #[cfg(test)]
            Job::Stall(until) => {
                let _ = until.recv_timeout(std::time::Duration::from_secs(20));
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
