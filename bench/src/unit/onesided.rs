//! One unit accesses the memory of another, which sleeps in a barrier.
//!
//! `black_box` surrounds every operation: without it, the compiler would see that the same position
//! is written repeatedly, and omit all but the last write.

use super::{check, fill, timed};
use crate::control::Command;
use anyhow::{Result, ensure};
use samite::Pages;
use samite::pgas::{Segment, Strided, Team};
use std::hint::black_box;

/// The active unit, and the one whose memory it accesses.
const FROM: u32 = 0;
const ON: u32 = 1;

pub(super) fn run(world: &Team, command: &Command) -> Result<Option<f64>> {
    let number = |index| command.number(index);
    match (command.name(), command.word(1)) {
        ("put" | "get" | "put_nb", "8") => {
            words(world, command.name(), (number(2)?, number(3)?)).map(Some)
        }
        ("put", _) => put(world, number(1)?, (number(2)?, number(3)?)).map(Some),
        ("get", _) => get(world, number(1)?, (number(2)?, number(3)?)).map(Some),
        ("strided", _) => {
            let rounds = (number(3)?, number(4)?);
            strided(world, number(1)?, number(2)?, rounds).map(Some)
        }
        ("atomic", kind) => add(world, kind == "contended", (number(2)?, number(3)?)).map(Some),
        _ => Ok(None),
    }
}

/// The value of the word before the first put.
const AT_FIRST: u64 = 0x5A5A_0001;

/// Elements of eight bytes, one at a time.
fn words(world: &Team, operation: &str, rounds: (u64, u64)) -> Result<f64> {
    let segment = world.allocate::<u64>(1)?;
    segment.write_local(0, &[AT_FIRST])?;
    let works = world.rank() == FROM;
    let often = match operation {
        "put" => put_words,
        "get" => get_words,
        _ => put_words_nb,
    };
    let seconds = timed(world, works, false, rounds, |n| often(&segment, n))?;
    let written = match operation {
        "get" => AT_FIRST,
        _ => rounds.0 - 1,
    };
    ensure!(
        works || segment.get_value(ON, 0)? == written,
        "the word that arrived is not the word that was sent"
    );
    segment.free()?;
    Ok(seconds)
}

// Each loop has a function of its own: a round takes three cycles or four, depending on the
// alignment of its code, which must not depend on the other loops.

#[inline(never)]
fn put_words(segment: &Segment<u64>, times: u64) -> Result<()> {
    for value in 0..times {
        black_box(segment).put_value(ON, 0, black_box(value))?;
    }
    Ok(())
}

#[inline(never)]
fn get_words(segment: &Segment<u64>, times: u64) -> Result<()> {
    let mut seen = AT_FIRST;
    for _ in 0..times {
        seen = black_box(black_box(segment).get_value(ON, 0)?);
    }
    ensure!(
        seen == AT_FIRST,
        "the word that was read is not the word that is there"
    );
    Ok(())
}

#[inline(never)]
fn put_words_nb(segment: &Segment<u64>, times: u64) -> Result<()> {
    for value in 0..times {
        let handle = black_box(segment).put_nb(ON, 0, &[black_box(value)])?;
        handle.wait()?;
    }
    Ok(())
}

fn put(world: &Team, bytes: u64, rounds: (u64, u64)) -> Result<f64> {
    let (segment, mut private) = (world.allocate::<u8>(bytes)?, Pages::new(bytes, false)?);
    private.fill(1);
    let works = world.rank() == FROM;
    let seconds = timed(world, works, false, rounds, |n| {
        for _ in 0..n {
            black_box(&segment).put(ON, 0, black_box(&private))?;
        }
        Ok(())
    })?;
    if works {
        fill(&mut private, 3);
        segment.put(ON, 0, &private)?;
    }
    world.barrier()?;
    if world.rank() == ON {
        segment.read_local(0, &mut private)?;
        check(&private, 3)?;
    }
    segment.free()?;
    Ok(seconds)
}

fn get(world: &Team, bytes: u64, rounds: (u64, u64)) -> Result<f64> {
    let (segment, mut private) = (world.allocate::<u8>(bytes)?, Pages::new(bytes, false)?);
    fill(&mut private, world.rank() as usize);
    segment.write_local(0, &private)?;
    let works = world.rank() == FROM;
    let seconds = timed(world, works, false, rounds, |n| {
        for _ in 0..n {
            black_box(&segment).get(ON, 0, black_box(&mut private))?;
        }
        Ok(())
    })?;
    check(&private, ON as usize)?;
    segment.free()?;
    Ok(seconds)
}

/// Blocks that are contiguous at the source, to every second block of the target.
fn strided(world: &Team, blocks: u64, bytes: u64, rounds: (u64, u64)) -> Result<f64> {
    let segment: Segment<u8> = world.allocate(2 * blocks * bytes)?;
    let mut private = Pages::new(blocks * bytes, false)?;
    fill(&mut private, FROM as usize);
    let place = Strided {
        first: 0,
        count: blocks,
        block: bytes,
        stride: 2 * bytes,
    };
    let works = world.rank() == FROM;
    let seconds = timed(world, works, false, rounds, |n| {
        for _ in 0..n {
            black_box(&segment).put_strided(ON, place, black_box(&private))?;
        }
        Ok(())
    })?;
    // The blocks must have arrived, and the gaps must be untouched.
    if world.rank() == ON {
        let mut all = vec![0; segment.len() as usize];
        segment.read_local(0, &mut all)?;
        let (mut written, mut between) = (Vec::new(), 0);
        for pair in all.chunks(2 * bytes as usize) {
            let (block, gap) = pair.split_at(bytes as usize);
            written.extend_from_slice(block);
            between += gap.iter().filter(|byte| **byte != 0).count();
        }
        check(&written, FROM as usize)?;
        ensure!(between == 0, "bytes between the blocks were written");
    }
    segment.free()?;
    Ok(seconds)
}

fn add(world: &Team, contended: bool, rounds: (u64, u64)) -> Result<f64> {
    let segment = world.allocate::<u64>(1)?;
    let works = contended || world.rank() == FROM;
    let seconds = timed(world, works, contended, rounds, |n| {
        for _ in 0..n {
            black_box(segment.fetch_add(ON, 0, 1)?);
        }
        Ok(())
    })?;
    let adders = if contended { world.size().into() } else { 1 };
    ensure!(
        segment.load(ON, 0)? == (rounds.0 + rounds.1) * adders,
        "some additions were lost"
    );
    segment.free()?;
    Ok(seconds)
}
