//! Becoming a member of a node: of a domain with an agent, or of a domain of one.

use super::agent::{self, AgentExtents, Life, Node, Seat, client};
use super::{Layout, Others, PeerTable, Slot, own_cpus};
use crate::membership::NodeLife;
use crate::{Config, Error, Identity, PeerId, PeerInfo};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags};
use samite_mem::lease::Holder;
use samite_mem::{Arena, ExtentSource, Heap, Span};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A process's membership of its node: its slot, the arena, its heap. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct NodeMember {
    /// The slot of this process.
    pub(crate) me: Slot,
    /// The number of this node in the domain.
    pub(crate) number: u32,
    /// Its incarnation.
    pub(crate) incarnation: u32,
    /// The number of the unit in its job.
    pub(crate) unit: u32,
    /// The fixed part of the arena.
    pub(crate) layout: Layout,
    /// This process's blocks.
    pub(crate) heap: Heap,
    /// The leases that it holds on others' memory and its own.
    pub(crate) holder: Holder,
    /// The units of other nodes.
    pub(crate) others: Others,
}

impl NodeMember {
    /// Creates one incarnation of a unit, whose heap grows by what `extents` grants.
    pub(crate) fn new(
        (me, incarnation): Life,
        unit: u32,
        layout: Layout,
        extents: Box<dyn ExtentSource>,
        huge_pages: bool,
    ) -> NodeMember {
        NodeMember {
            me,
            number: layout.peers.node(),
            incarnation,
            unit,
            heap: Heap::new(layout.arena().clone(), extents, huge_pages),
            holder: layout.holder(me),
            others: Others::default(),
            layout,
        }
    }

    /// Returns the name of a peer for an error; `None` if nothing is known of it, or only of
    /// another incarnation. Takes no lock of the engine.
    pub(crate) fn name_of(&self, peer: PeerId, incarnation: Option<u32>) -> Option<Arc<str>> {
        let info = match peer.node() == self.number {
            // A hostile peer may name a slot that does not exist.
            true if peer.slot().0 < self.layout.peers.used() => self.layout.peers.info(peer.slot()),
            true => None,
            false => self.others.info(peer),
        };
        let is_it = |info: &PeerInfo| incarnation.is_none_or(|life| info.incarnation == life);
        info.filter(is_it).map(|info| self.name(&info))
    }

    /// Returns the name of a peer of which this is known: `heat.1`, with its job if that is not
    /// this process's own.
    pub(crate) fn name(&self, info: &PeerInfo) -> Arc<str> {
        let of = &info.identity;
        if agent::is_agent(of) {
            return match info.peer.node() == self.number {
                true => "the agent".into(),
                false => format!("the agent of node {}", info.peer.node()).into(),
            };
        }
        let own = self.layout.peers.info(self.me);
        match own.is_none_or(|own| own.identity.job == of.job) {
            true => format!("{}.{}", of.program, of.rank).into(),
            false => format!("{}.{} of the job {}", of.program, of.rank, of.job).into(),
        }
    }

    /// Creates a member of a node that this process keeps itself, perhaps with other members.
    pub(crate) fn of_own_node(
        node: &Arc<Mutex<Node>>,
        identity: &Identity,
        huge_pages: bool,
    ) -> Result<NodeMember, Error> {
        let pid = std::process::id() as i32;
        let (life, layout) = {
            let mut node = node.lock().unwrap_or_else(PoisonError::into_inner);
            let life = node.admit(pid, None, &own_cpus(), identity)?;
            (life, node.layout().clone())
        };
        let node = node.clone();
        let extents = Box::new(OwnExtents { node, life });
        let unit = identity.unit;
        Ok(NodeMember::new(life, unit, layout, extents, huge_pages))
    }

    /// Returns the number of this process, as the domain knows it.
    pub(crate) fn peer(&self) -> PeerId {
        self.me.of(self.number)
    }
}

/// Detects the agent's death, without a system call per poll.
#[derive(Debug)]
pub(crate) struct AgentWatch(pub(crate) OwnedFd);

impl AgentWatch {
    /// Returns whether the agent is dead.
    pub(crate) fn sees_death(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let zero = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&zero)).is_ok_and(|n| n > 0)
    }
}

/// Joins the domain `name` on this node.
pub(crate) fn join_domain(
    name: &str,
    identity: &Identity,
    config: &Config,
) -> Result<(Seat, NodeMember, AgentWatch), Error> {
    let fail = |why: &str| Error::Join {
        domain: name.to_owned(),
        why: why.to_owned(),
    };
    if !config.mask.kernel_copy {
        config.ptracer.allow();
    }
    // Everything that can fail is done before this process is a member.
    let map = |arena: OwnedFd, table: OwnedFd| {
        let table = PeerTable::attach(table)?;
        let layout = Layout::new(Arena::attach(arena)?, table)?;
        if layout.peers.fences() != samite_mem::enable_asymmetric_fences() {
            return Err(fail(
                "membarrier is allowed for the agent but not here; start both alike",
            ));
        }
        let pidfd = Some(layout.peers.agent_pid())
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())
            .ok_or_else(|| fail("the agent cannot be watched (pidfd_open)"))?;
        Ok((layout, AgentWatch(pidfd)))
    };
    let (seat, (layout, watch)) = client::join(name, identity, config, map)?;
    let life = (seat.peer, seat.incarnation);
    let extents = AgentExtents::new(name, life);
    let (unit, extents) = (identity.unit, Box::new(extents));
    let membership = NodeMember::new(life, unit, layout, extents, config.huge_pages);
    Ok((seat, membership, watch))
}

/// Creates a domain of one: this process keeps the node itself and nobody can join.
pub(crate) fn start_alone(identity: &Identity, config: &Config) -> Result<NodeMember, Error> {
    let rule = || samite_mem::host::Host::read().memory_total / 2;
    let node = Node::create(NodeLife::HEAD, config.budget.unwrap_or_else(rule))?;
    let node = Arc::new(Mutex::new(node));
    NodeMember::of_own_node(&node, identity, config.huge_pages)
}

/// Extents of a node that this process keeps itself.
pub(super) struct OwnExtents {
    pub(super) node: Arc<Mutex<Node>>,
    pub(super) life: Life,
}

impl ExtentSource for OwnExtents {
    fn grant(&mut self, bytes: u64, _: Duration) -> Result<Span, samite_mem::Error> {
        self.node
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .grant(self.life, bytes)
    }
    fn give_back(&mut self, extents: Vec<Span>) {
        let mut node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        for extent in extents {
            node.give_back(self.life, extent);
        }
    }
}

/// Extents of a process that owns all memory of a node.
#[cfg(test)]
pub(crate) struct PrivateExtents(pub(crate) super::agent::Book, pub(crate) samite_mem::Arena);

#[cfg(test)]
impl PrivateExtents {
    pub(crate) fn of(layout: &Layout) -> PrivateExtents {
        let book = super::agent::Book::new(layout.extents());
        PrivateExtents(book, layout.arena().clone())
    }
}

#[cfg(test)]
impl ExtentSource for PrivateExtents {
    fn grant(&mut self, bytes: u64, _: Duration) -> Result<Span, samite_mem::Error> {
        self.0.grant((Slot(0), 1), bytes)
    }
    fn give_back(&mut self, extents: Vec<Span>) {
        for extent in extents {
            self.0.give_back((Slot(0), 1), extent);
            self.1.release(extent).unwrap();
        }
    }
}
