//! How everything stands at the coordinator, for a person: streams, queues, memory, who waits for
//! whom.

use super::{EndOfStream, Limits, Peer, Policy, StreamId};
use serde::{Deserialize, Serialize};

/// All that the coordinator knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The streams, by the order of their opening.
    pub streams: Vec<StreamFigures>,
    /// The block stores, by number.
    pub block_stores: Vec<BlockStoreFigures>,
    /// Who waits to open a stream.
    pub opening: Vec<Wait>,
    /// How many streams, reader groups and waits are not in it, because there are too many; those
    /// of a stream that is not in it are not counted.
    pub more: u64,
}

/// Most streams, reader groups and waits in one answer: each has names in it.
const MOST_LISTED: u64 = 4096;

/// How many things may still be listed.
#[derive(Debug)]
pub(super) struct Lines {
    left: u64,
    /// How many were not.
    pub(super) more: u64,
}

impl Lines {
    pub(super) fn new() -> Self {
        Lines {
            left: MOST_LISTED,
            more: 0,
        }
    }

    /// Whether one more thing may be listed.
    pub(super) fn take(&mut self) -> bool {
        if self.left == 0 {
            self.more += 1;
            return false;
        }
        self.left -= 1;
        true
    }
}

/// How a stream stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFigures {
    /// Its number.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// Who writes it.
    pub program: String,
    /// Ranks of the writer that are here.
    pub here: u32,
    /// Ranks that it should have.
    pub ranks: u32,
    /// How long it has been there, in ms.
    pub age: u64,
    /// Number of committed steps.
    pub committed: u64,
    /// Bytes that were put into these, each counted once.
    pub committed_bytes: u64,
    /// Number of steps that are still there.
    pub stored: u64,
    /// Bytes in memory; filled by [`Coordinator::figures`](super::Coordinator::figures).
    pub bytes: u64,
    /// Why there will be no more steps.
    pub end: Option<EndOfStream>,
    /// Its reader groups.
    pub groups: Vec<GroupFigures>,
    /// Number of subscriptions.
    pub watches: u64,
    /// News that wait for them.
    pub news: u64,
    /// Who waits in it.
    pub waits: Vec<Wait>,
}

/// How a reader group stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFigures {
    /// Its name; `None` for the one that has not come yet.
    pub name: Option<String>,
    /// What happens when it is slow.
    pub policy: Policy,
    /// Most that may wait for it.
    pub limits: Limits,
    /// Steps in its queue.
    pub queued: u64,
    /// Bytes of these.
    pub queued_bytes: u64,
    /// Steps that it has taken and not yet released everywhere.
    pub in_use: u64,
    /// Bytes of these.
    pub in_use_bytes: u64,
    /// Steps that it has taken so far.
    pub taken: u64,
    /// Bytes that were put into these.
    pub taken_bytes: u64,
    /// Ranks that are here.
    pub here: u32,
    /// Ranks that it should have.
    pub size: u32,
}

/// How the memory of a block store stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStoreFigures {
    /// Who it is.
    pub peer: Peer,
    /// Bytes of memory that it may have in use.
    pub memory: u64,
    /// Bytes that are granted of it.
    pub granted: u64,
    /// Bytes of disk that it may have in use.
    pub disk: u64,
    /// Bytes that are spilled to it.
    pub spilled: u64,
}

/// Somebody waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Who, as a person says it.
    pub who: String,
    /// Its process.
    pub peer: Peer,
    /// For what, and for whom.
    pub whom: String,
    /// How long, in ms.
    pub ms: u64,
}
