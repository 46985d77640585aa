//! The units of other nodes, as this node's agent mirrors them, under the epoch word of its own
//! table of peers. A process looks up the peers with which it deals, and keeps nothing of others.
//!
//! Only simulated nodes know of other nodes: their units are threads of one process, and share this
//! map. Without a simulator it is empty.

use super::State;
use crate::{Identity, PeerId, PeerInfo};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The units of other nodes; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Others(Arc<RwLock<BTreeMap<PeerId, Other>>>);

/// The present incarnation of a peer, or its last one.
#[derive(Debug)]
struct Other {
    incarnation: u32,
    state: State,
    identity: Box<[u8]>,
}

impl Other {
    fn info(&self, peer: PeerId) -> Option<PeerInfo> {
        let (identity, pid) = postcard::from_bytes(&self.identity).ok()?;
        let incarnation = self.incarnation;
        Some(PeerInfo {
            peer,
            incarnation,
            identity,
            pid,
        })
    }
}

impl Others {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<PeerId, Other>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes what a unit tells other nodes of itself.
    pub(crate) fn encode(identity: &Identity, pid: i32) -> Vec<u8> {
        postcard::to_stdvec(&(identity, pid)).expect("plain data is encodable")
    }

    /// Returns state and incarnation of a peer; `None` if its number was never used.
    pub(crate) fn state(&self, peer: PeerId) -> Option<(State, u32)> {
        let all = self.read();
        all.get(&peer).map(|other| (other.state, other.incarnation))
    }

    /// Returns what the present or last incarnation of a peer said of itself.
    pub(crate) fn info(&self, peer: PeerId) -> Option<PeerInfo> {
        self.read().get(&peer)?.info(peer)
    }

    /// Returns those that are alive and wanted.
    pub(crate) fn living(&self, is_wanted: impl Fn(&PeerInfo) -> bool) -> Vec<PeerInfo> {
        let all = self.read();
        let living = all.iter().filter(|(_, other)| other.state == State::Alive);
        let infos = living.filter_map(|(peer, other)| other.info(*peer));
        infos.filter(is_wanted).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }

    /// Records what the agent has learnt of a unit. What a unit that is gone said of itself stays
    /// until the next incarnation.
    pub(crate) fn learn(&self, peer: PeerId, incarnation: u32, state: State, identity: Box<[u8]>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&peer) {
            Some(other) if other.incarnation == incarnation => other.state = state,
            _ => {
                let other = Other {
                    incarnation,
                    state,
                    identity,
                };
                all.insert(peer, other);
            }
        }
    }
}
