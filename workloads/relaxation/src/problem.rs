//! The rectangle, its boundary, and which unit owns which rows.
//!
//! Rows count downwards from the hot side, columns from left to right; both count interior cells
//! from 0.
//!
//! ```text
//!                 TOP = 100
//!            +-----------------+
//!            | row 0           |   unit 0
//!   LEFT = 0 | ...             |            RIGHT = 0
//!            +-----------------+
//!            | first_row ...   |   unit 1
//!            +-----------------+
//!                BOTTOM = 0
//! ```
//!
//! Burkardt's LAPLACE_MPI has the boundary values `bv = {100, 0, 0, 0}` for its row 0, last column,
//! last row and column 0, starts every interior cell at their average (25), and relaxes with 1.2.
//! It colours the quadrants of each task's block and so depends on the number of tasks. Here, cells
//! are coloured like a checkerboard over the whole rectangle, so that any number of units computes
//! the same bits.

use crate::Error;

/// Value on the side above row 0.
pub const TOP: f64 = 100.0;
/// Value on the right side.
pub const RIGHT: f64 = 0.0;
/// Value on the side below the last row.
pub const BOTTOM: f64 = 0.0;
/// Value on the left side.
pub const LEFT: f64 = 0.0;
/// Value of every interior cell before the first step: the average of the sides.
pub const INITIAL: f64 = (TOP + RIGHT + BOTTOM + LEFT) / 4.0;
/// Over-relaxation factor of LAPLACE_MPI.
pub const OMEGA: f64 = 1.2;

/// An over-relaxation factor: given, or the best one for the rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Omega {
    /// [`Problem::best_omega`].
    Best,
    /// This factor.
    Factor(f64),
}

impl std::str::FromStr for Omega {
    type Err = String;

    fn from_str(text: &str) -> Result<Omega, String> {
        match text {
            "best" => Ok(Omega::Best),
            _ => text
                .parse()
                .map(Omega::Factor)
                .map_err(|_| "expected `best`, or a number between 0 and 2".to_owned()),
        }
    }
}

/// A Laplace problem on a rectangle of square cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    rows: usize,
    cols: usize,
    omega: f64,
}

impl Problem {
    /// Returns a rectangle of `rows x cols` interior cells, relaxed with [`OMEGA`].
    pub fn new(rows: usize, cols: usize) -> Result<Self, Error> {
        let bytes = (rows.checked_add(2))
            .zip(cols.checked_add(2))
            .and_then(|(padded_rows, padded_cols)| padded_rows.checked_mul(padded_cols))
            .and_then(|cells| cells.checked_mul(size_of::<f64>()))
            .filter(|&bytes| bytes <= isize::MAX as usize);
        if rows == 0 || cols == 0 || bytes.is_none() {
            return Err(Error::Size { rows, cols });
        }
        Ok(Self {
            rows,
            cols,
            omega: OMEGA,
        })
    }

    /// Returns `units` squares of `size x size` cells, one below the other: each unit owns one.
    pub fn stacked(size: usize, units: usize) -> Result<Self, Error> {
        let rows = size.checked_mul(units).ok_or(Error::Size {
            rows: usize::MAX,
            cols: size,
        })?;
        Self::new(rows, size)
    }

    /// Returns the same rectangle with another over-relaxation factor, strictly between 0 and 2.
    pub fn with_omega(self, omega: f64) -> Result<Self, Error> {
        if omega > 0.0 && omega < 2.0 {
            Ok(Self { omega, ..self })
        } else {
            Err(Error::Omega { omega })
        }
    }

    /// Returns the factor with which the error shrinks fastest in the end: by `best_omega() - 1`
    /// per step. It is 2 / (1 + sqrt(1 - r^2)), where r is the spectral radius of Jacobi's method
    /// on this rectangle (Young 1954).
    pub fn best_omega(&self) -> f64 {
        let gap = self.jacobi_gap();
        2.0 / (1.0 + (gap * (2.0 - gap)).sqrt())
    }

    /// Returns 1 - r, where r is the spectral radius of Jacobi's method. If the cells differ from
    /// the means of their neighbours by `off` (root of the mean square), the field differs from the
    /// solution of the discrete equations by at most `off / jacobi_gap()`.
    pub fn jacobi_gap(&self) -> f64 {
        // 1 - cos(x) = 2 sin(x / 2)^2, without cancellation.
        let half = |cells: usize| (std::f64::consts::PI / (cells + 1) as f64 / 2.0).sin();
        half(self.rows).powi(2) + half(self.cols).powi(2)
    }

    /// Returns the same rectangle, relaxed as `omega` says.
    pub fn relaxed_by(self, omega: Omega) -> Result<Self, Error> {
        match omega {
            Omega::Best => self.with_omega(self.best_omega()),
            Omega::Factor(factor) => self.with_omega(factor),
        }
    }

    /// Returns the interior rows of the whole rectangle.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the interior columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the interior cells of the whole rectangle.
    pub fn cells(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// Returns the over-relaxation factor.
    pub fn omega(&self) -> f64 {
        self.omega
    }

    /// Returns the rows of `unit` among `units`. If the rows cannot be divided evenly, the first
    /// units own one row more.
    pub fn part(&self, unit: usize, units: usize) -> Result<Part, Error> {
        if units == 0 || units > self.rows {
            return Err(Error::Units {
                units,
                rows: self.rows,
            });
        }
        if unit >= units {
            return Err(Error::Unit { unit, units });
        }
        let (least, longer) = (self.rows / units, self.rows % units);
        Ok(Part {
            unit,
            units,
            first_row: unit * least + unit.min(longer),
            rows: least + usize::from(unit < longer),
        })
    }

    /// Returns the parts of all `units`, from the top down.
    pub fn parts(&self, units: usize) -> Result<Vec<Part>, Error> {
        (0..units.max(1))
            .map(|unit| self.part(unit, units))
            .collect()
    }
}

/// The band of rows that one unit owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The owner.
    pub unit: usize,
    /// Units that share the problem.
    pub units: usize,
    /// The first owned row, counted over the whole rectangle.
    pub first_row: usize,
    /// Owned rows, at least 1.
    pub rows: usize,
}

impl Part {
    /// Returns the unit above, unless this one is at the hot side.
    pub fn above(&self) -> Option<usize> {
        self.unit.checked_sub(1)
    }

    /// Returns the unit below, unless this one is at the bottom.
    pub fn below(&self) -> Option<usize> {
        Some(self.unit + 1).filter(|&unit| unit < self.units)
    }

    /// Returns the row after the last owned one.
    pub fn end_row(&self) -> usize {
        self.first_row + self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_all_rows_once(rows in 1usize..5000, units in 1usize..300) {
            let problem = Problem::new(rows, 3).unwrap();
            let Ok(parts) = problem.parts(units) else {
                prop_assert!(units > rows);
                return Ok(());
            };
            let mut next = 0;
            for (unit, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.first_row, next);
                prop_assert!(part.rows == rows / units || part.rows == rows / units + 1);
                prop_assert_eq!(part.above(), unit.checked_sub(1));
                prop_assert_eq!(part.below().is_some(), unit + 1 < units);
                next = part.end_row();
            }
            prop_assert_eq!(next, rows);
        }
    }

    /// For a square of n x n cells, Young's factor is 2 / (1 + sin(pi / (n + 1))).
    #[test]
    fn the_best_factor_is_that_of_young() {
        for cells in [1usize, 2, 31, 767] {
            let best = Problem::new(cells, cells).unwrap().best_omega();
            let angle = std::f64::consts::PI / (cells + 1) as f64;
            assert!((best - 2.0 / (1.0 + angle.sin())).abs() < 1e-9, "{cells}");
        }
        let problem = Problem::new(48, 24).unwrap();
        let best = problem.relaxed_by(Omega::Best).unwrap();
        assert_eq!(best.omega(), problem.best_omega());
        assert!(best.omega() < Problem::new(48, 48).unwrap().best_omega());
    }

    /// The bound of the error holds, and is not far from it: the slowest part of the error shrinks
    /// last. (Over-relaxed cells are off by more than that part.)
    #[test]
    fn the_residual_bounds_the_error() {
        let problem = Problem::new(20, 20).unwrap();
        let after = |steps| {
            let mut solver = crate::Sequential::new(problem);
            for _ in 0..steps {
                solver.step();
            }
            solver
        };
        let (early, solved) = (after(150), after(5000));
        let mut residual = crate::residual::ResidualRows::whole(&problem);
        let mut squares = 0.0;
        for row in 0..20 {
            residual.push(early.row(row));
            let both = early.row(row).iter().zip(solved.row(row));
            squares += both.map(|(one, other)| (one - other).powi(2)).sum::<f64>();
        }
        let bound = residual.finish_whole().rms() / 4.0 / problem.jacobi_gap();
        let error = (squares / 400.0).sqrt();
        assert!(error <= bound && bound < 5.0 * error, "{error} {bound}");
    }

    /// The best factor solves in 300 steps what the default one does not.
    #[test]
    fn the_best_factor_converges() {
        let problem = Problem::new(48, 48).unwrap();
        let change = |omega| {
            let mut solver = crate::Sequential::new(problem.relaxed_by(omega).unwrap());
            (0..300).map(|_| solver.step()).last().unwrap()
        };
        assert!(change(Omega::Best) < 1e-9);
        assert!(change(Omega::Factor(OMEGA)) > 1e-3);
    }

    #[test]
    fn factors_are_read() {
        assert_eq!("best".parse(), Ok(Omega::Best));
        assert_eq!("1.2".parse(), Ok(Omega::Factor(1.2)));
        assert!("fast".parse::<Omega>().unwrap_err().contains("`best`"));
    }

    #[test]
    fn impossible_problems_are_refused() {
        assert!(matches!(Problem::new(0, 4), Err(Error::Size { .. })));
        assert!(matches!(
            Problem::new(usize::MAX, 4),
            Err(Error::Size { .. })
        ));
        assert!(matches!(
            Problem::stacked(1 << 40, 1 << 40),
            Err(Error::Size { .. })
        ));
        let problem = Problem::stacked(4, 2).unwrap();
        assert_eq!(
            (problem.rows(), problem.cols(), problem.cells()),
            (8, 4, 32)
        );
        assert!(matches!(problem.with_omega(2.0), Err(Error::Omega { .. })));
        assert!(matches!(
            problem.with_omega(f64::NAN),
            Err(Error::Omega { .. })
        ));
        assert!(matches!(problem.part(0, 0), Err(Error::Units { .. })));
        assert!(matches!(problem.part(0, 9), Err(Error::Units { .. })));
        assert!(matches!(problem.part(2, 2), Err(Error::Unit { .. })));
        assert!(matches!(problem.parts(0), Err(Error::Units { .. })));
    }
}
