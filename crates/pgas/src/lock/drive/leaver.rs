//! Completes what a call of a lock has left unfinished, without that lock: leaving the queue after
//! a drop, and a release.

use super::{Attempts, CallState};
use crate::lock::Lock;
use crate::lock::protocol::{Acquire, End, Release, Settle, Step};
use crate::unfinished::Finish;
use crate::{Error, Result};
use parking_lot::Mutex;
use samite_fabric::Handle;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The rest of the work for a lock that this unit has given back, or for a place in its queue that
/// it has given up.
#[derive(Debug)]
pub(in crate::lock) struct Leaver {
    lock: Lock,
    settle: Settle,
    step: Step,
    asked: Option<Handle<u64>>,
}

impl Leaver {
    /// Completes a release.
    pub(super) fn of(
        lock: &Lock,
        machine: Release,
        step: Step,
        asked: Option<Handle<u64>>,
    ) -> Leaver {
        Leaver::new(lock, (Settle::Release(machine), step), asked)
    }

    /// Completes an acquisition of a lock that is being dropped, by leaving the queue.
    pub(super) fn instead_of(
        lock: &Lock,
        machine: Acquire,
        step: Step,
        asked: Option<Handle<u64>>,
    ) -> Leaver {
        Leaver::new(lock, Settle::acquisition(machine, step), asked)
    }

    fn new(lock: &Lock, (settle, step): (Settle, Step), asked: Option<Handle<u64>>) -> Leaver {
        let lock = Lock {
            team: lock.team.clone(),
            number: lock.number,
            words: lock.words.clone(),
            call: CallState::new(),
            ticket: AtomicU64::new(lock.ticket().0),
            left: Mutex::default(),
        };
        Leaver {
            lock,
            settle,
            step,
            asked,
        }
    }

    /// Continues to the end, or until something is not answered in time. Any other error is also an
    /// end.
    pub(super) fn settle(&mut self) -> Result<()> {
        let done = self.walk_out();
        if done.as_ref().is_err_and(|error| !is_late(error)) {
            (self.step, self.asked) = (Step::Ended(End::Interrupted), None);
        }
        done
    }

    fn walk_out(&mut self) -> Result<()> {
        let mut walk = Attempts::default();
        while !matches!(self.step, Step::Ended(_)) {
            let near = match &self.asked {
                Some(_) => None,
                None => {
                    self.lock.walk(&mut walk)?;
                    self.lock.carry_out(self.step)?
                }
            };
            let answer = match near {
                Some(answer) => answer,
                None => self.lock.ask_home(self.step, &mut self.asked)?,
            };
            self.step = self.settle.step(answer);
        }
        Ok(())
    }

    /// Returns true if a release has ended and a unit was behind this one.
    pub(super) fn has_used_the_ticket(&self) -> bool {
        self.step == Step::Ended(End::Released { used: true })
    }
}

impl Finish for Arc<Mutex<Leaver>> {
    fn go_on(&mut self) -> bool {
        let Some(mut leaver) = self.try_lock() else {
            // A call is continuing it.
            return false;
        };
        if leaver.asked.as_ref().is_some_and(|asked| !asked.is_over()) {
            return false;
        }
        let done = leaver.settle();
        let is_over = !done.as_ref().is_err_and(is_late);
        if is_over {
            report(done);
        }
        is_over
    }
}

/// Returns true if the wait was given up: the machine can continue.
pub(super) fn is_late(error: &Error) -> bool {
    matches!(error, Error::Fabric(below) if below.is_given_up())
}

pub(super) fn report(left: Result<()>) {
    if let Err(error) = left {
        tracing::warn!(%error, "a lock, or a place in its queue, could not be given up");
    }
}
