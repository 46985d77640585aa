//! Peers: their numbers and identities.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A process in a domain: the number of its node, and its slot there. On the first node, it equals
/// the slot number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(pub u32);

/// Bits of a peer number that hold the slot; the others hold the node.
const SLOT_BITS: u32 = 12;
const _: () = assert!(samite_mem::PEERS_MAX <= 1 << SLOT_BITS);

impl PeerId {
    /// Maximum number of nodes in a domain.
    pub const NODES_MAX: u32 = 1 << (32 - SLOT_BITS);

    /// Returns the peer in a slot of a node. Excess bits are cut off.
    #[inline(always)]
    pub const fn new(node: u32, slot: u32) -> PeerId {
        PeerId(node << SLOT_BITS | slot & ((1 << SLOT_BITS) - 1))
    }

    /// Returns the number of its node.
    #[inline(always)]
    pub const fn node(self) -> u32 {
        self.0 >> SLOT_BITS
    }

    /// Returns the index of its slot on `node`. For a peer of another node, the result is larger
    /// than any slot index.
    #[inline(always)]
    pub(crate) const fn index_on(self, node: u32) -> usize {
        (self.0 ^ node << SLOT_BITS) as usize
    }

    /// Returns its slot on its node.
    #[inline(always)]
    pub const fn slot(self) -> Slot {
        Slot(self.0 & ((1 << SLOT_BITS) - 1))
    }
}

impl std::fmt::Display for PeerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.node() {
            0 => write!(f, "peer {}", self.slot().0),
            node => write!(f, "peer {node}.{}", self.slot().0),
        }
    }
}

/// A map from peers to values. Peers of this process's own node are in a table by slot, which is as
/// long as the highest slot used. Other nodes have one entry per peer that this process deals with.
#[derive(Debug)]
pub(crate) struct PeerMap<T> {
    /// The number of this process's own node.
    node: u32,
    near: Vec<T>,
    far: HashMap<PeerId, T, foldhash::fast::RandomState>,
}

impl<T: Default> PeerMap<T> {
    /// Creates an empty map for a process on this node.
    pub(crate) fn new(node: u32) -> PeerMap<T> {
        PeerMap {
            node,
            near: Vec::new(),
            far: HashMap::default(),
        }
    }

    /// Returns the value of a peer, `None` if it was never [created](Self::entry).
    #[inline(always)]
    pub(crate) fn get(&self, peer: PeerId) -> Option<&T> {
        match self.near.get(peer.index_on(self.node)) {
            None => self.far_away(peer),
            near => near,
        }
    }

    #[cold]
    fn far_away(&self, peer: PeerId) -> Option<&T> {
        self.far.get(&peer)
    }

    /// Mutable form of [`PeerMap::get`].
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut T> {
        let index = peer.index_on(self.node);
        match self.near.get_mut(index) {
            None => self.far.get_mut(&peer),
            near => near,
        }
    }

    /// Returns the value of a peer; creates it if there is none.
    #[inline(always)]
    pub(crate) fn entry(&mut self, peer: PeerId) -> &mut T {
        let index = peer.index_on(self.node);
        if self.near.len() <= index {
            return self.enter(peer);
        }
        &mut self.near[index]
    }

    #[cold]
    fn enter(&mut self, peer: PeerId) -> &mut T {
        if peer.node() != self.node {
            return self.far.entry(peer).or_default();
        }
        let index = peer.slot().index();
        self.near.resize_with(index + 1, T::default);
        &mut self.near[index]
    }

    /// Iterates over all values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &T)> {
        let near = self.near.iter().enumerate();
        let near = near.map(|(slot, kept)| (Slot(slot as u32).of(self.node), kept));
        near.chain(self.far.iter().map(|(peer, kept)| (*peer, kept)))
    }

    /// Mutable form of [`PeerMap::iter`], without the peers.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.near.iter_mut().chain(self.far.values_mut())
    }
}

/// What a process states about itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The job that it belongs to.
    pub job: String,
    /// Its program in the workflow.
    pub program: String,
    /// Its index among the units of its program.
    pub rank: u32,
    /// Number of units of its program.
    pub size: u32,
    /// Its index among all units of the job; never changes.
    pub unit: u32,
    /// Number of units of the job.
    pub units: u32,
}

impl Identity {
    /// Returns the identity of a process that was started by hand: a job of its own, the same one
    /// each time.
    pub fn by_hand(program: &str) -> Self {
        // The agent refuses longer names of jobs.
        let short = &program[..program.floor_char_boundary(150)];
        // Processes on several machines, or in several containers, may have the same number; a fork
        // has another one.
        static RANDOM: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        let random = RANDOM.get_or_init(|| fastrand::Rng::new().u32(..));
        Identity {
            job: format!("{short}-{}-{random:08x}", std::process::id()),
            program: program.to_owned(),
            rank: 0,
            size: 1,
            unit: 0,
            units: 1,
        }
    }
}

/// A unit of a job, as it has joined: the process that it became, whatever happened to it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
// An answer of the agent holds those of a whole job, so they are serialized without names.
#[serde(into = "(u32, PeerId, u32)", from = "(u32, PeerId, u32)")]
pub struct UnitLife {
    /// Its index among all units of the job.
    pub unit: u32,
    /// Its number in the domain, which another process may have later.
    pub peer: PeerId,
    /// Which life of that number it is.
    pub incarnation: u32,
}

impl From<UnitLife> for (u32, PeerId, u32) {
    fn from(life: UnitLife) -> Self {
        (life.unit, life.peer, life.incarnation)
    }
}

impl From<(u32, PeerId, u32)> for UnitLife {
    fn from((unit, peer, incarnation): (u32, PeerId, u32)) -> Self {
        UnitLife {
            unit,
            peer,
            incarnation,
        }
    }
}

/// A peer as seen from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its number.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: u32,
    /// What it stated about itself.
    pub identity: Identity,
    /// Its process id.
    pub pid: i32,
}

/// A process of a node: an index into the tables of the node's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u32);

impl Slot {
    /// As an index.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The peer in this slot of a node.
    #[inline(always)]
    pub fn of(self, node: u32) -> PeerId {
        PeerId::new(node, self.0)
    }
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "slot {}", self.0)
    }
}
