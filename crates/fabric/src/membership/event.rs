//! Events that an agent receives, and the actions that it requests.

use super::id::NodeLife;
use crate::node::State;
use crate::{PeerId, Slot};
use serde::{Deserialize, Serialize};

/// A connection with another agent. `Out` was opened by this agent and numbered by the machine;
/// `In` was accepted and numbered by the driver of the machine. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Link {
    Out(u64),
    In(u64),
}

/// How a node departed: in an orderly way, or declared lost by the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Departure {
    Left,
    Lost,
}

/// Why an agent refuses to talk to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The caller has another protocol version.
    Version,
    /// The called agent is not the head of a domain.
    NotHead,
    /// A living node with this name is connected to the head.
    NameTaken,
    /// All node numbers are in use.
    Full,
    /// The head is leaving.
    Ending,
    /// The caller belongs to another domain, or to another life of this one.
    OtherDomain,
    /// The called agent has another number or is in another life.
    OtherNode,
    /// The called agent does not know the caller yet.
    NotYet,
    /// The caller is no longer a member.
    Gone,
    /// The caller broke the rules earlier.
    Distrusted,
}

/// Why the machine closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub(crate) enum WhyClosed {
    /// The other agent refused this one, or has dismissed it.
    #[error("the other agent refused this one: {0:?}")]
    RefusedBy(Refusal),
    /// This agent refused the caller.
    #[error("the caller was refused: {0:?}")]
    Refused(Refusal),
    /// The other agent sent this, which breaks a rule.
    #[error("the other agent broke a rule: {0}")]
    BrokeRule(&'static str),
    /// The node has another connection with this one.
    #[error("the node called again")]
    CalledAgain,
    /// The node has left, or was lost.
    #[error("the node is a member no more")]
    NoMember,
    /// Nothing was heard of a connected node.
    #[error("nothing was heard of the node")]
    Silent,
    /// A call was not answered.
    #[error("the node did not answer")]
    Unanswered,
    /// A caller did not say in time which node it is.
    #[error("the caller did not say who it is")]
    Unnamed,
    /// Too many callers have not said yet which nodes they are.
    #[error("too many callers have not said who they are")]
    TooManyUnnamed,
    /// The machine has ended.
    #[error("the agent has ended")]
    Over,
}

/// An event that an agent receives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event<'a> {
    /// The time, in milliseconds of a monotonic clock.
    Tick { now: u64 },
    /// Another agent opened a connection.
    Accepted { link: Link },
    /// A connection that this agent opened is established.
    Connected { link: Link },
    /// A connection broke, was closed by the other side, or could not be established.
    Closed { link: Link },
    /// A message arrived.
    Message { link: Link, bytes: &'a [u8] },
    /// A slot of this node changed. `incarnation` is that of the unit in the slot, or of the last
    /// unit in it, and is one of [`NodeLife::incarnations`]. `identity` is what the unit states
    /// about itself, at most [`IDENTITY_MAX`](super::IDENTITY_MAX) bytes. Only members receive this
    /// event.
    Slot {
        slot: Slot,
        incarnation: u32,
        state: State,
        identity: &'a [u8],
    },
    /// The node is to leave in an orderly way. Its units should have left before.
    Leave,
}

/// An action that the machine requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Call the agent at this address. [`Event::Connected`] or [`Event::Closed`] follows.
    Connect { link: Link, address: Box<[u8]> },
    /// Send a message of at most [`MESSAGE_MAX`](super::message::MESSAGE_MAX) bytes.
    Send { link: Link, bytes: Vec<u8> },
    /// Close a connection, after everything that was sent on it. No event for it follows.
    Close { link: Link, why: WhyClosed },
    /// This node is a member, in this life of the domain. Units may now join it.
    Admitted { domain: u64, life: NodeLife },
    /// This node cannot become a member. The machine has ended.
    NotAdmitted(Refusal),
    /// A node is a member; its agent can be reached at this address. `epoch` is the number of the
    /// change, or 0 for the head, which is a member from the beginning.
    NodeJoined {
        epoch: u64,
        life: NodeLife,
        name: Box<str>,
        address: Box<[u8]>,
    },
    /// A node is no longer a member. All of its slots are free now; units that were not dead have
    /// been reported as lost.
    NodeGone {
        epoch: u64,
        life: NodeLife,
        how: Departure,
    },
    /// A unit of another node, in the present or the last life of that node, has a new state: write
    /// its entry. `identity` is what a living unit states about itself.
    Unit {
        peer: PeerId,
        incarnation: u32,
        state: State,
        identity: Box<[u8]>,
    },
    /// Entries have changed: raise the epoch word of the node's roster, once, after all of them.
    RaiseEpoch,
    /// Nothing was received from the head for [`Config::silence`](super::Config::silence), or the
    /// head is known to be gone (`finally`): it left, another life of the domain has begun, or it
    /// broke the rules. What this node knows stays valid, but no node joins and the loss of a node
    /// is not noticed.
    HeadLost { finally: bool },
    /// The head can be reached again, and this node is still a member.
    HeadBack,
    /// This node was declared lost: end its units. The machine has ended.
    Fenced,
    /// This node has left. The machine has ended.
    Left,
}

impl Action {
    /// Returns true if the action changes entries of the roster.
    pub(super) fn writes_roster(&self) -> bool {
        use Action::{NodeGone, NodeJoined, Unit};
        matches!(self, NodeJoined { .. } | NodeGone { .. } | Unit { .. })
    }
}
