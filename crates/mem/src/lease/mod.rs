//! Leases: how a process accesses bytes that another process owns, and what makes that safe.
//!
//! A segment is memory of one process that others use: a block of the arena, or private memory that
//! the kernel copies. Its entry in the owner's directory describes it and has words that say how it
//! may be used now, and by which processes it is used ([`Entry`]):
//!
//! ```text
//!   Open      all processes copy in and out (SharedBytes); no references
//!   Reading   all processes may have `&[T]`; none writes
//!   Closed    the owner alone: `&mut [T]`; no other process has access or can get it
//!   Exclusive one borrower alone, in any process: `&mut [T]`; not the owner
//! ```
//! A borrower may let others read what it has written, `Reading`, and take it back for itself when
//! nobody reads it: [`ExclusiveLease::publish`], [`Published::retract`].
//!
//! It is a `RefCell` that holds across processes. A process that accesses the bytes has a lease: a
//! bit in shared memory for the process, and a count in the process ([`Holder`]). The owner changes
//! the mode, reuses the memory or gives it back only when no lease is out. The agent clears the
//! bits of a process that has died. If a process leaves the domain while some of its leases are
//! out, their bits stay until the leases end or the process does.
//!
//! # Invariants
//! G1 Ranges of a segment are created only here, each with a [`Lease`] that is part of the range's
//!    mapping, which all clones and parts share. An arena refuses other ranges of leased memory
//!    (K1, K2 of `claims`).
//! G2 A lease is granted in one mode, and no mode ends while a lease is out (W1, W2 of `words`). So
//!    in `Closed` there is no range at all, and in `Reading` there are only [`Readable`] ones.
//! G3 In `Closed`, only one [`ClosedBlock`] exists: the owner, which has the only [`LeasedBlock`],
//!    creates it when it changes the mode to `Closed`. In `Exclusive` there is at most one
//!    [`ExclusiveLease`] (W5), and it cannot be cloned. It becomes a [`Published`] one, which gives
//!    no access to the bytes, before others read them, and comes back when nobody does (W6).
//! G4 The memory of a [`LeasedBlock`] has no other range: it comes from a `Growing` block or a
//!    vector, which had none, and is handed out only with a lease.
//! G5 A [`LeasedBlock`] that is dropped while a lease is out is withdrawn, and this process never
//!    uses its memory again. To get the memory back, the owner keeps the block and tries again
//!    ([`LeasedBlock::end`]).
//! G6 Any process can write the words of an entry, so they do not decide what the threads of one
//!    process may do together. The table of its [`Holder`], which only that process writes, has the
//!    mode of each segment that it owns or has leases on. The holder grants leases in that mode
//!    only, and never a second [`ExclusiveLease`]. The mode does not change while it counts a
//!    lease other than that of the borrower.

mod words;

pub use words::{ENTRY_BYTES, Entry, Mode, Seen, Words, is_offered};

#[cfg(not(loom))]
mod holder;
#[cfg(not(loom))]
mod owner;

#[cfg(not(loom))]
pub use holder::{ExclusiveLease, Holder, Lease, Published, Readable, Shared};
#[cfg(not(loom))]
pub use owner::{ClosedBlock, LeasedBlock, OwnEntry};
