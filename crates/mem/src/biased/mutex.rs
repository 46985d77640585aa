//! The mutex under the bias: a futex, with a queue without starvation.
//!
//! ```text
//!   holder:  token of the thread that holds it, or 0 | SLEEPING | STARVED
//!   next, serving:  tickets; the thread whose ticket is served is the first in line
//!   releases:  the first in line sleeps here; it counts releases that found SLEEPING
//! ```
//!
//! A thread that arrives takes the mutex if it is free, even ahead of the queue: while a sleeper
//! wakes up, others can use the lock many times. The first in line allows that until it has been
//! woken once in vain; then it sets `STARVED`, and new arrivals have to queue. Behind the first in
//! line, threads are served in order of arrival, and the next one is woken as soon as the first has
//! the mutex.
//!
//! # Invariants
//! X1 `holder` goes from 0 to a token by a compare-exchange of that thread, and back by that
//!    thread: the critical sections of the mutex exclude each other, and each sees what earlier
//!    ones did.
//! X2 Only the first in line sets flags, so a set `SLEEPING` means that it sleeps or checks again.
//! X3 A thread that clears a token and finds `SLEEPING` increments `releases` and wakes. The first
//!    in line read `releases` before it set the flag, so it does not miss that.
//! X4 The first in line advances `serving` when it has the mutex; it then passes a full fence and
//!    checks for tickets. A thread takes its ticket, then sleeps on `serving`, which the kernel
//!    reads after a full fence: one of the two sees the other.

use super::thread;
use super::wait::{Backoff, Futex};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use std::num::NonZeroU32;

/// The first in line sleeps, or is about to.
const SLEEPING: u64 = 1;
/// The first in line was woken in vain: no thread may overtake it.
const STARVED: u64 = 2;
const FLAGS: u64 = thread::TOKENS - 1;

/// A mutex that identifies threads by their tokens.
#[derive(Debug)]
pub(super) struct FairMutex {
    holder: AtomicU64,
    next: AtomicU32,
    serving: Futex,
    releases: Futex,
    /// The process that the queue belongs to: twice the number of forks that led to it, plus one
    /// while the queue is being emptied.
    process: AtomicU64,
}

impl FairMutex {
    pub(super) fn new() -> FairMutex {
        FairMutex {
            holder: AtomicU64::new(0),
            next: AtomicU32::new(0),
            serving: Futex::new(),
            releases: Futex::new(),
            process: AtomicU64::new(2 * thread::forks()),
        }
    }

    /// Returns the token of the thread that holds the mutex.
    pub(super) fn holder(&self) -> u64 {
        // ORDERING: Relaxed: a thread only compares it with its own token, or checks for a fork.
        self.holder.load(Ordering::Relaxed) & !FLAGS
    }

    /// Returns true if a thread is in the queue.
    #[inline(always)]
    pub(super) fn is_wanted(&self) -> bool {
        // ORDERING: Relaxed: a hint; a thread that is missed now is seen soon.
        self.next.load(Ordering::Relaxed) != self.serving.load(Ordering::Relaxed)
    }

    /// Takes the mutex if it is free and no thread starves.
    pub(super) fn try_lock(&self, me: u64) -> bool {
        let now = self.holder.load(Ordering::Relaxed);
        let (taken, missed) = (Ordering::Acquire, Ordering::Relaxed);
        // ORDERING: Acquire pairs with the Release in `unlock` (X1).
        now & !SLEEPING == 0
            && (self.holder)
                .compare_exchange(now, me | now, taken, missed)
                .is_ok()
    }

    /// Takes the mutex, behind all threads that are in the queue now. Returns `false` if this
    /// process is a fork and a thread of its parent held the mutex: it will never be released.
    pub(super) fn queue(&self, me: u64) -> bool {
        self.adopt();
        let holder = self.holder();
        if holder != 0 && !thread::is_of_this_process(holder) {
            return false;
        }
        // ORDERING: Relaxed, ordered by the kernel's fence (X4).
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let mut backoff = Backoff::new();
        loop {
            // ORDERING: Acquire pairs with the advance below: the flags set by the previous first
            // in line are visible.
            let seen = self.serving.load(Ordering::Acquire);
            if seen == ticket {
                break;
            }
            if !backoff.again() {
                self.serving.wait(seen, bit(ticket));
            }
        }
        self.lock_as_first(me);
        // ORDERING: Release pairs with the Acquire above; the fence is X4's.
        let served = self.serving.advance();
        fence(Ordering::SeqCst);
        if self.next.load(Ordering::Relaxed) != served {
            self.serving.wake(bit(served));
        }
        true
    }

    fn lock_as_first(&self, me: u64) {
        let mut flags = SLEEPING;
        let mut backoff = Backoff::new();
        loop {
            // ORDERING: Acquire: the thread that incremented it has released the mutex before (X3).
            let seen = self.releases.load(Ordering::Acquire);
            let now = self.holder.load(Ordering::Relaxed);
            if now & !FLAGS == 0 {
                let (taken, missed) = (Ordering::Acquire, Ordering::Relaxed);
                // ORDERING: Acquire pairs with the Release in `unlock` (X1).
                if (self.holder)
                    .compare_exchange(now, me, taken, missed)
                    .is_ok()
                {
                    return;
                }
            } else if !backoff.again() {
                let (set, missed) = (Ordering::Release, Ordering::Relaxed);
                // ORDERING: Release pairs with the Acquire half of `unlock`'s `fetch_and` (X3).
                if (self.holder)
                    .compare_exchange(now, now | flags, set, missed)
                    .is_ok()
                {
                    self.releases.wait(seen, NonZeroU32::MAX);
                    flags = SLEEPING | STARVED;
                }
            }
        }
    }

    /// Releases the mutex, which this thread holds.
    pub(super) fn unlock(&self) {
        let now = self.holder.load(Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire of the next holder (X1).
        let (released, missed) = (Ordering::Release, Ordering::Relaxed);
        if now & FLAGS == 0
            && (self.holder)
                .compare_exchange(now, 0, released, missed)
                .is_ok()
        {
            return;
        }
        // ORDERING: AcqRel: Release as above, Acquire for X3.
        let before = self.holder.fetch_and(STARVED, Ordering::AcqRel);
        if before & SLEEPING != 0 {
            self.releases.advance();
            self.releases.wake(NonZeroU32::MAX);
        }
    }

    /// In a fork, removes the threads of the parent from the queue; they do not exist here.
    fn adopt(&self) {
        let ours = 2 * thread::forks();
        loop {
            // ORDERING: Acquire pairs with the Release below: the queue is empty.
            let then = self.process.load(Ordering::Acquire);
            if then == ours {
                return;
            }
            let (claimed, missed) = (Ordering::Relaxed, Ordering::Relaxed);
            if then == ours + 1 {
                std::thread::yield_now();
            } else if (self.process)
                .compare_exchange(then, ours + 1, claimed, missed)
                .is_ok()
            {
                break;
            }
        }
        // All other threads that want to queue wait above.
        while self.next.load(Ordering::Relaxed) != self.serving.load(Ordering::Relaxed) {
            self.serving.advance();
        }
        self.holder.fetch_and(!FLAGS, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire load above, in the next thread that adopts it.
        self.process.store(ours, Ordering::Release);
    }
}

/// Returns the wake-up bit of a ticket. About one in 32 of the other sleepers shares it.
fn bit(ticket: u32) -> NonZeroU32 {
    NonZeroU32::new(1 << (ticket % 32)).unwrap_or(NonZeroU32::MIN)
}
