//! The deadline of waits: of a fabric, or of a call of [`Fabric::within`](crate::Fabric::within).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

thread_local! {
    /// The deadline of the call of [`within`] in which this thread is, for any fabric.
    static WITHIN: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The deadline of a fabric, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Deadline(AtomicU64);

impl Deadline {
    pub(crate) fn new(deadline: Duration) -> Deadline {
        Deadline(AtomicU64::new(nanos(deadline)))
    }

    /// Returns the deadline of waits in this thread.
    #[inline]
    pub(crate) fn get(&self) -> Duration {
        // ORDERING: Relaxed: a number by itself, here and in `set`.
        let usual = || Duration::from_nanos(self.0.load(Ordering::Relaxed));
        WITHIN.get().unwrap_or_else(usual)
    }

    pub(crate) fn set(&self, deadline: Duration) {
        self.0.store(nanos(deadline), Ordering::Relaxed);
    }
}

/// Runs `f` with another deadline for the waits of this thread.
pub(crate) fn within<R>(deadline: Duration, f: impl FnOnce() -> R) -> R {
    struct Before(Option<Duration>);
    impl Drop for Before {
        fn drop(&mut self) {
            WITHIN.set(self.0);
        }
    }
    let _before = Before(WITHIN.replace(Some(deadline)));
    f()
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
