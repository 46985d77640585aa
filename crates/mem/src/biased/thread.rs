//! Which thread this is, and which threads a fork has left behind.
//!
//! # Invariants
//! T1 A token is given to one thread and never to another one: it is a multiple of [`TOKENS`], not
//!    0 and below [`u64::MAX`], so that a lock can add flags or an index to it.
//! T2 In a fork the only threads are the one that called `fork`, which keeps its token, and those
//!    that started afterwards, whose tokens are at least [`FIRST`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The distance between two tokens: what a lock may add to one is smaller.
pub(super) const TOKENS: u64 = 32;

// The words of this file are counters that no memory is reached through; the model has no forks.
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

/// The token of this thread, or 0 if it has none yet.
#[inline(always)]
pub(super) fn token() -> u64 {
    TOKEN.with(Cell::get)
}

/// The token of this thread, which gets one with the first call.
pub(super) fn token_or_new() -> u64 {
    TOKEN.with(|token| {
        if token.get() == 0 {
            // ORDERING: Relaxed: only that all are different counts.
            token.set(NEXT.fetch_add(TOKENS, Ordering::Relaxed));
        }
        token.get()
    })
}

/// Whether the thread with this token is, or was, one of this process: false for the threads of
/// the parent process that a fork does not have.
pub(super) fn is_of_this_process(token: u64) -> bool {
    // ORDERING: Relaxed: both change only in a fork, before it has a second thread.
    token >= FIRST.load(Ordering::Relaxed) || token == SURVIVOR.load(Ordering::Relaxed)
}

/// How often the processes that led to this one have forked.
pub(super) fn forks() -> u64 {
    #[cfg(not(loom))]
    return crate::sys::forks();
    #[cfg(loom)]
    0
}

/// Called in a fork before `fork` returns there: T2.
#[cfg(not(loom))]
pub(crate) fn forked() {
    // ORDERING: Relaxed: there is one thread.
    FIRST.store(NEXT.load(Ordering::Relaxed), Ordering::Relaxed);
    SURVIVOR.store(token(), Ordering::Relaxed);
}
