//! The steps of a stream: the open one, and the committed ones until they are freed. `buffers`
//! contains their buffers; `spill` makes room.

use super::Stream;
use super::buffers::{Buffer, State};
use super::check::Checker;
use super::costs::{self, Costs};
use crate::protocol::ledger::Charge;
use crate::protocol::{
    Attribute, BlockOffsets, BufferAt, BufferId, Layout, LayoutHash, Layouts, PartRecord, Peer,
    Slot, Step, StepRecord, StreamConfig, StreamId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a rank has committed.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) hash: LayoutHash,
    pub(super) layout: Arc<Layout>,
    pub(super) slots: Vec<Slot<u64>>,
    pub(super) places: BlockOffsets,
    pub(super) attributes: Arc<[(String, Attribute)]>,
    pub(super) checksum: u64,
    /// Its cost to the process that committed it, without its layout.
    pub(super) _charge: Charge,
}

/// A committed step.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) parts: Vec<Part>,
    /// Hash of the layouts of all parts.
    hash: LayoutHash,
    /// Bytes of its buffers, all copies.
    pub(super) bytes: u64,
    /// Maximum bytes of a message that describes it.
    pub(super) length: u64,
    /// Number of holds on it, of readers and of writers that keep it.
    pub(super) holds: u64,
    /// Buffers that are being spilled.
    pub(super) spilling: u32,
    /// The parts as readers get them, from the first request until a buffer moves.
    pub(super) told: Option<Arc<[PartRecord]>>,
}

/// The step that is being written.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) parts: Vec<Option<Part>>,
    pub(super) missing: u32,
    /// When the newest of its parts was committed.
    pub(super) last_part_at: u64,
    /// Buffers that are not sealed yet.
    pub(super) sealing: u32,
    /// Back-pressure has let the step begin.
    pub(super) admitted: bool,
    /// Maximum bytes of a message that describes it so far.
    pub(super) length: u64,
}

impl Open {
    fn new(ranks: usize) -> Self {
        Open {
            parts: (0..ranks).map(|_| None).collect(),
            missing: ranks as u32,
            last_part_at: 0,
            sealing: 0,
            admitted: false,
            length: costs::TOLD,
        }
    }
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) committed: Step,
    pub(super) open: Open,
    pub(super) checker: Checker,
    pub(super) buffers: HashMap<u64, Buffer>,
    pub(super) next_buffer: u64,
    pub(super) steps: BTreeMap<Step, Stored>,
    /// Those of them that were not spilled yet, or whose spill has failed.
    pub(super) in_memory: BTreeSet<Step>,
    /// Steps that may have become free.
    suspects: BTreeSet<Step>,
    /// The retained window: these steps and newer ones, and their bytes.
    pub(super) retained_from: Step,
    retained_bytes: u64,
    pub(super) precious: bool,
    /// Bytes of the last committed step: the expected size of the next one.
    pub(super) last_bytes: u64,
    /// Bytes that were put into all committed steps.
    pub(super) committed_bytes: u64,
    /// Bytes that are being spilled, by block store.
    pub(super) spilling_bytes: BTreeMap<Peer, u64>,
    /// A spill failed. Another one is useless until a spilled step of any stream is freed, or a
    /// block store is added.
    pub(super) disk_full: bool,
    pub(super) costs: Costs,
}

impl Store {
    pub(super) fn new(config: &StreamConfig) -> Self {
        Store {
            committed: 0,
            open: Open::new(0),
            checker: Checker::default(),
            buffers: HashMap::new(),
            next_buffer: 0,
            steps: BTreeMap::new(),
            in_memory: BTreeSet::new(),
            suspects: BTreeSet::new(),
            retained_from: 0,
            retained_bytes: 0,
            precious: config.precious_first,
            last_bytes: 0,
            committed_bytes: 0,
            spilling_bytes: BTreeMap::new(),
            disk_full: false,
            costs: Costs::default(),
        }
    }

    pub(super) fn start(&mut self, ranks: usize) {
        self.open = Open::new(ranks);
    }

    /// Returns the number of stored steps.
    pub(super) fn stored(&self) -> u64 {
        self.steps.len() as u64
    }

    /// Returns the buffers of a committed step.
    pub(super) fn buffers_of(&self, step: Step) -> impl Iterator<Item = &Buffer> {
        let stored = self.steps.get(&step).into_iter();
        let parts = stored.flat_map(|stored| &stored.parts);
        let numbers = parts.flat_map(|part| &part.slots).flatten();
        numbers.filter_map(|number| self.buffers.get(number))
    }

    /// Returns true if the step has memory at that block store which is not being spilled.
    pub(super) fn is_at(&self, step: Step, block_store: Peer) -> bool {
        let is_there =
            |buffer: &Buffer| buffer.block_store == block_store && buffer.state == State::Read;
        self.buffers_of(step).any(is_there)
    }

    /// Notes that the step may be free.
    pub(super) fn suspect(&mut self, step: Step) {
        self.suspects.insert(step);
    }

    /// Returns the oldest step from which on all steps are stored.
    pub(super) fn unbroken_from(&self) -> Step {
        let mut from = self.committed;
        while from > 0 && self.steps.contains_key(&(from - 1)) {
            from -= 1;
        }
        from
    }

    /// Notes that all steps may be free.
    pub(super) fn suspect_all(&mut self) {
        self.suspects.extend(self.steps.keys());
    }

    /// Stops retaining steps.
    pub(super) fn let_go(&mut self) {
        (self.retained_from, self.retained_bytes) = (self.committed, 0);
        self.precious = false;
        self.suspect_all();
    }

    fn retains(&self, step: Step) -> bool {
        step >= self.retained_from || self.precious && step == 0
    }

    /// Returns true if a reader can be given the step now: it is stored and not being spilled.
    pub(super) fn ready(&self, step: Step) -> bool {
        self.steps
            .get(&step)
            .is_some_and(|stored| stored.spilling == 0)
    }

    /// Returns the lost block stores that had the only copy of something in the step.
    pub(super) fn damage(&self, step: Step) -> Vec<Peer> {
        let slots = self
            .steps
            .get(&step)
            .into_iter()
            .flat_map(|stored| &stored.parts);
        let slots = slots.flat_map(|part| &part.slots);
        let lost = |&number: &u64| self.buffers[&number].state == State::Lost;
        let dead = slots.filter(|copies| copies.iter().all(lost)).flatten();
        let block_stores: BTreeSet<Peer> = dead
            .map(|number| self.buffers[number].block_store)
            .collect();
        block_stores.into_iter().collect()
    }

    /// Returns the layouts of all ranks in a stored step, and their hash.
    pub(super) fn layouts(
        &self,
        step: Step,
    ) -> Option<(LayoutHash, impl Iterator<Item = &Layout> + Clone)> {
        let stored = self.steps.get(&step)?;
        Some((stored.hash, stored.parts.iter().map(|part| &*part.layout)))
    }

    /// Returns the record of a stored step of `stream`, for a reader that knows the layouts with
    /// hash `told`. All records of a step share its parts: a long answer to many readers exists
    /// once.
    pub(super) fn record(
        &mut self,
        stream: StreamId,
        step: Step,
        told: Option<LayoutHash>,
    ) -> Option<(StepRecord, LayoutHash)> {
        let stored = self.steps.get_mut(&step)?;
        let buffers = &self.buffers;
        let at = |&number: &u64| {
            let buffer = &buffers[&number];
            let alive = buffer.state != State::Lost;
            alive.then_some(BufferAt {
                buffer: BufferId { stream, number },
                block_store: buffer.block_store,
                handle: buffer.handle,
                bytes: buffer.bytes,
                on_disk: buffer.state == State::OnDisk,
            })
        };
        let part = |part: &Part| PartRecord {
            slots: part
                .slots
                .iter()
                .map(|copies| copies.iter().filter_map(at).collect())
                .collect(),
            places: part.places.clone(),
            attributes: part.attributes.clone(),
        };
        // Built once, and shared by all records until a buffer moves.
        let parts = stored.told.take();
        let parts = parts.unwrap_or_else(|| stored.parts.iter().map(part).collect());
        stored.told = Some(parts.clone());
        let layouts = if told == Some(stored.hash) {
            Layouts::Same(stored.hash)
        } else {
            Layouts::New {
                hash: stored.hash,
                layouts: stored
                    .parts
                    .iter()
                    .map(|part| part.layout.clone())
                    .collect(),
            }
        };
        let record = StepRecord {
            step,
            layouts,
            parts,
        };
        Some((record, stored.hash))
    }

    /// Adds a part of that peer to the open step.
    pub(super) fn put_part(&mut self, rank: usize, part: Part, from: Peer) {
        self.costs.hold(&part.layout, from);
        self.open.parts[rank] = Some(part);
    }

    /// Releases the layout of a part that no step contains any more.
    pub(super) fn forget_part(&mut self, part: &Part) {
        self.costs.let_go(&part.layout);
    }

    /// Returns what a rank has committed to a step, if it is still stored.
    pub(super) fn part(&self, step: Step, rank: u32) -> Option<&Part> {
        if step == self.committed {
            return self.open.parts[rank as usize].as_ref();
        }
        self.steps
            .get(&step)
            .map(|stored| &stored.parts[rank as usize])
    }
}

impl Stream {
    /// Commits the open step if it is complete.
    pub(super) fn complete(&mut self) {
        let ranks = self.writers.ranks();
        let open = &mut self.store.open;
        if ranks == 0 || open.missing > 0 || open.sealing > 0 || self.end.is_some() {
            return;
        }
        let open = std::mem::replace(open, Open::new(ranks));
        let length = open.length;
        let parts: Vec<Part> = open.parts.into_iter().flatten().collect();
        let step = self.store.committed;
        let mut bytes = 0u64;
        for &number in parts.iter().flat_map(|part| &part.slots).flatten() {
            if let Some(buffer) = self.store.buffers.get_mut(&number) {
                buffer.step = step;
                // Buffers of lost block stores count too, and there may have been any number of
                // block stores, so the sum may overflow.
                bytes = bytes.saturating_add(buffer.bytes);
            }
        }
        let hashes: Vec<u8> = parts
            .iter()
            .flat_map(|part| part.hash.0.to_le_bytes())
            .collect();
        let put = parts.iter().map(|part| part.layout.bytes());
        let data = put.fold(0u64, u64::saturating_add);
        let ranks = self.writers.ranks.iter();
        let kept = ranks.filter(|rank| rank.kept == Some(step)).count();
        let stored = Stored {
            hash: LayoutHash(xxhash_rust::xxh3::xxh3_128(&hashes)),
            parts,
            bytes,
            length,
            holds: kept as u64,
            spilling: 0,
            told: None,
        };
        let store = &mut self.store;
        store.steps.insert(step, stored);
        store.in_memory.insert(step);
        store.committed += 1;
        store.last_bytes = bytes;
        store.committed_bytes = store.committed_bytes.saturating_add(data);
        store.retained_bytes = store.retained_bytes.saturating_add(bytes);
        store.suspect(step);
        self.shrink_window();
        self.offer(step, bytes);
        self.offer_to_watches(step);
        // A lease that ended in the meantime has waited for this step.
        self.wake_for_leases();
    }

    /// Removes the oldest steps from the retained window while neither of its limits includes them.
    fn shrink_window(&mut self) {
        let retain = self.config.retain;
        while self.store.retained_from < self.store.committed {
            let steps = self.store.committed - self.store.retained_from;
            // Steps without bytes fit into any limit except zero.
            let wanted = retain.bytes > 0 && self.store.retained_bytes <= retain.bytes;
            if steps <= retain.steps || wanted {
                break;
            }
            self.shrink_by_one();
        }
    }

    pub(super) fn shrink_by_one(&mut self) {
        let store = &mut self.store;
        let step = store.retained_from;
        store.retained_from += 1;
        let bytes = store.steps.get(&step).map_or(0, |stored| stored.bytes);
        store.retained_bytes = store.retained_bytes.saturating_sub(bytes);
        store.suspect(step);
    }

    /// Frees the suspects that no reader can get any more.
    pub(super) fn sweep(&mut self) {
        for step in std::mem::take(&mut self.store.suspects) {
            let Some(stored) = self.store.steps.get(&step) else {
                continue;
            };
            if stored.holds > 0 || self.store.retains(step) || self.groups.want(step) {
                continue;
            }
            self.store.in_memory.remove(&step);
            let stored = self.store.steps.remove(&step).into_iter();
            for part in stored.flat_map(|stored| stored.parts) {
                self.free_part(part);
            }
        }
    }

    /// Frees the parts of the open step, which will never be complete.
    pub(super) fn drop_open(&mut self) {
        let ranks = self.writers.ranks();
        let open = std::mem::replace(&mut self.store.open, Open::new(ranks));
        for part in open.parts.into_iter().flatten() {
            self.free_part(part);
        }
    }

    fn free_part(&mut self, part: Part) {
        self.store.forget_part(&part);
        for number in part.slots.into_iter().flatten() {
            self.free_buffer(number);
        }
    }

    /// Drops the oldest step that is only retained, or one that each dropping group may lose, if
    /// that leads to a step with memory at a block store (`None`: to any step). A step that a
    /// reader holds counts, too: dropped now, it is freed when it is released, and nobody asks for
    /// room then. Returns true if a step was dropped.
    pub(super) fn yield_step(&mut self, at: Option<Peer>) -> bool {
        let store = &self.store;
        let newest = store.committed.saturating_sub(1);
        let is_there = |step: Step| at.is_none_or(|at| store.is_at(step, at));
        let mut retained = (store.retained_from..store.committed).rev();
        if retained.any(is_there) {
            self.shrink_by_one();
        } else {
            let Some(steps) = self.groups.yield_one(newest, is_there) else {
                return false;
            };
            steps.into_iter().for_each(|step| self.store.suspect(step));
        }
        self.sweep();
        true
    }
}
