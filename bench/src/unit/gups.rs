//! Random access as in HPCC, defined in `gups.h` beside the peers.

use crate::control::Command;
use anyhow::{Result, ensure};
use samite::pgas::{Segment, Team, Update};
use std::time::Instant;

const POLY: u64 = 7;
const PERIOD: i64 = 1_317_624_576_693_539_401;
/// Words of each unit's part: 64 MiB.
const WORDS_LOG2: u32 = 23;
const WORDS: u64 = 1 << WORDS_LOG2;
/// Maximum number of updates of a unit in flight.
const LOOK_AHEAD: u64 = 1024;

pub(super) fn run(world: &Team, command: &Command) -> Result<Option<f64>> {
    let (iters, warmup) = (command.number(2)?, command.number(3)?);
    let updates = match command.word(1) {
        "plain" => plain,
        "aggregated" => aggregated,
        _ => return Ok(None),
    };
    let table = world.allocate::<u64>(WORDS)?;
    let mut words: Vec<u64> = (0..WORDS).collect();
    table.write_local(0, &words)?;
    let first = random_at(i64::from(world.rank()) << 50);
    world.barrier()?;
    let next = updates(&table, first, warmup)?;
    world.barrier()?;
    let start = Instant::now();
    updates(&table, next, iters)?;
    world.barrier()?;
    let seconds = start.elapsed().as_secs_f64();
    // The same updates again restore the table, unless one was lost.
    let next = updates(&table, first, warmup)?;
    updates(&table, next, iters)?;
    world.barrier()?;
    table.read_local(0, &mut words)?;
    ensure!(
        words.iter().zip(0..).all(|(word, index)| *word == index),
        "updates were lost"
    );
    table.free()?;
    Ok(Some(seconds))
}

/// One at a time, each complete when it returns.
fn plain(table: &Segment<u64>, mut random: u64, n: u64) -> Result<u64> {
    let place = places(table.team());
    for _ in 0..n {
        random = next_random(random);
        let (rank, index) = place(random);
        table.fetch_op(rank, index, Update::BitXor, random)?;
    }
    Ok(random)
}

/// Passed to the library, which may aggregate them.
fn aggregated(table: &Segment<u64>, mut random: u64, mut n: u64) -> Result<u64> {
    let place = places(table.team());
    while n > 0 {
        let count = n.min(LOOK_AHEAD);
        let mut updates = table.updates(Update::BitXor);
        for _ in 0..count {
            random = next_random(random);
            let (rank, index) = place(random);
            updates.push(rank, index, random)?;
        }
        updates.finish()?;
        n -= count;
    }
    Ok(random)
}

/// Returns the position of a word of the sequence; the number of units is a power of two.
fn places(world: &Team) -> impl Fn(u64) -> (u32, u64) + use<> {
    let ranks = u64::from(world.size()) - 1;
    move |random| {
        let rank = random >> WORDS_LOG2 & ranks;
        (rank as u32, random & (WORDS - 1))
    }
}

fn next_random(x: u64) -> u64 {
    x << 1 ^ if (x as i64) < 0 { POLY } else { 0 }
}

/// Returns the word at position n of the sequence (as HPCC does).
fn random_at(n: i64) -> u64 {
    let n = n.rem_euclid(PERIOD);
    if n == 0 {
        return 1;
    }
    let mut powers = [0; 64];
    let mut x = 1;
    for power in &mut powers {
        *power = x;
        x = next_random(next_random(x));
    }
    x = 2;
    for bit in (0..n.ilog2()).rev() {
        let square = (0..64)
            .filter(|j| x >> j & 1 == 1)
            .fold(0, |sum, j| sum ^ powers[j]);
        x = if n >> bit & 1 == 1 {
            next_random(square)
        } else {
            square
        };
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_can_be_entered_anywhere() {
        let mut x = 1;
        for n in 0..200 {
            assert_eq!(random_at(n), x, "at {n}");
            x = next_random(x);
        }
        assert_eq!(next_random(random_at(1 << 50)), random_at((1 << 50) + 1));
    }
}
