//! Both sides copy one message: the receiver from the front, the sender from the back.
//!
//! One word of shared memory divides the pieces; the side that takes a piece copies it. A side that
//! does not take part (the sender computes) costs nothing: the other one takes all pieces. After
//! "Cooperative Rendezvous Protocols" (Chakraborty et al., SC18).
//!
//! ```text
//!   | front taken (16) | back taken (16) | revoked (1) | spoilt (1) ... | back done (16) |
//! ```
//!
//! # Invariants
//! C1 `front + back <= pieces`: a piece is taken by one compare-exchange, hence by one side.
//! C2 `back_done <= back`; the receiver is finished when `front + back == pieces` and
//!    `back_done == back`, so that no write by the sender is outstanding when its buffer is
//!    released.
//! C3 After [`Claim::spoil`] (the sender took a piece and could not copy it), the message is never
//!    finished: it must be moved again, as a whole, another way.
//! C4 After [`Claim::revoke`], neither side takes a piece; a piece that the sender is copying still
//!    counts (C2).

use crate::sync::{AtomicU64, Ordering, fence};

/// The word that both sides share.
#[derive(Debug)]
pub struct Claim<'a> {
    word: &'a AtomicU64,
    pieces: u64,
}

/// Maximum number of pieces of a message.
pub const PIECES_MAX: u64 = 0x7fff;

/// Returns the size of a piece, in bytes. Besides its bytes, each system call costs the two sides,
/// which access each other's address space, one to three microseconds, whatever the size; so pieces
/// are large. There are at least two, so that both sides can take part, and more for large
/// messages, so that a late sender still helps.
pub const fn piece(bytes: u64) -> u64 {
    let quarter = bytes / 4;
    if quarter < 32 << 10 {
        32 << 10
    } else if quarter > 256 << 10 {
        256 << 10
    } else {
        quarter
    }
}

const FRONT: u64 = 1;
const BACK: u64 = 1 << 16;
const REVOKED: u64 = 1 << 32;
const SPOILT: u64 = 1 << 33;
const BACK_DONE: u64 = 1 << 48;

fn front(word: u64) -> u64 {
    word & 0xffff
}
fn back(word: u64) -> u64 {
    (word >> 16) & 0xffff
}
fn back_done(word: u64) -> u64 {
    word >> 48
}

impl<'a> Claim<'a> {
    /// Creates a view of the word of a message of `pieces` pieces; the word starts as zero.
    pub fn new(word: &'a AtomicU64, pieces: u64) -> Self {
        assert!(
            pieces <= PIECES_MAX,
            "a message is divided into at most {PIECES_MAX} pieces"
        );
        Claim { word, pieces }
    }

    fn take(&self, step: u64) -> Option<u64> {
        // ORDERING: Acquire pairs with the AcqRel changes of the other side, as in every load here.
        let mut seen = self.word.load(Ordering::Acquire);
        loop {
            if seen & (REVOKED | SPOILT) != 0 || front(seen) + back(seen) >= self.pieces {
                return None;
            }
            // ORDERING: AcqRel; this word orders the winners of the two sides (C1).
            match self
                .word
                .compare_exchange(seen, seen + step, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(seen),
                Err(now) => seen = now,
            }
        }
    }

    /// Receiver: takes the next piece from the front.
    pub fn take_front(&self) -> Option<u64> {
        self.take(FRONT).map(front)
    }

    /// Sender: takes the next piece from the back.
    pub fn take_back(&self) -> Option<u64> {
        self.take(BACK).map(|seen| self.pieces - 1 - back(seen))
    }

    /// Sender: records that its piece is copied.
    pub fn done_back(&self) {
        // ORDERING: Release pairs with the Acquire load in `finished` (C2).
        self.word.fetch_add(BACK_DONE, Ordering::AcqRel);
    }

    /// Sender: records that it cannot copy a piece that it took (C3). [`Claim::done_back`] must
    /// follow.
    pub fn spoil(&self) {
        self.word.fetch_or(SPOILT, Ordering::AcqRel);
    }

    /// Returns true if the sender could not copy a piece that it took.
    pub fn spoilt(&self) -> bool {
        self.word.load(Ordering::Acquire) & SPOILT != 0
    }

    /// Stops both sides from taking further pieces (C4).
    pub fn revoke(&self) {
        // ORDERING: AcqRel pairs with the Acquire loads of `take` and `revoked`.
        self.word.fetch_or(REVOKED, Ordering::AcqRel);
        // ORDERING: Release: what the caller writes into its buffer next is not visible before the
        // bit. Pairs with the Acquire fence between the receiver's copy and its last check.
        fence(Ordering::Release);
    }

    /// Returns true if the message was revoked before all pieces were taken.
    pub fn revoked(&self) -> bool {
        // ORDERING: Acquire pairs with `revoke`.
        self.word.load(Ordering::Acquire) & REVOKED != 0
    }

    /// Receiver: returns true if the message was revoked before the bytes that this side has just
    /// read: they may include bytes that the sender wrote afterwards.
    pub fn revoked_after_reading(&self) -> bool {
        // ORDERING: Acquire: the loads of the bytes come before this check of the word. Pairs with
        // the Release fence in `revoke`.
        fence(Ordering::Acquire);
        self.revoked()
    }

    /// Receiver: returns true if the sender is not copying a piece (C2).
    pub fn quiet(&self) -> bool {
        // ORDERING: Acquire pairs with `done_back`: the sender's bytes are visible.
        let seen = self.word.load(Ordering::Acquire);
        back_done(seen) == back(seen)
    }

    /// Receiver: returns true if all pieces are copied (C2).
    pub fn finished(&self) -> bool {
        // ORDERING: Acquire pairs with `done_back`: the sender's bytes are visible.
        let seen = self.word.load(Ordering::Acquire);
        seen & SPOILT == 0
            && front(seen) + back(seen) == self.pieces
            && back_done(seen) == back(seen)
    }

    /// Receiver, after it has copied a piece: returns true if the message is complete, and none of
    /// its bytes can have been written after the sender revoked it.
    pub fn intact(&self) -> bool {
        !self.revoked_after_reading() && self.finished()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn two_sides_take_every_piece_once() {
        let word = AtomicU64::new(0);
        let mut seen = BTreeSet::new();
        let claim = Claim::new(&word, 5);
        seen.extend(claim.take_front());
        while let Some(piece) = claim.take_back() {
            assert!(seen.insert(piece));
            assert!(!claim.finished());
            claim.done_back();
        }
        assert_eq!(seen, (0..5).collect());
        assert!(claim.finished() && claim.take_front().is_none());
    }

    #[test]
    fn after_a_revocation_nobody_takes_a_piece() {
        let word = AtomicU64::new(0);
        let claim = Claim::new(&word, 5);
        assert_eq!(claim.take_back(), Some(4));
        claim.revoke();
        assert_eq!((claim.take_front(), claim.take_back()), (None, None));
        assert!(claim.revoked() && !claim.quiet());
        claim.done_back();
        assert!(claim.quiet() && !claim.finished());
    }
}
