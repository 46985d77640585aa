//! What the other agents were told of the slots of this node, and what they have to be told next.
//! Pure: no IO, and no clock.
//!
//! # Rules
//! * A life is told as alive, dead and free, in this order. It is told as dead even if its number
//!   has another holder already, and with what its unit said of itself: what the unit sent may
//!   still be on its way to nodes that never knew it.
//! * It is told as free only some time after its end, for the same reason.
//! * A number that was promised to a process, and that the process has not taken, is not told.

use crate::node::{Slot, State};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What the other agents were told; see the module's documentation.
#[derive(Debug)]
pub(super) struct Told {
    /// How long a life is told as dead, at least.
    linger: Duration,
    slots: BTreeMap<Slot, Last>,
}

/// The last life of a slot that was told.
#[derive(Debug)]
struct Last {
    incarnation: u32,
    state: State,
    /// What its unit said of itself; nothing once it is told as free.
    said: Vec<u8>,
    ended: Option<Instant>,
}

/// What the other agents have to be told of a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) incarnation: u32,
    pub(super) state: State,
    pub(super) said: Vec<u8>,
}

impl Told {
    pub(super) fn new(linger: Duration) -> Told {
        Told {
            linger,
            slots: BTreeMap::new(),
        }
    }

    /// Compares the present state of a slot with what was told, and returns what has to be told
    /// now, in order. `said` returns what the unit in the slot says of itself, while it lives.
    pub(super) fn changes(
        &mut self,
        slot: Slot,
        (state, incarnation): (State, u32),
        said: impl FnOnce() -> Option<Vec<u8>>,
        now: Instant,
    ) -> Vec<Change> {
        let linger = self.linger;
        let last = self.slots.get_mut(&slot);
        let is_known = |last: &Last| last.incarnation == incarnation;
        match last {
            Some(last) if is_known(last) => last.turn(state, now, linger).into_iter().collect(),
            // The number is promised to another process, so its last life is over.
            Some(last) if state == State::Free => {
                last.turn(State::Free, now, linger).into_iter().collect()
            }
            None if state == State::Free => Vec::new(),
            last => {
                let ends = last.and_then(|last| last.turn(State::Dead, now, linger));
                let Some(said) = said() else {
                    return ends.into_iter().collect();
                };
                let next = Last {
                    incarnation,
                    state,
                    said,
                    ended: (state != State::Alive).then_some(now),
                };
                let begins = next.change();
                self.slots.insert(slot, next);
                ends.into_iter().chain([begins]).collect()
            }
        }
    }
}

impl Last {
    /// Moves on to a state, and returns what has to be told of that.
    fn turn(&mut self, state: State, now: Instant, linger: Duration) -> Option<Change> {
        let mut state = state;
        if state != State::Alive {
            let ended = *self.ended.get_or_insert(now);
            if now.saturating_duration_since(ended) < linger {
                state = State::Dead;
            }
        }
        if state <= self.state {
            return None;
        }
        self.state = state;
        if state == State::Free {
            self.said = Vec::new();
        }
        Some(self.change())
    }

    fn change(&self) -> Change {
        Change {
            incarnation: self.incarnation,
            state: self.state,
            said: self.said.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{Alive, Dead, Free};

    const LINGER: Duration = Duration::from_secs(1);

    /// A slot of an agent that tells others of it, at times in milliseconds.
    struct Teller {
        told: Told,
        start: Instant,
    }

    impl Teller {
        fn new() -> Teller {
            Teller {
                told: Told::new(LINGER),
                start: Instant::now(),
            }
        }

        /// Returns what is told: incarnations, states, and what the unit said.
        fn tell(&mut self, at: u64, state: State, incarnation: u32) -> Vec<(u32, State, String)> {
            let said = || (state == Alive).then(|| format!("unit {incarnation}").into_bytes());
            let now = self.start + Duration::from_millis(at);
            let changes = self
                .told
                .changes(Slot(3), (state, incarnation), said, now)
                .into_iter();
            changes
                .map(|change| {
                    let said = String::from_utf8(change.said).unwrap();
                    (change.incarnation, change.state, said)
                })
                .collect()
        }
    }

    fn said(incarnation: u32, state: State) -> (u32, State, String) {
        (incarnation, state, format!("unit {incarnation}"))
    }

    /// Nodes that never knew a unit learn who it was, for as long as what it sent may arrive.
    #[test]
    fn a_dead_unit_is_told_with_what_it_said() {
        let mut teller = Teller::new();
        assert_eq!(teller.tell(0, Alive, 1), [said(1, Alive)]);
        assert_eq!(teller.tell(10, Alive, 1), []);
        assert_eq!(teller.tell(20, Dead, 1), [said(1, Dead)]);
        assert_eq!(teller.tell(30, Dead, 1), []);
        assert_eq!(teller.tell(40, Free, 1), []);
        assert_eq!(teller.tell(1020, Free, 1), [(1, Free, String::new())]);
        assert_eq!(teller.tell(3000, Free, 1), []);
    }

    /// A number that is freed at once is told as dead first.
    #[test]
    fn no_life_is_told_as_free_at_once() {
        let mut teller = Teller::new();
        assert_eq!(teller.tell(0, Alive, 1), [said(1, Alive)]);
        assert_eq!(teller.tell(10, Free, 1), [said(1, Dead)]);
        assert_eq!(teller.tell(1009, Free, 1), []);
        assert_eq!(teller.tell(1010, Free, 1), [(1, Free, String::new())]);
    }

    /// A number that was promised to another process, or has one already, hides no death.
    #[test]
    fn a_number_that_is_used_again_hides_no_death() {
        let mut teller = Teller::new();
        assert_eq!(teller.tell(0, Alive, 1), [said(1, Alive)]);
        // Promised: shown as free, in the next incarnation.
        assert_eq!(teller.tell(10, Free, 2), [said(1, Dead)]);
        assert_eq!(teller.tell(20, Free, 2), []);
        assert_eq!(teller.tell(1020, Free, 2), [(1, Free, String::new())]);
        // It was not taken, and promised again.
        assert_eq!(teller.tell(1030, Free, 3), []);
        assert_eq!(teller.tell(1040, Alive, 3), [said(3, Alive)]);
        assert_eq!(teller.tell(1050, Alive, 4), [said(3, Dead), said(4, Alive)]);
    }

    #[test]
    fn a_promise_is_not_told() {
        let mut teller = Teller::new();
        assert_eq!(teller.tell(0, Free, 1), []);
        assert_eq!(teller.tell(5000, Free, 1), []);
        assert_eq!(teller.tell(5010, Alive, 2), [said(2, Alive)]);
    }
}
