//! What a call has left in the middle when it ended at its deadline, and others depend on: this
//! unit brings it to its end in what it does later. That is a collective, a wait for a signal or
//! for the holder of a lock, one for an answer of the home of a lock, the taking of a slot of a map
//! and a wait for a busy one, `progress`, a flush, and the beginning of a put or a get of
//! consecutive elements, or of an update that is one message ([`crate::Update`] says which are), by
//! rank, of memory that is not mapped here. It is none of the waits of the fabric (a receive, a
//! handle), no access by a pointer, and no `load`.

use parking_lot::Mutex;
use samite_fabric::Fabric;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Something left in the middle.
pub(crate) trait Finish: Debug + Send {
    /// Goes on as far as that takes no waiting: the deadline of this thread is zero meanwhile.
    /// Returns whether nothing is left to do.
    fn go_on(&mut self) -> bool;
}

/// All of it, of one unit.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    pending: Mutex<Pending>,
    /// How much there is, with what a thread has taken out to go on with it.
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
            // ORDERING: Relaxed, as all of it: a thread that misses it looks again after its next
            // turn.
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Goes on with all of it, but for what another thread goes on with.
    #[inline]
    pub(crate) fn step(&self, fabric: &Fabric) {
        if !self.is_empty() {
            self.go_on(fabric);
        }
    }

    #[cold]
    fn go_on(&self, fabric: &Fabric) {
        // A handler that runs meanwhile may panic; what waits below comes here again.
        let mut turn = Turn::new(self);
        fabric.within(Duration::ZERO, || {
            turn.pending.retain_mut(|left| !left.go_on())
        });
    }

    /// Goes on with all of it until nothing is left, or the deadline is over: a panic leaves global
    /// memory, and nobody comes back for it.
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

    /// Forgets it: nobody depends on it any more.
    pub(crate) fn end(&self) {
        let mut all = self.pending.lock();
        all.is_over = true;
        let left = std::mem::take(&mut all.pending);
        self.count.fetch_sub(left.len(), Ordering::Relaxed);
        // What it has may come here once more when it is dropped.
        drop(all);
        drop(left);
    }
}

/// What is being gone on with; at its end all is as before.
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

/// What a destructor does while its thread unwinds: if a handler that runs meanwhile panics, too,
/// that panic ends here. Outside of the destructor it would end the process.
#[cold]
pub(crate) fn while_unwinding(what: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(what)).is_err() {
        tracing::warn!("a second panic, while a first one ends a call of global memory");
    }
}

/// As [`while_unwinding`], for what this unit can go on with later: nothing is waited for.
#[cold]
pub(crate) fn at_once_while_unwinding(fabric: &Fabric, what: impl FnOnce()) {
    while_unwinding(|| fabric.within(Duration::ZERO, what));
}
