//! Threads of one unit on one fabric.

use crate::control::{Command, pin};
use anyhow::{Context, Result, anyhow};
use samite::{Fabric, Match, PeerId, Remote, SegmentKey};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TAG: u64 = 77;
const KEY: u64 = 78;
/// Distance between the memory of two threads.
const APART: u64 = 4096;
const PUTS: u64 = 1000;

pub(super) fn run(
    fabric: &Fabric,
    members: &[PeerId],
    rank: usize,
    command: &Command,
) -> Result<Option<f64>> {
    let threads = command.number(2)?;
    let (iters, warmup) = (command.number(3)?, command.number(4)?);
    let other = members[1 - rank];
    let seconds = match (command.word(1), rank) {
        ("put", _) => {
            let segment = fabric.allocate(threads * APART)?;
            fabric.send(other, KEY, &segment.key().to_bytes())?;
            let mut key = [0; 24];
            fabric.recv(Match::from(other, KEY), &mut key)?;
            let remote = fabric.attach(SegmentKey::from_bytes(&key))?;
            let seconds = match rank {
                0 => puts(&remote, threads, (iters, warmup))?,
                _ => 0.0,
            };
            fabric.barrier(members)?;
            seconds
        }
        ("turns", 0) => turns(fabric, other, threads, (iters, warmup))?,
        ("turns", _) => {
            let mut word = [0; 8];
            for _ in 0..iters + warmup {
                fabric.recv(Match::from(other, TAG), &mut word)?;
                fabric.send(other, TAG, &word)?;
            }
            0.0
        }
        _ => return Ok(None),
    };
    Ok(Some(seconds))
}

/// Returns the time in which all threads complete their puts, each on a core of its own: from the
/// first start to the last end, so that threads which run one after the other do not look parallel.
fn puts(remote: &Remote, threads: u64, (iters, warmup): (u64, u64)) -> Result<f64> {
    let together = Barrier::new(threads as usize);
    let thread = |index: u64| -> Result<(Instant, Instant)> {
        let warm = pin(index as u32).and_then(|()| put_words(remote, index * APART, warmup * PUTS));
        // Even after an error: the others wait for all.
        together.wait();
        warm?;
        let start = Instant::now();
        put_words(remote, index * APART, iters * PUTS)?;
        Ok((start, Instant::now()))
    };
    let (starts, ends): (Vec<_>, Vec<_>) = in_threads(threads, thread)?.into_iter().unzip();
    let (first, last) = starts
        .iter()
        .min()
        .zip(ends.iter().max())
        .context("no thread")?;
    Ok(last.duration_since(*first).as_secs_f64())
}

#[inline(never)]
fn put_words(remote: &Remote, offset: u64, times: u64) -> Result<()> {
    for value in 0..times {
        black_box(remote).put(offset, black_box(&value.to_ne_bytes()))?;
    }
    Ok(())
}

/// Returns the sum of the round trips, which the threads make in turn.
fn turns(fabric: &Fabric, other: PeerId, threads: u64, (iters, warmup): (u64, u64)) -> Result<f64> {
    let next = Barrier::new(threads as usize);
    let has_failed = AtomicBool::new(false);
    let turn = |round: u64| -> Result<Duration> {
        let start = Instant::now();
        fabric.send(other, TAG, &round.to_le_bytes())?;
        fabric.recv(Match::from(other, TAG), &mut [0; 8])?;
        Ok(start.elapsed())
    };
    let thread = |index: u64| -> Result<Duration> {
        let mut elapsed = Ok(Duration::ZERO);
        for round in 0..iters + warmup {
            // Even after an error: the others wait for all.
            next.wait();
            if round % threads != index || has_failed.load(Ordering::Relaxed) {
                continue;
            }
            match turn(round) {
                Ok(took) if round >= warmup => elapsed = elapsed.map(|so_far| so_far + took),
                Ok(_) => {}
                Err(error) => {
                    has_failed.store(true, Ordering::Relaxed);
                    elapsed = Err(error);
                }
            }
        }
        elapsed
    };
    let elapsed = in_threads(threads, thread)?;
    Ok(elapsed.into_iter().sum::<Duration>().as_secs_f64())
}

fn in_threads<T: Send>(count: u64, thread: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    let thread = &thread;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| scope.spawn(move || thread(index)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        threads.into_iter().map(join).collect()
    })
}
