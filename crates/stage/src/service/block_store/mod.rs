//! Keeps the buffers of steps: memory that outlives its writer.
//!
//! A buffer is a segment of the block store's process. It is lent to its writer. A writer that maps
//! it has it as `&mut [u8]`; any other asks for it to be opened, and puts by messages. When the
//! step is committed, the buffer becomes read-only, and readers on the node get `&[u8]`. The memory
//! of freed buffers is reused for buffers of the same length, under a new generation: its pages are
//! allocated, and warm. Memory that is not reused within a few seconds is returned to the machine,
//! and so is all idle memory when memory or segment numbers run out. Memory that a process had when
//! it died becomes free when all others have seen its death; memory that was freed while in use
//! becomes free when its user releases it. Both count as [`Usage::used`] until then, and a buffer
//! without room waits for them: no more than [`Capacity::memory`] is used.
//!
//! Long operations are done part by part ([`BlockStore::work`]), so that a coordinator in the same
//! process can answer meanwhile. A separate thread reads and writes the disk. After each part but
//! the last, the coordinator is told ([`Report::Working`]), so it knows that a buffer that others
//! wait for makes progress.
//!
//! # Files
//! `mod` (orders and answers) · `growing` (memory being allocated) · `freed` (memory of freed
//! buffers) · `spill` (buffers on their way to disk and back) · `disk` (places in the file, and
//! jobs for its thread) · `io` (the thread)

mod disk;
mod freed;
mod growing;
mod io;
mod spill;

use self::disk::{Disk, Extent};
use self::freed::Freed;
use self::growing::Unborn;
use self::spill::{Load, Loads, Spilling, not_spilled};
use super::envelope::{BlockStoreAnswer, BlockStoreRequest};
use crate::protocol::{self, BufferId, Order, Peer, Report, Request};
use samite_fabric::{Fabric, Phased, SegmentKey};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

/// Maximum bytes of a spilled buffer that one message may request.
pub(crate) const LOAD: u64 = 4 << 20;

/// What a block store may use.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Bytes of shared memory.
    pub memory: u64,
    /// Bytes of disk for spilled buffers.
    pub disk: u64,
    /// The folder of the spill file.
    pub folder: PathBuf,
}

impl Capacity {
    /// Bytes of disk that streams may spill to at an agent.
    pub const SPILL: u64 = 8 << 30;

    /// Returns the capacity of the agent of a domain with this budget of shared memory: three
    /// quarters of it, and a part of the disk.
    pub fn of_agent(budget: u64) -> Capacity {
        Capacity {
            disk: Capacity::SPILL,
            ..Capacity::of_memory(Capacity::part_of(budget))
        }
    }

    /// Returns the bytes of a domain's budget that blocks of streams may take. The rest is for
    /// other shared memory of the units.
    pub fn part_of(budget: u64) -> u64 {
        budget / 4 * 3
    }

    /// Returns a capacity without disk.
    pub fn of_memory(bytes: u64) -> Capacity {
        Capacity {
            memory: bytes,
            disk: 0,
            folder: std::env::temp_dir(),
        }
    }
}

/// The usage of a block store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of shared memory that it may use.
    pub memory: u64,
    /// Bytes of shared memory that it uses.
    pub used: u64,
    /// Bytes of these that no buffer uses now: ready for the next one, still being read, or had by
    /// a process whose death not all others have seen.
    pub free: u64,
    /// Number of buffers.
    pub buffers: u64,
    /// Number of these that are on disk.
    pub files: u64,
}

#[derive(Debug)]
enum BufferState {
    /// Its writer has borrowed it, or may.
    WithWriter(Phased, Peer),
    /// Its writer puts by messages.
    Open(Phased),
    Reading(Phased),
    OnDisk(Extent),
}

pub(super) struct BlockStore {
    fabric: Fabric,
    capacity: Capacity,
    buffers: HashMap<BufferId, BufferState>,
    /// Buffers to grow. The first is growing.
    growing: VecDeque<Unborn>,
    /// Set if the first of them cannot begin, because freed memory that is still in use leaves no
    /// room.
    is_full: bool,
    /// Buffers to spill. The first is being written.
    spilling: VecDeque<Spilling>,
    /// Committed buffers that their writers still have.
    unsealed: Vec<BufferId>,
    disk: Disk,
    loads: Loads,
    /// Memory of freed buffers that may still be read, or that is ready for reuse.
    free: VecDeque<Freed>,
    /// Bytes in memory of buffers, of growing ones, and of `free`.
    used: u64,
}

impl BlockStore {
    pub(super) fn new(fabric: &Fabric, capacity: Capacity) -> BlockStore {
        BlockStore {
            fabric: fabric.clone(),
            disk: Disk::new(capacity.folder.clone(), fabric.bell(fabric.me())),
            loads: Loads::default(),
            capacity,
            buffers: HashMap::new(),
            growing: VecDeque::new(),
            is_full: false,
            spilling: VecDeque::new(),
            unsealed: Vec::new(),
            free: VecDeque::new(),
            used: 0,
        }
    }

    /// Returns the first message to the coordinator.
    pub(super) fn introduction(&self) -> Request {
        let numbers = self.fabric.free_segments();
        let numbers: u64 = numbers
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum();
        Request::Keep {
            memory: self.capacity.memory,
            // Some are left for other segments of this process, and for freed memory that is still
            // being read.
            buffers: numbers - numbers / 8,
            disk: self.capacity.disk,
        }
    }

    /// Carries out an order, or begins to, and returns the report.
    pub(super) fn obey(&mut self, order: Order) -> Option<Report> {
        match order {
            Order::Allocate {
                buffer,
                bytes,
                writer,
            } => self.allocate(buffer, bytes, writer),
            Order::Seal { buffer } => self.seal(buffer),
            Order::Spill { buffer } => match self.begin_spill(buffer) {
                Ok(()) => self.spill(),
                Err(error) => Some(not_spilled(buffer, &error)),
            },
            Order::Free { buffer } => {
                self.free_buffer(buffer);
                None
            }
        }
    }

    /// Frees all buffers.
    pub(super) fn free_all(&mut self) {
        let growing = self.growing.iter().map(|unborn| unborn.buffer);
        let all: Vec<BufferId> = self.buffers.keys().copied().chain(growing).collect();
        all.into_iter().for_each(|buffer| self.free_buffer(buffer));
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        self.stop_growing(buffer);
        self.stop_spilling(buffer);
        self.unsealed.retain(|unsealed| *unsealed != buffer);
        match self.buffers.remove(&buffer) {
            Some(BufferState::WithWriter(phased, writer)) => self.set_free(phased, Some(writer)),
            Some(BufferState::Open(phased) | BufferState::Reading(phased)) => {
                self.set_free(phased, None)
            }
            Some(BufferState::OnDisk(place)) => self.disk.free(place),
            None => {}
        }
    }

    /// Returns true if [`BlockStore::work`] has something to do.
    pub(super) fn is_busy(&self) -> bool {
        !self.growing.is_empty() && !self.is_full || self.has_news()
    }

    /// Returns true if the disk has results.
    pub(super) fn has_news(&self) -> bool {
        self.disk.has_news()
    }

    /// Returns true if it waits for other processes: writers to release what they have committed,
    /// or users of freed memory.
    pub(super) fn is_waiting(&self) -> bool {
        !self.unsealed.is_empty() || !self.growing.is_empty() && self.is_full
    }

    /// Does the next part of long operations and returns the reports.
    pub(super) fn work(&mut self) -> Vec<Report> {
        let mut reports = self.take_done();
        reports.extend(self.grow());
        // After each failure, the next one is tried.
        reports.extend(std::iter::from_fn(|| self.spill()));
        reports.extend(std::iter::from_fn(|| self.tell_full()));
        for buffer in std::mem::take(&mut self.unsealed) {
            reports.extend(self.seal(buffer));
        }
        reports
    }

    /// Makes a buffer read-only. Reports nothing for a buffer that is read already, or that its
    /// writer still has; in the latter case it is tried again. A buffer that was lost while its
    /// writer opened it counts as sealed: its stream must not wait for it, and its readers get an
    /// error.
    fn seal(&mut self, buffer: BufferId) -> Option<Report> {
        let Some(held) = self.buffers.get_mut(&buffer) else {
            return Some(Report::Sealed { buffer });
        };
        let (BufferState::WithWriter(phased, _) | BufferState::Open(phased)) = held else {
            return None;
        };
        phased.shut();
        if let Err(error) = phased.turn(true) {
            tracing::debug!(%error, "a buffer was committed that its writer still has");
            self.unsealed.push(buffer);
            return None;
        }
        if let Some(BufferState::WithWriter(phased, _) | BufferState::Open(phased)) =
            self.buffers.remove(&buffer)
        {
            self.buffers.insert(buffer, BufferState::Reading(phased));
        }
        Some(Report::Sealed { buffer })
    }

    /// Answers the request `id` of a process that does not map the memory. Reads from disk are
    /// answered [later](BlockStore::answers).
    pub(super) fn answer(
        &mut self,
        from: Peer,
        id: u64,
        ask: BlockStoreRequest,
    ) -> Option<BlockStoreAnswer> {
        match ask {
            BlockStoreRequest::Open(buffer) => Some(self.open(from, buffer).map(|()| Vec::new())),
            BlockStoreRequest::Load(buffer, offset, len) => {
                let load = Load {
                    from,
                    id,
                    buffer,
                    offset,
                    len,
                };
                Some(Err(self.load(load).err()?))
            }
            BlockStoreRequest::Figures => Some(Ok(protocol::encode(&self.figures()))),
        }
    }

    pub(super) fn figures(&self) -> Usage {
        let on_disk = |held: &&BufferState| matches!(held, BufferState::OnDisk(_));
        let files = self.buffers.values().filter(on_disk).count();
        Usage {
            memory: self.capacity.memory,
            used: self.used,
            free: self.free_bytes(),
            buffers: self.buffers.len() as u64,
            files: files as u64,
        }
    }

    fn open(&mut self, from: Peer, buffer: BufferId) -> Result<(), String> {
        let is_its_own =
            |held: &&mut BufferState| matches!(held, BufferState::WithWriter(_, to) if *to == from);
        if self.buffers.get_mut(&buffer).filter(is_its_own).is_none() {
            return Err("the buffer is not lent to this process".into());
        }
        let Some(BufferState::WithWriter(phased, writer)) = self.buffers.remove(&buffer) else {
            return Ok(());
        };
        let bytes = phased.key().bytes;
        phased.shut();
        let opened = match phased.own() {
            Ok(owned) => owned.give(false),
            Err(refused) => {
                let (phased, error) = *refused;
                self.buffers
                    .insert(buffer, BufferState::WithWriter(phased, writer));
                return Err(error.to_string());
            }
        };
        let opened = opened.map_err(|error| {
            self.used -= bytes;
            error.to_string()
        })?;
        self.buffers.insert(buffer, BufferState::Open(opened));
        Ok(())
    }
}

/// Returns the fabric's key of a buffer at a block store.
pub(crate) fn segment_key(at: &crate::protocol::BufferAt) -> SegmentKey {
    SegmentKey {
        peer: at.block_store.id(),
        segment: at.handle.segment,
        incarnation: at.handle.incarnation,
        generation: at.handle.generation,
        bytes: at.bytes,
    }
}

#[cfg(test)]
pub(super) mod tests;
