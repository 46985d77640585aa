//! Who gives which bytes to whom: the meaning of a collective, defined once for both links.

/// How the bytes of a buffer are divided among the ranks of a team.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    /// This many bytes for each.
    Equal(u64),
    /// The start and the length of each block.
    Listed(Vec<(u64, u64)>),
}

impl Blocks {
    /// Returns the start and the length of the block of a rank, in bytes.
    pub(crate) fn at(&self, rank: u32) -> (u64, u64) {
        match self {
            Blocks::Equal(bytes) => (u64::from(rank) * bytes, *bytes),
            Blocks::Listed(blocks) => blocks[rank as usize],
        }
    }

    /// Returns the length of the longest block.
    pub(crate) fn longest(&self) -> u64 {
        match self {
            Blocks::Equal(bytes) => *bytes,
            Blocks::Listed(blocks) => blocks.iter().map(|(_, len)| *len).max().unwrap_or(0),
        }
    }
}

/// A collective, as one member sees it.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Barrier,
    /// The root's bytes go to all other members.
    Broadcast {
        root: u32,
        bytes: u64,
    },
    /// A block of the root's bytes goes to each member. Only the root knows the blocks.
    Scatter {
        root: u32,
        from: Blocks,
        mine: u64,
    },
    /// A block of each member goes to the root. Only the root knows the blocks.
    Gather {
        root: u32,
        into: Blocks,
        mine: u64,
    },
    AllGather {
        blocks: Blocks,
    },
    AllToAll {
        from: Blocks,
        into: Blocks,
    },
    Combines(Combine, Elements),
}

/// A collective that combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    Reduce { root: u32 },
    AllReduce,
    ReduceScatter,
    Scan,
    ExScan,
}

impl Combine {
    /// Returns true if the member `rank` gets a result.
    pub(crate) fn gives_to(self, rank: u32) -> bool {
        match self {
            Combine::Reduce { root } => root == rank,
            Combine::ExScan => rank > 0,
            _ => true,
        }
    }
}

/// The elements that are combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements {
    /// The length of each member's vector in bytes; in a reduce-scatter, of its block for each
    /// member.
    pub(crate) bytes: u64,
    /// The size of an element in bytes.
    pub(crate) size: u64,
    pub(crate) commute: bool,
}

/// Bytes that a member gets: where they go, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Take {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl Shape {
    /// Returns true if a giver has a separate block for each taker; otherwise all take the same.
    pub(crate) fn apart(&self) -> bool {
        match self {
            Shape::Combines(combine, _) => *combine == Combine::ReduceScatter,
            shape => matches!(shape, Shape::Scatter { .. } | Shape::AllToAll { .. }),
        }
    }

    /// Returns the offset and the length of what the member `me` gives to `to`.
    #[inline]
    pub(crate) fn gives(&self, me: u32, to: u32) -> (u64, u64) {
        match self {
            Shape::Broadcast { root, bytes } if *root == me => (0, *bytes),
            Shape::Scatter { root, from, .. } if *root == me => from.at(to),
            Shape::Gather { root, mine, .. } if *root == to => (0, *mine),
            Shape::AllGather { blocks } => (0, blocks.at(me).1),
            Shape::AllToAll { from, .. } => from.at(to),
            Shape::Combines(Combine::ReduceScatter, elements) => {
                (u64::from(to) * elements.bytes, elements.bytes)
            }
            Shape::Combines(_, elements) => (0, elements.bytes),
            _ => (0, 0),
        }
    }

    /// Returns what the member `me` gets from `from`, before it is combined.
    #[inline]
    pub(crate) fn takes(&self, me: u32, from: u32) -> Take {
        let (at, len) = match self {
            Shape::Broadcast { root, bytes } if *root == from && me != from => (0, *bytes),
            Shape::Scatter { root, mine, .. } if *root == from => (0, *mine),
            Shape::Gather { root, into, .. } if *root == me => into.at(from),
            Shape::AllGather { blocks } => blocks.at(from),
            Shape::AllToAll { into, .. } => into.at(from),
            Shape::Combines(_, elements) => (0, elements.bytes),
            _ => (0, 0),
        };
        Take { at, len }
    }

    /// Returns the length of the longest block, if every member knows it: then all recognise a
    /// small call.
    #[inline]
    pub(crate) fn known_longest(&self) -> Option<u64> {
        match self {
            Shape::Barrier => Some(0),
            Shape::AllGather { blocks } => Some(blocks.longest()),
            Shape::Combines(_, Elements { bytes, .. })
            | Shape::Broadcast { bytes, .. }
            | Shape::Scatter {
                from: Blocks::Equal(bytes),
                ..
            }
            | Shape::Gather {
                into: Blocks::Equal(bytes),
                ..
            }
            | Shape::AllToAll {
                from: Blocks::Equal(bytes),
                ..
            } => Some(*bytes),
            _ => None,
        }
    }
}
