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
    /// Its hops when it arrived here.
    hops: u16,
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
    /// Records that a call which came from `from` has moved on.
    #[inline]
    pub(crate) fn moved(&mut self, head: &Head, from: Life) {
        let moved = Move {
            origin: head.origin,
            slot: head.slot,
            hops: head.limits.hops,
            from,
        };
        match self.moves.get_mut(self.next) {
            Some(place) => *place = moved,
            None => self.moves.push(moved),
        }
        self.next = (self.next + 1) % MOVES;
    }

    /// Returns from where a call came that left here with `hops` hops, if that is remembered.
    pub(crate) fn came_from(&self, head: &Head, hops: u16) -> Option<Life> {
        let is_it = |at: &&Move| {
            (at.origin, at.slot, at.hops) == (head.origin, head.slot, hops.saturating_add(1))
        };
        self.moves.iter().find(is_it).map(|at| at.from)
    }
}
