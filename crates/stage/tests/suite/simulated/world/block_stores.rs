//! The block stores of a run, and who writes to them and reads from them.

use super::{World, figures_run};
use samite_stage::protocol::{
    BufferAt, BufferId, Handle, Lack, Order, Peer, Report, Request, StreamId,
};
use std::collections::{HashMap, HashSet};

/// A buffer at its block store.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    writer: Peer,
    sealed: bool,
    on_disk: bool,
}

/// A block store, as it is in a run: its memory.
#[derive(Debug, Default)]
pub(super) struct BlockStore {
    pub(super) buffers: HashMap<BufferId, Buffer>,
    seen: HashSet<BufferId>,
    pub(super) used: u64,
    pub(super) disk: u64,
}

impl World {
    pub(crate) fn block_store_lives(&self, block_store: Peer) -> bool {
        self.block_stores.contains_key(&block_store)
    }

    /// A writer writes into its buffer, as if it had mapped it.
    pub(crate) fn write(&mut self, writer: Peer, at: &BufferAt, offset: u64, bytes: &[u8]) {
        let Some(block_store) = self.block_stores.get_mut(&at.block_store) else {
            return; // it died: the commit will say so
        };
        let Some(buffer) = block_store.buffers.get_mut(&at.buffer) else {
            assert!(
                !self.runs(at.buffer.stream),
                "{:?} was freed under its writer",
                at.buffer
            );
            return;
        };
        assert!(
            !buffer.sealed && buffer.writer == writer,
            "another's buffer, or one that is read"
        );
        buffer.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn runs(&self, stream: StreamId) -> bool {
        figures_run(&self.coordinator, stream)
    }

    /// A writer reads what it keeps; nothing when the block store is dead, or the stream ended
    /// because another rank was lost.
    pub(crate) fn read_kept(&self, at: &BufferAt, offset: u64, length: usize) -> Option<Vec<u8>> {
        let block_store = self.block_stores.get(&at.block_store)?;
        let Some(buffer) = block_store.buffers.get(&at.buffer) else {
            let runs = self.runs(at.buffer.stream);
            assert!(!runs, "{:?} was freed under who keeps it", at.buffer);
            return None;
        };
        assert!(buffer.sealed, "{:?} is kept and can be written", at.buffer);
        assert!(!buffer.on_disk, "{:?} is kept and was spilled", at.buffer);
        Some(buffer.bytes[offset as usize..][..length].to_vec())
    }

    /// A reader reads from a buffer of a step that it holds; nothing when the block store is dead.
    pub(crate) fn read(&mut self, at: &BufferAt, offset: u64, length: usize) -> Option<Vec<u8>> {
        let block_store = self.block_stores.get(&at.block_store)?;
        let buffer = block_store.buffers.get(&at.buffer);
        let buffer = buffer.unwrap_or_else(|| panic!("{:?} was freed under a reader", at.buffer));
        assert!(buffer.sealed, "{:?} is read before it is sealed", at.buffer);
        assert_eq!(
            at.handle.segment, at.buffer.number as u32,
            "the wrong handle"
        );
        assert_eq!(
            at.on_disk, buffer.on_disk,
            "the record does not know where it lies"
        );
        if at.on_disk {
            self.seen.add("read from disk");
        }
        Some(buffer.bytes[offset as usize..][..length].to_vec())
    }

    pub(super) fn start_block_store(&mut self) -> Peer {
        let peer = self.new_peer();
        self.block_stores.insert(peer, BlockStore::default());
        let keep = Request::Keep {
            memory: self.plan.memory,
            buffers: self.plan.buffers,
            disk: self.plan.disk,
        };
        self.say(peer, keep);
        peer
    }

    /// A block store gets an order.
    pub(super) fn obey(&mut self, peer: Peer, order: Order) {
        let Some(block_store) = self.block_stores.get_mut(&peer) else {
            return;
        };
        let mishap = self.rng.u8(..) < self.plan.mishaps;
        let report = match order {
            Order::Allocate {
                buffer,
                bytes,
                writer,
            } => {
                assert!(
                    block_store.seen.insert(buffer),
                    "{buffer:?} was there before"
                );
                if mishap {
                    let lack = match self.rng.bool() {
                        true => Lack::Memory,
                        false => Lack::Numbers(self.plan.buffers),
                    };
                    Some(Report::Refused { buffer, lack })
                } else {
                    block_store.used += bytes;
                    assert!(
                        block_store.used <= self.plan.memory,
                        "{peer}'s budget: {} bytes",
                        block_store.used
                    );
                    let bytes = vec![0xdd; bytes as usize];
                    let made = Buffer {
                        bytes,
                        writer,
                        sealed: false,
                        on_disk: false,
                    };
                    block_store.buffers.insert(buffer, made);
                    let in_memory = block_store
                        .buffers
                        .values()
                        .filter(|buffer| !buffer.on_disk);
                    assert!(
                        in_memory.count() as u64 <= self.plan.buffers,
                        "{peer}'s buffers"
                    );
                    let handle = Handle {
                        segment: buffer.number as u32,
                        ..Handle::default()
                    };
                    Some(Report::Allocated { buffer, handle })
                }
            }
            Order::Seal { buffer } => {
                let sealed = block_store
                    .buffers
                    .get_mut(&buffer)
                    .expect("a buffer to seal is there");
                assert!(!std::mem::replace(&mut sealed.sealed, true), "sealed twice");
                if self.plan.silence > 0 && self.rng.u8(..) < 16 {
                    self.seen.add("silent block store");
                    let next = self.arrival.entry((peer, true)).or_default();
                    *next = (*next).max(self.now) + self.plan.silence;
                }
                Some(Report::Sealed { buffer })
            }
            Order::Spill { buffer } if mishap => Some(Report::SpillFailed { buffer }),
            Order::Spill { buffer } => {
                let spilled = block_store
                    .buffers
                    .get_mut(&buffer)
                    .expect("a buffer to spill is there");
                assert!(spilled.sealed && !spilled.on_disk);
                spilled.on_disk = true;
                block_store.used -= spilled.bytes.len() as u64;
                block_store.disk += spilled.bytes.len() as u64;
                assert!(block_store.disk <= self.plan.disk, "the disk's budget");
                self.seen.add("spilled");
                Some(Report::Spilled { buffer })
            }
            Order::Free { buffer } => {
                let holder = self
                    .held
                    .iter()
                    .find(|(_, buffers)| buffers.contains(&buffer));
                assert!(
                    holder.is_none(),
                    "{buffer:?} is freed while {holder:?} holds it"
                );
                let mut kept = self.kept.values();
                let runs = figures_run(&self.coordinator, buffer.stream);
                assert!(
                    !runs || !kept.any(|buffers| buffers.contains(&buffer)),
                    "{buffer:?} is freed while its writer keeps it"
                );
                if let Some(freed) = block_store.buffers.remove(&buffer) {
                    let bytes = freed.bytes.len() as u64;
                    *(if freed.on_disk {
                        &mut block_store.disk
                    } else {
                        &mut block_store.used
                    }) -= bytes;
                } else {
                    // Only what was refused may be freed without being there, when the orders
                    // crossed the refusal.
                    assert!(self.plan.mishaps > 0, "{buffer:?} is freed twice");
                }
                None
            }
        };
        if let Some(report) = report {
            self.say(peer, Request::Report(report));
        }
    }
}
