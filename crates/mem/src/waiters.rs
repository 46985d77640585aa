//! The threads that wait under one lock for what arrives, and which of them takes it for all.
//!
//! One of them drives: it looks at what arrives, and sleeps on a doorbell. The others are parked;
//! each is woken by whoever takes what it waits for, or when it is its turn to drive. This is plain
//! data, protected by the lock that they share ([`Biased`](crate::Biased)); the model in
//! `tests/loom/waiters.rs` runs this code.
//!
//! ```text
//!           drive             sleep
//!   Nobody ------> Awake <-----------> Asleep
//!     ^            |   ^      wake
//!     |  step_out, |   |
//!     |        end |   | drive
//!     |            v   |
//!     +---------- Called
//!       end, with no thread parked
//! ```
//!
//! # Invariants
//! E1 While a thread is parked the state is not `Nobody`.
//! E2 `Called`: a thread that is not parked will call `drive`, which makes it the driver, or `end`,
//!    which calls the next one. It is the thread that was woken for it, or the driver that has
//!    stepped out.
//! E3 Whoever takes something that arrived calls `tell`. That wakes the parked threads it concerns,
//!    and counts it for those that look at that moment: a thread neither parks nor sleeps if
//!    something was taken after its last look ([`Waiters::has_news`]).
//! E4 The driver sleeps without the lock. A thread that leaves it something to do finds `Asleep`,
//!    and rings.

use crate::sync::thread::{Thread, current};

/// The threads that wait; `K` says what a parked one waits for.
#[derive(Debug)]
pub struct Waiters<K> {
    driver: Driver,
    parked: Vec<Parked<K>>,
    /// The number of the last one that was parked.
    last: u64,
    /// How often something was taken (E3).
    news: u64,
}

/// Who looks at what arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Driver {
    #[default]
    Nobody,
    Called,
    Awake,
    Asleep,
}

#[derive(Debug)]
struct Parked<K> {
    id: u64,
    thread: Thread,
    key: K,
}

/// One thread that waits, from the beginning of its wait to its end.
#[derive(Debug, Default)]
pub struct Waiter {
    drives: bool,
    has_rested: bool,
    /// The news at its last look.
    seen: u64,
}

impl Waiter {
    /// Whether it has driven or been parked, so that its wait has an end that others must hear of.
    pub fn has_rested(&self) -> bool {
        self.has_rested
    }
}

impl<K> Default for Waiters<K> {
    fn default() -> Self {
        Waiters {
            driver: Driver::Nobody,
            parked: Vec::new(),
            last: 0,
            news: 0,
        }
    }
}

impl<K> Waiters<K> {
    /// Whether no thread waits (E1): what arrives is for whoever takes it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.driver == Driver::Nobody
    }

    /// Whether the driver sleeps, and has to be rung for what is left to it (E4).
    #[inline(always)]
    pub fn is_asleep(&self) -> bool {
        self.driver == Driver::Asleep
    }

    /// How many threads are parked.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The thread will look now at what it waits for.
    #[inline(always)]
    pub fn look(&self, waiter: &mut Waiter) {
        waiter.seen = self.news;
    }

    /// Whether something was taken since the thread looked last.
    #[inline(always)]
    pub fn has_news(&self, waiter: &Waiter) -> bool {
        self.news != waiter.seen
    }

    /// Something was taken: wakes the parked threads that it concerns. Returns whether the driver
    /// is to be rung.
    #[inline(always)]
    pub fn tell(&mut self, concerns: impl FnMut(&K) -> bool) -> bool {
        self.news += 1;
        if !self.parked.is_empty() {
            self.wake_those(concerns);
        }
        self.is_asleep()
    }

    #[cold]
    fn wake_those(&mut self, mut concerns: impl FnMut(&K) -> bool) {
        let woken = self.parked.extract_if(.., |parked| concerns(&parked.key));
        woken.for_each(|parked| parked.thread.unpark());
    }

    /// A thread that has not found what it waits for: it is the driver from now on, unless another
    /// one is.
    #[inline(always)]
    pub fn drive(&mut self, waiter: &mut Waiter) -> bool {
        waiter.has_rested = true;
        if !waiter.drives {
            if matches!(self.driver, Driver::Awake | Driver::Asleep) {
                return false;
            }
            waiter.drives = true;
            self.driver = Driver::Awake;
        }
        true
    }

    /// The driver does something else without the lock, and looks again after it. If another thread
    /// comes to drive meanwhile, that one drives.
    pub fn step_out(&mut self, waiter: &mut Waiter) {
        if std::mem::take(&mut waiter.drives) {
            self.driver = Driver::Called;
        }
    }

    /// The driver goes to sleep.
    pub fn sleep(&mut self) {
        self.driver = Driver::Asleep;
    }

    /// The driver is awake again.
    pub fn wake(&mut self) {
        self.driver = Driver::Awake;
    }

    /// Enters this thread among the parked. It unlocks, parks itself and calls [`Waiters::unpark`].
    /// Returns its number.
    pub fn park(&mut self, key: K) -> u64 {
        debug_assert!(!self.is_empty(), "E1");
        self.last += 1;
        self.parked.push(Parked {
            id: self.last,
            thread: current(),
            key,
        });
        self.last
    }

    /// The thread with this number is not parked any more, whoever woke it.
    pub fn unpark(&mut self, id: u64) {
        self.parked.retain(|parked| parked.id != id);
    }

    /// The wait of a thread that has rested is over: if no other thread drives, one that is parked
    /// is called (E2).
    pub fn end(&mut self, waiter: &mut Waiter) {
        if std::mem::take(&mut waiter.drives)
            || !matches!(self.driver, Driver::Awake | Driver::Asleep)
        {
            self.driver = match self.parked.pop() {
                Some(next) => {
                    next.thread.unpark();
                    Driver::Called
                }
                None => Driver::Nobody,
            };
        }
    }
}
