//! Tracks operations that were started without a handle until they are flushed.

use parking_lot::Mutex;
use samite_fabric::{Error, Fabric, Handle, PeerId, Whom};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Number of tracked operations, besides those in flight, at which completed ones are removed.
const SWEEP: usize = 256;

thread_local! {
    /// Identifies the thread as long as it lives.
    static THREAD: Arc<()> = Arc::default();
}

fn this_thread() -> Weak<()> {
    // A thread that is ending has no identity any more.
    THREAD.try_with(Arc::downgrade).unwrap_or_default()
}

/// See the module documentation. The fabric bounds the unanswered operations per peer, so this list
/// is bounded as well, even without a flush.
///
/// A flush waits for the operations that all threads have started before it, and returns the
/// failures of its own thread.
#[derive(Debug, Default)]
pub(crate) struct Implicit {
    /// Its holder may use the fabric. So a handler, which runs while its thread holds the fabric,
    /// must not wait for it.
    kept: Mutex<Tracked>,
    /// The number of the next operation. Changed under the lock.
    next: AtomicU64,
    /// Set if anything is tracked.
    is_used: AtomicBool,
}

/// A tracked operation.
#[derive(Debug)]
struct Pending {
    /// The thread that started it.
    thread: Weak<()>,
    to: PeerId,
    number: u64,
    handle: Handle<u64>,
}

#[derive(Debug, Default)]
struct Tracked {
    pending: Vec<Pending>,
    /// The first failure of each living thread's operations to each peer. The thread's next flush
    /// returns it.
    failed: Vec<(Weak<()>, PeerId, Error)>,
    /// The number of operations that the last sweep found in flight.
    in_flight: usize,
}

impl Implicit {
    /// Tracks an operation of this thread that may be in flight.
    pub(crate) fn track(&self, to: PeerId, handle: Handle<u64>) {
        let mut kept = self.kept.lock();
        // ORDERING: Relaxed: orders nothing. A thread's flush sees its own operations, and those
        // of threads that synchronise with it.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        kept.pending.push(Pending {
            thread: this_thread(),
            to,
            number,
            handle,
        });
        // ORDERING: Relaxed: this thread sees it, and so does every thread that synchronises with
        // it.
        self.is_used.store(true, Ordering::Relaxed);
        if kept.pending.len() >= SWEEP + 2 * kept.in_flight {
            kept.take_results(|op| op.handle.is_over());
            kept.forget_the_ended();
            kept.in_flight = kept.pending.len();
        }
    }

    /// Returns true if a flush has nothing to do.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed)
    }

    /// Waits for all operations, or those to one peer, that were started before. Errors: the first
    /// failure of this thread's operations; the deadline.
    pub(crate) fn flush(&self, fabric: &Fabric, to: Option<PeerId>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let is_for = |peer| to.is_none_or(|to| to == peer);
        // Excludes operations that other threads start from now on: they may start faster than they
        // end.
        let next = self.next.load(Ordering::Relaxed);
        let is_wanted = |op: &Pending| op.number < next && is_for(op.to);
        // The operations stay in the list, because a handler that runs during the wait may panic.
        let step = || {
            let mut kept = self.kept.lock();
            let mut all_over = true;
            kept.take_results(|op| {
                let is_wanted = is_wanted(op);
                all_over = all_over && (!is_wanted || op.handle.is_over());
                all_over && is_wanted
            });
            all_over.then_some(())
        };
        let waited = fabric.wait_stepping("a flush", to.as_slice(), step, || false);
        let mut given_up = Vec::new();
        let mut kept = self.kept.lock();
        let waited = waited.or_else(|error| kept.give_up(is_wanted, &mut given_up, error));
        let me = this_thread();
        let own = |(thread, to, _): &mut (Weak<()>, _, _)| thread.ptr_eq(&me) && is_for(*to);
        let failed: Vec<_> = kept.failed.extract_if(.., own).collect();
        kept.forget_the_ended();
        let is_used = !kept.pending.is_empty() || !kept.failed.is_empty();
        self.is_used.store(is_used, Ordering::Relaxed);
        drop(kept);
        // Without the lock, because handlers may run.
        given_up.iter_mut().for_each(|op| op.handle.cancel());
        let failed = failed.into_iter().next();
        let waited = waited.map_err(|error| fabric.named(error));
        waited.and(failed.map_or(Ok(()), |(.., error)| Err(error)))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.kept.lock().pending.len()
    }
}

impl Tracked {
    /// Moves the operations of this thread and of threads that have ended to `given_up`. Other
    /// threads flush their own, perhaps with a longer deadline. Errors: `error`, with the peer.
    #[cold]
    fn give_up(
        &mut self,
        is_wanted: impl Fn(&Pending) -> bool,
        given_up: &mut Vec<Pending>,
        error: Error,
    ) -> Result<(), Error> {
        let first = self.pending.iter().find(|op| is_wanted(op));
        let Some(whom) = first.map(|op| Whom::Peer(op.to)) else {
            return Ok(());
        };
        let me = this_thread();
        let is_left = |op: &mut Pending| {
            let nobody_flushes = op.thread.ptr_eq(&me) || op.thread.strong_count() == 0;
            is_wanted(op) && nobody_flushes
        };
        given_up.extend(self.pending.extract_if(.., is_left));
        Err(match error {
            Error::Timeout { what, after, .. } => Error::timeout(what, whom, after),
            error => error,
        })
    }

    /// Forgets the failures of threads that have ended, which cannot flush any more.
    fn forget_the_ended(&mut self) {
        self.failed.retain(|(thread, ..)| thread.strong_count() > 0);
    }

    /// Takes the results of the operations for which `which` is true.
    fn take_results(&mut self, which: impl FnMut(&mut Pending) -> bool) {
        let Tracked {
            pending, failed, ..
        } = self;
        for Pending {
            thread, to, handle, ..
        } in pending.extract_if(.., which)
        {
            let is_known = |(of, peer, _): &(Weak<()>, _, _)| of.ptr_eq(&thread) && *peer == to;
            if let Err(error) = handle.wait()
                && !failed.iter().any(is_known)
            {
                failed.push((thread, to, error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tampered::{PUT, lose};
    use crate::{Pgas, Signal, SignalOp, Wanted};
    use samite_fabric::{Config, Identity, Remote, Segment};
    use samite_testkit::{Failed, MESSAGES_ONLY, Outcome, check, same, simulate, units};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::ScopedJoinHandle;
    use std::time::Duration;

    /// Returns a fabric, and a segment of it that is accessed by messages: a put ends with the next
    /// turn of the engine.
    fn alone() -> Outcome<(Fabric, Segment, Remote)> {
        let fabric = Fabric::alone(Identity::by_hand("implicit"), Config::default())?;
        let segment = fabric.allocate(64)?;
        let remote = fabric.attach_unseen(segment.key());
        Ok((fabric, segment, remote))
    }

    const HANDLER: u16 = 7;

    /// A flush that ends by a panic of a handler keeps the operations of other threads. A handler
    /// that flushes while its thread does panics, too, instead of waiting.
    #[test]
    fn a_panic_of_one_flush_leaves_the_operations_to_the_next() -> Outcome {
        let (fabric, segment, remote) = alone()?;
        let implicit = Arc::new(Implicit::default());
        let (flushing, core) = (Arc::downgrade(&implicit), fabric.clone());
        fabric.on(HANDLER, move |_, _| {
            let flushed = flushing
                .upgrade()
                .map(|implicit| implicit.flush(&core, None));
            assert!(flushed.is_none(), "a handler has flushed");
            None
        });
        fabric.tell(fabric.me(), HANDLER, &[])?;
        implicit.track(fabric.me(), remote.put_nb(0, &[7])?);
        let flushed = catch_unwind(AssertUnwindSafe(|| implicit.flush(&fabric, None)));
        check!(flushed.is_err(), "the handler did not run in the flush");
        same!(implicit.len(), 1);
        implicit.flush(&fabric, None)?;
        let mut found = [0];
        segment.bytes().read(0, &mut found);
        same!(found, [7]);
        same!(implicit.len(), 0);
        Ok(())
    }

    /// A flush in a handler, which holds the fabric, does not wait for a thread that uses the list:
    /// that thread may be waiting for the fabric.
    #[test]
    fn a_handler_does_not_wait_for_the_list() -> Outcome {
        let (fabric, _segment, remote) = alone()?;
        let implicit = Arc::new(Implicit::default());
        let (flushing, core) = (Arc::downgrade(&implicit), fabric.clone());
        fabric.on(HANDLER, move |_, _| {
            let _ = flushing.upgrade()?.flush(&core, None);
            None
        });
        implicit.track(fabric.me(), remote.put_nb(0, &[7])?);
        fabric.tell(fabric.me(), HANDLER, &[])?;
        let kept = implicit.kept.lock();
        let turn = |_| catch_unwind(AssertUnwindSafe(|| fabric.progress())).is_err();
        check!((0..100).any(turn), "the flush in the handler did not panic");
        drop(kept);
        Ok(implicit.flush(&fabric, None)?)
    }

    /// Each thread gets the failures of its own operations, whichever flush found them. Failures of
    /// a thread that has ended are forgotten.
    #[test]
    fn failures_are_told_to_whom_they_belong() -> Outcome {
        let (fabric, segment, remote) = alone()?;
        drop(segment);
        let implicit = Implicit::default();
        let start = || -> Outcome {
            implicit.track(fabric.me(), remote.put_nb(0, &[7])?);
            Ok(())
        };
        start()?;
        std::thread::scope(|scope| scope.spawn(|| implicit.flush(&fabric, None)).join())
            .map_err(|_| Failed::new("a thread panicked"))??;
        check!(!implicit.is_empty(), "the failure is lost");
        check!(implicit.flush(&fabric, None).is_err());
        check!(implicit.is_empty());
        std::thread::scope(|scope| scope.spawn(start).join())
            .map_err(|_| Failed::new("a thread panicked"))??;
        implicit.flush(&fabric, None)?;
        check!(implicit.is_empty(), "a failure is kept for nobody");
        Ok(())
    }

    /// A flush does not return before the operations of its thread are complete, even if a flush of
    /// another thread waits for them.
    #[test]
    fn each_thread_flushes_what_it_started() {
        let name = "implicit::tests::each_thread_flushes_what_it_started";
        units(2).mask(MESSAGES_ONLY).run(name, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let words = world.allocate::<u64>(8)?;
            let thread = |index| -> Outcome {
                for round in 1..=100 {
                    words.put_implicit(1 - world.rank(), index, &[round])?;
                    pgas.flush_all()?;
                    let me = this_thread();
                    let kept = pgas.job.implicit.kept.lock();
                    check!(!kept.pending.iter().any(|op| op.thread.ptr_eq(&me)));
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|at| scope.spawn(move || thread(at))).collect();
                let join = |thread: ScopedJoinHandle<'_, _>| {
                    let ended = thread.join();
                    ended.unwrap_or_else(|_| Err(Failed::new("a thread panicked")))
                };
                threads.into_iter().try_for_each(join)
            })?;
            Ok(world.barrier()?)
        });
    }

    /// A flush does not wait for operations that start during it. At its deadline, it gives up
    /// those of its own thread and of threads that have ended.
    #[test]
    fn a_flush_is_of_what_was_started_before() {
        let name = "implicit::tests::a_flush_is_of_what_was_started_before";
        units(2).mask(MESSAGES_ONLY).run(name, |fabric, peers| {
            let pgas = Pgas::new(fabric)?;
            let (world, implicit) = (pgas.world(), &pgas.job.implicit);
            let words = world.allocate::<u64>(1)?;
            if world.rank() == 0 {
                let lost = Arc::new(AtomicU64::new(PUT.into()));
                lose(fabric, &lost);
                let endless = || words.put_nb(1, 0, &[1]);
                let (first, second) = (endless()?, Mutex::new(Some(endless()?)));
                fabric.progress();
                lost.store(0, Ordering::Relaxed);
                // During the flush, or, if the put is answered before the handler runs, after it.
                let (job, peer) = (Arc::downgrade(&pgas.job), peers[1]);
                let tracked = Arc::new(AtomicU64::new(0));
                let handled = tracked.clone();
                fabric.on(HANDLER, move |_, _| {
                    let (job, late) = (job.upgrade()?, second.lock().take()?);
                    job.implicit.track(peer, late);
                    handled.store(1, Ordering::Relaxed);
                    None
                });
                words.put_implicit(1, 0, &[2])?;
                fabric.tell(fabric.me(), HANDLER, &[])?;
                pgas.flush_all()?;
                let is_tracked = || (tracked.load(Ordering::Relaxed) == 1).then_some(());
                fabric.wait_until("the handler", &[peer], is_tracked)?;
                same!(implicit.len(), 1);
                let short = || fabric.within(Duration::from_millis(5), || pgas.flush_all());
                check!(short().is_err());
                same!(implicit.len(), 0);
                let turns = std::sync::Barrier::new(2);
                std::thread::scope(|scope| -> Outcome {
                    scope.spawn(|| {
                        implicit.track(peer, first);
                        turns.wait();
                        turns.wait();
                    });
                    turns.wait();
                    let flushed = (short().is_err(), implicit.len());
                    turns.wait();
                    same!(flushed, (true, 1));
                    Ok(())
                })?;
                check!(short().is_err());
                same!(implicit.len(), 0);
            }
            Ok(world.barrier()?)
        });
    }

    /// Over messages, every signal is an operation, and none is flushed here.
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
