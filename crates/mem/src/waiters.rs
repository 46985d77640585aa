//! The threads that wait under one lock for arrivals, and the choice of the one that handles them.
//!
//! One of them is the driver: it handles what arrives, and sleeps on a doorbell. The others are
//! parked; a thread is woken when another one takes what it waits for, or when it is to drive. This
//! is plain data, protected by the lock that they share ([`Biased`](crate::Biased)); the model in
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
//! E1 While a thread is parked, the state is not `Nobody`.
//! E2 `Called`: a thread that is not parked will call `drive`, which makes it the driver, or `end`,
//!    which calls the next one. It is the thread that was woken for this, or the driver that has
//!    stepped out.
//! E3 A thread that takes something that arrived calls `tell`. This wakes the parked threads
//!    concerned, and counts as news for threads that are checking: a thread neither parks nor
//!    sleeps if something was taken after its last check ([`Waiters::has_news`]).
//! E4 The driver sleeps without the lock. A thread that leaves work for the driver finds `Asleep`,
//!    and rings.

use crate::sync::thread::{Thread, current};

/// The waiting threads; `K` says what a parked one waits for.
#[derive(Debug)]
pub struct Waiters<K> {
    driver: Driver,
    parked: Vec<Parked<K>>,
    /// The number of the thread that was parked last.
    last: u64,
    /// How many times something was taken (E3).
    news: u64,
}

/// Which thread handles arrivals.
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

/// One waiting thread, from the beginning of its wait to its end.
#[derive(Debug, Default)]
pub struct Waiter {
    drives: bool,
    has_rested: bool,
    /// The news at its last check.
    seen: u64,
}

impl Waiter {
    /// Returns true if it has driven or been parked, so that the others must learn of the end of
    /// its wait.
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
    /// Returns true if no thread waits (E1): any thread may take what arrives.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.driver == Driver::Nobody
    }

    /// Returns true if the driver sleeps, and has to be rung when it has work (E4).
    #[inline(always)]
    pub fn is_asleep(&self) -> bool {
        self.driver == Driver::Asleep
    }

    /// Returns the number of parked threads.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Records that the thread checks now for what it waits for.
    #[inline(always)]
    pub fn look(&self, waiter: &mut Waiter) {
        waiter.seen = self.news;
    }

    /// Returns true if something was taken since the thread's last check.
    #[inline(always)]
    pub fn has_news(&self, waiter: &Waiter) -> bool {
        self.news != waiter.seen
    }

    /// Records that something was taken, and wakes the parked threads that it concerns. Returns
    /// true if the driver has to be rung.
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

    /// Makes a thread that has not found what it waits for the driver, unless there is one.
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

    /// Lets the driver do something else without the lock; it checks again afterwards. If another
    /// thread calls `drive` meanwhile, that thread becomes the driver.
    pub fn step_out(&mut self, waiter: &mut Waiter) {
        if std::mem::take(&mut waiter.drives) {
            self.driver = Driver::Called;
        }
    }

    /// Records that the driver goes to sleep.
    pub fn sleep(&mut self) {
        self.driver = Driver::Asleep;
    }

    /// Records that the driver is awake again.
    pub fn wake(&mut self) {
        self.driver = Driver::Awake;
    }

    /// Adds this thread to the parked ones and returns its number. The thread then unlocks, parks
    /// itself and calls [`Waiters::unpark`].
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

    /// Removes the thread with this number from the parked ones, however it was woken.
    pub fn unpark(&mut self, id: u64) {
        self.parked.retain(|parked| parked.id != id);
    }

    /// Ends the wait of a thread that has rested: if no other thread drives, a parked one is called
    /// (E2).
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
