//! The program `synthetic-reader`.

use std::io::Write;
use std::time::Instant;

use clap::{ArgAction, Parser, ValueEnum};
use ndarray::{ArrayD, IxDyn};
use samite::Fabric;
use samite::program::{Summary, Units};
use samite::stage::protocol::Attribute;
use samite::stage::{Region, Stage, StepReader};
use serde::{Deserialize, Serialize};

use crate::cut::Pattern;
use crate::value::{Value, check};
use crate::writer::{self, Clock};
use crate::{Error, STREAM, VARIABLE, for_dtype, said};

/// What a reader's time is split into.
const PARTS: [&str; 3] = ["waiting for steps", "getting", "checking"];

/// Reads boxes of every step of the synthetic stream, and checks every element.
#[derive(Clone, Debug, Parser)]
#[command(name = "synthetic-reader")]
pub struct Args {
    /// What to ask for
    #[arg(long, value_enum, default_value_t = Pattern::Rows)]
    pub pattern: Pattern,
    /// Copy boxes even where they could be read in place
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub copy: bool,
}

/// What a unit found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tally {
    steps: u64,
    boxes: u64,
    in_place: u64,
    elements: u64,
    bytes: u64,
    wrong: u64,
    /// Step and place.
    first_wrong: Option<(u64, u64)>,
    times: [f64; PARTS.len()],
    /// Seconds from the first step to the last.
    elapsed: f64,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] at every unit when an element is wrong at any; [`Error::Stage`] and [`Error::Ended`] when the
/// stream or a part of it is lost.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let own = fabric.identity();
    let units = Units::meet(fabric)?;
    let stage = Stage::join(fabric)?;
    let mut reader = stage.reader(STREAM)?;
    let mut tally = Tally::default();
    let mut begin = Instant::now();
    let last = loop {
        let start = Instant::now();
        let Some(step) = reader.next_step()? else {
            return Err(Error::Ended(format!("{:?}", reader.end())));
        };
        match tally.steps {
            // The wait for the first step is that for the writers' start.
            0 => begin = start,
            _ => tally.times[0] += start.elapsed().as_secs_f64(),
        }
        let dtype = step.variable(VARIABLE)?.dtype;
        for_dtype!(dtype, T => look_at::<T>(&step, args, (own.rank, own.size), &mut tally))?;
        tally.steps += 1;
        match step.attribute(said::STEPS) {
            Some(Attribute::Integer(steps)) if tally.steps >= steps.unsigned_abs() => break step,
            _ => {}
        }
    };
    tally.elapsed = begin.elapsed().as_secs_f64();
    let tallies = units.share(&postcard::to_stdvec(&tally)?)?;
    let tallies = tallies.iter().map(|tally| postcard::from_bytes(tally));
    let tallies = tallies.collect::<Result<Vec<Tally>, _>>()?;
    let all = tallies.into_iter().reduce(Tally::merge).unwrap_or_default();
    if own.rank == 0 {
        write!(out, "{}", summary(&last, args, own.size, &all)?)?;
    }
    match all.first_wrong {
        None => Ok(()),
        Some((step, place)) => Err(Error::Wrong {
            wrong: all.wrong,
            elements: all.elements,
            step,
            place,
        }),
    }
}

fn look_at<T: Value>(
    step: &StepReader<'_>,
    args: &Args,
    own: (u32, u32),
    tally: &mut Tally,
) -> Result<(), Error> {
    let shape = step.variable(VARIABLE)?.shape.clone();
    for region in args.pattern.boxes(&shape, own, step.number())? {
        let mut clock = Clock::new(&mut tally.times);
        let in_place = match args.copy {
            true => None,
            false => step.view::<T>(VARIABLE, &region)?,
        };
        let copy: ArrayD<T>;
        tally.in_place += u64::from(in_place.is_some());
        let part = match in_place {
            Some(view) => view,
            None => {
                copy = step.get::<T, IxDyn>(VARIABLE, &region)?;
                copy.view()
            }
        };
        let found = match args.pattern {
            Pattern::Transpose => {
                let turned = part.reversed_axes().as_standard_layout().into_owned();
                clock.note(1);
                check(
                    &turned.view().reversed_axes(),
                    &shape,
                    &region,
                    step.number(),
                )
            }
            _ => {
                clock.note(1);
                check(&part, &shape, &region, step.number())
            }
        };
        clock.note(2);
        tally.add::<T>(&region, step.number(), found);
    }
    Ok(())
}

impl Tally {
    fn add<T: Value>(&mut self, region: &Region, step: u64, (wrong, place): (u64, Option<u64>)) {
        let elements = region.volume().unwrap_or(0);
        self.boxes += 1;
        self.elements += elements;
        self.bytes += elements * T::DTYPE.bytes();
        self.wrong += wrong;
        let first = place.map(|place| (step, place));
        self.first_wrong = self.first_wrong.or(first);
    }

    /// Sums; times are those of the slowest.
    fn merge(self, other: Tally) -> Tally {
        let mut times = self.times;
        for (longest, time) in times.iter_mut().zip(other.times) {
            *longest = longest.max(time);
        }
        Tally {
            steps: self.steps.min(other.steps),
            boxes: self.boxes + other.boxes,
            in_place: self.in_place + other.in_place,
            elements: self.elements + other.elements,
            bytes: self.bytes + other.bytes,
            wrong: self.wrong + other.wrong,
            first_wrong: self.first_wrong.or(other.first_wrong),
            times,
            elapsed: self.elapsed.max(other.elapsed),
        }
    }
}

fn summary(
    last: &StepReader<'_>,
    args: &Args,
    readers: u32,
    all: &Tally,
) -> Result<Summary, Error> {
    let variable = last.variable(VARIABLE)?;
    let whole = Region::whole(&variable.shape)?.bytes(variable.dtype.bytes())?;
    let written = whole as f64 * all.steps as f64;
    let mut spent = [0.0f64; writer::PARTS.len()];
    for rank in 0..last.writers() {
        if let Some(Attribute::Reals(times)) = last.attribute(&said::times(rank)) {
            for (longest, time) in spent.iter_mut().zip(times) {
                *longest = longest.max(*time);
            }
        }
    }
    let pattern = args.pattern.to_possible_value();
    let pattern = pattern.as_ref().map_or("", |pattern| pattern.get_name());
    let rate = |bytes: f64| {
        let (megabytes, gigabytes) = (bytes / 1e6, bytes / all.elapsed / 1e9);
        format!("{megabytes:.0} MB, {gigabytes:.2} GB/s")
    };
    let mut summary = Summary::new("A synthetic stream")
        .row(
            "array",
            format_args!("{:?} of {}", &variable.shape[..], variable.dtype),
        )
        .row(
            "units",
            format_args!("{} write, {readers} read", last.writers()),
        )
        .row("steps", all.steps)
        .row("pattern", pattern)
        .row(
            "in place",
            format_args!("{} of {} boxes", all.in_place, all.boxes),
        )
        .row("written", rate(written))
        .row("read", rate(all.bytes as f64))
        .row("time", seconds(all.elapsed));
    let split = writer::PARTS
        .iter()
        .zip(spent)
        .map(|part| ("writers", part));
    let split = split.chain(PARTS.iter().zip(all.times).map(|part| ("readers", part)));
    for (who, (part, time)) in split {
        summary = summary.row(format_args!("{who} {part}"), seconds(time));
    }
    let right = all.elements - all.wrong;
    let detail = format!("{right} of {} elements are what was written", all.elements);
    Ok(summary.verification(all.wrong == 0 && all.elements > 0, detail))
}

/// Of the slowest unit.
fn seconds(time: f64) -> String {
    format!("{time:.3} s")
}
