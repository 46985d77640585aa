//! A lock, and a counter under it that two simultaneous holders would corrupt.

use super::timed;
use crate::control::Command;
use anyhow::{Result, ensure};
use samite::pgas::Team;

pub(super) fn run(world: &Team, command: &Command) -> Result<f64> {
    let (iters, warmup) = (command.number(2)?, command.number(3)?);
    let contended = command.word(1) == "contended";
    let last = world.size() - 1;
    // One lock per unit, so that one has its home at the first unit: for `uncontended`, another
    // unit takes it.
    let locks = (0..=last)
        .map(|_| world.lock())
        .collect::<Result<Vec<_>, _>>()?;
    let lock = locks.iter().find(|lock| lock.home() == 0);
    let lock = lock.unwrap_or(&locks[0]);
    let counter = world.allocate::<u64>(1)?;
    let takes_part = contended || world.rank() == last;
    let seconds = timed(world, takes_part, contended, (iters, warmup), |n| {
        for _ in 0..n {
            let guard = lock.acquire()?;
            counter.put_value(0, 0, counter.get_value(0, 0)? + 1)?;
            guard.release()?;
        }
        Ok(())
    })?;
    // The first unit answers, and may have taken no part.
    let measured = world.allocate::<f64>(1)?;
    measured.put_value(world.rank(), 0, seconds)?;
    world.barrier()?;
    let seconds = measured.get_value(last, 0)?;
    let holders = if contended { world.size().into() } else { 1 };
    ensure!(
        counter.get_value(0, 0)? == (iters + warmup) * holders,
        "two units held the lock at a time"
    );
    measured.free()?;
    counter.free()?;
    for lock in locks {
        lock.free()?;
    }
    Ok(seconds)
}
