//! The program `laplace-array`: the same problem on a distributed array.
//!
//! The rectangle is a two-dimensional array that is cut into blocks in both dimensions, each with
//! one ring of ghost cells in the same memory. A step relaxes red cells, exchanges ghost cells,
//! relaxes black cells and exchanges again. Ghost cells at the sides of the rectangle have no
//! neighbour and hold the boundary.
//!
//! The field is relaxed in place, so no program can watch it; [`super::solver`] allows that.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Parser;
use pulp::Arch;
use samite::Fabric;
use samite::pgas::array::{Array, Halo, Pattern};
use samite::pgas::{Local, Max, Pgas};
use samite::program::{Reporter, Summary};

use super::check::same_change;
use crate::kernel::{Colour, Relax};
use crate::problem::{BOTTOM, INITIAL, LEFT, RIGHT, TOP};
use crate::residual::larger;
use crate::{Comparison, Error, Problem, Progress, Sequential};

/// Solves the Laplace problem by red-black over-relaxation on a distributed array.
///
/// The units share the rectangle by blocks in both dimensions. The result is compared with that of
/// a sequential run, bit by bit.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-array")]
pub struct Args {
    /// Rows of the whole rectangle
    #[arg(long, default_value_t = 2048)]
    pub rows: usize,
    /// Columns of the whole rectangle
    #[arg(long, default_value_t = 2048)]
    pub cols: usize,
    /// Sweeps over the whole rectangle
    #[arg(long, default_value_t = 400)]
    pub steps: u64,
    /// Do not compare with a sequential run, which takes as long as one unit alone
    #[arg(long)]
    pub no_check: bool,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] if a bit differs from the sequential run, [`Error::Figures`] if the largest
/// change does; [`Error::Pgas`] if a unit is lost or memory is short.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::new(fabric)?;
    let problem = Problem::new(args.rows, args.cols)?;
    let extents = [args.rows as u64, args.cols as u64];
    let pattern = Pattern::block(extents, pgas.units())
        .and_then(|pattern| pattern.with_halo(Halo::new([1, 1])))
        .map_err(samite::pgas::Error::from)?;
    let array = Array::new(pgas.world(), pattern)?.into_local()?;
    let mut block = Block::new(problem, array);

    let speaks = pgas.me().0 == 0;
    let mut reporter = speaks.then(|| Reporter::new(out, args.steps));
    let mut change = 0.0;
    pgas.world().barrier()?;
    let begin = Instant::now();
    for step in 1..=args.steps {
        change = block.step()?;
        if let Some(reporter) = &mut reporter {
            reporter.report(step, || speed(problem, step, args.steps, begin.elapsed()))?;
        }
    }
    // The slowest unit determines the time of the run.
    let own = begin.elapsed().as_nanos() as u64;
    let (mut slowest, mut largest) = ([0], [0.0]);
    pgas.world().all_reduce(&[own], &mut slowest, Max)?;
    pgas.world().all_reduce(&[change], &mut largest, Max)?;
    let elapsed = Duration::from_nanos(slowest[0]);

    let array = block.array.into_shared()?;
    let mut judged = Ok(());
    if speaks {
        let mut comparison = None;
        if !args.no_check {
            let (cells, change) = compare(problem, &array, args.steps)?;
            // Before the first step, the change is 0.
            let change = same_change(args.steps, Some(largest[0]), Some(change));
            comparison = Some((cells, change.is_ok()));
            judged = cells.judge().and(change);
        }
        let summary = summary(problem, &array, args.steps, elapsed, largest[0], comparison);
        write!(out, "{summary}")?;
    }
    array.free()?;
    judged
}

fn progress(problem: Problem, step: u64, of: u64, elapsed: Duration) -> Progress {
    Progress {
        step,
        of,
        cells: problem.cells(),
        elapsed,
    }
}

fn speed(problem: Problem, step: u64, of: u64, elapsed: Duration) -> String {
    let rate = progress(problem, step, of, elapsed).cells_per_second();
    format!("{:.0} Mcells/s", rate / 1e6)
}

fn summary(
    problem: Problem,
    array: &Array<f64, 2>,
    steps: u64,
    elapsed: Duration,
    change: f64,
    comparison: Option<(Comparison, bool)>,
) -> Summary {
    let [down, across] = array.pattern().grid().shape();
    let per_cell = progress(problem, steps, steps, elapsed).ns_per_cell();
    let summary = Summary::new("Laplace on a distributed array")
        .row(
            "cells",
            format_args!("{} × {}", problem.rows(), problem.cols()),
        )
        .row("units", format_args!("{down} × {across}"))
        .row("steps", steps)
        .row("largest change", format_args!("{change:.3e}"))
        .row("time", format_args!("{:.3} s", elapsed.as_secs_f64()))
        .row("per cell and step", format_args!("{per_cell:.3} ns"));
    let Some((comparison, same_change)) = comparison else {
        return summary;
    };
    let equal = comparison.cells - comparison.different;
    let but = if same_change { "and so is" } else { "but not" };
    let detail = format!(
        "{equal} of {} cells are equal to those of a sequential run, bit by bit, {but} the largest \
         change of the last step",
        comparison.cells
    );
    summary.verification(comparison.is_exact() && same_change, detail)
}

/// Runs the steps sequentially and compares all rows of the array; returns also the largest change
/// of a cell in the last step.
fn compare(
    problem: Problem,
    array: &Array<f64, 2>,
    steps: u64,
) -> Result<(Comparison, f64), Error> {
    let mut sequential = Sequential::new(problem);
    let change = (0..steps).map(|_| sequential.step()).last();
    let mut row = vec![0.0; problem.cols()];
    let mut comparison = Comparison::default();
    for at in 0..problem.rows() {
        let first = at as u64;
        array.get([first..first + 1, 0..problem.cols() as u64], &mut row)?;
        comparison = comparison.merge(sequential.compare_row(at, &row));
    }
    Ok((comparison, change.unwrap_or(0.0)))
}

/// The block of one unit.
struct Block {
    problem: Problem,
    array: Array<f64, 2, Local>,
    /// Index of its first cell in the whole rectangle.
    first: [usize; 2],
    /// Cells of a row with its ghost cells; 0 if the unit has no cells.
    width: usize,
    arch: Arch,
    /// A row that was just relaxed.
    relaxed: Vec<f64>,
}

impl Block {
    /// Returns the field before the first step, with the boundary around it.
    fn new(problem: Problem, mut array: Array<f64, 2, Local>) -> Block {
        let first = array.local_runs().next().map_or([0, 0], |run| run.index);
        let first = first.map(|index| index as usize);
        let [height, width] = array.stored_extents().map(|extent| extent as usize);
        let width = if array.local_len() > 0 { width } else { 0 };
        if width > 0 {
            let memory = array.as_mut_slice();
            memory.fill(INITIAL);
            // The first exchange overwrites ghost cells that have a neighbour.
            let mut side = |at: bool, cells: &mut dyn Iterator<Item = usize>, value: f64| {
                if at {
                    cells.for_each(|cell| memory[cell] = value);
                }
            };
            let last = [first[0] + height - 2, first[1] + width - 2];
            let bottom = (height - 1) * width;
            side(first[1] == 0, &mut (0..height).map(|row| row * width), LEFT);
            let right = &mut (1..=height).map(|row| row * width - 1);
            side(last[1] == problem.cols(), right, RIGHT);
            side(first[0] == 0, &mut (0..width), TOP);
            side(
                last[0] == problem.rows(),
                &mut (bottom..bottom + width),
                BOTTOM,
            );
        }
        Block {
            problem,
            array,
            first,
            width,
            arch: Arch::new(),
            relaxed: vec![0.0; width],
        }
    }

    /// Computes one step; returns the largest change of a cell of this block. Collective.
    fn step(&mut self) -> Result<f64, Error> {
        let mut change = 0.0f64;
        for colour in [Colour::Red, Colour::Black] {
            change = larger(change, self.relax(colour));
            self.array.exchange_halo()?;
        }
        Ok(change)
    }

    /// Relaxes the cells of one colour; returns the largest change.
    fn relax(&mut self, colour: Colour) -> f64 {
        let width = self.width;
        if width == 0 {
            return 0.0;
        }
        let memory = self.array.as_mut_slice();
        let mut change = 0.0f64;
        for start in (width..memory.len() - width).step_by(width) {
            let row = self.first[0] + start / width - 1;
            let relax = Relax {
                omega: self.problem.omega(),
                // Columns are counted from the first one of this block.
                parity: (colour.parity(row) + self.first[1]) % 2,
                above: &memory[start - width..start],
                row: &memory[start..start + width],
                below: &memory[start + width..start + 2 * width],
                out: &mut self.relaxed,
            };
            change = larger(change, relax.run(self.arch).max);
            memory[start + 1..start + width - 1].copy_from_slice(&self.relaxed[1..width - 1]);
        }
        change
    }
}
