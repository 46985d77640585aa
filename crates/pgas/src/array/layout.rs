//! How the elements of one rank are laid out in its memory: tile after tile, row-major inside a
//! tile.

use super::Bounds;

/// The memory layout of a rank. Coordinates count from the first ghost cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout<const D: usize> {
    /// The number of elements along each dimension, with ghost cells.
    pub(crate) extents: [u64; D],
    /// The edges of the tiles; tiles at the upper ends are shorter. Equal to the extent if there
    /// are no tiles.
    pub(crate) edges: [u64; D],
}

/// Elements that are consecutive along the last dimension and in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<const D: usize> {
    pub(crate) at: [u64; D],
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A tile, clipped to the extents.
struct Tile<const D: usize> {
    /// The number of elements before it in memory.
    before: u64,
    first: [u64; D],
    extents: [u64; D],
}

impl<const D: usize> Layout<D> {
    pub(crate) fn len(&self) -> u64 {
        self.extents.iter().product()
    }

    /// Returns the tile that contains an element.
    #[inline]
    fn tile(&self, at: [u64; D]) -> Tile<D> {
        let (mut before, mut high) = (0, 1);
        let (mut first, mut extents) = ([0; D], [0; D]);
        for d in 0..D {
            let (all, edge) = (self.extents[d], self.edges[d]);
            if edge < all {
                first[d] = at[d] / edge * edge;
            }
            extents[d] = edge.min(all - first[d]);
            // The tiles before this one along `d` are as high as the tile so far and have the full
            // extent in all later dimensions.
            before = before * all + first[d] * high;
            high *= extents[d];
        }
        Tile {
            before,
            first,
            extents,
        }
    }

    /// Returns the offset of an element.
    #[inline]
    pub(crate) fn offset(&self, at: [u64; D]) -> u64 {
        self.tile(at).offset(at)
    }

    /// Returns which element is at an offset below [`Layout::len`].
    pub(crate) fn coordinates(&self, offset: u64) -> [u64; D] {
        let (mut at, mut extents, mut rest) = ([0; D], [0; D], offset);
        for d in 0..D {
            // Elements per step along `d`: the tile's extents so far times the full extents to
            // come.
            let height: u64 = extents[..d].iter().chain(&self.extents[d + 1..]).product();
            at[d] = rest / (height * self.edges[d]) * self.edges[d];
            rest -= at[d] * height;
            extents[d] = self.edges[d].min(self.extents[d] - at[d]);
        }
        for d in (0..D).rev() {
            at[d] += rest % extents[d];
            rest /= extents[d];
        }
        at
    }

    /// Iterates over the lines of a box that is inside, in the order of memory.
    pub(crate) fn lines(&self, bounds: Bounds<D>) -> impl Iterator<Item = Line<D>> + use<D> {
        let layout = *self;
        let edges = layout.edges.map(|edge| edge.max(1));
        let tiles: Bounds<D> = Bounds {
            lo: std::array::from_fn(|d| bounds.lo[d] / edges[d]),
            hi: std::array::from_fn(|d| bounds.hi[d].div_ceil(edges[d])),
        };
        // An empty box may still touch tiles.
        let tiles = (!bounds.is_empty()).then(|| tiles.indices());
        tiles.into_iter().flatten().flat_map(move |tile: [u64; D]| {
            let tile = layout.tile(std::array::from_fn(|d| tile[d] * edges[d]));
            let within: Bounds<D> = Bounds {
                lo: std::array::from_fn(|d| bounds.lo[d].max(tile.first[d])),
                hi: std::array::from_fn(|d| bounds.hi[d].min(tile.first[d] + tile.extents[d])),
            };
            let mut starts = within;
            let mut len = 1;
            if let (Some(hi), Some(lo)) = (starts.hi.last_mut(), within.lo.last()) {
                len = *hi - lo;
                *hi = lo + 1;
            }
            starts.indices().map(move |at: [u64; D]| Line {
                at,
                offset: tile.offset(at),
                len,
            })
        })
    }
}

impl<const D: usize> Tile<D> {
    /// Returns the offset of an element of the tile.
    #[inline]
    fn offset(&self, at: [u64; D]) -> u64 {
        let mut within = 0;
        for (d, at) in at.iter().enumerate() {
            within = within * self.extents[d] + (at - self.first[d]);
        }
        self.before + within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the coordinates tile after tile, each tile row by row.
    fn in_order(layout: &Layout<2>) -> Vec<[u64; 2]> {
        let whole = Bounds::whole(layout.extents);
        let mut all: Vec<_> = whole.indices().collect();
        let tile = |at: &[u64; 2]| [at[0] / layout.edges[0], at[1] / layout.edges[1]];
        all.sort_by_key(|at| (tile(at), *at));
        all
    }

    #[test]
    fn offsets_count_along_the_tiles() {
        for (extents, edges) in [
            ([5, 7], [2, 3]),
            ([4, 6], [2, 3]),
            ([5, 7], [5, 2]),
            ([5, 7], [9, 9]),
        ] {
            let layout = Layout { extents, edges };
            for (offset, at) in in_order(&layout).into_iter().enumerate() {
                assert_eq!(layout.offset(at), offset as u64, "{at:?} of {layout:?}");
                assert_eq!(layout.coordinates(offset as u64), at);
            }
        }
    }

    #[test]
    fn lines_of_a_box_are_in_order() {
        let layout = Layout {
            extents: [5, 7],
            edges: [2, 3],
        };
        let bounds = Bounds::from([1..4, 2..7]);
        let expected = in_order(&layout);
        let expected = expected.into_iter().filter(|at| bounds.contains(*at));
        let found = layout.lines(bounds).flat_map(|line| {
            (0..line.len).map(move |step| {
                assert_eq!(layout.offset(line.at) + step, line.offset + step);
                [line.at[0], line.at[1] + step]
            })
        });
        assert!(found.eq(expected));
        assert_eq!(layout.lines(Bounds::from([1..1, 2..7])).count(), 0);
    }
}
