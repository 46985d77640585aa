//! The programs: each runs one unit, collectively over its job, and prints its result at unit 0.
//! The verification decides the exit status of the program.

pub mod gups;
pub mod histogram;
pub mod index_gather;
pub mod sort;

use std::fmt::Display;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use samite::pgas::{Max, Pgas, Sum};

use crate::Error;

/// How single elements are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Access {
    /// Each by an operation of its own.
    Plain,
    /// Collected per unit and sent together.
    Aggregated,
}

impl Access {
    /// Returns the requested ones; all if none was requested.
    fn chosen(ways: &[Access]) -> &[Access] {
        match ways {
            [] => Access::value_variants(),
            ways => ways,
        }
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Access::Plain => "plain",
            Access::Aggregated => "aggregated",
        })
    }
}

/// Runs something collective; returns the time of the slowest unit.
fn timed(pgas: &Pgas, run: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
    pgas.world().barrier()?;
    let begin = Instant::now();
    run()?;
    pgas.world().barrier()?;
    let own = begin.elapsed().as_nanos() as u64;
    let mut slowest = [0];
    pgas.world().all_reduce(&[own], &mut slowest, Max)?;
    Ok(Duration::from_nanos(slowest[0]))
}

/// Returns the sum over all units. Collective.
fn total(pgas: &Pgas, own: u64) -> Result<u64, Error> {
    let mut sum = [0];
    pgas.world().all_reduce(&[own], &mut sum, Sum)?;
    Ok(sum[0])
}

/// Formats the rate of `count` operations.
fn rate(count: u64, time: Duration) -> String {
    let millions = count as f64 / time.as_secs_f64() / 1e6;
    format!(
        "{millions:.2} million per second ({:.3} s)",
        time.as_secs_f64()
    )
}

/// Returns an error at every unit if elements are wrong.
fn judge(wrong: u64, what: &str) -> Result<(), Error> {
    match wrong {
        0 => Ok(()),
        wrong => Err(Error::Wrong(format!("{wrong} {what} are wrong"))),
    }
}
