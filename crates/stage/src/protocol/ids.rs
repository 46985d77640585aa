//! The ids of processes, streams, buffers and requests.

use samite_fabric::PeerId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// A process: its number in the fabric, in the lower half, and its incarnation. The next process
/// with the same number is another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Peer(pub u64);

impl Peer {
    /// The process with this number and incarnation.
    pub fn new(id: u32, incarnation: u32) -> Peer {
        Peer(u64::from(incarnation) << 32 | u64::from(id))
    }

    /// Its number.
    pub fn id(self) -> PeerId {
        PeerId(self.0 as u32)
    }

    /// Its incarnation.
    pub fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}

/// A stream at its coordinator; numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub u64);

/// A buffer that a block store has for a step. The coordinator chooses the id, and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufferId {
    /// The stream that it belongs to.
    pub stream: StreamId,
    /// Its number within the stream.
    pub number: u64,
}

/// Names a request of one peer. The requester chooses a different one for each of its requests.
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
    /// The number of the group within the stream; never reused.
    pub group: u64,
    /// Its rank.
    pub rank: u32,
}

/// The segment of the block store that a buffer is. Opaque here: the block store chooses it, and
/// the process that maps the segment uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handle {
    /// Number of the segment.
    pub segment: u32,
    /// Incarnation of the block store.
    pub incarnation: u32,
    /// Generation of the segment.
    pub generation: u32,
}

/// Bytes that a writer requests from a block store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// The block store.
    pub block_store: Peer,
    /// Number of bytes.
    pub bytes: u64,
}

/// A buffer and its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferAt {
    /// Its id.
    pub buffer: BufferId,
    /// The block store that has it.
    pub block_store: Peer,
    /// The segment of the block store.
    pub handle: Handle,
    /// Its length.
    pub bytes: u64,
    /// True if it was spilled: it cannot be mapped, and the block store sends its bytes in
    /// messages.
    pub on_disk: bool,
}

/// The copies of the same bytes on different block stores: one per replica.
pub type Slot<T> = SmallVec<[T; 2]>;

/// A subscription to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WatchId {
    /// The stream.
    pub stream: StreamId,
    /// Its number; never reused.
    pub number: u64,
}
