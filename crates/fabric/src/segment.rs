//! Memory registered for remote access: who offers what, and how another process reaches it.
//!
//! Peers on one node map each other's segments: put, get and atomics ([`crate::Remote`]) are then a bounds
//! check and a load, a store or a memcpy, with no lock, no allocation and no system call. Otherwise they go
//! by the kernel (registered private memory) or over messages. The result is the same.

use crate::engine::{Access, Engine, Offered};
use crate::fabric::Fabric;
use crate::layout::{Entry, Kind, SEGMENTS_MAX};
use crate::proto::active::LOOK_UP;
use crate::remote::{Remote, Way};
use crate::{Error, PeerId, Result};
use bytemuck::Pod;
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
        self.lives(&core.engine, key)?;
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
        Ok(Remote::new(self, key, way))
    }

    /// Whether the owner lives, and still the life that the key is of.
    pub(crate) fn lives(&self, engine: &Engine, key: SegmentKey) -> Result<()> {
        if let Some(error) = engine.gone(key.peer) {
            return Err(error);
        }
        let info = engine.peers.get(key.peer.index());
        let info = info.and_then(|peer| peer.info.as_ref());
        if info.map(|info| info.incarnation) == Some(key.incarnation) {
            return Ok(());
        }
        Err(Error::PeerLost {
            peer: key.peer,
            incarnation: key.incarnation,
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
        let of_memory = Error::of_memory_of(key.peer);
        if let Some(bytes) = gate.share(arena, span).map_err(&of_memory)? {
            return Ok(Way::Mapped {
                bytes,
                offered: offered(),
                _hold: hold,
            });
        }
        let bytes = gate.read(arena, span).map_err(of_memory)?;
        let bytes = bytes.ok_or(Error::WrongPhase {
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
        if !self.fabric.is_of_parent() {
            self.fabric.withdraw(self.key.segment);
        }
    }
}
