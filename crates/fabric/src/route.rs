//! How each peer, and each segment of it, is reached.
//!
//! A [`Route`] belongs to a peer. It is made when the peer is announced: from where the peer is,
//! what the transport can do, and what the [`Mask`] of this process leaves of that. An
//! [`AccessPath`] belongs to a segment of a peer. It is decided once, when somebody attaches to the
//! segment, and kept by the [`Remote`](crate::Remote).
//!
//! Only a route says in which slot of this node a peer is: nobody looks for one of another node, or
//! for one that is masked, in the tables of this node. A process has one transport; with several,
//! [`Reach::Remote`] would say which one carries frames to the peer.

use crate::engine::Engine;
use crate::fabric::{Core, Fabric};
use crate::node::{Entry, Slot, segment_id};
use crate::transport::{Caps, RemoteKey, Rma};
use crate::{Error, Handle, Mask, PeerId, PeerInfo, Result, SegmentKey};
use samite_mem::SharedBytes;
use samite_mem::lease::{Lease, Readable, Seen, Shared};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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

    /// Whether the kernel copies between a peer and this process; asked once, by doing it.
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

    /// Whether the owner lives, and still the life that the key is of.
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

impl Fabric {
    /// What can be done between a peer and this process, after the mask; nothing if there never was
    /// one. Local.
    pub fn caps_to(&self, peer: PeerId) -> Caps {
        let caps = |core: &mut Core| core.known(peer).map(|peer| peer.route.caps);
        self.0.with(caps).flatten().unwrap_or_default()
    }

    /// Which node a peer is on, or behaves as if it were on ([`Mask`]): equal for those that may
    /// map each other's memory. `None` if there never was one. Local.
    pub fn node_of(&self, peer: PeerId) -> Option<u32> {
        let mut core = self.0.core()?;
        let unit = core.known(peer)?.info.as_ref()?.identity.unit;
        let mask = core.engine.mask;
        Some(match mask.map {
            true => peer.0,
            false => peer.node() * mask.nodes.max(1) + mask.node_of(unit),
        })
    }

    /// The process id of a peer out of whose private memory this process should copy so many bytes:
    /// the kernel does it, and no other way is faster here.
    pub fn reads_private(&self, peer: PeerId, bytes: u64) -> Option<i32> {
        let engine = &mut self.0.lock().ok()?.engine;
        let fastest = engine.costs.choose(bytes, true, false) == crate::Choice::Kernel;
        (fastest && engine.kernel_works(peer)).then(|| engine.peers.pid(peer))
    }
}

/// How the bytes of a remote segment are reached. What is reached without its owner has a lease.
#[derive(Debug, Clone)]
pub(crate) enum AccessPath {
    /// Mapped here. The word of the owner's directory says whether it is still offered.
    Mapped {
        bytes: SharedBytes,
        offered: SharedBytes,
    },
    /// Mapped here, and nobody writes it.
    Reading {
        bytes: Readable,
        offered: SharedBytes,
    },
    /// Private memory of the process in this slot, at this address: the kernel copies.
    Kernel {
        owner: Slot,
        pid: i32,
        address: u64,
        offered: SharedBytes,
        _lease: Arc<Lease>,
    },
    /// By the RMA of the transport, once the key is here, and by messages before.
    Rma(Arc<ByRma>),
    Messages,
}

impl AccessPath {
    /// The path to a segment; the key is checked against the owner's directory where that is here.
    pub(crate) fn new(engine: &mut Engine, key: SegmentKey) -> Result<AccessPath> {
        let Route { to, caps, .. } = engine.route(key.peer);
        let Reach::Node(owner) = to else {
            return Ok(match caps.rma {
                Rma::None => AccessPath::Messages,
                _ => AccessPath::Rma(Arc::default()),
            });
        };
        let (entry, seen) = engine.entry(owner, key)?;
        let own = key.peer == engine.me;
        match seen.private {
            true if own || engine.kernel_works(key.peer) => {}
            false if caps.map => {}
            _ => return Ok(AccessPath::Messages),
        }
        let holder = &engine.node.holder;
        let id = segment_id(owner, key.segment);
        let of_memory = Error::of_memory_of(key.peer);
        let shared = holder.share(&entry, key.generation, id);
        let offered = entry.state();
        Ok(match shared.map_err(&of_memory)? {
            // Registered memory may begin anywhere, and atomics look at the offset alone.
            Some(Shared::Mapped(bytes)) if !bytes.address().is_multiple_of(8) => {
                AccessPath::Messages
            }
            Some(Shared::Mapped(bytes)) if bytes.len() == key.bytes => {
                AccessPath::Mapped { bytes, offered }
            }
            Some(Shared::Private {
                address,
                bytes,
                lease,
            }) if bytes == key.bytes => AccessPath::Kernel {
                owner,
                pid: engine.peers.pid(key.peer),
                address,
                offered,
                _lease: Arc::new(lease),
            },
            Some(_) => return Err(refused(key)),
            // In another mode than open: its owner answers.
            None if seen.private && !own && entry.offers(key.generation) => AccessPath::Messages,
            None => {
                let read = holder.read(&entry, key.generation, id);
                let bytes = read.map_err(of_memory)?;
                let bytes = bytes.filter(|bytes| bytes.len() == key.bytes);
                let bytes = bytes.ok_or_else(|| not_now(key, &entry))?;
                AccessPath::Reading { bytes, offered }
            }
        })
    }
}

/// The remote key of a segment, which its owner is asked for with the first operation.
#[derive(Debug, Default)]
pub(crate) struct ByRma {
    /// `None`: the owner wants messages.
    key: OnceLock<Option<RemoteKey>>,
    asked: Mutex<Option<Handle<Vec<u8>>>>,
}

impl ByRma {
    /// The key, if it is here.
    pub(crate) fn key(&self, fabric: &Fabric, of: SegmentKey) -> Option<&RemoteKey> {
        if self.key.get().is_none() {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            match asked.take() {
                Some(answer) if answer.is_over() => {
                    let answer = answer.wait().unwrap_or_default();
                    self.key.get_or_init(|| RemoteKey::of(&answer));
                }
                Some(waits) => *asked = Some(waits),
                None => *asked = fabric.request_remote_key(of),
            }
        }
        self.key.get()?.as_ref()
    }
}
