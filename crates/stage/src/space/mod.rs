//! Boxes in N-d space: cutting them, copying between them, splitting arrays into them, coverage.
//!
//! Everything is half-open, row-major (the last dimension is contiguous) and 64 bits wide.
//!
//! # Files
//! * `region`: [`Region`], a box.
//! * `copy`: [`copy_box`], the N-d copy between row-major or strided arrays.
//! * `grid`: [`Grid`], an array cut into M boxes as evenly as possible.
//! * `cover`: [`first_overlap`], [`first_hole`]: whether blocks tile a box.

mod copy;
mod cover;
mod grid;
mod region;

pub use copy::{Strided, copy_box};
pub(crate) use cover::overlap_within;
pub use cover::{first_hole, first_overlap};
pub use grid::Grid;
pub use region::{Dims, MAX_DIMS, Region};

/// Errors of boxes and arrays.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// Two things that should have the same number of dimensions do not.
    #[error("one box has {one} dimensions and the other {other}: give both the same number")]
    Dimensions {
        /// Dimensions of the first.
        one: usize,
        /// Dimensions of the second.
        other: usize,
    },
    /// More dimensions than [`MAX_DIMS`], or none.
    #[error("a box cannot have {dims} dimensions: from 1 to {MAX_DIMS} are possible")]
    DimensionCount {
        /// The requested number of dimensions.
        dims: usize,
    },
    /// A box whose upper corner is below its lower one.
    #[error(
        "the box ends at {upper} in dimension {dim}, before it begins at {lower}: boxes are half-open, lower <= upper"
    )]
    Inverted {
        /// The dimension.
        dim: usize,
        /// Where it begins.
        lower: u64,
        /// Where it ends.
        upper: u64,
    },
    /// A product or a sum exceeds 64 bits.
    #[error(
        "the size of the box {region} with elements of {element} bytes does not fit into 64 bits"
    )]
    TooLarge {
        /// The box.
        region: Region,
        /// Bytes of an element.
        element: u64,
    },
    /// A box that is not inside the array from which it is read or to which it is written.
    #[error("the box {asked} is not inside {whole}: ask for a box inside it")]
    Outside {
        /// The requested box.
        asked: Region,
        /// The box of the array.
        whole: Region,
    },
    /// An array of bytes that is too short for its box.
    #[error("the array {region} needs {needed} bytes, but {given} were given")]
    Short {
        /// The box of the array.
        region: Region,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that were given.
        given: u64,
    },
    /// An element size that no [`crate::Dtype`] has.
    #[error("elements cannot have {0} bytes: 1, 2, 4, 8 and 16 are possible")]
    ElementSize(u64),
    /// A grid without parts, or whose number of parts exceeds 64 bits.
    #[error("an array cannot be cut into a grid of {0:?}: every dimension needs at least one part")]
    Grid(Vec<u64>),
}

samite_mem::error_codes!(SpaceError, "space", {
    Dimensions = 330, DimensionCount = 331, Inverted = 332, TooLarge = 333, Outside = 334,
    Short = 335, ElementSize = 336, Grid = 337,
});
