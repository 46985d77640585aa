//! Rings that this process writes.

use super::{BODY_MAX, Shm};
use crate::PeerId;
use crate::layout::State;
use crate::transport::{Class, Outgoing, Push};
use samite_mem::ring::{Producer, REPLY_CELLS, RING_BYTES, SharedRing, bulk_bytes};
use samite_mem::sync::Ordering;
use samite_mem::{Block, Doorbell, Heap, SharedBytes};
use std::time::{Duration, Instant};

/// More frames than this one way are a burst: the next ones are prepared for.
const BURST: u32 = 4;

/// After a refusal of memory the agent is left in peace for so long.
const PAUSE: Duration = Duration::from_millis(5);

/// Larger bodies are fetched by the hardware while they are written.
const WARM_MAX: u64 = 8 << 10;

/// The writing end to one peer.
#[derive(Debug)]
pub(super) struct Outbound {
    producer: Producer<SharedRing>,
    bell: Doorbell<SharedBytes>,
    /// What the ring and its bulk area lie in; given back when the peer is gone.
    _ring: Block,
    _bulk: Option<Block>,
    /// Frames sent since one came back.
    burst: u32,
    /// When memory for the bulk area was last refused.
    refused: Option<Instant>,
}

impl Outbound {
    /// A frame came back from this peer.
    #[inline(always)]
    pub(super) fn answered(&mut self) {
        self.burst = 0;
    }

    #[inline]
    pub(super) fn push(&mut self, frame: &Outgoing<'_>, me: PeerId, heap: &Heap) -> Push {
        let reserve = match frame.class {
            Class::Request => REPLY_CELLS,
            Class::Reply => 0,
        };
        let pushed = if frame.body.is_empty() {
            self.producer
                .push(frame.kind, frame.arg, frame.inline, reserve)
        } else {
            if self._bulk.is_none() && !self.make_bulk(heap) {
                return Push::Full;
            }
            let (inline, bytes) = (frame.inline.len(), frame.body.len());
            self.producer
                .reserve_bulk(inline, bytes, reserve)
                .map(|start| {
                    self.producer.medium.write_body(start, &frame.body);
                    self.producer
                        .push_bulk(frame.kind, frame.arg, frame.inline, start, bytes);
                })
        };
        match pushed {
            Ok(()) => {
                self.bell.ring(me.index());
                self.burst += 1;
                self.producer.warm(self.burst > BURST);
                self.warm(frame.body.len());
                Push::Done
            }
            Err(samite_mem::ring::Full) => Push::Full,
        }
    }

    /// Takes the lines that a next body of this size will be written to, now that this one is on its
    /// way: the receiver has them from the last lap, and getting them back costs a trip per line.
    #[inline]
    fn warm(&self, bytes: u64) {
        if bytes == 0 || bytes > WARM_MAX {
            return;
        }
        if let Some(position) = self.producer.next_bulk(bytes) {
            self.producer.medium.prefetch_next(position, bytes);
        }
    }

    /// The bulk area, when a body first needs it. Without memory for it the frame waits: that is
    /// back-pressure, and ends when somebody frees memory or the deadline of the operation is over.
    fn make_bulk(&mut self, heap: &Heap) -> bool {
        if self.refused.is_some_and(|at| at.elapsed() < PAUSE) {
            return false;
        }
        match heap.block(bulk_bytes(BODY_MAX)) {
            Ok(block) => {
                self.producer
                    .medium
                    .publish_bulk(block.span(), block.bytes().clone());
                self.producer.set_bulk_bytes(block.span().bytes);
                self._bulk = Some(block);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no memory for the bulk area of a ring");
                self.refused = Some(Instant::now());
                false
            }
        }
    }
}

impl Shm {
    /// Makes the ring to a peer. Without memory for it the frame waits, as for a bulk area.
    pub(super) fn open(&mut self, to: PeerId) -> Push {
        if to.index() >= samite_mem::PEERS_MAX || self.layout.state(to).0 != State::Alive {
            return Push::Gone;
        }
        let made = self.heap.block(RING_BYTES).and_then(|block| {
            let ring = SharedRing::new(block.bytes().clone());
            ring.map(|ring| (block, ring))
                .map_err(|e| samite_mem::Error::NoGrant(e.to_string()))
        });
        let (block, ring) = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(%error, %to, "no memory for a ring");
                return Push::Full;
            }
        };
        // ORDERING: Release pairs with the Acquire load in `look_for_ring`: the block is zeroed.
        self.layout
            .inbox(to, self.me)
            .store(block.span().offset, Ordering::Release);
        if self.outbound.len() <= to.index() {
            self.outbound.resize_with(to.index() + 1, || None);
        }
        self.outbound[to.index()] = Some(Outbound {
            producer: Producer::new(ring),
            bell: self.layout.doorbell(to),
            _ring: block,
            _bulk: None,
            refused: None,
            burst: 0,
        });
        Push::Done
    }
}
