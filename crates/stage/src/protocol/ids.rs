//! The names of processes, streams, buffers and questions.

use samite_fabric::PeerId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// A process: its number in the fabric, in the lower half, and which life of the number it is. The
/// process that gets the number after it is another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Peer(pub u64);

impl Peer {
    /// The process that has this number in this life of it.
    pub fn new(id: u32, incarnation: u32) -> Peer {
        Peer(u64::from(incarnation) << 32 | u64::from(id))
    }

    /// Its number.
    pub fn id(self) -> PeerId {
        PeerId(self.0 as u32)
    }

    /// Which life of the number.
    pub fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}

/// A stream at its coordinator; numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub u64);

/// A buffer that a block store has for a step. Named by the coordinator; names are never used
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufferId {
    /// The stream that it belongs to.
    pub stream: StreamId,
    /// Which of the stream.
    pub number: u64,
}

/// Names a question of one peer: chosen by the asker, another one for each of its questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// A writer rank of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WriterId {
    /// The stream.
    pub stream: StreamId,
    /// Its rank.
    pub rank: u32,
}

/// A rank of a reader group of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReaderId {
    /// The stream.
    pub stream: StreamId,
    /// Which group of the stream; numbers are never used again.
    pub group: u64,
    /// Its rank.
    pub rank: u32,
}

/// Which segment of the block store a buffer is. Opaque here: the block store says it, and who maps
/// the segment uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handle {
    /// Number of the segment.
    pub segment: u32,
    /// Which life of the block store.
    pub incarnation: u32,
    /// Which use of the number.
    pub generation: u32,
}

/// Bytes that a writer wants of a block store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Whose memory.
    pub block_store: Peer,
    /// How many.
    pub bytes: u64,
}

/// A buffer, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferAt {
    /// Its name.
    pub buffer: BufferId,
    /// Who has it.
    pub block_store: Peer,
    /// Which segment of the block store it is.
    pub handle: Handle,
    /// Its length.
    pub bytes: u64,
    /// It was spilled: its bytes come from the block store by messages, it cannot be mapped.
    pub on_disk: bool,
}

/// The copies of the same bytes on different block stores: one, or as many as there are replicas.
pub type Slot<T> = SmallVec<[T; 2]>;

/// A watch of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WatchId {
    /// The stream.
    pub stream: super::StreamId,
    /// Which one; numbers are never used again.
    pub number: u64,
}
