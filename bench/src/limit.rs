//! The physical limits: one cache line going back and forth between two processes, and memcpy.
//!
//! The two processes are units like ours and share a segment; nothing of the fabric is on the clock.

use crate::control::{Command, Control, pin};
use anyhow::Result;
use samite::{Match, SharedBytes};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Runs a rank until it is told to quit.
pub fn run_limit(folder: &Path) -> Result<()> {
    let rank = std::env::var("SAMITE_UNIT")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    pin(rank)?;
    let fabric = samite::init()?;
    let members = fabric.job()?;
    let own = fabric.allocate(4096)?;
    let mut key = own.key().to_bytes();
    if rank == 0 {
        for member in &members[1..] {
            fabric.send(*member, 1, &key)?;
        }
    } else {
        fabric.recv(Match::from(members[0], 1), &mut key)?;
    }
    let remote = fabric.attach(samite::SegmentKey::from_bytes(&key))?;
    let lines = remote
        .mapped()
        .ok_or_else(|| anyhow::anyhow!("the segment is not mapped"))?;
    let mut control = Control::open(folder, rank)?;
    fabric.barrier(&members)?;
    control.answer("ready")?;
    while let Some(command) = control.next()? {
        let result = measure(&command, rank, lines);
        control.answer_result(result)?;
    }
    Ok(())
}

fn measure(command: &Command, rank: u32, lines: &SharedBytes) -> Result<Option<f64>> {
    match command.name() {
        "exchange" => exchange(command.number(1)?, rank, lines).map(Some),
        "memcpy" => Ok(Some(if rank == 0 {
            memcpy(command.number(1)?, command.number(2)?)
        } else {
            0.0
        })),
        _ => Ok(None),
    }
}

/// Round trips between ranks 0 and 1: one line there, one line back.
fn exchange(iters: u64, rank: u32, lines: &SharedBytes) -> Result<f64> {
    const THERE: u64 = 0;
    const BACK: u64 = 256;
    // Counts go on from the last measurement; the lines are only ever written by their sides.
    let (there, back) = (lines.u64(THERE), lines.u64(BACK));
    if rank > 1 {
        return Ok(0.0);
    }
    let warmup = iters / 10 + 1;
    // ORDERING: Acquire pairs with the Release stores of rank 1 below.
    let first = back.load(Ordering::Acquire) + 1;
    let mut start = Instant::now();
    for count in first..first + warmup + iters {
        if count == first + warmup {
            start = Instant::now();
        }
        // ORDERING: each side's Release pairs with the other side's Acquire: the exchange itself.
        if rank == 0 {
            there.store(count, Ordering::Release);
            while back.load(Ordering::Acquire) != count {
                std::hint::spin_loop();
            }
        } else {
            while there.load(Ordering::Acquire) != count {
                std::hint::spin_loop();
            }
            back.store(count, Ordering::Release);
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

fn memcpy(bytes: u64, iters: u64) -> f64 {
    let (from, mut to) = (vec![1u8; bytes as usize], vec![2u8; bytes as usize]);
    let mut start = Instant::now();
    for round in 0..iters + 2 {
        if round == 2 {
            start = Instant::now();
        }
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    start.elapsed().as_secs_f64()
}
