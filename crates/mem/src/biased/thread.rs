//! Identity of the calling thread, and of threads that a fork has left behind.
//!
//! # Invariants
//! T1 A token is given to one thread and never reused: it is a multiple of [`TOKENS`], not 0 and
//!    below [`u64::MAX`], so that a lock can add flags or an index to it.
//! T2 In a fork, the only threads are the one that called `fork`, which keeps its token, and those
//!    that started afterwards, whose tokens are at least [`FIRST`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The distance between two tokens; what a lock adds to a token is smaller.
pub(super) const TOKENS: u64 = 32;

// The words of this file are counters that guard no memory; the model has no forks.
static NEXT: AtomicU64 = AtomicU64::new(TOKENS);
static FIRST: AtomicU64 = AtomicU64::new(0);
static SURVIVOR: AtomicU64 = AtomicU64::new(0);

#[cfg(not(loom))]
std::thread_local! {
    static TOKEN: Cell<u64> = const { Cell::new(0) };
}
#[cfg(loom)]
loom::thread_local! {
    static TOKEN: Cell<u64> = Cell::new(0);
}

/// Returns the token of this thread, or 0 if it has none yet.
#[inline(always)]
pub(super) fn token() -> u64 {
    TOKEN.with(Cell::get)
}

/// Returns the token of this thread; the first call assigns one.
pub(super) fn token_or_new() -> u64 {
    TOKEN.with(|token| {
        if token.get() == 0 {
            // ORDERING: Relaxed: only uniqueness matters.
            token.set(NEXT.fetch_add(TOKENS, Ordering::Relaxed));
        }
        token.get()
    })
}

/// Returns true if the thread with this token is, or was, a thread of this process; false for
/// threads of the parent process that a fork does not have.
pub(super) fn is_of_this_process(token: u64) -> bool {
    // ORDERING: Relaxed: both change only in a fork, before it has a second thread.
    token >= FIRST.load(Ordering::Relaxed) || token == SURVIVOR.load(Ordering::Relaxed)
}

/// Returns the number of forks that led to this process.
pub(super) fn forks() -> u64 {
    #[cfg(not(loom))]
    return crate::sys::forks();
    #[cfg(loom)]
    0
}

/// Called in a fork before `fork` returns there (T2).
#[cfg(not(loom))]
pub(crate) fn forked() {
    // ORDERING: Relaxed: there is one thread.
    FIRST.store(NEXT.load(Ordering::Relaxed), Ordering::Relaxed);
    SURVIVOR.store(token(), Ordering::Relaxed);
}
