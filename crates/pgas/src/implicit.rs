//! Operations that were started without a handle, until they are flushed.

use crate::Unit;
use samite_fabric::{Error, Handle};
use std::cell::RefCell;

/// As many are kept before those that have ended are sorted out.
const SWEEP: usize = 256;

/// See the module's text. The fabric bounds how many operations a peer has unanswered, so what is kept here is
/// bounded, too, however long nobody flushes.
#[derive(Debug, Default)]
pub(crate) struct Implicit(RefCell<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// With whom they go to.
    pending: Vec<(Unit, Handle<u64>)>,
    /// The first failure of those to each unit that ended before somebody asked: the next flush tells it.
    failed: Vec<(Unit, Error)>,
    /// How many were left by the last sweep.
    left: usize,
}

impl Implicit {
    /// Keeps an operation that may be in flight.
    pub(crate) fn keep(&self, unit: Unit, handle: Handle<u64>) {
        if handle.is_complete() {
            return;
        }
        let kept = &mut *self.0.borrow_mut();
        kept.pending.push((unit, handle));
        if kept.pending.len() >= SWEEP + 2 * kept.left {
            kept.sweep();
        }
    }

    /// Whether a flush has nothing to do.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let kept = self.0.borrow();
        kept.pending.is_empty() && kept.failed.is_empty()
    }

    /// Waits for all operations, or those to one unit; their first failure.
    pub(crate) fn flush(&self, of: Option<Unit>) -> Result<(), Error> {
        let is_wanted = |unit: Unit| of.is_none_or(|of| of == unit);
        let (handles, failed) = {
            let kept = &mut *self.0.borrow_mut();
            let handles = kept.pending.extract_if(.., |(unit, _)| is_wanted(*unit));
            let handles: Vec<_> = handles.map(|(_, handle)| handle).collect();
            let failed = kept.failed.extract_if(.., |(unit, _)| is_wanted(*unit));
            (handles, failed.map(|(_, error)| error).next())
        };
        let ended = samite_fabric::wait_all(handles);
        failed.map_or(Ok(()), Err).and(ended.map(drop))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().pending.len()
    }
}

impl Kept {
    /// Lets go of those that have ended.
    #[cold]
    fn sweep(&mut self) {
        let over = self.pending.extract_if(.., |(_, handle)| handle.is_over());
        for (unit, handle) in over {
            if let Err(error) = handle.wait()
                && self.failed.iter().all(|(known, _)| *known != unit)
            {
                self.failed.push((unit, error));
            }
        }
        self.left = self.pending.len();
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
