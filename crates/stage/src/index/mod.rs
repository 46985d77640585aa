//! Finds the blocks of a variable that touch a box.
//!
//! An index is built once from the blocks of all writer ranks (and kept as long as the layout does
//! not change). A query returns block numbers and the part of the box in each. Its size depends
//! only on the number of blocks: an array 64 times as large, cut into as many blocks, has an index
//! of the same size.
//!
//! * Blocks that form a grid (all combinations of some intervals per dimension, as decompositions
//!   do) are stored as a vector of intervals per dimension: O(sum of divisions) for blocks in
//!   row-major order, 4 more bytes per block in any other order. A query is arithmetic. [`Index`]
//!   recognises grids by itself.
//! * Others are stored as an R-tree, bulk-loaded by sort-tile-recursive (Leutenegger et al., 1997)
//!   and flat: only the corners of the existing dimensions, 16 children per node, no pointers.
//!   About 55 bytes per block in three dimensions.
//!
//! The index does not check whether the blocks overlap, or cover the box: [`crate::space`] does.

mod grid;
mod tree;

use crate::{Region, SpaceError};
use grid::GridIndex;
use tree::Tree;

/// The blocks of a variable in a step, by position.
///
/// ```
/// use samite_stage::{Region, index::Index};
/// let blocks: Vec<_> = (0..4).map(|i| Region::at(&[i * 10, 0], &[10, 8]).unwrap()).collect();
/// let index = Index::new(&blocks).unwrap();
/// let asked = Region::new(&[15, 2], &[25, 3]).unwrap();
/// let found: Vec<_> = index.query(&asked).map(|(block, part)| (block, part.to_string())).collect();
/// assert_eq!(found, [(1, "[15..20, 2..3]".into()), (2, "[20..25, 2..3]".into())]);
/// ```
#[derive(Clone, Debug)]
pub struct Index(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Grid(GridIndex),
    Tree(Tree),
}

impl Index {
    /// Builds the index of these blocks; a block's number is its index in the slice. Empty blocks
    /// are never found. An index without blocks finds nothing.
    ///
    /// # Errors
    /// Blocks of different numbers of dimensions. More than 2^32 blocks give the same error as a
    /// box whose size exceeds 64 bits.
    pub fn new(blocks: &[Region]) -> Result<Self, SpaceError> {
        let dims = blocks.first().map_or(1, Region::dims);
        if let Some(other) = blocks.iter().find(|block| block.dims() != dims) {
            return Err(SpaceError::Dimensions {
                one: dims,
                other: other.dims(),
            });
        }
        if u32::try_from(blocks.len()).is_err() {
            return Err(SpaceError::TooLarge {
                region: Region::whole(&[blocks.len() as u64])?,
                element: 1,
            });
        }
        Ok(Index(match GridIndex::recognise(blocks, dims) {
            Some(grid) => Kind::Grid(grid),
            None => Kind::Tree(Tree::build(blocks, dims)),
        }))
    }

    /// Returns the blocks that share points with `asked`, and these points; each block once, in
    /// unspecified order. A box of another number of dimensions touches none.
    pub fn query(&self, asked: &Region) -> Box<dyn Iterator<Item = (u32, Region)> + '_> {
        match &self.0 {
            Kind::Grid(grid) => Box::new(grid.query(asked)),
            Kind::Tree(tree) => Box::new(tree.query(asked)),
        }
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        match &self.0 {
            Kind::Grid(grid) => grid.blocks(),
            Kind::Tree(tree) => tree.blocks(),
        }
    }

    /// Returns the total bytes of memory that it uses.
    pub fn bytes(&self) -> u64 {
        let heap = match &self.0 {
            Kind::Grid(grid) => grid.heap_bytes(),
            Kind::Tree(tree) => tree.heap_bytes(),
        };
        (size_of::<Self>() + heap) as u64
    }

    /// Returns true if the blocks were recognised as a grid.
    pub fn is_grid(&self) -> bool {
        matches!(self.0, Kind::Grid(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Grid;
    use proptest::prelude::*;

    fn by_hand(blocks: &[Region], asked: &Region) -> Vec<(u32, Region)> {
        let parts = blocks.iter().enumerate();
        parts
            .filter_map(|(at, block)| Some((at as u32, block.intersection(asked)?)))
            .collect()
    }

    fn found(index: &Index, asked: &Region) -> Vec<(u32, Region)> {
        let mut found: Vec<_> = index.query(asked).collect();
        found.sort();
        found
    }

    fn boxes(dims: usize) -> impl Strategy<Value = Region> {
        proptest::collection::vec((0u64..30, 0u64..9), dims).prop_map(|corners| {
            let (lower, count): (Vec<u64>, Vec<u64>) = corners.into_iter().unzip();
            Region::at(&lower, &count).unwrap()
        })
    }

    proptest! {
        #[test]
        fn any_blocks((blocks, asked) in (1usize..5).prop_flat_map(|dims| (proptest::collection::vec(boxes(dims), 0..400), boxes(dims)))) {
            let index = Index::new(&blocks).unwrap();
            prop_assert_eq!(index.blocks(), blocks.len());
            prop_assert_eq!(found(&index, &asked), by_hand(&blocks, &asked));
        }

        #[test]
        fn grids_in_any_order(parts in proptest::collection::vec(1u64..6, 1..4), seed: u64, asked in boxes(3)) {
            let shape: Vec<u64> = parts.iter().map(|parts| parts * 5 + 3).collect();
            let grid = Grid::new(&shape, &parts).unwrap();
            let mut blocks: Vec<Region> = (0..grid.parts()).map(|rank| grid.part(rank)).collect();
            fastrand::Rng::with_seed(seed).shuffle(&mut blocks);
            let index = Index::new(&blocks).unwrap();
            prop_assert!(index.is_grid());
            let asked = Region::new(&asked.lower()[..shape.len()], &asked.upper()[..shape.len()]).unwrap();
            prop_assert_eq!(found(&index, &asked), by_hand(&blocks, &asked));
        }
    }

    /// Returns `count` blocks of a grid in `dims` dimensions, one every `spread` points; jittered,
    /// so that they do not form a grid.
    fn scattered(count: u64, dims: usize, spread: u64) -> Vec<Region> {
        let edge = (count as f64).powf(1.0 / dims as f64).ceil() as u64;
        let mut random = fastrand::Rng::with_seed(count);
        (0..count)
            .map(|block| {
                let mut rest = block;
                let mut lower = vec![0; dims];
                for lower in &mut lower {
                    *lower = (rest % edge) * spread + random.u64(0..spread / 2);
                    rest /= edge;
                }
                Region::at(&lower, &vec![spread; dims]).unwrap()
            })
            .collect()
    }

    #[test]
    fn at_most_96_bytes_per_block_and_none_for_the_domain() {
        for dims in 1..=3 {
            for count in [1_000, 10_000, 100_000, 1_000_000] {
                let blocks = scattered(count, dims, 64);
                let index = Index::new(&blocks).unwrap();
                assert!(!index.is_grid());
                let each = index.bytes() as f64 / count as f64;
                assert!(each <= 96.0, "{each} bytes for each of {count} in {dims} d");
                if count <= 10_000 {
                    let wider = Index::new(&scattered(count, dims, 64 * 64)).unwrap();
                    assert_eq!(wider.bytes(), index.bytes(), "64-fold domain");
                }
                // A column of the domain, against every block.
                let mut upper = vec![u64::MAX; dims];
                upper[0] = 100;
                let asked = Region::new(&vec![0; dims], &upper).unwrap();
                assert_eq!(found(&index, &asked), by_hand(&blocks, &asked));
            }
        }
    }

    #[test]
    fn a_grid_costs_its_divisions() {
        let shape = [1 << 20, 1 << 20, 1 << 20];
        let grid = Grid::new(&shape, &[100, 100, 100]).unwrap();
        let blocks: Vec<Region> = (0..grid.parts()).map(|rank| grid.part(rank)).collect();
        let index = Index::new(&blocks).unwrap();
        assert!(index.is_grid());
        assert!(index.bytes() < 8192, "{}", index.bytes());
        let wide = Grid::new(&shape.map(|side| side * 64), &[100, 100, 100]).unwrap();
        let blocks: Vec<Region> = (0..wide.parts()).map(|rank| wide.part(rank)).collect();
        assert_eq!(Index::new(&blocks).unwrap().bytes(), index.bytes());
    }

    #[test]
    fn nothing_and_mixtures() {
        let empty = Index::new(&[]).unwrap();
        assert_eq!(empty.query(&Region::whole(&[9]).unwrap()).count(), 0);
        let line = Region::whole(&[9]).unwrap();
        let plane = Region::whole(&[9, 9]).unwrap();
        assert!(Index::new(&[line.clone(), plane.clone()]).is_err());
        assert_eq!(Index::new(&[line]).unwrap().query(&plane).count(), 0);
    }
}
