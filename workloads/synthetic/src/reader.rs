//! The program `synthetic-reader`.

use std::io::Write;
use std::time::Instant;

use clap::{ArgAction, Parser, ValueEnum};
use ndarray::{ArrayD, IxDyn};
use samite::Fabric;
use samite::program::{Summary, Units};
use samite::stage::protocol::{Attribute, Policy};
use samite::stage::space::Dims;
use samite::stage::{Dtype, Region, Stage, StepReader};
use serde::{Deserialize, Serialize};

use crate::cut::Pattern;
use crate::value::{Value, check};
use crate::writer::{self, Clock};
use crate::{Checked, Error, STREAM, VARIABLE, said};
use samite::stage::for_dtype;

/// The parts of a reader's time.
const PARTS: [&str; 3] = ["waiting for steps", "getting", "checking"];

/// Reads boxes of every step of the synthetic stream, and checks every element.
#[derive(Clone, Debug, Parser)]
#[command(name = "synthetic-reader")]
pub struct Args {
    /// The access pattern
    #[arg(long, value_enum, default_value_t = Pattern::Rows)]
    pub pattern: Pattern,
    /// Copy boxes even where they could be read in place
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub copy: bool,
    /// Which steps are checked; must equal the writers' --check
    #[arg(long, value_enum, default_value_t = Checked::All)]
    pub check: Checked,
}

/// The results of a unit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tally {
    steps: u64,
    boxes: u64,
    in_place: u64,
    elements: u64,
    bytes: u64,
    wrong: u64,
    /// Step and index.
    first_wrong: Option<(u64, u64)>,
    times: [f64; PARTS.len()],
    /// Seconds from the first step to the last.
    elapsed: f64,
    /// Seconds and number of the steps between the first and the last.
    between: (f64, u64),
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] at every unit if an element is wrong at any, [`Error::Unchecked`] if none was
/// checked; [`Error::Stage`] and [`Error::Ended`] if the stream or a part of it is lost.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let own = fabric.identity();
    let units = Units::wait_for_all(fabric)?;
    let stage = Stage::join(fabric)?;
    let mut reader = stage.reader(STREAM)?;
    let mut tally = Tally::default();
    let gives_all = matches!(reader.policy(), Policy::Block | Policy::Spill);
    let mut begin = Instant::now();
    let mut first_done = begin;
    let mut last: Option<Last> = None;
    loop {
        let start = Instant::now();
        let Some(step) = reader.next_step()? else {
            // If the policy drops steps, it may have dropped the last one.
            match !gives_all && last.is_some() {
                true => break,
                false => return Err(Error::Ended),
            }
        };
        let missing = last.as_ref().map(|last| last.number + 1);
        if let Some(missing) = missing.filter(|next| gives_all && *next != step.number()) {
            return Err(Error::Missing(missing));
        }
        match tally.steps {
            // The wait for the first step includes the start of the writers.
            0 => begin = start,
            _ => tally.times[0] += start.elapsed().as_secs_f64(),
        }
        let dtype = step.variable(VARIABLE)?.dtype;
        let steps = match step.attribute(said::STEPS) {
            Some(Attribute::Integer(steps)) => u64::try_from(*steps).ok(),
            _ => None,
        };
        let steps = steps.ok_or(Error::Untold(step.number()))?;
        let checks = args.check.has(step.number(), steps);
        for_dtype!(dtype, T => look_at::<T>(&step, args, checks, (own.rank, own.size), &mut tally))?;
        tally.steps += 1;
        match tally.steps {
            1 => first_done = Instant::now(),
            done if step.number() + 1 < steps => {
                tally.between = (first_done.elapsed().as_secs_f64(), done - 1)
            }
            _ => {}
        }
        last = Some(Last::of(&step)?);
        if step.number() + 1 >= steps {
            break;
        }
    }
    tally.elapsed = begin.elapsed().as_secs_f64();
    let tallies = units.share(&postcard::to_stdvec(&tally)?)?;
    let tallies = tallies.iter().map(|tally| postcard::from_bytes(tally));
    let tallies = tallies.collect::<Result<Vec<Tally>, _>>()?;
    let all = tallies.into_iter().reduce(Tally::merge).unwrap_or_default();
    if let (0, Some(last)) = (own.rank, &last) {
        write!(out, "{}", summary(last, args, own.size, &all)?)?;
    }
    judge(&all)
}

/// Returns the result of the verification.
fn judge(all: &Tally) -> Result<(), Error> {
    match all.first_wrong {
        None if all.elements == 0 => Err(Error::Unchecked(all.steps)),
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
    step: &StepReader,
    args: &Args,
    checks: bool,
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
        // Without a check, only the time of the read counts.
        if !checks {
            clock.note(1);
            tally.add::<T>(&region, None);
            continue;
        }
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
        let (wrong, place) = found;
        let place = place.map(|place| (step.number(), place));
        tally.add::<T>(&region, Some((wrong, place)));
    }
    Ok(())
}

impl Tally {
    /// Adds a box that was read; if it was checked, how many elements are wrong, and step and index
    /// of the first.
    fn add<T: Value>(&mut self, region: &Region, found: Option<(u64, Option<(u64, u64)>)>) {
        let elements = region.volume().unwrap_or(0);
        self.boxes += 1;
        self.bytes += elements * T::DTYPE.bytes();
        if let Some((wrong, first)) = found {
            self.elements += elements;
            self.wrong += wrong;
            self.first_wrong = self.first_wrong.or(first);
        }
    }

    /// Merges two tallies: sums, and times of the slowest.
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
            between: (
                self.between.0.max(other.between.0),
                self.between.1.max(other.between.1),
            ),
        }
    }
}

/// The attributes of the last step that arrived. The step itself is not held, since that may delay
/// its writers.
struct Last {
    number: u64,
    dtype: Dtype,
    shape: Dims,
    writers: u32,
    /// The times of the slowest writer; zeros unless it is the last step of the stream.
    spent: [f64; writer::PARTS.len()],
}

impl Last {
    fn of(step: &StepReader) -> Result<Last, Error> {
        let variable = step.variable(VARIABLE)?;
        let mut spent = [0.0f64; writer::PARTS.len()];
        for rank in 0..step.writers() {
            if let Some(Attribute::Reals(times)) = step.attribute(&said::times(rank)) {
                for (longest, time) in spent.iter_mut().zip(times) {
                    *longest = longest.max(*time);
                }
            }
        }
        Ok(Last {
            number: step.number(),
            dtype: variable.dtype,
            shape: variable.shape.clone(),
            writers: step.writers(),
            spent,
        })
    }
}

fn summary(last: &Last, args: &Args, readers: u32, all: &Tally) -> Result<Summary, Error> {
    let whole = Region::whole(&last.shape)?.bytes(last.dtype.bytes())?;
    let written = whole as f64 * all.steps as f64;
    let pattern = args.pattern.to_possible_value();
    let pattern = pattern.as_ref().map_or("", |pattern| pattern.get_name());
    let rate = |bytes: f64| {
        let (megabytes, gigabytes) = (bytes / 1e6, bytes / all.elapsed / 1e9);
        format!("{megabytes:.0} MB, {gigabytes:.2} GB/s")
    };
    let mut summary = Summary::new("A synthetic stream")
        .row(
            "array",
            format_args!("{:?} of {}", &last.shape[..], last.dtype),
        )
        .row(
            "units",
            format_args!("{} write, {readers} read", last.writers),
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
    let (between, steps) = all.between;
    if steps > 0 {
        let each = between / steps as f64 * 1e3;
        summary = summary.row(
            "a step",
            format_args!("{each:.3} ms, between the first and the last"),
        );
    }
    let split = writer::PARTS
        .iter()
        .zip(last.spent)
        .map(|part| ("writers", part));
    let split = split.chain(PARTS.iter().zip(all.times).map(|part| ("readers", part)));
    for (who, (part, time)) in split {
        summary = summary.row(format_args!("{who} {part}"), seconds(time));
    }
    let right = all.elements - all.wrong;
    let detail = format!("{right} of {} elements are what was written", all.elements);
    Ok(summary.verification(judge(all).is_ok(), detail))
}

/// Formats a time of the slowest unit.
fn seconds(time: f64) -> String {
    format!("{time:.3} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_looked_at_is_right() {
        let right = Tally {
            steps: 3,
            elements: 12,
            ..Tally::default()
        };
        assert!(judge(&right).is_ok());
        let none = Tally {
            elements: 0,
            ..right.clone()
        };
        assert!(matches!(judge(&none), Err(Error::Unchecked(3))));
        let wrong = Tally {
            wrong: 1,
            first_wrong: Some((2, 7)),
            ..right.clone()
        };
        let judged = judge(&right.merge(wrong));
        let expected = matches!(
            judged,
            Err(Error::Wrong {
                wrong: 1,
                elements: 24,
                step: 2,
                place: 7
            })
        );
        assert!(expected, "{judged:?}");
    }
}
