//! The program `laplace-writer`: one unit of the solver, as a writer of the stream.

use std::cell::RefCell;
use std::io::Write;
use std::time::{Duration, Instant};

use clap::Parser;
use samite::Fabric;
use samite::program::Reporter;
use samite::stage::Stage;
use samite::stage::protocol::Attribute;

use super::{FIELD, STREAM, said};
use crate::job::borders::Borders;
use crate::job::field::Layout;
use crate::job::protocol::Doing;
use crate::{Change, Error, Problem, Progress, Rows, Solver, VecRows};

/// Solves the Laplace problem by red-black over-relaxation, and writes every step to a stream.
///
/// The units share the rectangle by bands of rows. Any number of programs may read the stream; one that is slower
/// makes the solver wait, at most as long as the setting fabric.deadline says.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-writer")]
pub struct Args {
    /// Rows and columns of the part of each unit
    #[arg(long, default_value_t = 2048)]
    pub size: usize,
    /// Sweeps over the whole rectangle
    #[arg(long, default_value_t = 100)]
    pub steps: u64,
}

/// Runs one unit. Collective over the program; returns when the last step is committed, read or not.
///
/// # Errors
///
/// [`Error::Fabric`] when a neighbour is lost, [`Error::Stage`] when the stream cannot be written: nobody reads it,
/// a reader is too slow, memory is short.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let own = fabric.identity();
    let problem = Problem::stacked(args.size, own.size as usize)?;
    let part = problem.part(own.rank as usize, own.size as usize)?;
    let solvers = fabric
        .program(&own.program)
        .doing(|| "looking for the other units of the solver".into())?;
    // No field is in this segment: only the rows that travel between neighbours.
    let layout = Layout {
        rows: 0,
        cols: problem.cols(),
    };
    let segment = fabric
        .allocate(layout.bytes())
        .doing(|| "making room for the borders".into())?;
    let mut borders = Borders::new(fabric, &solvers, part, segment.bytes(), layout);
    let stage = Stage::join(fabric)?;
    let mut field = stage.writer(STREAM)?;

    let mut solver = Solver::new(problem, part);
    let room = || VecRows::new(part.rows, problem.cols());
    let (mut old, mut new) = (room(), room());
    let (mut stepping, mut waiting) = (Duration::ZERO, Duration::ZERO);
    let mut reporter = (own.rank == 0).then(|| Reporter::new(out, args.steps));
    let begin = Instant::now();
    for number in 0..=args.steps {
        let start = Instant::now();
        let mut step = field.step()?;
        waiting += start.elapsed();

        let start = Instant::now();
        let shape = [problem.rows(), problem.cols()];
        let extent = [part.rows, problem.cols()];
        let cells = step.alloc::<f64>(FIELD, shape, [part.first_row, 0], extent)?;
        let staged = Twice::new(&new, cells.into_slice());
        let change = match number {
            0 => {
                solver.fill_initial(&staged);
                Change::default()
            }
            _ => solver.step(&Twice::new(&old, None), &staged, &mut borders)?,
        };
        stepping += start.elapsed();

        step.attribute(said::STEPS, Attribute::Integer(args.steps as i64));
        if number > 0 {
            step.attribute(&said::change(own.rank), Attribute::Real(change.max));
        }
        if number == args.steps {
            let computing = stepping.saturating_sub(borders.spent);
            let times = [computing, borders.spent, waiting].map(|time| time.as_secs_f64());
            step.attribute(&said::times(own.rank), Attribute::Reals(times.into()));
        }
        step.commit()?;
        std::mem::swap(&mut old, &mut new);
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
    Ok(())
}

/// The solver's own field, and beside it the memory of a step: a row goes to both while it is in the cache. The next
/// step is computed from the solver's own, since a committed step belongs to its readers.
struct Twice<'a> {
    own: &'a VecRows,
    staged: Option<RefCell<&'a mut [f64]>>,
}

impl<'a> Twice<'a> {
    fn new(own: &'a VecRows, staged: Option<&'a mut [f64]>) -> Self {
        let staged = staged.map(RefCell::new);
        Twice { own, staged }
    }
}

impl Rows for Twice<'_> {
    fn cols(&self) -> usize {
        self.own.cols()
    }

    fn rows(&self) -> usize {
        self.own.rows()
    }

    fn load(&self, row: usize, out: &mut [f64]) {
        self.own.load(row, out);
    }

    fn store(&self, row: usize, from: &[f64]) {
        self.own.store(row, from);
        if let Some(staged) = &self.staged {
            let start = row * from.len();
            staged.borrow_mut()[start..start + from.len()].copy_from_slice(from);
        }
    }
}
