//! Who gives which bytes to whom: what a collective means, said once for both engines.

/// How the bytes of a buffer belong to the ranks of a team.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    /// So many bytes for each.
    Equal(u64),
    /// Where the block of each begins, and last where the last one ends.
    Listed(Vec<u64>),
}

impl Blocks {
    /// Blocks of so many elements of `size` bytes; `None` if the sum is beyond what memory holds.
    pub(crate) fn listed(counts: &[u64], size: u64) -> Option<Blocks> {
        let mut starts = Vec::with_capacity(counts.len() + 1);
        let mut end = 0u64;
        starts.push(0);
        for count in counts {
            end = count.checked_mul(size)?.checked_add(end)?;
            starts.push(end);
        }
        (end < 1 << 63).then_some(Blocks::Listed(starts))
    }

    /// The block of a rank: where it begins and how long it is, in bytes.
    pub(crate) fn at(&self, rank: u32) -> (u64, u64) {
        match self {
            Blocks::Equal(bytes) => (u64::from(rank) * bytes, *bytes),
            Blocks::Listed(starts) => {
                let start = starts[rank as usize];
                (start, starts[rank as usize + 1] - start)
            }
        }
    }

    /// The longest block.
    pub(crate) fn longest(&self) -> u64 {
        match self {
            Blocks::Equal(bytes) => *bytes,
            Blocks::Listed(starts) => {
                let lengths = starts.windows(2).map(|ends| ends[1] - ends[0]);
                lengths.max().unwrap_or(0)
            }
        }
    }
}

/// A collective that only moves bytes, as one member sees it.
#[derive(Clone, Debug)]
pub(crate) enum Moves {
    Barrier,
    /// The root's bytes to everybody else.
    Broadcast {
        root: u32,
        bytes: u64,
    },
    /// A block of the root's bytes to each. Only the root knows the blocks.
    Scatter {
        root: u32,
        from: Blocks,
        mine: u64,
    },
    /// A block of each to the root. Only the root knows the blocks.
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
}

/// Bytes that a member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Take {
    pub(crate) from: u32,
    /// Where they go.
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl Moves {
    /// Whether a giver has another block for each taker; else all take the same.
    pub(crate) fn apart(&self) -> bool {
        matches!(self, Moves::Scatter { .. } | Moves::AllToAll { .. })
    }

    /// What the member `me` gives to `to`: offset and length.
    pub(crate) fn gives(&self, me: u32, to: u32) -> (u64, u64) {
        match self {
            Moves::Broadcast { root, bytes } if *root == me => (0, *bytes),
            Moves::Scatter { root, from, .. } if *root == me => from.at(to),
            Moves::Gather { root, mine, .. } if *root == to => (0, *mine),
            Moves::AllGather { blocks } => (0, blocks.at(me).1),
            Moves::AllToAll { from, .. } => from.at(to),
            _ => (0, 0),
        }
    }

    /// What the member `me` gets from `from`.
    pub(crate) fn takes(&self, me: u32, from: u32) -> Take {
        let (at, len) = match self {
            Moves::Broadcast { root, bytes } if *root == from && me != from => (0, *bytes),
            Moves::Scatter { root, mine, .. } if *root == from => (0, *mine),
            Moves::Gather { root, into, .. } if *root == me => into.at(from),
            Moves::AllGather { blocks } => blocks.at(from),
            Moves::AllToAll { into, .. } => into.at(from),
            _ => (0, 0),
        };
        Take { from, at, len }
    }

    /// Length of the longest block, if every member knows it: then all can tell a small call.
    pub(crate) fn known_longest(&self) -> Option<u64> {
        match self {
            Moves::Barrier => Some(0),
            Moves::Broadcast { bytes, .. } => Some(*bytes),
            Moves::Scatter {
                from: Blocks::Equal(bytes),
                ..
            } => Some(*bytes),
            Moves::Gather {
                into: Blocks::Equal(bytes),
                ..
            } => Some(*bytes),
            Moves::AllGather { blocks } => Some(blocks.longest()),
            Moves::AllToAll {
                from: Blocks::Equal(bytes),
                ..
            } => Some(*bytes),
            _ => None,
        }
    }
}

/// A collective that combines, on vectors of `bytes` at each member; of a reduce-scatter they are `bytes`
/// for each member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    Reduce { root: u32 },
    AllReduce,
    ReduceScatter,
    Scan,
    ExScan,
}

impl Combine {
    /// Whether the member `rank` gets a result.
    pub(crate) fn gives_to(self, rank: u32) -> bool {
        match self {
            Combine::Reduce { root } => root == rank,
            Combine::ExScan => rank > 0,
            _ => true,
        }
    }
}
