//! Schedules of the collectives that only move bytes.
//!
//! | collective | few bytes | many bytes, or blocks of different lengths |
//! |---|---|---|
//! | barrier | dissemination, log P rounds (Hensgen, Finkel, Manber 1988) | |
//! | broadcast | binomial tree | scatter, then ring (van de Geijn) |
//! | scatter, gather | binomial tree | the root and each |
//! | all-gather | Bruck, log P rounds | ring |
//! | all-to-all | each to each, at once | |
//!
//! The choices are those of Thakur, Rabenseifner and Gropp (2005). If only the two members involved
//! know the length of a block, a barrier comes last: if they disagree, no member has ended by then,
//! and all learn of it.

use super::{Builder, INPUT, OUTPUT, Span, Step, span};
use crate::collective::shape::{Blocks, Shape};

/// From this size on, bandwidth dominates the time of a message.
const MANY: u64 = 32 << 10;

impl Builder {
    pub(super) fn moves(&mut self, shape: &Shape) {
        match shape {
            Shape::Combines(combine, elements) => self.combines(*combine, *elements),
            Shape::Barrier => self.barrier(),
            Shape::Broadcast { root, bytes } => self.broadcast(*root, *bytes),
            Shape::Scatter { root, from, mine } => match from {
                Blocks::Equal(bytes) if *bytes < MANY => self.scatter_tree(*root, *bytes),
                _ => self.scatter_each(*root, from, *mine),
            },
            Shape::Gather { root, into, mine } => match into {
                Blocks::Equal(bytes) if *bytes < MANY => {
                    self.scatter_tree(*root, *bytes);
                    self.mirror();
                }
                _ => {
                    self.scatter_each(*root, into, *mine);
                    self.mirror();
                }
            },
            Shape::AllGather { blocks } => match blocks {
                Blocks::Equal(bytes) if *bytes < MANY => self.all_gather_bruck(*bytes),
                _ => {
                    let (at, len) = blocks.at(self.rank);
                    self.copy(span(INPUT, 0, len), span(OUTPUT, at, len));
                    self.ring(|rank| blocks.at(rank));
                }
            },
            Shape::AllToAll { from, into } => self.all_to_all(from, into),
        }
        // Members may disagree on lengths: none may end before all have compared them.
        if shape.known_longest().is_none() {
            self.barrier();
        }
    }

    fn barrier(&mut self) {
        let nothing = span(INPUT, 0, 0);
        let mut distance = 1;
        while distance < self.size {
            self.recv(self.down(distance), nothing);
            self.send(self.up(distance), nothing);
            self.fence();
            distance *= 2;
        }
    }

    fn broadcast(&mut self, root: u32, bytes: u64) {
        let place = self.down(root);
        let memory = if place == 0 { INPUT } else { OUTPUT };
        if bytes < MANY || self.size == 2 {
            return self.broadcast_tree(root, place, span(memory, 0, bytes));
        }
        // Parts are numbered by place. The root has all of them.
        let part = super::shares(bytes, 1, self.size);
        let here = |place: u32| {
            let (at, len) = part(place);
            span(memory, at, len)
        };
        if place == 0 {
            for to in 1..self.size {
                self.send(self.up(to), here(to));
            }
        } else {
            self.recv(root, here(place));
        }
        self.fence();
        for round in 0..self.size - 1 {
            let size = self.size;
            let behind = |by: u32| (place + size - by % size) % size;
            // The root receives nothing.
            if place != 0 {
                self.recv(self.down(1), here(behind(round + 1)));
            }
            if place + 1 != self.size {
                self.send(self.up(1), here(behind(round)));
            }
            self.fence();
        }
    }

    fn broadcast_tree(&mut self, root: u32, place: u32, all: super::Span) {
        let mut mask = 1;
        while mask < self.size && place & mask == 0 {
            mask *= 2;
        }
        if mask < self.size {
            self.recv((place - mask + root) % self.size, all);
            self.fence();
        }
        while mask > 1 {
            mask /= 2;
            if place + mask < self.size {
                self.send(self.up(mask), all);
            }
        }
        self.fence();
    }

    /// Binomial scatter. The blocks of all places below `place` in the tree travel together,
    /// ordered by place.
    fn scatter_tree(&mut self, root: u32, bytes: u64) {
        let place = self.down(root);
        let mut mask = 1;
        while mask < self.size && place & mask == 0 {
            mask *= 2;
        }
        let count = u64::from(mask.min(self.size - place));
        let tree = self.scratch(count * bytes);
        if place == 0 {
            // The root's blocks are ordered by rank, so rotate them.
            let (before, after) = (u64::from(root) * bytes, u64::from(self.size - root) * bytes);
            self.copy(span(INPUT, before, after), span(tree, 0, after));
            self.copy(span(INPUT, 0, before), span(tree, after, before));
        } else {
            self.recv(
                (place - mask + root) % self.size,
                span(tree, 0, count * bytes),
            );
        }
        self.fence();
        while mask > 1 {
            mask /= 2;
            if place + mask < self.size {
                let count = u64::from(mask.min(self.size - place - mask));
                self.send(
                    self.up(mask),
                    span(tree, u64::from(mask) * bytes, count * bytes),
                );
            }
        }
        self.copy(span(tree, 0, bytes), span(OUTPUT, 0, bytes));
        self.fence();
    }

    fn scatter_each(&mut self, root: u32, from: &Blocks, mine: u64) {
        if self.rank != root {
            self.recv(root, span(OUTPUT, 0, mine));
            return self.fence();
        }
        for by in 1..self.size {
            let to = self.up(by);
            let (at, len) = from.at(to);
            self.send(to, span(INPUT, at, len));
        }
        let (at, len) = from.at(root);
        self.copy(span(INPUT, at, len), span(OUTPUT, 0, len));
        self.fence();
    }

    /// Reverses the steps built so far in order and direction: a scatter becomes a gather.
    fn mirror(&mut self) {
        let end = |span: Span| match span.memory {
            INPUT => Span {
                memory: OUTPUT,
                ..span
            },
            OUTPUT => Span {
                memory: INPUT,
                ..span
            },
            _ => span,
        };
        let steps = self.schedule.steps.iter().rev().map(|step| match *step {
            Step::Send { to, from } => Step::Recv {
                from: to,
                into: end(from),
            },
            Step::Recv { from, into } => Step::Send {
                to: from,
                from: end(into),
            },
            Step::Copy { from, into } => Step::Copy {
                from: end(into),
                into: end(from),
            },
            other => other,
        });
        self.schedule.steps = steps.chain([Step::Fence]).collect();
    }

    /// Each round doubles the blocks of every member, ordered along the ring from itself on.
    fn all_gather_bruck(&mut self, bytes: u64) {
        let all = self.scratch(u64::from(self.size) * bytes);
        self.copy(span(INPUT, 0, bytes), span(all, 0, bytes));
        let mut have = 1;
        while have < self.size {
            let more = u64::from(have.min(self.size - have)) * bytes;
            self.recv(self.up(have), span(all, u64::from(have) * bytes, more));
            self.send(self.down(have), span(all, 0, more));
            self.fence();
            have *= 2;
        }
        let (before, after) = (
            u64::from(self.rank) * bytes,
            u64::from(self.size - self.rank) * bytes,
        );
        self.copy(span(all, 0, after), span(OUTPUT, before, after));
        self.copy(span(all, after, before), span(OUTPUT, 0, before));
    }

    /// Passes blocks around the ring. Each member starts with its own block of the output and ends
    /// with all.
    pub(super) fn ring(&mut self, block: impl Fn(u32) -> (u64, u64)) {
        let here = |rank: u32| {
            let (at, len) = block(rank);
            span(OUTPUT, at, len)
        };
        for round in 0..self.size - 1 {
            self.recv(self.down(1), here(self.down(round + 1)));
            self.send(self.up(1), here(self.down(round)));
            self.fence();
        }
    }

    fn all_to_all(&mut self, from: &Blocks, into: &Blocks) {
        let ((at, len), (to, _)) = (from.at(self.rank), into.at(self.rank));
        self.copy(span(INPUT, at, len), span(OUTPUT, to, len));
        for by in 1..self.size {
            let (there, here) = (self.up(by), self.down(by));
            let (at, len) = into.at(here);
            self.recv(here, span(OUTPUT, at, len));
            let (at, len) = from.at(there);
            self.send(there, span(INPUT, at, len));
        }
        self.fence();
    }
}
