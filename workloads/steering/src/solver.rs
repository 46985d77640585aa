//! The program `laplace-steered`: a solver that follows the commands of another program.

use std::io::Write;

use clap::Parser;
use ndarray::{Array1, ArrayView2, Slice};
use samite::Fabric;
use samite::pgas::Pgas;
use samite::pgas::array::{Array, Dist, Grid, Halo, Pattern};
use samite::stage::protocol::Attribute;
use samite::stage::{Reader, Stage};
use samite_relaxation::{Block, Colour, Problem};

use crate::{Command, Error, FACTORS, FIELD, ORDERS, STREAM};

/// Solves the Laplace problem in rounds; the stream `orders` says with which factor each is
/// relaxed, and which is the last.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-steered")]
pub struct Args {
    /// Rows and columns of the part of each unit
    #[arg(long, default_value_t = 512)]
    pub size: usize,
    /// Sweeps of a round
    #[arg(long, default_value_t = 20)]
    pub sweeps: u32,
}

/// Runs one unit. Collective over the program; returns when it is told to stop.
///
/// # Errors
/// [`Error::Pgas`] if a unit of the solver is lost, [`Error::Stage`] if a stream is lost, or not
/// linked, [`Error::Ended`] if the commands end without a stop.
pub fn run(fabric: &Fabric, args: &Args, _: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::of_program(fabric)?;
    let problem = Problem::stacked(args.size, pgas.units() as usize)?;
    let shape = [problem.rows() as u64, problem.cols() as u64];
    // The units share the rows, and each has ghost cells around its part.
    let pattern = Grid::new([pgas.units(), 1])
        .and_then(|grid| Pattern::new(shape, [Dist::Block, Dist::Whole], grid))
        .and_then(|pattern| pattern.with_halo(Halo::new([1, 1])))
        .map_err(samite::pgas::Error::from)?;
    let mut field = Array::<f64, 2>::new(pgas.world(), pattern)?.into_local()?;
    let [height, width] = field.stored_extents().map(|extent| extent as usize);
    let first = field.local_runs().next().map_or([0, 0], |run| run.index);
    let mut block = Block::new(problem, first.map(|index| index as usize), width);
    block.fill_initial(field.as_mut_slice());

    let stage = Stage::join(fabric)?;
    let mut orders = stage.reader(ORDERS)?;
    let mut stream = stage.writer(STREAM)?;
    let mut factors = Vec::new();
    loop {
        // Wait for the command of this round, relax, and show the field to the monitor.
        let next = take(&mut orders)?;
        if next.stop {
            return Ok(stream.close()?);
        }
        block.set_omega(next.factor)?;
        factors.push(next.factor);
        for _ in 0..args.sweeps {
            for colour in [Colour::Red, Colour::Black] {
                block.relax(field.as_mut_slice(), colour);
                field.exchange_halo()?;
            }
        }
        let cells = ArrayView2::from_shape((height, width), field.as_slice());
        let cells = cells.map_err(|error| Error::Ended(error.to_string()))?;
        let mut step = stream.step()?;
        let cells = cells.slice_each_axis(|_| Slice::new(1, Some(-1), 1)); // no ghost cells
        step.put(FIELD, shape, first, cells)?;
        step.attribute(FACTORS, Attribute::Reals(factors.clone()));
        step.commit()?;
    }
}

fn take(orders: &mut Reader) -> Result<Command, Error> {
    let Some(step) = orders.next_step()? else {
        let what = "the monitor ended without a command to stop";
        return Err(Error::Ended(what.to_owned()));
    };
    if step.is_token() {
        return Ok(Command::first());
    }
    let command: Array1<f64> = step.get(ORDERS, ..)?;
    match command.as_slice() {
        Some([factor, stop]) => Ok(Command {
            factor: *factor,
            stop: *stop != 0.0,
        }),
        _ => Err(Error::Figures {
            step: step.number(),
            what: format!("{command} is not a command: a factor, and whether to stop"),
        }),
    }
}
