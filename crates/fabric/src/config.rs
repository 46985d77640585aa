//! The fabric's settings. There are few, because rules are preferred to knobs.

use crate::transport::shm::BODY_MAX;
use std::time::Duration;

/// How this process takes part. The defaults work for 2 and for 400 units.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Every wait without a deadline of its own ends after this time with
    /// [`crate::Error::Timeout`].
    pub deadline: Duration,
    /// How long a wait spins before it yields; `None`: by rule (not at all when more units than
    /// cores are on the node).
    pub spin: Option<Duration>,
    /// Messages up to this size are sent eagerly, without asking the receiver; `None`: calibrated.
    pub eager_max: Option<u64>,
    /// Capabilities that this process must not use.
    pub mask: Mask,
    /// A link with latency, jitter and rate between the units of the job that share no memory;
    /// `None`: their frames arrive at once.
    pub link: Option<Link>,
    /// Which processes the kernel lets copy from this process where only ancestors may. No effect
    /// if the kernel copy is masked.
    pub ptracer: Ptracer,
    /// Ask the kernel for huge pages under large segments.
    pub huge_pages: bool,
    /// Budget of a domain of one, in bytes; `None`: by rule (half of the memory of the machine).
    pub budget: Option<u64>,
    /// Costs of the copy engines on this host.
    pub costs: crate::CostModel,
    /// This process only answers others: it does not count as one that needs a processor, and
    /// sleeps instead of spinning.
    pub background: bool,
    /// The layers above check the program's use of memory: slow, for tests.
    pub check: bool,
}

/// Capabilities that are switched off, so that the paths of units that share less can be used (and
/// tested) on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// Do not map segments of others: put, get and atomics go over messages.
    pub map: bool,
    /// No `process_vm_readv`.
    pub kernel_copy: bool,
    /// The sender does not help to copy.
    pub cooperative: bool,
    /// No RMA of the transport: put, get and atomics between nodes go over messages.
    pub rma: bool,
    /// The units of a job behave as if they were on so many nodes, round robin: unit 0 on the
    /// first, unit 1 on the second. Between two of these nodes nothing is mapped and nothing is
    /// looked up in shared memory. 0 and 1: as they are.
    pub nodes: u32,
}

/// A link between units of a job on one machine: their frames take time, as over a network. It
/// lies between two units that share no memory because of [`Mask::nodes`] or [`Mask::map`], which
/// then have nothing but frames: no kernel copy and no RMA. Frames between units that map each
/// other's memory, and those to and from other jobs and the services of the agent, pass at once.
/// All units of a job must have the same link. A unit finds out whether another has one, and not
/// whether it has other figures: each frame then has the rate of its sender, and the delay and
/// jitter of its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// From the time at which the last byte of a frame has left to its arrival.
    pub delay: Duration,
    /// What is added to that: 0 to this, evenly distributed. The frames of a pair stay in order.
    pub jitter: Duration,
    /// Bytes per second, for each pair and direction; `None`: no limit.
    pub rate: Option<u64>,
}

impl Config {
    /// Returns the name of a setting of the link that makes no sense, and what to do about it.
    #[doc(hidden)]
    pub fn check_link(&self) -> Result<(), (&'static str, &'static str)> {
        let Some(link) = self.link else {
            return Ok(());
        };
        if link.rate == Some(0) {
            return Err((
                "fabric.link.rate",
                "nothing arrives over a link without rate",
            ));
        }
        let parts = [
            ("fabric.link.rate", link.time_of(BODY_MAX)),
            ("fabric.link.jitter", link.jitter),
            ("fabric.link.delay", link.delay),
        ];
        let longest = parts
            .iter()
            .fold(Duration::ZERO, |sum, (_, time)| sum.saturating_add(*time));
        if longest.saturating_mul(2) >= self.deadline {
            let why = "an answer takes twice delay and jitter, and the longest frame of 64 KiB at \
                       this rate, which must be less than fabric.deadline: write a shorter time, \
                       or a higher rate";
            let longest = parts.into_iter().max_by_key(|(_, time)| *time);
            return Err((longest.map_or("fabric.link", |(name, _)| name), why));
        }
        if !self.mask.map && self.mask.nodes <= 1 {
            let why = "it delays frames between units that share no memory, but all units of this \
                       job do: set fabric.nodes to 2 or more, or add \"map\" to fabric.mask";
            let set = [
                ("fabric.link.delay", !link.delay.is_zero()),
                ("fabric.link.jitter", !link.jitter.is_zero()),
            ];
            let set = set.into_iter().find(|(_, is_set)| *is_set);
            return Err((set.map_or("fabric.link.rate", |(name, _)| name), why));
        }
        Ok(())
    }
}

/// Which processes, besides its ancestors, the kernel lets copy from and to a process, and so debug
/// it, where the security module Yama restricts that (`kernel.yama.ptrace_scope = 1`). This holds
/// for the lifetime of the process. Elsewhere the kernel only checks that both belong to the same
/// user, and this has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ptracer {
    /// No others: messages of peers that the kernel refuses go through the ring.
    #[default]
    Unchanged,
    /// The process with this id and its descendants: the launcher of a job, and so the units of the
    /// job.
    Process(i32),
    /// Every process of this user.
    Any,
}

impl Ptracer {
    /// Tells the kernel, for the calling process. Does nothing without Yama.
    pub fn allow(self) {
        use rustix::process::{PTracer, Pid, set_ptracer};
        let tracer = match self {
            Ptracer::Unchanged => return,
            Ptracer::Process(process) => match Pid::from_raw(process) {
                Some(pid) => PTracer::ProcessID(pid),
                None => return,
            },
            Ptracer::Any => PTracer::Any,
        };
        if let Err(error) = set_ptracer(tracer) {
            tracing::debug!(%error, "PR_SET_PTRACER: there is no Yama, or no such process");
        }
    }
}

impl Mask {
    /// Leaves only messages.
    pub const MESSAGES_ONLY: Mask = Mask {
        map: true,
        kernel_copy: true,
        cooperative: true,
        rma: true,
        nodes: 0,
    };

    /// Returns on which of these nodes a unit behaves as if it were.
    pub(crate) fn node_of(&self, unit: u32) -> u32 {
        unit % self.nodes.max(1)
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            deadline: Duration::from_secs(30),
            spin: None,
            eager_max: None,
            mask: Mask::default(),
            link: None,
            ptracer: Ptracer::Unchanged,
            huge_pages: true,
            budget: None,
            costs: crate::CostModel::default(),
            background: false,
            check: false,
        }
    }
}
