//! Frames of a video through chunks: rank 0 is the source and the sink, rank 1 the worker. Rank 0
//! copies each frame from its memory into a draft, or has it in the draft already; the worker and
//! the sink copy nothing.

use super::Unit;
use crate::control::Command;
use anyhow::{Result, ensure};
use samite::dsm::{Chunk, Dsm, Policy, Subscription, Version};
use std::time::Instant;

/// Frames on the way.
const SLOTS: usize = 2;

/// More frames than there are buffers: of each slot, both ways, as many as are told of and not
/// taken, and one that is written.
const BUFFERS: u64 = 4 * SLOTS as u64 * 5;

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
    /// As `Copied`; the worker copies each into its result, and rank 0 compares.
    Checked,
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
        let frame: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
        // The buffers of all versions that may be on the way are allocated before the clock starts,
        // as those of the peers are: a machine may need milliseconds for the pages of each.
        self.through(&mut end, &frame, warmup.max(BUFFERS), from)?;
        self.fabric.barrier(&self.members)?;
        let begin = Instant::now();
        self.through(&mut end, &frame, iters, from)?;
        let took = begin.elapsed();
        // The frames arrive whole.
        self.through(&mut end, &frame, SLOTS as u64, From::Checked)?;
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
            let policy = Policy::Lossless { high_water: 4 };
            reads.push(chunk.subscribe_with_content(policy, Version::default())?);
        }
        self.fabric.barrier(&self.members)?;
        Ok(End { writes, reads })
    }

    /// Moves so many frames to the worker and back.
    fn through(&self, end: &mut End, frame: &[u8], count: u64, from: From) -> Result<()> {
        let is_checked = from == From::Checked;
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
                if from != From::InPlace {
                    draft.copy_from_slice(frame);
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
                !is_checked || result[NUMBER..] == frame[NUMBER..],
                "the content of frame {number} is wrong"
            );
        }
        Ok(())
    }
}
