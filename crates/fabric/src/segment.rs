//! Memory registered for remote access, and the one-sided operations on it.
//!
//! Peers on one node map each other's segments: put, get and atomics are then a bounds check and a
//! load, a store or a memcpy, with no lock, no allocation and no system call. Otherwise they go by the
//! kernel (registered private memory) or over messages. The result is the same.

use crate::engine::{Access, Engine, Offered};
use crate::fabric::Fabric;
use crate::hold::Hold;
use crate::layout::{Entry, Kind, Layout, SEGMENTS_MAX};
use crate::ops::Outcome as Ended;
use crate::proto::active::LOOK_UP;
use crate::proto::rma_over_am::apply;
use crate::wire::Place;
use crate::{Atomic, Error, Handle, Outcome, PeerId, Result, Width, WordUpdate};
use bytemuck::Pod;
use samite_mem::gate::Readable;
use samite_mem::lend::WriteBuf;
use samite_mem::{Block, SharedBytes, Span};
use serde::{Deserialize, Serialize};

/// What names a segment to others: send it in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SegmentKey {
    /// The owner.
    pub peer: PeerId,
    /// Its number at the owner.
    pub segment: u32,
    /// Which life of the owner.
    pub incarnation: u32,
    /// Which use of the number: a key of a freed segment is refused.
    pub generation: u32,
    /// Length in bytes.
    pub bytes: u64,
}

impl SegmentKey {
    /// 24 bytes for a message.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&self.peer.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.segment.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[16..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// The reverse.
    pub fn from_bytes(bytes: &[u8; 24]) -> SegmentKey {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        SegmentKey {
            peer: PeerId(word(0)),
            segment: word(4),
            generation: word(8),
            incarnation: word(12),
            bytes: word(16) as u64 | (word(20) as u64) << 32,
        }
    }
}

/// A segment of this process; withdrawn and freed when dropped.
#[derive(Debug)]
pub struct Segment<'f> {
    fabric: &'f Fabric,
    key: SegmentKey,
    bytes: SharedBytes,
    /// The block that the bytes lie in; none for registered private memory.
    _block: Option<Block>,
}

/// A segment of a peer, or of this process, as a target of one-sided operations.
#[derive(Debug, Clone)]
pub struct Remote<'f> {
    fabric: &'f Fabric,
    key: SegmentKey,
    way: Way,
}

/// How the bytes of a remote segment are reached.
#[derive(Debug, Clone)]
enum Way {
    /// Mapped here. The word of the owner's directory says whether it is still offered.
    Mapped {
        bytes: SharedBytes,
        offered: SharedBytes,
        _hold: Hold,
    },
    /// Mapped here, and nobody writes it.
    Reading {
        bytes: Readable,
        _hold: Hold,
    },
    Kernel {
        pid: i32,
        address: u64,
        offered: SharedBytes,
    },
    Messages,
}

impl Fabric {
    /// Allocates a zeroed segment of shared memory. Local. Errors: [`Error::Budget`] with everything
    /// else untouched.
    pub fn allocate(&self, bytes: u64) -> Result<Segment<'_>> {
        self.allocate_as(self.free_segment()?, bytes)
    }

    /// As [`Fabric::allocate`], with a number that is not in use ([`Fabric::free_segments`]): several
    /// peers can so agree on one.
    pub fn allocate_as(&self, segment: u32, bytes: u64) -> Result<Segment<'_>> {
        let block = self.node.heap.block(bytes)?;
        let (place, shared) = (block.span().offset, block.bytes().clone());
        let generation = self.offer(segment, place, Kind::Plain, Access::Shared(shared.clone()))?;
        Ok(self.segment(segment, generation, shared, Some(block)))
    }

    /// Makes private memory of this process a segment: peers reach it through the kernel or by
    /// messages. From now on it is read and written through the segment.
    pub fn register<T: Pod + Send>(&self, elements: Vec<T>) -> Result<Segment<'_>> {
        self.register_as(self.free_segment()?, elements)
    }

    /// As [`Fabric::register`], with a number that is not in use.
    pub fn register_as<T: Pod + Send>(
        &self,
        segment: u32,
        elements: Vec<T>,
    ) -> Result<Segment<'_>> {
        let shared = SharedBytes::adopt(elements);
        let (place, access) = (shared.address(), Access::Shared(shared.clone()));
        let generation = self.offer(segment, place, Kind::Private, access)?;
        Ok(self.segment(segment, generation, shared, None))
    }

    /// Which numbers of segments are not in use here: one bit each, the lowest first.
    pub fn free_segments(&self) -> Vec<u64> {
        self.sweep();
        let mut free = vec![u64::MAX; SEGMENTS_MAX as usize / 64];
        for segment in self.core.borrow().engine.offered.keys() {
            free[*segment as usize / 64] &= !(1 << (segment % 64));
        }
        free
    }

    fn free_segment(&self) -> Result<u32> {
        self.sweep();
        let offered = &self.core.borrow().engine.offered;
        let mut numbers = 0..SEGMENTS_MAX;
        numbers
            .find(|segment| !offered.contains_key(segment))
            .ok_or_else(no_number)
    }

    /// The key of a peer's segment; `None` where there is no such segment. Local on one node, where it is
    /// in the owner's directory; else the owner is asked.
    pub fn look_up(&self, peer: PeerId, segment: u32) -> Result<Option<SegmentKey>> {
        if !self.shares_node {
            let asked = self.request(peer, LOOK_UP, &segment.to_le_bytes())?;
            return Ok(asked.wait()?.first_chunk().map(SegmentKey::from_bytes));
        }
        let core = self.core.borrow();
        if let Some(error) = core.engine.gone(peer) {
            return Err(error);
        }
        let entry = self.node.layout.entry(peer, segment);
        let info = core.engine.peers[peer.index()].info.as_ref();
        Ok(entry.zip(info).map(|(entry, info)| SegmentKey {
            peer,
            segment,
            incarnation: info.incarnation,
            generation: entry.generation,
            bytes: entry.bytes,
        }))
    }

    /// Writes a segment into the directory; its generation.
    pub(crate) fn offer(&self, segment: u32, place: u64, kind: Kind, bytes: Access) -> Result<u32> {
        let engine = &mut self.core.borrow_mut().engine;
        if !engine.is_free(segment) {
            return Err(no_number());
        }
        let layout = &self.node.layout;
        let generation = layout.set_entry(self.me(), segment, place, bytes.len(), kind);
        engine
            .offered
            .insert(segment, Offered { generation, bytes });
        Ok(generation)
    }

    /// Takes a segment out of the directory.
    pub(crate) fn withdraw(&self, segment: u32) {
        self.node.layout.clear_entry(self.me(), segment);
        self.core.borrow_mut().engine.offered.remove(&segment);
    }

    pub(crate) fn own_key(&self, segment: u32, generation: u32, bytes: u64) -> SegmentKey {
        SegmentKey {
            peer: self.me(),
            segment,
            incarnation: self.node.incarnation,
            generation,
            bytes,
        }
    }

    fn segment(
        &self,
        segment: u32,
        generation: u32,
        bytes: SharedBytes,
        block: Option<Block>,
    ) -> Segment<'_> {
        Segment {
            fabric: self,
            key: self.own_key(segment, generation, bytes.len()),
            bytes,
            _block: block,
        }
    }

    /// Prepares one-sided operations on a segment. Local on one node; the key is checked against the
    /// owner's directory.
    pub fn attach(&self, key: SegmentKey) -> Result<Remote<'_>> {
        let mut core = self.core.borrow_mut();
        if let Some(error) = core.engine.gone(key.peer) {
            return Err(error);
        }
        let lives = core
            .engine
            .peer(key.peer)
            .info
            .as_ref()
            .map(|info| info.incarnation);
        if lives != Some(key.incarnation) {
            return Err(Error::PeerLost {
                peer: key.peer,
                incarnation: key.incarnation,
            });
        }
        let own = key.peer == self.me();
        let entry = match self.shares_node || own {
            true => Some(self.node.layout.entry(key.peer, key.segment)),
            false => None,
        };
        let refused = Error::NoSuchSegment {
            peer: key.peer,
            segment: key.segment,
        };
        let way = match entry {
            None => Way::Messages,
            Some(Some(entry)) if entry.generation == key.generation && entry.bytes == key.bytes => {
                self.way(&mut core.engine, key, entry)?
            }
            Some(_) => return Err(refused),
        };
        Ok(Remote {
            fabric: self,
            key,
            way,
        })
    }

    /// How an entry of a directory is reached.
    fn way(&self, engine: &mut Engine, key: SegmentKey, entry: Entry) -> Result<Way> {
        let (layout, own) = (&self.node.layout, key.peer == self.me());
        let offered = || layout.entry_word(key.peer, key.segment);
        let span = Span {
            offset: entry.place,
            bytes: entry.bytes,
        };
        if entry.private {
            // Its own private memory is as near as any other.
            if let Some(Offered {
                bytes: Access::Shared(bytes),
                ..
            }) = engine.offered.get(&key.segment).filter(|_| own)
            {
                return Ok(Way::Mapped {
                    bytes: bytes.clone(),
                    offered: offered(),
                    _hold: self.node.holds.hold(key.peer),
                });
            }
            if !engine.kernel_works(key.peer) {
                return Ok(Way::Messages);
            }
            let info = engine.peer(key.peer).info.as_ref();
            return Ok(Way::Kernel {
                pid: info.map_or(0, |info| info.pid),
                address: entry.place,
                offered: offered(),
            });
        }
        if !engine.caps.map && !own {
            return Ok(Way::Messages);
        }
        let hold = self.node.holds.hold(key.peer);
        let arena = layout.arena();
        if !entry.gated {
            return Ok(Way::Mapped {
                bytes: arena.bytes(entry.place, entry.bytes)?,
                offered: offered(),
                _hold: hold,
            });
        }
        let gate = layout.gate(key.peer, key.segment, key.generation);
        if let Some(bytes) = gate.share(arena, span)? {
            return Ok(Way::Mapped {
                bytes,
                offered: offered(),
                _hold: hold,
            });
        }
        let bytes = gate.read(arena, span)?.ok_or(Error::WrongPhase {
            peer: key.peer,
            segment: key.segment,
        })?;
        Ok(Way::Reading { bytes, _hold: hold })
    }
}

pub(crate) fn no_number() -> Error {
    Error::Memory(format!(
        "this number of a segment is in use, or all {SEGMENTS_MAX} are; free some or make larger ones"
    ))
}

impl Segment<'_> {
    /// What names it to others.
    pub fn key(&self) -> SegmentKey {
        self.key
    }

    /// Its bytes.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }
}

impl Drop for Segment<'_> {
    fn drop(&mut self) {
        self.fabric.withdraw(self.key.segment);
    }
}

impl<'f> Remote<'f> {
    /// What names it.
    pub fn key(&self) -> SegmentKey {
        self.key
    }

    /// The bytes, if they are mapped here: reads and writes of them are one-sided operations.
    pub fn mapped(&self) -> Option<&SharedBytes> {
        match &self.way {
            Way::Mapped { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Whether its owner still offers it, as far as that can be seen from here.
    #[inline]
    pub fn is_offered(&self) -> bool {
        self.still_offered().is_ok()
    }

    /// The bytes, if they are mapped here and nobody writes them.
    pub fn readable(&self) -> Option<&Readable> {
        match &self.way {
            Way::Reading { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    #[inline(always)]
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.key.bytes => Ok(()),
            end => {
                let end = end.unwrap_or(u64::MAX);
                Err(Error::OutOfRange {
                    offset,
                    end,
                    bytes: self.key.bytes,
                })
            }
        }
    }

    /// One load of a line that changes only when the owner frees the segment. Its memory may then be
    /// used for something else; the memory of a dead owner is kept as long as this value ([`Hold`]).
    #[inline(always)]
    fn still_offered(&self) -> Result<()> {
        match &self.way {
            Way::Mapped { offered, .. } | Way::Kernel { offered, .. }
                if !Layout::offers(offered, self.key.generation) =>
            {
                Err(Error::NoSuchSegment {
                    peer: self.key.peer,
                    segment: self.key.segment,
                })
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn read_only(&self) -> Error {
        Error::WrongPhase {
            peer: self.key.peer,
            segment: self.key.segment,
        }
    }

    fn place(&self, offset: u64) -> Place {
        Place {
            segment: self.key.segment,
            generation: self.key.generation,
            offset,
        }
    }

    /// Copies `from` to the segment. One-sided. Completion: remote (the bytes are there).
    #[inline]
    pub fn put(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.check(offset, from.len() as u64)?;
        match &self.way {
            Way::Mapped { bytes, .. } => {
                self.still_offered()?;
                bytes.write(offset, from);
                Ok(())
            }
            Way::Reading { .. } => Err(self.read_only()),
            _ => self.put_far(offset, from)?.wait().map(|_| ()),
        }
    }

    /// As [`Remote::put`], without waiting; the bytes are copied before it returns. Completion by the
    /// handle: remote.
    pub fn put_nb(&self, offset: u64, from: &[u8]) -> Result<Handle<'f, u64>> {
        self.check(offset, from.len() as u64)?;
        match &self.way {
            Way::Mapped { bytes, .. } => {
                self.still_offered()?;
                bytes.write(offset, from);
                Ok(Handle::ended(self.fabric))
            }
            Way::Reading { .. } => Err(self.read_only()),
            _ => self.put_far(offset, from),
        }
    }

    fn put_far(&self, offset: u64, from: &[u8]) -> Result<Handle<'f, u64>> {
        self.still_offered()?;
        if let Way::Kernel { pid, address, .. } = &self.way
            && samite_mem::copy::kernel::write_exact(*pid, address + offset, from).is_ok()
        {
            return Ok(Handle::ended(self.fabric));
        }
        self.fabric.credit(self.key.peer)?;
        let core = &mut *self.fabric.core.borrow_mut();
        let key = core
            .engine
            .put_over_am(self.key.peer, self.place(offset), from);
        core.engine.flush(&mut core.transport);
        Ok(Handle::new(self.fabric, key))
    }

    /// Copies from the segment into `into`. One-sided. Completion: the bytes are here.
    #[inline]
    pub fn get(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if !self.get_at_once(offset, into)? {
            let bytes = vec![0; into.len()];
            let got: Handle<'_, Vec<u8>> = self.ask(offset, WriteBuf::owned(bytes))?;
            into.copy_from_slice(&got.wait()?);
        }
        Ok(())
    }

    /// Starts to copy `len` bytes out of the segment; the handle gives them.
    pub fn get_nb(&self, offset: u64, len: u64) -> Result<Handle<'f, Vec<u8>>> {
        self.check(offset, len)?;
        let mut bytes = vec![0; len as usize];
        if !self.get_at_once(offset, &mut bytes)? {
            return self.ask(offset, WriteBuf::owned(bytes));
        }
        let engine = &mut self.fabric.core.borrow_mut().engine;
        let key = engine.ops.add(None, "get", crate::ops::Work::None);
        engine.ops.finish(key, Ok(Ended::Bytes(bytes)));
        Ok(Handle::new(self.fabric, key))
    }

    /// Copies what can be had without its owner; `false` if the owner must be asked.
    #[inline]
    pub(crate) fn get_at_once(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        self.check(offset, into.len() as u64)?;
        match &self.way {
            Way::Mapped { bytes, .. } => {
                self.still_offered()?;
                bytes.read(offset, into);
                Ok(true)
            }
            Way::Reading { bytes, .. } => {
                let start = offset as usize;
                into.copy_from_slice(&bytes.as_slice::<u8>()[start..start + into.len()]);
                Ok(true)
            }
            Way::Kernel { pid, address, .. } => {
                self.still_offered()?;
                Ok(samite_mem::copy::kernel::read_exact(*pid, address + offset, into).is_ok())
            }
            Way::Messages => Ok(false),
        }
    }

    /// Asks the owner for bytes of a range that was checked.
    pub(crate) fn ask<T: Outcome>(&self, offset: u64, into: WriteBuf) -> Result<Handle<'f, T>> {
        self.fabric.credit(self.key.peer)?;
        let core = &mut *self.fabric.core.borrow_mut();
        let key = core
            .engine
            .get_over_am(self.key.peer, self.place(offset), into);
        core.engine.flush(&mut core.transport);
        Ok(Handle::new(self.fabric, key))
    }

    /// One atomic operation on a word of the segment; the old value. One-sided. Completion: remote.
    #[inline]
    pub fn atomic(&self, offset: u64, op: Atomic, width: Width, a: u64, b: u64) -> Result<u64> {
        self.check(offset, width.bytes())?;
        if !offset.is_multiple_of(width.bytes()) {
            return Err(Error::Misaligned(offset));
        }
        match &self.way {
            Way::Mapped { bytes, .. } => {
                self.still_offered()?;
                Ok(apply(bytes, offset, op, width, a, b))
            }
            Way::Reading { .. } => Err(self.read_only()),
            _ => self.atomic_far(offset, op, width, a, b)?.wait(),
        }
    }

    /// As [`Remote::atomic`], without waiting.
    pub fn atomic_nb(
        &self,
        offset: u64,
        op: Atomic,
        width: Width,
        a: u64,
        b: u64,
    ) -> Result<Handle<'f, u64>> {
        self.check(offset, width.bytes())?;
        if !offset.is_multiple_of(width.bytes()) {
            return Err(Error::Misaligned(offset));
        }
        match &self.way {
            Way::Mapped { bytes, .. } => {
                self.still_offered()?;
                let old = apply(bytes, offset, op, width, a, b);
                let engine = &mut self.fabric.core.borrow_mut().engine;
                let key = engine.ops.add(None, "atomic", crate::ops::Work::None);
                engine.ops.finish(key, Ok(Ended::Word(old)));
                Ok(Handle::new(self.fabric, key))
            }
            Way::Reading { .. } => Err(self.read_only()),
            _ => self.atomic_far(offset, op, width, a, b),
        }
    }

    /// Many atomic updates of words, in no order among them; no old values. One-sided. Where the memory is
    /// mapped they are done when this returns, else the handle tells. Every place is checked first.
    #[inline]
    pub fn update_batch(
        &self,
        op: Atomic,
        width: Width,
        updates: &[WordUpdate],
    ) -> Result<Handle<'f, u64>> {
        for update in updates {
            self.check(update.offset, width.bytes())?;
            if !update.offset.is_multiple_of(width.bytes()) {
                return Err(Error::Misaligned(update.offset));
            }
        }
        match &self.way {
            Way::Mapped { bytes, .. } => {
                self.still_offered()?;
                for update in updates {
                    apply(bytes, update.offset, op, width, update.value, 0);
                }
                Ok(Handle::ended(self.fabric))
            }
            Way::Reading { .. } => Err(self.read_only()),
            _ if updates.is_empty() => Ok(Handle::ended(self.fabric)),
            _ => {
                self.fabric.credit(self.key.peer)?;
                let core = &mut *self.fabric.core.borrow_mut();
                let place = self.place(0);
                let key = core
                    .engine
                    .updates_over_am(self.key.peer, place, (op, width), updates);
                core.engine.flush(&mut core.transport);
                Ok(Handle::new(self.fabric, key))
            }
        }
    }

    /// Copies elements of `size` bytes at `offsets`, one behind the other; the handle gives them. One-sided.
    /// For memory that is not mapped here: they travel together.
    pub fn get_batch(&self, size: u64, offsets: &[u64]) -> Result<Handle<'f, Vec<u8>>> {
        for offset in offsets {
            self.check(*offset, size)?;
        }
        let bytes = vec![0; offsets.len() * size as usize];
        if offsets.is_empty() || size == 0 {
            return self.get_nb(0, 0);
        }
        self.fabric.credit(self.key.peer)?;
        let core = &mut *self.fabric.core.borrow_mut();
        let (peer, place, buf) = (self.key.peer, self.place(0), WriteBuf::owned(bytes));
        let key = core.engine.gather_over_am(peer, place, size, offsets, buf);
        core.engine.flush(&mut core.transport);
        Ok(Handle::new(self.fabric, key))
    }

    /// The kernel has no atomics on the memory of others: the owner does it.
    fn atomic_far(
        &self,
        offset: u64,
        op: Atomic,
        width: Width,
        a: u64,
        b: u64,
    ) -> Result<Handle<'f, u64>> {
        self.fabric.credit(self.key.peer)?;
        let core = &mut *self.fabric.core.borrow_mut();
        let place = self.place(offset);
        let key = core
            .engine
            .atomic_over_am(self.key.peer, place, (op, width), (a, b));
        core.engine.flush(&mut core.transport);
        Ok(Handle::new(self.fabric, key))
    }

    /// Adds to a 64-bit word; the old value.
    #[inline]
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64> {
        self.atomic(offset, Atomic::Add, Width::W64, value, 0)
    }

    /// Replaces a 64-bit word if it is `expected`; the old value.
    #[inline]
    pub fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64> {
        self.atomic(offset, Atomic::CompareExchange, Width::W64, expected, new)
    }
}
