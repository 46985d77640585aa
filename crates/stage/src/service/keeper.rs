//! Keeps the buffers of steps: memory that outlives who wrote it.
//!
//! A buffer is a gated segment of the keeper's process. It is lent to its writer, which has it as `&mut [u8]` where it
//! maps it; a writer that does not asks for it to be opened, and puts by messages. When the step is committed the gate
//! turns to reading, and readers on the node have `&[u8]`. The memory of freed buffers is used again for buffers of
//! the same length, under a new generation: its pages are there, and warm. What nobody had a use for in [`IDLE`] is given
//! back to the machine.

use super::letter::{KeeperAnswer, KeeperAsk};
use crate::protocol::{BufferId, Handle, Order, Report, Request};
use samite_fabric::{Fabric, Gated, Owned, SegmentKey};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long freed memory waits for a buffer of its length: longer than most steps take to compute, so that its pages are
/// not given back and taken again between them.
const IDLE: Duration = Duration::from_secs(5);

/// What a keeper may use.
#[derive(Clone, Debug)]
pub struct Room {
    /// Bytes of shared memory.
    pub memory: u64,
    /// Bytes of disk, for what is spilled.
    pub disk: u64,
    /// Where the disk is.
    pub folder: PathBuf,
}

impl Room {
    /// Memory only.
    pub fn of_memory(bytes: u64) -> Room {
        Room {
            memory: bytes,
            disk: 0,
            folder: std::env::temp_dir(),
        }
    }
}

#[derive(Debug)]
enum Kept<'f> {
    /// Its writer has it, or may borrow it.
    Lent(Gated<'f>),
    /// Its writer puts by messages.
    Open(Gated<'f>),
    Reading(Gated<'f>),
    /// Without a name in any folder: it goes with this process.
    OnDisk(File),
}

pub(super) struct Keeper<'f> {
    fabric: &'f Fabric,
    room: Room,
    buffers: HashMap<BufferId, Kept<'f>>,
    /// Memory of freed buffers that somebody may still read, or that is ready to be used again; and since when.
    free: VecDeque<(Gated<'f>, Instant)>,
    /// Bytes in memory, of buffers and of `free`.
    used: u64,
}

impl<'f> Keeper<'f> {
    pub(super) fn new(fabric: &'f Fabric, room: Room) -> Keeper<'f> {
        Keeper {
            fabric,
            room,
            buffers: HashMap::new(),
            free: VecDeque::new(),
            used: 0,
        }
    }

    /// What it says to the steward first.
    pub(super) fn introduction(&self) -> Request {
        Request::Keep {
            memory: self.room.memory,
            disk: self.room.disk,
        }
    }

    /// Carries an order out; what it reports.
    pub(super) fn obey(&mut self, order: Order) -> Option<Report> {
        match order {
            Order::Allocate { buffer, bytes, .. } => Some(match self.allocate(buffer, bytes) {
                Ok(handle) => Report::Held { buffer, handle },
                Err(error) => {
                    tracing::warn!(bytes, %error, "no memory for a buffer");
                    Report::Refused { buffer }
                }
            }),
            Order::Seal { buffer } => self.seal(buffer).then_some(Report::Sealed { buffer }),
            Order::Spill { buffer } => Some(match self.spill(buffer) {
                Ok(()) => Report::Spilled { buffer },
                Err(error) => {
                    tracing::warn!(%error, "a buffer was not spilled");
                    Report::SpillFailed { buffer }
                }
            }),
            Order::Free { buffer } => {
                match self.buffers.remove(&buffer) {
                    Some(Kept::Lent(gated) | Kept::Open(gated) | Kept::Reading(gated)) => {
                        self.free.push_back((gated, Instant::now()));
                    }
                    Some(Kept::OnDisk(_)) | None => {}
                }
                None
            }
        }
    }

    fn allocate(&mut self, buffer: BufferId, bytes: u64) -> samite_fabric::Result<Handle> {
        let mut gated = match self.reuse(bytes) {
            Some(gated) => gated,
            None => {
                self.make_room(bytes);
                let number = free_number(self.fabric).ok_or(samite_fabric::Error::Memory(
                    "no number of a segment is free".into(),
                ))?;
                let gated = self.fabric.allocate_gated(number, bytes)?;
                self.used += bytes;
                gated
            }
        };
        gated.lend()?;
        let key = gated.key();
        self.buffers.insert(buffer, Kept::Lent(gated));
        Ok(Handle {
            segment: key.segment,
            incarnation: key.incarnation,
            generation: key.generation,
        })
    }

    /// Freed memory of the same length that nobody reads any more.
    fn reuse(&mut self, bytes: u64) -> Option<Gated<'f>> {
        for _ in 0..self.free.len() {
            let (gated, since) = self.free.pop_front()?;
            if gated.key().bytes != bytes {
                self.free.push_back((gated, since));
                continue;
            }
            gated.shut();
            match gated.own().map(Owned::renew) {
                Ok(Ok(gated)) => return Some(gated),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "freed memory cannot be used again");
                    self.used -= bytes;
                }
                // Somebody is still inside.
                Err(refused) => self.free.push_back((refused.0, since)),
            }
        }
        None
    }

    /// Gives freed memory back until so many bytes more fit.
    fn make_room(&mut self, bytes: u64) {
        while self.used.saturating_add(bytes) > self.room.memory
            && let Some((gated, _)) = self.free.pop_front()
        {
            self.used -= gated.key().bytes;
        }
    }

    /// Gives back what nobody had a use for.
    pub(super) fn tidy(&mut self) {
        let used = &mut self.used;
        self.free.retain(|(gated, since)| {
            let is_kept = since.elapsed() < IDLE;
            if !is_kept {
                *used -= gated.key().bytes;
            }
            is_kept
        });
    }

    /// From writing to reading; `false` for a buffer that is not written.
    fn seal(&mut self, buffer: BufferId) -> bool {
        let Some(Kept::Lent(mut gated) | Kept::Open(mut gated)) = self.buffers.remove(&buffer)
        else {
            return false;
        };
        gated.shut();
        if let Err(error) = gated.turn(true) {
            // Its writer commits what it still has: its own fault, and its step's loss.
            tracing::warn!(%error, "a buffer was committed that its writer still has");
            self.buffers.insert(buffer, Kept::Lent(gated));
            return false;
        }
        self.buffers.insert(buffer, Kept::Reading(gated));
        true
    }

    fn spill(&mut self, buffer: BufferId) -> std::io::Result<()> {
        let Some(Kept::Reading(gated)) = self.buffers.get(&buffer) else {
            return Err(std::io::Error::other(
                "the buffer is not here to be spilled",
            ));
        };
        let remote = self
            .fabric
            .attach(gated.key())
            .map_err(std::io::Error::other)?;
        let readable = remote
            .readable()
            .ok_or(std::io::Error::other("the buffer is not readable"))?;
        let file = tempfile::tempfile_in(&self.room.folder)?;
        file.write_all_at(readable.as_slice(), 0)?;
        drop(remote);
        if let Some(Kept::Reading(gated)) = self.buffers.insert(buffer, Kept::OnDisk(file)) {
            self.free.push_back((gated, Instant::now()));
        }
        Ok(())
    }

    /// Answers one who does not map the memory.
    pub(super) fn answer(&mut self, ask: KeeperAsk) -> KeeperAnswer {
        let (ticket, result) = match ask {
            KeeperAsk::Open(ticket, buffer) => (ticket, self.open(buffer).map(|()| Vec::new())),
            KeeperAsk::Load(ticket, buffer, offset, len) => {
                (ticket, self.load(buffer, offset, len))
            }
        };
        KeeperAnswer { ticket, result }
    }

    fn open(&mut self, buffer: BufferId) -> Result<(), String> {
        let Some(Kept::Lent(gated)) = self.buffers.remove(&buffer) else {
            return Err("the buffer is not lent to anybody".into());
        };
        gated.shut();
        let opened = match gated.own() {
            Ok(owned) => owned.give(false).map_err(|error| error.to_string())?,
            Err(refused) => {
                let (gated, error) = *refused;
                self.buffers.insert(buffer, Kept::Lent(gated));
                return Err(error.to_string());
            }
        };
        self.buffers.insert(buffer, Kept::Open(opened));
        Ok(())
    }

    fn load(&self, buffer: BufferId, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        let Some(Kept::OnDisk(file)) = self.buffers.get(&buffer) else {
            return Err("the buffer is not on this keeper's disk".into());
        };
        let length = file.metadata().map_err(|error| error.to_string())?.len();
        if offset.checked_add(len).is_none_or(|end| end > length) {
            return Err(format!(
                "bytes {offset}+{len} lie outside of a buffer of {length}"
            ));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, offset)
            .map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

fn free_number(fabric: &Fabric) -> Option<u32> {
    let words = fabric.free_segments();
    let word = words.iter().position(|word| *word != 0)?;
    Some(word as u32 * 64 + words[word].trailing_zeros())
}

/// What names a buffer of `bytes` at a keeper to the fabric.
pub(crate) fn segment_key(at: &crate::protocol::BufferAt) -> SegmentKey {
    SegmentKey {
        peer: samite_fabric::PeerId(at.keeper.0),
        segment: at.handle.segment,
        incarnation: at.handle.incarnation,
        generation: at.handle.generation,
        bytes: at.bytes,
    }
}
