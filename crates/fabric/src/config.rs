//! The fabric's settings. A rule beats a knob: there are few.

use std::time::Duration;

/// How this process takes part. Defaults work for 2 and for 400 units.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Every wait that has no deadline of its own ends after this time with [`crate::Error::Timeout`].
    pub deadline: Duration,
    /// How long a wait spins before it yields; `None`: by rule (not at all when more units than
    /// cores are on the node).
    pub spin: Option<Duration>,
    /// Messages up to this size travel at once, without asking the receiver; `None`: calibrated.
    pub eager_max: Option<u64>,
    /// What this process must not use although it could.
    pub mask: Mask,
    /// Ask the kernel for huge pages under large segments.
    pub huge_pages: bool,
    /// Budget of a domain of one, in bytes; `None`: by rule (half of the memory of the machine).
    pub budget: Option<u64>,
    /// Costs of the copy engines on this host.
    pub costs: crate::CostModel,
    /// This process only answers others: it does not count as one that wants a processor, and sleeps
    /// instead of spinning.
    pub background: bool,
    /// The layers above check what a program does with memory: slow, for tests.
    pub check: bool,
}

/// Capabilities that are switched off, so that the path of units that share less can be taken (and
/// tested) on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// Do not map segments of others: put, get and atomics go over messages.
    pub map: bool,
    /// No `process_vm_readv`.
    pub kernel_copy: bool,
    /// The sender does not help to copy.
    pub cooperative: bool,
}

impl Mask {
    /// Only messages are left.
    pub const MESSAGES_ONLY: Mask = Mask {
        map: true,
        kernel_copy: true,
        cooperative: true,
    };
}

impl Default for Config {
    fn default() -> Self {
        Config {
            deadline: Duration::from_secs(30),
            spin: None,
            eager_max: None,
            mask: Mask::default(),
            huge_pages: true,
            budget: None,
            costs: crate::CostModel::default(),
            background: false,
            check: false,
        }
    }
}
