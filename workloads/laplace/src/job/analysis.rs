//! The program `laplace-analysis`: any number of units that read the stream.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use ndarray::{Array2, ArrayView2, Ix2};
use samite::Fabric;
use samite::program::{Reporter, Units};
use samite::stage::protocol::{Attribute, Policy};
use samite::stage::space::Grid;
use samite::stage::{Reader, Stage, StepReader};
use samite_report::Picture;
use serde::{Deserialize, Serialize};

use super::check::check;
use super::figures::{Figures, Found, Kind, TABLE_STEPS, table};
use super::outcome::Outcome;
use super::{FIELD, STREAM, attribute};
use crate::Error;
use crate::error::Doing;
use samite_relaxation::{Problem, Residual, ResidualRows, Samples, larger};

/// Samples per side at which a step is compared with the analytic solution.
pub(super) const SAMPLES: usize = 64;
/// Longest side of the field's picture.
const PICTURE: usize = 1024;

/// Reads every step of the Laplace solver from the stream, and computes its moments.
///
/// The units share the rows of the rectangle, whatever the solver's parts are. No step is lost: an
/// analysis that is slower than the solver makes the solver wait, as long as it is alive or up to
/// the setting stage.timeout. At the end, the last step and the largest change of each step are
/// compared with a sequential run, bit by bit, and the figures of the steps with those of the
/// sequential run.
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
    /// The highest order of the moments
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=16))]
    pub order: u8,
    /// Do not compare with a sequential run, which takes as long as one unit alone
    #[arg(long)]
    pub no_check: bool,
    /// Wait before each step is read, to see what a slow analysis does
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    pub delay: Duration,
}

/// Runs one unit. Collective over the program; returns when the last step was read and checked, and
/// the report is written.
///
/// # Errors
///
/// [`Error::Stage`] if the stream or a part of it is lost, [`Error::Problem`] (after the report was
/// written) and [`Error::Figures`] if the result is not that of the sequential solver.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let units =
        Units::wait_for_all(fabric).doing(|| "looking for the units of the analysis".into())?;
    let mut analysis = Analysis::new(fabric, args);
    let stage = Stage::join(fabric)?;
    // Lives until the last step is released: the leases of a closed reader end.
    let mut reader = stage.reader(STREAM)?;
    let last = analysis.watch(&mut reader, out)?;
    let elapsed = analysis.begin.elapsed();
    let own = postcard::to_stdvec(&analysis.seen)?;
    let parts = units.share(&own).doing(|| "sharing the moments".into())?;
    if fabric.identity().rank > 0 {
        return Ok(());
    }
    let all = parts.iter().map(|part| postcard::from_bytes::<Seen>(part));
    let seen = all.collect::<Result<Vec<_>, _>>()?;
    let seen = seen.into_iter().reduce(Seen::merge).unwrap_or_default();
    let (picture, residual) = last_look(&last)?;
    let (begin, readers) = (Instant::now(), fabric.identity().size);
    let comparison = (!args.no_check)
        .then(|| check(&last, &seen.found, analysis.kind, out))
        .transpose()?;
    let outcome = Outcome {
        problem: problem(&last)?,
        first_rows: first_rows(&last)?,
        writers: last.writers(),
        readers,
        solver: times(&last),
        checked: analysis.kind.checked(&seen.found).len(),
        checking: begin.elapsed(),
        table: table(&seen.found, analysis.kind),
        seen,
        picture,
        residual,
        comparison,
        elapsed,
    };
    writeln!(out, "{}", outcome.table.text(TABLE_STEPS))?;
    outcome.show(&args.report, out)?;
    outcome
        .comparison
        .map_or(Ok(()), |comparison| Ok(comparison.judge()?))
}

/// The results of one unit of the analysis, or of all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Figures by step.
    pub(super) found: Vec<Found>,
    /// Parts of steps, each inside one block of the solver or copied from several.
    pub(super) parts: u64,
    /// How many of them were read in place.
    pub(super) in_place: u64,
    /// Waiting for steps, at the slowest unit.
    pub(super) waiting: Duration,
    /// Reading and computing, at the slowest unit.
    pub(super) reading: Duration,
}

impl Seen {
    /// Merges the steps that both have: if the policy drops steps, they may have taken different
    /// ones.
    fn merge(self, lower: Seen) -> Seen {
        let mut others: BTreeMap<u64, Figures> = BTreeMap::new();
        others.extend(lower.found.into_iter().map(|one| (one.step, one.figures)));
        let both = self.found.into_iter().filter_map(|all| {
            let figures = all.figures.merge(others.remove(&all.step)?);
            Some(Found { figures, ..all })
        });
        Seen {
            found: both.collect(),
            parts: self.parts + lower.parts,
            in_place: self.in_place + lower.in_place,
            waiting: self.waiting.max(lower.waiting),
            reading: self.reading.max(lower.reading),
        }
    }
}

/// One unit of the analysis.
struct Analysis<'f> {
    fabric: &'f Fabric,
    kind: Kind,
    delay: Duration,
    samples: Option<Samples>,
    seen: Seen,
    begin: Instant,
}

impl<'f> Analysis<'f> {
    fn new(fabric: &'f Fabric, args: &Args) -> Self {
        let kind = match args.order {
            ..=4 => Kind::Moments,
            order => Kind::Orders(order.into()),
        };
        Analysis {
            fabric,
            kind,
            delay: args.delay,
            samples: None,
            seen: Seen::default(),
            begin: Instant::now(),
        }
    }

    /// Reads all steps; returns the last one, with its lease.
    fn watch(&mut self, reader: &mut Reader, out: &mut dyn Write) -> Result<StepReader, Error> {
        let mut reporter = None;
        let mut out = (self.fabric.identity().rank == 0).then_some(out);
        let policy = reader.policy();
        let gives_all = matches!(policy, Policy::Block | Policy::Spill);
        let (mut last, mut next) = (None, 0);
        loop {
            let start = Instant::now();
            let Some(step) = reader.next_step()? else {
                let early = || "the solver closed its stream before its last step".to_owned();
                return last.ok_or_else(|| Error::Ended(early()));
            };
            drop(last.take());
            let (number, steps) = (step.number(), steps(&step)?);
            // A unit that was started again lacks the steps of its first life.
            if gives_all && number != next {
                let message = format!("step {next} is missing, although the policy drops no steps");
                return Err(Error::Ended(message));
            }
            next = number + 1;
            match reporter {
                Some(_) => self.seen.waiting += start.elapsed(),
                // The time of the first step is that of the programs' start.
                None => {
                    self.begin = Instant::now();
                    reporter = Some(out.take().map(|out| Reporter::new(out, steps)));
                }
            }
            thread::sleep(self.delay);
            let start = Instant::now();
            let found = self.look_at(&step)?;
            self.seen.reading += start.elapsed();
            self.seen.found.push(found);
            if let Some(Some(reporter)) = reporter.as_mut()
                && number > 0
            {
                reporter.report(number, || "moments".into())?;
            }
            let is_last = match policy {
                Policy::Every(n) => number.saturating_add(n) > steps,
                _ => number == steps,
            };
            if is_last {
                return Ok(step);
            }
            // The last step may be dropped; with the other policies, holding a step delays no
            // writer.
            last = matches!(
                policy,
                Policy::DropOldest | Policy::DropNewest | Policy::Latest
            )
            .then_some(step);
        }
    }

    /// Computes the figures of this unit's rows, part by part, so that each part is inside one
    /// block.
    fn look_at(&mut self, step: &StepReader) -> Result<Found, Error> {
        let problem = problem(step)?;
        let samples = &*self
            .samples
            .get_or_insert_with(|| Samples::new(&problem, SAMPLES));
        let own = self.fabric.identity();
        let rows = Grid::along(&[problem.rows() as u64], 0, own.size.into())
            .map_err(samite::stage::Error::from)?
            .part(own.rank.into());
        let (first, end) = (rows.lower()[0] as usize, rows.upper()[0] as usize);
        // Cut at the borders of the solver's blocks.
        let inside = |row: &usize| (first..end).contains(row);
        let mut cuts = vec![first, end];
        cuts.extend(first_rows(step)?.into_iter().filter(inside));
        cuts.sort_unstable();
        cuts.dedup();
        let mut figures = self.kind.nothing();
        for cut in cuts.windows(2) {
            let part = [cut[0]..cut[1], 0..problem.cols()];
            let copy: Array2<f64>;
            let view: ArrayView2<'_, f64> = match step.view::<f64>(FIELD, part.clone())? {
                Some(view) => {
                    self.seen.in_place += 1;
                    view.into_dimensionality::<Ix2>()
                        .map_err(|error| Error::Ended(error.to_string()))?
                }
                None => {
                    copy = step.get(FIELD, part)?;
                    copy.view()
                }
            };
            self.seen.parts += 1;
            figures.add(cut[0], view, samples);
        }
        Ok(Found {
            step: step.number(),
            change: change(step),
            figures,
        })
    }
}

/// Computes what is needed of the last step only.
fn last_look(step: &StepReader) -> Result<(Picture, Residual), Error> {
    let problem = problem(step)?;
    let mut picture = Picture::new([problem.rows(), problem.cols()], PICTURE);
    let mut residual = ResidualRows::whole(&problem);
    let mut row = vec![0.0; problem.cols()];
    for at in 0..problem.rows() {
        step.read_into(FIELD, [at..at + 1, 0..problem.cols()], &mut row)?;
        picture.add_row(at, &row);
        residual.push(&row);
    }
    Ok((picture, residual.finish_whole()))
}

/// Returns the number of steps.
fn steps(step: &StepReader) -> Result<u64, Error> {
    let steps = match step.attribute(attribute::STEPS) {
        Some(Attribute::Integer(steps)) => u64::try_from(*steps).ok(),
        _ => None,
    };
    steps.ok_or(Error::NoAttribute {
        step: step.number(),
        name: attribute::STEPS,
    })
}

/// Returns the largest change by this step, if all solver units have reported it.
fn change(step: &StepReader) -> Option<f64> {
    let of = |rank| match step.attribute(&attribute::change(rank)) {
        Some(Attribute::Real(change)) => Some(*change),
        _ => None,
    };
    let all: Option<Vec<f64>> = (0..step.writers()).map(of).collect();
    all?.into_iter().reduce(larger)
}

/// Returns the seconds of computing, of exchanging borders and of waiting: for each, the longest
/// that a solver unit has reported.
fn times(last: &StepReader) -> [f64; 3] {
    let mut longest = [0.0f64; 3];
    for rank in 0..last.writers() {
        if let Some(Attribute::Reals(times)) = last.attribute(&attribute::times(rank)) {
            for (longest, time) in longest.iter_mut().zip(times) {
                *longest = longest.max(*time);
            }
        }
    }
    longest
}

/// Returns the first row of each block, from the top down.
fn first_rows(step: &StepReader) -> Result<Vec<usize>, Error> {
    let blocks = step.blocks(FIELD)?;
    let mut rows: Vec<usize> = blocks.map(|(_, block)| block.lower()[0] as usize).collect();
    rows.sort_unstable();
    rows.dedup();
    Ok(rows)
}

/// Returns the rectangle of a step, relaxed as its solver says.
pub(super) fn problem(step: &StepReader) -> Result<Problem, Error> {
    match step.attribute(attribute::OMEGA) {
        Some(Attribute::Real(omega)) => Ok(rectangle(step)?.with_omega(*omega)?),
        _ => Err(Error::NoAttribute {
            step: step.number(),
            name: attribute::OMEGA,
        }),
    }
}

/// Returns the rectangle of a step.
fn rectangle(step: &StepReader) -> Result<Problem, Error> {
    let shape = &step.variable(FIELD)?.shape;
    let extent = |dim: usize| shape.get(dim).map_or(0, |extent| *extent as usize);
    Ok(Problem::new(extent(0), extent(1))?)
}
