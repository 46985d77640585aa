//! Floor 1: memory that several processes of one node write at the same time.
//!
//! On the data path, this crate is the only one with `unsafe`. It knows nothing of units, tags or
//! protocols. It offers a mapping, bytes in it, rings, a doorbell and ways to copy; each is safe to
//! call whatever the process on the other side does.
//!
//! # Core objects
//! * [`Arena`]: one sealed, sparse memfd per domain, mapped once by every process of the node. Its
//!   size is the memory budget: nothing beyond it can ever be allocated.
//! * [`Published`]: memory that one process writes and that the kernel lets all others only read.
//! * [`SharedBytes`]: a range of the arena. Bytes are copied in and out or accessed as atomics;
//!   there is no `&[u8]` to memory that another process can write. [`SharedWords`] are its words,
//!   for chains of loads.
//! * [`Heap`]: the blocks of one process in the arena; it grows by extents and gives them back.
//! * [`ring`]: one producer, one consumer, frames of any size, one release store to publish.
//! * [`Doorbell`]: notifies a consumer and lets it sleep, on a futex or on file descriptors, at
//!   almost no cost to the producer.
//! * [`Biased`]: a lock that costs almost nothing for the thread that uses it most. [`Waiters`]:
//!   the threads that wait under it; one of them checks for arrivals on behalf of all.
//! * [`copy`]: kernel copy, cooperative copy, a copy that bypasses the caches. [`copy::calibrate`]
//!   measures the first two.
//! * [`lease`]: a borrow that holds across processes: `&mut [T]` for the owner, `&[T]` for readers.
//! * [`lend`]: buffers of the caller that an operation in flight may touch.
//!
//! # Files
//! `sync` (atomics, loom seam) · `arena` · `published` · `shared/{mod, words}` · `heap` · `ring` ·
//! `claims` · `doorbell/{mod, socket}` · `lease/{mod, words, holder, owner}` · `lend` · `pages` ·
//! `biased/{mod, mutex, wait, thread}` · `waiters` · `copy/{mod, kernel, cooperative, calibrate,
//! aside}` · `host` (facts about the machine) · `size` (sizes with units) · `code` (error numbers)
//! · `stack` (of a thread) · `sys` (system calls)
//!
//! # Rules
//! M1 A mapping lives until the last [`SharedBytes`] of it is dropped; every pointer in this crate
//!    is derived from a live mapping and stays inside it (checked when the range is made).
//! M2 Shared bytes are read and written by atomics or by copies of plain bytes (`u8` has no invalid
//!    value); a copy that races with another process yields unspecified bytes, never a reference.
//!    The one exception is a [`lease`] in a mode which proves that no other process writes. Rust
//!    does not define racing copies by two threads of this process. The crate relies on the
//!    compiler to turn a `ptr::copy` of bytes behind a raw pointer into a `memcpy`, or into loads
//!    and stores, and to conclude nothing from it: a copy by atomics would take several times as
//!    long.
//! M3 The memfd is sealed against shrinking before its descriptor leaves the process, so that no
//!    page of a mapping can vanish (no `SIGBUS`). The pages of blocks and of published memory are
//!    allocated before they are handed out; other ranges of an arena are sparse. A fork shares none
//!    of its parent's memory: writable mappings are private zeroes there.
//! M4 A buffer lent to an operation is recalled before its borrow ends ([`lend`]).
//! M5 Data read from a ring or a table of another process is copied once, then checked; a bad value
//!    is [`Corrupt`], never a panic or an access out of range.
//! M6 A range keeps what entitles this process to use it: a block returns to its heap, and a
//!    [`lease`] ends, with the last clone or part of the range. Memory that another process owns is
//!    accessed under a lease. The owner reuses it, or gives it back, only when no lease is out.
//!    Other ranges of an arena (tables, rings) overlap neither blocks nor leased memory of this
//!    process (`claims`).
//!
//! ```
//! use samite_mem::Arena;
//! let arena = Arena::create(1 << 20).unwrap();
//! let bytes = arena.bytes(4096, 64).unwrap();
//! bytes.write(0, b"woven");
//! let mut back = [0; 5];
//! bytes.read(0, &mut back);
//! assert_eq!(&back, b"woven");
//! ```

#[cfg(not(loom))]
mod arena;
mod biased;
#[cfg(not(loom))]
mod claims;
mod code;
pub mod copy;
mod doorbell;
#[cfg(not(loom))]
mod heap;
#[cfg(not(loom))]
pub mod host;
pub mod lease;
#[cfg(not(loom))]
pub mod lend;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod published;
pub mod ring;
#[cfg(not(loom))]
mod shared;
mod size;
#[cfg(not(loom))]
mod stack;
pub mod sync;
#[cfg(not(loom))]
mod sys;
mod waiters;

#[cfg(not(loom))]
pub use arena::Arena;
pub use biased::{Biased, Guard};
pub use code::{ErrorCode, debug_error};
#[cfg(not(loom))]
pub use doorbell::WakeSocket;
pub use doorbell::{BellWords, DOORBELL_BYTES, Doorbell, NEWS_WORDS, PEERS_MAX, Sleep};
#[cfg(not(loom))]
pub use heap::{Block, ExtentSource, Growing, Heap};
#[cfg(not(loom))]
pub use pages::Pages;
#[cfg(not(loom))]
pub use published::{Published, Publisher};
#[cfg(not(loom))]
pub use shared::{Blocks, Origin, SharedBytes, SharedWords};
pub use size::Bytes;
#[cfg(not(loom))]
pub use stack::stack_left;
#[cfg(not(loom))]
pub use sys::{OwnerProcess, PeerCredentials, enable_asymmetric_fences, peer_credentials};
pub use waiters::{Waiter, Waiters};

/// A cache line; two of them are one sector of the adjacent-line prefetcher.
pub const LINE: u64 = 64;

/// A range of an arena, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Span {
    /// The first byte after the range.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// Invalid data written by another process (rule M5).
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} has the impossible value {value}")]
pub struct Corrupt {
    /// The field.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
}

impl std::fmt::Debug for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Failures of memory.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request exceeds the budget of the domain.
    #[error(
        "{asked} bytes were requested, and {used} of the budget of {budget} bytes are in use; \
         free segments or raise memory.budget"
    )]
    Budget {
        /// Bytes requested.
        asked: u64,
        /// Bytes in use by all processes of the domain.
        used: u64,
        /// The budget, in bytes.
        budget: u64,
    },
    /// A range reaches outside the arena or segment.
    #[error("bytes {offset}..{end} lie outside a range of {bytes} bytes")]
    OutOfRange {
        /// First byte requested.
        offset: u64,
        /// One past the last byte requested.
        end: u64,
        /// Length of the range.
        bytes: u64,
    },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// Another process's description of its memory is invalid.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The agent, which grants extents, could not be reached or refused.
    #[error("the agent granted no more shared memory: {0}")]
    NoGrant(String),
    /// This process is a fork of the one that owns the memory.
    #[error("this process is a fork of the one that owns the memory, and cannot use it")]
    Forked,
}

error_codes!(Error, "mem", {
    Budget = 100, OutOfRange = 101, System = 102, Corrupt = 103, NoGrant = 104, Forked = 105,
});

impl Error {
    #[cfg(not(loom))]
    pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::System {
            call,
            source: errno.into(),
        }
    }
}
