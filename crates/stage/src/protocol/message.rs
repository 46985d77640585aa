//! The messages, and which process sends them.
//!
//! Writers, readers and block stores send a [`Request`] to the coordinator. The coordinator sends
//! them a [`Notice`]: an [`Answer`] to a ticket, or an [`Order`] to a block store.

use super::{
    Attribute, BufferAt, BufferId, EndOfStream, Fault, Figures, Handle, History, Interest, Layout,
    LayoutHash, News, Peer, Reader, ReaderId, Slot, Start, Step, StreamConfig, Ticket, Want,
    WatchId, WriterId,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A layout, or the hash of the last one if it is unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LayoutRef {
    /// A layout that differs from the last one.
    New(Arc<Layout>),
    /// The last layout that this rank has committed to this stream.
    Same(LayoutHash),
}

/// Where the blocks of a part lie in the buffers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockOffsets {
    /// As [`Layout::packing`] says: nothing needs to be sent.
    Packed,
    /// Offset of each block in the buffer of its slot, in the order of the layout (variable by
    /// variable).
    Listed(#[serde(deserialize_with = "super::decode::shared")] Arc<[u64]>),
}

/// What a writer rank commits to a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The step.
    pub step: Step,
    /// Its layout.
    pub layout: LayoutRef,
    /// The buffers that [`Block::slot`](super::Block::slot) indexes, each with its copies.
    #[serde(deserialize_with = "super::decode::slots")]
    pub slots: Vec<Slot<BufferId>>,
    /// The positions of the blocks in them.
    pub places: BlockOffsets,
    /// Attributes of this step (its time, its number in the simulation).
    #[serde(deserialize_with = "super::decode::list")]
    pub attributes: Vec<(String, Attribute)>,
    /// A checksum of the content, by a rule that the writers agree on. It is only compared: a part
    /// that is committed again after a restart is the same if its layout and its checksum are
    /// equal.
    pub checksum: u64,
}

/// The part of one writer rank, as a reader gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartRecord {
    /// The buffers of its blocks. A copy whose block store died is left out.
    pub slots: Vec<Slot<BufferAt>>,
    /// The positions of the blocks in them.
    pub places: BlockOffsets,
    /// Attributes of this step.
    pub attributes: Arc<[(String, Attribute)]>,
}

/// The layouts of all writer ranks, or their hash if they are unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Layouts {
    /// Layouts that differ from the last ones.
    New {
        /// Identifies all of them together.
        hash: LayoutHash,
        /// One per writer rank.
        layouts: Vec<Arc<Layout>>,
    },
    /// Those of the last [`StepRecord`] of this stream that this peer got, whatever its request.
    Same(LayoutHash),
}

/// A committed step. The receiver holds it until it releases it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step.
    pub step: Step,
    /// Its layouts.
    pub layouts: Layouts,
    /// One part per writer rank; shared by the answers to many readers.
    pub parts: Arc<[PartRecord]>,
}

/// A block store, as writers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStoreInfo {
    /// Its process.
    pub peer: Peer,
    /// Maximum bytes of memory in use: its weight.
    pub capacity: u64,
}

/// What a peer sends to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Request {
    /// Block store: announces itself, with its bytes of memory, maximum number of buffers, and
    /// bytes of disk. Not answered.
    Keep {
        memory: u64,
        buffers: u64,
        disk: u64,
    },
    /// Block store: a report about an order. Not answered.
    Report(Report),
    /// Asks for the current block stores. -> [`Answer::BlockStores`]
    BlockStores { ticket: Ticket },
    /// Writer rank `rank` of `size` of a program opens a stream, either a new one or its own after
    /// a crash. Waits while its rank, or the name, is still taken. `gives_up`: its waits end after
    /// a time-out of its own. -> [`Answer::Writing`]
    OpenWriter {
        ticket: Ticket,
        stream: String,
        program: String,
        rank: u32,
        size: u32,
        config: Box<StreamConfig>,
        timeout: u64,
        gives_up: bool,
    },
    /// Begins a step, with the buffers that are known to be needed (possibly none). `timeout` in
    /// ms. -> [`Answer::Begun`]
    Begin {
        ticket: Ticket,
        writer: WriterId,
        step: Step,
        #[serde(deserialize_with = "super::decode::list")]
        wants: Vec<Want>,
        timeout: u64,
    },
    /// Requests more buffers for the open step. -> [`Answer::Begun`] with these buffers.
    Reserve {
        ticket: Ticket,
        writer: WriterId,
        #[serde(deserialize_with = "super::decode::list")]
        wants: Vec<Want>,
        timeout: u64,
    },
    /// All blocks of this rank are in their buffers. `keep`: the rank holds the step until its next
    /// commit is accepted or the rank is lost. The buffers can be read once all ranks have
    /// committed the step: when the next one has begun. -> [`Answer::Committed`]
    Commit {
        ticket: Ticket,
        writer: WriterId,
        part: Part,
        keep: bool,
    },
    /// Returns the buffers of the open step, which can be begun again. Not answered.
    Abort { writer: WriterId },
    /// This rank has written everything: the only way in which a stream ends well. Refused without
    /// effect if another rank has committed more steps. -> [`Answer::Closed`]
    CloseWriter { ticket: Ticket, writer: WriterId },
    /// This rank gives up without closing: from now on it is treated as one whose process has died.
    /// Not answered.
    LeaveWriter { writer: WriterId },
    /// A reader rank opens a stream; waits for it to appear. `gives_up`: its waits end after a
    /// time-out of its own. -> [`Answer::Reading`]
    OpenReader {
        ticket: Ticket,
        stream: String,
        reader: Box<Reader>,
        timeout: u64,
        gives_up: bool,
    },
    /// Requests the step that the group takes next. -> [`Answer::Step`], held under this ticket, or
    /// [`Answer::End`]
    Next {
        ticket: Ticket,
        reader: ReaderId,
        timeout: u64,
    },
    /// Requests the given step; waits for a future one. -> [`Answer::Step`], held under this
    /// ticket, or [`Answer::End`]
    At {
        ticket: Ticket,
        reader: ReaderId,
        step: Step,
        timeout: u64,
    },
    /// Releases the step that the rank holds under the ticket of its `Next` or `At`. `read`: the
    /// bytes of the boxes of it that the rank has read, for display. Not answered.
    Release {
        reader: ReaderId,
        hold: Ticket,
        read: u64,
    },
    /// This rank reads no more; its holds end. Not answered.
    CloseReader { reader: ReaderId },
    /// Subscribes to the writes of a box, from `start` on; at most `most` news items wait. Waits
    /// for the stream to appear. -> [`Answer::Watching`]
    OpenWatch {
        ticket: Ticket,
        stream: String,
        interest: Box<Interest>,
        start: Start,
        most: u32,
        timeout: u64,
    },
    /// Requests the next news item. -> [`Answer::News`], or [`Answer::End`]
    Watch {
        ticket: Ticket,
        watch: WatchId,
        timeout: u64,
    },
    /// Ends a subscription. Not answered.
    CloseWatch { watch: WatchId },
    /// The peer does not wait any more for the answer to its request `ticket` to open a stream or
    /// a subscription: what that has opened is closed, as if its process had died. Not answered.
    Forget { ticket: Ticket },
    /// Requests the state of everything. -> [`Answer::Figures`]
    Figures { ticket: Ticket },
    /// Requests what was opened since the coordinator began. -> [`Answer::History`]
    History { ticket: Ticket },
    /// Requests the number of the coordinator's run. -> [`Answer::Run`]
    Run { ticket: Ticket },
    /// Several threads of this process make requests: while one waits, another may write or read.
    /// Not answered.
    Threads,
}

impl Request {
    /// Returns the ticket of its answer; `None` if it is not answered.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Request::BlockStores { ticket }
            | Request::OpenWriter { ticket, .. }
            | Request::Begin { ticket, .. }
            | Request::Reserve { ticket, .. }
            | Request::Commit { ticket, .. }
            | Request::CloseWriter { ticket, .. }
            | Request::OpenReader { ticket, .. }
            | Request::Next { ticket, .. }
            | Request::At { ticket, .. }
            | Request::OpenWatch { ticket, .. }
            | Request::Watch { ticket, .. }
            | Request::Figures { ticket }
            | Request::History { ticket }
            | Request::Run { ticket } => Some(*ticket),
            Request::Keep { .. }
            | Request::Report(_)
            | Request::Abort { .. }
            | Request::LeaveWriter { .. }
            | Request::Release { .. }
            | Request::CloseReader { .. }
            | Request::CloseWatch { .. }
            | Request::Forget { .. }
            | Request::Threads => None,
        }
    }
}

/// What a block store lacks for a buffer that its budget allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lack {
    /// The machine has no more memory.
    Memory,
    /// The budget of the domain is used up: bytes requested, bytes in use, and the budget.
    Budget([u64; 3]),
    /// All segment numbers of its process are in use; a buffer of any length needs one.
    Numbers(u64),
}

/// What a block store reports to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Report {
    /// The buffer exists, as this segment.
    Allocated { buffer: BufferId, handle: Handle },
    /// The buffer does not exist: after all, there is no memory or no segment number for it.
    Refused { buffer: BufferId, lack: Lack },
    /// Readers may read the buffer, and no process writes it any more.
    Sealed { buffer: BufferId },
    /// The bytes are on disk and their memory is free.
    Spilled { buffer: BufferId },
    /// The bytes could not be written to disk; they are in memory as before.
    SpillFailed { buffer: BufferId },
    /// The buffer waits: memory that was freed is still in use, by the process in `had_by` if it is
    /// known. Another report follows.
    Full {
        buffer: BufferId,
        had_by: Option<Peer>,
    },
    /// The block store makes progress with the buffer: `parts` parts of it are done, one more than
    /// it has reported before. These are parts of its memory during allocation, or of the write to
    /// disk. Another report follows.
    Working { buffer: BufferId, parts: u64 },
}

impl Report {
    /// Returns the buffer that it is about.
    pub fn buffer(&self) -> BufferId {
        match *self {
            Report::Allocated { buffer, .. }
            | Report::Refused { buffer, .. }
            | Report::Sealed { buffer }
            | Report::Spilled { buffer }
            | Report::SpillFailed { buffer }
            | Report::Full { buffer, .. }
            | Report::Working { buffer, .. } => buffer,
        }
    }
}

/// What the coordinator orders a block store to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Order {
    /// Allocate a buffer that only `writer` may write. -> [`Report::Allocated`] or
    /// [`Report::Refused`], possibly after a [`Report::Full`] and some [`Report::Working`]
    Allocate {
        buffer: BufferId,
        bytes: u64,
        writer: Peer,
    },
    /// From now on the buffer is read, not written. -> [`Report::Sealed`]
    Seal { buffer: BufferId },
    /// Move the bytes of a sealed buffer to disk. -> [`Report::Spilled`] or
    /// [`Report::SpillFailed`], possibly after some [`Report::Working`]
    Spill { buffer: BufferId },
    /// The buffer is no longer needed, in memory or on disk. No reader holds it. A writer may not
    /// know yet, if the stream ended while it wrote. Not answered; earlier orders may or may not
    /// still be answered.
    Free { buffer: BufferId },
}

/// What the coordinator sends to a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, and encoded as soon as it is made"
)]
pub enum Notice {
    /// An answer to a request.
    Answer { ticket: Ticket, answer: Answer },
    /// An order to a block store.
    Order(Order),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Answer {
    /// The stream is open for writing. `committed` is the number of complete steps, where a
    /// restarted program continues. `next` is the first step that this rank has not committed (the
    /// same, or one more). `block_stores` are the current ones, by number.
    Writing {
        writer: WriterId,
        committed: Step,
        next: Step,
        block_stores: Vec<BlockStoreInfo>,
    },
    /// The current block stores, by number.
    BlockStores { block_stores: Vec<BlockStoreInfo> },
    /// The step has begun, or more buffers exist: one for each want, in order.
    Begun { buffers: Vec<BufferAt> },
    /// This rank committed the step before it was restarted: nothing needs to be written. `next` is
    /// the first step that it has not committed.
    Already { next: Step },
    /// The part is accepted; it outlives the process.
    Committed,
    /// The rank has closed the stream.
    Closed,
    /// The stream, which `program` writes, is open for reading. `taken` is the number of steps that
    /// the rank took before it was restarted.
    Reading {
        reader: ReaderId,
        taken: u64,
        program: String,
    },
    /// The subscription to a stream that `program` writes exists.
    Watching { watch: WatchId, program: String },
    /// The next news item.
    News(Box<News>),
    /// The state of everything.
    Figures(Figures),
    /// What was opened so far.
    History(Box<History>),
    /// A random number, which another coordinator does not have.
    Run { run: u64 },
    /// The requested step.
    Step(StepRecord),
    /// No more steps follow.
    End(EndOfStream),
    /// Not within `timeout`, but every process that it waits for is alive: ask again. The fault is
    /// for a requester that does not want to wait longer.
    Waiting(Fault),
    /// The request failed.
    Failed(Fault),
}
