//! Boxes of N-d space: cut them, copy between them, split an array into them, see what they cover.
//!
//! Everything is half-open, row-major (the last dimension is contiguous) and 64 bits wide.
//!
//! # Files
//! * `region`: [`Region`], a box.
//! * `copy`: [`copy_box`], the N-d copy between row-major or strided arrays.
//! * `grid`: [`Grid`], an array cut into M boxes as evenly as possible.
//! * `cover`: [`first_overlap`], [`first_hole`]: do blocks tile a box?

mod copy;
mod cover;
mod grid;
mod region;

pub use copy::{Strided, copy_box};
pub use cover::{first_hole, first_overlap};
pub use grid::Grid;
pub use region::{Dims, MAX_DIMS, Region};

/// What can be wrong with boxes and arrays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// Two things that should have the same number of dimensions do not.
    #[error("one box has {one} dimensions and the other {other}: give both the same number")]
    Dimensions {
        /// Of the first.
        one: usize,
        /// Of the second.
        other: usize,
    },
    /// More dimensions than [`MAX_DIMS`], or none.
    #[error("a box cannot have {dims} dimensions: from 1 to {MAX_DIMS} are possible")]
    DimensionCount {
        /// How many were asked.
        dims: usize,
    },
    /// A box whose upper corner lies below its lower one.
    #[error(
        "the box ends at {upper} in dimension {dim}, before it begins at {lower}: boxes are half-open, lower <= upper"
    )]
    Inverted {
        /// Which dimension.
        dim: usize,
        /// Where it begins.
        lower: u64,
        /// Where it ends.
        upper: u64,
    },
    /// A product or a sum that 64 bits do not hold.
    #[error(
        "the size of the box {region} with elements of {element} bytes does not fit into 64 bits"
    )]
    TooLarge {
        /// The box.
        region: Region,
        /// Bytes of an element.
        element: u64,
    },
    /// A box that is not inside the array that it is read from or written to.
    #[error("the box {asked} is not inside {whole}: ask for a box inside it")]
    Outside {
        /// The box that was asked.
        asked: Region,
        /// What there is.
        whole: Region,
    },
    /// An array of bytes that is too short for its box.
    #[error("the array {region} needs {needed} bytes, but {given} were given")]
    Short {
        /// The box that the bytes should hold.
        region: Region,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes there are.
        given: u64,
    },
    /// An element size that no [`crate::Dtype`] has.
    #[error("elements cannot have {0} bytes: 1, 2, 4, 8 and 16 are possible")]
    ElementSize(u64),
    /// A grid of no parts, or of more parts than 64 bits count.
    #[error("an array cannot be cut into a grid of {0:?}: every dimension needs at least one part")]
    Grid(Vec<u64>),
}

samite_mem::error_codes!(SpaceError, "space", {
    Dimensions = 330, DimensionCount = 331, Inverted = 332, TooLarge = 333, Outside = 334,
    Short = 335, ElementSize = 336, Grid = 337,
});
