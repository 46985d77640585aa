//! Spills buffers to disk part by part, and returns them in messages. This file issues the jobs of
//! the [`disk`](super::disk) thread and handles their results.

use super::disk::Extent;
use super::io::{Done, JobId};
use super::{BlockStore, BufferState, LOAD};
use crate::protocol::{BufferId, Peer, Report};
use crate::service::envelope::BlockStoreAnswer;
use samite_mem::lease::Readable;
use std::collections::{HashMap, VecDeque};

/// Bytes that are written before other jobs of the disk are considered.
pub(super) const PART: u64 = 16 << 20;

/// Maximum memory for reads that wait until the disk has room for their data.
const WAITING: usize = 1 << 20;

/// A buffer that is being spilled. Until it is on disk it is read from memory.
#[derive(Debug)]
pub(super) struct Spilling {
    pub(super) buffer: BufferId,
    place: Extent,
    done: u64,
    /// The part that is being written, and its end.
    writing: Option<(JobId, u64)>,
}

/// A requested part of a spilled buffer.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) from: Peer,
    /// The id of the request.
    pub(super) id: u64,
    pub(super) buffer: BufferId,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The requested parts that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Loads {
    /// Requests that wait until the disk has room.
    waiting: VecDeque<Load>,
    reading: HashMap<JobId, (Peer, u64)>,
    answers: Vec<(Peer, u64, BlockStoreAnswer)>,
}

impl BlockStore {
    pub(super) fn begin_spill(&mut self, buffer: BufferId) -> std::io::Result<()> {
        let begun = self.spilling.iter().any(|one| one.buffer == buffer);
        let Some(BufferState::Reading(phased)) = self.buffers.get(&buffer).filter(|_| !begun)
        else {
            return Err(std::io::Error::other(
                "the buffer is not here to be spilled",
            ));
        };
        let place = self.disk.take(phased.key().bytes)?;
        self.spilling.push_back(Spilling {
            buffer,
            place,
            done: 0,
            writing: None,
        });
        Ok(())
    }

    /// Starts to write the next part of the buffer being spilled, if the last one is written.
    /// Returns the report.
    pub(super) fn spill(&mut self) -> Option<Report> {
        let first = self.spilling.front()?;
        if first.writing.is_some() {
            return None;
        }
        let buffer = first.buffer;
        let error = self.write_part().err()?;
        self.stop_spilling(buffer);
        Some(not_spilled(buffer, &error))
    }

    fn write_part(&mut self) -> std::io::Result<()> {
        let gone = || std::io::Error::other("the buffer is not readable");
        let first = self.spilling.front_mut().ok_or_else(gone)?;
        let Some(BufferState::Reading(phased)) = self.buffers.get(&first.buffer) else {
            return Err(gone());
        };
        let remote = self.fabric.attach(phased.key());
        let remote = remote.map_err(std::io::Error::other)?;
        let readable: &Readable = remote.readable().ok_or_else(gone)?;
        let end = readable.len().min(first.done + PART);
        let part = first.done..end;
        let job = self.disk.write(&first.place, part, readable.clone())?;
        first.writing = Some((job, end));
        Ok(())
    }

    /// Handles the result of writing a part, and returns the report.
    fn written(&mut self, result: Done) -> Option<Report> {
        let first = self.spilling.front_mut()?;
        let (buffer, (_, end)) = (first.buffer, first.writing.take()?);
        first.done = end;
        if let Err(error) = result {
            self.stop_spilling(buffer);
            return Some(not_spilled(buffer, &error));
        }
        if !first.place.is_whole(end) {
            let parts = end / PART;
            return Some(Report::Working { buffer, parts });
        }
        let spilled = self.spilling.pop_front()?;
        let on_disk = BufferState::OnDisk(spilled.place);
        if let Some(BufferState::Reading(phased)) = self.buffers.insert(buffer, on_disk) {
            self.set_free(phased, None);
        }
        Some(Report::Spilled { buffer })
    }

    /// Stops spilling a buffer. A part that is being written is finished first, and its place is
    /// freed after it.
    pub(super) fn stop_spilling(&mut self, buffer: BufferId) {
        let at = self.spilling.iter().position(|one| one.buffer == buffer);
        if let Some(stopped) = at.and_then(|at| self.spilling.remove(at)) {
            self.disk.free(stopped.place);
        }
    }

    /// Starts to load a part, which [`BlockStore::answers`] answers. Errors: why it cannot.
    pub(super) fn load(&mut self, load: Load) -> Result<(), String> {
        let len = load.len;
        if len > LOAD {
            return Err(format!("{len} bytes at once: at most {LOAD} are given"));
        }
        let has_room = self.loads.waiting.is_empty() && self.disk.has_room(len);
        if has_room {
            return self.read(&load);
        }
        if self.loads.waiting.len() >= WAITING / size_of::<Load>() {
            return Err("too much is asked of this block store's disk: ask again later".into());
        }
        self.loads.waiting.push_back(load);
        Ok(())
    }

    fn read(&mut self, load: &Load) -> Result<(), String> {
        let Some(BufferState::OnDisk(place)) = self.buffers.get(&load.buffer) else {
            return Err("the buffer is not on this block store's disk".into());
        };
        let job = self.disk.read(place, load.offset, load.len);
        let job = job.map_err(|error| error.to_string())?;
        self.loads.reading.insert(job, (load.from, load.id));
        Ok(())
    }

    /// Takes the results of the disk, starts waiting jobs, and returns the reports.
    pub(super) fn take_done(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        while let Some((job, result)) = self.disk.done() {
            let first = self.spilling.front();
            let writing = first.and_then(|first| first.writing);
            if let Some((from, id)) = self.loads.reading.remove(&job) {
                let result = result.map_err(|error| error.to_string());
                self.loads.answers.push((from, id, result));
            } else if writing.is_some_and(|(writing, _)| writing == job) {
                reports.extend(self.written(result));
            } else if let Err(error) = result {
                tracing::debug!(%error, "the file of what is spilled keeps its blocks");
            }
        }
        while let Some(load) = self.next_load() {
            if let Err(why) = self.read(&load) {
                self.loads.answers.push((load.from, load.id, Err(why)));
            }
        }
        reports
    }

    /// Takes the next waiting part, if the disk has room for it.
    fn next_load(&mut self) -> Option<Load> {
        let waiting = &mut self.loads.waiting;
        let has_room = self.disk.has_room(waiting.front()?.len);
        has_room.then(|| waiting.pop_front()).flatten()
    }

    /// Takes the answers to loads, each with its peer and request.
    pub(in crate::service) fn answers(&mut self) -> Vec<(Peer, u64, BlockStoreAnswer)> {
        std::mem::take(&mut self.loads.answers)
    }

    /// Drops the loads for a peer that is gone.
    pub(in crate::service) fn forget(&mut self, peer: Peer) {
        self.loads.waiting.retain(|load| load.from != peer);
    }
}

pub(super) fn not_spilled(buffer: BufferId, error: &std::io::Error) -> Report {
    tracing::warn!(%error, ?buffer, "a buffer was not spilled");
    Report::SpillFailed { buffer }
}
