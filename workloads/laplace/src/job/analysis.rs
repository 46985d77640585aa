//! The program `laplace-analysis`: reads every step of all solver units where it lies.

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use samite::Fabric;
use samite::program::Reporter;

use super::outcome::Outcome;
use super::protocol::{GO, NOT_YET, SIGN_OF_LIFE, Times};
use super::source::Sources;
use crate::residual::ResidualRows;
use crate::{
    Change, Comparison, Distance, Error, Moments, Picture, Residual, Samples, Sequential,
    StepRecord,
};

/// Reads every step of the solver straight out of its memory, and computes its central moments.
///
/// No step is lost and none is torn: the solver overwrites a step only after it was read. An analysis
/// that is slower than the solver makes the solver wait, at most as long as the setting
/// fabric.deadline says. At the end the field is compared with a sequential run, bit by bit.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-analysis")]
pub struct Args {
    /// Where the report goes
    #[arg(
        long,
        value_name = "FILE",
        default_value = "samite-report-laplace.html"
    )]
    pub report: PathBuf,
    /// Do not compare the result with a sequential run
    #[arg(long)]
    pub no_check: bool,
    /// Wait before each step is read, to see what a slow analysis does
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    pub delay: Duration,
}

/// Samples per side at which a step is compared with the analytic solution.
const SAMPLES: usize = 64;
/// Longest side of the field's picture.
const PICTURE: usize = 1024;

/// Runs the analysis. Returns when the last step was read and checked, and the report is written.
///
/// # Errors
///
/// [`Error::Fabric`] when a solver unit is lost or does not answer in time, [`Error::Torn`] and
/// [`Error::Gap`] when a step is not whole or not there, [`Error::Wrong`] (after the report was
/// written) when the result is not that of the sequential solver.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let sources = Sources::meet(fabric)?;
    let outcome = watch(&sources, args, out).map_err(|error| sources.explain(error))?;
    outcome.show(&args.report, out)?;
    outcome.judge()
}

/// All that needs the solver: its steps, and the check of the last one.
fn watch(sources: &Sources<'_>, args: &Args, out: &mut dyn Write) -> Result<Outcome, Error> {
    let mut analysis = Analysis::new(sources);
    let begin = Instant::now();
    for step in 0..=sources.steps {
        analysis.take(step, args.delay)?;
    }
    let elapsed = begin.elapsed();
    let mut times = Times::default();
    for unit in &sources.units {
        times = times.max(unit.times()?);
    }
    let (picture, residual) = analysis.last_look()?;
    let begin = Instant::now();
    let comparison = (!args.no_check).then(|| analysis.check(out)).transpose()?;
    let checking = begin.elapsed();
    for unit in &sources.units {
        unit.say_end(GO)?;
    }
    Ok(Outcome {
        problem: sources.problem,
        first_rows: sources
            .units
            .iter()
            .map(|unit| unit.part.first_row)
            .collect(),
        in_place: sources.in_place(),
        records: analysis.records,
        picture,
        residual,
        comparison,
        elapsed,
        reading: analysis.reading,
        checking,
        times,
    })
}

/// What is known so far.
struct Analysis<'s, 'f> {
    sources: &'s Sources<'f>,
    samples: Samples,
    records: Vec<StepRecord>,
    /// The row that is looked at.
    row: Vec<f64>,
    /// Time spent with rows, as opposed to waiting for them.
    reading: Duration,
}

impl<'s, 'f> Analysis<'s, 'f> {
    fn new(sources: &'s Sources<'f>) -> Self {
        Self {
            sources,
            samples: Samples::new(&sources.problem, SAMPLES),
            records: Vec::new(),
            row: vec![0.0; sources.problem.cols()],
            reading: Duration::ZERO,
        }
    }

    /// One step of all units, from the top down, so that the moments do not depend on their number.
    /// Each unit may go on as soon as its own rows were read; the last step is not given back.
    fn take(&mut self, step: u64, delay: Duration) -> Result<(), Error> {
        let (mut moments, mut distance) = (Moments::EMPTY, Distance::default());
        let mut change = Change::default();
        thread::sleep(delay);
        for unit in &self.sources.units {
            change = change.merge(unit.await_step(step)?);
            let start = Instant::now();
            unit.read(step, &mut self.row, |at, cells| {
                moments.add(cells);
                distance = distance.merge(self.samples.compare_row(at, cells));
            })?;
            self.reading += start.elapsed();
            if step < self.sources.steps {
                unit.release()?;
            }
        }
        self.records.push(StepRecord {
            step,
            moments,
            distance,
            max_change: (step > 0).then_some(change.max),
        });
        Ok(())
    }

    /// What is wanted of the last step only.
    fn last_look(&mut self) -> Result<(Picture, Residual), Error> {
        let problem = &self.sources.problem;
        let mut picture = Picture::new(problem, PICTURE);
        let mut residual = ResidualRows::whole(problem);
        for unit in &self.sources.units {
            unit.read(self.sources.steps, &mut self.row, |at, cells| {
                picture.add_row(at, cells);
                residual.push(cells);
            })?;
        }
        Ok((picture, residual.finish_whole()))
    }

    /// Computes all again as the textbook has it, and compares the last step bit by bit.
    fn check(&mut self, out: &mut dyn Write) -> Result<Comparison, Error> {
        let mut reporter = Reporter::new(out, self.sources.steps);
        let mut sequential = Sequential::new(self.sources.problem);
        let mut heard = Instant::now();
        for step in 1..=self.sources.steps {
            sequential.step();
            reporter.report(step, || "checking against the sequential run".into())?;
            if heard.elapsed() >= SIGN_OF_LIFE {
                heard = Instant::now();
                for unit in &self.sources.units {
                    unit.say_end(NOT_YET)?;
                }
            }
        }
        let mut comparison = Comparison::default();
        for unit in &self.sources.units {
            unit.read(self.sources.steps, &mut self.row, |at, cells| {
                comparison = comparison.merge(sequential.compare_row(at, cells));
            })?;
        }
        Ok(comparison)
    }
}
