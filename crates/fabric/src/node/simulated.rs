//! A node in one process: its members are units of the simulated network.
//!
//! Each member maps the node's memory separately, as processes do, so that leases and claims are
//! those of production. A member that dies is a thread that continues until it notices: its leases
//! end only when it drops them.

use super::agent::{Life, Node};
use super::join::{NodeMember, OwnExtents};
use super::{Layout, Others, PeerTable, Slot, State};
use crate::membership::NodeLife;
use crate::{Error, Identity};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use samite_mem::Arena;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A node in one process; see the module's documentation.
#[derive(Debug)]
pub(crate) struct SimulatedNode {
    node: Arc<Mutex<Node>>,
    members: Vec<Life>,
    pub(crate) others: Others,
}

impl SimulatedNode {
    /// Creates an incarnation of a node without members.
    pub(crate) fn create(life: NodeLife, budget: u64) -> Result<SimulatedNode, Error> {
        Ok(SimulatedNode {
            node: Arc::new(Mutex::new(Node::create(life, budget)?)),
            members: Vec::new(),
            others: Others::default(),
        })
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a unit into the next slot; returns its incarnation.
    pub(crate) fn admit(&mut self, identity: &Identity) -> Result<u32, Error> {
        let lives = pidfd_open(getpid(), PidfdFlags::empty());
        let lives = lives.map_err(|error| Error::Memory(error.to_string()))?;
        let pid = Pid::as_raw(Some(getpid()));
        let cpus = super::own_cpus();
        let life = self.node().admit(pid, Some(lives), &cpus, identity)?;
        self.members.push(life);
        Ok(life.1)
    }

    /// Returns the membership of the unit in a slot.
    pub(crate) fn join(&self, slot: Slot, identity: &Identity) -> Result<NodeMember, Error> {
        let copy = |fd: rustix::fd::BorrowedFd<'_>| {
            let copy = fd.try_clone_to_owned();
            copy.map_err(|error| Error::Memory(error.to_string()))
        };
        let (arena, table) = {
            let node = self.node();
            (copy(node.layout().arena().fd())?, copy(node.table().fd())?)
        };
        let layout = Layout::new(Arena::attach(arena)?, PeerTable::attach(table)?)?;
        let life = self.members[slot.index()];
        let node = self.node.clone();
        let extents = Box::new(OwnExtents { node, life });
        let mut membership = NodeMember::new(life, identity, layout, extents, false);
        membership.others = self.others.clone();
        Ok(membership)
    }

    /// Removes a unit.
    pub(crate) fn part(&self, slot: Slot) {
        let mut node = self.node();
        let life = self.members.get(slot.index());
        if let Some(index) = life.and_then(|life| node.member(*life)) {
            node.leave(index);
        }
    }

    /// Returns the slots as other nodes should see them. `have_ended`: the dead no longer use any
    /// memory of the node.
    pub(crate) fn slots(&self, have_ended: bool) -> Vec<(Slot, State, u32)> {
        let mut node = self.node();
        if have_ended {
            node.reclaim();
        }
        node.slots().published().collect()
    }

    /// Raises the epoch after a change on other nodes.
    pub(crate) fn raise_epoch(&self) {
        self.node().announce();
    }
}
