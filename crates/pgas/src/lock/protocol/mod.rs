//! The queue of a lock, as two state machines without memory, clock or IO. Each step is one
//! operation on one word, or a wait. The driver of the machine executes it and returns with the
//! answer. The same machines run on mapped memory, over messages, and in the model checker
//! (`model`).
//!
//! # Words, all of them in the memory of the lock's home
//! ```text
//!   tail         0: free   1: free, and broken   else the ticket of the last in the queue
//!   previous[m]  0: m holds the lock (or is not in the queue)   else the ticket before m
//!   link[m]      released:42 | left:1 | broken:1 | far:1 | announced:19
//! ```
//! A *ticket* identifies one stay of a member in the queue: its number and a count. `link[m]` says
//! which of m's tickets are released, and who comes after the one that is not. A member takes a new
//! ticket only if another unit came after the old one, so an uncontended lock costs one exchange to
//! take and one to give back.
//!
//! # Invariants
//! L1 `previous[m]` is written before the ticket of m enters the queue, by the exchange of the tail
//!    that expects exactly that predecessor. So the queue can be walked from the tail at any time,
//!    whichever units die.
//! L2 A link changes by exchange or swap only. An announcement expects the ticket to be unreleased:
//!    either it comes first and the release finds it, or the release comes first and the announcing
//!    unit sees that.
//! L3 A member that was waiting writes `previous[m] = 0` before it touches what the lock guards.
//!    Hence a dead member with 0 may have left it half changed, and one with a ticket has not.
//! L4 A unit that finds its predecessor dead waits behind the predecessor of that one. A late write
//!    of the dead unit changes its own `previous`, or is an exchange that does not find what it
//!    expects.
//! L5 A waiter that leaves the queue says so in its own link, for good: it never comes to this lock
//!    again. To the unit behind it, it is as if it had died waiting (L3, L4). If its predecessor
//!    gives the lock to it nevertheless, the next unit finds that in the link of the predecessor.
//! L6 A machine that has begun runs to its end, whatever its caller is told meanwhile: a step
//!    takes place once, or is yet to be requested, and the next one follows its answer. Only then
//!    does the unit begin another machine; a unit that has dropped the lock is out of the queue at
//!    the end ([`Settle`]). Only the loss of the home, and words that no correct home returns, end
//!    a machine early.
//!
//! Source: the queue lock of Mellor-Crummey and Scott (TOCS 1991), with the words of the waiters at
//! the home instead of in their own memory, so that the queue survives them (in the manner of
//! recoverable mutual exclusion, Golab and Ramaraju, PODC 2016). The swap of the tail is a
//! compare-exchange here because of L1. The order of the queue is that in which the exchanges
//! succeed.

mod leaving;
mod words;

pub(super) use leaving::Settle;
pub(super) use words::{MEMBERS_MAX, Ticket, Wait, Word, has_left, ticket};

use words::{FAR, FREE_BROKEN, MEMBER};

/// The next step. The answer is the value loaded, or the value found by an exchange or swap; it is
/// ignored after a store and a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Load(Word),
    Store(Word, u64),
    Exchange {
        word: Word,
        expected: u64,
        new: u64,
    },
    Swap(Word, u64),
    /// Wait until the ticket is released, or its member is lost or has left; [`Wait`] encodes the
    /// answer.
    Await(Ticket),
    /// The answer is 1 if the member is known to be lost, or has left the queue.
    AskLost(u32),
    /// Wakes a waiter; a far one by this word.
    Wake {
        member: u32,
        far: bool,
        word: u64,
    },
    Ended(End),
}

impl Step {
    /// Returns true if the home may answer with this word: any members in it belong to the team.
    #[inline(always)]
    pub(super) fn allows(self, answer: u64, members: u32) -> bool {
        let named = match self {
            Step::Exchange { expected, .. } if answer == expected => return true,
            Step::Exchange { word, .. } | Step::Load(word) | Step::Swap(word, _) => word,
            _ => return true,
        };
        let members = u64::from(members);
        match named {
            Word::Tail | Word::Previous(_) => {
                answer & !1 == 0 || (1..=members).contains(&(answer >> 1 & MEMBER))
            }
            Word::Link(_) => answer & MEMBER <= members,
            Word::Lost => true,
        }
    }
}

/// How a machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    /// The lock is held. `broken`: a holder died before.
    Held { broken: bool },
    /// The lock is free and broken, and the caller does not repair it.
    Broken,
    /// Another unit holds the lock, and the caller does not wait.
    Busy,
    /// This unit no longer waits, and never asks again.
    Interrupted,
    /// The lock is given back. `used`: a unit came after, so the ticket is used up.
    Released { used: bool },
}

/// The purpose of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wish {
    /// To hold the lock, after waiting.
    Wait,
    /// To hold it now or not at all.
    Try,
    /// To hold it, after waiting, even if it is broken.
    Repair,
}

/// The machine that takes the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Acquire {
    me: Ticket,
    /// The waiter cannot poll the home: it is woken by a word in its own memory.
    far: bool,
    wish: Wish,
    at: Taking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Taking {
    Begin,
    /// The predecessor is written; the tail is next.
    Ready {
        expected: u64,
    },
    Joining {
        expected: u64,
    },
    Announcing {
        behind: Ticket,
        expected: u64,
    },
    Waiting {
        behind: Ticket,
    },
    /// The predecessor is lost. Was it released before?
    LostLink {
        dead: Ticket,
    },
    /// Did it hold the lock?
    LostPrevious {
        dead: Ticket,
    },
    Passing {
        behind: Ticket,
    },
    /// The dead holder's name is written; entering is next.
    Named,
    Entering {
        broken: bool,
    },
    /// A unit that only tries checks whether all units in the queue are dead.
    TryLost {
        tail: Ticket,
        at: Ticket,
    },
    TryPrevious {
        tail: Ticket,
        at: Ticket,
    },
    TryLink {
        tail: Ticket,
        at: Ticket,
    },
}

impl Acquire {
    #[inline(always)]
    pub(super) fn new(me: Ticket, far: bool, wish: Wish) -> Acquire {
        let at = Taking::Begin;
        Acquire { me, far, wish, at }
    }

    /// Changes the wish of the unit, between two steps.
    pub(super) fn wish(&mut self, wish: Wish) {
        self.wish = wish;
    }

    /// Returns the next step, given the answer to the last one (any value, for the first).
    #[inline(always)]
    pub(super) fn step(&mut self, answer: u64) -> Step {
        match self.at {
            Taking::Begin => self.join(0),
            Taking::Ready { expected } => {
                self.at = Taking::Joining { expected };
                let new = self.me.0;
                Step::Exchange {
                    word: Word::Tail,
                    expected,
                    new,
                }
            }
            Taking::Joining { expected } if answer == expected => match ticket(expected) {
                None => Step::Ended(End::Held {
                    broken: expected == FREE_BROKEN,
                }),
                Some(behind) => self.announce(behind, behind.fresh_link()),
            },
            _ => self.step_in_queue(answer),
        }
    }

    fn step_in_queue(&mut self, answer: u64) -> Step {
        match self.at {
            Taking::Begin | Taking::Ready { .. } => self.join(0),
            Taking::Joining { .. } => match (self.wish, ticket(answer)) {
                (Wish::Wait | Wish::Try, None) if answer == FREE_BROKEN => Step::Ended(End::Broken),
                (Wish::Try, Some(tail)) => {
                    self.at = Taking::TryLost { tail, at: tail };
                    Step::AskLost(tail.member())
                }
                _ => self.join(answer),
            },
            Taking::Announcing { behind, expected } => match behind.look(answer) {
                Some(Wait::Released { broken }) => self.enter(broken),
                Some(Wait::Lost) => self.pass_over(behind),
                None if answer == expected => {
                    self.at = Taking::Waiting { behind };
                    Step::Await(behind)
                }
                // Another unit announced itself here and has since died.
                None => self.announce(behind, answer),
            },
            Taking::Waiting { behind } => match Wait::of(answer) {
                Wait::Released { broken } => self.enter(broken),
                Wait::Lost => {
                    self.at = Taking::LostLink { dead: behind };
                    Step::Load(Word::Link(behind.member()))
                }
            },
            Taking::LostLink { dead } => match dead.look(answer) {
                Some(Wait::Released { broken }) => self.enter(broken),
                _ => self.pass_over(dead),
            },
            Taking::LostPrevious { dead } => match ticket(answer) {
                None => {
                    self.at = Taking::Named;
                    Step::Store(Word::Lost, u64::from(dead.member()) + 1)
                }
                Some(behind) => {
                    self.at = Taking::Passing { behind };
                    Step::Store(self.previous(), answer)
                }
            },
            Taking::Passing { behind } => self.announce(behind, behind.fresh_link()),
            Taking::Named => self.enter(true),
            Taking::Entering { broken } => Step::Ended(End::Held { broken }),
            Taking::TryLost { .. } if answer == 0 => Step::Ended(End::Busy),
            Taking::TryLost { tail, at } => {
                self.at = Taking::TryPrevious { tail, at };
                Step::Load(Word::Previous(at.member()))
            }
            Taking::TryPrevious { tail, .. } => match ticket(answer) {
                None => self.join(tail.0),
                Some(at) => {
                    self.at = Taking::TryLink { tail, at };
                    Step::Load(Word::Link(at.member()))
                }
            },
            Taking::TryLink { tail, at } if at.is_released(answer) => self.join(tail.0),
            Taking::TryLink { tail, at } => {
                self.at = Taking::TryLost { tail, at };
                Step::AskLost(at.member())
            }
        }
    }

    /// Writes the predecessor (L1), then tries to become the tail.
    #[inline(always)]
    fn join(&mut self, expected: u64) -> Step {
        self.at = Taking::Ready { expected };
        Step::Store(self.previous(), expected & !FREE_BROKEN)
    }

    fn announce(&mut self, behind: Ticket, expected: u64) -> Step {
        self.at = Taking::Announcing { behind, expected };
        let far = if self.far { FAR } else { 0 };
        let new = expected & !(MEMBER | FAR) | far | (u64::from(self.me.member()) + 1);
        Step::Exchange {
            word: Word::Link(behind.member()),
            expected,
            new,
        }
    }

    /// The ticket was not released and never will be: finds its predecessor.
    fn pass_over(&mut self, dead: Ticket) -> Step {
        self.at = Taking::LostPrevious { dead };
        Step::Load(Word::Previous(dead.member()))
    }

    fn enter(&mut self, broken: bool) -> Step {
        self.at = Taking::Entering { broken };
        Step::Store(self.previous(), 0)
    }

    fn previous(&self) -> Word {
        Word::Previous(self.me.member())
    }
}

/// The machine that gives the lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Release {
    me: Ticket,
    broken: bool,
    at: Giving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Giving {
    /// Checks first whether a unit came after, if that is cheap.
    Look,
    Looking,
    Leave,
    Leaving,
    Passing,
    Woken,
}

impl Release {
    /// `look`: a load of the home's memory is cheap. `broken`: the next holder must learn of it.
    #[inline(always)]
    pub(super) fn new(me: Ticket, look: bool, broken: bool) -> Release {
        let at = if look { Giving::Look } else { Giving::Leave };
        Release { me, broken, at }
    }

    /// Returns the next step, given the answer to the last one.
    #[inline(always)]
    pub(super) fn step(&mut self, answer: u64) -> Step {
        let link = Word::Link(self.me.member());
        match self.at {
            Giving::Look => {
                self.at = Giving::Looking;
                Step::Load(link)
            }
            Giving::Looking if answer & MEMBER != 0 => self.pass(),
            Giving::Looking | Giving::Leave => {
                self.at = Giving::Leaving;
                Step::Exchange {
                    word: Word::Tail,
                    expected: self.me.0,
                    new: if self.broken { FREE_BROKEN } else { 0 },
                }
            }
            Giving::Leaving if answer == self.me.0 => Step::Ended(End::Released { used: false }),
            Giving::Leaving => self.pass(),
            Giving::Passing => match answer & MEMBER {
                // A unit that comes later finds the ticket released.
                0 => Step::Ended(End::Released { used: true }),
                next => {
                    self.at = Giving::Woken;
                    Step::Wake {
                        member: next as u32 - 1,
                        far: answer & FAR != 0,
                        word: self.me.wake(self.broken),
                    }
                }
            },
            Giving::Woken => Step::Ended(End::Released { used: true }),
        }
    }

    fn pass(&mut self) -> Step {
        self.at = Giving::Passing;
        let word = Word::Link(self.me.member());
        Step::Swap(word, self.me.released_link(self.broken))
    }
}
