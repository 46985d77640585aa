//! The 3x3 convolutions of a grey frame.
//!
//! ```text
//! Sobel       |gx| + |gy|, at most 255          Laplacian   |sum|, at most 255
//!   gx  -1 0 1     gy  -1 -2 -1                    0  1  0
//!       -2 0 2          0  0  0                    1 -4  1
//!       -1 0 1          1  2  1                    0  1  0
//! ```
//!
//! The Laplacian is the one with four neighbours. Beyond an edge, the nearest pixel of the frame is
//! repeated.
//!
//! [`Loop::Scalar`] is the definition, pixel by pixel. [`Loop::Vector`] walks along slices of rows
//! in 16-bit arithmetic, which the compiler turns into the widest vectors of this processor. Both
//! give the same bits.

use pulp::{Arch, Simd, WithSimd};

/// What is computed for each pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The sum of the absolute gradients in both directions.
    Sobel,
    /// The absolute value of the second derivative.
    Laplacian,
    /// The pixel itself: measures everything except the arithmetic.
    Copy,
}

/// How the pixels are walked over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Loop {
    /// One pixel at a time.
    Scalar,
    /// Many pixels of a row at a time.
    Vector,
}

impl Kernel {
    /// Processes a frame with rows of `width` pixels. The slices must have the same length, a
    /// multiple of `width`; otherwise the function panics. A width of 0 needs empty slices.
    pub fn apply(self, how: Loop, width: usize, input: &[u8], output: &mut [u8]) {
        assert_eq!(input.len(), output.len(), "frames of different sizes");
        if input.is_empty() {
            return;
        }
        assert!(
            width > 0 && input.len().is_multiple_of(width),
            "{} pixels are not rows of {width}",
            input.len()
        );
        match (self, how) {
            (Kernel::Copy, _) => output.copy_from_slice(input),
            (_, Loop::Scalar) => self.scalar(width, input, output),
            (_, Loop::Vector) => Arch::new().dispatch(Rows {
                kernel: self,
                width,
                input,
                output,
            }),
        }
    }

    fn scalar(self, width: usize, input: &[u8], output: &mut [u8]) {
        for (row, out) in output.chunks_exact_mut(width).enumerate() {
            let around = Around::new(width, input, row);
            for (col, out) in out.iter_mut().enumerate() {
                *out = self.pixel(&around, col);
            }
        }
    }

    /// Returns one pixel of the result.
    #[inline(always)]
    fn pixel(self, around: &Around, col: usize) -> u8 {
        let columns = [
            col.saturating_sub(1),
            col,
            (col + 1).min(around.row.len() - 1),
        ];
        let [above, row, below] =
            [around.above, around.row, around.below].map(|row| columns.map(|col| row[col]));
        match self {
            Kernel::Sobel => sobel(above, row, below),
            Kernel::Laplacian => laplacian(above[1], row, below[1]),
            Kernel::Copy => row[1],
        }
    }
}

/// A row with its neighbours; at an edge, it is its own neighbour.
struct Around<'a> {
    above: &'a [u8],
    row: &'a [u8],
    below: &'a [u8],
}

impl<'a> Around<'a> {
    #[inline(always)]
    fn new(width: usize, input: &'a [u8], row: usize) -> Self {
        let last = input.len() / width - 1;
        let row_at = |row: usize| &input[row * width..][..width];
        Self {
            above: row_at(row.saturating_sub(1)),
            row: row_at(row),
            below: row_at((row + 1).min(last)),
        }
    }
}

#[inline(always)]
fn sobel(above: [u8; 3], row: [u8; 3], below: [u8; 3]) -> u8 {
    let [above, row, below] = [above, row, below].map(|pixels| pixels.map(i16::from));
    let gx = (above[2] - above[0]) + 2 * (row[2] - row[0]) + (below[2] - below[0]);
    let gy = (below[0] - above[0]) + 2 * (below[1] - above[1]) + (below[2] - above[2]);
    // Each gradient is at most 4 * 255, so the sum fits.
    (gx.abs() + gy.abs()).min(255) as u8
}

#[inline(always)]
fn laplacian(above: u8, row: [u8; 3], below: u8) -> u8 {
    let row = row.map(i16::from);
    let sum = i16::from(above) + i16::from(below) + row[0] + row[2] - 4 * row[1];
    sum.abs().min(255) as u8
}

/// The loop over rows, compiled once per kind of processor.
struct Rows<'a> {
    kernel: Kernel,
    width: usize,
    input: &'a [u8],
    output: &'a mut [u8],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let last = self.width - 1;
        for (row, out) in self.output.chunks_exact_mut(self.width).enumerate() {
            let around = Around::new(self.width, self.input, row);
            out[0] = self.kernel.pixel(&around, 0);
            out[last] = self.kernel.pixel(&around, last);
            if self.width > 2 {
                match self.kernel {
                    Kernel::Sobel => sobel_inside(&around, &mut out[1..last]),
                    _ => laplacian_inside(&around, &mut out[1..last]),
                }
            }
        }
    }
}

/// Computes all pixels of a row but the first and the last. All slices have the length of `out`, so
/// that the loop has no bounds checks.
#[inline(always)]
fn sobel_inside(around: &Around, out: &mut [u8]) {
    let count = out.len();
    let (a0, a1, a2) = shifts(around.above, count);
    let (r0, _, r2) = shifts(around.row, count);
    let (b0, b1, b2) = shifts(around.below, count);
    for at in 0..count {
        out[at] = sobel(
            [a0[at], a1[at], a2[at]],
            [r0[at], 0, r2[at]],
            [b0[at], b1[at], b2[at]],
        );
    }
}

/// As [`sobel_inside`].
#[inline(always)]
fn laplacian_inside(around: &Around, out: &mut [u8]) {
    let count = out.len();
    let (_, above, _) = shifts(around.above, count);
    let (r0, r1, r2) = shifts(around.row, count);
    let (_, below, _) = shifts(around.below, count);
    for at in 0..count {
        out[at] = laplacian(above[at], [r0[at], r1[at], r2[at]], below[at]);
    }
}

/// Returns the left, the middle and the right neighbours of the inner pixels.
#[inline(always)]
fn shifts(row: &[u8], count: usize) -> (&[u8], &[u8], &[u8]) {
    (&row[..count], &row[1..][..count], &row[2..][..count])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(kernel: Kernel, how: Loop, width: usize, input: &[u8]) -> Vec<u8> {
        let mut output = vec![77; input.len()];
        kernel.apply(how, width, input, &mut output);
        output
    }

    #[test]
    fn both_loops_give_the_same_bits() {
        let mut random = fastrand::Rng::with_seed(5);
        let sides = [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 64, 65, 130, 257];
        for width in sides {
            for height in [0, 1, 2, 3, 5, 33] {
                // Random bytes, and random black and white, which reach the extremes.
                for extreme in [false, true] {
                    let pixel = |_| match random.u8(..) {
                        byte if extreme => (byte & 1) * 255,
                        byte => byte,
                    };
                    let input: Vec<u8> = (0..width * height).map(pixel).collect();
                    for kernel in [Kernel::Sobel, Kernel::Laplacian, Kernel::Copy] {
                        assert_eq!(
                            apply(kernel, Loop::Scalar, width, &input),
                            apply(kernel, Loop::Vector, width, &input),
                            "{kernel:?}, {width} x {height}"
                        );
                    }
                }
            }
        }
        assert!(apply(Kernel::Sobel, Loop::Vector, 0, &[]).is_empty());
    }

    #[test]
    fn borders_repeat_the_nearest_pixel() {
        for how in [Loop::Scalar, Loop::Vector] {
            for (width, height) in [(1, 1), (1, 7), (7, 1), (2, 2), (17, 5)] {
                let flat = vec![200; width * height];
                let zero = vec![0; flat.len()];
                assert_eq!(apply(Kernel::Sobel, how, width, &flat), zero);
                assert_eq!(apply(Kernel::Laplacian, how, width, &flat), zero);
                assert_eq!(apply(Kernel::Copy, how, width, &flat), flat);
            }
            // A ramp: at the edges, the repeated pixel halves the gradient.
            let ramp = [0, 10, 20, 30];
            assert_eq!(apply(Kernel::Sobel, how, 4, &ramp), [40, 80, 80, 40]);
            assert_eq!(apply(Kernel::Laplacian, how, 4, &ramp), [10, 0, 0, 10]);
            assert_eq!(apply(Kernel::Sobel, how, 1, &ramp), [40, 80, 80, 40]);
        }
    }

    #[test]
    fn values_are_those_of_the_stencils() {
        let point = [0, 0, 0, 0, 30, 0, 0, 0, 0];
        let large = [0, 0, 0, 0, 255, 0, 0, 0, 0];
        for how in [Loop::Scalar, Loop::Vector] {
            assert_eq!(
                apply(Kernel::Sobel, how, 3, &point),
                [60, 60, 60, 60, 0, 60, 60, 60, 60]
            );
            assert_eq!(
                apply(Kernel::Laplacian, how, 3, &point),
                [0, 30, 0, 30, 120, 30, 0, 30, 0]
            );
            assert_eq!(apply(Kernel::Laplacian, how, 3, &large)[4], 255);
            assert_eq!(apply(Kernel::Sobel, how, 3, &large)[0], 255);
        }
    }
}
