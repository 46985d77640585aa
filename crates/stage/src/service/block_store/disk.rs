//! The spilled buffers of a block store: ranges of one file. A file for each buffer would need a
//! descriptor for each.

use super::io::{Done, Io, Job, JobId};
use range_alloc::RangeAllocator;
use samite_fabric::Bell;
use samite_mem::lease::Readable;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Ranges begin and end at pages, so that a freed range can be returned to the file system
/// entirely.
const PAGE: u64 = 4096;

/// Larger than any file: the block store's budget is exhausted first.
const END: u64 = 1 << 60;

/// Maximum bytes of reads that are queued, or done and not taken, before no further read begins.
/// Writes take no memory beyond the buffer's.
const QUEUED: u64 = 32 << 20;

/// The bytes that a job takes besides its data.
const EACH: u64 = 256;

#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    /// Rung when a job is done.
    bell: Bell,
    free: RangeAllocator<u64>,
    /// Started with the first job.
    io: Option<Io>,
    /// The jobs whose result was not taken, with the bytes that each takes.
    pending: BTreeMap<JobId, u64>,
    /// Their sum.
    queued: u64,
    last: JobId,
}

/// The place of a buffer in the file. Returned by [`Disk::free`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extent {
    range: Range<u64>,
    bytes: u64,
}

impl Extent {
    /// Returns true if a buffer of which `written` bytes are written is complete.
    pub(super) fn is_whole(&self, written: u64) -> bool {
        written == self.bytes
    }
}

impl Disk {
    pub(super) fn new(folder: PathBuf, bell: Bell) -> Disk {
        Disk {
            folder,
            bell,
            free: RangeAllocator::new(0..END),
            io: None,
            pending: BTreeMap::new(),
            queued: 0,
            last: 0,
        }
    }

    /// Finds a place for `bytes` bytes.
    pub(super) fn take(&mut self, bytes: u64) -> io::Result<Extent> {
        let length = bytes.max(1).checked_next_multiple_of(PAGE);
        let range = length.and_then(|length| self.free.allocate_range(length).ok());
        let range = range.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(Extent { range, bytes })
    }

    /// Returns true if a read of `bytes` bytes can begin.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.queued.saturating_add(bytes) <= QUEUED
    }

    /// Starts to write a part of a buffer.
    pub(super) fn write(
        &mut self,
        place: &Extent,
        part: Range<u64>,
        from: Readable,
    ) -> io::Result<JobId> {
        let at = place.range.start + part.start;
        self.begin(0, Job::Write { at, from, part })
    }

    /// Starts to read a part of a buffer.
    ///
    /// # Errors
    /// The part is not inside the buffer.
    pub(super) fn read(&mut self, place: &Extent, offset: u64, len: u64) -> io::Result<JobId> {
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= place.bytes);
        if !inside {
            let of = place.bytes;
            return Err(io::Error::other(format!(
                "bytes {offset}+{len} lie outside of a buffer of {of}"
            )));
        }
        let at = place.range.start + offset;
        self.begin(len, Job::Read { at, len })
    }

    /// Frees a place, and returns its blocks to the file system.
    pub(super) fn free(&mut self, place: Extent) {
        self.free.free_range(place.range.clone());
        if self.io.is_none() {
            return;
        }
        let job = match self.free.is_empty() {
            true => Job::FreeAll,
            false => Job::Free(place.range),
        };
        if let Err(error) = self.begin(0, job) {
            tracing::debug!(%error, "the file of what is spilled keeps its blocks");
        }
    }

    /// Queues a job for the thread.
    fn begin(&mut self, bytes: u64, job: Job) -> io::Result<JobId> {
        let io = match self.io.take() {
            Some(io) => io,
            None => {
                let bell = self.bell.clone();
                Io::start(self.folder.clone(), move || bell.nudge())?
            }
        };
        self.last += 1;
        let is_taken = io.push(self.last, job);
        self.io = Some(io);
        if !is_taken {
            return Err(ended());
        }
        self.pending.insert(self.last, bytes + EACH);
        self.queued += bytes + EACH;
        Ok(self.last)
    }

    /// Returns true if a result can be taken.
    pub(super) fn has_news(&self) -> bool {
        !self.pending.is_empty() && self.io.as_ref().is_some_and(Io::has_news)
    }

    /// Takes the next result. If the thread has ended, the jobs that it has not done have failed.
    pub(super) fn done(&mut self) -> Option<(JobId, Done)> {
        if self.pending.is_empty() {
            return None;
        }
        let io = self.io.as_ref()?;
        // Checked first, so that results from before the thread ended are still taken.
        let has_ended = io.has_ended();
        let (id, done) = match io.take() {
            Some(result) => result,
            None if has_ended => (*self.pending.first_key_value()?.0, Err(ended())),
            None => return None,
        };
        self.queued -= self.pending.remove(&id).unwrap_or_default();
        Some((id, done))
    }

    /// Blocks the thread until the sender sends, or is dropped. Returns when it is blocked.
    #[cfg(test)]
    pub(super) fn stall(&mut self) -> std::sync::mpsc::SyncSender<()> {
        let (go_on, until) = std::sync::mpsc::sync_channel(0);
        self.begin(0, Job::Stall(until)).expect("a thread");
        go_on.send(()).expect("it is blocked");
        go_on
    }

    /// Returns true if there is a job whose result was not taken.
    #[cfg(test)]
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns true if the thread has ended.
    #[cfg(test)]
    pub(super) fn is_dead(&self) -> bool {
        self.io.as_ref().is_some_and(Io::has_ended)
    }

    /// Ends the thread.
    #[cfg(test)]
    pub(super) fn kill(&mut self) {
        self.begin(0, Job::Panic).expect("a thread");
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread of the disk has ended, which is a defect of Samite")
}
