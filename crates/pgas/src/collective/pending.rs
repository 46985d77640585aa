//! A non-blocking collective in flight.

use super::call::{Call, Failure, Kind};
use super::combining::Combiner;
use super::machine::Machine;
use crate::team::Team;
use crate::{Elem, Result};
use parking_lot::Mutex;
use samite_mem::SharedBytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A machine with what it combines by.
pub(super) struct Flying {
    pub(super) machine: Machine,
    pub(super) combiner: Option<Box<dyn Combiner + Send>>,
}

pub(super) type InFlight = Arc<Mutex<Flying>>;

impl std::fmt::Debug for Flying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.machine.fmt(f)
    }
}

impl Flying {
    pub(super) fn step(&mut self) -> Option<&Result<(), Failure>> {
        let combiner = self.combiner.as_deref();
        self.machine
            .step(combiner.map(|combiner| combiner as &dyn Combiner))
    }
}

/// A non-blocking collective. It owns its buffers; [`Pending::wait`] gives the result. Wait, test, or
/// `.await`.
///
/// It moves on whenever this unit waits in a collective, for a signal, or for the holder of a lock, tests or waits for any of
/// its pending ones, or calls [`crate::Pgas::progress`]. Dropped or forgotten it goes on in the same way, and only its result
/// is lost.
#[derive(Debug)]
#[must_use = "a collective that nobody waits for ends whenever it likes"]
pub struct Pending<R> {
    team: Team,
    kind: Kind,
    flying: InFlight,
    /// The checking mode has not learned of the others yet.
    unwatched: AtomicBool,
    result: fn(&SharedBytes, u64) -> R,
    /// Elements of the result.
    count: u64,
}

impl<R> Pending<R> {
    pub(super) fn start(
        team: &Team,
        kind: Kind,
        flying: Flying,
        (result, count): (fn(&SharedBytes, u64) -> R, u64),
    ) -> Self {
        let call = flying.machine.call();
        if let Some(check) = &team.0.job.check {
            let begun = check.begin(&team.0, call.number, |to| call.connects(team.rank(), to));
            if let Err(error) = begun {
                tracing::debug!(%error, "the checking mode cannot tell of a collective");
            }
        }
        let flying = Arc::new(Mutex::new(flying));
        let has_ended = flying.lock().step().is_some();
        if !has_ended {
            let collectives = &team.0.job.collectives;
            collectives.in_flight.lock().push(flying.clone());
        }
        Pending {
            team: team.clone(),
            kind,
            flying,
            unwatched: AtomicBool::new(team.0.job.check.is_some()),
            result,
            count,
        }
    }

    /// The checking mode: this unit has the result, and so learns of whom it depends on.
    #[cold]
    fn watch(&self, call: Call) -> Result<()> {
        // ORDERING: Relaxed: it is used with the lock of `flying`.
        self.unwatched.store(false, Ordering::Relaxed);
        match &self.team.0.job.check {
            None => Ok(()),
            Some(check) => {
                let rank = self.team.rank();
                check.end(&self.team.0, call.number, |from| call.connects(from, rank))
            }
        }
    }

    fn look(&self) -> Option<Result<R>> {
        // Another thread may be moving it on.
        let mut flying = self.flying.try_lock()?;
        let ended = flying.step()?.clone();
        if ended.is_ok()
            && self.unwatched.load(Ordering::Relaxed)
            && let Err(error) = self.watch(flying.machine.call())
        {
            return Some(Err(error));
        }
        let error = |failure: Failure| failure.error(&self.team.0, self.kind.name());
        Some(match ended {
            Ok(()) => Ok((self.result)(flying.machine.output(), self.count)),
            Err(failure) => Err(error(failure)),
        })
    }

    /// The result, if it has ended; makes some progress. Asked again it answers again.
    pub fn test(&mut self) -> Option<Result<R>> {
        self.team.fabric().progress();
        self.team.0.job.step();
        self.look()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// Those of the blocking form; a wait that is over ends the collective here.
    pub fn wait(self) -> Result<R> {
        let step = || {
            self.team.0.job.step();
            self.look()
        };
        let what = self.kind.name();
        let waited = self.team.fabric().wait_stepping(what, &[], step, || false);
        waited.unwrap_or_else(|error| {
            let failure = self.flying.lock().machine.time_out(error);
            Err(failure.error(&self.team.0, what))
        })
    }
}

impl<R> std::future::Future for Pending<R> {
    type Output = Result<R>;

    /// Makes progress itself and asks to be polled again: there is no hidden thread to wake it.
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

/// The result of a collective that only synchronises.
pub(super) fn nothing(_: &SharedBytes, _: u64) {}

/// The result of all others.
pub(super) fn elements<T: Elem>(bytes: &SharedBytes, count: u64) -> Vec<T> {
    let mut elements = vec![T::zeroed(); count as usize];
    bytes.read(0, crate::bytes_of_mut(&mut elements));
    elements
}
