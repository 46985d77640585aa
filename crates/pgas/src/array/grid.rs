//! The grid of ranks over which an array is distributed.

use super::ArrayError;

/// The number of ranks along each dimension. Ranks are numbered in row-major order: the last
/// dimension changes fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid<const D: usize>([u32; D]);

impl<const D: usize> Grid<D> {
    /// Creates a grid of this shape.
    ///
    /// # Errors
    /// A dimension without ranks, or more than 2^32 - 1 ranks in total.
    pub fn new(shape: [u32; D]) -> Result<Grid<D>, ArrayError> {
        let ranks = shape.iter().try_fold(1u32, |all, n| all.checked_mul(*n));
        match ranks {
            Some(ranks) if ranks > 0 => Ok(Grid(shape)),
            _ => Err(ArrayError::Grid(shape.to_vec())),
        }
    }

    /// Splits `ranks` into factors that are as equal as possible, the larger ones along the larger
    /// extents. Dimensions whose extent is `None` are not cut. Like `MPI_Dims_create`, which does
    /// not consider extents.
    ///
    /// # Errors
    /// `ranks` is 0, or there are several ranks and no dimension to cut.
    pub fn balanced(ranks: u32, extents: [Option<u64>; D]) -> Result<Grid<D>, ArrayError> {
        let mut cut: Vec<usize> = (0..D).filter(|d| extents[*d].is_some()).collect();
        cut.sort_by_key(|d| std::cmp::Reverse(extents[*d]));
        let factors = factors(ranks, cut.len(), ranks);
        let factors = factors.ok_or(ArrayError::NothingToCut { ranks })?;
        let mut shape = [1; D];
        for (d, factor) in cut.into_iter().zip(factors) {
            shape[d] = factor;
        }
        Grid::new(shape)
    }

    /// Returns the number of ranks along each dimension.
    pub fn shape(&self) -> [u32; D] {
        self.0
    }

    /// Returns the total number of ranks.
    pub fn ranks(&self) -> u32 {
        self.0.iter().product()
    }

    /// Returns the rank at these coordinates, which must lie inside the grid.
    #[inline]
    pub fn rank(&self, at: [u32; D]) -> u32 {
        let along = at.iter().zip(&self.0);
        along.fold(0, |rank, (at, parts)| rank * parts + at)
    }

    /// Returns the coordinates of a rank of the grid.
    #[inline]
    pub fn coordinates(&self, rank: u32) -> [u32; D] {
        let (mut at, mut rest) = ([0; D], rank);
        for d in (0..D).rev() {
            at[d] = rest % self.0[d];
            rest /= self.0[d];
        }
        at
    }
}

/// Returns `count` factors of `n`, in descending order, none above `limit`, with the smallest sum,
/// which makes them as equal as possible.
fn factors(n: u32, count: usize, limit: u32) -> Option<Vec<u32>> {
    if n <= 1 || count == 0 {
        return (n == 1).then(|| vec![1; count]);
    }
    let root = (1..).take_while(|d| u64::from(*d) * u64::from(*d) <= u64::from(n));
    let divisors = root
        .filter(|d| n.is_multiple_of(*d))
        .flat_map(|d| [d, n / d]);
    let with = |first: u32| {
        let mut all = factors(n / first, count - 1, first)?;
        all.insert(0, first);
        Some(all)
    };
    let fitting = divisors.filter(|d| *d > 1 && *d <= limit);
    let sum = |all: &Vec<u32>| all.iter().map(|f| u64::from(*f)).sum::<u64>();
    fitting.filter_map(with).min_by_key(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn factors_are_those_of_dims_create() {
        let balanced = |ranks| Grid::balanced(ranks, [Some(9); 3]).unwrap().shape();
        assert_eq!(balanced(1), [1, 1, 1]);
        assert_eq!(balanced(6), [3, 2, 1]);
        assert_eq!(balanced(8), [2, 2, 2]);
        assert_eq!(balanced(12), [3, 2, 2]);
        assert_eq!(balanced(60), [5, 4, 3]);
        assert_eq!(balanced(1_000_003), [1_000_003, 1, 1]);
    }

    #[test]
    fn the_larger_factor_cuts_the_larger_extent() {
        let shape = |extents| Grid::balanced(6, extents).unwrap().shape();
        assert_eq!(shape([Some(10), Some(1000)]), [2, 3]);
        assert_eq!(shape([None, Some(1000)]), [1, 6]);
        assert_eq!(
            Grid::balanced(6, [None, None]),
            Err(ArrayError::NothingToCut { ranks: 6 })
        );
        assert_eq!(Grid::balanced(1, [None, None]).unwrap().shape(), [1, 1]);
    }

    #[test]
    fn a_grid_without_ranks_or_with_too_many_is_refused() {
        assert_eq!(Grid::new([3, 0]), Err(ArrayError::Grid(vec![3, 0])));
        assert!(Grid::new([1 << 16, 1 << 16]).is_err());
        assert!(Grid::balanced(0, [Some(1)]).is_err());
    }

    proptest! {
        #[test]
        fn ranks_and_coordinates_are_one_to_one(shape in [1u32..6, 1..6, 1..6]) {
            let grid = Grid::new(shape).unwrap();
            for rank in 0..grid.ranks() {
                prop_assert_eq!(grid.rank(grid.coordinates(rank)), rank);
            }
        }

        #[test]
        fn factors_multiply_to_the_ranks(ranks in 1u32..5000) {
            prop_assert_eq!(Grid::balanced(ranks, [Some(1); 4]).unwrap().ranks(), ranks);
        }
    }
}
