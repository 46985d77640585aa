//! The clock by which running kernels are stopped: a thread that raises wasmtime's epoch every
//! millisecond while kernels run, and sleeps while none does.
//!
//! K1 Each call stores `wanted` before it runs, and wakes the thread if `parked` is set. The thread
//!    sets `parked`, then looks at `wanted` once more. Both sides use sequentially consistent
//!    accesses, so one of them sees the other, and no call runs without a clock.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock, Weak};
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
/// How long an instance may take to start, in ticks: its start function runs.
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
}

/// See the module's documentation. The thread ends with the last engine.
pub(super) struct Ticker {
    engine: Engine,
    words: Arc<Words>,
    thread: OnceLock<Option<Thread>>,
}

impl Ticker {
    pub(super) fn new(engine: Engine) -> Ticker {
        Ticker {
            engine,
            words: Arc::default(),
            thread: OnceLock::new(),
        }
    }

    /// Called before each call.
    #[inline]
    pub(super) fn tick(&self) {
        // ORDERING: Relaxed: if it is set already, the thread has not yet parked after it (K1).
        if self.words.wanted.load(Relaxed) && self.thread.get().is_some() {
            return;
        }
        self.want();
    }

    #[cold]
    fn want(&self) {
        // ORDERING: SeqCst, as is `parked` below: K1.
        self.words.wanted.store(true, SeqCst);
        let thread = self.thread.get_or_init(|| self.start());
        // ORDERING: SeqCst, as above: K1.
        if self.words.parked.swap(false, SeqCst)
            && let Some(thread) = thread
        {
            thread.unpark();
        }
    }

    fn start(&self) -> Option<Thread> {
        let engine = self.engine.weak();
        let words = Arc::downgrade(&self.words);
        let builder = std::thread::Builder::new().name("samite ticker".into());
        let spawned = builder.spawn(move || {
            while let (Some(engine), Some(words)) = (engine.upgrade(), Weak::upgrade(&words)) {
                run(&engine, &words);
            }
        });
        // Without a thread, calls run without a limit of time.
        spawned.ok().map(|spawned| spawned.thread().clone())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Ticks until no call has begun for a while, then parks once.
fn run(engine: &Engine, words: &Arc<Words>) {
    let mut idle = 0;
    while idle < IDLE {
        let ticks = if idle < CALM { 1 } else { AT_ONCE };
        std::thread::sleep(TICK * ticks);
        (0..ticks).for_each(|_| engine.increment_epoch());
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
    if !words.wanted.load(SeqCst) {
        std::thread::park_timeout(Duration::from_secs(1));
    }
    // ORDERING: SeqCst: K1.
    words.parked.store(false, SeqCst);
}
