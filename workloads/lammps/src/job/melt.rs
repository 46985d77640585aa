//! The program `lammps-melt`: one simulation per unit, which writes its atoms to the stream.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::{ArgAction, Parser};
use ndarray::{ArrayView1, ArrayView2};
use samite::Fabric;
use samite::program::{Reporter, Summary, Units};
use samite::stage::protocol::Attribute;
use samite::stage::{Stage, Writer};

use super::{Error, STREAM, said};
use crate::{Lammps, Melt, Snapshot};

/// Runs with output when slowdown is measured; runs without output are before, between and after
/// them.
const RUNS: u32 = 11;

/// Name of `compute msd` in the simulation.
const MOVED: &str = "moved";

/// Runs the Lennard-Jones melt of LAMMPS' benchmarks with the real LAMMPS, and writes its atoms to
/// a stream.
///
/// Each unit has a simulation of its own, in a box of its own. Positions are copied once, from
/// LAMMPS' memory into that of the step.
#[derive(Clone, Debug, Parser)]
#[command(name = "lammps-melt")]
pub struct Args {
    /// Cells of the crystal in each direction, four atoms each
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(4..=800))]
    pub cells: u64,
    /// The box of each unit is a cell longer than that of the unit before
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub uneven: bool,
    /// Temperature at the start; the benchmark's is 1.44
    #[arg(long, default_value_t = 1.44)]
    pub temperature: f64,
    /// Steps of the simulation
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Steps from one output to the next
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub every: u32,
    /// Run this many steps eleven times with output and, in between, without; report how much
    /// slower the former are
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub measure: bool,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Lammps`] if LAMMPS is missing (it says what to install), [`Error::Stage`] if the stream
/// cannot be written: it has no reader, the analysis takes longer than stage.timeout, memory is
/// short.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let mut lammps = Lammps::open(&[])?;
    let rank = fabric.identity().rank;
    let longer = if args.uneven { u64::from(rank) } else { 0 };
    let melt = Melt::new([args.cells, args.cells, args.cells + longer]);
    lammps.commands(melt.at_temperature(args.temperature).commands())?;
    let units = Units::wait_for_all(fabric)?;
    let counts = units.share(&postcard::to_stdvec(&lammps.atoms())?)?;
    let counts = counts.iter().map(|count| postcard::from_bytes(count));
    let counts: Vec<u64> = counts.collect::<Result<_, _>>()?;
    let stage = Stage::join(fabric)?;
    let mut output = Output {
        rank,
        first: counts[..rank as usize].iter().sum(),
        atoms: counts.iter().sum(),
        is_measured: args.measure,
        writer: stage.writer(STREAM)?,
    };
    let runs = if args.measure { 2 * RUNS + 1 } else { 1 };
    let of = u64::from(args.steps) * u64::from(runs);
    let mut reporter = (rank == 0).then(|| Reporter::new(out, of));
    let mut without = Vec::new();
    if args.measure {
        without.push(timed(&mut lammps, args, None, &mut reporter)?);
    }
    // Displacements count from here, the first step that is written. A run begins by wrapping atoms
    // that left the box back into it, which changes the last bits of their positions; that must
    // happen before, not after.
    lammps.command("run 0")?;
    lammps.command(&format!("compute {MOVED} all msd"))?;
    let mut with = vec![timed(&mut lammps, args, Some(&mut output), &mut reporter)?];
    for _ in 1..runs / 2 {
        without.push(timed(&mut lammps, args, None, &mut reporter)?);
        with.push(timed(&mut lammps, args, Some(&mut output), &mut reporter)?);
    }
    if args.measure {
        without.push(timed(&mut lammps, args, None, &mut reporter)?);
        if rank == 0 {
            write!(out, "{}", summary(output.atoms, args, &without, &with))?;
        }
    }
    Ok(output.writer.close()?)
}

/// The atoms of all units as arrays of the stream.
struct Output {
    writer: Writer,
    rank: u32,
    /// Index of this unit's first atom among those of all.
    first: u64,
    atoms: u64,
    is_measured: bool,
}

impl Output {
    /// Writes a step; `begins` says whether it is the first one of a run.
    fn write(&mut self, atoms: &Snapshot<'_>, begins: bool) -> Result<(), Error> {
        let mut step = self.writer.step()?;
        let (all, first) = ([self.atoms], [self.first]);
        step.put(
            "x",
            [all[0], 3],
            [first[0], 0],
            ArrayView2::from(atoms.positions),
        )?;
        step.put("id", all, first, ArrayView1::from(atoms.ids))?;
        step.put("image", all, first, ArrayView1::from(atoms.images))?;
        step.attribute(said::STEP, Attribute::Integer(atoms.step as i64));
        let cell = [atoms.cell.lower, atoms.cell.upper].concat();
        step.attribute(&said::cell(self.rank), Attribute::Reals(cell));
        // The reference value is not output, so it is not part of what is measured.
        if begins || !self.is_measured {
            let moved = atoms.compute(MOVED)?;
            step.attribute(&said::moved(self.rank), Attribute::Reals(moved));
        }
        Ok(step.commit()?)
    }
}

/// Does one run; returns the time of a step, without what precedes the first one.
fn timed(
    lammps: &mut Lammps,
    args: &Args,
    mut output: Option<&mut Output>,
    reporter: &mut Option<Reporter<'_>>,
) -> Result<Duration, Error> {
    // Without output, only the first and the last step are shown.
    let every = if output.is_some() {
        args.every
    } else {
        args.steps
    };
    let (mut begin, mut end) = (None, (Instant::now(), 0));
    let mut failure = None;
    lammps.each_step(every, args.steps.into(), |atoms| {
        let mut see = || -> Result<(), Error> {
            if let Some(output) = &mut output {
                output.write(&atoms, begin.is_none())?;
            }
            if let Some(reporter) = reporter {
                reporter.report(atoms.step, || format!("{} atoms", atoms.ids.len()))?;
            }
            Ok(())
        };
        let seen = see();
        end = (Instant::now(), atoms.step);
        begin.get_or_insert(end);
        match seen {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let (start, first) = begin.unwrap_or(end);
    let steps = u32::try_from(end.1 - first).unwrap_or(u32::MAX).max(1);
    Ok((end.0 - start) / steps)
}

fn summary(atoms: u64, args: &Args, without: &[Duration], with: &[Duration]) -> Summary {
    let millis = |times: &[Duration]| {
        let times = times.iter().map(|time| time.as_secs_f64() * 1e3);
        median(times.collect())
    };
    // Each is compared with the mean of its neighbours, so that a drift of the simulation's speed
    // cancels out.
    let slower = with.iter().zip(without.windows(2)).map(|(with, without)| {
        let without = (without[0] + without[1]).as_secs_f64() / 2.0;
        100.0 * (with.as_secs_f64() / without - 1.0)
    });
    let mut slower: Vec<f64> = slower.collect();
    slower.sort_by(f64::total_cmp);
    let (least, most) = (slower[0], slower[slower.len() - 1]);
    Summary::new("How much does output slow LAMMPS down?")
        .row("atoms", format_args!("{atoms}, in all units"))
        .row(
            "output",
            format_args!(
                "at every {} of {} steps, in {RUNS} of {} runs",
                args.every,
                args.steps,
                2 * RUNS + 1
            ),
        )
        .row("a step without", format_args!("{:.3} ms", millis(without)))
        .row("a step with", format_args!("{:.3} ms", millis(with)))
        .row(
            "slowdown",
            format_args!(
                "{:.2} % (median; {least:.2} % to {most:.2} %)",
                median(slower)
            ),
        )
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
