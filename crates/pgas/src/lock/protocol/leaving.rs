//! Out of the queue without the lock, for good: of a waiter ([`Leave`]), and of a lock that is
//! dropped when a call has left a machine in the middle ([`Settle`]).

use super::words::{FAR, LEFT, MEMBER};
use super::{Acquire, End, Release, Step, Ticket, Wish, Word};

/// Leaves the queue without having had the lock: what a waiter does that gives it up for good.
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
    /// `me`: the ticket of an acquisition that waits.
    fn new(me: Ticket) -> Leave {
        let at = Leaving::Begin;
        Leave { me, at }
    }

    /// The next step, after the answer to the last one.
    fn step(&mut self, answer: u64) -> Step {
        match self.at {
            Leaving::Begin => self.say(self.me.fresh_link()),
            Leaving::Saying { expected } if answer == expected => match answer & MEMBER {
                // Whoever comes finds that it has left.
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
            // Somebody announced itself meanwhile.
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

/// Brings a machine to its end that was left in the middle, for a unit that does not want the lock
/// any more and never comes again. Afterwards it has neither the lock nor a place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::lock) enum Settle {
    Acquire(Acquire),
    Leave(Leave),
    Release(Release),
}

impl Settle {
    /// Instead of an acquisition whose next step was to be this one: the next step.
    pub(in crate::lock) fn acquisition(mut machine: Acquire, step: Step) -> (Settle, Step) {
        // It waits for nobody more.
        machine.wish(Wish::Try);
        let mut settle = Settle::Acquire(machine);
        let step = settle.instead_of(step);
        (settle, step)
    }

    /// The next step, after the answer to the last one.
    pub(in crate::lock) fn step(&mut self, answer: u64) -> Step {
        let step = match self {
            Settle::Acquire(machine) => machine.step(answer),
            Settle::Leave(machine) => machine.step(answer),
            Settle::Release(machine) => machine.step(answer),
        };
        self.instead_of(step)
    }

    /// What is done in place of a step of the machine.
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
