//! Machines that wait for their next step, and machines that a call has left unfinished.

use super::call_state::State;
use super::leaver::{Leaver, is_late};
use crate::Result;
use crate::lock::Lock;
use crate::lock::protocol::{Acquire, Release, Step, Ticket, Wait, Wish};
use parking_lot::Mutex;
use samite_fabric::Handle;
use std::sync::Arc;

/// A machine that a call has left unfinished.
#[derive(Debug)]
pub(in crate::lock) enum Interrupted {
    Acquire {
        machine: Acquire,
        /// Its next step.
        step: Step,
        /// The pending request to the home for it. `None`: the step has not begun.
        asked: Option<Handle<u64>>,
    },
    /// Shared with this unit's progress, because others wait for the release.
    Release(Arc<Mutex<Leaver>>),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Machine {
    Acquire(Acquire),
    Release(Release),
}

/// A machine that waits for its next step. The lock keeps it if the step may still be executed:
/// after the deadline, after any error in a wait for a predecessor (which can begin again), and
/// after a panic of an operator or a handler that runs meanwhile.
pub(super) struct Waiting<'l> {
    lock: &'l Lock,
    machine: Machine,
    step: Step,
    asked: Option<Handle<u64>>,
    is_kept: bool,
}

impl Waiting<'_> {
    /// Waits for the home's answer.
    pub(super) fn answer(mut self) -> Result<u64> {
        let answer = self.lock.ask_home(self.step, &mut self.asked);
        self.is_kept = answer.as_ref().is_err_and(is_late);
        answer
    }

    /// Waits for a predecessor.
    pub(super) fn wait(mut self, behind: Ticket, wish: Wish) -> Result<Option<Wait>> {
        let wait = self.lock.wait(behind, wish);
        self.is_kept = wait.is_err();
        wait
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            let asked = self.asked.take();
            self.lock.leave(self.machine, self.step, asked);
        }
    }
}

impl Lock {
    #[cold]
    pub(super) fn waiting(
        &self,
        machine: Machine,
        step: Step,
        asked: Option<Handle<u64>>,
    ) -> Waiting<'_> {
        Waiting {
            lock: self,
            machine,
            step,
            asked,
            is_kept: true,
        }
    }

    /// Keeps a machine whose next step was not executed.
    #[cold]
    pub(super) fn leave(&self, machine: Machine, step: Step, asked: Option<Handle<u64>>) {
        let left = match machine {
            Machine::Acquire(machine) => Interrupted::Acquire {
                machine,
                step,
                asked,
            },
            Machine::Release(machine) => {
                Interrupted::Release(self.add_leaver(Leaver::of(self, machine, step, asked)))
            }
        };
        self.call.set(State::Leaving);
        *self.left.lock() = Some(left);
    }
}
