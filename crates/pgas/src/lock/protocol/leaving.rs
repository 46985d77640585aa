//! Leaving the queue for good without the lock: for a waiter ([`Leave`]), and for a lock that is
//! dropped after a call has left a machine unfinished ([`Settle`]).

use super::words::{FAR, LEFT, MEMBER};
use super::{Acquire, End, Release, Step, Ticket, Wish, Word};

/// Leaves the queue without having had the lock, for a waiter that gives it up for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::lock) struct Leave {
    me: Ticket,
    at: Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leaving {
    Begin,
    Saying { expected: u64 },
    Woken,
}

impl Leave {
    /// `me`: the ticket of an acquisition that is waiting.
    fn new(me: Ticket) -> Leave {
        let at = Leaving::Begin;
        Leave { me, at }
    }

    /// Returns the next step, given the answer to the last one.
    fn step(&mut self, answer: u64) -> Step {
        match self.at {
            Leaving::Begin => self.say(self.me.fresh_link()),
            Leaving::Saying { expected } if answer == expected => match answer & MEMBER {
                // A unit that comes later finds that this one has left.
                0 => Step::Ended(End::Interrupted),
                next => {
                    self.at = Leaving::Woken;
                    Step::Wake {
                        member: next as u32 - 1,
                        far: answer & FAR != 0,
                        word: self.me.wake_without(),
                    }
                }
            },
            // A unit announced itself meanwhile.
            Leaving::Saying { .. } => self.say(answer),
            Leaving::Woken => Step::Ended(End::Interrupted),
        }
    }

    fn say(&mut self, expected: u64) -> Step {
        self.at = Leaving::Saying { expected };
        Step::Exchange {
            word: Word::Link(self.me.member()),
            expected,
            new: expected | LEFT,
        }
    }
}

/// Completes a machine that was left unfinished, for a unit that no longer wants the lock and never
/// asks for it again. Afterwards it has neither the lock nor a place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::lock) enum Settle {
    Acquire(Acquire),
    Leave(Leave),
    Release(Release),
}

impl Settle {
    /// Replaces an acquisition whose next step was to be `step`. Returns the next step.
    pub(in crate::lock) fn acquisition(mut machine: Acquire, step: Step) -> (Settle, Step) {
        // It no longer waits for any other unit.
        machine.wish(Wish::Try);
        let mut settle = Settle::Acquire(machine);
        let step = settle.instead_of(step);
        (settle, step)
    }

    /// Returns the next step, given the answer to the last one.
    pub(in crate::lock) fn step(&mut self, answer: u64) -> Step {
        let step = match self {
            Settle::Acquire(machine) => machine.step(answer),
            Settle::Leave(machine) => machine.step(answer),
            Settle::Release(machine) => machine.step(answer),
        };
        self.instead_of(step)
    }

    /// Returns what is done in place of a step of the machine.
    fn instead_of(&mut self, step: Step) -> Step {
        match (&*self, step) {
            (Settle::Acquire(machine), Step::Await(_)) => {
                let mut leave = Leave::new(machine.me);
                let step = leave.step(0);
                *self = Settle::Leave(leave);
                step
            }
            (Settle::Acquire(machine), Step::Ended(End::Held { broken })) => {
                let mut release = Release::new(machine.me, false, broken);
                let step = release.step(0);
                *self = Settle::Release(release);
                step
            }
            (Settle::Acquire(_), Step::Ended(_)) => Step::Ended(End::Interrupted),
            (_, step) => step,
        }
    }
}
