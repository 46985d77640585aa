//! A block of the rectangle with a ring of ghost cells around it, relaxed in place.
//!
//! A step relaxes the red cells, exchanges ghost cells, relaxes the black cells and exchanges
//! again. Ghost cells at the sides of the rectangle have no neighbour and hold the boundary. The
//! numbers are those of [`crate::Sequential`], bit by bit.

use pulp::Arch;

use crate::kernel::Relax;
use crate::problem::{BOTTOM, INITIAL, LEFT, RIGHT, TOP};
use crate::{Colour, Error, Problem, larger};

/// The arithmetic of one block. The caller owns the cells, row by row with the ghost cells, and
/// exchanges the ghost cells with the neighbours.
#[derive(Debug)]
pub struct Block {
    problem: Problem,
    /// Index of its first cell in the whole rectangle.
    first: [usize; 2],
    /// Cells of a row with its ghost cells; 0 if the block has no cells.
    width: usize,
    arch: Arch,
    /// A row that was just relaxed.
    relaxed: Vec<f64>,
}

impl Block {
    /// Returns the block whose first cell (not a ghost cell) is at `first`, with rows of `width`
    /// cells, two of them ghost cells; 0 for a block without cells.
    pub fn new(problem: Problem, first: [usize; 2], width: usize) -> Block {
        Block {
            problem,
            first,
            width,
            arch: Arch::new(),
            relaxed: vec![0.0; width],
        }
    }

    /// Relaxes with another factor from now on.
    ///
    /// # Errors
    /// [`Error::Omega`].
    pub fn set_omega(&mut self, omega: f64) -> Result<(), Error> {
        self.problem = self.problem.with_omega(omega)?;
        Ok(())
    }

    /// Makes the cells those before the first step, with the boundary around them. The first
    /// exchange overwrites ghost cells that have a neighbour.
    pub fn fill_initial(&self, cells: &mut [f64]) {
        let width = self.width;
        if width == 0 {
            return;
        }
        cells.fill(INITIAL);
        let height = cells.len() / width;
        let mut side = |is_side: bool, ghosts: &mut dyn Iterator<Item = usize>, value: f64| {
            if is_side {
                ghosts.for_each(|cell| cells[cell] = value);
            }
        };
        let [row, col] = self.first;
        let (last_row, last_col) = (row + height - 2, col + width - 2);
        let bottom = (height - 1) * width;
        side(col == 0, &mut (0..height).map(|row| row * width), LEFT);
        let right = &mut (1..=height).map(|row| row * width - 1);
        side(last_col == self.problem.cols(), right, RIGHT);
        side(row == 0, &mut (0..width), TOP);
        let below = &mut (bottom..bottom + width);
        side(last_row == self.problem.rows(), below, BOTTOM);
    }

    /// Relaxes the cells of one colour; returns the largest change of a cell.
    pub fn relax(&mut self, cells: &mut [f64], colour: Colour) -> f64 {
        let width = self.width;
        if width == 0 {
            return 0.0;
        }
        let mut change = 0.0;
        for start in (width..cells.len() - width).step_by(width) {
            let row = self.first[0] + start / width - 1;
            let relax = Relax {
                omega: self.problem.omega(),
                // Columns are counted from the first one of this block.
                parity: (colour.parity(row) + self.first[1]) % 2,
                above: &cells[start - width..start],
                row: &cells[start..start + width],
                below: &cells[start + width..start + 2 * width],
                out: &mut self.relaxed,
            };
            change = larger(change, relax.run(self.arch).max);
            cells[start + 1..start + width - 1].copy_from_slice(&self.relaxed[1..width - 1]);
        }
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sequential;

    #[test]
    fn a_block_that_is_the_rectangle_has_the_bits_of_the_sequential_solver() {
        for [rows, cols] in [[1, 1], [1, 40], [17, 3], [20, 21]] {
            let problem = Problem::new(rows, cols).unwrap();
            let (mut block, mut sequential) = (
                Block::new(problem, [0, 0], cols + 2),
                Sequential::new(problem),
            );
            let mut cells = vec![0.0; (rows + 2) * (cols + 2)];
            block.fill_initial(&mut cells);
            for omega in [1.2, 1.2, 1.7, 1.9] {
                block.set_omega(omega).unwrap();
                sequential.set_omega(omega).unwrap();
                let changes = [Colour::Red, Colour::Black].map(|one| block.relax(&mut cells, one));
                assert_eq!(larger(changes[0], changes[1]), sequential.step());
                for (row, expected) in sequential.rows().enumerate() {
                    let start = (row + 1) * (cols + 2) + 1;
                    assert_eq!(&cells[start..start + cols], expected);
                }
            }
            assert!(matches!(block.set_omega(2.0), Err(Error::Omega { .. })));
        }
    }

    #[test]
    fn a_block_without_cells_does_not_change() {
        let mut block = Block::new(Problem::new(3, 3).unwrap(), [0, 0], 0);
        block.fill_initial(&mut []);
        assert_eq!(block.relax(&mut [], Colour::Red), 0.0);
    }
}
