//! The classic solver: one process, the whole field, in place. The job is compared with it, bit by
//! bit.

use serde::{Deserialize, Serialize};

use crate::kernel::{Colour, relaxed};
use crate::problem::{BOTTOM, INITIAL, LEFT, RIGHT, TOP};
use crate::residual::larger;
use crate::{Error, Problem, Rows};

/// Textbook red-black over-relaxation, kept as simple as possible: it is the oracle.
#[derive(Debug)]
pub struct Sequential {
    problem: Problem,
    /// The field with its boundary around it: `(rows + 2) x (cols + 2)` cells.
    cells: Vec<f64>,
}

impl Sequential {
    /// Returns the field before the first step.
    pub fn new(problem: Problem) -> Self {
        let (rows, cols) = (problem.rows(), problem.cols());
        let mut cells = vec![INITIAL; (rows + 2) * (cols + 2)];
        for row in cells.chunks_mut(cols + 2) {
            row[0] = LEFT;
            row[cols + 1] = RIGHT;
        }
        cells[1..=cols].fill(TOP);
        let bottom = (rows + 1) * (cols + 2);
        cells[bottom + 1..=bottom + cols].fill(BOTTOM);
        Self { problem, cells }
    }

    /// Computes one step; returns the largest change of a cell.
    pub fn step(&mut self) -> f64 {
        let width = self.problem.cols() + 2;
        let mut largest = 0.0f64;
        for colour in [Colour::Red, Colour::Black] {
            for row in 0..self.problem.rows() {
                let start = (row + 1) * width + 1;
                let (above, rest) = self.cells.split_at_mut(start - 1);
                let (here, below) = rest.split_at_mut(width);
                let above = &above[above.len() - width..];
                for col in (1 + colour.parity(row)..width - 1).step_by(2) {
                    let old = here[col];
                    let [left, right] = [here[col - 1], here[col + 1]];
                    here[col] = relaxed(
                        self.problem.omega(),
                        above[col],
                        left,
                        below[col],
                        right,
                        old,
                    );
                    largest = larger(largest, (here[col] - old).abs());
                }
            }
        }
        largest
    }

    /// Relaxes with another factor from now on.
    ///
    /// # Errors
    /// [`Error::Omega`].
    pub fn set_omega(&mut self, omega: f64) -> Result<(), Error> {
        self.problem = self.problem.with_omega(omega)?;
        Ok(())
    }

    /// Returns the interior cells of all rows, from the top down.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> + Clone {
        (0..self.problem.rows()).map(move |row| self.row(row))
    }

    /// Returns the interior cells of one row.
    pub fn row(&self, row: usize) -> &[f64] {
        let width = self.problem.cols() + 2;
        let start = (row + 1) * width + 1;
        &self.cells[start..start + self.problem.cols()]
    }

    /// Compares the rows of a part, of which the first is row `first_row` of the whole rectangle.
    ///
    /// # Panics
    ///
    /// If the part is not inside the rectangle.
    pub fn compare<R: Rows>(&self, first_row: usize, field: &R) -> Comparison {
        assert_eq!(
            field.cols(),
            self.problem.cols(),
            "the field has another width"
        );
        let mut ours = vec![0.0; field.cols()];
        let mut comparison = Comparison::default();
        for row in 0..field.rows() {
            field.load(row, &mut ours);
            comparison = comparison.merge(self.compare_row(first_row + row, &ours));
        }
        comparison
    }

    /// Compares one row of the whole rectangle.
    pub fn compare_row(&self, row: usize, ours: &[f64]) -> Comparison {
        let mut comparison = Comparison {
            cells: ours.len() as u64,
            ..Comparison::default()
        };
        for (col, (&ours, &reference)) in ours.iter().zip(self.row(row)).enumerate() {
            if ours.to_bits() != reference.to_bits() {
                comparison.different += 1;
                comparison.first.get_or_insert(Difference {
                    row,
                    col,
                    ours,
                    reference,
                });
            }
        }
        comparison
    }
}

/// The result of a comparison, bit by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Cells compared.
    pub cells: u64,
    /// Cells with at least one different bit.
    pub different: u64,
    /// The first of them, row by row.
    pub first: Option<Difference>,
}

/// A cell that differs from that of the sequential solver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Row of the whole rectangle.
    pub row: usize,
    /// Column.
    pub col: usize,
    /// The value of the job.
    pub ours: f64,
    /// The value of the sequential solver.
    pub reference: f64,
}

impl Comparison {
    /// Returns true if every compared cell has the same bits.
    pub fn is_exact(&self) -> bool {
        self.different == 0
    }

    /// Merges the comparisons of two sets of rows, `self` being the upper one.
    #[must_use]
    pub fn merge(self, lower: Self) -> Self {
        Self {
            cells: self.cells + lower.cells,
            different: self.different + lower.different,
            first: self.first.or(lower.first),
        }
    }

    /// Turns a difference into an error.
    ///
    /// # Errors
    /// [`Error::Wrong`] if a bit differs.
    pub fn judge(&self) -> Result<(), Error> {
        match self.first {
            None => Ok(()),
            Some(Difference { row, col, .. }) => Err(Error::Wrong {
                different: self.different,
                cells: self.cells,
                row,
                col,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RowsMut, VecRows};

    #[test]
    fn one_cell_relaxes_towards_the_average_of_its_sides() {
        let mut sequential = Sequential::new(Problem::new(1, 1).unwrap());
        for _ in 0..60 {
            sequential.step();
        }
        assert!((sequential.row(0)[0] - 25.0).abs() < 1e-12);
    }

    #[test]
    fn a_wrong_bit_is_found() {
        let problem = Problem::new(5, 4).unwrap();
        let mut sequential = Sequential::new(problem);
        sequential.step();
        let field = VecRows::new(2, 4);
        for row in 0..2 {
            field.store(row, sequential.row(3 + row));
        }
        assert!(sequential.compare(3, &field).is_exact());
        let mut row = sequential.row(4).to_vec();
        row[2] = row[2].next_up();
        field.store(1, &row);
        let comparison = sequential.compare(3, &field);
        assert_eq!((comparison.cells, comparison.different), (8, 1));
        let first = comparison.first.unwrap();
        assert_eq!((first.row, first.col), (4, 2));
        let Err(Error::Wrong {
            different: 1,
            cells: 8,
            row: 4,
            col: 2,
        }) = comparison.judge()
        else {
            panic!("{comparison:?}")
        };
    }
}
