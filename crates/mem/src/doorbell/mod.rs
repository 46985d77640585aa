//! How a consumer learns of news, and how it sleeps.
//!
//! ```text
//!   two lines per peer, read by all peers that send to it, written rarely:
//!     | asleep (futex) | - | news: one bit per peer on the node | address of a socket |
//! ```
//!
//! *News.* A set bit says "the owner polls your ring". A producer checks its bit after each
//! publication and sets it only if it is clear. The owner clears the bit of a ring that has been
//! idle, so that the cost of polling depends on the number of active peers, not on the number of
//! all peers.
//!
//! *Sleep.* The owner announces its sleep in `asleep`, passes a heavy fence, checks everything
//! again and sleeps. The producer publishes, passes a light fence and checks `asleep`. One of the
//! two is first, so either the owner sees the frame or the producer sees the sleeper. If the kernel
//! has `membarrier`, the producer's fence is free.
//!
//! *Two ways to sleep, one protocol.* `asleep` is 0 while the owner is awake, 1 while it sleeps on
//! the futex, and 2 while it polls file descriptors, because it must also wait for an engine. One
//! of the descriptors is then a socket of its own ([`WakeSocket`]), whose address is in the
//! doorbell, and the producer sends an empty datagram there.
//!
//! *Why a socket with an address.* The producer is another process, so it needs a descriptor, or a
//! name, of something that the owner polls. An eventfd has no name: each process would need one
//! descriptor for each peer that it may have to wake, and would have to get it from the agent in
//! the middle of a publication. (`pidfd_getfd` needs the right to trace the owner, which containers
//! refuse.) A thread that waits on the futex and writes to an eventfd, or one that polls and rings,
//! needs no descriptors of others, but each sleep would be two sleeps, and the process would have a
//! thread that its program does not know of. The futex operations of io_uring are too new and often
//! disabled. The socket takes one descriptor per process that sleeps this way, and one per process
//! that wakes such sleepers, however many they are; it has no file, so nothing is left after a
//! crash. UCX wakes the owners of its shared memory in the same way. The address is in the abstract
//! namespace, like the agent's socket, so every process that has joined can reach it. So can other
//! users: their datagrams wake the owner needlessly, and do nothing else.
//!
//! # Invariants
//! D1 Only the owner stores 1 or 2 into `asleep`; a thread that swaps it to 0 owes one wake-up of
//!    that kind.
//! D2 Clearing a bit is followed by a heavy fence and another check of that ring.
//! D3 The address is stored before the 2, and read after the swap that found the 2.
//! D4 A datagram that cannot be sent because the queue is full is not needed: the socket is
//!    readable.
//!
//! # What it does not guarantee
//! That an owner sleeps until it is rung: a late wake-up from its previous sleep, or a signal, ends
//! the present one. That a producer without a free descriptor for a socket can wake it, or one that
//! is killed or stopped after it has swapped `asleep` to 0 and before it has sent the wake-up: all
//! others then take the sleeper for awake. So an owner always limits its sleep.

#[cfg(not(loom))]
mod socket;

use crate::sync::{AtomicU32, AtomicU64, Ordering, heavy_fence, light_fence};
#[cfg(not(loom))]
pub use socket::WakeSocket;

/// Maximum number of processes in the domain of one node: one bit each, all in the line of the
/// doorbell.
pub const PEERS_MAX: usize = 7 * 64;
/// Number of news words.
pub const NEWS_WORDS: usize = PEERS_MAX / 64;
/// Bytes of a doorbell; two lines, so that prefetching does not fetch a neighbour with it.
pub const DOORBELL_BYTES: u64 = 128;

/// The words of a doorbell, in any memory.
pub trait BellWords {
    /// Returns the futex word.
    fn asleep(&self) -> &AtomicU32;
    /// Returns a word of the news bitmap.
    fn news(&self, word: usize) -> &AtomicU64;
    /// Returns the address of the owner's socket.
    fn address(&self) -> &AtomicU64;
    /// Wakes the owner from the futex.
    fn wake_futex(&self);
    /// Makes the owner's socket readable.
    fn wake_socket(&self, address: u64);
}

/// How an owner sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// On the futex of the doorbell.
    Futex,
    /// On file descriptors; one is a socket with this address.
    Descriptors(u64),
}

const AWAKE: u32 = 0;
const ON_FUTEX: u32 = 1;
const ON_DESCRIPTORS: u32 = 2;

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
            // The owner may have checked its news and gone to sleep before this bit was set.
            light_fence();
        }
        self.wake();
    }

    /// Wakes the owner if it sleeps, after a store to a word that it may be waiting for. The owner
    /// checks the word again after [`Doorbell::announce_sleep`].
    #[inline(always)]
    pub fn nudge(&self) {
        light_fence();
        self.wake();
    }

    /// Wakes the owner if it sleeps.
    #[inline(always)]
    pub fn wake(&self) {
        // ORDERING: Relaxed; ordered by the fence before (module text).
        if self.0.asleep().load(Ordering::Relaxed) != AWAKE {
            self.wake_sleeper();
        }
    }

    #[cold]
    fn wake_sleeper(&self) {
        // ORDERING: AcqRel: Acquire pairs with the Release in `announce_sleep` (D3). The swap is
        // D1.
        match self.0.asleep().swap(AWAKE, Ordering::AcqRel) {
            ON_FUTEX => self.0.wake_futex(),
            // ORDERING: Relaxed, ordered by the swap (D3).
            ON_DESCRIPTORS => (self.0).wake_socket(self.0.address().load(Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Owner: returns the peers whose rings have to be polled.
    #[inline(always)]
    pub fn news(&self, word: usize) -> u64 {
        // ORDERING: Acquire pairs with the Release `fetch_or` in `ring`: the ring was created
        // before.
        self.0.news(word).load(Ordering::Acquire)
    }

    /// Owner: stops polling a ring. It must check the ring again afterwards (D2) and call
    /// [`Doorbell::keep`] if it found something.
    pub fn forget(&self, peer: usize) {
        self.0
            .news(peer / 64)
            .fetch_and(!(1 << (peer % 64)), Ordering::AcqRel);
        heavy_fence();
    }

    /// Owner: continues to poll a ring.
    pub fn keep(&self, peer: usize) {
        // ORDERING: AcqRel pairs with the loads and the `fetch_or` of `ring`.
        self.0
            .news(peer / 64)
            .fetch_or(1 << (peer % 64), Ordering::AcqRel);
    }

    /// Owner: announces that it will sleep, and how. It must check everything again before it does.
    pub fn announce_sleep(&self, how: Sleep) {
        let how = match how {
            Sleep::Futex => ON_FUTEX,
            Sleep::Descriptors(address) => {
                // ORDERING: Relaxed, ordered by the store of the 2 (D3).
                self.0.address().store(address, Ordering::Relaxed);
                ON_DESCRIPTORS
            }
        };
        // ORDERING: AcqRel, as for all swaps of this word, so that each comes after the one whose
        // value it finds: Release pairs with the Acquire in `wake_sleeper` (D3). The heavy fence
        // pairs with the producers' light ones.
        self.0.asleep().swap(how, Ordering::AcqRel);
        heavy_fence();
    }

    /// Owner: announces that it is awake again, or does not sleep after all.
    pub fn end_sleep(&self) {
        // ORDERING: AcqRel, as in `announce_sleep`: the producer that has ended this sleep sees the
        // next announcement. A later one sends an unnecessary wake-up.
        self.0.asleep().swap(AWAKE, Ordering::AcqRel);
    }
}

#[cfg(not(loom))]
mod shared {
    use super::{BellWords, DOORBELL_BYTES, Doorbell, ON_FUTEX, WakeSocket, socket};
    use crate::sync::{AtomicU32, AtomicU64};
    use crate::{Corrupt, SharedBytes};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::thread::futex;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    const ASLEEP: u64 = 0;
    const NEWS: u64 = 8;
    const ADDRESS: u64 = 64;

    impl BellWords for SharedBytes {
        #[inline(always)]
        fn asleep(&self) -> &AtomicU32 {
            self.u32(ASLEEP)
        }
        #[inline(always)]
        fn news(&self, word: usize) -> &AtomicU64 {
            self.u64(NEWS + word as u64 * 8)
        }
        fn address(&self) -> &AtomicU64 {
            self.u64(ADDRESS)
        }
        fn wake_futex(&self) {
            let _ = futex::wake(self.u32(ASLEEP), futex::Flags::empty(), 1);
        }
        fn wake_socket(&self, address: u64) {
            socket::wake(address);
        }
    }

    impl Doorbell<SharedBytes> {
        /// Interprets these bytes as a doorbell.
        pub fn new(bytes: SharedBytes) -> Result<Self, Corrupt> {
            if bytes.len() != DOORBELL_BYTES || !bytes.address().is_multiple_of(64) {
                return Err(Corrupt {
                    what: "the place of a doorbell",
                    value: bytes.address(),
                });
            }
            Ok(Doorbell(bytes))
        }

        /// Owner: sleeps until rung, at most for this time. Requires [`Doorbell::announce_sleep`]
        /// for the futex.
        pub fn sleep(&self, at_most: Duration) {
            let time = timespec(at_most);
            // A wrong value, a signal and the timeout all mean: check again.
            let asleep = self.0.asleep();
            let _ = futex::wait(asleep, futex::Flags::empty(), ON_FUTEX, Some(&time));
            self.end_sleep();
        }

        /// Owner: sleeps until rung or until one of `others` is readable or broken, at most for
        /// this time. Requires [`Doorbell::announce_sleep`] for the address of `socket`.
        pub fn sleep_on(&self, socket: &WakeSocket, others: &[BorrowedFd<'_>], at_most: Duration) {
            let time = timespec(at_most);
            let waits = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut all: Vec<_> = (others.iter().copied().map(waits)).collect();
            all.push(PollFd::new(socket, PollFlags::IN));
            // A signal and the timeout mean: check again.
            let _ = poll(&mut all, Some(&time));
            self.end_sleep();
            socket.drain();
        }
    }

    fn timespec(time: Duration) -> Timespec {
        Timespec {
            tv_sec: time.as_secs().min(1 << 30) as i64,
            tv_nsec: time.subsec_nanos().into(),
        }
    }
}
