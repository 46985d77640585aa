//! A non-blocking collective in flight.

use super::call::Call;
use super::combining::Combiner;
use super::run::{Ended, Run};
use crate::Result;
use crate::job::Job;
use crate::team::{Team, stepping};
use crate::unfinished::in_destructor;
use parking_lot::{Mutex, MutexGuard};
use samite_mem::SharedBytes;
use samite_mem::sync::fence;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A call with its combiner.
pub(super) struct Flying {
    run: Run<'static>,
    combiner: Option<Box<dyn Combiner + Send>>,
}

/// A call that the threads of this unit advance in turn.
#[derive(Debug)]
pub(super) struct Flight {
    flying: Mutex<Flying>,
    /// A thread has found the call taken by another one, and may go to sleep.
    missed: AtomicBool,
}

pub(super) type InFlight = Arc<Flight>;

impl std::fmt::Debug for Flying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.run.fmt(f)
    }
}

impl Flying {
    pub(super) fn new(mut run: Run<'static>, combiner: Option<Box<dyn Combiner + Send>>) -> Flying {
        run.is_new = true;
        Flying { run, combiner }
    }

    pub(super) fn step(&mut self, job: &Job) -> Option<&Ended> {
        let combiner = self.combiner.as_deref();
        let combiner = combiner.map(|combiner| combiner as &dyn Combiner);
        stepping(|| self.run.step(job, combiner))
    }
}

impl Flight {
    pub(super) fn new(flying: Flying) -> InFlight {
        Arc::new(Flight {
            flying: Mutex::new(flying),
            missed: AtomicBool::new(false),
        })
    }

    /// Takes the call, unless another thread has it.
    fn take(&self) -> Option<MutexGuard<'_, Flying>> {
        self.flying.try_lock().or_else(|| {
            // ORDERING: Release, with the Acquire swap of `advance`: the step that clears the mark
            // sees what this thread saw. SeqCst, with its fence: the call is free by now, or the
            // thread that advances it will see `missed`.
            self.missed.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            self.flying.try_lock()
        })
    }

    /// Returns true if a step would advance the call, judging by flags alone.
    pub(super) fn is_ready(&self) -> bool {
        // A step may have ended before it could see what the thread that missed the call brought.
        let is_ready = |flying: MutexGuard<'_, Flying>| {
            self.missed.load(Ordering::Relaxed) || flying.run.is_ready()
        };
        self.take().is_some_and(is_ready)
    }

    /// Takes a step, which returns a value once the call has ended, unless another thread has the
    /// call. Wakes the other threads if the call has ended or one of them has found it taken.
    pub(super) fn advance<R>(
        &self,
        job: &Job,
        step: impl FnOnce(&mut Flying) -> Option<R>,
    ) -> Option<R> {
        let mut flying = self.take()?;
        // ORDERING: Acquire pairs with the Release store in `take`: this step sees what that thread
        // saw. A mark that is set from now on stays for the next step.
        self.missed.swap(false, Ordering::Acquire);
        let ended = step(&mut flying);
        drop(flying);
        // ORDERING: SeqCst: see `take`.
        fence(Ordering::SeqCst);
        if self.missed.load(Ordering::Relaxed) || ended.is_some() {
            job.nudge(job.me);
        }
        ended
    }
}

/// A non-blocking collective. It owns its buffers, or shares those in symmetric memory;
/// [`Pending::wait`] returns the result. Wait, test, or `.await`.
///
/// It advances whenever this unit waits in a collective, for a signal, or for the holder of a lock,
/// tests or waits for any of its pending ones, or calls [`crate::Pgas::progress`]. If it is dropped
/// or forgotten, it still advances, and only its result is lost. Where the members of a team share
/// memory, its calls advance one after the other.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::Sum;
/// let mut sum = world.iall_reduce(vec![1.0; 1000], Sum)?;
/// while sum.test().is_none() {
///     // ... compute
/// }
/// assert_eq!(sum.wait()?[0], f64::from(world.size()));
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a collective that is not waited for may end at any time"]
pub struct Pending<R> {
    team: Team,
    call: Call,
    pub(super) flight: InFlight,
    /// The checking mode has not merged the clocks of the others yet.
    unwatched: AtomicBool,
    result: fn(&SharedBytes, u64) -> R,
    /// The memory of the result, and its number of elements.
    memory: SharedBytes,
    count: u64,
}

impl<R> Pending<R> {
    pub(super) fn start(
        team: &Team,
        flying: Flying,
        (result, memory, count): (fn(&SharedBytes, u64) -> R, SharedBytes, u64),
    ) -> Self {
        let (job, call) = (&team.0.job, flying.run.call());
        if let Some(check) = &job.check {
            let begun = check.begin(team.0.members(), call.number, |to| {
                call.connects(team.rank(), to)
            });
            if let Err(error) = begun {
                tracing::debug!(%error, "the checking mode cannot tell of a collective");
            }
        }
        Pending {
            team: team.clone(),
            call,
            flight: job.collectives.fly(job, flying),
            unwatched: AtomicBool::new(job.check.is_some()),
            result,
            memory,
            count,
        }
    }

    /// Tells the checking mode that this unit has the result, so that it merges the clocks of the
    /// members that the result depends on.
    #[cold]
    fn watch(&self) -> Result<()> {
        // ORDERING: Relaxed: it is only used while this thread has the call.
        self.unwatched.store(false, Ordering::Relaxed);
        match &self.team.0.job.check {
            None => Ok(()),
            Some(check) => {
                let rank = self.team.rank();
                check.end(self.team.0.members(), self.call.number, |from| {
                    self.call.connects(from, rank)
                })
            }
        }
    }

    fn look(&self) -> Option<Result<R>> {
        let job = &self.team.0.job;
        self.flight.advance(job, |flying| {
            let ended = flying.step(job)?.clone();
            Some(self.answer(ended))
        })
    }

    fn answer(&self, ended: Ended) -> Result<R> {
        ended.map_err(|failure| failure.error(&self.team.0, self.call.kind.name()))?;
        if self.unwatched.load(Ordering::Relaxed) {
            self.watch()?;
        }
        Ok((self.result)(&self.memory, self.count))
    }

    /// Makes some progress, and returns the result if the call has ended. May be called again
    /// afterwards.
    pub fn test(&mut self) -> Option<Result<R>> {
        self.team.fabric().progress();
        self.team.0.job.step();
        self.look()
    }

    /// Waits until the collective has ended.
    ///
    /// # Errors
    /// Those of the blocking form. The deadline ends the collective here, unless another thread is
    /// advancing it: then it continues, and only its result is lost.
    pub fn wait(self) -> Result<R> {
        let job = &self.team.0.job;
        let what = self.call.kind.name();
        let waited = job.wait_stepping(what, &[], || self.look(), || self.flight.is_ready());
        waited.unwrap_or_else(|error| {
            let late = error.clone();
            // Another thread may just have brought it to its end.
            let end = |flying: &mut Flying| Some(self.answer(flying.run.time_out(job, late)));
            let ended = self.flight.advance(job, end);
            ended.unwrap_or_else(|| Err(error.into()))
        })
    }
}

impl<R> Drop for Pending<R> {
    /// Nobody will receive the clocks of a call that has failed, or that was not waited for.
    fn drop(&mut self) {
        if *self.unwatched.get_mut() {
            let flight = Arc::downgrade(&self.flight);
            let forget = || self.team.0.forget_clocks(&self.call, flight);
            in_destructor(self.team.fabric(), forget);
        }
    }
}

impl<R> std::future::Future for Pending<R> {
    type Output = Result<R>;

    /// Makes progress and asks to be polled again: no hidden thread would wake it.
    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        match self.test() {
            Some(result) => std::task::Poll::Ready(result),
            None => {
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pgas, Sum};
    use samite_fabric::{Error, Whom};
    use samite_testkit::{check, same, simulate, simulate_on};
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    /// A thread that finds a call taken is woken by the one that has it, once.
    #[test]
    fn a_step_that_another_thread_missed_wakes_it() {
        let name = "collective::pending::tests::a_step_that_another_thread_missed_wakes_it";
        simulate(name, 1, 0..1, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let barrier = pgas.world().ibarrier()?;
            let flight = &barrier.flight;
            let was_missed = || flight.missed.load(Ordering::Relaxed);
            let step = |is_taken: bool| {
                flight.advance(&pgas.job, |_| {
                    if is_taken {
                        let other = || {
                            flight.is_ready() || flight.advance(&pgas.job, |_| Some(())).is_some()
                        };
                        assert!(!std::thread::scope(|scope| scope.spawn(other).join()).unwrap());
                        assert!(was_missed());
                    }
                    None::<()>
                })
            };
            same!((step(false), was_missed()), (None, false));
            // The mark stays until a step that began after it: whoever looks finds the call ready.
            same!((step(true), was_missed()), (None, true));
            check!(flight.is_ready());
            same!((step(false), was_missed()), (None, false));
            Ok(barrier.wait()?)
        });
    }

    /// If another thread brings a call to its end after the deadline of a wait but before its last
    /// check, the call keeps that result.
    #[test]
    fn what_has_ended_is_not_late() {
        for nodes in [1, 2] {
            let name = "collective::pending::tests::what_has_ended_is_not_late";
            simulate_on(nodes, name, 2, 0..4, |fabric, _| {
                let pgas = Pgas::new(fabric)?;
                let world = pgas.world();
                let sum = world.iall_reduce(vec![1], Sum)?;
                pgas.job.wait_until("a test", &[], || {
                    pgas.job.collectives.is_idle().then_some(())
                })?;
                let (what, whom, after) = ("a test", Whom::Any, Duration::ZERO);
                let late = Error::timeout(what, whom, after);
                let ended = sum.flight.flying.lock().run.time_out(&pgas.job, late);
                check!(ended.is_ok(), "{ended:?}");
                same!(sum.wait()?, [2]);
                let mut all = [0];
                world.all_reduce(&[2], &mut all, Sum)?;
                same!(all, [4]);
                Ok(world.barrier()?)
            });
        }
    }
}
