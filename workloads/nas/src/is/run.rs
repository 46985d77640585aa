//! The benchmark as published: one pass to touch all memory, the timed ones, the verification.

use std::time::{Duration, Instant};

use samite::pgas::{Max, Pgas, Sum};

use super::verify::CHECKS;
use super::{PASSES, Problem, Ranking};
use crate::Error;

/// The result of a run; the same at all units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The time of the timed passes at the slowest unit.
    pub time: Duration,
    /// Checks that succeeded, of [`CHECKS`].
    pub right: u64,
}

impl Outcome {
    /// Returns true if the verification succeeded.
    pub fn is_verified(&self) -> bool {
        self.right == CHECKS
    }
}

/// Runs all passes. Calls `after` after each timed one, with the time so far. Collective over the
/// job.
///
/// # Errors
///
/// Those of [`Ranking::pass`] and of `after`. A wrong result is not an error: see
/// [`Outcome::is_verified`].
pub fn run(
    pgas: &Pgas,
    problem: Problem,
    mut after: impl FnMut(u64, Duration) -> Result<(), Error>,
) -> Result<Outcome, Error> {
    let team = pgas.world();
    let (mut ranking, _) = Ranking::new(pgas, problem)?.pass(1)?;
    team.barrier()?;
    let begin = Instant::now();
    let mut found = 0;
    for pass in 1..=PASSES {
        let (next, right) = ranking.pass(pass)?;
        ranking = next;
        found += right;
        after(pass, begin.elapsed())?;
    }
    let own = begin.elapsed().as_nanos() as u64;
    let (mut slowest, mut right) = ([0], [0]);
    team.all_reduce(&[own], &mut slowest, Max)?;
    team.all_reduce(&[found], &mut right, Sum)?;
    Ok(Outcome {
        time: Duration::from_nanos(slowest[0]),
        right: right[0] + u64::from(ranking.is_sorted()?),
    })
}
