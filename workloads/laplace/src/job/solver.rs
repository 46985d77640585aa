//! The program `laplace-solver`: one unit of the solver, which writes the stream.

use std::cell::RefCell;
use std::io::Write;
use std::time::{Duration, Instant};

use clap::Parser;
use ndarray::{ArrayViewD, ArrayViewMutD};
use samite::Fabric;
use samite::program::Reporter;
use samite::stage::Stage;
use samite::stage::protocol::Attribute;

use super::borders::Borders;
use super::{FIELD, STREAM, attribute};
use crate::Error;
use samite_relaxation::{Change, Omega, Problem, Progress, Rows, RowsMut, Solver};

/// Solves the Laplace problem by red-black over-relaxation, and writes every step to a stream.
///
/// The units share the rectangle by bands of rows. Any number of programs may read the stream; one
/// that is slower makes the solver wait, as long as it is alive or up to the setting stage.timeout.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-solver")]
pub struct Args {
    /// Rows and columns of the part of each unit
    #[arg(long, default_value_t = 384)]
    pub size: usize,
    /// Sweeps over the whole rectangle
    #[arg(long, default_value_t = 1500)]
    pub steps: u64,
    /// The over-relaxation factor: `best` for this rectangle, or a number between 0 and 2
    #[arg(long, default_value = "best")]
    pub omega: Omega,
}

/// Runs one unit. Collective over the program; returns when the last step is committed, whether it
/// was read or not.
///
/// # Errors
///
/// [`Error::Fabric`] if a neighbour is lost, [`Error::Stage`] if the stream cannot be written: it
/// has no reader, a reader takes longer than stage.timeout, memory is short.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let own = fabric.identity();
    let problem = Problem::stacked(args.size, own.size as usize)?.relaxed_by(args.omega)?;
    let part = problem.part(own.rank as usize, own.size as usize)?;
    let mut borders = Borders::new(fabric, &problem, part)?;
    let stage = Stage::join(fabric)?;
    let mut stream = stage.writer(STREAM)?;

    let mut solver = Solver::new(problem, part);
    let (mut stepping, mut waiting) = (Duration::ZERO, Duration::ZERO);
    let mut reporter = (own.rank == 0).then(|| Reporter::new(out, args.steps));
    let begin = Instant::now();
    for number in 0..=args.steps {
        let start = Instant::now();
        let mut step = stream.step()?;
        waiting += start.elapsed();

        let start = Instant::now();
        let shape = [problem.rows(), problem.cols()];
        let extent = [part.rows, problem.cols()];
        // The new step is computed in place, from the last one in place.
        let (last, cells) =
            step.alloc_with_last::<f64>(FIELD, shape, [part.first_row, 0], extent)?;
        let new = New::of(problem.cols(), cells);
        let block = [part.first_row..part.end_row(), 0..problem.cols()];
        let old = match last {
            Some(last) => last.view::<f64>(FIELD, block)?,
            None => None,
        };
        let change = match (number, old) {
            (0, _) => {
                solver.fill_initial(&new);
                Change::default()
            }
            (_, Some(old)) => solver.step(&Old(old), &new, &mut borders)?,
            (_, None) => return Err(Error::LastStep { step: number - 1 }),
        };
        stepping += start.elapsed();

        // What the analysis needs besides the field.
        step.attribute(attribute::STEPS, Attribute::Integer(args.steps as i64));
        step.attribute(attribute::OMEGA, Attribute::Real(problem.omega()));
        if number > 0 {
            step.attribute(&attribute::change(own.rank), Attribute::Real(change.max));
        }
        if number == args.steps {
            let computing = stepping.saturating_sub(borders.spent);
            let times = [computing, borders.spent, waiting].map(|time| time.as_secs_f64());
            step.attribute(&attribute::times(own.rank), Attribute::Reals(times.into()));
        }
        match number < args.steps {
            true => step.commit_and_keep()?,
            false => step.commit()?,
        }
        if let Some(reporter) = reporter.as_mut().filter(|_| number > 0) {
            reporter.report(number, || {
                let progress = Progress {
                    step: number,
                    of: args.steps,
                    cells: problem.cells(),
                    elapsed: begin.elapsed(),
                };
                format!("{:.0} Mcells/s", progress.cells_per_second() / 1e6)
            })?;
        }
    }
    Ok(stream.close()?)
}

/// The rows of the last step, which its readers may read at the same time.
struct Old<'a>(ArrayViewD<'a, f64>);

impl Rows for Old<'_> {
    fn cols(&self) -> usize {
        self.0.shape()[1]
    }

    fn rows(&self) -> usize {
        self.0.shape()[0]
    }

    fn load(&self, row: usize, out: &mut [f64]) {
        // The block as it was allocated: its cells are contiguous.
        let start = row * out.len();
        let cells = self.0.as_slice().unwrap_or_default();
        out.copy_from_slice(&cells[start..start + out.len()]);
    }
}

/// The rows of the step that is being written: no reader can see them yet.
struct New<'a> {
    cols: usize,
    cells: RefCell<&'a mut [f64]>,
}

impl<'a> New<'a> {
    fn of(cols: usize, cells: ArrayViewMutD<'a, f64>) -> Self {
        let cells = RefCell::new(cells.into_slice().unwrap_or_default());
        New { cols, cells }
    }
}

impl Rows for New<'_> {
    fn cols(&self) -> usize {
        self.cols
    }

    fn rows(&self) -> usize {
        self.cells.borrow().len() / self.cols
    }

    fn load(&self, row: usize, out: &mut [f64]) {
        let start = row * self.cols;
        out.copy_from_slice(&self.cells.borrow()[start..start + self.cols]);
    }
}

impl RowsMut for New<'_> {
    fn store(&self, row: usize, from: &[f64]) {
        let start = row * self.cols;
        self.cells.borrow_mut()[start..start + self.cols].copy_from_slice(from);
    }
}
