//! Rings that this process writes.

use super::{BODY_MAX, Shm};
use crate::PeerId;
use crate::node::Slot;
use crate::node::State;
use crate::transport::{Class, Outgoing, Push, Transport};
use samite_mem::ring::{Producer, REPLY_CELLS, RING_BYTES, SharedRing, bulk_bytes};
use samite_mem::sync::Ordering;
use samite_mem::{Block, Doorbell, Heap, SharedBytes};
use std::time::{Duration, Instant};

/// More frames than this in one direction are a burst: the next ones are prepared for.
const BURST: u32 = 4;

/// After a refusal of memory the agent is not asked again for so long.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns whether memory was refused so recently that the agent is not asked again.
fn in_pause(refused: Option<Instant>) -> bool {
    refused.is_some_and(|at| at.elapsed() < PAUSE)
}

/// Warns of an error, unless the agent has merely not answered yet.
fn warn_of(error: &samite_mem::Error, what: &str) {
    match error {
        samite_mem::Error::NoGrant(why) => tracing::debug!(why, "{what}"),
        error => tracing::warn!(%error, "{what}"),
    }
}

/// Larger bodies are prefetched by the hardware while they are written.
const WARM_MAX: u64 = 8 << 10;

/// The writing end of the ring to one peer.
#[derive(Debug)]
pub(super) struct OutboundRing {
    producer: Producer<SharedRing>,
    bell: Doorbell<SharedBytes>,
    /// The memory of the ring and its bulk area; returned when the peer is gone.
    _ring: Block,
    _bulk: Option<Block>,
    /// Frames sent since the last one from the peer.
    burst: u32,
    /// When memory for the bulk area was last refused.
    refused: Option<Instant>,
}

impl OutboundRing {
    /// Notes a frame from this peer.
    #[inline(always)]
    pub(super) fn answered(&mut self) {
        self.burst = 0;
    }

    /// Returns the ring, for a process that writes to itself.
    pub(super) fn ring_bytes(&self) -> SharedBytes {
        self._ring.bytes().clone()
    }

    /// Returns its bulk area, if it was created.
    pub(super) fn bulk_bytes(&self) -> Option<SharedBytes> {
        self._bulk.as_ref().map(|bulk| bulk.bytes().clone())
    }

    #[inline(always)]
    pub(super) fn push(&mut self, frame: &Outgoing<'_>, me: Slot, heap: &Heap) -> Push {
        // Requests leave cells free, so that replies always find room (T3).
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

    /// Prefetches the cache lines of a next body of this size while this one is on its way: the
    /// receiver has them from the last lap, and fetching them back costs a round trip per line.
    #[inline]
    fn warm(&self, bytes: u64) {
        if bytes == 0 || bytes > WARM_MAX {
            return;
        }
        if let Some(position) = self.producer.next_bulk(bytes) {
            self.producer.medium.prefetch_next(position, bytes);
        }
    }

    /// Creates the bulk area when a body first needs it. Without memory for it the frame waits:
    /// that is back-pressure, which ends when memory is freed or the operation's deadline is over.
    fn make_bulk(&mut self, heap: &Heap) -> bool {
        if in_pause(self.refused) {
            return false;
        }
        match heap.block_soon(bulk_bytes(BODY_MAX)) {
            Ok(block) => {
                self.producer
                    .medium
                    .publish_bulk(block.span(), block.bytes().clone());
                self.producer.set_bulk_bytes(block.span().bytes);
                self._bulk = Some(block);
                true
            }
            Err(error) => {
                warn_of(&error, "no memory for the bulk area of a ring");
                self.refused = Some(Instant::now());
                false
            }
        }
    }
}

impl Shm {
    /// Pushes the first frame to a peer, which creates the ring.
    #[cold]
    pub(super) fn push_first(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        if to.node() != self.node {
            return Push::Gone;
        }
        match self.open(to.slot()) {
            Push::Done => self.push(to, frame),
            refused => refused,
        }
    }

    /// Creates the ring to a peer. Without memory for it the frame waits, as for a bulk area.
    fn open(&mut self, to: Slot) -> Push {
        if to.index() >= samite_mem::PEERS_MAX || self.layout.peers.state(to).0 != State::Alive {
            return Push::Gone;
        }
        if in_pause(self.refused) {
            return Push::Full;
        }
        let made = self.heap.block_soon(RING_BYTES).and_then(|block| {
            let ring = SharedRing::new(block.bytes().clone());
            ring.map(|ring| (block, ring))
                .map_err(|e| samite_mem::Error::NoGrant(e.to_string()))
        });
        let (block, ring) = match made {
            Ok(made) => made,
            Err(error) => {
                warn_of(&error, "no memory for a ring");
                self.refused = Some(Instant::now());
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
        self.outbound[to.index()] = Some(OutboundRing {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::NodeLife;
    use crate::node::NodeMember;
    use crate::node::agent::Node;
    use crate::{Identity, node};
    use samite_mem::ring::Body;
    use samite_mem::{ExtentSource, Span};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// An agent without memory that counts how often it is asked.
    struct Poor(Arc<AtomicU32>);

    impl ExtentSource for Poor {
        fn grant(&mut self, bytes: u64, _: Duration) -> Result<Span, samite_mem::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let (used, budget) = (1 << 20, 1 << 20);
            Err(samite_mem::Error::Budget {
                asked: bytes,
                used,
                budget,
            })
        }
        fn give_back(&mut self, _: Vec<Span>) {}
    }

    #[test]
    fn an_agent_that_refused_memory_for_a_ring_is_left_in_peace() {
        let mut own_node = Node::create(NodeLife::HEAD, 1 << 20).unwrap();
        let identity = Identity::by_hand("test");
        let mut admit = || {
            own_node
                .admit(
                    std::process::id() as i32,
                    None,
                    &node::own_cpus(),
                    &identity,
                )
                .unwrap()
        };
        let (life, (other, _)) = (admit(), admit());
        let asked = Arc::new(AtomicU32::new(0));
        let extents = Box::new(Poor(asked.clone()));
        let membership =
            NodeMember::new(life, &identity, own_node.layout().clone(), extents, false);
        let mut shm = Shm::new(&membership, None);
        let frame = Outgoing {
            class: Class::Request,
            kind: 1,
            arg: 0,
            inline: &[],
            body: Body::Slice(&[]),
        };
        let start = Instant::now();
        let mut pushes = 0;
        while start.elapsed() < 2 * PAUSE || pushes < 100 {
            assert_eq!(shm.push(other.of(0), &frame), Push::Full);
            pushes += 1;
        }
        // Once, and again after each pause; not once per push.
        let pauses = start.elapsed().as_millis() / PAUSE.as_millis() + 1;
        let asked = asked.load(Ordering::Relaxed);
        assert!(
            asked >= 1 && u128::from(asked) <= pauses && asked < pushes / 2,
            "{pushes} pushes asked the agent {asked} times in {pauses} pauses"
        );
    }
}
