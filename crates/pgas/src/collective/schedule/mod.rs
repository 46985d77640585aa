//! What one member does in a collective: lists of steps that name memory, made without looking at a
//! byte.
//!
//! ```text
//!   messages:  Recv Send | Combine Send Recv | Copy
//!                        ^ Fence             ^ Fence: what was started has ended
//!   flags:     Copy | Copy Copy | Combine |
//!                   ^ Meet      ^ Meet    ^ Meet: all members have come so far
//! ```
//! In the spirit of LibNBC (Hoefler et al., 2007): a schedule is data, so that one executor
//! ([`super::run`]) runs blocking and non-blocking calls on both links, and the simulator beside
//! this file runs all members of a team in one loop, for any size, root and place of the buffers,
//! and looks for what is missing, left over or touched while it is in flight.
//!
//! # Files
//! `mod` (steps) · `moves` (messages: broadcast, scatter, gather, all-gather, all-to-all, barrier)
//! · `combines` (messages: reductions and scans) · `plan` (flags: all of them) · `simulate` (tests)
//!
//! # Rules
//! * Messages of a pair are matched in order: the k-th send of a member to another is its k-th
//!   receive.
//! * Empty blocks are sent as well: a member with other counts is then found out.
//! * Between its start and the next fence nobody else touches what a receive writes, and nobody
//!   writes what a send reads.
//! * Between two meetings no two members touch the same byte, unless both read it.

mod combines;
mod moves;
mod plan;
#[cfg(test)]
mod simulate;

pub(crate) use plan::{Announcement, Own, Plan};

use super::shape::Shape;

/// Which memory a step names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    /// What this member gives.
    Input,
    /// What it gets.
    Output,
    /// Its own besides, by number. On flags number 0 is its staging memory.
    Scratch(u8),
    /// Where the member with this rank can be read: its input, if it lies in place, else its
    /// staging memory.
    From(u32),
    /// Where it can be written: its output, or its staging memory.
    Into(u32),
    /// The input of the member with this rank, in its private memory.
    Private(u32),
}

pub(crate) const INPUT: Memory = Memory::Input;
pub(crate) const OUTPUT: Memory = Memory::Output;
pub(crate) const STAGING: Memory = Memory::Scratch(0);

/// Bytes of one of the memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) memory: Memory,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes of a memory.
fn span(memory: Memory, offset: u64, len: u64) -> Span {
    Span {
        memory,
        offset,
        len,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Starts to send.
    Send {
        to: u32,
        from: Span,
    },
    /// Starts to receive.
    Recv {
        from: u32,
        into: Span,
    },
    /// Waits for everything that was started.
    Fence,
    /// Waits for all members. `touching`: after it members touch each other's memory.
    Meet {
        touching: bool,
    },
    Copy {
        from: Span,
        into: Span,
    },
    /// Combines so many of the schedule's terms, from this one on.
    Combine {
        first: usize,
        terms: usize,
    },
}

/// Part of a combination, which goes block by block: all terms of one step are equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// Combines what has been taken before with this.
    Take(Span),
    /// Writes what has been taken so far.
    Give(Span),
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    /// Bytes of each scratch memory.
    pub(crate) scratch: Vec<u64>,
    pub(crate) steps: Vec<Step>,
    pub(crate) terms: Vec<Term>,
}

/// What the member `rank` of `size` does over messages.
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

    /// More memory.
    fn scratch(&mut self, bytes: u64) -> Memory {
        self.schedule.scratch.push(bytes);
        Memory::Scratch(self.schedule.scratch.len() as u8 - 1)
    }

    /// The rank so many places further on, around the ring.
    fn up(&self, by: u32) -> u32 {
        ((u64::from(self.rank) + u64::from(by)) % u64::from(self.size)) as u32
    }

    /// The rank so many places back.
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

    /// Combines `terms`, if there are bytes.
    fn combine(&mut self, terms: impl IntoIterator<Item = Term>) {
        let first = self.schedule.terms.len();
        self.schedule.terms.extend(terms);
        let terms = self.schedule.terms.len() - first;
        match self.schedule.terms.get(first) {
            Some(Term::Take(span)) if span.len > 0 => self.step(Step::Combine { first, terms }),
            _ => self.schedule.terms.truncate(first),
        }
    }

    /// `into` becomes `into` and then `with`.
    fn append(&mut self, with: Span, into: Span) {
        self.combine([Term::Take(into), Term::Take(with), Term::Give(into)]);
    }

    /// `into` becomes `with`, which is of lower ranks, and then `into`.
    fn prepend(&mut self, with: Span, into: Span) {
        self.combine([Term::Take(with), Term::Take(into), Term::Give(into)]);
    }
}

/// Parts of a vector of `bytes` for `parts` members, in whole elements, nearly equal.
pub(crate) fn shares(bytes: u64, element: u64, parts: u32) -> impl Fn(u32) -> (u64, u64) {
    let count = bytes / element.max(1);
    let parts = u64::from(parts);
    // A product of two 64-bit numbers may not fit; quotient and rest do.
    let (each, rest) = (count / parts, count % parts);
    let start = move |part: u64| (part * each + part.min(rest)) * element;
    move |part| {
        let first = start(u64::from(part));
        (first, start(u64::from(part) + 1) - first)
    }
}
