//! What one member does in a collective: lists of steps that name memory, made without reading any
//! data.
//!
//! ```text
//!   messages:  Recv Send | Combine Send Recv | Copy
//!                        ^ Fence             ^ Fence: all operations started so far have ended
//!   flags:     Copy | Copy Copy | Combine |
//!                   ^ Meet      ^ Meet    ^ Meet: all members have reached this point
//! ```
//! In the spirit of LibNBC (Hoefler et al., 2007): a schedule is data, so that one executor
//! ([`super::run`]) runs blocking and non-blocking calls on both links, and the simulator beside
//! this file runs all members of a team in one loop, for any size, root and placement of the
//! buffers. It detects bytes that are missing, left over or accessed while in flight.
//!
//! # Files
//! `mod` (steps) · `moves` (messages: broadcast, scatter, gather, all-gather, all-to-all, barrier)
//! · `combines` (messages: reductions and scans) · `plan` (flags: all of them) · `simulate` (tests)
//!
//! # Rules
//! * Messages of a pair are matched in order: the k-th send of a member to another is its k-th
//!   receive.
//! * Empty blocks are sent as well, so that a member with other counts is detected.
//! * Between its start and the next fence, no other access touches the bytes that a receive writes,
//!   and none writes those that a send reads.
//! * Between two meetings no two members touch the same byte, unless both read it.

mod combines;
mod moves;
mod plan;
#[cfg(test)]
mod simulate;

pub(crate) use plan::{Announcement, Own, Plan};

use super::shape::Shape;

/// The memory that a step names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    /// The source of this member.
    Input,
    /// The target of this member.
    Output,
    /// Further memory of this member, by number. On flags, number 0 is its staging memory.
    Scratch(u8),
    /// The memory in which the member with this rank is read: its input if accessible in place,
    /// else its staging memory.
    From(u32),
    /// The memory in which that member is written: its output, or its staging memory.
    Into(u32),
    /// The input of the member with this rank, in its private memory.
    Private(u32),
}

pub(crate) const INPUT: Memory = Memory::Input;
pub(crate) const OUTPUT: Memory = Memory::Output;
pub(crate) const STAGING: Memory = Memory::Scratch(0);

/// A range of bytes of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) memory: Memory,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Returns a range of bytes of a memory.
fn span(memory: Memory, offset: u64, len: u64) -> Span {
    Span {
        memory,
        offset,
        len,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Starts a send.
    Send {
        to: u32,
        from: Span,
    },
    /// Starts a receive.
    Recv {
        from: u32,
        into: Span,
    },
    /// Waits for everything that was started.
    Fence,
    /// Waits for all members. `touching`: after it, members access each other's memory.
    Meet {
        touching: bool,
    },
    Copy {
        from: Span,
        into: Span,
    },
    /// Combines this many terms of the schedule, starting at this one.
    Combine {
        first: usize,
        terms: usize,
    },
}

/// A term of a combination, which runs block by block. All terms of one step have the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// Combines what was taken so far with this.
    Take(Span),
    /// Writes what was taken so far.
    Give(Span),
}

/// A schedule; see the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    /// The length of each scratch memory in bytes.
    pub(crate) scratch: Vec<u64>,
    pub(crate) steps: Vec<Step>,
    pub(crate) terms: Vec<Term>,
}

/// Returns the schedule of the member `rank` of `size` over messages.
pub(crate) fn messages(shape: &Shape, rank: u32, size: u32) -> Schedule {
    let mut builder = Builder::new(rank, size);
    builder.moves(shape);
    builder.schedule
}

/// Makes the schedule of the member `rank` of `size`.
#[derive(Debug)]
struct Builder {
    rank: u32,
    size: u32,
    schedule: Schedule,
}

impl Builder {
    fn new(rank: u32, size: u32) -> Builder {
        Builder {
            rank,
            size,
            schedule: Schedule::default(),
        }
    }

    /// Adds a scratch memory.
    fn scratch(&mut self, bytes: u64) -> Memory {
        self.schedule.scratch.push(bytes);
        Memory::Scratch(self.schedule.scratch.len() as u8 - 1)
    }

    /// Returns the rank `by` places further, around the ring.
    fn up(&self, by: u32) -> u32 {
        ((u64::from(self.rank) + u64::from(by)) % u64::from(self.size)) as u32
    }

    /// Returns the rank `by` places back, around the ring.
    fn down(&self, by: u32) -> u32 {
        self.up(self.size - by % self.size)
    }

    fn step(&mut self, step: Step) {
        self.schedule.steps.push(step);
    }

    fn send(&mut self, to: u32, from: Span) {
        self.step(Step::Send { to, from });
    }

    fn recv(&mut self, from: u32, into: Span) {
        self.step(Step::Recv { from, into });
    }

    fn fence(&mut self) {
        self.step(Step::Fence);
    }

    fn exchange(&mut self, touching: bool) {
        self.step(Step::Meet { touching });
    }

    fn copy(&mut self, from: Span, into: Span) {
        if from.len > 0 {
            self.step(Step::Copy { from, into });
        }
    }

    /// Combines `terms`, unless they are empty.
    fn combine(&mut self, terms: impl IntoIterator<Item = Term>) {
        let first = self.schedule.terms.len();
        self.schedule.terms.extend(terms);
        let terms = self.schedule.terms.len() - first;
        match self.schedule.terms.get(first) {
            Some(Term::Take(span)) if span.len > 0 => self.step(Step::Combine { first, terms }),
            _ => self.schedule.terms.truncate(first),
        }
    }

    /// Sets `into` to `into` combined with `with`.
    fn append(&mut self, with: Span, into: Span) {
        self.combine([Term::Take(into), Term::Take(with), Term::Give(into)]);
    }

    /// Sets `into` to `with`, which is of lower ranks, combined with `into`.
    fn prepend(&mut self, with: Span, into: Span) {
        self.combine([Term::Take(with), Term::Take(into), Term::Give(into)]);
    }
}

/// Divides a vector of `bytes` into nearly equal `parts` of whole elements. The result maps a part
/// to its start and length.
pub(crate) fn shares(bytes: u64, element: u64, parts: u32) -> impl Fn(u32) -> (u64, u64) {
    let count = bytes / element.max(1);
    let parts = u64::from(parts);
    // The product of two 64-bit numbers may overflow; quotient and remainder do not.
    let (each, rest) = (count / parts, count % parts);
    let start = move |part: u64| (part * each + part.min(rest)) * element;
    move |part| {
        let first = start(u64::from(part));
        (first, start(u64::from(part) + 1) - first)
    }
}
