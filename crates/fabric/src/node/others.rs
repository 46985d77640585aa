//! The units of other nodes, as this node's agent mirrors them, under the epoch word of its own
//! table of peers. A process looks up the peers with which it deals, and keeps nothing of others.
//!
//! The agent of a node that belongs to a domain of several writes them to a
//! [table](super::remote_table) in shared memory. Simulated nodes, whose units are threads of one
//! process, share a map. Without other nodes there are none.

use super::State;
use super::remote_table::{Remote, RemoteTable};
use crate::{Identity, PeerId, PeerInfo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The units of other nodes; see the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Others(Source);

#[derive(Clone, Debug)]
enum Source {
    Simulated(Arc<RwLock<BTreeMap<PeerId, Remote>>>),
    Shared(RemoteTable),
}

/// What a unit tells other nodes of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    identity: Identity,
    pid: i32,
    /// How the transport reaches it.
    address: Vec<u8>,
}

impl Default for Others {
    fn default() -> Others {
        Others(Source::Simulated(Arc::default()))
    }
}

impl From<RemoteTable> for Others {
    fn from(table: RemoteTable) -> Others {
        Others(Source::Shared(table))
    }
}

fn info_of(remote: &Remote) -> Option<PeerInfo> {
    let said: Said = postcard::from_bytes(&remote.said).ok()?;
    Some(PeerInfo {
        peer: remote.peer,
        incarnation: remote.incarnation,
        identity: said.identity,
        pid: said.pid,
    })
}

fn read(map: &RwLock<BTreeMap<PeerId, Remote>>) -> RwLockReadGuard<'_, BTreeMap<PeerId, Remote>> {
    map.read().unwrap_or_else(PoisonError::into_inner)
}

impl Others {
    /// Encodes what a unit tells other nodes of itself, and how its transport reaches it.
    pub(crate) fn encode(identity: &Identity, pid: i32, address: &[u8]) -> Vec<u8> {
        let said = Said {
            identity: identity.clone(),
            pid,
            address: address.to_vec(),
        };
        postcard::to_stdvec(&said).expect("plain data is encodable")
    }

    /// Returns the identity in what a unit has told other nodes of itself.
    pub(crate) fn identity(said: &[u8]) -> Option<Identity> {
        let said: Said = postcard::from_bytes(said).ok()?;
        Some(said.identity)
    }

    /// Returns the present incarnation of a peer, or its last one; `None` if its number was never
    /// used.
    fn get(&self, peer: PeerId) -> Option<Remote> {
        match &self.0 {
            Source::Simulated(map) => read(map).get(&peer).cloned(),
            Source::Shared(table) => table.get(peer),
        }
    }

    /// Returns state and incarnation of a peer; `None` if its number was never used.
    pub(crate) fn state(&self, peer: PeerId) -> Option<(State, u32)> {
        self.get(peer).map(|other| (other.state, other.incarnation))
    }

    /// Returns what the present or last incarnation of a peer said of itself.
    pub(crate) fn info(&self, peer: PeerId) -> Option<PeerInfo> {
        info_of(&self.get(peer)?)
    }

    /// Returns how the transport reaches a peer, and its incarnation.
    pub(crate) fn address(&self, peer: PeerId) -> Option<(u32, Vec<u8>)> {
        let remote = self.get(peer)?;
        let said: Said = postcard::from_bytes(&remote.said).ok()?;
        Some((remote.incarnation, said.address))
    }

    /// Returns those that are alive and wanted. Only of peers that `may` be, more than the number
    /// is read.
    pub(crate) fn living(
        &self,
        may: impl Fn(PeerId) -> bool,
        is_wanted: impl Fn(&PeerInfo) -> bool,
    ) -> Vec<PeerInfo> {
        let living = |other: &Remote| match other.state {
            State::Alive => info_of(other).filter(&is_wanted),
            _ => None,
        };
        match &self.0 {
            Source::Simulated(map) => {
                let map = read(map);
                let all = map.values().filter(|other| may(other.peer));
                all.filter_map(living).collect()
            }
            Source::Shared(table) => {
                let all = (0..table.used()).filter(|record| may(table.peer(*record)));
                let records = all.map(|record| table.read(record));
                records.filter_map(|record| living(&record)).collect()
            }
        }
    }

    /// Returns how many are known.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Source::Simulated(map) => read(map).len(),
            Source::Shared(table) => table.used() as usize,
        }
    }

    /// Records what a simulated agent has learnt of a unit. What a unit that is gone said of itself
    /// stays until the next incarnation.
    pub(crate) fn learn(&self, peer: PeerId, incarnation: u32, state: State, said: Box<[u8]>) {
        let Source::Simulated(map) = &self.0 else {
            return; // The agent writes the table.
        };
        let mut all = map.write().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&peer) {
            Some(other) if other.incarnation == incarnation => other.state = state,
            _ => {
                let remote = Remote {
                    peer,
                    incarnation,
                    state,
                    said,
                };
                all.insert(peer, remote);
            }
        }
    }
}
