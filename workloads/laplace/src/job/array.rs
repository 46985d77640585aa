//! The program `laplace-array`: the same problem on a distributed array.
//!
//! The rectangle is a two-dimensional array that is cut into blocks in both dimensions, each with
//! one ring of ghost cells in the same memory ([`Block`]).
//!
//! The field is relaxed in place, so no program can watch it; [`super::solver`] allows that.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Parser;
use samite::Fabric;
use samite::pgas::array::{Array, Halo, Pattern};
use samite::pgas::{Local, Max, Pgas};
use samite::program::{Reporter, Summary};

use super::check::same_change;
use crate::Error;
use samite_relaxation::{Block, Colour, Comparison, Problem, Progress, Sequential, larger};

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
/// [`Error::Problem`] if a bit differs from the sequential run, [`Error::Figures`] if the largest
/// change does; [`Error::Pgas`] if a unit is lost or memory is short.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::new(fabric)?;
    let problem = Problem::new(args.rows, args.cols)?;
    let extents = [args.rows as u64, args.cols as u64];
    let pattern = Pattern::block(extents, pgas.units())
        .and_then(|pattern| pattern.with_halo(Halo::new([1, 1])))
        .map_err(samite::pgas::Error::from)?;
    let mut array = Array::new(pgas.world(), pattern)?.into_local()?;
    let first = array.local_runs().next().map_or([0, 0], |run| run.index);
    let width = match array.local_len() {
        0 => 0,
        _ => array.stored_extents()[1] as usize,
    };
    let mut block = Block::new(problem, first.map(|index| index as usize), width);
    block.fill_initial(array.as_mut_slice());

    let speaks = pgas.me().0 == 0;
    let mut reporter = speaks.then(|| Reporter::new(out, args.steps));
    let mut change = 0.0;
    pgas.world().barrier()?;
    let begin = Instant::now();
    for step in 1..=args.steps {
        change = relax(&mut block, &mut array)?;
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

    let array = array.into_shared()?;
    let mut judged = Ok(());
    if speaks {
        let mut comparison = None;
        if !args.no_check {
            let (cells, change) = compare(problem, &array, args.steps)?;
            // Before the first step, the change is 0.
            let change = same_change(args.steps, Some(largest[0]), Some(change));
            comparison = Some((cells, change.is_ok()));
            judged = cells.judge().map_err(Error::from).and(change);
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

/// Computes one step; returns the largest change of a cell of this unit. Collective.
fn relax(block: &mut Block, array: &mut Array<f64, 2, Local>) -> Result<f64, Error> {
    let mut change = 0.0;
    for colour in [Colour::Red, Colour::Black] {
        change = larger(change, block.relax(array.as_mut_slice(), colour));
        array.exchange_halo()?;
    }
    Ok(change)
}
