//! Which unit has which part of something that is distributed evenly.

use std::ops::Range;

use samite::pgas::Location;

/// `total` indices over `units` units in contiguous blocks, as equal as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    total: u64,
    /// Indices of most units: all of the first ones have this many.
    block: u64,
    /// Its logarithm, if it is a power of two: then locating an index needs no division.
    shift: Option<u32>,
}

impl Blocks {
    /// Returns blocks of equal length, except for the last ones.
    pub fn new(total: u64, units: u32) -> Blocks {
        let block = total.div_ceil(u64::from(units)).max(1);
        Blocks {
            total,
            block,
            shift: block.is_power_of_two().then(|| block.trailing_zeros()),
        }
    }

    /// Returns the length of the longest block, which is allocated symmetrically.
    pub fn longest(&self) -> u64 {
        self.block
    }

    /// Returns the indices of a unit.
    pub fn part(&self, rank: u32) -> Range<u64> {
        let first = |rank: u64| (rank * self.block).min(self.total);
        first(rank.into())..first(u64::from(rank) + 1)
    }

    /// Returns the unit that has an index, and the position in its block.
    #[inline]
    pub fn locate(&self, place: u64) -> Location {
        let (rank, index) = match self.shift {
            Some(shift) => (place >> shift, place & (self.block - 1)),
            None => (place / self.block, place % self.block),
        };
        Location {
            rank: rank as u32,
            index,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_one_unit() {
        for (total, units) in [(0, 3), (1, 3), (10, 3), (12, 4), (16, 4), (13, 1), (100, 7)] {
            let blocks = Blocks::new(total, units);
            let mut next = 0;
            for rank in 0..units {
                for place in blocks.part(rank) {
                    assert_eq!(place, next);
                    let index = place - blocks.part(rank).start;
                    assert_eq!(blocks.locate(place), Location { rank, index });
                    assert!(index < blocks.longest());
                    next += 1;
                }
            }
            assert_eq!(next, total);
        }
    }
}
