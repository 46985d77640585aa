//! How wide the ghost cells of a pattern are.

use crate::array::Bounds;

/// The ghost cells of a pattern: how many there are, and which elements they copy.
///
/// ```
/// use samite_pgas::array::{Halo, Pattern};
/// // One ghost cell on each side along the rows, and also beyond the corners; the columns wrap.
/// let halo = Halo::new([1, 1]).periodic([false, true]).with_corners();
/// let pattern = Pattern::block([120, 160], 4)?.with_halo(halo)?;
/// assert_eq!(pattern.grid().shape(), [2, 2]);
/// assert_eq!((pattern.local_extents(0), pattern.stored_extents(0)), ([60, 80], [62, 82]));
/// # Ok::<(), samite_pgas::array::ArrayError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Halo<const D: usize> {
    /// Ghost cells on either side of the block, per dimension.
    pub widths: [u64; D],
    /// Whether the array is periodic along a dimension. Otherwise the ghost cells at its ends copy
    /// nothing: they keep what was written there.
    pub periodic: [bool; D],
    /// Whether the ghost cells beside edges and corners are also exchanged. A stencil that only
    /// looks along the dimensions does not need them.
    pub corners: bool,
}

impl<const D: usize> Halo<D> {
    /// Creates a halo with faces only, not periodic.
    pub const fn new(widths: [u64; D]) -> Halo<D> {
        Halo {
            widths,
            periodic: [false; D],
            corners: false,
        }
    }

    /// Makes the array periodic along these dimensions.
    #[must_use]
    pub const fn periodic(self, periodic: [bool; D]) -> Halo<D> {
        Halo { periodic, ..self }
    }

    /// Adds edges and corners.
    #[must_use]
    pub const fn with_corners(self) -> Halo<D> {
        Halo {
            corners: true,
            ..self
        }
    }

    /// Iterates over the directions in which cells are sent.
    pub(in crate::array) fn directions(self) -> impl Iterator<Item = [i8; D]> {
        let all = Bounds::whole([3; D]).indices();
        let steps = all.map(|index: [u64; D]| index.map(|i| i as i8 - 1));
        steps.filter(move |step| {
            let moves = step.iter().filter(|step| **step != 0).count();
            let has_cells = (0..D).all(|d| step[d] == 0 || self.widths[d] > 0);
            has_cells && (moves == 1 || moves > 1 && self.corners)
        })
    }
}
