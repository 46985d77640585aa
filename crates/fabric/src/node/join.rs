//! Becoming a member of a node: of a domain with an agent, or of a domain of one.

use super::agent::{self, AgentExtents, Far, Life, Memory, Node, Seat, client};
use super::{Layout, Others, PeerTable, RemoteTable, Slot, own_cpus};
use crate::membership::NodeLife;
use crate::{Config, Error, Identity, PeerId, PeerInfo};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags};
use samite_mem::lease::Holder;
use samite_mem::{Arena, ExtentSource, Heap, Span};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// A process as a member of its node: its slot, the arena, its heap. Cheap to clone.
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
    names: Names,
}

/// The names of the peers that were announced to this process, with their incarnations, for
/// errors: a dead peer keeps its name when its slot is free. While the lock is held, nothing else
/// is locked, and nothing of a caller runs.
#[derive(Clone, Debug)]
struct Names {
    /// The job of this process. The names of units of other jobs say which job.
    job: Arc<str>,
    known: Arc<RwLock<Known>>,
}

type Known = HashMap<PeerId, (u32, Arc<str>)>;

impl Names {
    fn new(job: &str) -> Names {
        Names {
            job: job.into(),
            known: Arc::default(),
        }
    }
}

impl NodeMember {
    /// Creates one incarnation of a unit, whose heap grows by what `extents` grants.
    pub(crate) fn new(
        (me, incarnation): Life,
        identity: &Identity,
        layout: Layout,
        extents: Box<dyn ExtentSource>,
        huge_pages: bool,
    ) -> NodeMember {
        NodeMember {
            me,
            number: layout.peers.node(),
            incarnation,
            unit: identity.unit,
            heap: Heap::new(layout.arena().clone(), extents, huge_pages),
            holder: layout.holder(me),
            others: Others::default(),
            names: Names::new(&identity.job),
            layout,
        }
    }

    /// Records the name of a peer that was announced.
    pub(crate) fn learn_name(&self, info: &PeerInfo) {
        let named = (info.incarnation, self.name(info));
        let known = self.names.known.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.insert(info.peer, named);
    }

    /// Returns the name of a peer for an error; `None` if nothing is known of it, or only of
    /// another incarnation. Does not lock the engine, so it may be called anywhere.
    pub(crate) fn name_of(&self, peer: PeerId, incarnation: Option<u32>) -> Option<Arc<str>> {
        // Another thread of the parent may have held the lock of the names during the fork.
        if !self.heap.owner().is_current() {
            return None;
        }
        let is_it = |life: u32| incarnation.is_none_or(|wanted| wanted == life);
        let known = {
            let known = self.names.known.read();
            let known = known.unwrap_or_else(PoisonError::into_inner);
            known.get(&peer).filter(|(life, _)| is_it(*life)).cloned()
        };
        if let Some((_, name)) = known {
            return Some(name);
        }
        let (peers, slot) = (&self.layout.peers, peer.slot());
        let info = match peer.node() == self.number {
            // A hostile peer may name a slot that does not exist.
            true if slot.0 < peers.used() => {
                let seen = peers.state(slot);
                // Unless the slot has got another process meanwhile.
                peers.info(slot).filter(|_| peers.state(slot) == seen)
            }
            true => None,
            false => self.others.info(peer),
        };
        let info = info.filter(|info| is_it(info.incarnation));
        info.map(|info| self.name(&info))
    }

    /// Returns the name of a peer of which this is known: `heat.1`, with its job if that is not
    /// this process's own.
    fn name(&self, info: &PeerInfo) -> Arc<str> {
        let of = &info.identity;
        if agent::is_agent(of) {
            return match info.peer.node() == self.number {
                true => "the agent".into(),
                false => format!("the agent of node {}", info.peer.node()).into(),
            };
        }
        match of.job == *self.names.job {
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
        Ok(NodeMember::new(life, identity, layout, extents, huge_pages))
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

/// A process that has joined a domain. `T` is what it needs to reach units of other nodes.
pub(crate) struct Joined<T> {
    pub(crate) seat: Seat,
    pub(crate) node: NodeMember,
    pub(crate) watch: AgentWatch,
    pub(crate) far: Option<T>,
}

/// Joins the domain `name` on this node. In a domain of several nodes, `far` prepares the transport
/// to the others, and returns the address by which they reach this process.
pub(crate) fn join_domain<T>(
    name: &str,
    identity: &Identity,
    config: &Config,
    far: impl Fn(&Far) -> Result<(T, Vec<u8>), Error>,
) -> Result<Joined<T>, Error> {
    let fail = |why: &str| Error::Join {
        domain: name.to_owned(),
        why: why.to_owned(),
    };
    if !config.mask.kernel_copy {
        config.ptracer.allow();
    }
    // Everything that can fail is done before this process is a member.
    let map = |memory: Memory| {
        let table = PeerTable::attach(memory.table)?;
        let layout = Layout::new(Arena::attach(memory.arena)?, table)?;
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
        let mut address = Vec::new();
        let mut others = Others::default();
        let mut reached = None;
        if let Some((remote, settings)) = &memory.far {
            let copy = remote.try_clone();
            let copy = copy.map_err(|error| Error::Memory(error.to_string()))?;
            others = RemoteTable::attach(copy)?.into();
            let (with, own) = far(settings)?;
            (reached, address) = (Some(with), own);
        }
        Ok(((layout, AgentWatch(pidfd), others, reached), address))
    };
    let (seat, (layout, watch, others, reached)) = client::join(name, identity, config, map)?;
    let life = (seat.peer, seat.incarnation);
    let extents = AgentExtents::new(name, life);
    let extents = Box::new(extents);
    let mut node = NodeMember::new(life, identity, layout, extents, config.huge_pages);
    node.others = others;
    Ok(Joined {
        seat,
        node,
        watch,
        far: reached,
    })
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
