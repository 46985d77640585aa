//! Addressees of messages: nodes, and their lives.

use crate::{PeerId, Slot};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Bits of a unit's incarnation that count the lives of its slot within one life of its node.
const LIFE_BITS: u32 = 20;

/// Number of a node in its domain, below 2^20. The head assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub(crate) struct NodeId(u32);

impl NodeId {
    /// The node whose agent is the head.
    pub(crate) const HEAD: NodeId = NodeId(0);
    /// Number of possible node numbers.
    pub(crate) const COUNT: u32 = PeerId::NODES_MAX;

    /// Returns the node with this number, `None` from [`NodeId::COUNT`] on.
    pub(crate) fn new(number: u32) -> Option<NodeId> {
        (number < Self::COUNT).then_some(NodeId(number))
    }

    /// Returns the node's number.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// Returns the unit in a slot of this node.
    pub(super) fn unit(self, slot: Slot) -> PeerId {
        PeerId::new(self.0, slot.0)
    }
}

impl TryFrom<u32> for NodeId {
    type Error = &'static str;
    fn try_from(number: u32) -> Result<Self, Self::Error> {
        NodeId::new(number).ok_or("no number of a node")
    }
}

impl From<NodeId> for u32 {
    fn from(node: NodeId) -> u32 {
        node.0
    }
}

/// One life of a node: that of its agent, and of the units that the agent admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct NodeLife {
    /// The node.
    pub node: NodeId,
    /// Number of the life, from 0 to [`NodeLife::LAST`].
    pub incarnation: u32,
}

impl NodeLife {
    /// The last life of a node number. After it, the number is not used again.
    pub(crate) const LAST: u32 = (1 << (32 - LIFE_BITS)) - 1;
    /// The head has one life. A restarted head begins another domain.
    pub(crate) const HEAD: NodeLife = NodeLife {
        node: NodeId::HEAD,
        incarnation: 0,
    };

    /// Returns the incarnations that the agent may give its units. Two lives of a node have none in
    /// common, so no unit of a new life is mistaken for one of an old life. The first life begins
    /// with 1.
    pub(crate) fn incarnations(self) -> RangeInclusive<u32> {
        let first = self.incarnation << LIFE_BITS;
        first + 1..=first + ((1 << LIFE_BITS) - 1)
    }
}

impl fmt::Display for NodeLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (life {})", self.node.0, self.incarnation)
    }
}
