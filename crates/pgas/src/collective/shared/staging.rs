//! Memory that slices go through, piece by piece.
//!
//! ```text
//!   giver   fill half 0 | meet | (take) | fill half 1 | meet | (take) | fill half 0 | meet ...
//!   taker               | meet | take 0 |             | meet | take 1 |
//! ```
//! With a giver and a taker on a core each, one fills a piece while the other one takes the piece before.

use crate::team::Inner;
use crate::{GlobalPtr, Result};
use samite_mem::SharedBytes;

/// Staging memory of this unit, for all its teams: one call uses it at a time, and a call ends when
/// nobody is at it any more. Where that cannot be known it is taken out of use, and never freed.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    pub(super) pointer: GlobalPtr<u8>,
    pub(super) bytes: SharedBytes,
}

/// Bytes of the staging memory, unless elements are larger: it stays in the second-level cache.
pub(super) const STAGING: u64 = 1 << 20;

/// Staging memory of at least so many bytes.
pub(super) fn staging(team: &Inner, bytes: u64) -> Result<Staging> {
    let job = &team.job;
    let mut kept = job.collectives.staging.borrow_mut();
    if let Some(staging) = kept.as_ref().filter(|kept| kept.bytes.len() >= bytes) {
        return Ok(staging.clone());
    }
    if let Some(small) = kept.take() {
        job.free(small.pointer)?;
    }
    let bytes = bytes.max(STAGING);
    let pointer = job.allocate::<u8>(bytes)?;
    // Own memory is mapped, or there is no board.
    let mapped = job.mapped(pointer, bytes)?;
    let bytes = mapped.ok_or_else(|| crate::job::bad(pointer))?;
    Ok(kept.insert(Staging { pointer, bytes }).clone())
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
