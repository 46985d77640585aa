//! Checks whether blocks tile a box: finds the first overlap, and a part that is not covered.

use super::Region;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Returns two blocks that share a point, as indices into `blocks`, the smaller first; `None` if
/// there are none.
///
/// A sweep along the dimension that distinguishes the blocks best (most distinct beginnings). In
/// the worst case every pair is compared; blocks of a decomposition take O(n log n) plus the number
/// of adjacent blocks in the sweep.
pub fn first_overlap(blocks: &[Region]) -> Option<(usize, usize)> {
    let dims = blocks.first()?.dims();
    let sweep = (0..dims).max_by_key(|&dim| {
        let mut starts: Vec<u64> = blocks.iter().map(|b| b.lower()[dim]).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.len()
    })?;
    let mut order: Vec<usize> = (0..blocks.len())
        .filter(|&at| !blocks[at].is_empty())
        .collect();
    order.sort_unstable_by_key(|&at| blocks[at].lower()[sweep]);
    let mut active = Active::new(dims, sweep);
    for at in order {
        active.leave(blocks[at].lower()[sweep], blocks);
        if let Some(other) = active.meets(&blocks[at], blocks) {
            return Some((at.min(other), at.max(other)));
        }
        active.enter(at, &blocks[at]);
    }
    None
}

/// The blocks that the sweep is currently inside, ordered by their beginning in a second dimension.
/// They do not overlap each other, as far as the sweep has come; in two dimensions, their ranges in
/// `second` are therefore disjoint.
struct Active {
    sweep: usize,
    second: Option<usize>,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    by_second: std::collections::BTreeSet<(u64, usize)>,
    /// Longest extent in `second` of any block that was active: how far back a search has to begin.
    longest: u64,
}

impl Active {
    fn new(dims: usize, sweep: usize) -> Self {
        Active {
            sweep,
            second: (0..dims).find(|&dim| dim != sweep),
            ends: BinaryHeap::new(),
            by_second: Default::default(),
            longest: 0,
        }
    }

    fn key(&self, at: usize, block: &Region) -> (u64, usize) {
        (self.second.map_or(0, |dim| block.lower()[dim]), at)
    }

    fn enter(&mut self, at: usize, block: &Region) {
        self.ends.push(Reverse((block.upper()[self.sweep], at)));
        self.by_second.insert(self.key(at, block));
        if let Some(dim) = self.second {
            self.longest = self.longest.max(block.extent(dim));
        }
    }

    /// Removes those that end at or before `position`.
    fn leave(&mut self, position: u64, blocks: &[Region]) {
        while let Some(&Reverse((end, at))) = self.ends.peek() {
            if end > position {
                break;
            }
            self.ends.pop();
            self.by_second.remove(&self.key(at, &blocks[at]));
        }
    }

    fn meets(&self, block: &Region, blocks: &[Region]) -> Option<usize> {
        let (from, to) = match self.second {
            None => (0, u64::MAX),
            Some(dim) => (
                block.lower()[dim].saturating_sub(self.longest),
                block.upper()[dim] - 1, // not empty, so not 0
            ),
        };
        self.by_second
            .range((from, 0)..=(to, usize::MAX))
            .map(|&(_, at)| at)
            .find(|&at| blocks[at].intersects(block))
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
        fn overlaps_are_what_pairs_say(blocks in (1usize..4).prop_flat_map(|dims| proptest::collection::vec(boxes(dims), 0..8))) {
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
