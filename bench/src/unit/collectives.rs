//! Collectives of all units, with their data in segments or in private memory.

use super::{check, fill, timed};
use crate::control::Command;
use anyhow::{Result, ensure};
use samite::pgas::{Elem, Segment, Source, Sum, Target, Team};

pub(super) fn run(world: &Team<'_>, command: &Command) -> Result<Option<f64>> {
    let in_segments = match command.word(2) {
        "segment" => true,
        "private" => false,
        _ => return Ok(None),
    };
    let bytes = command.number(3)?;
    let rounds = (command.number(4)?, command.number(5)?);
    match command.word(1) {
        "barrier" => barrier(world, rounds),
        "allreduce" => allreduce(world, in_segments, bytes, rounds),
        "bcast" => bcast(world, in_segments, bytes, rounds),
        "alltoall" => alltoall(world, in_segments, bytes, rounds),
        _ => return Ok(None),
    }
    .map(Some)
}

/// The memory of one argument.
#[expect(clippy::large_enum_variant, reason = "a call has two of them")]
enum Buffer<'f, T> {
    Symmetric(Segment<'f, T>),
    Private(Vec<T>),
}

impl<'f, T: Elem> Buffer<'f, T> {
    fn new(world: &Team<'f>, in_segments: bool, count: u64) -> Result<Self> {
        Ok(if in_segments {
            Buffer::Symmetric(world.allocate(count)?)
        } else {
            Buffer::Private(vec![T::zeroed(); count as usize])
        })
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

fn barrier(world: &Team<'_>, rounds: (u64, u64)) -> Result<f64> {
    timed(world, true, false, rounds, |n| {
        for _ in 0..n {
            world.barrier()?;
        }
        Ok(())
    })
}

fn allreduce(world: &Team<'_>, symmetric: bool, bytes: u64, rounds: (u64, u64)) -> Result<f64> {
    let count = bytes / size_of::<f64>() as u64;
    let mut from = Buffer::new(world, symmetric, count)?;
    let mut into = Buffer::new(world, symmetric, count)?;
    let times = |factor: u32| move |index| f64::from(factor) * ((index % 1000 + 1) as f64);
    let own: Vec<f64> = (0..count).map(times(world.rank() + 1)).collect();
    from.write(&own)?;
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
    from.free()?;
    into.free()?;
    Ok(seconds)
}

fn bcast(world: &Team<'_>, symmetric: bool, bytes: u64, rounds: (u64, u64)) -> Result<f64> {
    let mut data = Buffer::new(world, symmetric, bytes)?;
    let mut pattern = vec![0; bytes as usize];
    fill(&mut pattern, 5);
    if world.rank() == 0 {
        data.write(&pattern)?;
    }
    // The root need not wait for the others, so the last of them ends the time.
    let seconds = timed(world, true, true, rounds, |n| {
        for _ in 0..n {
            world.broadcast(0, data.target()?)?;
        }
        Ok(())
    })?;
    check(&data.read()?, 5)?;
    data.free()?;
    Ok(seconds)
}

fn alltoall(world: &Team<'_>, symmetric: bool, bytes: u64, rounds: (u64, u64)) -> Result<f64> {
    let (rank, ranks) = (world.rank() as usize, world.size() as usize);
    let total = bytes * u64::from(world.size());
    let mut from = Buffer::new(world, symmetric, total)?;
    let mut into = Buffer::new(world, symmetric, total)?;
    let mut blocks = vec![0; total as usize];
    for (to, block) in blocks.chunks_mut(bytes as usize).enumerate() {
        fill(block, rank * ranks + to);
    }
    from.write(&blocks)?;
    let seconds = timed(world, true, false, rounds, |n| {
        for _ in 0..n {
            world.all_to_all(from.source()?, into.target()?)?;
        }
        Ok(())
    })?;
    for (sender, block) in into.read()?.chunks(bytes as usize).enumerate() {
        check(block, sender * ranks + rank)?;
    }
    from.free()?;
    into.free()?;
    Ok(seconds)
}
