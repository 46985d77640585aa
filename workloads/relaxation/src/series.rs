//! The analytic solution, as a series, and the distance of a field from it.
//!
//! On a rectangle of width *a* and height *b*, with 100 on the side *y = 0* and 0 on the others,
//! separation of variables gives
//!
//! ```text
//!            400            n pi x    sinh(n pi (b - y) / a)
//!   u(x, y) = sum over  ---- sin ------ * ----------------------
//!            odd n      n pi        a       sinh(n pi b / a)
//! ```
//!
//! Both `sinh` overflow for large *n*. Their quotient is evaluated as `exp(-k y) (1 - exp(-2 k (b -
//! y))) / (1 - exp(-2 k b))` with `k = n pi / a`, whose factors are all at most 1. Terms fall with
//! `exp(-k y) / n`, so a row near the hot side needs about `12 a / y` terms; a row on the hot side
//! would converge like 1 / n and is not computed.
//!
//! The discrete solution differs from this one by O(h^2) in the interior, and by a constant next to
//! the two hot corners however fine the grid, because the boundary jumps there.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::Problem;
use crate::problem::TOP;
use crate::residual::larger;

/// Terms below this fraction of the result are ignored.
const NEGLIGIBLE: f64 = 1e-18;

/// The analytic solution of a problem.
#[derive(Clone, Debug)]
pub struct Series {
    /// Width and height in cells, from boundary to boundary.
    width: usize,
    height: usize,
    /// `sin(pi i / width)` for `i` in `0..2 * width`, one period.
    sines: Vec<f64>,
}

impl Series {
    /// Returns the solution of `problem`, whose cells are the points of the grid.
    pub fn new(problem: &Problem) -> Self {
        let width = problem.cols() + 1;
        let sines = (0..2 * width)
            .map(|at| (PI * at as f64 / width as f64).sin())
            .collect();
        Self {
            width,
            height: problem.rows() + 1,
            sines,
        }
    }

    /// Returns the solution at one interior cell.
    pub fn value(&self, row: usize, col: usize) -> f64 {
        self.row(row, &[col])[0]
    }

    /// Returns the solution at some cells of one row.
    pub fn row(&self, row: usize, cols: &[usize]) -> Vec<f64> {
        let coefficients = self.coefficients(row);
        let value = |&col: &usize| {
            let step = 2 * (col + 1);
            let mut phase = col + 1;
            let mut sum = 0.0;
            for coefficient in &coefficients {
                sum += coefficient * self.sines[phase];
                phase += step;
                phase -= if phase >= 2 * self.width {
                    2 * self.width
                } else {
                    0
                };
            }
            sum
        };
        cols.iter().map(value).collect()
    }

    /// Returns the coefficients of the sines, for n = 1, 3, 5 ...
    fn coefficients(&self, row: usize) -> Vec<f64> {
        let (y, height) = ((row + 1) as f64, self.height as f64);
        let coefficient = |n: usize| {
            let k = n as f64 * PI / self.width as f64;
            let quotient =
                (-k * y).exp() * (-2.0 * k * (height - y)).exp_m1() / (-2.0 * k * height).exp_m1();
            4.0 * TOP / (n as f64 * PI) * quotient
        };
        let first = coefficient(1);
        (0..)
            .map(|at| coefficient(2 * at + 1))
            .take_while(|c| *c > NEGLIGIBLE * first)
            .collect()
    }
}

/// The distance of a field from the analytic solution, over some of its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// The largest absolute difference.
    pub max: f64,
    /// The sum of the squares of the differences.
    pub sum_of_squares: f64,
    /// Number of cells.
    pub cells: u64,
}

impl Distance {
    /// Merges the distances over two sets of cells.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            max: larger(self.max, other.max),
            sum_of_squares: self.sum_of_squares + other.sum_of_squares,
            cells: self.cells + other.cells,
        }
    }

    /// Returns the root of the mean square; 0 without cells.
    pub fn rms(&self) -> f64 {
        (self.sum_of_squares / self.cells.max(1) as f64).sqrt()
    }
}

/// The analytic solution on a coarse, even grid of cells, computed once and compared at every step.
#[derive(Clone, Debug)]
pub struct Samples {
    cols: Vec<usize>,
    /// The row, and the solution at `cols`, from the top down.
    rows: Vec<(usize, Vec<f64>)>,
}

impl Samples {
    /// Returns at most `per_side x per_side` cells (all cells of a smaller field), each in the
    /// middle of its part of the rectangle, so that none is at the boundary of a large field.
    pub fn new(problem: &Problem, per_side: usize) -> Self {
        let series = Series::new(problem);
        let cols = middles(problem.cols(), per_side);
        let rows = middles(problem.rows(), per_side)
            .into_iter()
            .map(|row| (row, series.row(row, &cols)))
            .collect();
        Self { cols, rows }
    }

    /// Returns the distance of one row of the whole rectangle; no cells if it has no sample.
    pub fn compare_row(&self, row: usize, cells: &[f64]) -> Distance {
        let Ok(at) = self.rows.binary_search_by_key(&row, |(row, _)| *row) else {
            return Distance::default();
        };
        let solution = &self.rows[at].1;
        self.cols
            .iter()
            .zip(solution)
            .fold(Distance::default(), |distance, (&col, solution)| {
                let difference = (cells[col] - solution).abs();
                distance.merge(Distance {
                    max: difference,
                    sum_of_squares: difference * difference,
                    cells: 1,
                })
            })
    }
}

/// Returns the midpoints of `parts` even parts of `0..length`.
fn middles(length: usize, parts: usize) -> Vec<usize> {
    let parts = parts.clamp(1, length);
    (0..parts)
        .map(|part| (2 * part + 1) * length / (2 * parts))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sequential;

    /// Returns the field of a problem, relaxed with a suitable factor until rounding stops it.
    fn solved(problem: Problem) -> Sequential {
        let omega = 2.0 / (1.0 + (PI / (problem.rows().max(problem.cols()) + 1) as f64).sin());
        let mut sequential = Sequential::new(problem.with_omega(omega).unwrap());
        while sequential.step() > 1e-12 {}
        sequential
    }

    fn distance(problem: &Problem, field: &Sequential, per_side: usize) -> Distance {
        let samples = Samples::new(problem, per_side);
        (0..problem.rows())
            .map(|row| samples.compare_row(row, field.row(row)))
            .fold(Distance::default(), Distance::merge)
    }

    #[test]
    fn the_middle_of_a_square_has_a_quarter() {
        // Four copies of the solution, rotated, add up to 100 everywhere.
        for size in [1, 3, 9, 99] {
            let series = Series::new(&Problem::new(size, size).unwrap());
            assert!((series.value(size / 2, size / 2) - 25.0).abs() < 1e-12);
        }
    }

    #[test]
    fn mirrored_columns_are_equal_and_four_turned_squares_add_up() {
        let series = Series::new(&Problem::new(31, 31).unwrap());
        for (row, col) in [(0, 0), (0, 15), (3, 20), (30, 1)] {
            let (last_row, last_col) = (30 - row, 30 - col);
            let turned = [
                (row, col),
                (col, last_row),
                (last_row, last_col),
                (last_col, row),
            ];
            let sum: f64 = turned
                .iter()
                .map(|&(row, col)| series.value(row, col))
                .sum();
            assert!((sum - 100.0).abs() < 1e-10, "{sum} at {row}, {col}");
            assert!((series.value(row, col) - series.value(row, last_col)).abs() < 1e-10);
        }
    }

    #[test]
    fn nothing_overflows_on_long_and_wide_rectangles() {
        for (rows, cols) in [(5000, 3), (3, 5000), (4096, 2048)] {
            let series = Series::new(&Problem::new(rows, cols).unwrap());
            for row in [0, rows / 2, rows - 1] {
                let value = series.value(row, cols / 2);
                assert!(
                    (0.0..=100.0).contains(&value),
                    "{value} in row {row} of {rows} x {cols}"
                );
            }
        }
    }

    #[test]
    fn the_discrete_solution_comes_closer_with_the_square_of_the_cell() {
        // Cells at 1/4 and 3/4 exist on all three grids and are far from the hot corners.
        let errors = [15, 31, 63].map(|size| {
            let problem = Problem::new(size, size).unwrap();
            let (field, series) = (solved(problem), Series::new(&problem));
            let quarter = (size + 1) / 4 - 1;
            (field.row(quarter)[quarter] - series.value(quarter, quarter)).abs()
        });
        for pair in errors.windows(2) {
            let ratio = pair[0] / pair[1];
            assert!(
                (3.8..4.2).contains(&ratio),
                "halving the cell divides the error by {ratio}"
            );
        }
        assert!(errors[2] < 0.01);
    }

    #[test]
    fn steps_bring_the_field_closer() {
        let problem = Problem::new(48, 48).unwrap();
        let mut field = Sequential::new(problem);
        let mut before = distance(&problem, &field, 16).rms();
        for _ in 0..5 {
            (0..100).for_each(|_| _ = field.step());
            let after = distance(&problem, &field, 16).rms();
            assert!(after < before);
            before = after;
        }
        let at_end = distance(&problem, &solved(problem), 16);
        assert_eq!(at_end.cells, 256);
        assert!(at_end.rms() < 0.05, "{at_end:?}");
    }

    #[test]
    fn small_fields_are_sampled_whole() {
        assert_eq!(middles(3, 64), [0, 1, 2]);
        assert_eq!(middles(100, 2), [25, 75]);
    }
}
