//! Schedules of reductions and scans.
//!
//! | collective | few bytes | many bytes |
//! |---|---|---|
//! | reduce | binomial tree | reduce-scatter, then gather |
//! | all-reduce | recursive doubling | reduce-scatter, then ring (Rabenseifner) |
//! | reduce-scatter | pairwise: each gets its block of all and combines them by rank | the same |
//! | scan, exscan | doubling distances, log P rounds (Hillis, Steele 1986) | the same |
//!
//! The order of the ranks is kept everywhere except in the tree of a commutative operator, whose
//! root may be any rank. Members that compute the same result combine in the same order, so all get
//! the same bits.

use super::{Builder, INPUT, Memory, OUTPUT, Term, shares, span};
use crate::collective::shape::{Combine, Elements};

/// From this size on, bandwidth dominates the time of a message.
const MANY: u64 = 32 << 10;

impl Builder {
    pub(super) fn combines(&mut self, combine: Combine, elements: Elements) {
        let (rank, size, bytes) = (self.rank, self.size, elements.bytes);
        let many = bytes >= MANY && size > 2;
        let share = shares(bytes, elements.size, size);
        match combine {
            // Long vectors: every member combines its share, then the root gathers the shares.
            Combine::Reduce { root } if many => {
                let parts = self.scratch(share(rank).1);
                self.reduce_scatter(&share, (parts, 0));
                if rank == root {
                    for by in 1..size {
                        let from = self.up(by);
                        let (at, len) = share(from);
                        self.recv(from, span(OUTPUT, at, len));
                    }
                    let (at, len) = share(rank);
                    self.copy(span(parts, 0, len), span(OUTPUT, at, len));
                } else {
                    self.send(root, span(parts, 0, share(rank).1));
                }
                self.fence();
            }
            Combine::Reduce { root } => self.reduce_tree(root, bytes, elements.commute),
            Combine::AllReduce if many => {
                self.reduce_scatter(&share, (OUTPUT, share(rank).0));
                self.ring(share);
            }
            Combine::AllReduce => self.double(bytes),
            Combine::ReduceScatter => {
                self.reduce_scatter(&|rank| (u64::from(rank) * bytes, bytes), (OUTPUT, 0));
            }
            Combine::Scan => self.scan(bytes, false),
            Combine::ExScan => self.scan(bytes, true),
        }
    }

    fn reduce_tree(&mut self, root: u32, bytes: u64, commutes: bool) {
        // If the order of the ranks matters, only rank 0 can be the root of the tree.
        let top = if commutes { root } else { 0 };
        let place = self.down(top);
        let (sum, more) = (self.scratch(bytes), self.scratch(bytes));
        let (sum, more) = (span(sum, 0, bytes), span(more, 0, bytes));
        self.copy(span(INPUT, 0, bytes), sum);
        let mut mask = 1;
        while mask < self.size {
            if place & mask != 0 {
                self.send((place - mask + top) % self.size, sum);
                self.fence();
                break;
            }
            if place + mask < self.size {
                self.recv(self.up(mask), more);
                self.fence();
                self.append(more, sum);
            }
            mask *= 2;
        }
        let result = span(OUTPUT, 0, bytes);
        match (self.rank == top, self.rank == root) {
            (true, true) => self.copy(sum, result),
            (true, false) => self.send(root, sum),
            (false, true) => self.recv(top, result),
            (false, false) => {}
        }
        self.fence();
    }

    /// Recursive doubling. If the size exceeds a power of two by `extra`, the first `2 * extra`
    /// ranks form pairs. One of each pair gives its vector to the other and gets the result at the
    /// end.
    fn double(&mut self, bytes: u64) {
        let (sum, more) = (span(OUTPUT, 0, bytes), self.scratch(bytes));
        let more = span(more, 0, bytes);
        self.copy(span(INPUT, 0, bytes), sum);
        // Fold the ranks beyond a power of two into their partners.
        let power = 1 << self.size.ilog2();
        let extra = self.size - power;
        let paired = self.rank < 2 * extra;
        if paired && self.rank.is_multiple_of(2) {
            self.send(self.rank + 1, sum);
            self.fence();
            self.recv(self.rank + 1, sum);
            return self.fence();
        }
        if paired {
            self.recv(self.rank - 1, more);
            self.fence();
            self.prepend(more, sum);
        }
        let place = match paired {
            true => self.rank / 2,
            false => self.rank - extra,
        };
        let rank_of = |place: u32| match place < extra {
            true => 2 * place + 1,
            false => place + extra,
        };
        let mut mask = 1;
        while mask < power {
            let partner = place ^ mask;
            self.recv(rank_of(partner), more);
            self.send(rank_of(partner), sum);
            self.fence();
            match partner < place {
                true => self.prepend(more, sum),
                false => self.append(more, sum),
            }
            mask *= 2;
        }
        if paired {
            self.send(self.rank - 1, sum);
            self.fence();
        }
    }

    /// Each member receives its block from every member and combines them by rank, into the memory
    /// and offset `into`.
    fn reduce_scatter(&mut self, block: &impl Fn(u32) -> (u64, u64), into: (Memory, u64)) {
        let (at, len) = block(self.rank);
        let blocks = self.scratch(u64::from(self.size) * len);
        for by in 1..self.size {
            let (there, here) = (self.up(by), self.down(by));
            self.recv(here, span(blocks, u64::from(here) * len, len));
            let (at, len) = block(there);
            self.send(there, span(INPUT, at, len));
            self.fence();
        }
        let all = (0..self.size).map(|rank| match rank == self.rank {
            true => span(INPUT, at, len),
            false => span(blocks, u64::from(rank) * len, len),
        });
        let into = Term::Give(span(into.0, into.1, len));
        let terms: Vec<Term> = all.map(Term::Take).chain([into]).collect();
        self.combine(terms);
    }

    /// After the round with distance `d` a member has combined the `2d` ranks up to itself.
    fn scan(&mut self, bytes: u64, exclusive: bool) {
        let result = span(OUTPUT, 0, bytes);
        let more = span(self.scratch(bytes), 0, bytes);
        let sum = match exclusive {
            true => span(self.scratch(bytes), 0, bytes),
            false => result,
        };
        self.copy(span(INPUT, 0, bytes), sum);
        let mut distance = 1;
        while distance < self.size {
            let below = self.rank >= distance;
            if below {
                self.recv(self.rank - distance, more);
            }
            if self.rank + distance < self.size {
                self.send(self.rank + distance, sum);
            }
            self.fence();
            if below {
                match (exclusive, distance) {
                    (true, 1) => self.copy(more, result),
                    (true, _) => self.prepend(more, result),
                    (false, _) => {}
                }
                self.prepend(more, sum);
            }
            distance *= 2;
        }
    }
}
