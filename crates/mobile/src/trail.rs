//! Where calls came from and went: for the path of a failure, and to find calls that were lost with
//! a unit. A ring of the last calls that left this unit: one store per hop.

use crate::frame::Head;
use samite_fabric::rpc::Life;

/// How many moves a unit remembers.
const MOVES: usize = 1024;

/// A call that left this unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    origin: Life,
    slot: u32,
    /// Its hops when it arrived here, and when it left.
    hops: (u16, u16),
    /// The unit that it came from.
    pub(crate) from: Life,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    moves: Vec<Move>,
    next: usize,
}

impl Trail {
    /// Records that a call which came from `from` has moved on, with so many hops left.
    #[inline]
    pub(crate) fn moved(&mut self, head: &Head, left: u16, from: Life) {
        let moved = Move {
            origin: head.origin,
            slot: head.slot,
            hops: (head.limits.hops, left),
            from,
        };
        match self.moves.get_mut(self.next) {
            Some(place) => *place = moved,
            None => self.moves.push(moved),
        }
        self.next = (self.next + 1) % MOVES;
    }

    /// Returns from where a call came that left here with these hops, and with how many it came, if
    /// that is remembered.
    pub(crate) fn came_from(&self, head: &Head) -> Option<(Life, u16)> {
        let is_it = |at: &&Move| {
            (at.origin, at.slot, at.hops.1) == (head.origin, head.slot, head.limits.hops)
        };
        self.moves.iter().find(is_it).map(|at| (at.from, at.hops.0))
    }
}
