//! How a thread waits for another one of its process: first awake for a short time, then asleep on
//! a word.

use crate::sync::{AtomicU32, Ordering};

/// A count that threads of this process sleep on until it changes.
#[derive(Debug)]
pub(super) struct Futex {
    count: AtomicU32,
    /// The kernel in the model: the lock under which a sleeper reads the count and falls asleep,
    /// and the bits of all wake-ups so far.
    #[cfg(loom)]
    kernel: (loom::sync::Mutex<Vec<u32>>, loom::sync::Condvar),
}

impl Futex {
    pub(super) fn new() -> Futex {
        Futex {
            count: AtomicU32::new(0),
            #[cfg(loom)]
            kernel: Default::default(),
        }
    }

    #[inline(always)]
    pub(super) fn load(&self, ordering: Ordering) -> u32 {
        self.count.load(ordering)
    }

    /// Increments the count and returns it. A thread that loads the new count with Acquire sees
    /// what this thread did before.
    pub(super) fn advance(&self) -> u32 {
        // ORDERING: Release pairs with the Acquire loads of this crate's waiters.
        self.count.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    /// Sleeps if the count is `seen`, until a wake-up that shares a bit with `bits`; may wake up
    /// spuriously.
    #[cfg(not(loom))]
    pub(super) fn wait(&self, seen: u32, bits: std::num::NonZeroU32) {
        use rustix::thread::futex;
        // Another count, a signal, a wake-up: the caller checks again.
        let _ = futex::wait_bitset(&self.count, futex::Flags::PRIVATE, seen, None, bits);
    }

    /// Wakes the sleepers that share a bit with `bits`.
    #[cfg(not(loom))]
    pub(super) fn wake(&self, bits: std::num::NonZeroU32) {
        use rustix::thread::futex;
        let _ = futex::wake_bitset(&self.count, futex::Flags::PRIVATE, i32::MAX as u32, bits);
    }

    #[cfg(loom)]
    pub(super) fn wait(&self, seen: u32, bits: std::num::NonZeroU32) {
        let mut woken = self.kernel.0.lock().unwrap();
        let before = woken.len();
        // ORDERING: SeqCst: the kernel passes a full fence before it reads; pairs with that of
        // `wake`.
        crate::sync::fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == seen {
            while woken[before..].iter().all(|woken| woken & bits.get() == 0) {
                woken = self.kernel.1.wait(woken).unwrap();
            }
        }
    }

    #[cfg(loom)]
    pub(super) fn wake(&self, bits: std::num::NonZeroU32) {
        self.kernel.0.lock().unwrap().push(bits.get());
        self.kernel.1.notify_all();
    }
}

/// The time that a thread waits awake: it spins, twice as long each time, then yields. The model
/// does neither.
pub(super) struct Backoff(u32);

impl Backoff {
    const SPINS: u32 = 7;
    const YIELDS: u32 = 4;

    pub(super) fn new() -> Backoff {
        Backoff(if cfg!(loom) {
            Self::SPINS + Self::YIELDS
        } else {
            0
        })
    }

    /// Waits briefly; returns false, at once, if it is time to sleep.
    pub(super) fn again(&mut self) -> bool {
        if self.0 < Self::SPINS {
            for _ in 0..1 << self.0 {
                std::hint::spin_loop();
            }
        } else if self.0 < Self::SPINS + Self::YIELDS {
            std::thread::yield_now();
        } else {
            return false;
        }
        self.0 += 1;
        true
    }
}
