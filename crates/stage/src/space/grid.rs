//! An array cut into M boxes as evenly as possible.

use super::{Dims, Region, SpaceError};

/// A decomposition: dimension `d` of the array is cut into `parts[d]` pieces whose lengths differ
/// by at most one, the longer ones first. Parts are numbered by rank in row-major order.
///
/// Pieces are empty if a dimension has fewer points than parts.
///
/// ```
/// use samite_stage::space::Grid;
/// let grid = Grid::new(&[10, 8], &[3, 2]).unwrap();
/// assert_eq!(grid.parts(), 6);
/// assert_eq!(grid.part(3).to_string(), "[4..7, 4..8]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    shape: Dims,
    parts: Dims,
}

impl Grid {
    /// Returns an array of `shape`, cut into `parts[d]` pieces in each dimension.
    ///
    /// # Errors
    /// Different numbers of dimensions, or a dimension without parts.
    pub fn new(shape: &[u64], parts: &[u64]) -> Result<Self, SpaceError> {
        Region::whole(shape)?;
        if shape.len() != parts.len() {
            return Err(SpaceError::Dimensions {
                one: shape.len(),
                other: parts.len(),
            });
        }
        let total = parts
            .iter()
            .try_fold(1u64, |total, &parts| total.checked_mul(parts));
        if total.is_none_or(|total| total == 0) {
            return Err(SpaceError::Grid(parts.to_vec()));
        }
        Ok(Grid {
            shape: Dims::from_slice(shape),
            parts: Dims::from_slice(parts),
        })
    }

    /// Returns a grid of `ranks` parts, as cubic as their number and the shape allow: each prime
    /// factor of it, largest first, cuts the dimension with the longest pieces (the slowest, if
    /// several).
    ///
    /// # Errors
    /// No ranks, or an invalid shape.
    pub fn cubic(shape: &[u64], ranks: u64) -> Result<Self, SpaceError> {
        let mut parts: Dims = shape.iter().map(|_| 1).collect();
        for factor in prime_factors(ranks).into_iter().rev() {
            let longest = (0..shape.len())
                .rev()
                .max_by_key(|&dim| shape[dim] / parts[dim])
                .unwrap_or(0);
            if let Some(part) = parts.get_mut(longest) {
                *part *= factor;
            }
        }
        if ranks == 0 {
            return Err(SpaceError::Grid(vec![0]));
        }
        Grid::new(shape, &parts)
    }

    /// Returns `ranks` parts along dimension `dim` alone.
    ///
    /// # Errors
    /// As [`new`](Self::new); a dimension that the shape does not have.
    pub fn along(shape: &[u64], dim: usize, ranks: u64) -> Result<Self, SpaceError> {
        if dim >= shape.len() {
            return Err(SpaceError::Dimensions {
                one: shape.len(),
                other: dim + 1,
            });
        }
        let mut parts: Dims = shape.iter().map(|_| 1).collect();
        parts[dim] = ranks;
        Grid::new(shape, &parts)
    }

    /// Returns the number of parts.
    pub fn parts(&self) -> u64 {
        self.parts.iter().product() // checked at construction
    }

    /// Returns the number of parts in each dimension.
    pub fn divisions(&self) -> &[u64] {
        &self.parts
    }

    /// Returns the box of part `rank`; ranks beyond the last one wrap around.
    pub fn part(&self, rank: u64) -> Region {
        let mut rest = rank % self.parts();
        let (mut lower, mut upper) = (self.shape.clone(), self.shape.clone());
        for dim in (0..self.shape.len()).rev() {
            let piece = rest % self.parts[dim];
            rest /= self.parts[dim];
            lower[dim] = self.border(dim, piece);
            upper[dim] = self.border(dim, piece + 1);
        }
        Region::new(&lower, &upper).expect("borders grow with the piece")
    }

    /// Returns where piece `piece` of dimension `dim` begins.
    fn border(&self, dim: usize, piece: u64) -> u64 {
        let (length, parts) = (self.shape[dim], self.parts[dim]);
        piece * (length / parts) + piece.min(length % parts)
    }
}

fn prime_factors(mut number: u64) -> Vec<u64> {
    let mut factors = Vec::new();
    let mut divisor = 2;
    while divisor <= number / divisor {
        while number.is_multiple_of(divisor) {
            factors.push(divisor);
            number /= divisor;
        }
        divisor += 1;
    }
    if number > 1 {
        factors.push(number);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{first_hole, first_overlap};

    #[test]
    fn every_grid_tiles_its_array() {
        let shapes: [&[u64]; 6] = [
            &[7],
            &[100],
            &[13, 5],
            &[4, 4, 4],
            &[3, 1, 17],
            &[2, 3, 4, 5],
        ];
        for shape in shapes {
            for ranks in 1..=24 {
                let mut grids = vec![Grid::cubic(shape, ranks).unwrap()];
                grids.extend((0..shape.len()).map(|dim| Grid::along(shape, dim, ranks).unwrap()));
                for grid in grids {
                    assert_eq!(grid.parts(), ranks);
                    let parts: Vec<Region> = (0..ranks).map(|rank| grid.part(rank)).collect();
                    assert_eq!(first_overlap(&parts), None, "{grid:?}");
                    let whole = Region::whole(shape).unwrap();
                    assert_eq!(first_hole(&whole, &parts), None, "{grid:?}");
                }
            }
        }
    }

    #[test]
    fn pieces_are_even_and_cubic() {
        let grid = Grid::cubic(&[1000, 1000], 12).unwrap();
        assert_eq!(grid.divisions(), [3, 4]);
        assert_eq!(
            Grid::cubic(&[5, 512_000, 64], 64).unwrap().divisions(),
            [1, 64, 1]
        );
        let lengths: Vec<u64> = (0..3)
            .map(|rank| Grid::along(&[10], 0, 3).unwrap().part(rank).extent(0))
            .collect();
        assert_eq!(lengths, [4, 3, 3]);
    }

    #[test]
    fn large_borders_do_not_overflow() {
        let grid = Grid::along(&[u64::MAX], 0, 3).unwrap();
        assert_eq!(grid.part(2).upper(), [u64::MAX]);
        assert_eq!(grid.part(1).lower(), [u64::MAX / 3]);
    }

    #[test]
    fn a_grid_without_parts_is_refused() {
        assert!(matches!(Grid::new(&[4], &[0]), Err(SpaceError::Grid(_))));
        assert!(Grid::cubic(&[4], 0).is_err());
        assert!(Grid::cubic(&[], 1).is_err());
        assert!(Grid::along(&[4], 1, 2).is_err());
        assert!(Grid::new(&[4, 4], &[1 << 40, 1 << 40]).is_err());
    }
}
