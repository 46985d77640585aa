//! How the bytes of a segment are accessed. An [`AccessPath`] is chosen once, when a process
//! attaches to the segment, and kept by the [`Remote`](crate::Remote).

use crate::engine::Engine;
use crate::fabric::Fabric;
use crate::node::{Slot, segment_id};
use crate::route::{Reach, Route, not_now, refused};
use crate::transport::{RemoteKey, Rma};
use crate::{Error, Handle, Result, SegmentKey};
use samite_mem::SharedBytes;
use samite_mem::lease::{Lease, Readable, Shared};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How the bytes of a remote segment are accessed. A path that bypasses the owner holds a lease.
#[derive(Debug, Clone)]
pub(crate) enum AccessPath {
    /// Mapped here. A word in the owner's directory says whether it is still offered.
    Mapped {
        bytes: SharedBytes,
        offered: SharedBytes,
    },
    /// Mapped here, and no process writes it.
    Reading {
        bytes: Readable,
        offered: SharedBytes,
    },
    /// Private memory of the process in this slot, at this address; the kernel copies.
    Kernel {
        owner: Slot,
        pid: i32,
        address: u64,
        offered: SharedBytes,
        _lease: Arc<Lease>,
    },
    /// By the RMA of the transport, once the key has arrived; by messages before.
    Rma(Arc<ByRma>),
    Messages,
}

impl AccessPath {
    /// Returns the path to a segment; the key is checked against the owner's directory if that is
    /// on this node.
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
            // Registered memory may begin at any address, and atomics check only the offset.
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
            // In a mode other than open, its owner answers.
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

/// The remote key of a segment, requested from its owner at the first operation.
#[derive(Debug, Default)]
pub(crate) struct ByRma {
    /// `None`: the owner wants messages instead.
    key: OnceLock<Option<RemoteKey>>,
    asked: Mutex<Option<Handle<Vec<u8>>>>,
}

impl ByRma {
    /// Returns the key, if it has arrived.
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
