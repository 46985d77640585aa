//! Vector clocks: what a unit knows of every unit's time.

use serde::{Deserialize, Serialize};

/// For each unit, the time up to which its actions happened before now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// The clock of a unit that knows nothing of the others. Its own time starts at 1.
    pub(super) fn of(unit: u32) -> Clock {
        let mut clock = Clock::default();
        clock.tick(unit);
        clock
    }

    /// Removes the times of units that do not exist: a clock that was received may have any length.
    pub(super) fn limit(&mut self, units: usize) {
        self.0.truncate(units);
    }

    pub(super) fn time(&self, unit: u32) -> u64 {
        self.0.get(unit as usize).copied().unwrap_or(0)
    }

    /// Merges another clock into this one.
    pub(super) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Merges a clock that another unit has sent to `me`, which alone knows its own time.
    pub(super) fn hear(&mut self, me: u32, other: &Clock) {
        let own = self.time(me);
        self.join(other);
        *self.entry(me) = own;
    }

    /// Marks a unit as dead: everything that it did happened before now.
    pub(super) fn bury(&mut self, unit: u32) {
        *self.entry(unit) = u64::MAX;
    }

    pub(super) fn is_buried(&self, unit: u32) -> bool {
        self.time(unit) == u64::MAX
    }

    /// Starts a new time of a unit, after it has told others the old one.
    pub(super) fn tick(&mut self, unit: u32) {
        *self.entry(unit) += 1;
    }

    fn entry(&mut self, unit: u32) -> &mut u64 {
        let unit = unit as usize;
        if self.0.len() <= unit {
            self.0.resize(unit + 1, 0);
        }
        &mut self.0[unit]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_learn_from_each_other() {
        let (mut a, mut b) = (Clock::of(0), Clock::of(2));
        b.tick(2);
        a.join(&b);
        assert_eq!([a.time(0), a.time(1), a.time(2), a.time(9)], [1, 0, 2, 0]);
        assert_eq!(b.time(0), 0);
        b.join(&a);
        assert_eq!(a, b);
        b.bury(7);
        b.bury(7);
        assert!(b.is_buried(7) && !b.is_buried(0));
    }

    #[test]
    fn nobody_else_knows_the_time_of_a_unit() {
        let mut clock = Clock::of(1);
        clock.hear(1, &Clock(vec![7, u64::MAX]));
        clock.tick(1);
        assert_eq!([clock.time(0), clock.time(1)], [7, 2]);
    }
}
