//! How a consumer learns that there is news, and how it sleeps.
//!
//! ```text
//!   one line per peer, read by everybody who sends to it, written rarely:
//!     | asleep (futex) | - | news: one bit per peer on the node                        |
//! ```
//!
//! *News.* A set bit says "the owner polls your ring". A producer looks at its bit after each
//! publication and sets it only when it is clear; the owner clears the bit of a ring that has been
//! idle, so that the cost of polling follows the peers that talk, not those that exist.
//!
//! *Sleep.* The owner sets `asleep`, passes a heavy fence, looks at everything once more and waits on
//! the futex. The producer publishes, passes a light fence and looks at `asleep`. One of the two is
//! first, so either the owner sees the frame or the producer sees the sleeper. Where the kernel has
//! `membarrier` the producer's fence costs nothing.
//!
//! # Invariants
//! D1 Only the owner stores 1 into `asleep`; whoever swaps it to 0 owes one `futex_wake`.
//! D2 Clearing a bit is followed by a heavy fence and one more look at that ring.

use crate::sync::{AtomicU32, AtomicU64, Ordering, heavy_fence, light_fence};

/// Processes that one node's domain can hold: one bit each, all in the line of the doorbell.
pub const PEERS_MAX: usize = 7 * 64;
/// Words of news.
pub const NEWS_WORDS: usize = PEERS_MAX / 64;
/// Bytes of a doorbell; two lines, so that no neighbour is fetched with it.
pub const DOORBELL_BYTES: u64 = 128;

/// The words of a doorbell, wherever they are.
pub trait BellWords {
    /// The futex word.
    fn asleep(&self) -> &AtomicU32;
    /// A word of the news bitmap.
    fn news(&self, word: usize) -> &AtomicU64;
    /// Wakes the owner out of the kernel.
    fn wake(&self);
}

/// A doorbell; the owner and the producers use the same type.
#[derive(Clone, Debug)]
pub struct Doorbell<W>(pub W);

impl<W: BellWords> Doorbell<W> {
    /// Producer: after a publication, tells the owner about peer `from`.
    #[inline(always)]
    pub fn ring(&self, from: usize) {
        light_fence();
        let (word, bit) = (from / 64, 1u64 << (from % 64));
        // ORDERING: Relaxed; the fences of both sides order it against the frame (module text).
        if self.0.news(word).load(Ordering::Relaxed) & bit == 0 {
            // ORDERING: Release pairs with the Acquire load in `news`.
            self.0.news(word).fetch_or(bit, Ordering::Release);
            // The owner may have looked at its news and gone to sleep before this bit was set.
            light_fence();
        }
        self.rouse();
    }

    /// After a store into a word that the owner may be waiting for: wakes it if it sleeps. The owner
    /// looks at the word once more after [`Doorbell::doze`].
    #[inline(always)]
    pub fn nudge(&self) {
        light_fence();
        self.rouse();
    }

    /// Wakes the owner if it sleeps.
    #[inline(always)]
    pub fn rouse(&self) {
        // ORDERING: Relaxed; ordered by the fence before (module text). The swap is D1.
        if self.0.asleep().load(Ordering::Relaxed) != 0
            && self.0.asleep().swap(0, Ordering::AcqRel) != 0
        {
            self.0.wake();
        }
    }

    /// Owner: the peers whose rings are to be polled.
    #[inline(always)]
    pub fn news(&self, word: usize) -> u64 {
        // ORDERING: Acquire pairs with the Release `fetch_or` in `ring`: the ring was made before.
        self.0.news(word).load(Ordering::Acquire)
    }

    /// Owner: stops polling a ring. It must look at the ring once more afterwards (D2) and call
    /// [`Doorbell::keep`] if it found something.
    pub fn forget(&self, peer: usize) {
        self.0
            .news(peer / 64)
            .fetch_and(!(1 << (peer % 64)), Ordering::AcqRel);
        heavy_fence();
    }

    /// Owner: goes on polling a ring.
    pub fn keep(&self, peer: usize) {
        // ORDERING: AcqRel pairs with the loads and the `fetch_or` of `ring`.
        self.0
            .news(peer / 64)
            .fetch_or(1 << (peer % 64), Ordering::AcqRel);
    }

    /// Owner: announces that it will sleep. It must look at everything once more before it does.
    pub fn doze(&self) {
        // ORDERING: Relaxed, ordered by the heavy fence, which pairs with the producers' light ones.
        self.0.asleep().store(1, Ordering::Relaxed);
        heavy_fence();
    }

    /// Owner: is awake again.
    pub fn rise(&self) {
        self.0.asleep().store(0, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
mod shared {
    use super::{BellWords, DOORBELL_BYTES, Doorbell};
    use crate::sync::{AtomicU32, AtomicU64};
    use crate::{Corrupt, SharedBytes};
    use rustix::thread::futex;
    use std::time::Duration;

    const ASLEEP: u64 = 0;
    const NEWS: u64 = 8;

    impl BellWords for SharedBytes {
        #[inline(always)]
        fn asleep(&self) -> &AtomicU32 {
            self.u32(ASLEEP)
        }
        #[inline(always)]
        fn news(&self, word: usize) -> &AtomicU64 {
            self.u64(NEWS + word as u64 * 8)
        }
        fn wake(&self) {
            let _ = futex::wake(self.u32(ASLEEP), futex::Flags::empty(), 1);
        }
    }

    impl Doorbell<SharedBytes> {
        /// The doorbell in these bytes.
        pub fn new(bytes: SharedBytes) -> Result<Self, Corrupt> {
            if bytes.len() != DOORBELL_BYTES || !bytes.address().is_multiple_of(64) {
                return Err(Corrupt {
                    what: "the place of a doorbell",
                    value: bytes.address(),
                });
            }
            Ok(Doorbell(bytes))
        }

        /// Owner: sleeps until rung or until the time is over. After [`Doorbell::doze`].
        pub fn sleep(&self, at_most: Duration) {
            let time = rustix::thread::Timespec {
                tv_sec: at_most.as_secs().min(1 << 30) as i64,
                tv_nsec: at_most.subsec_nanos().into(),
            };
            // A wrong value, a signal and the timeout all mean: look again.
            let _ = futex::wait(self.0.asleep(), futex::Flags::empty(), 1, Some(&time));
            self.rise();
        }
    }
}
