//! How each peer is reached; how each segment of it is, says [`crate::access_path`].
//!
//! A [`Route`] is made when the peer is announced: from where the peer is, what the transport can
//! do, and what the [`Mask`] of this process leaves of that. Only a route says in which slot of
//! this node a peer is: no code looks for a peer of another node, or for one that is masked, in the
//! tables of this node. A process has one transport; with several, [`Reach::Remote`] would say
//! which one carries frames to the peer.

use crate::engine::Engine;
use crate::node::{Entry, Slot};
use crate::transport::{Caps, Rma};
use crate::{Error, Mask, PeerId, PeerInfo, Result, SegmentKey};
use samite_mem::lease::Seen;

/// Where a peer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// In a slot of this node, whose tables it shares: directories of segments, doorbells.
    Node(Slot),
    /// Elsewhere: the transport reaches it, and nothing else does.
    #[default]
    Remote,
}

/// How a peer is reached; by default not at all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    pub(crate) to: Reach,
    /// What can be done between it and this process.
    pub(crate) caps: Caps,
    /// Up to which length messages to it travel at once.
    pub(crate) eager_max: u64,
    /// Whether the kernel copies between us; found out when first needed.
    pub(crate) kernel: Option<bool>,
}

impl Engine {
    /// The route to a peer that is announced. To itself a process masks nothing.
    pub(crate) fn new_route(&self, info: &PeerInfo, caps: Caps) -> Route {
        let own = info.peer == self.me;
        let mask = if own { Mask::default() } else { self.mask };
        let is_near = info.peer.node() == self.node.number
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

    /// The route to a peer; nothing can be done on it if the peer was never heard of.
    #[inline]
    pub(crate) fn route(&self, peer: PeerId) -> Route {
        let peer = self.peers.get(peer);
        peer.map(|peer| peer.route).unwrap_or_default()
    }

    /// Returns whether the kernel copies between a peer and this process; asked once, by doing it.
    pub(crate) fn kernel_works(&mut self, peer: PeerId) -> bool {
        let route = self.route(peer);
        // To itself a process sends through its ring: the kernel must not write behind borrows.
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

    /// Returns whether the owner lives, and still the life that the key is of.
    pub(crate) fn lives(&self, key: SegmentKey) -> Result<()> {
        self.lost_life(key.peer, key.incarnation)
            .map_or(Ok(()), Err)
    }

    /// The entry of a segment in its owner's directory, and what it says.
    ///
    /// # Errors
    /// It is not, or not any more, what the key names.
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
    Error::NoSuchSegment { peer, segment }
}

#[cold]
pub(crate) fn wrong_phase(key: SegmentKey) -> Error {
    let SegmentKey { peer, segment, .. } = key;
    Error::WrongPhase { peer, segment }
}

/// Why a lease was not given.
pub(crate) fn not_now(key: SegmentKey, entry: &Entry) -> Error {
    match entry.offers(key.generation) {
        true => wrong_phase(key),
        false => refused(key),
    }
}
