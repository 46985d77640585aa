//! One step of red-black over-relaxation on the rows of one unit.
//!
//! A step relaxes all red cells, then all black ones; `(row + column)` even is red, counted over
//! the whole rectangle. It reads the field of step *k* and writes that of step *k + 1* elsewhere:
//!
//! * red, new: from the old cell and its old black neighbours;
//! * black, new: from the old cell and its new red neighbours.
//!
//! The in-place solver computes the same, operation by operation, so the bits agree.
//!
//! Memory is read once and written once per step. The pass below runs over the rows with the red
//! half-sweep one row ahead of the black one; the rows between them stay in five private rows:
//!
//! ```text
//!   row i-1   red[above]     done, already stored
//!   row i     red[here]      -> black half-sweep -> `out` -> stored
//!   row i+1   red[below]     <- red half-sweep <- `next` (old row i+1), with red[here] and `after`
//!   row i+2   `after`        loaded from the old field
//! ```
//!
//! A red half-sweep may use `red[here]` in place of the old row because it reads black cells only,
//! and those are still the old ones. The neighbours' red cells are needed before the black
//! half-sweep of the first and the last row. So these two rows are relaxed and exchanged first, and
//! then the pass begins. A step has two exchanges: after red, and after black.

use std::convert::Infallible;

use pulp::Arch;
use serde::{Deserialize, Serialize};

use crate::kernel::{Colour, Relax};
use crate::problem::{BOTTOM, INITIAL, LEFT, RIGHT, TOP};
use crate::residual::larger;
use crate::{Error, Part, Problem, Rows, RowsMut};

/// What a step needs from the neighbours.
pub trait Halo {
    /// Why a neighbour did not answer.
    type Error;

    /// Sends `top_row` to the unit above and `bottom_row` to the unit below, and replaces
    /// `halo_top` and `halo_bottom` by the rows received from them. All rows have the interior
    /// columns only. Without a neighbour (see [`Part::above`] and [`Part::below`]) the halo is the
    /// boundary: leave it unchanged.
    ///
    /// Every unit calls this twice per step, in the same order. Returns when both halos are
    /// complete and both rows may be overwritten.
    fn exchange(
        &mut self,
        top_row: &[f64],
        bottom_row: &[f64],
        halo_top: &mut [f64],
        halo_bottom: &mut [f64],
    ) -> Result<(), Self::Error>;
}

/// The halo of a unit that owns the whole rectangle.
#[derive(Clone, Copy, Debug)]
pub struct NoNeighbours;

impl Halo for NoNeighbours {
    type Error = Infallible;

    fn exchange(
        &mut self,
        _: &[f64],
        _: &[f64],
        _: &mut [f64],
        _: &mut [f64],
    ) -> Result<(), Infallible> {
        Ok(())
    }
}

/// How much a step changed the cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The largest change of a cell; NaN if a cell became one.
    pub max: f64,
    /// The sum of the absolute changes of all cells.
    pub sum: f64,
}

impl Change {
    /// Merges the changes of two parts.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            max: larger(self.max, other.max),
            sum: self.sum + other.sum,
        }
    }
}

/// The solver of one unit: its halos and the private rows of a pass. The caller owns the field.
#[derive(Debug)]
pub struct Solver {
    problem: Problem,
    part: Part,
    arch: Arch,
    halo_top: Vec<f64>,
    halo_bottom: Vec<f64>,
    /// First and last owned row, for the neighbours.
    edge_top: Vec<f64>,
    edge_bottom: Vec<f64>,
    pass: Pass,
}

/// The rows of the pass; each is padded by the boundary columns.
#[derive(Debug)]
struct Pass {
    above: Vec<f64>,
    here: Vec<f64>,
    below: Vec<f64>,
    next: Vec<f64>,
    after: Vec<f64>,
    out: Vec<f64>,
}

impl Solver {
    /// Returns a solver for `part`, before the first step.
    pub fn new(problem: Problem, part: Part) -> Self {
        let row = |value| padded(problem.cols(), value);
        Self {
            problem,
            part,
            arch: Arch::new(),
            halo_top: row(if part.above().is_some() { INITIAL } else { TOP }),
            halo_bottom: row(if part.below().is_some() {
                INITIAL
            } else {
                BOTTOM
            }),
            edge_top: row(INITIAL),
            edge_bottom: row(INITIAL),
            pass: Pass {
                above: row(INITIAL),
                here: row(INITIAL),
                below: row(INITIAL),
                next: row(INITIAL),
                after: row(INITIAL),
                out: row(INITIAL),
            },
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

    /// Returns the part that this solver computes.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Returns the rows above the first and below the last owned one after the last step: the
    /// neighbours' rows, or the boundary. Interior columns only.
    pub fn halos(&self) -> (&[f64], &[f64]) {
        (inside(&self.halo_top), inside(&self.halo_bottom))
    }

    /// Fills a field with the value of every cell before the first step.
    ///
    /// # Panics
    ///
    /// If the field does not have the shape of the part.
    pub fn fill_initial<R: RowsMut>(&self, field: &R) {
        self.assert_shape(field);
        let initial = vec![INITIAL; self.problem.cols()];
        for row in 0..self.part.rows {
            field.store(row, &initial);
        }
    }

    /// Computes step *k + 1* into `new` from step *k* in `old`, exchanging borders twice.
    ///
    /// Reads every row of `old` once (the first and last ones twice) and writes every row of `new`
    /// once, row *r* after row *r + 2* was read: both may be the same field. After an error the
    /// halos are unspecified and the solver must not step again.
    ///
    /// # Panics
    ///
    /// If a field does not have the shape of the part.
    pub fn step<O: Rows, N: RowsMut, H: Halo>(
        &mut self,
        old: &O,
        new: &N,
        halo: &mut H,
    ) -> Result<Change, H::Error> {
        self.assert_shape(old);
        self.assert_shape(new);
        let mut change = self.relax_edges(old);
        self.exchange(halo)?;
        change = change.merge(self.relax_all(old, new));
        self.exchange(halo)?;
        Ok(change)
    }

    /// The red half-sweep of the first and the last row, into the edges.
    fn relax_edges<R: Rows>(&mut self, old: &R) -> Change {
        let last = self.part.rows - 1;
        let Pass { next, after, .. } = &mut self.pass;
        old.load(0, inside_mut(next));
        if last > 0 {
            old.load(1, inside_mut(after));
        }
        let below = if last > 0 { &*after } else { &self.halo_bottom };
        let red = HalfSweep::new(self.problem, self.part, self.arch, Colour::Red);
        let change = red.relax(0, &self.halo_top, next, below, &mut self.edge_top);
        if last == 0 {
            self.edge_bottom.copy_from_slice(&self.edge_top);
            return change;
        }
        old.load(last - 1, inside_mut(after));
        old.load(last, inside_mut(next));
        change.merge(red.relax(last, after, next, &self.halo_bottom, &mut self.edge_bottom))
    }

    /// The pass: red one row ahead of black. Leaves the finished edges for the next exchange.
    fn relax_all<O: Rows, N: RowsMut>(&mut self, old: &O, new: &N) -> Change {
        let rows = self.part.rows;
        let Pass {
            above,
            here,
            below,
            next,
            after,
            out,
        } = &mut self.pass;
        let [red, black] = [Colour::Red, Colour::Black]
            .map(|colour| HalfSweep::new(self.problem, self.part, self.arch, colour));
        let mut change = Change::default();
        // The edges were relaxed before the exchange; row 1 is the first that is loaded here.
        above.copy_from_slice(&self.halo_top);
        here.copy_from_slice(&self.edge_top);
        if rows > 2 {
            old.load(1, inside_mut(next));
        }
        for row in 0..rows {
            // Provide the red row below: from the neighbour, from the edge, or relaxed now.
            if row + 1 == rows {
                below.copy_from_slice(&self.halo_bottom);
            } else if row + 2 == rows {
                below.copy_from_slice(&self.edge_bottom);
            } else {
                old.load(row + 2, inside_mut(after));
                change = change.merge(red.relax(row + 1, here, next, after, below));
                std::mem::swap(next, after);
            }
            change = change.merge(black.relax(row, above, here, below, out));
            new.store(row, inside(out));
            if row == 0 {
                self.edge_top.copy_from_slice(out);
            }
            if row + 1 == rows {
                self.edge_bottom.copy_from_slice(out);
            }
            std::mem::swap(above, here);
            std::mem::swap(here, below);
        }
        change
    }

    fn exchange<H: Halo>(&mut self, halo: &mut H) -> Result<(), H::Error> {
        halo.exchange(
            inside(&self.edge_top),
            inside(&self.edge_bottom),
            inside_mut(&mut self.halo_top),
            inside_mut(&mut self.halo_bottom),
        )
    }

    fn assert_shape<R: Rows>(&self, field: &R) {
        assert_eq!(
            (field.rows(), field.cols()),
            (self.part.rows, self.problem.cols()),
            "the field has not the shape of the part"
        );
    }
}

/// One colour of the rows of a part.
struct HalfSweep {
    omega: f64,
    /// Parity of the columns of this colour in the first row of the part.
    parity: usize,
    arch: Arch,
}

impl HalfSweep {
    fn new(problem: Problem, part: Part, arch: Arch, colour: Colour) -> Self {
        Self {
            omega: problem.omega(),
            parity: colour.parity(part.first_row),
            arch,
        }
    }

    /// Relaxes this colour of an owned row into `out`. All rows are padded.
    fn relax(
        &self,
        row: usize,
        above: &[f64],
        here: &[f64],
        below: &[f64],
        out: &mut [f64],
    ) -> Change {
        let parity = (self.parity + row) % 2;
        Relax {
            omega: self.omega,
            parity,
            above,
            row: here,
            below,
            out,
        }
        .run(self.arch)
    }
}

/// Returns a row of `cols` cells with the boundary columns around it.
fn padded(cols: usize, value: f64) -> Vec<f64> {
    let mut row = vec![value; cols + 2];
    row[0] = LEFT;
    row[cols + 1] = RIGHT;
    row
}

/// Returns the interior cells of a padded row.
fn inside(row: &[f64]) -> &[f64] {
    &row[1..row.len() - 1]
}

fn inside_mut(row: &mut [f64]) -> &mut [f64] {
    let end = row.len() - 1;
    &mut row[1..end]
}
