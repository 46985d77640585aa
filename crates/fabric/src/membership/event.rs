//! What happens to an agent, and what it has to do.

use super::id::NodeLife;
use crate::{PeerId, Slot};
use serde::{Deserialize, Serialize};

/// A connection with another agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// This agent called; the machine numbers them.
    Out(u64),
    /// Another one called; whoever runs the machine numbers them, and uses no number twice.
    In(u64),
}

/// State of a slot of another node. Within a life it only goes on, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SlotState {
    /// A unit that lives.
    Alive,
    /// It is gone; its node has not taken back all that it had.
    Dead,
    /// Nobody.
    Free,
}

/// How a node went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Departure {
    /// In order.
    Left,
    /// The head says so.
    Lost,
}

/// Why an agent does not speak with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// It is of another version.
    Version,
    /// The head of the domain has another address.
    NotHead,
    /// A living node of this name is connected with the head.
    NameTaken,
    /// All numbers of nodes are used.
    Full,
    /// The head is leaving.
    Ending,
    /// The domain is another one, or another life of it.
    OtherDomain,
    /// The one who was called has another number or another life.
    OtherNode,
    /// The caller has not been heard of yet.
    NotYet,
    /// The caller is a member no more.
    Gone,
    /// The caller broke the rules before.
    Distrusted,
}

/// What happens to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<'a> {
    /// The time, in milliseconds of a clock that does not go back.
    Tick {
        /// Now.
        now: u64,
    },
    /// Another agent called.
    Accepted {
        /// The new connection.
        link: Link,
    },
    /// A call of this agent's was answered.
    Connected {
        /// See [`Action::Connect`].
        link: Link,
    },
    /// A connection broke, was closed by the other side, or could not be made.
    Closed {
        /// Which one.
        link: Link,
    },
    /// A message arrived.
    Message {
        /// On which connection.
        link: Link,
        /// It, whatever it is.
        bytes: &'a [u8],
    },
    /// A slot of this node changed. Only for a member, with one of its
    /// [incarnations](NodeLife::incarnations).
    Slot {
        /// Which one.
        slot: Slot,
        /// Of the unit in it, or of the last one that was.
        incarnation: u32,
        /// Its state now.
        state: SlotState,
        /// What the unit says of itself, at most [`IDENTITY_MAX`](super::IDENTITY_MAX) bytes.
        identity: &'a [u8],
    },
    /// The node is to leave in order. Its units should have left before.
    Leave,
}

/// What an agent has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Call the agent at this address. [`Event::Connected`] or [`Event::Closed`] follows.
    Connect {
        /// Number of the connection.
        link: Link,
        /// Where, as that agent said itself.
        address: Box<[u8]>,
    },
    /// Send a message of at most [`MESSAGE_MAX`](super::MESSAGE_MAX) bytes.
    Send {
        /// On which connection.
        link: Link,
        /// It.
        bytes: Vec<u8>,
    },
    /// Close a connection, after what was sent on it. No event of it follows.
    Close {
        /// Which one.
        link: Link,
        /// For the log.
        why: &'static str,
    },
    /// This node is a member.
    Admitted {
        /// Number of this life of the domain: agents of another one are refused.
        domain: u64,
        /// Number and life of this node; units may join it now.
        life: NodeLife,
    },
    /// This node cannot become a member. The machine has ended.
    NotAdmitted(Refusal),
    /// A node is a member.
    NodeJoined {
        /// Number of the change; 0 for the head, which has been there from the beginning.
        epoch: u64,
        /// Which one.
        life: NodeLife,
        /// Its name.
        name: Box<str>,
        /// Where its agent is called.
        address: Box<[u8]>,
    },
    /// A node is a member no more. All of its slots are free now; those that were not dead have
    /// been reported as lost.
    NodeGone {
        /// Number of the change that said so.
        epoch: u64,
        /// Which one.
        life: NodeLife,
        /// How it went.
        how: Departure,
    },
    /// A unit of another node is there: write its entry.
    UnitJoined {
        /// Which one.
        peer: PeerId,
        /// Which life.
        incarnation: u32,
        /// What it says of itself.
        identity: Box<[u8]>,
    },
    /// A unit of another node is gone: its entry is dead.
    UnitLost {
        /// Which one.
        peer: PeerId,
        /// Which life.
        incarnation: u32,
    },
    /// A slot of another node is free: its entry is.
    UnitFreed {
        /// Which one.
        peer: PeerId,
        /// Which life was the last.
        incarnation: u32,
    },
    /// Entries have changed: raise the epoch word of the node's roster, once, after all of them.
    RaiseEpoch,
    /// Nothing was heard of the head for [`Config::silence`](super::Config::silence), or it is
    /// gone. What is known stays; no node joins, and no loss of a node is noticed.
    HeadLost {
        /// Whether it is certain: it left, or another life of the domain has begun, or it spoke
        /// nonsense.
        finally: bool,
    },
    /// The head is there again, and this node still a member.
    HeadBack,
    /// This node was declared lost: its units are to be ended. The machine has ended.
    Fenced,
    /// This node has left. The machine has ended.
    Left,
}

impl Action {
    /// Whether entries of the roster change by it.
    pub(super) fn writes_roster(&self) -> bool {
        matches!(
            self,
            Action::NodeJoined { .. }
                | Action::NodeGone { .. }
                | Action::UnitJoined { .. }
                | Action::UnitLost { .. }
                | Action::UnitFreed { .. }
        )
    }
}
