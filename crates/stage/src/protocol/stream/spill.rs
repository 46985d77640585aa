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
        *self.store.spilling_bytes.entry(block_store).or_default() -= bytes;
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

    /// Spills a step if it is in memory and not held.
    fn spill(&mut self, step: Step) {
        if self.store.disk_full {
            return;
        }
        let Some(stored) = self.store.steps.get_mut(&step) else {
            return;
        };
        // Holders may access its memory, so it stays there.
        if stored.holds > 0 || stored.spilling > 0 {
            return;
        }
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
            let (block_store, bytes) = (buffer.block_store, buffer.bytes);
            *self.store.spilling_bytes.entry(block_store).or_default() += bytes;
            self.out.push(Action::Spill(id, block_store, bytes));
            if let Some(stored) = self.store.steps.get_mut(&step) {
                stored.spilling += 1;
            }
        }
        self.store.in_memory.remove(&step);
    }

    /// Returns the block stores that have yet to write some of a step to disk.
    pub(super) fn spilling(&self, step: Step) -> BTreeSet<Peer> {
        let buffers = self.store.buffers_of(step);
        let spilling = buffers.filter(|buffer| buffer.state == State::Spilling);
        spilling.map(|buffer| buffer.block_store).collect()
    }

    /// Drops and spills steps until `missing` bytes at a block store (`None`: at any) are or will
    /// be free, the least needed first. Returns the bytes that are still missing.
    pub(in crate::protocol) fn make_room(&mut self, missing: u64, at: Option<Peer>) -> u64 {
        let spilling = self.store.spilling_bytes.iter();
        let spilling = spilling.filter(|&(&from, _)| is_at(from, at));
        let mut missing = missing.saturating_sub(spilling.map(|(_, bytes)| bytes).sum());
        let mut has_changed = false;
        while missing > 0 {
            let before = self.out.len();
            if !self.yield_step(at) {
                break;
            }
            has_changed = true;
            missing = missing.saturating_sub(self.freed_since(before, at));
        }
        if missing > 0 && !self.store.disk_full {
            let precious = self.store.precious.then_some(0);
            let steps = self.groups.to_spill(&self.store.in_memory, false);
            for step in steps.into_iter().chain(precious) {
                if missing > 0 && at.is_none_or(|at| self.store.is_at(step, at)) {
                    let before = self.out.len();
                    self.spill(step);
                    has_changed |= self.out.len() > before;
                    missing = missing.saturating_sub(self.freed_since(before, at));
                }
            }
        }
        // Only a change lets anything follow. A request that waits asks for room in every event.
        if has_changed {
            self.settle();
        }
        missing
    }

    /// Returns the bytes at that block store that the actions after the first `before` free.
    fn freed_since(&self, before: usize, at: Option<Peer>) -> u64 {
        let freed = self.out[before..]
            .iter()
            .filter_map(|action| match *action {
                Action::Freed(_, from, bytes) | Action::Spill(_, from, bytes) => {
                    is_at(from, at).then_some(bytes)
                }
                _ => None,
            });
        freed.sum()
    }
}

fn is_at(block_store: Peer, at: Option<Peer>) -> bool {
    at.is_none_or(|at| at == block_store)
}
