//! The errors of distributed arrays and maps.

use crate::Unit;
use samite_fabric::Named;

/// An impossible shape, distribution, index or call.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// A grid without ranks, or with more than 2^32 - 1.
    #[error(
        "a grid of {0:?} ranks is impossible: every dimension needs at least one, and at most 2^32 - 1 are allowed in total"
    )]
    Grid(Vec<u32>),
    /// Several ranks along dimensions that are not cut.
    #[error(
        "{ranks} ranks along dimensions that are `Whole`; cut one of them, or use 1 rank there"
    )]
    NothingToCut {
        /// Ranks to deal out to.
        ranks: u32,
    },
    /// The grid does not fit the team.
    #[error("the grid has {grid} ranks and the team {team}")]
    OtherTeam {
        /// Ranks of the grid.
        grid: u32,
        /// Members of the team.
        team: u32,
    },
    /// Blocks or tiles of length 0.
    #[error("the blocks along dimension {dimension} have length 0")]
    EmptyBlock {
        /// The dimension.
        dimension: usize,
    },
    /// More elements than 2^64.
    #[error("an array of {0:?} elements, with its ghost cells, has more than 2^64")]
    TooLarge(Vec<u64>),
    /// Ghost cells around blocks that are dealt out.
    #[error("ghost cells along dimension {dimension} need the distribution `Block` or `Whole`")]
    ScatteredHalo {
        /// The dimension.
        dimension: usize,
    },
    /// More ghost cells than the neighbour has elements.
    #[error(
        "ghost cells of width {width} along dimension {dimension} are wider than the {block} elements of a rank; \
         use fewer ranks or narrower ghost cells"
    )]
    WideHalo {
        /// The dimension.
        dimension: usize,
        /// The requested width.
        width: u64,
        /// Elements of the shortest block.
        block: u64,
    },
    /// Indices that the array does not have.
    #[error("{what} lies outside of an array of {extents:?} elements")]
    Outside {
        /// The index or box.
        what: String,
        /// The extents of the array.
        extents: Vec<u64>,
    },
    /// Two arrays that are not distributed alike.
    #[error("the arrays are not distributed alike; copy one into an array of the other's pattern")]
    OtherPattern,
    /// Two arrays over different units.
    #[error("the arrays lie over different units; copy boxes with `get` and `put`")]
    OtherUnits,
    /// Boxes of a copy that do not fit together.
    #[error("a box of {from:?} elements cannot be copied into one of {to:?}")]
    OtherShape {
        /// Extents of the box that is written.
        to: Vec<u64>,
        /// Extents of the box that is read.
        from: Vec<u64>,
    },
    /// The array is not distributed in blocks, which the algorithm needs.
    #[error("only an array that is distributed in blocks can be sorted; copy it into one")]
    NotInBlocks,
    /// A comparison by which elements cannot be sorted.
    #[error(
        "the comparison is not a total order, or differs between members (for floats, use `total_cmp`); \
         at best, each block is sorted on its own"
    )]
    NoOrder,
    /// An exchange of ghost cells was started twice, or finished without being started.
    #[error("an exchange of ghost cells {0}")]
    Exchange(&'static str),
    /// The unit to which a key belongs has no free slot.
    #[error("all {slots} slots of {unit} are taken; make the map with more, or remove entries")]
    MapFull {
        /// The unit whose slots are taken.
        unit: Named<Unit>,
        /// How many slots it has.
        slots: u64,
    },
}

samite_mem::error_codes!(ArrayError, "array", {
    Grid = 250, NothingToCut = 251, OtherTeam = 252, EmptyBlock = 253, TooLarge = 254,
    ScatteredHalo = 255, WideHalo = 256, Outside = 257, OtherPattern = 258, OtherUnits = 259,
    OtherShape = 260, NotInBlocks = 261, NoOrder = 262, Exchange = 263, MapFull = 264,
});
