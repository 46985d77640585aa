//! The buffers of a stream: ordered, reported, freed once, or lost with their block store.

use super::costs;
use super::{Action, Stream};
use crate::protocol::admission::{Totals, totals};
use crate::protocol::ledger::Charge;
use crate::protocol::{BufferId, Handle, Order, Peer, Report, Step, Want};

/// The state of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Asked,
    Written,
    Sealing,
    Read,
    Spilling,
    OnDisk,
    Lost,
}

#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) block_store: Peer,
    pub(super) bytes: u64,
    pub(super) handle: Handle,
    pub(super) state: State,
    /// The step that it is committed to.
    pub(super) step: Step,
    /// Its cost to the process that requested it.
    _charge: Charge,
    /// Its block store waits for freed memory that is still in use, by `had_by` if that is known.
    pub(super) is_full: bool,
    pub(super) had_by: Option<Peer>,
    /// How many parts of it have been allocated or, while it is spilled, written to disk.
    pub(super) parts: u64,
}

impl Stream {
    pub(super) fn buffer_id(&self, number: u64) -> BufferId {
        BufferId {
            stream: self.id,
            number,
        }
    }

    /// Orders a buffer for a writer; its memory has been granted.
    pub(super) fn allocate(&mut self, block_store: Peer, bytes: u64, writer: Peer) -> u64 {
        let number = self.store.next_buffer;
        self.store.next_buffer += 1;
        let buffer = Buffer {
            block_store,
            bytes,
            handle: Handle::default(),
            state: State::Asked,
            step: Step::MAX,
            _charge: self.store.costs.ledger.charge(writer, costs::BUFFER),
            is_full: false,
            had_by: None,
            parts: 0,
        };
        self.store.buffers.insert(number, buffer);
        let buffer = self.buffer_id(number);
        self.order(
            block_store,
            Order::Allocate {
                buffer,
                bytes,
                writer,
            },
        );
        number
    }

    /// Orders the block store to free a buffer, and reports what is free. Buffers end only here.
    pub(super) fn free_buffer(&mut self, number: u64) {
        let Some(buffer) = self.store.buffers.remove(&number) else {
            return; // it was refused
        };
        let id = self.buffer_id(number);
        let (block_store, bytes) = (buffer.block_store, buffer.bytes);
        if buffer.state == State::Lost {
            return;
        }
        self.order(block_store, Order::Free { buffer: id });
        if matches!(buffer.state, State::Spilling | State::OnDisk) {
            self.out.push(Action::FreedDisk(id));
            self.out.push(Action::RoomOnDisk);
        }
        if buffer.state == State::Spilling {
            *self.store.spilling_bytes.entry(block_store).or_default() -= bytes;
        }
        if buffer.state != State::OnDisk {
            self.out.push(Action::Freed(id, block_store, bytes));
        }
    }

    /// Handles the report of a block store.
    pub fn report(&mut self, from: Peer, report: Report) {
        let number = report.buffer().number;
        let Some(known) = self.store.buffers.get_mut(&number) else {
            return; // freed in the meantime
        };
        if known.block_store != from {
            return; // invalid: the buffer of another block store
        }
        match (report, known.state) {
            (Report::Allocated { handle, .. }, State::Asked) => {
                (known.handle, known.state) = (handle, State::Written);
                self.buffer_held(number, from);
            }
            (Report::Refused { lack, .. }, State::Asked) => self.buffer_refused(number, lack),
            (Report::Full { had_by, .. }, State::Asked) => {
                (known.is_full, known.had_by) = (true, had_by);
            }
            // No part counts twice: a block store that only repeats a number makes no progress.
            (Report::Working { parts, .. }, State::Asked | State::Spilling)
                if known.parts < parts && parts <= known.bytes =>
            {
                (known.parts, known.is_full, known.had_by) = (parts, false, None);
                self.out.push(Action::HasWorked(from));
            }
            (Report::Sealed { .. }, State::Sealing) => {
                known.state = State::Read;
                self.store.open.sealing -= 1;
            }
            (Report::Spilled { .. }, State::Spilling) => self.spilled(number, true),
            (Report::SpillFailed { .. }, State::Spilling) => self.spilled(number, false),
            _ => {} // invalid, or too late
        }
        self.settle();
    }

    /// Removes the buffers of a lost block store.
    pub(super) fn block_store_lost(&mut self, block_store: Peer) {
        let mut asked = Vec::new();
        self.store.spilling_bytes.remove(&block_store);
        for stored in self.store.steps.values_mut() {
            stored.told = None;
        }
        for (&number, buffer) in &mut self.store.buffers {
            if buffer.block_store != block_store || buffer.state == State::Lost {
                continue;
            }
            match buffer.state {
                State::Sealing => self.store.open.sealing -= 1,
                State::Spilling => {
                    if let Some(stored) = self.store.steps.get_mut(&buffer.step) {
                        stored.spilling -= 1;
                    }
                }
                State::Asked => asked.push(number),
                _ => {}
            }
            buffer.state = State::Lost;
        }
        asked.sort_unstable(); // a map has no order, but runs must be reproducible
        for number in asked {
            self.asked_buffer_lost(number, block_store);
        }
    }

    /// Returns the memory of the open step, over all ranks.
    pub(super) fn open_bytes(&self) -> Totals {
        let parts = self.store.open.parts.iter().flatten();
        let committed = parts.flat_map(|part| &part.slots).flatten().copied();
        self.live_bytes(self.writers.buffers().chain(committed))
    }

    /// Returns the memory of the committed step that a writer rank keeps: all of it, since a step
    /// is freed as a whole.
    pub(super) fn kept_bytes(&self, rank: usize) -> Totals {
        let kept = self.writers.ranks[rank].kept.as_ref();
        let stored = kept.and_then(|step| self.store.steps.get(step));
        let parts = stored.into_iter().flat_map(|stored| &stored.parts);
        self.live_bytes(parts.flat_map(|part| &part.slots).flatten().copied())
    }

    fn live_bytes(&self, numbers: impl Iterator<Item = u64>) -> Totals {
        let live = numbers.filter_map(|number| self.store.buffers.get(&number));
        let live = live.filter(|buffer| buffer.state != State::Lost);
        totals(live.map(|buffer| Want {
            block_store: buffer.block_store,
            bytes: buffer.bytes,
        }))
    }
}
