//! A node in one process: its members are units of the simulated network.
//!
//! Each maps the node's memory for itself, as processes do, so that leases and claims are those of production. One
//! that dies is a thread that runs on until it notices: its leases end when it drops them, and not before.

use super::agent::{Life, Node};
use super::join::{Membership, OwnExtents};
use super::{Layout, PeerTable, Slot};
use crate::{Error, Identity};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use samite_mem::Arena;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct SimulatedNode {
    node: Arc<Mutex<Node>>,
    members: Vec<Life>,
}

impl SimulatedNode {
    /// A node in which nobody is.
    pub(crate) fn create(number: u32, budget: u64) -> Result<SimulatedNode, Error> {
        Ok(SimulatedNode {
            node: Arc::new(Mutex::new(Node::create(number, budget)?)),
            members: Vec::new(),
        })
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A unit in the next slot.
    pub(crate) fn admit(&mut self, identity: &Identity) -> Result<(), Error> {
        let lives = pidfd_open(getpid(), PidfdFlags::empty());
        let lives = lives.map_err(|error| Error::Memory(error.to_string()))?;
        let pid = Pid::as_raw(Some(getpid()));
        let cpus = super::own_cpus();
        let life = self.node().admit(pid, Some(lives), &cpus, identity)?;
        self.members.push(life);
        Ok(())
    }

    /// What the unit in a slot has of the node.
    pub(crate) fn join(&self, slot: Slot, unit: u32) -> Result<Membership, Error> {
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
        Ok(Membership::new(life, unit, layout, extents, false))
    }

    /// A unit is gone.
    pub(crate) fn part(&self, slot: Slot) {
        let mut node = self.node();
        let life = self.members.get(slot.index());
        if let Some(index) = life.and_then(|life| node.member(*life)) {
            node.leave(index);
        }
    }
}
