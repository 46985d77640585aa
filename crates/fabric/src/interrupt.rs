//! What may end the waits of a thread before their deadline: a signal that its program answers.

use std::cell::Cell;
use std::time::Duration;

/// How often a thread that sleeps looks whether it is interrupted.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

thread_local! {
    /// The check of the call of [`interruptible`] in which this thread is.
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Returns the check of this thread.
#[inline]
pub(crate) fn check() -> Option<fn() -> bool> {
    CHECK.get()
}

/// Runs `f`, whose waits end if `check` returns true.
pub(crate) fn interruptible<R>(check: fn() -> bool, f: impl FnOnce() -> R) -> R {
    struct Before(Option<fn() -> bool>);
    impl Drop for Before {
        fn drop(&mut self) {
            CHECK.set(self.0);
        }
    }
    let _before = Before(CHECK.replace(Some(check)));
    f()
}
