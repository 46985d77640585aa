//! A lock that costs almost nothing for the thread that used it last.
//!
//! ```text
//!                 lock, unlock: no locked instruction, no fence
//!                 +----------+
//!                 v          |
//!   unbiased --> biased to thread A --- B locks: withdraws the bias, heavy fence, waits until
//!   (mutex)  <---------------------     A is outside, and has the lock
//!      A has locked it `run` times in a row, no other thread in between: biased to A again
//! ```
//!
//! *Biased.* A marks itself as inside, passes a light fence and checks whether it still has the
//! bias. B takes the mutex, withdraws the bias, passes a heavy fence (`membarrier`, which makes
//! each thread of the process pass a full fence) and checks whether A is inside. One of the two is
//! first: either A sees that the bias is gone and queues for the mutex, or B sees that A is inside
//! and waits. When A leaves, it marks itself as outside, passes a light fence and checks the bias
//! again: if it is gone, B may be asleep.
//!
//! *Unbiased.* The lock is the mutex below ([`mutex`]). A thread that has locked it `run` times in
//! a row gets the bias. `run` is 1 at first, so the first thread that uses the lock gets the bias
//! after that. It is [`FIRST_RUN`] after the first withdrawal, and doubles with each further one:
//! threads that take turns pay for the mutex, not for a `membarrier` each.
//!
//! *Why each thread marks a cell of its own.* A thread that has found its bias may be preempted
//! just before it sets the mark, for any length of time, and set it when another thread has the
//! bias. It then takes the mark back; in a shared cell, that would be the mark of the other thread.
//!
//! # Invariants
//! H1 Only the holder of the mutex writes `bias` and `owners`. It grants a bias only to itself,
//!    when it is not inside by a bias.
//! H2 Only the owner of a cell writes it, and the owner never changes.
//! H3 A thread is inside by its bias if its cell was 1 and, after a light fence, it still had the
//!    bias. It is inside by the mutex if it has the mutex, then has found or made the bias
//!    [`NOBODY`], and, after a heavy fence, has seen the cell of the thread that had it 0. With H1
//!    and H2: one thread is inside.
//! H4 The 0 in a cell is stored with Release and loaded with Acquire: the next thread sees
//!    everything that was done inside.
//! H5 A thread that withdraws a bias reads `quit` before it checks the cell. The thread that stores
//!    0 into the cell then passes a light fence, checks the bias and, if it is gone, increments
//!    `quit` and wakes the other.
//!
//! # What it does not guarantee
//! There is no poisoning: a panic inside just unlocks. If a guard is forgotten, the lock stays
//! locked forever; its own thread gets a panic, other threads wait. (A new thread never takes the
//! place of one that has ended: each token is given out once, T1.) Threads in the queue get the
//! lock in order of arrival, but a thread that finds the mutex free may overtake them. At most
//! [`CELLS`] threads can ever have the bias of one lock; the others use the mutex.
//!
//! A child of `fork` has a copy. If another thread had the lock, or was about to take it, when the
//! parent forked, the protected value may be in an inconsistent state and no thread will unlock it.
//! In the child, [`Biased::lock_unless_left`] then returns `None` and `lock` panics; neither waits
//! for that thread. Otherwise the copy works, also for a thread that held it when it forked.
//!
//! # What it costs
//! Nanoseconds on an AMD EPYC (Zen 5, a virtual machine with two processors, Linux 6.18), best of
//! 15:
//!
//! | to lock, add one and unlock | `RefCell` | this lock | `std::sync::Mutex` |
//! |---|---|---|---|
//! | by one thread, with the bias | 0.8 | 1.0 | 10.7 |
//! | by one thread, without it | | 13.5 | |
//! | by two threads on two processors, in turn | | 120 | 106 |
//!
//! The turn itself takes 26 ns of the last line. Withdrawing a bias takes about 560 ns, once. If
//! the kernel has no `membarrier`, the lock stays a mutex: with full fences, a bias would cost two
//! locked instructions, as many as the mutex.

mod mutex;
mod thread;
mod wait;

use crate::sync::{
    AtomicU8, AtomicU32, AtomicU64, Ordering, threads_asymmetric, threads_heavy_fence,
    threads_light_fence,
};
use mutex::FairMutex;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
#[cfg(not(loom))]
pub(crate) use thread::forked;
use wait::{Backoff, Futex};

/// Number of threads that can have the bias of one lock, one after the other.
const CELLS: usize = thread::TOKENS as usize;
/// The bias when no thread has it.
const NOBODY: u64 = u64::MAX;
/// Turns in a row before the bias returns the first time: a withdrawal costs as much as some
/// hundred uses of the mutex.
const FIRST_RUN: u32 = if cfg!(loom) { 2 } else { 1 << 9 };
/// Maximum of the doubled value.
const LONGEST_RUN: u32 = 1 << 16;

/// The bias is never granted.
const NEVER: u32 = u32::MAX;

const HELD_BY_CALLER: &str = "this thread already holds the lock: it would wait for itself";
const LEFT_BEHIND: &str = "a thread of the parent process had this lock when this process was \
     forked: nobody will unlock it here";

/// A mutex, biased to the thread that used it last: see the module documentation.
#[repr(C, align(64))]
pub struct Biased<T> {
    /// The token of the thread that has the bias plus the index of its cell, or [`NOBODY`].
    bias: AtomicU64,
    /// Incremented by a thread that finds its bias gone when it leaves.
    quit: Futex,
    /// Turns in a row after which a thread gets the bias.
    run: AtomicU32,
    /// The last thread that had the mutex, and how often in a row.
    last: AtomicU64,
    turns: AtomicU32,
    /// 1 while the owner of the cell is inside by its bias.
    inside: [AtomicU8; CELLS],
    mutex: FairMutex,
    /// Owner of each cell: a token, or 0.
    owners: [AtomicU64; CELLS],
    value: UnsafeCell<T>,
}

// SAFETY: one thread is inside at a time (H3) and sees what earlier ones did (H4, X1), so a shared
// lock passes its value from thread to thread, which `T: Send` allows.
unsafe impl<T: Send> Sync for Biased<T> {}

/// How the thread of a guard is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass(u64);

impl Pass {
    /// Not inside: the lock is not held.
    const NONE: Pass = Pass(0);
    /// By the mutex. All other passes are by the bias, and are its value.
    const MUTEX: Pass = Pass(1);
}

impl<T> Biased<T> {
    /// Creates a lock that no thread has used yet.
    ///
    /// The first one of a process may take some milliseconds if the process already has threads.
    pub fn new(value: T) -> Biased<T> {
        #[cfg(not(loom))]
        crate::sys::watch_for_forks();
        Biased {
            bias: AtomicU64::new(NOBODY),
            quit: Futex::new(),
            run: AtomicU32::new(if threads_asymmetric() { 1 } else { NEVER }),
            last: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            inside: std::array::from_fn(|_| AtomicU8::new(0)),
            mutex: FairMutex::new(),
            owners: std::array::from_fn(|_| AtomicU64::new(0)),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// This thread already holds it, or this process is a fork of one in which another thread held
    /// it.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.lock_unless_left() {
            Some(guard) => guard,
            None => panic!("{LEFT_BEHIND}"),
        }
    }

    /// Waits for the lock. Returns `None` if this process is a fork of one in which another thread
    /// held it: no thread will unlock it.
    ///
    /// # Panics
    /// This thread already holds it.
    #[inline(always)]
    pub fn lock_unless_left(&self) -> Option<Guard<'_, T>> {
        let pass = match self.enter_by_bias() {
            Some(pass) => pass,
            None => self.enter(false)?,
        };
        Some(Guard::new(self, pass))
    }

    /// Takes the lock if no thread holds it. For an occasional look at the value: it withdraws the
    /// bias of another thread.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let pass = self.enter_by_bias().or_else(|| self.try_enter())?;
        Some(Guard::new(self, pass))
    }

    /// Returns the value of a lock that is not shared.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Enters if this thread has the bias and is not inside (H3).
    #[inline(always)]
    fn enter_by_bias(&self) -> Option<Pass> {
        // ORDERING: Relaxed: this thread stored its bias itself, or the bias is another thread's.
        let bias = self.bias.load(Ordering::Relaxed);
        // A thread without a token has 0, which is in no bias.
        if owner(bias) != thread::token() {
            return None;
        }
        let cell = self.cell(bias);
        // ORDERING: Relaxed: only this thread writes it (H2).
        if cell.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // ORDERING: Relaxed, ordered before the load by the fences (H3).
        cell.store(1, Ordering::Relaxed);
        threads_light_fence();
        if self.bias.load(Ordering::Relaxed) == bias {
            return Some(Pass(bias));
        }
        self.leave_by_bias(bias);
        None
    }

    #[inline(always)]
    fn leave_by_bias(&self, bias: u64) {
        // ORDERING: Release pairs with the Acquire loads in `withdraw` (H4).
        self.cell(bias).store(0, Ordering::Release);
        threads_light_fence();
        // ORDERING: Relaxed, ordered by the fences (H5).
        if self.bias.load(Ordering::Relaxed) != bias {
            self.wake_next();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_next(&self) {
        self.quit.advance();
        self.quit.wake(std::num::NonZeroU32::MAX);
    }

    /// Enters by the mutex: ahead of the queue if it is free, unless `queueing`. Returns `None` if
    /// a thread of the parent process is inside.
    #[cold]
    #[inline(never)]
    fn enter(&self, queueing: bool) -> Option<Pass> {
        let me = thread::token_or_new();
        if queueing || !self.mutex.try_lock(me) {
            let holds = self.mutex.holder() == me || self.is_inside(me);
            assert!(!holds, "{HELD_BY_CALLER}");
            if !self.mutex.queue(me) {
                return None;
            }
        }
        let bias = self.bias.load(Ordering::Relaxed);
        if owner(bias) == me {
            // The mutex was free, so a thread that is inside by its bias still has its bias.
            if self.cell(bias).load(Ordering::Relaxed) != 0 {
                self.mutex.unlock();
                panic!("{HELD_BY_CALLER}");
            }
        } else if bias != NOBODY && !self.withdraw(bias) {
            self.mutex.unlock();
            return None;
        }
        // ORDERING: Relaxed: a thread that reads it as its own is this one, or gets the mutex next.
        self.bias.store(NOBODY, Ordering::Relaxed);
        Some(Pass::MUTEX)
    }

    /// Enters like `enter`, but does not wait.
    #[cold]
    #[inline(never)]
    fn try_enter(&self) -> Option<Pass> {
        let me = thread::token_or_new();
        if self.is_inside(me) || !self.mutex.try_lock(me) {
            return None;
        }
        let bias = self.bias.load(Ordering::Relaxed);
        if bias != NOBODY && owner(bias) != me {
            self.bias.store(NOBODY, Ordering::Relaxed);
            threads_heavy_fence();
            // ORDERING: Acquire pairs with the Release in `leave_by_bias` (H4).
            if self.cell(bias).load(Ordering::Acquire) != 0 {
                // Undone: the other thread has not noticed, or has noticed and queues for the
                // mutex.
                self.bias.store(bias, Ordering::Relaxed);
                self.mutex.unlock();
                return None;
            }
            self.lengthen_run();
        }
        self.bias.store(NOBODY, Ordering::Relaxed);
        Some(Pass::MUTEX)
    }

    /// Withdraws the bias of another thread and waits until that thread is outside; returns `false`
    /// if it never will be. This thread has the mutex.
    fn withdraw(&self, bias: u64) -> bool {
        let cell = self.cell(bias);
        if !thread::is_of_this_process(owner(bias)) {
            // ORDERING: Acquire pairs with the Release in `leave_by_bias`, of a thread of the
            // parent (H4).
            return cell.load(Ordering::Acquire) == 0;
        }
        // ORDERING: Relaxed, ordered before the loads of the cell by the fences (H3).
        self.bias.store(NOBODY, Ordering::Relaxed);
        threads_heavy_fence();
        self.lengthen_run();
        let mut backoff = Backoff::new();
        loop {
            // ORDERING: Acquire pairs with the Release in `advance`: the cell is then 0 (H5).
            let seen = self.quit.load(Ordering::Acquire);
            // ORDERING: Acquire pairs with the Release in `leave_by_bias` (H4).
            if cell.load(Ordering::Acquire) == 0 {
                return true;
            }
            if !backoff.again() {
                self.quit.wait(seen, std::num::NonZeroU32::MAX);
            }
        }
    }

    fn lengthen_run(&self) {
        // ORDERING: Relaxed, here and for `last`, `turns` and `owners`: under the mutex.
        let run = self.run.load(Ordering::Relaxed);
        let longer = run.saturating_mul(2).clamp(FIRST_RUN, LONGEST_RUN);
        self.run.store(longer, Ordering::Relaxed);
    }

    /// Leaves by the mutex, and takes the bias if this thread has had enough turns in a row.
    #[cold]
    #[inline(never)]
    fn leave_by_mutex(&self) {
        let me = self.mutex.holder();
        let turns = if self.last.load(Ordering::Relaxed) == me {
            self.turns.load(Ordering::Relaxed).saturating_add(1)
        } else {
            self.last.store(me, Ordering::Relaxed);
            1
        };
        let run = self.run.load(Ordering::Relaxed);
        let earned = turns >= run && run != NEVER;
        (self.turns).store(if earned { 0 } else { turns }, Ordering::Relaxed);
        if earned
            && !self.mutex.is_wanted()
            && let Some(index) = self.own_cell(me)
        {
            // ORDERING: Relaxed: as in `enter` (H1).
            self.bias.store(me | index as u64, Ordering::Relaxed);
        }
        self.mutex.unlock();
    }

    /// Returns the cell of this thread, which has the mutex; assigns a free one if it has none.
    fn own_cell(&self, me: u64) -> Option<usize> {
        let index = (self.owners.iter()).position(|owner| {
            let owner = owner.load(Ordering::Relaxed);
            owner == me || owner == 0
        })?;
        self.owners[index].store(me, Ordering::Relaxed);
        Some(index)
    }

    /// Returns true if this thread is inside by its bias, which may have been withdrawn since.
    fn is_inside(&self, me: u64) -> bool {
        // ORDERING: Relaxed: this thread wrote its entry and its cell itself.
        (self.owners.iter().zip(&self.inside)).any(|(owner, cell)| {
            owner.load(Ordering::Relaxed) == me && cell.load(Ordering::Relaxed) != 0
        })
    }

    #[inline(always)]
    fn cell(&self, bias: u64) -> &AtomicU8 {
        &self.inside[bias as usize % CELLS]
    }

    #[inline(always)]
    fn leave(&self, pass: Pass) {
        if pass.0 > Pass::MUTEX.0 {
            self.leave_by_bias(pass.0);
        } else if pass == Pass::MUTEX {
            self.leave_by_mutex();
        }
    }
}

/// Returns the token in a bias.
#[inline(always)]
fn owner(bias: u64) -> u64 {
    bias & !(thread::TOKENS - 1)
}

impl<T: Default> Default for Biased<T> {
    fn default() -> Biased<T> {
        Biased::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Biased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => f.debug_tuple("Biased").field(&*value).finish(),
            None => f.write_str("Biased(<locked>)"),
        }
    }
}

/// Holds the lock until it is dropped.
pub struct Guard<'a, T> {
    lock: &'a Biased<T>,
    pass: Pass,
    /// The thread that entered must leave.
    _thread: PhantomData<*const ()>,
}

impl<'a, T> Guard<'a, T> {
    #[inline(always)]
    fn new(lock: &'a Biased<T>, pass: Pass) -> Guard<'a, T> {
        Guard {
            lock,
            pass,
            _thread: PhantomData,
        }
    }

    /// Returns true if another thread waits for the lock. One or two loads.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        if self.pass == Pass::MUTEX {
            self.lock.mutex.is_wanted()
        } else {
            // ORDERING: Relaxed: a hint. A thread that waits has withdrawn the bias.
            self.lock.bias.load(Ordering::Relaxed) != self.pass.0
        }
    }

    /// If other threads wait for the lock, lets them have it and then queues for it behind them.
    pub fn let_others(&mut self) {
        if self.is_wanted() {
            self.leave();
            self.enter_again(|lock| lock.enter(true));
        }
    }

    /// Runs `f` with the lock unlocked, for a sleep. It is locked again afterwards, even if `f`
    /// panics.
    ///
    /// The process aborts if `f` leaves it locked by this thread.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Again<'g, 'a, T>(&'g mut Guard<'a, T>);
        impl<T> Drop for Again<'_, '_, T> {
            fn drop(&mut self) {
                (self.0).enter_again(|lock| lock.enter_by_bias().or_else(|| lock.enter(false)));
            }
        }
        self.leave();
        let _again = Again(self);
        f()
    }

    /// There is no guard without the lock, so a panic in here must abort.
    fn enter_again(&mut self, enter: impl FnOnce(&Biased<T>) -> Option<Pass>) {
        struct Abort;
        impl Drop for Abort {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        let abort = Abort;
        self.pass = enter(self.lock).expect(LEFT_BEHIND);
        std::mem::forget(abort);
    }

    fn leave(&mut self) {
        let pass = std::mem::replace(&mut self.pass, Pass::NONE);
        self.lock.leave(pass);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread is inside (H3): the pass is NONE only while `unlocked` or
        // `let_others` borrow the guard for writing.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed for writing.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.leave(self.pass);
    }
}

impl<T: fmt::Debug> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}
