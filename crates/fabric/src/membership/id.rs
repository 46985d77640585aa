//! Whom a message means: nodes, and which life of each.

use crate::{PeerId, Slot};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Bits of a unit's incarnation that count the lives of its slot in one life of its node.
const LIFE_BITS: u32 = 20;

/// Number of a node in its domain, below 2^20. The head orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub(crate) struct NodeId(u32);

impl NodeId {
    /// The node whose agent orders all nodes.
    pub(crate) const HEAD: NodeId = NodeId(0);
    /// Numbers that there are.
    pub(crate) const COUNT: u32 = PeerId::NODES_MAX;

    /// The node with this number; `None` from [`NodeId::COUNT`] on.
    pub(crate) fn new(number: u32) -> Option<NodeId> {
        (number < Self::COUNT).then_some(NodeId(number))
    }

    /// Its number.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// The unit in a slot of it.
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

/// One life of a node: of its agent, and of the units that the agent admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct NodeLife {
    /// Which node.
    pub node: NodeId,
    /// Which of its lives, from 0, at most [`NodeLife::LAST`].
    pub incarnation: u32,
}

impl NodeLife {
    /// The last life of a number. After it, the number is not used again.
    pub(crate) const LAST: u32 = (1 << (32 - LIFE_BITS)) - 1;
    /// The head has one life. Another one begins another domain.
    pub(crate) const HEAD: NodeLife = NodeLife {
        node: NodeId::HEAD,
        incarnation: 0,
    };

    /// The incarnations that the agent may give its units. Those of two lives of a node have none
    /// in common, so no unit of a new life is taken for one of an old life. The first life begins
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
