//! A writer rank's commit: is it valid, is it a repetition, and does it fit the other parts.

use super::buffers::State;
use super::store::Part as Stored;
use super::writers::Known;
use super::{Stream, costs};
use crate::protocol::ledger::Ledger;
use crate::protocol::{
    ALIGN, Answer, Block, BlockOffsets, BufferId, Fault, LONGEST, Layout, LayoutHash, LayoutRef,
    Order, Part, Peer, Slot, Step, Ticket,
};
use std::collections::HashSet;

impl Stream {
    /// Returns the cost at the coordinator of a step that a rank begins with `wants` buffers,
    /// assuming that its part is as large as the last one.
    pub(super) fn cost_to_begin(&self, rank: usize, wants: usize) -> u64 {
        let part = self
            .writers
            .ranks
            .get(rank)
            .map_or(0, |rank| rank.part_cost);
        part + costs::of_wants(wants) + costs::BUFFER * wants as u64
    }

    /// Checks that a peer may use `cost` more. Drops steps that are only retained, and those that
    /// groups may lose, to make room.
    pub(super) fn afford(&mut self, from: Peer, cost: u64) -> Result<(), Fault> {
        loop {
            let Err(fault) = self.store.costs.ledger.check(from, cost) else {
                return Ok(());
            };
            if !Ledger::is_possible(cost) || !self.yield_step(None) {
                return Err(fault);
            }
        }
    }

    /// As [`afford`](Self::afford), for a part of a step that has begun: it may be larger than the
    /// last one. Returns its cost without its layout.
    fn afford_part(&mut self, from: Peer, part: &Part) -> Result<u64, Fault> {
        let layout = match &part.layout {
            LayoutRef::New(layout) => costs::of_layout(layout),
            LayoutRef::Same(_) => 0,
        };
        let cost = costs::of_part(part);
        self.afford_begun(from, cost.saturating_add(layout))?;
        Ok(cost)
    }

    /// As [`afford`](Self::afford), for what belongs to a step that has begun.
    pub(super) fn afford_begun(&mut self, from: Peer, cost: u64) -> Result<(), Fault> {
        let afforded = self.afford(from, cost);
        afforded.or_else(|_| self.store.costs.ledger.check_begun(from, cost))
    }

    /// Commits a rank's part, which is in its buffers; `keep`: the rank continues to read it (S9).
    pub fn commit(&mut self, from: Peer, rank: u32, ticket: Ticket, part: Part, keep: bool) {
        let answer = match self.take_part(from, rank, part, keep) {
            Ok(()) => Answer::Committed,
            Err(fault) => Answer::Failed(fault),
        };
        self.answer(from, ticket, answer);
        self.settle();
    }

    fn take_part(&mut self, from: Peer, rank: u32, part: Part, keep: bool) -> Result<(), Fault> {
        if !self.writer_is(rank, from) {
            return Err(Fault::NotOpen);
        }
        let state = &self.writers.ranks[rank as usize];
        let step = part.step;
        if step < state.next {
            return self.again(rank, part);
        }
        self.not_ended()?;
        if let Some(fault) = self.closed_without(step) {
            return Err(fault);
        }
        if step > state.next || !state.begun {
            return Err(Fault::NotBegun { step });
        }
        if state.asking.is_some() {
            return Err(Fault::Busy);
        }
        // Checks everything before the first change: a refused part has no effect.
        let cost = self.afford_part(from, &part)?;
        let told = costs::told_of_part(&part);
        let known = self.layout(rank, part.layout)?;
        let length = self.told_with(rank, step, told.saturating_add(known.length))?;
        let (hash, layout) = (known.hash, &known.layout);
        let slots = self.slots(rank, &part.slots, step)?;
        self.fits(rank, layout, &slots, &part.places)?;
        self.store
            .checker
            .enter(rank, hash, layout, &self.store.open.parts)?;
        // A step without readers is only retained: no reader will free it.
        let charge = match self.groups.is_empty() {
            true => self.store.costs.ledger.charge(from, cost),
            false => self.store.costs.ledger.charge_step(from, self.id, cost),
        };
        let kept = Stored {
            hash,
            layout: layout.clone(),
            slots,
            places: part.places,
            attributes: part.attributes.into(),
            checksum: part.checksum,
            _charge: charge,
        };
        self.store.put_part(rank as usize, kept, from);
        // The last part: only now can all blocks be checked for overlaps.
        if self.store.open.missing == 1
            && let Err(fault) = self.check_whole()
        {
            if let Some(part) = self.store.open.parts[rank as usize].take() {
                self.store.forget_part(&part);
            }
            self.store.checker.forget_open();
            return Err(fault);
        }
        self.store.open.length = length;
        self.store.costs.hold(layout, from);
        let before = self.writers.ranks[rank as usize].layout.replace(known);
        if let Some(before) = before {
            self.store.costs.let_go(&before.layout);
        }
        self.writers.ranks[rank as usize].part_cost = cost;
        self.part_taken(rank as usize);
        self.let_go(rank as usize);
        self.writers.ranks[rank as usize].kept = keep.then_some(step);
        Ok(())
    }

    fn check_whole(&mut self) -> Result<(), Fault> {
        let parts = self.store.open.parts.iter().flatten();
        let parts: Vec<(LayoutHash, &Layout)> =
            parts.map(|part| (part.hash, &*part.layout)).collect();
        self.store.checker.whole(&parts)
    }

    /// Seals the buffers of an accepted part, and frees the unused ones of its rank.
    fn part_taken(&mut self, rank: usize) {
        let state = &mut self.writers.ranks[rank];
        state.next += 1;
        state.begun = false;
        let buffers = std::mem::take(&mut state.buffers);
        self.drop_aside(rank);
        self.store.open.missing -= 1;
        self.store.open.last_part_at = self.now;
        let part = self.store.open.parts[rank].as_ref();
        let used: HashSet<u64> = part
            .into_iter()
            .flat_map(|part| &part.slots)
            .flatten()
            .copied()
            .collect();
        for number in buffers {
            if !used.contains(&number) {
                self.free_buffer(number);
                continue;
            }
            let id = self.buffer_id(number);
            let Some(buffer) = self.store.buffers.get_mut(&number) else {
                continue;
            };
            // A lost buffer cannot be sealed, but its other copies can.
            if buffer.state != State::Lost {
                buffer.state = State::Sealing;
                let block_store = buffer.block_store;
                self.store.open.sealing += 1;
                self.order(block_store, Order::Seal { buffer: id });
            }
        }
    }

    /// Handles a commit of a step that the rank has already committed, after a restart.
    fn again(&mut self, rank: u32, part: Part) -> Result<(), Fault> {
        let hash = match &part.layout {
            LayoutRef::New(layout) => layout.hash(),
            LayoutRef::Same(hash) => *hash,
        };
        let step = part.step;
        let differs = self
            .store
            .part(step, rank)
            .is_some_and(|there| (there.hash, there.checksum) != (hash, part.checksum));
        if differs {
            return Err(Fault::Differs { rank, step });
        }
        Ok(())
    }

    /// Returns the maximum length of a message that tells readers of the open step, with `more`
    /// bytes of a rank's part.
    ///
    /// # Errors
    /// The length exceeds that of any message: no reader could be given the step.
    fn told_with(&self, rank: u32, step: Step, more: u64) -> Result<u64, Fault> {
        let bytes = self.store.open.length.saturating_add(more);
        let most = LONGEST as u64;
        match bytes <= most {
            true => Ok(bytes),
            false => Err(Fault::StepTooLong {
                stream: self.name.clone(),
                step,
                rank,
                bytes,
                most,
            }),
        }
    }

    fn layout(&self, rank: u32, told: LayoutRef) -> Result<Known, Fault> {
        match told {
            LayoutRef::New(layout) => {
                layout.check(rank)?;
                let (hash, length) = layout.hash_and_length();
                Ok(Known {
                    hash,
                    layout,
                    length,
                })
            }
            LayoutRef::Same(hash) => {
                let last = self.writers.ranks[rank as usize].layout.as_ref();
                let last = last.filter(|known| known.hash == hash);
                last.cloned().ok_or(Fault::UnknownLayout { rank })
            }
        }
    }

    /// Returns the buffers that a part names: all are the rank's own, each occurs once, and every
    /// slot has at least one that is not lost.
    fn slots(
        &self,
        rank: u32,
        named: &[Slot<BufferId>],
        step: Step,
    ) -> Result<Vec<Slot<u64>>, Fault> {
        let own = self.writers.ranks[rank as usize].buffers.iter().copied();
        let own: HashSet<u64> = own.collect();
        let mut seen = HashSet::new();
        let mut slots = Vec::with_capacity(named.len());
        for copies in named {
            let mut lost = None;
            let mut slot = Slot::new();
            for copy in copies {
                if copy.stream != self.id
                    || !own.contains(&copy.number)
                    || !seen.insert(copy.number)
                {
                    return Err(Fault::ForeignBuffer { rank });
                }
                match &self.store.buffers[&copy.number] {
                    buffer if buffer.state == State::Lost => lost = Some(buffer.block_store),
                    _ => slot.push(copy.number),
                }
            }
            // A lost copy is left out as long as another one is alive.
            if slot.is_empty() {
                let block_store = lost.ok_or(Fault::ForeignBuffer { rank })?.into();
                return Err(Fault::BlockStoreLost { block_store, step });
            }
            slots.push(slot);
        }
        Ok(slots)
    }

    /// Checks that every block lies inside each copy of its slot, with its elements aligned.
    fn fits(
        &self,
        rank: u32,
        layout: &Layout,
        slots: &[Slot<u64>],
        places: &BlockOffsets,
    ) -> Result<(), Fault> {
        // Checked before a table with that many slots is allocated.
        for variable in &layout.variables {
            let beyond = |block: &Block| block.slot as usize >= slots.len();
            if let Some(at) = variable.blocks.iter().position(beyond) {
                return Err(Fault::BadPlace {
                    rank,
                    variable: variable.name.clone(),
                    block: at as u64,
                });
            }
        }
        let packed;
        let offsets: &[u64] = match places {
            BlockOffsets::Packed => {
                packed = layout.packing()?.offsets;
                &packed
            }
            BlockOffsets::Listed(offsets) => offsets,
        };
        let blocks = layout.variables.iter();
        let blocks: usize = blocks.map(|variable| variable.blocks.len()).sum();
        if offsets.len() != blocks {
            return Err(Fault::PlacesDiffer {
                rank,
                places: offsets.len() as u64,
                blocks: blocks as u64,
            });
        }
        let mut offsets = offsets.iter();
        for variable in &layout.variables {
            for (at, block) in variable.blocks.iter().enumerate() {
                let bytes = block.region.bytes(variable.dtype.bytes()).ok();
                // Readers access the elements in place.
                let offset = offsets.next().filter(|offset| offset.is_multiple_of(ALIGN));
                let end = offset.and_then(|offset| offset.checked_add(bytes?));
                let copies = slots.get(block.slot as usize);
                let inside = end.zip(copies).is_some_and(|(end, copies)| {
                    copies
                        .iter()
                        .all(|number| end <= self.store.buffers[number].bytes)
                });
                if !inside {
                    return Err(Fault::BadPlace {
                        rank,
                        variable: variable.name.clone(),
                        block: at as u64,
                    });
                }
            }
        }
        Ok(())
    }
}
