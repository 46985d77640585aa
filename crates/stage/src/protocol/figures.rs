//! The state of the coordinator, for display: streams, queues, memory, and which process waits for
//! which.

use super::{EndOfStream, Limits, Peer, Policy, StreamId};
use serde::{Deserialize, Serialize};

/// The state of the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The streams, in the order of their opening.
    pub streams: Vec<StreamFigures>,
    /// The block stores, by number.
    pub block_stores: Vec<BlockStoreFigures>,
    /// Processes that wait to open a stream.
    pub opening: Vec<Wait>,
    /// How many streams, reader groups and waits were left out because there are too many. Those of
    /// a stream that was left out are not counted.
    pub more: u64,
}

/// Maximum number of streams, reader groups and waits in one answer: each contains names.
const MOST_LISTED: u64 = 4096;

/// Maximum number of processes that an entry names as those that are waited for.
pub(super) const MOST_AWAITED: usize = 16;

/// How many entries may still be listed.
#[derive(Debug)]
pub(super) struct Lines {
    left: u64,
    /// How many were left out.
    pub(super) more: u64,
}

impl Lines {
    pub(super) fn new() -> Self {
        Lines {
            left: MOST_LISTED,
            more: 0,
        }
    }

    /// Returns true if one more entry may be listed.
    pub(super) fn take(&mut self) -> bool {
        if self.left == 0 {
            self.more += 1;
            return false;
        }
        self.left -= 1;
        true
    }
}

/// The state of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFigures {
    /// Its number.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// The program that writes it.
    pub program: String,
    /// Number of writer ranks that have it open.
    pub here: u32,
    /// Number of ranks that the writer should have.
    pub ranks: u32,
    /// Time since it was opened, in ms.
    pub age: u64,
    /// Number of committed steps.
    pub committed: u64,
    /// Bytes that were put into these steps, each counted once.
    pub committed_bytes: u64,
    /// Number of steps that are still stored.
    pub stored: u64,
    /// Bytes in memory; filled by [`Coordinator::figures`](super::Coordinator::figures).
    pub bytes: u64,
    /// Why no more steps will follow, if it has ended.
    pub end: Option<EndOfStream>,
    /// Its reader groups.
    pub groups: Vec<GroupFigures>,
    /// Number of subscriptions.
    pub watches: u64,
    /// Number of news items that wait for them.
    pub news: u64,
    /// Processes that wait in it.
    pub waits: Vec<Wait>,
}

/// The state of a reader group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFigures {
    /// Its name; `None` if it has not opened the stream yet.
    pub name: Option<String>,
    /// What happens if it is slower than the writer.
    pub policy: Policy,
    /// The limits of its queue.
    pub limits: Limits,
    /// Steps in its queue.
    pub queued: u64,
    /// Bytes of these steps.
    pub queued_bytes: u64,
    /// Number of steps that it has taken and not yet released at all ranks.
    pub in_use: u64,
    /// Bytes of these steps.
    pub in_use_bytes: u64,
    /// Number of steps that it has taken so far.
    pub taken: u64,
    /// Bytes that its ranks have read of the steps that they have released: the boxes that they
    /// copied, or looked at in place.
    pub read_bytes: u64,
    /// Number of ranks that have the stream open.
    pub here: u32,
    /// Number of ranks that it should have.
    pub size: u32,
}

/// The state of a block store's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStoreFigures {
    /// Its process.
    pub peer: Peer,
    /// Maximum bytes of memory in use.
    pub memory: u64,
    /// Bytes of memory that are granted.
    pub granted: u64,
    /// Maximum bytes of disk in use.
    pub disk: u64,
    /// Bytes that are spilled.
    pub spilled: u64,
}

/// A process that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Its name in messages.
    pub who: String,
    /// Its process.
    pub peer: Peer,
    /// What it waits for, and for which process.
    pub whom: String,
    /// The processes that it waits for, as far as they are known; at most 16.
    pub on: Vec<Peer>,
    /// How long it has waited, in ms.
    pub ms: u64,
}
