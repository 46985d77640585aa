//! What the programs of a stream decide for it, as it travels.

use super::{Interest, Step};
use serde::{Deserialize, Serialize};

/// Most that may lie in a queue: steps and bytes. The step that would pass one of them is over the
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Steps; 1 or more.
    pub steps: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What happens when a reader group is slower than the writer. Says which committed steps the group
/// gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// All of them; the writer waits at the limit.
    #[default]
    Block,
    /// The newest: at the limit the oldest that was not taken is dropped.
    DropOldest,
    /// The oldest: at the limit a new one is not queued.
    DropNewest,
    /// Only the newest that was not taken.
    Latest,
    /// Those whose number is a multiple of this (1 or more); the writer waits at the limit.
    Every(u64),
    /// All of them; what is beyond the limit lies on disk. When the disk is full it is as `Block`.
    Spill,
}

/// Where a reader group begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// At the oldest step from which on all are still there; a precious first step comes before it.
    #[default]
    Earliest,
    /// At the newest committed step.
    Latest,
    /// At this one; it and all after it must be there, or lie in the future.
    Step(Step),
}

/// What is kept of a stream for [`Request::At`](super::Request::At) although every group has had
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retain {
    /// The newest committed steps, as many as this ...
    pub steps: u64,
    /// ... or as many as have these bytes; whichever keeps more. They yield when a writer needs the
    /// memory.
    pub bytes: u64,
}

/// What happens to steps before the first reader has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unread {
    /// They wait, under the limits of [`StreamConfig::limits`]; then the writer waits.
    #[default]
    Block,
    /// They are dropped.
    Discard,
}

/// Longest [`StreamConfig::lease`], [`StreamConfig::linger`] and [`Reader::lease`], in ms: a day.
/// Who says more gets this.
pub const LONGEST_LEASE: u64 = 24 * 60 * 60 * 1000;

/// What a writer program decides for its stream. The rank that opens first is heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamConfig {
    /// Default limits of reader groups, and of a stream that nobody has opened. `None`: two steps,
    /// a quarter of the memory.
    pub limits: Option<Limits>,
    /// Most bytes that the stream may have in memory; `None`: all.
    pub memory: Option<u64>,
    /// What is kept although it was read.
    pub retain: Retain,
    /// The first step is kept as long as the stream lives; on disk, when the memory is needed and
    /// there is a disk.
    pub precious_first: bool,
    /// Before the first reader.
    pub unread: Unread,
    /// How long a writer rank may take to come back when it died, in ms.
    pub lease: u64,
    /// How long whoever has not come yet may take, in ms, if that is longer than its lease: a rank,
    /// writer or reader, after the first one of its program; after the end of the stream, readers
    /// of steps that nobody has opened.
    pub linger: u64,
    /// Reader groups that will come: steps wait for each of them. Where there are some, `unread`
    /// says nothing.
    pub expected: Vec<Expected>,
}

/// A reader group that is known before it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Its name.
    pub group: String,
    /// What happens until it has come, when it has not come in time.
    pub policy: Policy,
    /// Most that waits for it until then; `None`: the stream's.
    pub limits: Option<Limits>,
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

/// How a reader rank opens a stream. All ranks of a group say the same; the first is heard on
/// policy, limits and lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// Name of the group: the reader program's, so that it can come back after a crash.
    pub group: String,
    /// Which rank of the group.
    pub rank: u32,
    /// Ranks of the group.
    pub size: u32,
    /// Where a new group begins.
    pub start: Start,
    /// What happens when it is slow.
    pub policy: Policy,
    /// Most in its queue; `None`: the stream's.
    pub limits: Option<Limits>,
    /// How long a rank may take to come after the first one, or to come back when it died, in ms.
    pub lease: u64,
    /// The group is only given steps in which this box was written; `None`: whatever was.
    pub only: Option<Interest>,
}
