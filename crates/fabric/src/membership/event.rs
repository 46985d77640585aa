//! What happens to an agent, and what it has to do.

use super::id::NodeLife;
use crate::node::State;
use crate::{PeerId, Slot};
use serde::{Deserialize, Serialize};

/// A connection with another agent: one that this agent opened, numbered by the machine, or one
/// that it accepted, numbered by whoever runs the machine. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Link {
    Out(u64),
    In(u64),
}

/// How a node went: in order, or because the head says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Departure {
    Left,
    Lost,
}

/// Why an agent does not speak with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Refusal {
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
pub(crate) enum Event<'a> {
    /// The time, in milliseconds of a clock that does not go back.
    Tick { now: u64 },
    /// Another agent called.
    Accepted { link: Link },
    /// A call of this agent's was answered.
    Connected { link: Link },
    /// A connection broke, was closed by the other side, or could not be made.
    Closed { link: Link },
    /// A message arrived.
    Message { link: Link, bytes: &'a [u8] },
    /// A slot of this node changed: the incarnation of the unit in it, or of the last one that was,
    /// which is one of [`NodeLife::incarnations`], and what that unit says of itself, at most
    /// [`IDENTITY_MAX`](super::IDENTITY_MAX) bytes. Only for a member.
    Slot {
        slot: Slot,
        incarnation: u32,
        state: State,
        identity: &'a [u8],
    },
    /// The node is to leave in order. Its units should have left before.
    Leave,
}

/// What an agent has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Call the agent at this address. [`Event::Connected`] or [`Event::Closed`] follows.
    Connect { link: Link, address: Box<[u8]> },
    /// Send a message of at most [`MESSAGE_MAX`](super::message::MESSAGE_MAX) bytes.
    Send { link: Link, bytes: Vec<u8> },
    /// Close a connection, after what was sent on it. No event of it follows. Why is for the log.
    Close { link: Link, why: &'static str },
    /// This node is a member, in this life of the domain: units may join it now.
    Admitted { domain: u64, life: NodeLife },
    /// This node cannot become a member. The machine has ended.
    NotAdmitted(Refusal),
    /// A node is a member; its agent is called at this address. The epoch is the number of the
    /// change; 0 for the head, which has been there from the beginning.
    NodeJoined {
        epoch: u64,
        life: NodeLife,
        name: Box<str>,
        address: Box<[u8]>,
    },
    /// A node is a member no more. All of its slots are free now; those that were not dead have
    /// been reported as lost.
    NodeGone {
        epoch: u64,
        life: NodeLife,
        how: Departure,
    },
    /// What has become of a unit of another node, in its present life or its last one: write its
    /// entry. One that is there says this of itself.
    Unit {
        peer: PeerId,
        incarnation: u32,
        state: State,
        identity: Box<[u8]>,
    },
    /// Entries have changed: raise the epoch word of the node's roster, once, after all of them.
    RaiseEpoch,
    /// Nothing was heard of the head for [`Config::silence`](super::Config::silence), or it is
    /// certain (`finally`) that it is gone: it left, another life of the domain has begun, or it
    /// spoke nonsense. What is known stays; no node joins, and no loss of a node is noticed.
    HeadLost { finally: bool },
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
        use Action::{NodeGone, NodeJoined, Unit};
        matches!(self, NodeJoined { .. } | NodeGone { .. } | Unit { .. })
    }
}
