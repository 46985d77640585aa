//! Patterns: which rank owns which element, and where. Pure arithmetic, the same at every unit.
//!
//! ```text
//!   index [i, j] ── per dimension ──> coordinates in the grid of ranks ──> rank
//!                                     and its position in that rank's elements (local coordinates)
//!                                              │ tile after tile, row-major, ghost cells around
//!                                              └──> offset in the rank's memory
//! ```
//! Local coordinates ascend with the index in every distribution, so the intersection of a box and
//! a rank's elements is a box of local coordinates as well. The elements of a rank lie without
//! gaps: a tile at the upper edge is shorter, and the offset of a tile follows from the tiles
//! before it without a table.
//!
//! Source: patterns of DASH (Fürlinger et al., HPCC 2016, section III-C).

mod halo;

use super::dist::Axis;
use super::layout::{Layout, Line};
use super::{ArrayError, Bounds, Dist, Grid};

pub use halo::Halo;

/// The distribution of the elements of a `D`-dimensional array over ranks.
///
/// ```
/// use samite_pgas::array::{Dist, Grid, Pattern};
/// // 100 x 60 elements: rows in blocks of 10, dealt out over two ranks; columns are not cut.
/// let dists = [Dist::BlockCyclic(10), Dist::Whole];
/// let pattern = Pattern::new([100, 60], dists, Grid::new([2, 1])?)?;
/// let place = pattern.locate([25, 0]);
/// assert_eq!((place.rank, place.offset), (0, 15 * 60));
/// assert_eq!(pattern.local_len(1), 3000);
/// # Ok::<(), samite_pgas::array::ArrayError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern<const D: usize> {
    axes: [Axis; D],
    grid: Grid<D>,
    halo: Halo<D>,
}

/// Where an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The rank whose memory it is.
    pub rank: u32,
    /// The index in that memory, in elements.
    pub offset: u64,
}

/// Elements that are consecutive along the last dimension and in the memory of their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run<const D: usize> {
    /// Index of the first one.
    pub index: [u64; D],
    /// Its offset in the owner's memory.
    pub offset: u64,
    /// The number of elements.
    pub len: u64,
}

impl<const D: usize> Pattern<D> {
    /// Creates a pattern of `extents` elements per dimension, distributed as `dists` say over a
    /// grid of ranks.
    ///
    /// # Errors
    /// More than 2^64 elements, blocks of length 0, or a dimension that is `Whole` with several
    /// ranks.
    pub fn new(
        extents: [u64; D],
        dists: [Dist; D],
        grid: Grid<D>,
    ) -> Result<Pattern<D>, ArrayError> {
        let shape = grid.shape();
        for d in 0..D {
            match dists[d] {
                Dist::Whole if shape[d] > 1 => {
                    return Err(ArrayError::NothingToCut { ranks: shape[d] });
                }
                Dist::BlockCyclic(0) | Dist::Tiled(0) => {
                    return Err(ArrayError::EmptyBlock { dimension: d });
                }
                _ => {}
            }
        }
        let axes = std::array::from_fn(|d| Axis::new(extents[d], dists[d], shape[d]));
        let halo = Halo::new([0; D]);
        let pattern = Pattern { axes, grid, halo };
        pattern.check_size()?;
        Ok(pattern)
    }

    /// Creates a pattern over a grid of `ranks` that is as square as possible ([`Grid::balanced`]).
    pub fn balanced(
        extents: [u64; D],
        dists: [Dist; D],
        ranks: u32,
    ) -> Result<Pattern<D>, ArrayError> {
        let cut = |d: usize| (dists[d] != Dist::Whole).then_some(extents[d]);
        let grid = Grid::balanced(ranks, std::array::from_fn(cut))?;
        Pattern::new(extents, dists, grid)
    }

    /// Creates a pattern with blocks in every dimension over a balanced grid.
    pub fn block(extents: [u64; D], ranks: u32) -> Result<Pattern<D>, ArrayError> {
        Pattern::balanced(extents, [Dist::Block; D], ranks)
    }

    /// Adds ghost cells around the block of every rank. They lie in the same memory, so that a
    /// stencil runs over one array.
    ///
    /// # Errors
    /// Ghost cells along a dimension with several blocks per rank, or a width above the shortest
    /// block, which would need elements of the neighbour's neighbour.
    pub fn with_halo(mut self, halo: Halo<D>) -> Result<Pattern<D>, ArrayError> {
        self.halo = halo;
        for (d, axis) in self.axes.iter_mut().enumerate() {
            let width = halo.widths[d];
            if width > 0 && !matches!(axis.dist, Dist::Whole | Dist::Block) {
                return Err(ArrayError::ScatteredHalo { dimension: d });
            }
            // Only the last parts of a dimension can be empty.
            let shortest = (axis.extent / u64::from(axis.parts)).max(1);
            if width > shortest {
                return Err(ArrayError::WideHalo {
                    dimension: d,
                    width,
                    block: shortest,
                });
            }
            axis.halo = width;
        }
        self.check_size()?;
        Ok(self)
    }

    fn check_size(&self) -> Result<(), ArrayError> {
        let product = |mut edges: [u64; D]| {
            // An empty dimension makes the array empty, however long the others are.
            if edges.contains(&0) {
                edges = [0; D];
            }
            edges.iter().try_fold(1u64, |all, n| all.checked_mul(*n))
        };
        let stored = product(std::array::from_fn(|d| self.axes[d].stored(0)));
        match product(self.extents()).and(stored) {
            Some(_) => Ok(()),
            None => Err(ArrayError::TooLarge(self.extents().to_vec())),
        }
    }

    /// Returns the number of elements along each dimension.
    pub fn extents(&self) -> [u64; D] {
        self.axes.map(|axis| axis.extent)
    }

    /// Returns the total number of elements.
    pub fn len(&self) -> u64 {
        self.bounds().len()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the box of all indices.
    pub fn bounds(&self) -> Bounds<D> {
        Bounds::whole(self.extents())
    }

    /// Returns the distribution of each dimension.
    pub fn dists(&self) -> [Dist; D] {
        self.axes.map(|axis| axis.dist)
    }

    /// Returns the grid of ranks.
    pub fn grid(&self) -> Grid<D> {
        self.grid
    }

    /// Returns the ghost cells.
    pub fn halo(&self) -> Halo<D> {
        self.halo
    }

    /// Returns true if there is an element with this index.
    #[inline]
    pub fn contains(&self, index: [u64; D]) -> bool {
        (0..D).all(|d| index[d] < self.axes[d].extent)
    }

    /// Returns the number of elements that a rank has along each dimension, without ghost cells.
    pub fn local_extents(&self, rank: u32) -> [u64; D] {
        let at = self.grid.coordinates(rank);
        std::array::from_fn(|d| self.axes[d].len(at[d]))
    }

    /// Returns the number of elements that a rank has, without ghost cells.
    pub fn local_len(&self, rank: u32) -> u64 {
        self.local_extents(rank).iter().product()
    }

    /// Returns the extents of a rank's memory along each dimension, with ghost cells. Without
    /// tiles, the memory is row-major in this shape.
    pub fn stored_extents(&self, rank: u32) -> [u64; D] {
        let at = self.grid.coordinates(rank);
        let stored: [u64; D] = std::array::from_fn(|d| self.axes[d].stored(at[d]));
        // A rank without elements along one dimension stores nothing.
        if stored.contains(&0) { [0; D] } else { stored }
    }

    /// Returns the number of elements of memory that a rank uses.
    pub fn stored_len(&self, rank: u32) -> u64 {
        self.stored_extents(rank).iter().product()
    }

    /// Returns the number of elements that every rank needs in a symmetric allocation: that of rank
    /// 0, which has most.
    pub fn capacity(&self) -> u64 {
        self.stored_len(0)
    }

    /// Returns the location of an element. The index must be inside.
    #[inline]
    pub fn locate(&self, index: [u64; D]) -> Location {
        let (mut at, mut local) = ([0; D], [0; D]);
        for d in 0..D {
            (at[d], local[d]) = self.axes[d].locate(index[d]);
        }
        let stored = std::array::from_fn(|d| local[d] + self.axes[d].halo);
        Location {
            rank: self.grid.rank(at),
            offset: self.layout(at).offset(stored),
        }
    }

    /// Returns the index of the element at a location; `None` for a ghost cell and beyond the end.
    /// The inverse of [`Pattern::locate`].
    pub fn index(&self, place: Location) -> Option<[u64; D]> {
        let at = self.grid.coordinates(place.rank);
        let layout = self.layout(at);
        if place.offset >= layout.len() {
            return None;
        }
        let mut index = layout.coordinates(place.offset);
        for d in 0..D {
            let axis = &self.axes[d];
            let local = index[d].checked_sub(axis.halo);
            let local = local.filter(|local| *local < axis.len(at[d]))?;
            index[d] = axis.index(at[d], local);
        }
        Some(index)
    }

    /// Returns the memory layout of the rank with these coordinates in the grid.
    #[inline]
    pub(crate) fn layout(&self, at: [u32; D]) -> Layout<D> {
        let extents: [u64; D] = std::array::from_fn(|d| self.axes[d].stored(at[d]));
        Layout {
            extents,
            edges: std::array::from_fn(|d| self.axes[d].tile(extents[d])),
        }
    }

    /// Returns where a box begins if all of its elements are consecutive in the memory of one rank;
    /// `None` if a cheap test cannot tell.
    #[inline]
    pub(crate) fn in_one_run(&self, bounds: Bounds<D>) -> Option<Location> {
        let last = D.checked_sub(1)?;
        let row = (0..last).all(|d| bounds.hi[d] - bounds.lo[d] == 1);
        let len = bounds.hi[last] - bounds.lo[last];
        if !row || len == 0 {
            return None;
        }
        let (part, local) = self.axes[last].locate(bounds.lo[last]);
        let run = self.axes[last].run(part, local);
        (len <= run).then(|| self.locate(bounds.lo))
    }

    /// Returns the rank that owns the elements one step away along every dimension where `step` is
    /// not 0. For dimensions in blocks. `None` beyond the ends, and for a rank without elements.
    pub(crate) fn neighbour(&self, rank: u32, step: [i8; D]) -> Option<u32> {
        if self.local_len(rank) == 0 {
            return None;
        }
        let mut at = self.grid.coordinates(rank);
        for d in 0..D {
            let axis = &self.axes[d];
            // Only the last parts of a dimension can be empty.
            let parts = u64::from(axis.parts).min(axis.extent) as i64;
            let mut next = i64::from(at[d]) + i64::from(step[d]);
            if self.halo.periodic[d] {
                next = next.rem_euclid(parts);
            }
            at[d] = u32::try_from(next)
                .ok()
                .filter(|at| i64::from(*at) < parts)?;
        }
        Some(self.grid.rank(at))
    }

    /// Iterates over the ranks that own elements of a box, each once.
    pub fn ranks(&self, bounds: Bounds<D>) -> impl Iterator<Item = u32> + use<D> {
        let grid = self.grid;
        let touched = |d: usize| self.axes[d].touched(bounds.lo[d], bounds.hi[d]);
        let touched: [Vec<u32>; D] = std::array::from_fn(|d| touched(d).collect());
        let counts: [u64; D] = std::array::from_fn(|d| touched[d].len() as u64);
        let steps = Bounds::whole(counts).indices();
        steps.map(move |step: [u64; D]| {
            grid.rank(std::array::from_fn(|d| touched[d][step[d] as usize]))
        })
    }

    /// Iterates over a rank's elements of a box that is inside, as runs in the order of its memory.
    pub fn runs(&self, rank: u32, bounds: Bounds<D>) -> impl Iterator<Item = Run<D>> + use<'_, D> {
        let at = self.grid.coordinates(rank);
        let stored = |d: usize, index| self.axes[d].below(at[d], index) + self.axes[d].halo;
        let own = Bounds {
            lo: std::array::from_fn(|d| stored(d, bounds.lo[d])),
            hi: std::array::from_fn(|d| stored(d, bounds.hi[d])),
        };
        self.layout(at)
            .lines(own)
            .flat_map(move |line: Line<D>| self.split(at, line))
    }

    /// Splits a line without ghost cells into runs of consecutive indices.
    fn split(&self, at: [u32; D], line: Line<D>) -> impl Iterator<Item = Run<D>> + use<'_, D> {
        let first = std::array::from_fn(|d| line.at[d] - self.axes[d].halo);
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = line.len - done;
            if left == 0 {
                return None;
            }
            let mut local: [u64; D] = first;
            let len = match local.last_mut() {
                None => 1,
                Some(last) => {
                    *last += done;
                    self.axes[D - 1].run(at[D - 1], *last).min(left)
                }
            };
            let offset = line.offset + done;
            done += len;
            Some(Run {
                index: std::array::from_fn(|d| self.axes[d].index(at[d], local[d])),
                offset,
                len,
            })
        })
    }

    /// Iterates over all elements of a rank, as runs in the order of its memory.
    pub fn local_runs(&self, rank: u32) -> impl Iterator<Item = Run<D>> + use<'_, D> {
        self.runs(rank, self.bounds())
    }
}

#[cfg(test)]
mod tests;
