//! The program `laplace-steered`: a solver that follows orders.

use std::io::Write;

use clap::Parser;
use ndarray::Array1;
use samite::Fabric;
use samite::stage::protocol::Attribute;
use samite::stage::{Reader, Stage};

use super::{FACTORS, ORDERS, Orders, STREAM};
use crate::job::FIELD;
use crate::job::borders::Borders;
use crate::{Error, Problem, Rows, Solver, VecRows};

/// Solves the Laplace problem in rounds; the stream of orders says with which factor each is
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
/// [`Error::Fabric`] if a neighbour is lost, [`Error::Stage`] if a stream is lost, or not linked,
/// [`Error::Ended`] if the orders end without a stop.
pub fn run(fabric: &Fabric, args: &Args, _: &mut dyn Write) -> Result<(), Error> {
    let own = fabric.identity();
    let problem = Problem::stacked(args.size, own.size as usize)?;
    let part = problem.part(own.rank as usize, own.size as usize)?;
    let mut borders = Borders::new(fabric, &problem, part)?;
    let stage = Stage::join(fabric)?;
    let mut orders = stage.reader(ORDERS)?;
    let mut stream = stage.writer(STREAM)?;

    let mut solver = Solver::new(problem, part);
    let field = VecRows::new(part.rows, problem.cols());
    solver.fill_initial(&field);
    let mut factors = Vec::new();
    loop {
        // Wait for the orders of this round, relax, and show the field to the monitor.
        let next = take(&mut orders)?;
        if next.stop {
            return Ok(stream.close()?);
        }
        solver.set_omega(next.factor)?;
        factors.push(next.factor);
        for _ in 0..args.sweeps {
            solver.step(&field, &field, &mut borders)?;
        }
        let mut step = stream.step()?;
        let shape = [problem.rows(), problem.cols()];
        let extent = [part.rows, problem.cols()];
        let mut cells = step.alloc::<f64>(FIELD, shape, [part.first_row, 0], extent)?;
        for (number, mut row) in cells.rows_mut().into_iter().enumerate() {
            if let Some(row) = row.as_slice_mut() {
                field.load(number, row);
            }
        }
        step.attribute(FACTORS, Attribute::Reals(factors.clone()));
        step.commit()?;
    }
}

fn take(orders: &mut Reader) -> Result<Orders, Error> {
    let Some(step) = orders.next_step()? else {
        let what = "the monitor ended without an order to stop";
        return Err(Error::Ended(what.to_owned()));
    };
    if step.is_token() {
        return Ok(Orders::first());
    }
    let order: Array1<f64> = step.get(ORDERS, ..)?;
    match order.as_slice() {
        Some([factor, stop]) => Ok(Orders {
            factor: *factor,
            stop: *stop != 0.0,
        }),
        _ => Err(Error::Figures {
            step: step.number(),
            what: format!("{order} is not an order: a factor, and whether to stop"),
        }),
    }
}
