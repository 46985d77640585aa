//! The parameters of a class, and the published result.

use std::ops::Range;

use crate::Class;

/// The size and the shift of the matrix, and the number of iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// The published size.
    pub class: Class,
    /// Rows and columns.
    pub rows: usize,
    /// Nonzeros of each vector from which the matrix is built.
    pub nonzeros: usize,
    /// Outer iterations: steps of the inverse power method.
    pub iterations: u64,
    /// The shift of the eigenvalues.
    pub shift: f64,
    /// The published estimate after the last iteration.
    pub expected: f64,
}

/// Maximum relative distance from the published estimate.
pub const EPSILON: f64 = 1e-10;

/// Inner iterations: steps of the conjugate gradient method.
pub const INNER: usize = 25;

impl Problem {
    /// Returns the problem of a class (NPB 3: `npbparams.h`, `cg.f`).
    pub fn new(class: Class) -> Problem {
        let (rows, nonzeros, iterations, shift, expected) = match class {
            Class::S => (1400, 7, 15, 10.0, 8.5971775078648),
            Class::W => (7000, 8, 15, 12.0, 10.362595087124),
            Class::A => (14000, 11, 15, 20.0, 17.130235054029),
            Class::B => (75000, 13, 75, 60.0, 22.712745482631),
            Class::C => (150000, 15, 75, 110.0, 28.973605592845),
        };
        Problem {
            class,
            rows,
            nonzeros,
            iterations,
            shift,
            expected,
        }
    }

    /// Returns the rows of unit `rank` of `units`: a contiguous part, as equal as possible.
    pub fn part(&self, rank: u32, units: u32) -> Range<usize> {
        let first = |rank: u32| (self.rows as u64 * u64::from(rank) / u64::from(units)) as usize;
        first(rank)..first(rank + 1)
    }

    /// Returns true if an estimate is the published one.
    pub fn verify(&self, zeta: f64) -> bool {
        self.distance(zeta) <= EPSILON
    }

    /// Returns the relative distance of an estimate from the published one.
    pub fn distance(&self, zeta: f64) -> f64 {
        ((zeta - self.expected) / self.expected).abs()
    }

    /// Returns the published number of operations of the whole run, to which the reported rate
    /// refers.
    pub fn operations(&self) -> f64 {
        let per_row = (self.nonzeros * (self.nonzeros + 1)) as f64;
        let inner = INNER as f64 * (5.0 + per_row);
        2.0 * self.iterations as f64 * self.rows as f64 * (3.0 + per_row + inner + 3.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole() {
        for units in [1, 2, 3, 7] {
            let problem = Problem::new(Class::S);
            let rows: Vec<_> = (0..units)
                .flat_map(|rank| problem.part(rank, units))
                .collect();
            assert!(rows.into_iter().eq(0..problem.rows));
        }
    }

    #[test]
    fn the_tolerance_is_relative() {
        let problem = Problem::new(Class::B);
        assert!(problem.verify(problem.expected * (1.0 + 0.9e-10)));
        assert!(!problem.verify(problem.expected * (1.0 - 1.1e-10)));
        assert!(!problem.verify(f64::NAN));
    }
}
