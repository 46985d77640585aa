//! What one node knows of the slots of another one: eight bytes per slot. What the units state
//! about themselves is in the roster, which the layer above writes.

use super::State;
use super::id::NodeLife;
use super::message::{Nonsense, SlotEntry};
use crate::Slot;
use samite_mem::PEERS_MAX;

/// The slots of one life of a node, as far as its agent has reported them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mirror {
    /// Sequence number of the last change that was applied.
    seen: u64,
    slots: Vec<Mirrored>,
}

/// The incarnation of a slot is 0 before its first unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mirrored {
    incarnation: u32,
    state: State,
}

const _: () = assert!(size_of::<Mirrored>() == 8);

const EMPTY: Mirrored = Mirrored {
    incarnation: 0,
    state: State::Free,
};

impl Mirror {
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Applies the next change and returns the states that units went through, in order. A unit
    /// that was never seen alive and whose slot is not free yet is reported as joined and then
    /// lost: what it sent may still be in flight.
    pub(super) fn apply(
        &mut self,
        life: NodeLife,
        entry: &SlotEntry<'_>,
    ) -> Result<impl Iterator<Item = (State, u32)> + use<>, Nonsense> {
        if entry.sequence <= self.seen {
            return Err(Nonsense("a change of a slot out of order"));
        }
        if !life.incarnations().contains(&entry.incarnation) {
            return Err(Nonsense("an incarnation of another life of the node"));
        }
        let index = entry.slot.index();
        if index >= PEERS_MAX {
            return Err(Nonsense("a slot that cannot be"));
        }
        let before = self.slots.get(index).copied().unwrap_or(EMPTY);
        let is_new = entry.incarnation > before.incarnation;
        let goes_on = entry.incarnation == before.incarnation && entry.state > before.state;
        if !(is_new || goes_on) {
            return Err(Nonsense("a slot that goes back to an earlier life"));
        }
        if self.slots.len() <= index {
            self.slots.resize(index + 1, EMPTY);
        }
        self.slots[index] = Mirrored {
            incarnation: entry.incarnation,
            state: entry.state,
        };
        self.seen = entry.sequence;
        // Only the newest change of a slot is sent, so one entry can stand for several transitions.
        let was_alive = before.state == State::Alive;
        let ends = was_alive && (is_new || entry.state != State::Alive);
        let comes = is_new && entry.state != State::Free;
        let goes = is_new && entry.state == State::Dead;
        let is_free = entry.state == State::Free;
        let turns = [
            ends.then_some((State::Dead, before.incarnation)),
            comes.then_some((State::Alive, entry.incarnation)),
            goes.then_some((State::Dead, entry.incarnation)),
            is_free.then_some((State::Free, entry.incarnation)),
        ];
        Ok(turns.into_iter().flatten())
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Mirrored>()
    }

    /// Iterates over the living units, in order of slots.
    pub(super) fn living(&self) -> impl Iterator<Item = (Slot, u32)> {
        let slots = self.slots.iter().enumerate();
        let living = slots.filter(|(_, slot)| slot.state == State::Alive);
        living.map(|(index, slot)| (Slot(index as u32), slot.incarnation))
    }
}
