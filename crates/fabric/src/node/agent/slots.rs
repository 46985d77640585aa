//! The agent's own account of the slots: which process has which number, and how many incarnations
//! each number has had. Pure: no IO.
//!
//! The table in shared memory is published from here and never read back.

use crate::node::{Slot, State};
use samite_mem::PEERS_MAX;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// One incarnation of a number.
pub(crate) type Life = (Slot, u32);

/// The agent's account of the slots; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Account>,
    /// The incarnations that a slot may have during this life of the node.
    incarnations: RangeInclusive<u32>,
    /// How many numbers were freed so far.
    freed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    stage: Stage,
    /// The present or last incarnation.
    incarnation: u32,
    /// The value of the counter above when the number was last freed.
    freed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// The number was offered to a process, which has not confirmed yet.
    Promised,
    Alive,
    Dead,
}

impl Slots {
    /// Creates the account of one life of a node.
    pub(crate) fn new(incarnations: RangeInclusive<u32>) -> Slots {
        Slots {
            slots: Vec::new(),
            incarnations,
            freed: 0,
        }
    }

    /// Returns how many slots were ever used: those below this number.
    pub(crate) fn used(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Promises a number to a new process, if possible not one of `avoided`: the number that has
    /// been free for longest, so that frames in flight in the name of its last incarnation have
    /// time to arrive. A number whose incarnations are used up is never reused.
    pub(crate) fn promise(&mut self, avoided: &BTreeSet<Slot>) -> Option<Life> {
        let last = *self.incarnations.end();
        let is_free = |slot: &Account| slot.stage == Stage::Free && slot.incarnation < last;
        let used = self.slots.iter().enumerate();
        let mut free: Vec<usize> = used
            .filter(|(_, slot)| is_free(slot))
            .map(|(index, _)| index)
            .collect();
        free.sort_by_key(|index| self.slots[*index].freed);
        // All processes scan all numbers that were ever used, so new ones are added only when
        // needed.
        if self.slots.len() < PEERS_MAX {
            free.push(self.slots.len());
        }
        let is_avoided = |index: &usize| avoided.contains(&Slot(*index as u32));
        let index = *free
            .iter()
            .find(|index| !is_avoided(index))
            .or(free.first())?;
        if index == self.slots.len() {
            self.slots.push(Account {
                stage: Stage::Free,
                incarnation: self.incarnations.start() - 1,
                freed: 0,
            });
        }
        let slot = &mut self.slots[index];
        slot.incarnation += 1;
        slot.stage = Stage::Promised;
        Some((Slot(index as u32), slot.incarnation))
    }

    /// Makes the process to which a number was promised a member.
    pub(crate) fn seat(&mut self, peer: Slot) {
        self.set(peer, Stage::Alive);
    }

    /// Marks a member that left or died; its number is not free yet.
    pub(crate) fn bury(&mut self, peer: Slot) {
        self.set(peer, Stage::Dead);
    }

    /// Frees a number for reuse.
    pub(crate) fn free(&mut self, peer: Slot) {
        self.set(peer, Stage::Free);
        self.freed += 1;
        if let Some(slot) = self.slots.get_mut(peer.index()) {
            slot.freed = self.freed;
        }
    }

    fn set(&mut self, peer: Slot, stage: Stage) {
        if let Some(slot) = self.slots.get_mut(peer.index()) {
            slot.stage = stage;
        }
    }

    /// Returns what others should see of each slot that was ever used.
    pub(crate) fn published(&self) -> impl Iterator<Item = (Slot, State, u32)> {
        self.slots.iter().enumerate().map(|(index, slot)| {
            let state = match slot.stage {
                Stage::Free | Stage::Promised => State::Free,
                Stage::Alive => State::Alive,
                Stage::Dead => State::Dead,
            };
            (Slot(index as u32), state, slot.incarnation)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::NodeLife;

    #[test]
    fn numbers_are_used_again_in_another_life() {
        let mut slots = Slots::new(NodeLife::HEAD.incarnations());
        let none = BTreeSet::new();
        assert_eq!(slots.promise(&none), Some((Slot(0), 1)));
        assert_eq!(slots.promise(&none), Some((Slot(1), 1)));
        slots.seat(Slot(0));
        slots.bury(Slot(0));
        assert_eq!(
            slots.promise(&none),
            Some((Slot(2), 1)),
            "0 is not free yet"
        );
        slots.free(Slot(0));
        let avoided = BTreeSet::from([Slot(0)]);
        assert_eq!(slots.promise(&avoided), Some((Slot(3), 1)));
        assert_eq!(slots.promise(&none), Some((Slot(0), 2)));
        assert_eq!(slots.used(), 4);
    }

    #[test]
    fn a_number_rests_as_long_as_it_can() {
        let mut slots = Slots::new(NodeLife::HEAD.incarnations());
        let none = BTreeSet::new();
        for number in 0..4 {
            assert_eq!(slots.promise(&none), Some((Slot(number), 1)));
        }
        for number in [2, 0, 3] {
            slots.free(Slot(number));
        }
        assert_eq!(slots.promise(&none), Some((Slot(2), 2)));
        slots.free(Slot(2));
        let avoided = BTreeSet::from([Slot(0)]);
        assert_eq!(slots.promise(&avoided), Some((Slot(3), 2)));
        for number in [0, 2] {
            assert_eq!(slots.promise(&none).map(|life| life.0), Some(Slot(number)));
        }
        assert_eq!(slots.promise(&none), Some((Slot(4), 1)));
    }

    #[test]
    fn a_number_without_lives_left_is_never_used_again() {
        let mut slots = Slots::new(NodeLife::HEAD.incarnations());
        let none = BTreeSet::new();
        slots.promise(&none);
        slots.free(Slot(0));
        slots.slots[0].incarnation = *slots.incarnations.end();
        assert_eq!(slots.promise(&none), Some((Slot(1), 1)));
        for number in 2..PEERS_MAX as u32 {
            assert_eq!(slots.promise(&none), Some((Slot(number), 1)));
        }
        assert_eq!(slots.promise(&none), None, "the domain is full");
    }
}
