//! Frames of a video through chunks: rank 0 is the source and the sink, rank 1 the worker. Rank 0
//! copies each frame from its memory into a draft, or sends what the draft has already: of a frame
//! that was sent before the clock starts; the worker and the sink copy nothing.

use super::Unit;
use crate::control::Command;
use anyhow::{Result, ensure};
use samite::dsm::{Chunk, Dsm, Policy, Subscription, Version};
use std::time::Instant;

/// Frames on the way.
const SLOTS: usize = 2;

/// The versions that wait for a reader at most.
const WAITING: u32 = 4;

/// More frames than there are buffers: of each slot, both ways, as many as wait and one that is
/// written, four times.
const BUFFERS: u64 = 4 * SLOTS as u64 * (WAITING as u64 + 1);

/// The bytes of a frame's number, at its beginning.
const NUMBER: usize = 8;

/// The end of one rank: the chunks that it writes, and those that it reads, by slot.
struct End {
    writes: Vec<Chunk<u8>>,
    reads: Vec<Subscription<u8>>,
}

/// Where rank 0 has the frames.
#[derive(Clone, Copy, PartialEq)]
enum From {
    /// In memory of its own.
    Copied,
    /// In drafts, as one that decodes into them.
    InPlace,
}

/// What the worker does with a frame.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// Nothing: its result has the frame's number.
    Nothing,
    /// It copies the frame into its result, and rank 0 compares.
    Copy,
}

impl Unit {
    /// Runs `frames KIND BYTES ITERS WARMUP`.
    pub(super) fn frames(&self, command: &Command) -> Result<Option<f64>> {
        let from = match command.word(1) {
            "copied" => From::Copied,
            "in-place" => From::InPlace,
            _ => return Ok(None),
        };
        let bytes = command.number(2)?;
        let (iters, warmup) = (command.number(3)?, command.number(4)?);
        let dsm = Dsm::join(&self.fabric)?;
        let mut end = self.end(&dsm, bytes)?;
        // As many as the peers have.
        let frames: Vec<Vec<u8>> = (0..SLOTS as u64)
            .map(|slot| {
                (0..bytes)
                    .map(|at| (at * 7 + slot * 31) as u8 ^ (at >> 9) as u8)
                    .collect()
            })
            .collect();
        // The buffers of all versions that may be on the way are allocated before the clock starts,
        // as those of the peers are: a machine may need milliseconds for the pages of each.
        let warmup = warmup.max(BUFFERS);
        self.through(&mut end, &frames, warmup, (From::Copied, Work::Nothing))?;
        self.fabric.barrier(&self.members)?;
        let begin = Instant::now();
        self.through(&mut end, &frames, iters, (from, Work::Nothing))?;
        let took = begin.elapsed();
        // The frames arrive whole.
        self.through(&mut end, &frames, BUFFERS, (From::Copied, Work::Copy))?;
        self.fabric.barrier(&self.members)?;
        let End { writes, reads } = end;
        drop(reads);
        for chunk in writes {
            chunk.free()?;
        }
        self.fabric.barrier(&self.members)?;
        Ok(Some(took.as_secs_f64()))
    }

    fn end(&self, dsm: &Dsm, bytes: u64) -> Result<End> {
        let (own, other) = match self.rank {
            0 => ("frame", "result"),
            _ => ("result", "frame"),
        };
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for slot in 0..SLOTS {
            writes.push(dsm.alloc(&format!("{own} {slot}"), bytes)?);
            let chunk = dsm.alloc::<u8>(&format!("{other} {slot}"), bytes)?;
            let policy = Policy::Lossless {
                high_water: WAITING,
            };
            reads.push(chunk.subscribe_with_content(policy, Version::default())?);
        }
        self.fabric.barrier(&self.members)?;
        Ok(End { writes, reads })
    }

    /// Moves so many frames to the worker and back.
    fn through(
        &self,
        end: &mut End,
        frames: &[Vec<u8>],
        count: u64,
        (from, work): (From, Work),
    ) -> Result<()> {
        let is_checked = work == Work::Copy;
        let mut sent = 0;
        for number in 0..count {
            let slot = number as usize % SLOTS;
            if self.rank == 1 {
                let given = end.reads[slot].next_version()?;
                let mut result = end.writes[slot].draft()?;
                match is_checked {
                    true => result.copy_from_slice(&given),
                    false => result[..NUMBER].copy_from_slice(&given[..NUMBER]),
                }
                drop(given);
                result.put(number)?;
                continue;
            }
            while sent < count.min(number + SLOTS as u64) {
                let slot = sent as usize % SLOTS;
                let mut draft = end.writes[slot].draft()?;
                if from == From::Copied {
                    draft.copy_from_slice(&frames[slot]);
                }
                draft[..NUMBER].copy_from_slice(&sent.to_le_bytes());
                draft.put(sent)?;
                sent += 1;
            }
            let result = end.reads[slot].next_version()?;
            ensure!(
                result.tag() == number && result[..NUMBER] == number.to_le_bytes(),
                "another frame than {number} has arrived"
            );
            ensure!(
                !is_checked || result[NUMBER..] == frames[slot][NUMBER..],
                "the content of frame {number} is wrong"
            );
        }
        Ok(())
    }
}
