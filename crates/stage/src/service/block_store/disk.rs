//! What a block store has spilled: ranges of one file. A file for each buffer would be a descriptor
//! for each.

use super::io::{Done, Io, Job, JobId};
use range_alloc::RangeAllocator;
use samite_fabric::Bell;
use samite_mem::lease::Readable;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Ranges begin and end at pages, so that all of a freed one can be given back to the file system.
const PAGE: u64 = 4096;

/// More than any file has: the block store's budget is what ends first.
const END: u64 = 1 << 60;

/// So many bytes may be asked of the thread, or have been read and not been taken, before no other
/// read begins. What is written takes no memory beyond the buffer's.
const QUEUED: u64 = 32 << 20;

/// What a job takes beside its bytes.
const EACH: u64 = 256;

#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    /// Rung when a job is done.
    bell: Bell,
    free: RangeAllocator<u64>,
    /// Started with the first job.
    io: Option<Io>,
    /// The jobs of which the result was not taken, with the bytes that it takes.
    pending: BTreeMap<JobId, u64>,
    /// Their sum.
    queued: u64,
    last: JobId,
}

/// Where the bytes of a buffer are in the file. Given back by [`Disk::free`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extent {
    range: Range<u64>,
    bytes: u64,
}

impl Extent {
    /// Whether a buffer of which so many bytes are written is there.
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

    /// Finds a place for so many bytes.
    pub(super) fn take(&mut self, bytes: u64) -> io::Result<Extent> {
        let length = bytes.max(1).checked_next_multiple_of(PAGE);
        let range = length.and_then(|length| self.free.allocate_range(length).ok());
        let range = range.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(Extent { range, bytes })
    }

    /// Whether a read of so many bytes can begin.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.queued.saturating_add(bytes) <= QUEUED
    }

    /// Begins to write a part of a buffer.
    pub(super) fn write(
        &mut self,
        place: &Extent,
        part: Range<u64>,
        from: Readable,
    ) -> io::Result<JobId> {
        let at = place.range.start + part.start;
        self.begin(0, Job::Write { at, from, part })
    }

    /// Begins to read a part of a buffer.
    ///
    /// # Errors
    /// A part that does not lie inside.
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

    /// Gives a place back, and its blocks to the file system.
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

    /// Hands a job to the thread.
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

    /// Whether a result can be taken.
    pub(super) fn has_news(&self) -> bool {
        !self.pending.is_empty() && self.io.as_ref().is_some_and(Io::has_news)
    }

    /// The next result. When the thread has ended, what it has not done has failed.
    pub(super) fn done(&mut self) -> Option<(JobId, Done)> {
        if self.pending.is_empty() {
            return None;
        }
        let io = self.io.as_ref()?;
        // In this order: what was done before the thread ended is taken.
        let has_ended = io.has_ended();
        let (id, done) = match io.take() {
            Some(result) => result,
            None if has_ended => (*self.pending.first_key_value()?.0, Err(ended())),
            None => return None,
        };
        self.queued -= self.pending.remove(&id).unwrap_or_default();
        Some((id, done))
    }

    /// Keeps the thread from doing anything until the sender says something, or is dropped.
    #[cfg(test)]
    pub(super) fn stall(&mut self) -> std::sync::mpsc::Sender<()> {
        let (go_on, until) = std::sync::mpsc::channel();
        self.begin(0, Job::Stall(until)).expect("a thread");
        go_on
    }

    /// Whether there is a job of which the result was not taken.
    #[cfg(test)]
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the thread has ended.
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
