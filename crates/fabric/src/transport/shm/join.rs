//! Becoming a peer: of a domain that an agent keeps, or of one's own.

use super::Shm;
use crate::agent::{AgentExtents, Book, Life, Node, Seat, client};
use crate::layout::{Layout, PeerTable, own_cpus};
use crate::{Config, Error, Identity, PeerId};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags};
use samite_mem::lease::Holder;
use samite_mem::{Arena, ExtentSource, Heap, Span};
use std::sync::{Arc, Mutex, PoisonError};

/// What a process is in its node: its number, the arena, its heap. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Membership {
    /// This process.
    pub me: PeerId,
    /// Which life of the number.
    pub incarnation: u32,
    /// The fixed part of the arena.
    pub(crate) layout: Layout,
    /// This process's blocks.
    pub heap: Heap,
    /// What it uses of others' memory, and of its own.
    pub(crate) holder: Holder,
}

impl Membership {
    /// One life of a peer, whose heap grows by what `extents` grants.
    pub(crate) fn new(
        (me, incarnation): Life,
        layout: Layout,
        extents: Box<dyn ExtentSource>,
        huge_pages: bool,
    ) -> Membership {
        Membership {
            me,
            incarnation,
            heap: Heap::new(layout.arena().clone(), extents, huge_pages),
            holder: layout.holder(me),
            layout,
        }
    }
}

/// Notices that the agent died, without a system call per poll.
#[derive(Debug)]
pub(super) struct AgentWatch(pub(super) OwnedFd);

impl AgentWatch {
    /// Whether the agent is dead.
    pub(super) fn sees_death(&self) -> bool {
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
) -> Result<(Seat, Membership, Shm), Error> {
    let fail = |why: &str| Error::Join {
        domain: name.to_owned(),
        why: why.to_owned(),
    };
    if !config.mask.kernel_copy {
        config.ptracer.allow();
    }
    // What can fail does so before this process is a member.
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
    let extents = AgentExtents::new(name, life, config.deadline);
    let membership = Membership::new(life, layout, Box::new(extents), config.huge_pages);
    let shm = Shm::new(&membership, Some(watch));
    Ok((seat, membership, shm))
}

/// A domain of one: this process keeps the node itself and nobody can join.
pub(crate) fn start_alone(
    identity: &Identity,
    config: &Config,
) -> Result<(Membership, Shm), Error> {
    let rule = || samite_mem::host::Host::read().memory_total / 2;
    let mut node = Node::create(config.budget.unwrap_or_else(rule))?;
    let life = node.admit(std::process::id() as i32, None, &own_cpus(), identity)?;
    let layout = node.layout().clone();
    let extents = OwnExtents {
        node: Arc::new(Mutex::new(node)),
        life,
    };
    let membership = Membership::new(life, layout, Box::new(extents), config.huge_pages);
    let shm = Shm::new(&membership, None);
    Ok((membership, shm))
}

/// Extents of a domain of one.
struct OwnExtents {
    node: Arc<Mutex<Node>>,
    life: Life,
}

impl ExtentSource for OwnExtents {
    fn grant(&mut self, bytes: u64) -> Result<Span, samite_mem::Error> {
        self.node
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .grant(self.life, bytes)
    }
    fn give_back(&mut self, extent: Span) {
        self.node
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .give_back(self.life, extent);
    }
}

/// Extents of a process of the simulated network, whose memory nobody shares.
pub(crate) struct PrivateExtents(pub(crate) Book, pub(crate) Arena);

impl ExtentSource for PrivateExtents {
    fn grant(&mut self, bytes: u64) -> Result<Span, samite_mem::Error> {
        self.0.grant((PeerId(0), 1), bytes)
    }
    fn give_back(&mut self, extent: Span) {
        self.0.give_back((PeerId(0), 1), extent);
        if let Err(error) = self.1.release(extent) {
            tracing::error!(%error, "pages could not be given back");
        }
    }
}
