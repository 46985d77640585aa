//! Makes room by spilling or dropping steps.

use super::buffers::State;
use super::{Action, Stream};
use crate::protocol::{BufferId, Peer, Step};
use std::collections::BTreeSet;

impl Stream {
    /// The disk of the block store has no space for the buffer.
    pub fn spill_refused(&mut self, buffer: BufferId) {
        let known = self.store.buffers.get(&buffer.number);
        if known.is_some_and(|known| known.state == State::Spilling) {
            self.spilled(buffer.number, false);
            self.settle();
        }
    }

    /// Some disk has more space than before.
    pub fn room_on_disk(&mut self) {
        if std::mem::take(&mut self.store.disk_full) {
            self.settle();
        }
    }

    pub(super) fn spilled(&mut self, number: u64, done: bool) {
        let Some(buffer) = self.store.buffers.get_mut(&number) else {
            return;
        };
        buffer.state = if done { State::OnDisk } else { State::Read };
        let (block_store, bytes, step) = (buffer.block_store, buffer.bytes, buffer.step);
        self.store.spilling_bytes -= bytes;
        if let Some(stored) = self.store.steps.get_mut(&step) {
            stored.spilling -= 1;
            stored.told = None;
        }
        let id = self.buffer_id(number);
        if done {
            self.out.push(Action::Freed(id, block_store, bytes));
            self.out.push(Action::HasWorked(block_store));
        } else {
            self.store.disk_full = true;
            self.store.in_memory.insert(step);
            self.out.push(Action::FreedDisk(id));
        }
    }

    /// Spills the steps of spilling groups that exceed their limits.
    pub(super) fn spill_beyond(&mut self) {
        for step in self.groups.to_spill(&self.store.in_memory, true) {
            self.spill(step);
        }
    }

    /// Spills a step if it is in memory and not held. Returns the bytes that will be free.
    fn spill(&mut self, step: Step) -> u64 {
        if self.store.disk_full {
            return 0;
        }
        let Some(stored) = self.store.steps.get_mut(&step) else {
            return 0;
        };
        // Holders may access its memory, so it stays there.
        if stored.holds > 0 || stored.spilling > 0 {
            return 0;
        }
        let mut bytes = 0;
        let numbers: Vec<u64> = stored
            .parts
            .iter()
            .flat_map(|part| &part.slots)
            .flatten()
            .copied()
            .collect();
        for number in numbers {
            let id = self.buffer_id(number);
            let Some(buffer) = self.store.buffers.get_mut(&number) else {
                continue;
            };
            if buffer.state != State::Read {
                continue;
            }
            (buffer.state, buffer.parts) = (State::Spilling, 0);
            bytes += buffer.bytes;
            self.out
                .push(Action::Spill(id, buffer.block_store, buffer.bytes));
            if let Some(stored) = self.store.steps.get_mut(&step) {
                stored.spilling += 1;
            }
        }
        self.store.in_memory.remove(&step);
        self.store.spilling_bytes += bytes;
        bytes
    }

    /// Returns the block stores that have yet to write some of a step to disk.
    pub(super) fn spilling(&self, step: Step) -> BTreeSet<Peer> {
        let stored = self.store.steps.get(&step).into_iter();
        let parts = stored.flat_map(|stored| &stored.parts);
        let buffers = parts.flat_map(|part| &part.slots).flatten();
        let buffers = buffers.filter_map(|number| self.store.buffers.get(number));
        let spilling = buffers.filter(|buffer| buffer.state == State::Spilling);
        spilling.map(|buffer| buffer.block_store).collect()
    }

    /// Drops and spills steps until `missing` bytes are or will be free, the least needed first.
    /// Returns the bytes that are still missing.
    pub(in crate::protocol) fn make_room(&mut self, missing: u64) -> u64 {
        let mut missing = missing.saturating_sub(self.store.spilling_bytes);
        let mut has_changed = false;
        while missing > 0 {
            let before = self.store.freed_bytes;
            if !self.yield_step() {
                break;
            }
            has_changed = true;
            missing = missing.saturating_sub(self.store.freed_bytes.wrapping_sub(before));
        }
        let precious = self.store.precious.then_some(0);
        let steps = self.groups.to_spill(&self.store.in_memory, false);
        for step in steps.into_iter().chain(precious) {
            if missing == 0 {
                break;
            }
            let spills = self.spill(step);
            has_changed |= spills > 0;
            missing = missing.saturating_sub(spills);
        }
        // Only a change lets anything follow. A request that waits asks for room in every event.
        if has_changed {
            self.settle();
        }
        missing
    }
}
