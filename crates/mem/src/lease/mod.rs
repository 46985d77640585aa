//! Leases: how bytes that another process owns are reached, and what makes that safe.
//!
//! A segment is memory of one process that others use: a block of the arena, or private memory that
//! the kernel copies. Beside its description in the owner's directory stand words that say how it
//! may be used now, and by whom it is ([`Entry`]):
//!
//! ```text
//!   Open      everybody copies in and out (SharedBytes); no references
//!   Reading   everybody may have `&[T]`; nobody writes
//!   Closed    the owner alone: `&mut [T]`; nobody is inside and nobody gets in
//!   Exclusive one borrower alone, in whatever process: `&mut [T]`; not the owner
//! ```
//! It is a `RefCell` that holds across processes. Whoever reaches the bytes has a lease: a bit of
//! its process in shared memory, counted in the process ([`Holder`]). The owner turns the mode,
//! uses the memory for something else or gives it back only when no lease is out. The agent clears
//! the bits of a process that has died; those of one that left while some of its leases were out
//! stay until they end, or it does.
//!
//! # Invariants
//! G1 Ranges of a segment are made here only, with a [`Lease`] each: it is part of the range's
//!    mapping, which all clones and parts share. An arena refuses other ranges of leased memory
//!    (K1, K2 of `claims`).
//! G2 A lease is given in one mode, and no mode is left while a lease is out (W1, W2 of `words`).
//!    So in `Closed` there is no range at all, and in `Reading` there are only [`Readable`] ones.
//! G3 Only one [`Exclusive`] exists: it is made by the turn to `Closed`, by the owner, who has the
//!    only [`LeasedBlock`]. In `Exclusive` there is one [`Exclusive`] at most (W5), and it cannot
//!    be cloned.
//! G4 The memory of a [`LeasedBlock`] has no other range: it comes from a `Growing` block or a
//!    vector, which had none, and is not handed out but with a lease.
//! G5 A [`LeasedBlock`] that is dropped while a lease is out is withdrawn, and its memory is never
//!    used again by this process. Who wants it back keeps the block and tries again
//!    ([`LeasedBlock::end`]).

mod words;

pub use words::{ENTRY_BYTES, Entry, Mode, Seen, Words, is_offered};

#[cfg(not(loom))]
mod holder;
#[cfg(not(loom))]
mod owner;

#[cfg(not(loom))]
pub use holder::{ExclusiveLease, Holder, Lease, Readable, Shared};
#[cfg(not(loom))]
pub use owner::{Exclusive, LeasedBlock, OwnEntry};
