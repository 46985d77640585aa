//! The settings that programs choose for a stream, as they are sent.

use super::{Fault, Interest, Step};
use serde::{Deserialize, Serialize};

/// Maximum of steps and bytes in a queue. The step that would exceed one of them is over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Steps; 1 or more.
    pub steps: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What happens if a reader group is slower than the writer. Determines which committed steps the
/// group gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// All of them; the writer waits at the limit.
    #[default]
    Block,
    /// The newest: at the limit, the oldest one not taken is dropped.
    DropOldest,
    /// The oldest: at the limit, a new one is not queued.
    DropNewest,
    /// Only the newest one not taken.
    Latest,
    /// Those whose number is a multiple of this (1 or more); the writer waits at the limit.
    Every(u64),
    /// All of them; those beyond the limit are on disk. When the disk is full, it acts as `Block`.
    Spill,
}

/// Where a reader group begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// At the oldest step from which on all are still stored; a precious first step comes before
    /// it.
    #[default]
    Earliest,
    /// At the newest committed step.
    Latest,
    /// At this one. It and all steps after it must be stored, or lie in the future.
    Step(Step),
}

/// Which steps of a stream are kept for [`Request::At`](super::Request::At) after every group has
/// read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retain {
    /// The newest committed steps, this many ...
    pub steps: u64,
    /// ... or as many as have these bytes, whichever is more. They are dropped when a writer needs
    /// the memory.
    pub bytes: u64,
}

/// What happens to steps before the first reader has opened the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unread {
    /// They wait, within [`StreamConfig::limits`]; then the writer waits.
    #[default]
    Block,
    /// They are dropped.
    Discard,
}

/// Maximum [`StreamConfig::lease`], [`StreamConfig::linger`] and [`Reader::lease`], in ms: a day. A
/// larger value is reduced to it.
pub const LONGEST_LEASE: u64 = 24 * 60 * 60 * 1000;

/// What a writer program chooses for its stream. The choice of the rank that opens first applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamConfig {
    /// Default limits of reader groups, and of a stream without readers. `None`: two steps, a
    /// quarter of the memory.
    pub limits: Option<Limits>,
    /// Maximum bytes of the stream in memory; `None`: no limit of its own.
    pub memory: Option<u64>,
    /// What is kept after it was read.
    pub retain: Retain,
    /// Keeps the first step as long as the stream exists; on disk if the memory is needed and there
    /// is a disk.
    pub precious_first: bool,
    /// What happens before the first reader.
    pub unread: Unread,
    /// How long a dead writer rank may take to return, in ms.
    pub lease: u64,
    /// How long a process that has not opened the stream yet may take, in ms, if that is longer
    /// than its lease: a writer or reader rank, after the first one of its program; after the end
    /// of the stream, readers of steps that no group has read.
    pub linger: u64,
    /// Reader groups that will come: steps wait for each of them. If there are any, `unread` has no
    /// effect.
    #[serde(deserialize_with = "super::decode::list")]
    pub expected: Vec<Expected>,
}

/// A reader group that is announced before it opens the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Its name.
    pub group: String,
    /// What happens until it has opened the stream, if it is late.
    pub policy: Policy,
    /// Limits of what waits for it until then; `None`: those of the stream.
    pub limits: Option<Limits>,
}

impl StreamConfig {
    /// Checks the limits of the stream of that name, which its reader groups inherit.
    pub(super) fn check(&self, name: &str) -> Result<(), Fault> {
        check_limits(Policy::Block, self.limits, || format!("the stream {name}"))?;
        let mut expected = self.expected.iter();
        expected.try_for_each(|one| {
            let of = || format!("the expected reader group {} of {name}", one.group);
            check_limits(one.policy, one.limits, of)
        })
    }
}

impl Default for StreamConfig {
    fn default() -> Self {
        StreamConfig {
            limits: None,
            memory: None,
            retain: Retain::default(),
            precious_first: false,
            unread: Unread::default(),
            lease: 10_000,
            linger: 60_000,
            expected: Vec::new(),
        }
    }
}

/// How a reader rank opens a stream. All ranks of a group say the same; the policy, limits and
/// lease of the first one apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// Name of the group: that of the reader program, so that it can return after a crash.
    pub group: String,
    /// The rank within the group.
    pub rank: u32,
    /// Number of ranks of the group.
    pub size: u32,
    /// Where a new group begins.
    pub start: Start,
    /// What happens if it is slower than the writer.
    pub policy: Policy,
    /// Limits of its queue; `None`: those of the stream.
    pub limits: Option<Limits>,
    /// How long a rank may take to open the stream after the first one, or to return after it died,
    /// in ms.
    pub lease: u64,
    /// The group gets only the steps in which this box was written; `None`: all steps.
    pub only: Option<Interest>,
}

/// Checks that limits that a program has set, and a policy, let at least one step through.
///
/// # Errors
/// [`Fault::ZeroLimit`], which names whose they are.
pub(super) fn check_limits(
    policy: Policy,
    limits: Option<Limits>,
    of: impl FnOnce() -> String,
) -> Result<(), Fault> {
    let is_zero = limits.is_some_and(|limits| limits.steps == 0 || limits.bytes == 0);
    match is_zero || policy == Policy::Every(0) {
        true => Err(Fault::ZeroLimit { of: of() }),
        false => Ok(()),
    }
}
