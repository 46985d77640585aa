//! How each peer is reached. For its segments, see [`crate::access_path`].
//!
//! A [`Route`] is created when the peer is announced, from the peer's place, what the transport can
//! do, and what the [`Mask`] of this process leaves of that. Only a route gives the slot of a peer
//! on this node, so no code looks for a peer of another node, or for a masked one, in the tables of
//! this node. A process has one transport; with several, [`Reach::Remote`] would name the one that
//! carries frames to the peer.

use crate::engine::Engine;
use crate::node::{Entry, Slot};
use crate::transport::{Caps, Rma};
use crate::{Error, Mask, PeerId, PeerInfo, Result, SegmentKey};
use samite_mem::lease::Seen;

/// Where a peer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// In a slot of this node, with which it shares tables: directories of segments, doorbells.
    Node(Slot),
    /// On another node: only the transport reaches it.
    #[default]
    Remote,
}

/// How a peer is reached; by default it is unreachable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    pub(crate) to: Reach,
    /// The capabilities between it and this process.
    pub(crate) caps: Caps,
    /// The length up to which messages to it are sent eagerly.
    pub(crate) eager_max: u64,
    /// Whether the kernel copies between us; determined when first needed.
    pub(crate) kernel: Option<bool>,
}

impl Engine {
    /// Returns the route to an announced peer. A process masks nothing towards itself.
    pub(crate) fn new_route(&self, info: &PeerInfo, caps: Caps) -> Route {
        let own = info.peer == self.me;
        let mask = if own { Mask::default() } else { self.mask };
        // Peers of this node that do not map each other's memory are behind a link.
        let is_near = caps.map
            && info.peer.node() == self.node.number
            && mask.node_of(info.identity.unit) == mask.node_of(self.node.unit);
        let to = is_near.then(|| Reach::Node(info.peer.slot()));
        Route {
            to: to.unwrap_or_default(),
            caps: Caps {
                map: caps.map && !mask.map && is_near,
                kernel_copy: caps.kernel_copy && !mask.kernel_copy && is_near,
                rma: if mask.rma { Rma::None } else { caps.rma },
                ..caps
            },
            eager_max: self.eager_max.min(caps.body_max),
            kernel: None,
        }
    }

    /// Returns the route to a peer; an unknown peer has no capabilities.
    #[inline]
    pub(crate) fn route(&self, peer: PeerId) -> Route {
        let peer = self.peers.get(peer);
        peer.map(|peer| peer.route).unwrap_or_default()
    }

    /// Returns whether the kernel copies between a peer and this process; tested once, by copying.
    pub(crate) fn kernel_works(&mut self, peer: PeerId) -> bool {
        let route = self.route(peer);
        // A process sends to itself through its ring: the kernel must not write behind borrows.
        let may = route.caps.kernel_copy && peer != self.me;
        let (Reach::Node(slot), true) = (route.to, may) else {
            return false;
        };
        if let Some(known) = route.kernel {
            return known;
        }
        let (pid, address, cookie) = self.node.layout.cookie(slot);
        let works = address != 0 && samite_mem::copy::kernel::probe(pid, address, cookie);
        if !works {
            tracing::info!(%peer, "the kernel does not copy from this peer; messages go through the ring");
        }
        self.peer(peer).route.kernel = Some(works);
        works
    }

    /// Checks that the owner is alive, and still the incarnation that the key names.
    pub(crate) fn lives(&self, key: SegmentKey) -> Result<()> {
        self.lost_life(key.peer, key.incarnation)
            .map_or(Ok(()), Err)
    }

    /// Returns the entry of a segment in its owner's directory, and its contents.
    ///
    /// # Errors
    /// The segment is not, or no longer, the one that the key names.
    pub(crate) fn entry(&self, owner: Slot, key: SegmentKey) -> Result<(Entry, Seen)> {
        let entry = self.node.layout.entry(owner, key.segment);
        let found = entry.and_then(|entry| entry.look().map(|seen| (entry, seen)));
        let named = (key.generation, key.bytes);
        let found = found.filter(|(_, seen)| (seen.generation, seen.bytes) == named);
        found.ok_or_else(|| refused(key))
    }
}

#[cold]
pub(crate) fn refused(key: SegmentKey) -> Error {
    let SegmentKey { peer, segment, .. } = key;
    let peer = peer.into();
    Error::NoSuchSegment { peer, segment }
}

#[cold]
pub(crate) fn wrong_phase(key: SegmentKey) -> Error {
    let SegmentKey { peer, segment, .. } = key;
    let peer = peer.into();
    Error::WrongPhase { peer, segment }
}

/// Returns why a lease was refused.
pub(crate) fn not_now(key: SegmentKey, entry: &Entry) -> Error {
    match entry.offers(key.generation) {
        true => wrong_phase(key),
        false => refused(key),
    }
}
