//! Collectives of all units, with their data in segments or in private memory.

use super::{check, fill, timed};
use crate::control::Command;
use anyhow::{Result, ensure};
use samite::pgas::{Elem, Segment, Source, Sum, Target, Team};

pub(super) fn run(world: &Team, held: &mut Cached, command: &Command) -> Result<Option<f64>> {
    let symmetric = match command.word(2) {
        "segment" => true,
        "private" => false,
        _ => return Ok(None),
    };
    let bytes = command.number(3)?;
    let rounds = (command.number(4)?, command.number(5)?);
    let all = bytes * u64::from(world.size());
    match command.word(1) {
        "barrier" => barrier(world, rounds),
        "allreduce" => {
            let count = bytes / size_of::<f64>() as u64;
            allreduce(world, held.doubles.of(world, symmetric, count)?, rounds)
        }
        "bcast" => bcast(world, held.bytes.of(world, symmetric, bytes)?, rounds),
        "alltoall" => alltoall(world, held.bytes.of(world, symmetric, all)?, rounds),
        _ => return Ok(None),
    }
    .map(Some)
}

/// The memory of the last command, which the next one probably reuses, as the peers do.
#[derive(Default)]
pub(super) struct Cached {
    bytes: Slot<u8>,
    doubles: Slot<f64>,
}

/// Two arguments of equal length, in segments or not.
#[derive(Default)]
struct Slot<T>(Option<(bool, u64, Pair<T>)>);

struct Pair<T> {
    from: Buffer<T>,
    into: Buffer<T>,
}

impl<T: Elem> Slot<T> {
    fn of(&mut self, world: &Team, symmetric: bool, count: u64) -> Result<&mut Pair<T>> {
        let held = self.0.take();
        let (_, _, pair) = match held {
            Some(held) if (held.0, held.1) == (symmetric, count) => self.0.insert(held),
            held => {
                if let Some((_, _, pair)) = held {
                    pair.from.free()?;
                    pair.into.free()?;
                }
                let from = Buffer::new(world, symmetric, count)?;
                let into = Buffer::new(world, symmetric, count)?;
                self.0.insert((symmetric, count, Pair { from, into }))
            }
        };
        Ok(pair)
    }
}

/// The memory of one argument.
#[expect(clippy::large_enum_variant, reason = "a call has two of them")]
enum Buffer<T> {
    Symmetric(Segment<T>),
    Private(Vec<T>),
}

impl<T: Elem> Buffer<T> {
    fn new(world: &Team, in_segments: bool, count: u64) -> Result<Self> {
        Ok(if in_segments {
            Buffer::Symmetric(world.allocate(count)?)
        } else {
            Buffer::Private(vec![T::zeroed(); count as usize])
        })
    }

    fn len(&self) -> u64 {
        match self {
            Buffer::Symmetric(segment) => segment.len(),
            Buffer::Private(elements) => elements.len() as u64,
        }
    }

    fn source(&self) -> Result<Source<'_, T>> {
        Ok(match self {
            Buffer::Symmetric(segment) => segment.part(..)?.into(),
            Buffer::Private(elements) => elements.into(),
        })
    }

    fn target(&mut self) -> Result<Target<'_, T>> {
        Ok(match self {
            Buffer::Symmetric(segment) => segment.part(..)?.into(),
            Buffer::Private(elements) => elements.into(),
        })
    }

    fn write(&mut self, from: &[T]) -> Result<()> {
        match self {
            Buffer::Symmetric(segment) => segment.write_local(0, from)?,
            Buffer::Private(elements) => elements.copy_from_slice(from),
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<T>> {
        Ok(match self {
            Buffer::Symmetric(segment) => {
                let mut elements = vec![T::zeroed(); segment.len() as usize];
                segment.read_local(0, &mut elements)?;
                elements
            }
            Buffer::Private(elements) => elements.clone(),
        })
    }

    fn free(self) -> Result<()> {
        match self {
            Buffer::Symmetric(segment) => Ok(segment.free()?),
            Buffer::Private(_) => Ok(()),
        }
    }
}

fn barrier(world: &Team, rounds: (u64, u64)) -> Result<f64> {
    timed(world, true, false, rounds, |n| {
        for _ in 0..n {
            world.barrier()?;
        }
        Ok(())
    })
}

fn allreduce(world: &Team, pair: &mut Pair<f64>, rounds: (u64, u64)) -> Result<f64> {
    let Pair { from, into } = pair;
    let count = from.len();
    let times = |factor: u32| move |index| f64::from(factor) * ((index % 1000 + 1) as f64);
    let own: Vec<f64> = (0..count).map(times(world.rank() + 1)).collect();
    from.write(&own)?;
    // The sums of a previous command would be correct, too.
    into.write(&vec![0.0; own.len()])?;
    let seconds = timed(world, true, false, rounds, |n| {
        for _ in 0..n {
            world.all_reduce(from.source()?, into.target()?, Sum)?;
        }
        Ok(())
    })?;
    let sum = world.size() * (world.size() + 1) / 2;
    ensure!(
        into.read()?.into_iter().eq((0..count).map(times(sum))),
        "the sums are wrong"
    );
    Ok(seconds)
}

fn bcast(world: &Team, pair: &mut Pair<u8>, rounds: (u64, u64)) -> Result<f64> {
    let data = &mut pair.into;
    let mut pattern = vec![0; data.len() as usize];
    fill(&mut pattern, 5);
    let stale = vec![0; pattern.len()];
    data.write(if world.rank() == 0 { &pattern } else { &stale })?;
    // The root need not wait for the others, so the last of them determines the time.
    let seconds = timed(world, true, true, rounds, |n| {
        for _ in 0..n {
            world.broadcast(0, data.target()?)?;
        }
        Ok(())
    })?;
    check(&data.read()?, 5)?;
    Ok(seconds)
}

fn alltoall(world: &Team, pair: &mut Pair<u8>, rounds: (u64, u64)) -> Result<f64> {
    let (rank, ranks) = (world.rank() as usize, world.size() as usize);
    let Pair { from, into } = pair;
    let total = from.len() as usize;
    let bytes = total / ranks;
    into.write(&vec![0; total])?;
    let mut blocks = vec![0; total];
    for (to, block) in blocks.chunks_mut(bytes).enumerate() {
        fill(block, rank * ranks + to);
    }
    from.write(&blocks)?;
    let seconds = timed(world, true, false, rounds, |n| {
        for _ in 0..n {
            world.all_to_all(from.source()?, into.target()?)?;
        }
        Ok(())
    })?;
    for (sender, block) in into.read()?.chunks(bytes).enumerate() {
        check(block, sender * ranks + rank)?;
    }
    Ok(seconds)
}
