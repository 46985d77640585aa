//! The program `laplace-moments`: any number of units that read the stream.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::{ArgAction, Parser};
use ndarray::{Array2, ArrayView2, Ix2};
use samite::Fabric;
use samite::program::{Reporter, Summary, Units};
use samite::stage::protocol::{Attribute, EndOfStream};
use samite::stage::space::Grid;
use samite::stage::{Reader, Stage, StepReader};

use super::figures::{Found, Kind, table};
use super::{FIELD, STREAM, said};
use crate::job::protocol::Doing;
use crate::{Comparison, Error, Problem, Samples, Sequential};

/// Samples per side at which a step is compared with the analytic solution.
const SAMPLES: usize = 64;

/// Reads every step of the stream of the Laplace solver, and computes its moments.
///
/// The units share the rows of the rectangle, whatever the solver's parts are. At the end the last step is compared
/// with a sequential run, bit by bit, and the moments of the others with those of the sequential run.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-moments")]
pub struct Args {
    /// The highest order of the moments
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=16))]
    pub order: u8,
    /// The study's variant: four orders of each unit's block on its own, in pairs of values, nothing merged
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub study: bool,
    /// Do not compare with a sequential run, which takes as long as one unit alone
    #[arg(long)]
    pub no_check: bool,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Stage`] when the stream or a part of it is lost, [`Error::Wrong`] and [`Error::Figures`] when the result
/// is not that of the sequential solver.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let units = Units::meet(fabric).doing(|| "looking for the units of the analysis".into())?;
    let mut analysis = Analysis::new(fabric, args);
    let stage = Stage::join(fabric)?;
    // It lives as long as the last step is held: what a reader that is closed held is given back.
    let mut reader = stage.reader(STREAM)?;
    let last = analysis.watch(&mut reader, out)?;
    let found = postcard::to_stdvec(&(analysis.found, analysis.in_place, analysis.spent))?;
    let all = units.share(&found).doing(|| "sharing the moments".into())?;
    let all = all.iter().map(|part| postcard::from_bytes(part));
    let mut all = all.collect::<Result<Vec<Part>, _>>()?.into_iter();
    if fabric.identity().rank > 0 {
        return Ok(());
    }
    let (mut found, mut in_place, mut spent) = all.next().unwrap_or_default();
    for (lower, also, [waiting, reading]) in all {
        for (all, lower) in found.iter_mut().zip(lower) {
            all.figures = all.figures.clone().merge(lower.figures);
        }
        in_place += also;
        spent = [spent[0].max(waiting), spent[1].max(reading)];
    }
    let readers = fabric.identity().size;
    let elapsed = analysis.begin.elapsed();
    let comparison = match args.no_check {
        true => None,
        false => Some(check(&last, &found, analysis.kind, readers, out)?),
    };
    writeln!(out, "{}", table(&found, analysis.kind))?;
    let outcome = Outcome {
        last: &last,
        readers,
        in_place,
        spent,
        elapsed,
        checked: analysis.kind.checked(last.number()).len(),
    };
    write!(out, "{}", outcome.summary(comparison)?)?;
    match comparison.and_then(|found| found.first.map(|first| (found, first))) {
        None => Ok(()),
        Some((
            Comparison {
                cells, different, ..
            },
            first,
        )) => Err(Error::Wrong {
            different,
            cells,
            row: first.row,
            col: first.col,
        }),
    }
}

/// What a unit has: figures by step, how many steps it read in place, and seconds of waiting and of reading.
type Part = (Vec<Found>, u64, [f64; 2]);

/// One unit of the analysis.
struct Analysis<'f> {
    fabric: &'f Fabric,
    kind: Kind,
    samples: Option<Samples>,
    found: Vec<Found>,
    /// Steps that were read where they lie.
    in_place: u64,
    /// Seconds of waiting for steps, and of reading them.
    spent: [f64; 2],
    begin: Instant,
}

impl<'f> Analysis<'f> {
    fn new(fabric: &'f Fabric, args: &Args) -> Self {
        let kind = match (args.study, args.order) {
            (true, _) => Kind::Study,
            (false, ..=4) => Kind::Moments,
            (false, order) => Kind::Orders(order.into()),
        };
        Analysis {
            fabric,
            kind,
            samples: None,
            found: Vec::new(),
            in_place: 0,
            spent: [0.0; 2],
            begin: Instant::now(),
        }
    }

    /// All steps; the last one stays held.
    fn watch(
        &mut self,
        reader: &mut Reader<'f>,
        out: &mut dyn Write,
    ) -> Result<StepReader<'f>, Error> {
        let mut reporter = None;
        let mut out = (self.fabric.identity().rank == 0).then_some(out);
        loop {
            let start = Instant::now();
            let Some(step) = reader.next_step()? else {
                return Err(ended(reader.end()));
            };
            self.spent[0] += start.elapsed().as_secs_f64();
            let steps = steps(&step);
            match (&mut reporter, step.number()) {
                (Some(_), _) => {}
                // The time of the first step is that of the programs' start.
                (none, _) => {
                    (self.begin, self.spent[0]) = (Instant::now(), 0.0);
                    *none = out.take().map(|out| Reporter::new(out, steps));
                }
            }
            let start = Instant::now();
            let figures = self.look_at(&step)?;
            self.spent[1] += start.elapsed().as_secs_f64();
            self.found.push(figures);
            if let Some(reporter) = reporter.as_mut().filter(|_| step.number() > 0) {
                reporter.report(step.number(), || "moments".into())?;
            }
            if step.number() == steps {
                return Ok(step);
            }
        }
    }

    /// The figures of this unit's rows.
    fn look_at(&mut self, step: &StepReader<'f>) -> Result<Found, Error> {
        let problem = problem(step)?;
        let samples = &*self
            .samples
            .get_or_insert_with(|| Samples::new(&problem, SAMPLES));
        let own = self.fabric.identity();
        let shape = [problem.rows() as u64, problem.cols() as u64];
        let rows = Grid::along(&shape, 0, own.size.into())
            .map_err(samite::stage::Error::from)?
            .part(own.rank.into());
        let first = rows.lower()[0] as usize;
        let copy: Array2<f64>;
        let view: ArrayView2<'_, f64> = match step.view::<f64>(FIELD, &rows)? {
            Some(view) => {
                self.in_place += 1;
                view.into_dimensionality::<Ix2>()
                    .map_err(|error| Error::Ended(error.to_string()))?
            }
            None => {
                copy = step.get(FIELD, &rows)?;
                copy.view()
            }
        };
        Ok(Found {
            step: step.number(),
            change: change(step),
            figures: self.kind.of(first, view, samples),
        })
    }
}

/// Why a stream that has not come to its last step has no more.
fn ended(end: Option<EndOfStream>) -> Error {
    Error::Ended(match end {
        Some(EndOfStream::WriterLost { rank }) => {
            format!(
                "unit {rank} of the solver was lost before its last step, and did not come back"
            )
        }
        _ => "the solver closed its stream before its last step".into(),
    })
}

fn steps(step: &StepReader<'_>) -> u64 {
    match step.attribute(said::STEPS) {
        Some(Attribute::Integer(steps)) => steps.unsigned_abs(),
        _ => 0,
    }
}

/// The largest change by this step, if all solver units have told.
fn change(step: &StepReader<'_>) -> Option<f64> {
    let of = |rank| match step.attribute(&said::change(rank)) {
        Some(Attribute::Real(change)) => Some(*change),
        _ => None,
    };
    let all: Option<Vec<f64>> = (0..step.writers()).map(of).collect();
    all?.into_iter().reduce(f64::max)
}

fn problem(step: &StepReader<'_>) -> Result<Problem, Error> {
    let shape = &step.variable(FIELD)?.shape;
    let extent = |dim: usize| shape.get(dim).map_or(0, |extent| *extent as usize);
    Problem::new(extent(0), extent(1))
}

/// Computes all again as the textbook has it: figures of the steps up to rounding, the last step bit by bit.
fn check(
    last: &StepReader<'_>,
    found: &[Found],
    kind: Kind,
    readers: u32,
    out: &mut dyn Write,
) -> Result<Comparison, Error> {
    let problem = problem(last)?;
    let samples = Samples::new(&problem, SAMPLES);
    let shape = [problem.rows() as u64];
    let grid = Grid::along(&shape, 0, readers.into()).map_err(samite::stage::Error::from)?;
    let cuts = (0..readers).map(|rank| grid.part(rank.into()).lower()[0] as usize);
    let cuts: Vec<usize> = cuts.chain([problem.rows()]).collect();
    let checked = kind.checked(last.number());
    let mut reporter = Reporter::new(out, last.number());
    let mut sequential = Sequential::new(problem);
    for ours in found {
        if ours.step > 0 {
            sequential.step();
            reporter.report(ours.step, || "checking against the sequential run".into())?;
        }
        if checked.contains(&ours.step)
            && let Some(expected) = kind.expected(&sequential, &cuts, problem.cols(), &samples)
        {
            ours.figures.check(ours.step, &expected)?;
        }
    }
    let mut row = vec![0.0; problem.cols()];
    let mut comparison = Comparison::default();
    for at in 0..problem.rows() {
        last.read_into(FIELD, [at..at + 1, 0..problem.cols()], &mut row)?;
        comparison = comparison.merge(sequential.compare_row(at, &row));
    }
    Ok(comparison)
}

/// What is said at the end.
struct Outcome<'a, 'f> {
    last: &'a StepReader<'f>,
    readers: u32,
    in_place: u64,
    spent: [f64; 2],
    elapsed: Duration,
    /// Steps whose figures were found to be those of the sequential run, if that was asked for.
    checked: usize,
}

impl Outcome<'_, '_> {
    fn summary(&self, comparison: Option<Comparison>) -> Result<Summary, Error> {
        let problem = problem(self.last)?;
        let reads = u64::from(self.readers) * (self.last.number() + 1);
        let bytes = (problem.cells() * 8 * (self.last.number() + 1)) as f64;
        let seconds = self.elapsed.as_secs_f64();
        let ([computing, exchanging, stalled], [waiting, reading]) = (self.times(), self.spent);
        let summary = Summary::new("Laplace, and its moments by a stream")
            .row("cells", format_args!("{} × {}", problem.rows(), problem.cols()))
            .row("units", format_args!("{} write, {} read", self.last.writers(), self.readers))
            .row("steps", format_args!("0 to {}", self.last.number()))
            .row("read in place", format_args!("{} of {reads} parts of steps", self.in_place))
            .row("time", format_args!("{seconds:.3} s"))
            .row("staged", format_args!("{:.2} GB/s", bytes / seconds / 1e9))
            .row(
                "solver",
                format_args!("{computing:.3} s computing, {exchanging:.3} s borders, {stalled:.3} s waiting for room"),
            )
            .row(
                "analysis",
                format_args!("{reading:.3} s reading, {waiting:.3} s waiting for steps"),
            );
        let Some(found) = comparison else {
            return Ok(summary);
        };
        let equal = found.cells - found.different;
        let detail = format!(
            "{equal} of {} cells are equal to those of a sequential run, bit by bit, and the moments of {} steps are its",
            found.cells, self.checked
        );
        Ok(summary.verification(found.is_exact(), detail))
    }

    /// The longest of each that a solver unit has told.
    fn times(&self) -> [f64; 3] {
        let mut longest = [0.0f64; 3];
        for rank in 0..self.last.writers() {
            if let Some(Attribute::Reals(times)) = self.last.attribute(&said::times(rank)) {
                for (longest, time) in longest.iter_mut().zip(times) {
                    *longest = longest.max(*time);
                }
            }
        }
        longest
    }
}
