//! Where calls came from and went: for the path of a failure, and to find calls that were lost with
//! a unit. A ring of the last calls that left this unit: one store per hop.

use crate::frame::Head;
use samite_engines::Limits;
use samite_fabric::rpc::Life;
use std::time::Duration;

/// How many moves a unit remembers.
const MOVES: usize = 1024;
/// For how long a move is taken for that of a call which has not ended: more than any call may run.
/// The names of calls are used again some time.
const REMEMBERED: Duration = Duration::from_secs(100);

/// A call that left this unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    origin: Life,
    slot: u32,
    /// Its hops when it arrived here, and when it left.
    hops: (u16, u16),
    /// The unit that it came from, and the one that it went to.
    from: Life,
    to: Life,
    /// When it left.
    at: Duration,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    moves: Vec<Move>,
    next: usize,
}

impl Trail {
    /// Records that a call which came from `from` moves on now, with so many hops left.
    /// [`Trail::sent`] follows.
    #[inline]
    pub(crate) fn moved(&mut self, head: &Head, left: u16, from: Life, now: Duration) {
        if head.one_way {
            return; // Nobody is told how it ends.
        }
        let moved = Move {
            origin: head.origin,
            slot: head.slot,
            hops: (head.limits.hops, left),
            from,
            to: from,
            at: now,
        };
        match self.moves.get_mut(self.next) {
            Some(place) => *place = moved,
            None => self.moves.push(moved),
        }
        self.next = (self.next + 1) % MOVES;
    }

    /// Records to which unit the call was sent that was recorded last.
    #[inline]
    pub(crate) fn sent(&mut self, to: Life) {
        let last = self.next.checked_sub(1).unwrap_or(MOVES - 1);
        if let Some(moved) = self.moves.get_mut(last) {
            moved.to = to;
        }
    }

    /// Returns from where a call came that left here with these hops, and with how many it came, if
    /// that is remembered.
    pub(crate) fn came_from(&self, head: &Head) -> Option<(Life, u16)> {
        let is_it = |at: &&Move| {
            (at.origin, at.slot, at.hops.1) == (head.origin, head.slot, head.limits.hops)
        };
        self.moves.iter().find(is_it).map(|at| (at.from, at.hops.0))
    }

    /// Returns the calls that went to a unit from here, as heads by which [`Trail::came_from`]
    /// finds where they came from. Some of them may have ended.
    pub(crate) fn sent_to(&self, to: Life, now: Duration) -> Vec<Head> {
        let is_young = |at: &Move| now.saturating_sub(at.at) < REMEMBERED;
        let sent = (self.moves.iter()).filter(|at| at.to == to && is_young(at));
        let hops = |at: &Move| match at.hops.0 == at.hops.1 {
            // More than any call that has moved has left: a prefetch fails at its origin at once.
            true => Limits::default().hops,
            false => at.hops.1,
        };
        let head = |at: &Move| Head {
            entry: 0,
            limits: Limits {
                hops: hops(at),
                ..Limits::default()
            },
            slot: at.slot,
            origin: at.origin,
            one_way: false,
            has_input: false,
        };
        sent.map(head).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::PeerId;

    const NOW: Duration = Duration::from_secs(1000);

    fn life(peer: u32) -> Life {
        Life {
            peer: PeerId(peer),
            incarnation: 1,
        }
    }

    fn head(slot: u32, one_way: bool) -> Head {
        Head {
            entry: 0,
            limits: Limits::default(),
            slot,
            origin: life(0),
            one_way,
            has_input: false,
        }
    }

    /// The last moves are known by the unit to which they went; one-way calls are not kept.
    #[test]
    fn calls_that_went_to_a_unit_are_known() {
        let mut trail = Trail::default();
        let left = Limits::default().hops - 1;
        trail.moved(&head(1, true), left, life(0), NOW);
        for slot in 0..MOVES as u32 + 1 {
            trail.moved(&head(slot, false), left, life(0), NOW);
            trail.sent(life(2 + slot % 2));
        }
        let slots = |to: u32| {
            trail
                .sent_to(life(to), NOW)
                .into_iter()
                .map(|head| head.slot)
        };
        let mut even: Vec<u32> = slots(2).collect();
        even.sort_unstable();
        assert!(even.into_iter().eq((1..=MOVES as u32 / 2).map(|at| 2 * at)));
        assert_eq!((slots(3).count(), slots(4).count()), (MOVES / 2, 0));
        // Their failures go back on their way, those of a prefetch straight to its origin.
        let origin = (life(0), Limits::default().hops);
        assert_eq!(
            trail.came_from(&trail.sent_to(life(2), NOW)[0]),
            Some(origin)
        );
        let limits = Limits {
            hops: 0,
            ..Limits::default()
        };
        let prefetch = Head {
            limits,
            ..head(5, false)
        };
        trail.moved(&prefetch, 0, life(0), NOW);
        trail.sent(life(4));
        assert_eq!(trail.came_from(&trail.sent_to(life(4), NOW)[0]), None);
        // Long ago, a call with this name was another one.
        let later = NOW + REMEMBERED;
        assert_eq!(trail.sent_to(life(2), later), []);
    }
}
