//! Checks whether blocks tile a box: finds the first overlap, and a part that is not covered.

use super::Region;

/// Blocks of which all pairs are compared.
const FEW: usize = 8;

/// Returns two blocks that share a point, as indices into `blocks`, the smaller first; `None` if
/// there are none.
///
/// Cuts the blocks in two again and again, where the larger side gets the fewest, and compares
/// pairs when few are left. The blocks of a decomposition take O(n log n); blocks that no cut
/// separates are compared pair by pair.
pub fn first_overlap(blocks: &[Region]) -> Option<(usize, usize)> {
    overlap_within(blocks, u64::MAX).ok().flatten()
}

/// [`overlap_within`] has taken more looks than it may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GaveUp;

/// As [`first_overlap`], but takes at most `most` looks: to cut blocks takes one at each dimension
/// of each block, and to compare two blocks takes one.
pub(crate) fn overlap_within(
    blocks: &[Region],
    most: u64,
) -> Result<Option<(usize, usize)>, GaveUp> {
    let all = (0..blocks.len()).filter(|&at| !blocks[at].is_empty());
    Search { blocks, most }.among(all.collect())
}

struct Search<'a> {
    blocks: &'a [Region],
    most: u64,
}

impl Search<'_> {
    fn spend(&mut self, looks: usize) -> Result<(), GaveUp> {
        self.most = self.most.checked_sub(looks as u64).ok_or(GaveUp)?;
        Ok(())
    }

    fn among(&mut self, some: Vec<usize>) -> Result<Option<(usize, usize)>, GaveUp> {
        let dims = self.blocks.first().map_or(0, Region::dims);
        self.spend(some.len() * dims)?;
        let Some((dim, cut)) = self.best_cut(&some) else {
            return self.pairs(&some);
        };
        // A block on both sides of the cut belongs to both.
        let side = |is_there: &dyn Fn(&Region) -> bool| {
            let there = some.iter().filter(|&&at| is_there(&self.blocks[at]));
            there.copied().collect::<Vec<usize>>()
        };
        let below = side(&|block| block.lower()[dim] < cut);
        let above = side(&|block| block.upper()[dim] > cut);
        drop(some);
        match self.among(below)? {
            None => self.among(above),
            found => Ok(found),
        }
    }

    /// Returns the dimension and the position whose larger side has the fewest blocks; `None` if
    /// there are only few blocks, or if no cut separates an eighth of them from the others.
    fn best_cut(&self, some: &[usize]) -> Option<(usize, u64)> {
        if some.len() <= FEW {
            return None;
        }
        let blocks = || some.iter().map(|&at| &self.blocks[at]);
        let cut = |dim: usize| {
            let mut starts: Vec<u64> = blocks().map(|block| block.lower()[dim]).collect();
            let first = *starts.iter().min()?;
            let (_, &mut median, later) = starts.select_nth_unstable(some.len() / 2);
            // A cut at the first start would leave all blocks on one side.
            let second = || later.iter().copied().filter(|&start| start > first).min();
            let cut = if median > first { median } else { second()? };
            let below = blocks().filter(|block| block.lower()[dim] < cut).count();
            let above = blocks().filter(|block| block.upper()[dim] > cut).count();
            Some((below.max(above), dim, cut))
        };
        let dims = self.blocks[some[0]].dims();
        let (larger, dim, cut) = (0..dims).filter_map(cut).min()?;
        (larger <= some.len() - some.len() / 8).then_some((dim, cut))
    }

    fn pairs(&mut self, some: &[usize]) -> Result<Option<(usize, usize)>, GaveUp> {
        for (count, &at) in some.iter().enumerate() {
            self.spend(count)?;
            let mut before = some[..count].iter();
            let meets = |other: &&usize| self.blocks[**other].intersects(&self.blocks[at]);
            if let Some(&other) = before.find(meets) {
                return Ok(Some((at.min(other), at.max(other))));
            }
        }
        Ok(None)
    }
}

/// Returns a part of `whole` that no block covers; `None` if the blocks cover all of it. Overlaps
/// are allowed.
///
/// Cuts `whole` at the blocks' faces until a part is inside a block or outside all of them. Memory
/// and time grow with the number of blocks that touch `whole` times the cuts of each.
pub fn first_hole(whole: &Region, blocks: &[Region]) -> Option<Region> {
    let touching: Vec<&Region> = blocks.iter().filter(|b| b.intersects(whole)).collect();
    hole(whole.clone(), &touching)
}

fn hole(rest: Region, blocks: &[&Region]) -> Option<Region> {
    if rest.is_empty() {
        return None;
    }
    // The block that contains most of it leaves the smallest rest.
    let Some(cut) = blocks
        .iter()
        .filter_map(|block| block.intersection(&rest))
        .max_by_key(|cut| cut.volume().unwrap_or(u64::MAX))
    else {
        return Some(rest);
    };
    // Take a middle block first: halves instead of a comb keep the recursion shallow for many
    // blocks.
    let cut = if blocks.len() > 8 {
        middle(&rest, blocks).unwrap_or(cut)
    } else {
        cut
    };
    let mut inside = rest;
    for dim in 0..inside.dims() {
        let (below, from) = inside.cut(dim, cut.lower()[dim]);
        let (within, above) = from.cut(dim, cut.upper()[dim]);
        inside = within;
        for part in [below, above] {
            if part.is_empty() {
                continue;
            }
            let touching: Vec<&Region> = blocks
                .iter()
                .filter(|block| block.intersects(&part))
                .copied()
                .collect();
            if let Some(found) = hole(part, &touching) {
                return Some(found);
            }
        }
    }
    None
}

/// Returns the part of `rest` in the middle block (by its beginning, in the longest dimension).
fn middle(rest: &Region, blocks: &[&Region]) -> Option<Region> {
    let longest = (0..rest.dims()).max_by_key(|&dim| {
        let mut starts: Vec<u64> = blocks.iter().map(|b| b.lower()[dim]).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.len()
    })?;
    let mut order: Vec<&&Region> = blocks.iter().collect();
    let half = order.len() / 2;
    order.select_nth_unstable_by_key(half, |b| b.lower()[longest]);
    order[half].intersection(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Grid;
    use proptest::prelude::*;

    fn boxes(dims: usize) -> impl Strategy<Value = Region> {
        proptest::collection::vec((0u64..8, 0u64..5), dims).prop_map(|corners| {
            let (lower, count): (Vec<u64>, Vec<u64>) = corners.into_iter().unzip();
            Region::at(&lower, &count).unwrap()
        })
    }

    fn points(region: &Region) -> impl Iterator<Item = [u64; 3]> {
        let corner = |corners: &[u64], dim: usize, none| corners.get(dim).copied().unwrap_or(none);
        let range = |dim| corner(region.lower(), dim, 0)..corner(region.upper(), dim, 1);
        let (x, y, z) = (range(0), range(1), range(2));
        x.flat_map(move |x| {
            let z = z.clone();
            y.clone()
                .flat_map(move |y| z.clone().map(move |z| [x, y, z]))
        })
    }

    proptest! {
        #[test]
        fn overlaps_are_what_pairs_say(blocks in (1usize..4).prop_flat_map(|dims| proptest::collection::vec(boxes(dims), 0..40))) {
            let pairs = (0..blocks.len()).any(|b| (0..b).any(|a| blocks[a].intersects(&blocks[b])));
            match first_overlap(&blocks) {
                Some((one, other)) => prop_assert!(one < other && blocks[one].intersects(&blocks[other])),
                None => prop_assert!(!pairs),
            }
        }

        #[test]
        fn holes_are_what_points_say((whole, blocks) in (1usize..4).prop_flat_map(|dims| (boxes(dims), proptest::collection::vec(boxes(dims), 0..14)))) {
            let covered = |point: &[u64; 3]| blocks.iter().any(|b| points(b).any(|p| p == *point));
            match first_hole(&whole, &blocks) {
                Some(hole) => {
                    prop_assert!(!hole.is_empty() && whole.contains(&hole));
                    prop_assert!(points(&hole).all(|point| !covered(&point)), "{hole} is covered");
                }
                None => prop_assert!(points(&whole).all(|point| covered(&point))),
            }
        }
    }

    /// Blocks that differ in one dimension each, whichever dimension that is.
    #[test]
    fn the_blocks_of_a_decomposition_take_few_looks() {
        let staircase = |at: u64| Region::new(&[0, at, at], &[1, at + 1, 4096]).unwrap();
        let staircase: Vec<Region> = (0..4096).map(staircase).collect();
        let looks = 64 * 4096;
        assert_eq!(overlap_within(&staircase, looks), Ok(None));
        for parts in [[1, 64, 64], [64, 1, 64], [16, 16, 16], [1, 1, 4096]] {
            let grid = Grid::new(&[4096; 3], &parts).unwrap();
            let blocks: Vec<Region> = (0..grid.parts()).map(|rank| grid.part(rank)).collect();
            assert_eq!(overlap_within(&blocks, looks), Ok(None), "{parts:?}");
        }
    }

    /// One cut of 16 blocks, then two times 8 blocks, which are compared pair by pair.
    #[test]
    fn each_dimension_of_a_block_takes_a_look() {
        for dims in 1..4 {
            let (mut shape, mut parts) = (vec![4; dims], vec![1; dims]);
            (shape[0], parts[0]) = (16, 16);
            let grid = Grid::new(&shape, &parts).unwrap();
            let blocks: Vec<Region> = (0..grid.parts()).map(|rank| grid.part(rank)).collect();
            let looks = 16 * dims as u64 + 2 * (8 * dims as u64 + 8 * 7 / 2);
            assert_eq!(overlap_within(&blocks, looks - 1), Err(GaveUp));
            assert_eq!(overlap_within(&blocks, looks), Ok(None));
        }
    }

    /// Long bars in three directions: each cut goes through a third of them.
    #[test]
    fn blocks_that_no_cut_separates_well_are_given_up() {
        let bar = |at: u64| {
            let (dim, row, column) = (at % 3, at / 3 % 32 * 4, at / 96 * 4);
            let (mut lower, mut upper) = ([0; 3], [128; 3]);
            let (one, other) = ((dim + 1) % 3, (dim + 2) % 3);
            let (row, column) = (
                row + [0, 1, 2][dim as usize],
                column + [0, 1, 2][dim as usize],
            );
            (lower[one as usize], upper[one as usize]) = (row, row + 1);
            (lower[other as usize], upper[other as usize]) = (column, column + 1);
            Region::new(&lower, &upper).unwrap()
        };
        let bars: Vec<Region> = (0..3072).map(bar).collect();
        assert_eq!(overlap_within(&bars, 16 * 3072), Err(GaveUp));
        assert_eq!(first_overlap(&bars), None);
    }

    #[test]
    fn one_missing_block_of_many_is_found() {
        let grid = Grid::new(&[640, 640], &[64, 64]).unwrap();
        let mut blocks: Vec<Region> = (0..grid.parts()).map(|rank| grid.part(rank)).collect();
        let whole = Region::whole(&[640, 640]).unwrap();
        assert_eq!(first_hole(&whole, &blocks), None);
        assert_eq!(first_overlap(&blocks), None);
        let missing = blocks.remove(1234);
        assert_eq!(first_hole(&whole, &blocks), Some(missing.clone()));
        blocks.push(missing.clone());
        blocks.push(missing);
        assert_eq!(first_overlap(&blocks), Some((4095, 4096)));
    }
}
