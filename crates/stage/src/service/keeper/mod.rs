//! Keeps the buffers of steps: memory that outlives who wrote it.
//!
//! A buffer is a segment of the keeper's process. It is lent to its writer, which has it as `&mut [u8]` where it
//! maps it; a writer that does not asks for it to be opened, and puts by messages. When the step is committed its mode
//! turns to reading, and readers on the node have `&[u8]`. The memory of freed buffers is used again for buffers of
//! the same length, under a new generation: its pages are there, and warm. What nobody had a use for in [`IDLE`] is given
//! back to the machine, and so is all that is idle when memory or a number of a segment is missing. Memory that a process had
//! when it died is free when all others have seen its death, and what was freed while somebody has it when that one lets go; both
//! count as [`Kept::used`] until then, and a buffer for which they leave no room waits for them: no more than [`Room::memory`] is used.
//!
//! What takes long is done part by part ([`Keeper::work`]), so that a steward in the same process answers meanwhile.

mod disk;
mod spill;

use self::disk::{Disk, Place};
use self::spill::{Spilling, not_spilled};
use super::letter::{KeeperAnswer, KeeperAsk};
use crate::protocol::{self, BufferId, Handle, Lack, Order, Peer, Report, Request};
use samite_fabric::{Fabric, Gated, Growing, Owned, SegmentKey};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long freed memory waits for a buffer of its length: longer than most steps take to compute, so that its pages are
/// not given back and taken again between them.
const IDLE: Duration = Duration::from_secs(5);

/// Most bytes of a spilled buffer that one letter may ask for.
pub(crate) const LOAD: u64 = 4 << 20;

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

/// What a keeper has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Bytes of shared memory that it may have.
    pub memory: u64,
    /// Bytes of shared memory that it has.
    pub used: u64,
    /// Bytes of these that no buffer uses now: ready for the next one, or still being read, or had by a process whose death
    /// not all have seen.
    pub free: u64,
    /// Number of buffers.
    pub buffers: u64,
    /// Number of these that lie on disk.
    pub files: u64,
}

#[derive(Debug)]
enum Held<'f> {
    /// Its writer has it, or may borrow it.
    Lent(Gated<'f>, Peer),
    /// Its writer puts by messages.
    Open(Gated<'f>),
    Reading(Gated<'f>),
    OnDisk(Place),
}

/// A buffer whose memory is not whole yet.
#[derive(Debug)]
struct Unborn<'f> {
    buffer: BufferId,
    bytes: u64,
    writer: Peer,
    /// `None`: it has not begun to grow, and counts as nothing.
    memory: Option<Growing<'f>>,
    /// The steward was told that it waits for memory which is in use.
    told: bool,
}

/// Memory of a freed buffer.
#[derive(Debug)]
struct Freed<'f> {
    gated: Gated<'f>,
    since: Instant,
    /// Whom it was lent to when it was freed.
    lent: Option<Peer>,
}

pub(super) struct Keeper<'f> {
    fabric: &'f Fabric,
    room: Room,
    buffers: HashMap<BufferId, Held<'f>>,
    /// The first of them grows.
    growing: VecDeque<Unborn<'f>>,
    /// The first of them cannot begin: freed memory that somebody still has leaves no room for it.
    is_full: bool,
    /// The first of them is written.
    spilling: VecDeque<Spilling>,
    /// Committed buffers that their writers still have.
    unsealed: Vec<BufferId>,
    disk: Disk,
    /// Memory of freed buffers that somebody may still read, or that is ready to be used again.
    free: VecDeque<Freed<'f>>,
    /// Bytes in memory, of buffers, of those that grow, and of `free`.
    used: u64,
}

impl<'f> Keeper<'f> {
    pub(super) fn new(fabric: &'f Fabric, room: Room) -> Keeper<'f> {
        Keeper {
            fabric,
            disk: Disk::new(room.folder.clone()),
            room,
            buffers: HashMap::new(),
            growing: VecDeque::new(),
            is_full: false,
            spilling: VecDeque::new(),
            unsealed: Vec::new(),
            free: VecDeque::new(),
            used: 0,
        }
    }

    /// What it says to the steward first.
    pub(super) fn introduction(&self) -> Request {
        let numbers = self.fabric.free_segments();
        let numbers: u64 = numbers
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum();
        Request::Keep {
            memory: self.room.memory,
            // Some are left for what else this process has, and for memory of freed buffers that is still being read.
            buffers: numbers - numbers / 8,
            disk: self.room.disk,
        }
    }

    /// Carries an order out, or begins to; what it reports.
    pub(super) fn obey(&mut self, order: Order) -> Option<Report> {
        match order {
            Order::Allocate {
                buffer,
                bytes,
                writer,
            } => self.allocate(buffer, bytes, writer),
            Order::Seal { buffer } => self.seal(buffer),
            Order::Spill { buffer } => match self.begin_spill(buffer) {
                Ok(()) => None,
                Err(error) => Some(not_spilled(buffer, &error)),
            },
            Order::Free { buffer } => {
                self.free_buffer(buffer);
                None
            }
        }
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        let used = &mut self.used;
        self.growing.retain(|growing| {
            let is_wanted = growing.buffer != buffer;
            if !is_wanted && growing.memory.is_some() {
                *used -= growing.bytes;
            }
            is_wanted
        });
        self.stop_spilling(buffer);
        self.unsealed.retain(|unsealed| *unsealed != buffer);
        match self.buffers.remove(&buffer) {
            Some(Held::Lent(gated, writer)) => self.set_free(gated, Some(writer)),
            Some(Held::Open(gated) | Held::Reading(gated)) => self.set_free(gated, None),
            Some(Held::OnDisk(place)) => self.disk.free(place),
            None => {}
        }
    }

    fn set_free(&mut self, gated: Gated<'f>, lent: Option<Peer>) {
        let since = Instant::now();
        self.free.push_back(Freed { gated, since, lent });
    }

    /// `None`: its memory is still to be found, by [`Keeper::grow`].
    fn allocate(&mut self, buffer: BufferId, bytes: u64, writer: Peer) -> Option<Report> {
        if let Some(gated) = self.reuse(bytes) {
            let lent = self.lend(buffer, gated, writer);
            return Some(self.held(buffer, bytes, lent));
        }
        self.growing.push_back(Unborn {
            buffer,
            bytes,
            writer,
            memory: None,
            told: false,
        });
        match self.growing.len() {
            1 => self.grow(),
            _ => self.tell_full(),
        }
    }

    /// Of the next buffer that waits for memory which is in use: that it does, once.
    fn tell_full(&mut self) -> Option<Report> {
        let had_by = self.free.iter().find_map(|freed| freed.lent);
        let mut waiting = self.growing.iter_mut().filter(|_| self.is_full);
        let untold = waiting.find(|unborn| !unborn.told)?;
        untold.told = true;
        let buffer = untold.buffer;
        Some(Report::Full { buffer, had_by })
    }

    /// Memory that begins to grow, and counts as used from now on. `None` as long as there is no room for it: what was freed and is
    /// still had by somebody (a reader with a view, a writer of a stream that has failed) is used, whatever the steward's books say.
    fn begin(&mut self, bytes: u64) -> samite_fabric::Result<Option<Growing<'f>>> {
        if bytes > self.room.memory {
            let why = format!("{bytes} bytes of {}", self.room.memory);
            return Err(samite_fabric::Error::Memory(why));
        }
        self.make_room(bytes);
        if self.used > self.room.memory - bytes {
            return Ok(None);
        }
        let memory = match self.fabric.grow_gated(bytes) {
            Err(_) if self.give_idle_back() => self.fabric.grow_gated(bytes)?,
            other => other?,
        };
        self.used += bytes;
        Ok(Some(memory))
    }

    /// Whether there is something that [`Keeper::work`] does.
    pub(super) fn is_busy(&self) -> bool {
        !self.growing.is_empty() && !self.is_full || !self.spilling.is_empty()
    }

    /// Whether it waits for others to let go: writers of what they have committed, or anybody of what was freed.
    pub(super) fn is_waiting(&self) -> bool {
        !self.unsealed.is_empty() || !self.growing.is_empty() && self.is_full
    }

    /// Does the next part of what takes long; what is to be reported.
    pub(super) fn work(&mut self) -> Vec<Report> {
        let mut reports: Vec<Report> = self.grow().into_iter().chain(self.spill()).collect();
        reports.extend(std::iter::from_fn(|| self.tell_full()));
        for buffer in std::mem::take(&mut self.unsealed) {
            reports.extend(self.seal(buffer));
        }
        reports
    }

    /// Finds the next part of the memory of the buffer that grows; what is to be reported, when it is whole.
    fn grow(&mut self) -> Option<Report> {
        let first = self.growing.pop_front()?;
        let (buffer, bytes, writer, told) = (first.buffer, first.bytes, first.writer, first.told);
        let unborn = |memory| Unborn {
            buffer,
            bytes,
            writer,
            memory,
            told,
        };
        let mut memory = match first
            .memory
            .map_or_else(|| self.begin(bytes), |it| Ok(Some(it)))
        {
            Ok(Some(memory)) => memory,
            Ok(None) => {
                self.is_full = true;
                self.growing.push_front(unborn(None));
                return self.tell_full();
            }
            Err(error) => return Some(self.refuse(buffer, bytes, &error)),
        };
        self.is_full = false;
        let grown = match memory.step() {
            Ok(false) => {
                self.growing.push_front(unborn(Some(memory)));
                return None;
            }
            Ok(true) => {
                let gated = self.gate(memory);
                if gated.is_err() {
                    self.used -= bytes;
                }
                gated.and_then(|gated| self.lend(buffer, gated, writer))
            }
            Err(error) => {
                self.used -= bytes;
                Err(error)
            }
        };
        Some(self.held(buffer, bytes, grown))
    }

    /// What is reported of a buffer that is there, or cannot be.
    fn held(&self, buffer: BufferId, bytes: u64, lent: samite_fabric::Result<Handle>) -> Report {
        match lent {
            Ok(handle) => Report::Held { buffer, handle },
            Err(error) => self.refuse(buffer, bytes, &error),
        }
    }

    /// It cannot have a buffer: whether for want of a number, all of which are in use then, or of memory.
    fn refuse(&self, buffer: BufferId, bytes: u64, error: &samite_fabric::Error) -> Report {
        tracing::warn!(bytes, %error, "no memory for a buffer");
        let lack = match free_number(self.fabric) {
            Some(_) => Lack::Memory,
            None => Lack::Numbers(self.fabric.free_segments().len() as u64 * u64::from(u64::BITS)),
        };
        Report::Refused { buffer, lack }
    }

    /// Under a number that is free, or that somebody gives back.
    fn gate(&mut self, memory: Growing<'f>) -> samite_fabric::Result<Gated<'f>> {
        let mut number = free_number(self.fabric);
        if number.is_none() && self.give_idle_back() {
            number = free_number(self.fabric);
        }
        let none = || samite_fabric::Error::Memory("no number of a segment is free".into());
        memory.gate(number.ok_or_else(none)?)
    }

    /// Lends memory that counts as used; when that fails it is gone.
    fn lend(
        &mut self,
        buffer: BufferId,
        mut gated: Gated<'f>,
        writer: Peer,
    ) -> samite_fabric::Result<Handle> {
        let key = gated.key();
        if let Err(error) = gated.lend() {
            self.used -= key.bytes;
            return Err(error);
        }
        self.buffers.insert(buffer, Held::Lent(gated, writer));
        Ok(Handle {
            segment: key.segment,
            incarnation: key.incarnation,
            generation: key.generation,
        })
    }

    /// Freed memory of the same length that nobody reads any more.
    fn reuse(&mut self, bytes: u64) -> Option<Gated<'f>> {
        for _ in 0..self.free.len() {
            let freed = self.free.pop_front()?;
            if freed.gated.key().bytes != bytes {
                self.free.push_back(freed);
                continue;
            }
            let Freed { gated, since, lent } = freed;
            gated.shut();
            match gated.own().map(Owned::renew) {
                Ok(Ok(gated)) => return Some(gated),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "freed memory cannot be used again");
                    self.used -= bytes;
                }
                // Somebody still uses it.
                Err(refused) => {
                    let gated = refused.0;
                    self.free.push_back(Freed { gated, since, lent });
                }
            }
        }
        None
    }

    /// Gives freed memory back until so many bytes more fit.
    fn make_room(&mut self, bytes: u64) {
        let memory = self.room.memory;
        self.give_back(|used, _| used.saturating_add(bytes) > memory);
    }

    /// Gives back all freed memory; whether there was any.
    fn give_idle_back(&mut self) -> bool {
        let before = self.free.len();
        self.give_back(|_, _| true);
        self.free.len() < before
    }

    /// Gives back what nobody had a use for.
    pub(super) fn tidy(&mut self) {
        self.give_back(|_, since| since.elapsed() >= IDLE);
    }

    /// Gives back the freed memory of which `is_due` says so, told how much is used and since when it is free.
    fn give_back(&mut self, is_due: impl Fn(u64, Instant) -> bool) {
        for _ in 0..self.free.len() {
            let Some(freed) = self.free.pop_front() else {
                return;
            };
            if !is_due(self.used, freed.since) {
                self.free.push_back(freed);
                continue;
            }
            let Freed { gated, lent, .. } = freed;
            let bytes = gated.key().bytes;
            gated.shut();
            match gated.own() {
                Ok(owned) => {
                    drop(owned);
                    self.used -= bytes;
                }
                // Somebody still uses it, or died and not all have seen that: it is looked at again later.
                Err(refused) => self.set_free(refused.0, lent),
            }
        }
    }

    /// From writing to reading; nothing is reported for a buffer that is not written, or that its writer still has: then it
    /// is tried again.
    fn seal(&mut self, buffer: BufferId) -> Option<Report> {
        let held = self.buffers.get_mut(&buffer)?;
        let (Held::Lent(gated, _) | Held::Open(gated)) = held else {
            return None;
        };
        gated.shut();
        if let Err(error) = gated.turn(true) {
            tracing::debug!(%error, "a buffer was committed that its writer still has");
            self.unsealed.push(buffer);
            return None;
        }
        if let Some(Held::Lent(gated, _) | Held::Open(gated)) = self.buffers.remove(&buffer) {
            self.buffers.insert(buffer, Held::Reading(gated));
        }
        Some(Report::Sealed { buffer })
    }

    /// Answers one who does not map the memory.
    pub(super) fn answer(&mut self, from: Peer, ask: KeeperAsk) -> KeeperAnswer {
        let (ticket, result) = match ask {
            KeeperAsk::Open(ticket, buffer) => {
                (ticket, self.open(from, buffer).map(|()| Vec::new()))
            }
            KeeperAsk::Load(ticket, buffer, offset, len) => {
                (ticket, self.load(buffer, offset, len))
            }
            KeeperAsk::Figures(ticket) => (ticket, Ok(protocol::encode(&self.figures()))),
        };
        KeeperAnswer { ticket, result }
    }

    fn figures(&self) -> Kept {
        let free = self.free.iter().map(|freed| freed.gated.key().bytes);
        let on_disk = |held: &&Held<'_>| matches!(held, Held::OnDisk(_));
        let files = self.buffers.values().filter(on_disk).count();
        Kept {
            memory: self.room.memory,
            used: self.used,
            free: free.sum(),
            buffers: self.buffers.len() as u64,
            files: files as u64,
        }
    }

    fn open(&mut self, from: Peer, buffer: BufferId) -> Result<(), String> {
        let is_its_own = |held: &&mut Held<'_>| matches!(held, Held::Lent(_, to) if *to == from);
        if self.buffers.get_mut(&buffer).filter(is_its_own).is_none() {
            return Err("the buffer is not lent to this process".into());
        }
        let Some(Held::Lent(gated, writer)) = self.buffers.remove(&buffer) else {
            return Ok(());
        };
        let bytes = gated.key().bytes;
        gated.shut();
        let opened = match gated.own() {
            Ok(owned) => owned.give(false),
            Err(refused) => {
                let (gated, error) = *refused;
                self.buffers.insert(buffer, Held::Lent(gated, writer));
                return Err(error.to_string());
            }
        };
        let opened = opened.map_err(|error| {
            self.used -= bytes;
            error.to_string()
        })?;
        self.buffers.insert(buffer, Held::Open(opened));
        Ok(())
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
        peer: samite_fabric::PeerId(at.keeper.slot()),
        segment: at.handle.segment,
        incarnation: at.handle.incarnation,
        generation: at.handle.generation,
        bytes: at.bytes,
    }
}

#[cfg(test)]
mod tests;
