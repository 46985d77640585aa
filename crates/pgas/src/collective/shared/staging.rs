//! Memory that slices go through, piece by piece.
//!
//! ```text
//!   giver   fill half 0 | meet | (take) | fill half 1 | meet | (take) | fill half 0 | meet ...
//!   taker               | meet | take 0 |             | meet | take 1 |
//! ```
//! With a giver and a taker on a core each, one fills a piece while the other one takes the piece before.

use super::board::Board;
use crate::team::Inner;
use crate::{GlobalPtr, Result};
use samite_mem::SharedBytes;
use std::cell::OnceCell;

/// Staging memory of this unit, for all its teams: one call uses it at a time, and a call ends when
/// nobody is at it any more. Calls of several threads have one each.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    pub(super) pointer: GlobalPtr<u8>,
    pub(super) bytes: SharedBytes,
}

/// Bytes of the staging memory, unless elements are larger: it stays in the second-level cache.
pub(super) const STAGING: u64 = 1 << 20;

/// The staging memory of one call, if it needs any. When the call has ended another one may have it; but if members
/// were stopped in the middle of it, it is never used again.
pub(super) struct Stage<'t> {
    team: &'t Inner,
    board: &'t Board,
    used: OnceCell<Staging>,
}

impl<'t> Stage<'t> {
    pub(super) fn new((team, board): (&'t Inner, &'t Board)) -> Self {
        let used = OnceCell::new();
        Stage { team, board, used }
    }

    /// Staging memory of at least so many bytes; once per call.
    pub(super) fn take(&self, bytes: u64) -> Result<Staging> {
        let staging = self.find(bytes)?;
        Ok(self.used.get_or_init(|| staging).clone())
    }

    fn find(&self, bytes: u64) -> Result<Staging> {
        let job = &self.team.job;
        let kept = job.collectives.staging.lock().pop();
        match kept {
            Some(kept) if kept.bytes.len() >= bytes => return Ok(kept),
            Some(small) => job.free(small.pointer)?,
            None => {}
        }
        let bytes = bytes.max(STAGING);
        let pointer = job.allocate::<u8>(bytes)?;
        // Own memory is mapped, or there is no board.
        let mapped = job.mapped(pointer, bytes)?;
        let bytes = mapped.ok_or_else(|| crate::job::bad(pointer))?;
        Ok(Staging { pointer, bytes })
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if let Some(staging) = self.used.take()
            && !self.board.has_left_late()
        {
            self.team.job.collectives.staging.lock().push(staging);
        }
    }
}

/// How blocks are cut into pieces; the same at all members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    /// Bytes of a half of the staging memory.
    pub(super) half: u64,
    /// Bytes of a block that are staged at a time.
    pub(super) piece: u64,
}

impl Pieces {
    /// For `lanes` blocks at a time, in multiples of `grain` bytes.
    pub(super) fn new(lanes: u64, grain: u64) -> Pieces {
        let half = (STAGING / 2).max(lanes * grain);
        Pieces {
            half,
            piece: half / lanes / grain * grain,
        }
    }

    /// The bytes of a block of `len` that are staged in a round: from, to.
    pub(super) fn range(&self, round: u64, len: u64) -> (u64, u64) {
        let start = round * self.piece;
        (start.min(len), (start + self.piece).min(len))
    }

    /// Where the piece of a lane is in the staging memory.
    pub(super) fn place(&self, round: u64, lane: u64) -> u64 {
        (round & 1) * self.half + lane * self.piece
    }

    /// Rounds for blocks of up to `longest` bytes.
    pub(super) fn rounds(&self, longest: u64) -> u64 {
        longest.div_ceil(self.piece)
    }
}
