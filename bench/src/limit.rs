//! The physical limits: round trips of one cache line between two processes, memcpy, plain accesses
//! to memory that other processes map, and plain writes and reads of files.
//!
//! The processes are units like ours and share segments. The measured code uses only the slices and
//! words of these.

use crate::control::{Command, Control, pin};
use anyhow::{Result, bail};
use samite::pgas::{Local, Pgas, Segment};
use samite::{Match, Pages, SharedBytes};
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The largest measured transfer.
const MOST_BYTES: u64 = 16 << 20;
/// Looks for the other rank; a look takes some nanoseconds.
const MOST_LOOKS: u64 = 1 << 31;

/// Runs a rank until it is told to quit.
pub fn run_limit(folder: &Path) -> Result<()> {
    let rank = std::env::var("SAMITE_UNIT")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    pin(rank)?;
    let fabric = samite::init()?;
    let members = fabric.job()?;
    // All ranks attach the segment of rank 0, which has the cache lines of `exchange`.
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
    let pgas = Pgas::new(&fabric)?;
    let mut mapped: Segment<u8, Local> = pgas.world().allocate(MOST_BYTES)?.into_local()?;
    mapped.as_mut_slice().fill(1);
    let mut private = Pages::new(MOST_BYTES, false)?;
    private.fill(2);
    let mut control = Control::open(folder, rank)?;
    fabric.barrier(&members)?;
    control.answer("ready")?;
    while let Some(command) = control.next()? {
        let result = match (command.name(), rank) {
            ("file", 0) => files(&command, &folder.join("limit.file")),
            ("file", _) => Ok(Some(0.0)),
            ("raw", 0) => raw(&command, lines, mapped.as_mut_slice(), &mut private),
            _ => measure(&command, rank, lines),
        };
        control.answer_value(result?)?;
    }
    Ok(())
}

fn measure(command: &Command, rank: u32, lines: &SharedBytes) -> Result<Option<f64>> {
    match command.name() {
        "exchange" => exchange(command.number(1)?, command.number(2)?, rank, lines).map(Some),
        "memcpy" => Ok(Some(if rank == 0 {
            memcpy(command.number(1)?, command.number(2)?, command.number(3)?)
        } else {
            0.0
        })),
        _ => Ok(None),
    }
}

/// Accesses of this process to mapped memory, as fast as the processor can.
fn raw(
    command: &Command,
    lines: &SharedBytes,
    mapped: &mut [u8],
    private: &mut [u8],
) -> Result<Option<f64>> {
    let word = lines.u64(0);
    let number = |index| command.number(index);
    // ORDERING: Release and Acquire for their cost; no other process reads the word.
    Ok(Some(match command.word(1) {
        "store" => timed(number(2)?, number(3)?, |value| {
            word.store(black_box(value), Ordering::Release);
        }),
        "load" => timed(number(2)?, number(3)?, |_| {
            black_box(word.load(Ordering::Acquire));
        }),
        "add" => timed(number(2)?, number(3)?, |_| {
            black_box(word.fetch_add(1, Ordering::SeqCst));
        }),
        "put" => {
            let bytes = number(2)? as usize;
            let (from, to) = (&private[..bytes], &mut mapped[..bytes]);
            timed(number(3)?, number(4)?, |_| {
                black_box(&mut *to).copy_from_slice(black_box(from));
            })
        }
        "get" => {
            let bytes = number(2)? as usize;
            let (from, to) = (&mapped[..bytes], &mut private[..bytes]);
            timed(number(3)?, number(4)?, |_| {
                black_box(&mut *to).copy_from_slice(black_box(from));
            })
        }
        _ => return Ok(None),
    }))
}

/// Returns the seconds of `iters` calls.
fn timed(iters: u64, warmup: u64, mut once: impl FnMut(u64)) -> f64 {
    for round in 0..warmup {
        once(round);
    }
    let start = Instant::now();
    for round in 0..iters {
        once(round);
    }
    start.elapsed().as_secs_f64()
}

/// Round trips between ranks 0 and 1: one cache line in each direction.
fn exchange(iters: u64, warmup: u64, rank: u32, lines: &SharedBytes) -> Result<f64> {
    const THERE: u64 = 0;
    const BACK: u64 = 256;
    // Counts continue from the last measurement; each line is written by its side only.
    let (there, back) = (lines.u64(THERE), lines.u64(BACK));
    if rank > 1 {
        return Ok(0.0);
    }
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
            await_count(count, 1, || back.load(Ordering::Acquire))?;
        } else {
            await_count(count, 0, || there.load(Ordering::Acquire))?;
            back.store(count, Ordering::Release);
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Looks until another rank has written the count: for a minute or so.
fn await_count(count: u64, rank: u32, look: impl Fn() -> u64) -> Result<()> {
    for _ in 0..MOST_LOOKS {
        if look() == count {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    bail!("rank {rank} does not take its turn in an exchange of cache lines")
}

/// Plain writes and reads of one buffer on the file system, each with a new file.
fn files(command: &Command, path: &Path) -> Result<Option<f64>> {
    let (operation, bytes) = (command.word(1), command.number(2)?);
    let mut buffer = vec![1u8; bytes as usize];
    let mut seconds = 0.0;
    for round in 0..command.number(4)? + command.number(3)? {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        // The open file exists without its name.
        fs::remove_file(path)?;
        if operation == "read" {
            file.write_all(&buffer)?;
            file.rewind()?;
        }
        let start = Instant::now();
        match operation {
            "write" => file.write_all(&buffer)?,
            "write-synced" => {
                file.write_all(&buffer)?;
                file.sync_data()?;
            }
            "read" => file.read_exact(&mut buffer)?,
            _ => return Ok(None),
        }
        if round >= command.number(4)? {
            seconds += start.elapsed().as_secs_f64();
        }
    }
    Ok(Some(seconds))
}

fn memcpy(bytes: u64, iters: u64, warmup: u64) -> f64 {
    let (from, mut to) = (vec![1u8; bytes as usize], vec![2u8; bytes as usize]);
    timed(iters, warmup, |_| {
        black_box(&mut to).copy_from_slice(black_box(&from));
    })
}
