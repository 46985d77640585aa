//! What one member does in a collective over messages: a list of steps, made before the first is taken.
//!
//! ```text
//!   Recv Send | Combine Send Recv | Copy
//!             ^ Fence             ^ Fence: what was started has ended
//! ```
//! In the spirit of LibNBC (Hoefler et al., 2007): a schedule is data, so that one executor
//! ([`super::machine`]) runs blocking and non-blocking calls, and the simulator beside this file runs all
//! members of a team in one loop, for any size and root, and looks for what is missing, left over or
//! touched while it is in flight.
//!
//! # Files
//! `mod` (steps) · `moves` (broadcast, scatter, gather, all-gather, all-to-all, barrier) · `combines`
//! (reductions and scans) · `simulate` (tests)
//!
//! # Rules
//! * Messages of a pair are matched in order: the k-th send of a member to another is its k-th receive.
//! * Empty blocks are sent as well: a member with other counts is then found out.
//! * Between its start and the next fence nobody else touches what a receive writes, and nobody writes
//!   what a send reads.

mod combines;
mod moves;
#[cfg(test)]
mod simulate;

pub(crate) use combines::combines;
pub(crate) use moves::moves;

/// The memory of a schedule: what the member gives, what it gets, then scratch.
pub(crate) const INPUT: u8 = 0;
pub(crate) const OUTPUT: u8 = 1;

/// Bytes of one of the memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) memory: u8,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes of a memory.
fn span(memory: u8, offset: u64, len: u64) -> Span {
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
    Copy {
        from: Span,
        into: Span,
    },
    /// `into` becomes `with` and `into` combined; `with_first`: `with` is of lower ranks.
    Combine {
        with: Span,
        into: Span,
        with_first: bool,
    },
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    /// Bytes of each scratch memory.
    pub(crate) scratch: Vec<u64>,
    pub(crate) steps: Vec<Step>,
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
    fn scratch(&mut self, bytes: u64) -> u8 {
        self.schedule.scratch.push(bytes);
        self.schedule.scratch.len() as u8 + OUTPUT
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

    fn copy(&mut self, from: Span, into: Span) {
        if from.len > 0 {
            self.step(Step::Copy { from, into });
        }
    }

    fn combine(&mut self, with: Span, into: Span, with_first: bool) {
        if with.len > 0 {
            self.step(Step::Combine {
                with,
                into,
                with_first,
            });
        }
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
