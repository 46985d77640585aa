//! The program `synthetic-writer`.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use ndarray::ArrayD;
use samite::Fabric;
use samite::program::Reporter;
use samite::stage::protocol::Attribute;
use samite::stage::{Dtype, Region, Stage};

use crate::cut::Cut;
use crate::value::{Value, fill};
use crate::{Checked, Error, STREAM, VARIABLE, said};
use samite::stage::for_dtype;

/// The parts of a writer's time.
pub(crate) const PARTS: [&str; 4] = ["waiting for room", "computing", "filling", "putting"];

/// How a part gets into the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fill {
    /// Copied from an array of the writer.
    Put,
    /// Computed in the memory of the step.
    Alloc,
}

/// Writes an array step by step; every element is a function of step and index.
#[derive(Clone, Debug, Parser)]
#[command(name = "synthetic-writer")]
pub struct Args {
    /// Extents of the array, the slowest first
    #[arg(long, value_delimiter = ',', default_value = "2048,2048", value_parser = clap::value_parser!(u64).range(1..))]
    pub shape: Vec<u64>,
    /// Type of its elements: i8, i16, i32, i64, u8, u16, u32, u64, f32 or f64
    #[arg(long, default_value = "f64", value_parser = dtype)]
    pub dtype: Dtype,
    /// Steps
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// How the writers share the array
    #[arg(long, value_enum, default_value_t = Cut::Rows)]
    pub cut: Cut,
    /// How a part gets into the step
    #[arg(long, value_enum, default_value_t = Fill::Put)]
    pub way: Fill,
    /// Which steps are filled; in between, the previous array is put again (not with --way alloc)
    #[arg(long, value_enum, default_value_t = Checked::All)]
    pub check: Checked,
    /// Computing time per step
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    pub compute: Duration,
}

fn dtype(name: &str) -> Result<Dtype, String> {
    let names = || Dtype::ALL.map(Dtype::name).join(", ");
    Dtype::from_name(name).ok_or_else(|| format!("there are {}", names()))
}

/// Runs one unit. Collective over the program; returns when the last step is committed.
///
/// # Errors
///
/// [`Error::Stage`] if the stream cannot be written: it has no reader, a reader takes longer than
/// stage.timeout, memory is short.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    for_dtype!(args.dtype, T => write_all::<T>(fabric, args, out))
}

fn write_all<T: Value>(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let own = fabric.identity();
    let shape = &args.shape[..];
    let part = args.cut.part(shape, own.rank, own.size)?;
    let mut array = match args.way {
        Fill::Put => own_array::<T>(&part)?,
        Fill::Alloc => ArrayD::from_elem(vec![0; shape.len()], T::of(0)),
    };
    let stage = Stage::join(fabric)?;
    let mut writer = stage.writer(STREAM)?;
    let mut reporter = (own.rank == 0).then(|| Reporter::new(out, args.steps));
    let mut times = [0.0; PARTS.len()];
    // A restarted writer continues at the first step that it has not committed.
    while writer.next_step() < args.steps {
        let number = writer.next_step();
        let mut clock = Clock::new(&mut times);
        let mut step = writer.step()?;
        clock.note(0);
        compute(args.compute);
        clock.note(1);
        match args.way {
            Fill::Put => {
                if args.check.has(number, args.steps) {
                    fill(array.view_mut(), shape, &part, number);
                }
                clock.note(2);
                step.put(VARIABLE, shape, part.lower(), array.view())?;
            }
            Fill::Alloc if part.is_empty() => {}
            Fill::Alloc => {
                let memory = step.alloc::<T>(VARIABLE, shape, part.lower(), &part.shape()[..])?;
                clock.note(3);
                fill(memory, shape, &part, number);
                clock.note(2);
            }
        }
        step.attribute(said::STEPS, Attribute::Integer(args.steps as i64));
        if number + 1 == args.steps {
            clock.note(3);
            let times = Attribute::Reals(clock.times.to_vec());
            step.attribute(&said::times(own.rank), times);
        }
        step.commit()?;
        clock.note(3);
        if let Some(reporter) = &mut reporter {
            reporter.report(number + 1, || format!("step {number}"))?;
        }
    }
    Ok(writer.close()?)
}

/// Returns an array of the size of a part.
fn own_array<T: Value>(part: &Region) -> Result<ArrayD<T>, Error> {
    let bytes = part.bytes(T::DTYPE.bytes())?;
    let extent: Vec<usize> = part.shape().iter().map(|&extent| extent as usize).collect();
    let elements = (bytes / T::DTYPE.bytes()) as usize;
    let mut memory = Vec::new();
    let reserved = memory.try_reserve_exact(elements);
    reserved.map_err(|_| Error::Memory(bytes))?;
    memory.resize(elements, T::of(0));
    ArrayD::from_shape_vec(extent, memory).map_err(|_| Error::Memory(bytes))
}

/// Assigns times to the parts in which they were spent.
pub(crate) struct Clock<'a> {
    pub(crate) times: &'a mut [f64],
    last: Instant,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(times: &'a mut [f64]) -> Self {
        Clock {
            times,
            last: Instant::now(),
        }
    }

    /// Adds the time since the last call to that part.
    pub(crate) fn note(&mut self, part: usize) {
        self.times[part] += self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
    }
}

/// Keeps the processor busy, as a simulation does.
fn compute(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
