//! The arithmetic on one row, in the widest vectors of this processor.
//!
//! A half-sweep relaxes every second cell of a row. Gathering those from memory would cost more
//! than computing all of them and keeping half, so that is what the kernel does.
//!
//! On any processor, values are processed in pieces of [`PIECE`], sums are kept per position in the
//! piece and added up in one order, and no multiplication is fused with an addition: the result has
//! the same bits everywhere, with vectors of one number or of eight.

use pulp::{Arch, Simd, WithSimd};

use crate::sor::Change;

/// Values per piece: several vectors, so that their sums are independent. Even, so that a position
/// keeps its colour; a multiple of every vector length.
const PIECE: usize = 16;

/// The cells of one colour relax first, then those of the other; a cell's neighbours have the other
/// colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Cells whose row and column have an even sum.
    Red,
    /// The others.
    Black,
}

impl Colour {
    /// Returns the parity of the columns of this colour in `row` (counted over the whole
    /// rectangle).
    pub(crate) fn parity(self, row: usize) -> usize {
        (row + usize::from(self == Colour::Black)) % 2
    }
}

/// One relaxation, in the operation order of LAPLACE_MPI. Both solvers must use this exact
/// expression: they are compared bit by bit.
#[inline(always)]
pub(crate) fn relaxed(omega: f64, above: f64, left: f64, below: f64, right: f64, cell: f64) -> f64 {
    omega / 4.0 * (above + left + below + right) + (1.0 - omega) * cell
}

/// Relaxes one colour of one row, out of place.
///
/// All rows are padded: their first and last entry are the boundary columns.
pub(crate) struct Relax<'a> {
    pub(crate) omega: f64,
    /// Parity of the columns that relax.
    pub(crate) parity: usize,
    pub(crate) above: &'a [f64],
    pub(crate) row: &'a [f64],
    pub(crate) below: &'a [f64],
    /// Gets the relaxed cells of this colour and the others unchanged; its padding is not changed.
    pub(crate) out: &'a mut [f64],
}

impl Relax<'_> {
    pub(crate) fn run(self, arch: Arch) -> Change {
        arch.dispatch(self)
    }
}

impl WithSimd for Relax<'_> {
    type Output = Change;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Change {
        let cols = self.out.len() - 2;
        let whole = cols - cols % PIECE;
        let vectors = PIECE / S::F64_LANES;
        let (above, below) = (&self.above[1..=cols], &self.below[1..=cols]);
        let (left, cell, right) = (&self.row[..cols], &self.row[1..=cols], &self.row[2..]);
        let out = &mut self.out[1..=cols];

        // Cells of the other colour keep their value by `0 * sides + 1 * cell`, which costs less
        // than a selection. It is exact: no value is infinite, and no cell is ever -0 because no
        // side is.
        let weights = |on, off| -> [f64; PIECE] {
            std::array::from_fn(|at| if at % 2 == self.parity { on } else { off })
        };
        let (quarter, keep) = (
            weights(self.omega / 4.0, 0.0),
            weights(1.0 - self.omega, 1.0),
        );
        let (quarter, keep) = (S::as_simd_f64s(&quarter).0, S::as_simd_f64s(&keep).0);
        let zero = simd.splat_f64s(0.0);
        let (mut max, mut sum) = ([zero; PIECE], [zero; PIECE]);
        let pieces = |row| S::as_simd_f64s(row).0.chunks_exact(vectors);
        let outs = S::as_mut_simd_f64s(&mut out[..whole])
            .0
            .chunks_exact_mut(vectors);
        let sides = pieces(above)
            .zip(pieces(below))
            .zip(pieces(left).zip(pieces(right)));
        for ((out, cell), ((above, below), (left, right))) in outs.zip(pieces(cell)).zip(sides) {
            for at in 0..vectors {
                // As in `relaxed`.
                let sides = simd.add_f64s(above[at], left[at]);
                let sides = simd.add_f64s(simd.add_f64s(sides, below[at]), right[at]);
                let new = simd.add_f64s(
                    simd.mul_f64s(quarter[at], sides),
                    simd.mul_f64s(keep[at], cell[at]),
                );
                let change = simd.abs_f64s(simd.sub_f64s(new, cell[at]));
                out[at] = new;
                sum[at] = simd.add_f64s(sum[at], change);
                max[at] = simd.max_f64s(max[at], change);
            }
        }

        // Maxima of vectors lose NaN, and sums do not.
        let sum = total(lanes::<S>(&sum));
        let max = match sum.is_nan() {
            true => sum,
            false => lanes::<S>(&max).into_iter().fold(0.0, f64::max),
        };
        let mut change = Change { max, sum };
        for at in whole..cols {
            out[at] = cell[at];
            if at % 2 == self.parity {
                out[at] = relaxed(
                    self.omega, above[at], left[at], below[at], right[at], cell[at],
                );
                let by = (out[at] - cell[at]).abs();
                change = change.merge(Change { max: by, sum: by });
            }
        }
        change
    }
}

/// The sums behind the moments of one block; see [`crate::moments`].
pub(crate) struct PowerSums<'a> {
    pub(crate) block: &'a [f64],
}

/// Mean of a block, sums of the powers 2 to 4 of the distance from it, and the extremes.
#[derive(Clone, Copy)]
pub(crate) struct BlockSums {
    pub(crate) mean: f64,
    pub(crate) powers: [f64; 3],
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl PowerSums<'_> {
    pub(crate) fn run(self, arch: Arch) -> BlockSums {
        arch.dispatch(self)
    }
}

impl WithSimd for PowerSums<'_> {
    type Output = BlockSums;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> BlockSums {
        let (pieces, rest) = self
            .block
            .split_at(self.block.len() - self.block.len() % PIECE);
        let vectors = PIECE / S::F64_LANES;
        let pieces = || S::as_simd_f64s(pieces).0.chunks_exact(vectors);
        let splat = |value| [simd.splat_f64s(value); PIECE];

        // First pass: the mean and the extremes.
        let (mut sum, mut min, mut max) =
            (splat(0.0), splat(f64::INFINITY), splat(f64::NEG_INFINITY));
        for piece in pieces() {
            for at in 0..vectors {
                sum[at] = simd.add_f64s(sum[at], piece[at]);
                min[at] = simd.min_f64s(min[at], piece[at]);
                max[at] = simd.max_f64s(max[at], piece[at]);
            }
        }
        let sum = total(lanes::<S>(&sum)) + rest.iter().sum::<f64>();
        let mean = sum / self.block.len() as f64;

        // Second pass over the same block, now in the cache: the powers of the distance.
        let means = simd.splat_f64s(mean);
        let mut powers = [splat(0.0); 3];
        for piece in pieces() {
            for at in 0..vectors {
                let distance = simd.sub_f64s(piece[at], means);
                let square = simd.mul_f64s(distance, distance);
                powers[0][at] = simd.add_f64s(powers[0][at], square);
                powers[1][at] = simd.add_f64s(powers[1][at], simd.mul_f64s(square, distance));
                powers[2][at] = simd.add_f64s(powers[2][at], simd.mul_f64s(square, square));
            }
        }
        let mut powers = powers.map(|power| total(lanes::<S>(&power)));
        for value in rest {
            let distance = value - mean;
            let square = distance * distance;
            powers[0] += square;
            powers[1] += square * distance;
            powers[2] += square * square;
        }
        BlockSums {
            mean,
            powers,
            min: lanes::<S>(&min)
                .iter()
                .chain(rest)
                .copied()
                .fold(f64::INFINITY, f64::min),
            max: lanes::<S>(&max)
                .iter()
                .chain(rest)
                .copied()
                .fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Returns the positions of a piece from its vectors (those after the piece are not used).
#[inline(always)]
fn lanes<S: Simd>(vectors: &[S::f64s; PIECE]) -> [f64; PIECE] {
    let mut lanes = [0.0; PIECE];
    S::as_mut_simd_f64s(&mut lanes)
        .0
        .copy_from_slice(&vectors[..PIECE / S::F64_LANES]);
    lanes
}

/// Returns the sum of the positions, by halves.
#[inline(always)]
fn total(mut lanes: [f64; PIECE]) -> f64 {
    let mut half = PIECE / 2;
    while half > 0 {
        for at in 0..half {
            lanes[at] += lanes[at + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seed: usize, length: usize) -> Vec<f64> {
        (0..length)
            .map(|at| ((at * 7919 + seed * 104_729) % 1009) as f64 / 7.0)
            .collect()
    }

    /// In a vector, and among the cells after the last one.
    #[test]
    fn what_is_no_number_is_the_largest_change() {
        let [above, mut here, below] = [1, 2, 3].map(|seed| row(seed, 42));
        for at in [6, 38] {
            let number = std::mem::replace(&mut here[at], f64::NAN);
            for parity in 0..2 {
                let relax = |out| Relax {
                    omega: 1.2,
                    parity,
                    above: &above,
                    row: &here,
                    below: &below,
                    out,
                };
                let (mut wide, mut narrow) = (here.clone(), here.clone());
                let changes = [
                    relax(&mut wide).run(Arch::new()),
                    relax(&mut narrow).with_simd(pulp::Scalar),
                ];
                assert!(changes.iter().all(|change| change.max.is_nan()));
            }
            here[at] = number;
        }
    }

    #[test]
    fn vectors_of_any_length_give_the_same_bits() {
        for length in [1, 2, 15, 16, 17, 40, 333] {
            let [above, here, below] = [1, 2, 3].map(|seed| row(seed, length + 2));
            for parity in 0..2 {
                let relax = |out| Relax {
                    omega: 1.2,
                    parity,
                    above: &above,
                    row: &here,
                    below: &below,
                    out,
                };
                let (mut wide, mut narrow) = (here.clone(), here.clone());
                let changes = [
                    relax(&mut wide).run(Arch::new()),
                    relax(&mut narrow).with_simd(pulp::Scalar),
                ];
                assert_eq!(wide, narrow);
                assert_eq!(changes[0], changes[1]);
            }
            let sums = PowerSums { block: &here };
            let (wide, narrow) = (
                PowerSums { ..sums }.run(Arch::new()),
                sums.with_simd(pulp::Scalar),
            );
            assert_eq!((wide.mean, wide.powers), (narrow.mean, narrow.powers));
            assert_eq!((wide.min, wide.max), (narrow.min, narrow.max));
        }
    }
}
