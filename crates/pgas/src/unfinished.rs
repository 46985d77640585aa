//! Work that a call left incomplete at its deadline, and that other units depend on. This unit
//! finishes it during later calls: a collective, a wait for a signal, for the holder or the home of
//! a lock, taking a slot of a map or waiting for a busy one, `progress`, a flush, and, for memory
//! that is not mapped here, the start of a put or get of consecutive elements by rank (not in a
//! scope), or of an update by rank that is a single message (see [`crate::Update`]). It does not
//! continue in waits of the fabric (a receive, a handle), in accesses by pointer, or in `load`.

use parking_lot::Mutex;
use samite_fabric::Fabric;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Work that was left incomplete.
pub(crate) trait Finish: Debug + Send {
    /// Continues as far as possible without waiting: the deadline of this thread is zero meanwhile.
    /// Returns true if nothing is left to do.
    fn go_on(&mut self) -> bool;
}

/// All incomplete work of one unit.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    pending: Mutex<Pending>,
    /// The number of items, including those that a thread has taken out to continue.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Pending {
    pending: Vec<Box<dyn Finish>>,
    /// Global memory has ended here.
    is_over: bool,
}

impl Unfinished {
    pub(crate) fn add(&self, left: impl Finish + 'static) {
        let mut all = self.pending.lock();
        if !all.is_over {
            all.pending.push(Box::new(left));
            // ORDERING: Relaxed, here and below: a thread that misses it looks again after its next
            // turn.
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Continues all items, except those that another thread is continuing.
    #[inline]
    pub(crate) fn step(&self, fabric: &Fabric) {
        if !self.is_empty() {
            self.go_on(fabric);
        }
    }

    #[cold]
    fn go_on(&self, fabric: &Fabric) {
        // A handler that runs meanwhile may panic, and waits below re-enter this function.
        let mut turn = Turn::new(self);
        fabric.within(Duration::ZERO, || {
            turn.pending.retain_mut(|left| !left.go_on())
        });
    }

    /// Continues all items until nothing is left or the deadline has passed. Used when a panic
    /// leaves global memory, since there will be no later call.
    pub(crate) fn finish(&self, fabric: &Fabric) {
        let is_done = || {
            self.step(fabric);
            self.is_empty().then_some(())
        };
        let what = "what a panic has left in the middle";
        if let Err(error) = fabric.wait_stepping(what, &[], is_done, || false) {
            tracing::warn!(%error, "others may wait for what is left in the middle");
        }
    }

    /// Forgets all items: no unit depends on them any more.
    pub(crate) fn end(&self) {
        let mut all = self.pending.lock();
        all.is_over = true;
        let left = std::mem::take(&mut all.pending);
        self.count.fetch_sub(left.len(), Ordering::Relaxed);
        // Dropping the items may re-enter this object, so the lock is released first.
        drop(all);
        drop(left);
    }
}

/// The items that a thread is continuing. When it is dropped, the unfinished ones are put back.
struct Turn<'u> {
    pending: Vec<Box<dyn Finish>>,
    taken: usize,
    unfinished: &'u Unfinished,
}

impl Turn<'_> {
    fn new(unfinished: &Unfinished) -> Turn<'_> {
        let pending = std::mem::take(&mut unfinished.pending.lock().pending);
        Turn {
            taken: pending.len(),
            pending,
            unfinished,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut all = self.unfinished.pending.lock();
        let mut ended = self.taken;
        if !all.is_over {
            ended -= self.pending.len();
            all.pending.append(&mut self.pending);
        }
        self.unfinished.count.fetch_sub(ended, Ordering::Relaxed);
    }
}

/// Runs the work of a destructor while its thread unwinds. Catches the panic of a handler that runs
/// meanwhile: if it left the destructor, it would abort the process.
#[cold]
pub(crate) fn while_unwinding(what: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(what)).is_err() {
        tracing::warn!("a second panic, while a first one ends a call of global memory");
    }
}

/// Runs the work of a destructor. If its thread unwinds, it runs as in [`while_unwinding`] and
/// without waiting: this unit can continue the work later.
#[cold]
pub(crate) fn in_destructor(fabric: &Fabric, what: impl FnOnce()) {
    match std::thread::panicking() {
        true => while_unwinding(|| fabric.within(Duration::ZERO, what)),
        false => what(),
    }
}
