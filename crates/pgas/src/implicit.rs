//! Operations that were started without a handle, until they are flushed.

use crate::Unit;
use parking_lot::Mutex;
use samite_fabric::{Error, Handle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

/// As many are kept before those that have ended are sorted out.
const SWEEP: usize = 256;

/// See the module's text. The fabric bounds how many operations a peer has unanswered, so what is kept here is
/// bounded, too, however long nobody flushes.
///
/// A flush of one thread waits for the operations of all. A failure is told by the next flush of the thread that started
/// the operation, and by the flush that found it.
#[derive(Debug, Default)]
pub(crate) struct Implicit {
    kept: Mutex<Kept>,
    /// Held while operations that were taken out are waited for: a flush of another thread waits for them, too.
    flushing: Mutex<()>,
    /// Something is kept, or being waited for.
    is_used: AtomicBool,
}

/// An operation.
#[derive(Debug)]
struct Pending {
    /// Which thread started it.
    thread: ThreadId,
    /// With whom it goes to.
    unit: Unit,
    handle: Handle<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    pending: Vec<Pending>,
    /// The first failure of those of each thread to each unit: its next flush tells it.
    failed: Vec<(ThreadId, Unit, Error)>,
    /// How many were left by the last sweep.
    left: usize,
}

impl Implicit {
    /// Keeps an operation that may be in flight, of this thread.
    pub(crate) fn keep(&self, unit: Unit, handle: Handle<u64>) {
        if handle.is_complete() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.pending.push(Pending {
            thread: std::thread::current().id(),
            unit,
            handle,
        });
        // ORDERING: Relaxed: this thread sees it, and whoever is told by it what it did.
        self.is_used.store(true, Ordering::Relaxed);
        if kept.pending.len() >= SWEEP + 2 * kept.left {
            kept.sweep();
        }
    }

    /// Whether a flush has nothing to do.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed)
    }

    /// Waits for all operations, or those to one unit; their first failure.
    pub(crate) fn flush(&self, of: Option<Unit>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let is_wanted = |unit: Unit| of.is_none_or(|of| of == unit);
        let _flushing = self.flushing.lock();
        let me = std::thread::current().id();
        let pending: Vec<Pending> = {
            let pending = &mut self.kept.lock().pending;
            pending.extract_if(.., |op| is_wanted(op.unit)).collect()
        };
        let mut first = None;
        for Pending {
            thread,
            unit,
            handle,
        } in pending
        {
            if let Err(error) = handle.wait() {
                self.kept.lock().fail(thread, unit, &error);
                first.get_or_insert(error);
            }
        }
        let mut kept = self.kept.lock();
        let own = |(thread, unit, _): &mut (ThreadId, Unit, _)| *thread == me && is_wanted(*unit);
        let failed = kept.failed.extract_if(.., own);
        let failed: Vec<Error> = failed.map(|(.., error)| error).collect();
        let is_used = !kept.pending.is_empty() || !kept.failed.is_empty();
        self.is_used.store(is_used, Ordering::Relaxed);
        failed.into_iter().next().or(first).map_or(Ok(()), Err)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.kept.lock().pending.len()
    }
}

impl Kept {
    /// Lets go of those that have ended.
    #[cold]
    fn sweep(&mut self) {
        let over = self.pending.extract_if(.., |op| op.handle.is_over());
        for op in over.collect::<Vec<_>>() {
            if let Err(error) = op.handle.wait() {
                self.fail(op.thread, op.unit, &error);
            }
        }
        self.left = self.pending.len();
    }

    fn fail(&mut self, thread: ThreadId, unit: Unit, error: &Error) {
        let is_known = |(of, to, _): &(ThreadId, Unit, _)| (*of, *to) == (thread, unit);
        if !self.failed.iter().any(is_known) {
            self.failed.push((thread, unit, error.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pgas, Signal, SignalOp, Wanted};
    use samite_testkit::{check, same, simulate};

    /// Over messages every signal is an operation; nobody flushes.
    #[test]
    fn signals_do_not_pile_up() {
        simulate(
            "implicit::tests::signals_do_not_pile_up",
            2,
            0..2,
            |fabric, _| {
                let pgas = Pgas::new(fabric)?;
                let world = pgas.world();
                let words = world.allocate::<u64>(1)?;
                let signal = Signal {
                    index: 0,
                    op: SignalOp::Add,
                    value: 1,
                };
                let mut most = 0;
                for turn in 1..=2000 {
                    words.signal(1 - world.rank(), signal)?;
                    words.wait_until(0, Wanted::AtLeast(turn))?;
                    most = most.max(pgas.job.implicit.len());
                }
                check!(most > 0 && most <= 1024, "{most} operations are kept");
                world.barrier()?;
                pgas.flush_all()?;
                same!(pgas.job.implicit.len(), 0);
                Ok(world.barrier()?)
            },
        );
    }
}
