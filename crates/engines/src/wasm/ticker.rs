//! The clock by which running kernels are stopped: a thread that raises wasmtime's epoch every
//! millisecond while kernels run, and sleeps while none does.
//!
//! K1 Each call stores `wanted` before it runs, and wakes the thread if `parked` is set. The thread
//!    sets `parked`, then looks at `wanted` once more. Both sides use sequentially consistent
//!    accesses, so one of them sees the other.
//! K2 `wanted` is set only when there is a thread. Without one, and in a fork, which has no threads
//!    of its parent, [`Ticker::tick`] says so: no call runs without a clock.

use samite_mem::OwnerProcess;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;
use wasmtime::Engine;

/// The length of a tick.
const TICK: Duration = Duration::from_millis(1);
/// After so many ticks without a new call, it ticks less often, as many at once.
const CALM: u32 = 100;
const AT_ONCE: u32 = 10;
/// The thread parks after so many ticks without a new call: longer than any call may run.
const IDLE: u32 = 80_000;
/// How long an instance may take to start, in ticks: its globals, tables and data are set.
pub(super) const TICKS_OF_START: u64 = 1000;

/// Returns the ticks after which a call that may run for `time` is stopped: at least as long, also
/// if the next ones come at once.
pub(super) fn ticks(time: Duration) -> u64 {
    let ticks = u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2);
    ticks.min(u64::MAX / 2) + 1 + u64::from(AT_ONCE)
}

#[derive(Debug, Default)]
struct Words {
    /// A call has begun since the last tick.
    wanted: AtomicBool,
    parked: AtomicBool,
    /// All ticks. Of its own, because a store that is never freed keeps it (`window`, W5).
    ticks: Arc<AtomicU64>,
}

/// The time, in ticks.
#[derive(Clone, Debug)]
pub(super) struct Clock(Arc<AtomicU64>);

impl Clock {
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// See the module's documentation. The thread ends with the last engine.
pub(super) struct Ticker {
    engine: Engine,
    words: Arc<Words>,
    thread: Mutex<Option<Thread>>,
    owner: OwnerProcess,
    /// As if the system started no threads.
    #[cfg(test)]
    pub(super) has_no_threads: AtomicBool,
}

impl Ticker {
    pub(super) fn new(engine: Engine) -> Ticker {
        Ticker {
            engine,
            words: Arc::default(),
            thread: Mutex::new(None),
            owner: OwnerProcess::current(),
            #[cfg(test)]
            has_no_threads: AtomicBool::new(false),
        }
    }

    pub(super) fn clock(&self) -> Clock {
        Clock(self.words.ticks.clone())
    }

    /// Returns whether this is the process that made it, and not a fork.
    #[inline]
    pub(super) fn is_own(&self) -> bool {
        self.owner.is_current()
    }

    /// Called before each call. Returns whether the clock runs: if not, nothing would stop the
    /// call.
    #[inline]
    pub(super) fn tick(&self) -> bool {
        // ORDERING: Relaxed: if it is set already, the thread has not yet parked after it (K1, K2).
        self.is_own() && (self.words.wanted.load(Relaxed) || self.want())
    }

    #[cold]
    fn want(&self) -> bool {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            *thread = self.start();
        }
        let Some(thread) = &*thread else {
            return false; // The next call tries again.
        };
        // ORDERING: SeqCst, as is `parked` below: K1.
        self.words.wanted.store(true, SeqCst);
        // ORDERING: SeqCst, as above: K1.
        if self.words.parked.swap(false, SeqCst) {
            thread.unpark();
        }
        true
    }

    fn start(&self) -> Option<Thread> {
        #[cfg(test)]
        if self.has_no_threads.load(Relaxed) {
            return None;
        }
        let engine = self.engine.weak();
        let words = Arc::downgrade(&self.words);
        let builder = std::thread::Builder::new().name("samite ticker".into());
        let spawned = builder.spawn(move || {
            while let (Some(engine), Some(words)) = (engine.upgrade(), Weak::upgrade(&words)) {
                run(&engine, &words);
            }
        });
        spawned.ok().map(|spawned| spawned.thread().clone())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread {
            thread.unpark();
        }
    }
}

/// Ticks until no call has begun for a while, then parks until one does.
fn run(engine: &Engine, words: &Arc<Words>) {
    let mut idle = 0;
    while idle < IDLE {
        let ticks = if idle < CALM { 1 } else { AT_ONCE };
        std::thread::sleep(TICK * ticks);
        (0..ticks).for_each(|_| engine.increment_epoch());
        words.ticks.fetch_add(u64::from(ticks), Relaxed);
        // ORDERING: SeqCst: K1.
        idle = match words.wanted.swap(false, SeqCst) {
            true => 0,
            false => idle + ticks,
        };
        if Arc::strong_count(words) == 1 {
            return; // The engine is gone.
        }
    }
    // ORDERING: SeqCst: K1.
    words.parked.store(true, SeqCst);
    while !words.wanted.load(SeqCst) && Arc::strong_count(words) > 1 {
        std::thread::park_timeout(Duration::from_secs(1));
    }
    // ORDERING: SeqCst: K1.
    words.parked.store(false, SeqCst);
}
