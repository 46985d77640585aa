//! How far a field is from solving the discrete equations.

use serde::{Deserialize, Serialize};

use crate::problem::{BOTTOM, LEFT, RIGHT, TOP};
use crate::{Problem, Rows};

/// The residual `above + left + below + right - 4 cell` over the cells of a field. The solver
/// reduces it to zero. That of the analytic solution is not zero, because the grid is not
/// infinitely fine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// The largest absolute value.
    pub max: f64,
    /// The sum of the squares.
    pub sum_of_squares: f64,
    /// Number of cells.
    pub cells: u64,
}

impl Residual {
    /// Returns the residual of a field between two rows: the neighbours' rows or the boundary, as
    /// [`crate::Solver::halos`] returns them.
    pub fn of<R: Rows>(field: &R, halo_top: &[f64], halo_bottom: &[f64]) -> Self {
        let mut rows = ResidualRows::new(halo_top);
        let mut row = vec![0.0; field.cols()];
        for at in 0..field.rows() {
            field.load(at, &mut row);
            rows.push(&row);
        }
        rows.finish(halo_bottom)
    }

    /// Merges the residuals of two sets of cells.
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

/// Returns the larger of two; NaN counts as larger than every number, so that it is not lost.
pub fn larger(one: f64, other: f64) -> f64 {
    if one >= other || one.is_nan() {
        one
    } else {
        other
    }
}

/// The residual of rows that are added one after the other, from the top down.
#[derive(Debug)]
pub struct ResidualRows {
    above: Vec<f64>,
    /// The row that waits for the one below it.
    here: Option<Vec<f64>>,
    residual: Residual,
}

impl ResidualRows {
    /// Starts below `halo_top`.
    pub fn new(halo_top: &[f64]) -> Self {
        Self {
            above: halo_top.to_vec(),
            here: None,
            residual: Residual::default(),
        }
    }

    /// Starts at the hot side of the whole rectangle.
    pub fn whole(problem: &Problem) -> Self {
        Self::new(&vec![TOP; problem.cols()])
    }

    /// Adds the next row.
    pub fn push(&mut self, row: &[f64]) {
        match self.here.take() {
            None => self.here = Some(row.to_vec()),
            Some(mut here) => {
                self.close_row(&here, row);
                std::mem::swap(&mut self.above, &mut here);
                here.copy_from_slice(row);
                self.here = Some(here);
            }
        }
    }

    /// Ends above `halo_bottom`.
    pub fn finish(mut self, halo_bottom: &[f64]) -> Residual {
        if let Some(here) = self.here.take() {
            self.close_row(&here, halo_bottom);
        }
        self.residual
    }

    /// Ends at the bottom of the whole rectangle.
    pub fn finish_whole(self) -> Residual {
        let bottom = vec![BOTTOM; self.above.len()];
        self.finish(&bottom)
    }

    fn close_row(&mut self, here: &[f64], below: &[f64]) {
        for (col, &cell) in here.iter().enumerate() {
            let left = if col == 0 { LEFT } else { here[col - 1] };
            let right = here.get(col + 1).copied().unwrap_or(RIGHT);
            let residual = self.above[col] + left + below[col] + right - 4.0 * cell;
            self.residual.max = larger(self.residual.max, residual.abs());
            self.residual.sum_of_squares += residual * residual;
        }
        self.residual.cells += here.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoNeighbours, Sequential, Solver, VecRows};

    #[test]
    fn the_first_residual_is_known() {
        // All cells are 25: next to the hot side 100 + 3 * 25 - 4 * 25 = 75, at a cold side -25.
        let problem = Problem::new(3, 3).unwrap();
        let solver = Solver::new(problem, problem.part(0, 1).unwrap());
        let field = VecRows::new(3, 3);
        solver.fill_initial(&field);
        let (top, bottom) = solver.halos();
        let residual = Residual::of(&field, top, bottom);
        // Corners at the top: 50 twice. Top: 75. Sides: -25 twice. Bottom: -25, corners -50 twice.
        let squares = 4.0 * 2500.0 + 5625.0 + 3.0 * 625.0;
        assert_eq!(
            residual,
            Residual {
                max: 75.0,
                sum_of_squares: squares,
                cells: 9
            }
        );
    }

    #[test]
    fn a_converged_field_has_none() {
        let problem = Problem::new(9, 7).unwrap();
        let mut sequential = Sequential::new(problem);
        while sequential.step() > 1e-13 {}
        let mut rows = ResidualRows::whole(&problem);
        (0..9).for_each(|row| rows.push(sequential.row(row)));
        let residual = rows.finish_whole();
        assert_eq!(residual.cells, 63);
        assert!(residual.max < 1e-11 && residual.rms() <= residual.max);
    }

    #[test]
    fn what_is_no_number_has_the_largest_residual() {
        let mut rows = ResidualRows::new(&[TOP; 3]);
        rows.push(&[1.0, 2.0, 3.0]);
        rows.push(&[1.0, f64::NAN, 3.0]);
        rows.push(&[1.0, 2.0, 3.0]);
        let residual = rows.finish(&[BOTTOM; 3]);
        assert!(residual.max.is_nan() && residual.rms().is_nan());
        let number = Residual {
            max: 7.0,
            ..Residual::default()
        };
        assert!(residual.merge(number).max.is_nan() && number.merge(residual).max.is_nan());
        assert_eq!(number.merge(Residual::default()).max, 7.0);
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let problem = Problem::new(10, 6).unwrap();
        let mut solver = Solver::new(problem, problem.part(0, 1).unwrap());
        let (old, new) = (VecRows::new(10, 6), VecRows::new(10, 6));
        solver.fill_initial(&old);
        let Ok(_) = solver.step(&old, &new, &mut NoNeighbours);
        let cells = new.to_vec();
        let row = |at: usize| &cells[at * 6..(at + 1) * 6];
        let half = |rows: std::ops::Range<usize>, top: &[f64], bottom: &[f64]| {
            let mut half = ResidualRows::new(top);
            rows.for_each(|at| half.push(row(at)));
            half.finish(bottom)
        };
        let merged = half(0..4, &[TOP; 6], row(4)).merge(half(4..10, row(3), &[BOTTOM; 6]));
        let (top, bottom) = solver.halos();
        let whole = Residual::of(&new, top, bottom);
        assert_eq!((merged.max, merged.cells), (whole.max, whole.cells));
        assert!((merged.rms() - whole.rms()).abs() < 1e-12);
    }
}
