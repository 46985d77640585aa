//! Values that processes share. All words of a version are its number. It is written where it is; a
//! reader looks at the first word of each page, and, after the clock, at all words of the last
//! version.

use super::Unit;
use crate::control::Command;
use anyhow::{Result, ensure};
use samite::Match;
use samite::dsm::{Chunk, Dsm, Policy};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();
/// How long one process writes while others read, and how often.
const LASTS: Duration = Duration::from_millis(200);
const EVERY: Duration = Duration::from_millis(1);
/// The versions that a reader sees at least.
const SEEN: u64 = 10;
/// The number of the last version.
const LAST: u64 = u64::MAX;
/// The tag of a reader's figure.
const FIGURE: u64 = 14;

impl Unit {
    /// Runs `share KIND BYTES ITERS WARMUP`.
    pub(super) fn share(&self, command: &Command) -> Result<Option<f64>> {
        let bytes = command.number(2)?;
        let (iters, warmup) = (command.number(3)?, command.number(4)?);
        ensure!(bytes >= WORD as u64, "a value has at least {WORD} bytes");
        let dsm = match command.word(1).ends_with("-own") {
            true => self.hosted()?.clone(),
            false => Dsm::join(&self.fabric)?,
        };
        let chunk = |of: &str| dsm.alloc::<u8>(&format!("{bytes} bytes of {of}"), bytes);
        // Where ranks are homes, by their beginning.
        let own = |rank: usize| dsm.alloc::<u8>(&format!("{rank} has a value of {bytes}"), bytes);
        match command.word(1) {
            "one-writer" | "cached" => self.one_writer(&chunk("the writer")?).map(Some),
            "ping-pong" if self.members.len() == 2 => {
                let chunk = chunk("both")?;
                self.in_turn(&dsm, [&chunk; 2], warmup)?;
                self.in_turn(&dsm, [&chunk; 2], iters).map(Some)
            }
            "ping-pong-each" if self.members.len() == 2 => {
                let chunks = [chunk("the first")?, chunk("the second")?];
                let chunks = [&chunks[self.rank], &chunks[1 - self.rank]];
                self.in_turn(&dsm, chunks, warmup)?;
                self.in_turn(&dsm, chunks, iters).map(Some)
            }
            "ping-pong-own" if self.members.len() == 2 => {
                let chunk = own(0)?;
                self.in_turn(&dsm, [&chunk; 2], warmup)?;
                self.in_turn(&dsm, [&chunk; 2], iters).map(Some)
            }
            "partitioned-own" => {
                let chunk = own(self.rank)?;
                self.partitioned(&dsm, &chunk, warmup)?;
                self.partitioned(&dsm, &chunk, iters).map(Some)
            }
            "partitioned" | "pipelined" => {
                let chunk = chunk(&self.rank.to_string())?;
                self.partitioned(&dsm, &chunk, warmup)?;
                self.partitioned(&dsm, &chunk, iters).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Rank 0 writes, the others read the latest version. Returns the mean seconds of a read.
    fn one_writer(&self, chunk: &Chunk<u8>) -> Result<f64> {
        if self.rank == 0 {
            write(chunk, 1)?;
        }
        self.fabric.barrier(&self.members)?;
        if self.rank != 0 {
            let seconds = read_on(chunk)?;
            let to = self.members[0];
            self.fabric.send(to, FIGURE, &seconds.to_le_bytes())?;
            return Ok(0.0);
        }
        let (begin, mut turn) = (Instant::now(), Duration::ZERO);
        for number in 2.. {
            write(chunk, number)?;
            turn += EVERY;
            if turn >= LASTS {
                break;
            }
            std::thread::sleep(turn.saturating_sub(begin.elapsed()));
        }
        write(chunk, LAST)?;
        let mut sum = 0.0;
        for reader in &self.members[1..] {
            let mut seconds = [0; 8];
            self.fabric
                .recv(Match::from(*reader, FIGURE), &mut seconds)?;
            sum += f64::from_le_bytes(seconds);
        }
        Ok(sum / (self.members.len() - 1) as f64)
    }

    /// Both ranks write in turn, so often each: this one the first chunk, and the other one the
    /// second, which may be the same.
    fn in_turn(&self, dsm: &Dsm, chunks: [&Chunk<u8>; 2], count: u64) -> Result<f64> {
        self.meet_serving(dsm)?;
        let [own, other] = chunks;
        let present = other.snapshot()?.version();
        // The content of a value that one process writes is found where it is.
        let mut versions = match own.name() == other.name() {
            true => other.subscribe_with_content(Policy::Latest, present)?,
            false => other.subscribe(Policy::Latest, present)?,
        };
        self.meet_serving(dsm)?;
        let begin = Instant::now();
        for number in 0..2 * count {
            if number % 2 == self.rank as u64 {
                write(own, number)?;
                continue;
            }
            // Its own version may come, too.
            loop {
                let version = versions.next_version()?;
                if version.tag() == number {
                    ensure!(
                        number_of(&version)? == number,
                        "another version has arrived"
                    );
                    break;
                }
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.meet_serving(dsm)?;
        if count > 0 {
            let is_last = self.rank == 1 || own.name() == other.name();
            is_whole(&own.snapshot()?, 2 * count - 2 + u64::from(is_last))?;
        }
        self.meet_serving(dsm)?;
        Ok(seconds)
    }

    /// Each rank writes a chunk of its own so often.
    fn partitioned(&self, dsm: &Dsm, chunk: &Chunk<u8>, count: u64) -> Result<f64> {
        self.meet_serving(dsm)?;
        let begin = Instant::now();
        for number in 0..count {
            write(chunk, number)?;
        }
        self.meet_serving(dsm)?;
        let seconds = begin.elapsed().as_secs_f64();
        if count > 0 {
            is_whole(&chunk.snapshot()?, count - 1)?;
        }
        Ok(seconds)
    }
}

fn write(chunk: &Chunk<u8>, number: u64) -> Result<()> {
    let mut draft = chunk.draft()?;
    draft.as_chunks_mut().0.fill(number.to_ne_bytes());
    draft.put(number)?;
    Ok(())
}

/// Returns the number of a version.
fn number_of(version: &[u8]) -> Result<u64> {
    let first = version.first_chunk::<WORD>();
    let mut words = version.chunks(PAGE).map(|page| page.first_chunk::<WORD>());
    // The last page may be too short for a number.
    let is_one = words.all(|word| word.is_none() || word == first);
    ensure!(is_one, "a reader sees parts of several versions");
    Ok(first.map_or(0, |first| u64::from_ne_bytes(*first)))
}

/// Checks that all words of a version are its number.
fn is_whole(version: &[u8], number: u64) -> Result<()> {
    let mut words = version.as_chunks().0.iter();
    ensure!(
        words.all(|word| *word == number.to_ne_bytes()),
        "a reader sees another version than {number}, or a part of one"
    );
    Ok(())
}

/// Reads until the last version. Returns the seconds of a read.
fn read_on(chunk: &Chunk<u8>) -> Result<f64> {
    let (mut newest, mut reads, mut versions) = (0, 0_u64, 0);
    let begin = Instant::now();
    while newest != LAST {
        let next = number_of(&chunk.read()?)?;
        ensure!(next >= newest, "version {next} after version {newest}");
        versions += u64::from(next != newest);
        newest = next;
        reads += 1;
    }
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(
        versions >= SEEN,
        "a reader saw {versions} versions only: it came when all was over"
    );
    is_whole(&chunk.read()?, LAST)?;
    Ok(seconds / reads as f64)
}
