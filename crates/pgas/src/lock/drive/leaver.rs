//! The way out of the queue for a lock that is dropped when a call has left something in the middle.

use super::{Below, Left, Machine, State, Walk};
use crate::lock::Lock;
use crate::lock::protocol::{Settle, Step};
use crate::unfinished::Finish;
use crate::{Error, Result};
use samite_fabric::Handle;
use std::cell::{Cell, RefCell};

/// A lock that was dropped, and has not left its queue yet.
#[derive(Debug)]
pub(super) struct Leaver<'f> {
    lock: Lock<'f>,
    settle: Settle,
    step: Step,
    asked: Option<Handle<'f, u64>>,
}

impl<'f> Leaver<'f> {
    /// Of a lock that is being dropped.
    pub(super) fn new(lock: &Lock<'f>, left: Left<'f>) -> Leaver<'f> {
        let lock = Lock {
            team: lock.team.clone(),
            number: lock.number,
            words: lock.words.clone(),
            ticket: lock.ticket.clone(),
            state: Cell::new(State::Idle),
            left: RefCell::new(None),
        };
        let (settle, step) = match left.machine {
            Machine::Release(machine) => (Settle::Release(machine), left.step),
            Machine::Acquire(machine) => Settle::acquisition(machine, left.step),
        };
        let asked = left.asked;
        Leaver {
            lock,
            settle,
            step,
            asked,
        }
    }

    /// Goes on to the end, or until something is not answered in time.
    pub(super) fn settle(&mut self) -> Result<()> {
        let mut walk = Walk::default();
        while !matches!(self.step, Step::Ended(_)) {
            let answer = match self.asked.take() {
                Some(asked) => self.lock.answer(self.step, asked),
                None => {
                    let walked = walk.step(&self.lock);
                    walked.and_then(|()| self.lock.carry_out(self.step))
                }
            };
            match answer {
                Ok(answer) => self.step = self.settle.step(answer),
                Err(late) => {
                    self.asked = late.handle;
                    return Err(late.error);
                }
            }
        }
        Ok(())
    }
}

impl Finish for Leaver<'_> {
    fn go_on(&mut self) -> bool {
        if self.asked.as_ref().is_some_and(|asked| !asked.is_over()) {
            return false;
        }
        match self.settle() {
            Err(Error::Fabric(Below::Timeout { .. })) => false,
            done => {
                report(done);
                true
            }
        }
    }
}

pub(super) fn report(left: Result<()>) {
    if let Err(error) = left {
        tracing::warn!(%error, "the place in the queue of a lock could not be given up");
    }
}
