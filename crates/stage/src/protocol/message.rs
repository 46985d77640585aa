//! What is said, and by whom.
//!
//! [`Request`] goes from writers, readers and block stores to the coordinator; [`Notice`] from the
//! coordinator to them: an [`Answer`] to a ticket, or an [`Order`] to a block store.

use super::{
    Attribute, BufferAt, BufferId, EndOfStream, Fault, Figures, Handle, Interest, Layout,
    LayoutHash, News, Peer, Reader, ReaderId, Slot, Start, Step, StreamConfig, Ticket, Want,
    WatchId, WriterId,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A layout, or the word that it is the last one again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LayoutRef {
    /// Another one than last time.
    New(Arc<Layout>),
    /// The last one that this rank has committed to this stream.
    Same(LayoutHash),
}

/// Where in the buffers the blocks of a part lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockOffsets {
    /// As [`Layout::packing`] says: nothing has to be told.
    Packed,
    /// Offset of each block in its slot's buffer, blocks in the order of the layout (variable by
    /// variable).
    Listed(Arc<[u64]>),
}

/// What a writer rank commits to a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Which step.
    pub step: Step,
    /// What is in it.
    pub layout: LayoutRef,
    /// The buffers that [`Block::slot`](super::Block::slot) counts; each with its copies.
    pub slots: Vec<Slot<BufferId>>,
    /// Where in them.
    pub places: BlockOffsets,
    /// Facts of this step (its time, its number in the simulation).
    pub attributes: Vec<(String, Attribute)>,
    /// Of the content, by a rule that the writers agree on; only compared: a part that is committed
    /// again after a restart is the same when its layout and its checksum are.
    pub checksum: u64,
}

/// The part of one writer rank, as a reader gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartRecord {
    /// The buffers that its blocks lie in; a copy whose block store died is left out.
    pub slots: Vec<Slot<BufferAt>>,
    /// Where in them.
    pub places: BlockOffsets,
    /// Facts of this step.
    pub attributes: Arc<[(String, Attribute)]>,
}

/// The layouts of all writer ranks, or the word that they are the last ones again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Layouts {
    /// Others than last time; one per writer rank.
    New {
        /// What names them all.
        hash: LayoutHash,
        /// One per writer rank.
        layouts: Vec<Arc<Layout>>,
    },
    /// Those of the last [`StepRecord`] that this peer got of this stream, by whatever question.
    Same(LayoutHash),
}

/// A committed step. Whoever gets it holds it, until it releases it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Which one.
    pub step: Step,
    /// What is in it.
    pub layouts: Layouts,
    /// One part per writer rank. Whoever answers many readers has them once.
    pub parts: Arc<[PartRecord]>,
}

/// A block store, as writers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStoreInfo {
    /// Who it is.
    pub peer: Peer,
    /// Bytes of memory that it may have in use: its weight.
    pub capacity: u64,
}

/// What a peer tells or asks the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Request {
    /// Block store: here I am, with that many bytes of memory, in so many buffers at most, and
    /// bytes of disk. Not answered.
    Keep {
        memory: u64,
        buffers: u64,
        disk: u64,
    },
    /// Block store: about an order. Not answered.
    Report(Report),
    /// Who keeps blocks now. -> [`Answer::BlockStores`]
    BlockStores { ticket: Ticket },
    /// Writer rank `rank` of `size` of a program opens a stream, new or its own after a crash;
    /// waits while its rank, or the name, is still taken. `gives_up`: its waits end after a
    /// time-out of its own. -> [`Answer::Writing`]
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
    /// Begins a step, with the buffers it is known to need (none is fine). `timeout` in ms. ->
    /// [`Answer::Begun`]
    Begin {
        ticket: Ticket,
        writer: WriterId,
        step: Step,
        wants: Vec<Want>,
        timeout: u64,
    },
    /// More buffers for the step that was begun. -> [`Answer::Begun`] with these buffers.
    Reserve {
        ticket: Ticket,
        writer: WriterId,
        wants: Vec<Want>,
        timeout: u64,
    },
    /// All of this rank's blocks are in their buffers. `keep`: the rank holds the step, until its
    /// next commit is taken or it is gone. The buffers can be read once the step is committed by
    /// all ranks: when the next one has begun. -> [`Answer::Committed`]
    Commit {
        ticket: Ticket,
        writer: WriterId,
        part: Part,
        keep: bool,
    },
    /// Gives the buffers of the step back that was begun; it can be begun again. Not answered.
    Abort { writer: WriterId },
    /// This rank has written all that it wanted to write: the only way in which a stream ends well.
    /// Refused, and nothing has happened, when another rank has committed more steps. ->
    /// [`Answer::Closed`]
    CloseWriter { ticket: Ticket, writer: WriterId },
    /// This rank gives up without closing: from now on it counts as a rank whose process has died.
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
    /// The step that the group takes next. -> [`Answer::Step`], held under this ticket, or
    /// [`Answer::End`]
    Next {
        ticket: Ticket,
        reader: ReaderId,
        timeout: u64,
    },
    /// That step; waits for a future one. -> [`Answer::Step`], held under this ticket, or
    /// [`Answer::End`]
    At {
        ticket: Ticket,
        reader: ReaderId,
        step: Step,
        timeout: u64,
    },
    /// Ends what the rank holds under the ticket of its `Next` or `At`. Not answered.
    Release { reader: ReaderId, hold: Ticket },
    /// This rank reads no more; its holds end. Not answered.
    CloseReader { reader: ReaderId },
    /// Wants to know when a box is written, from `start` on; of the news at most `most` wait. Waits
    /// for the stream to appear. -> [`Answer::Watching`]
    OpenWatch {
        ticket: Ticket,
        stream: String,
        interest: Box<Interest>,
        start: Start,
        most: u32,
        timeout: u64,
    },
    /// What comes next. -> [`Answer::News`], or [`Answer::End`]
    Watch {
        ticket: Ticket,
        watch: WatchId,
        timeout: u64,
    },
    /// Wants to know no more. Not answered.
    CloseWatch { watch: WatchId },
    /// How everything stands. -> [`Answer::Figures`]
    Figures { ticket: Ticket },
}

impl Request {
    /// What its answer is given under; `None` for what is not answered.
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
            | Request::Figures { ticket } => Some(*ticket),
            Request::Keep { .. }
            | Request::Report(_)
            | Request::Abort { .. }
            | Request::LeaveWriter { .. }
            | Request::Release { .. }
            | Request::CloseReader { .. }
            | Request::CloseWatch { .. } => None,
        }
    }
}

/// What a block store has not for a buffer that its budget has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lack {
    /// The machine gives no more.
    Memory,
    /// All of these segments of its process are in use; a buffer of any length is one.
    Numbers(u64),
}

/// What a block store reports to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Report {
    /// The buffer is there, as this segment.
    Allocated { buffer: BufferId, handle: Handle },
    /// There is no memory for the buffer after all, or no number of a segment; it does not exist.
    Refused { buffer: BufferId, lack: Lack },
    /// Readers may see the buffer; nobody writes it any more.
    Sealed { buffer: BufferId },
    /// The bytes lie on disk and their memory is free.
    Spilled { buffer: BufferId },
    /// The disk did not take the bytes; they lie in memory as before.
    SpillFailed { buffer: BufferId },
    /// The buffer waits: memory that was freed is still in use, by the process that `had_by` says
    /// if that is known. Another report follows.
    Full {
        buffer: BufferId,
        had_by: Option<Peer>,
    },
    /// The block store gets on with the buffer, of which so many parts are done, one more than it
    /// has said before: parts of its memory, while it is allocated, or of its way to disk. Another
    /// report follows.
    Working { buffer: BufferId, parts: u64 },
}

/// What the coordinator orders a block store to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Order {
    /// Have a buffer that `writer` alone may write. -> [`Report::Allocated`] or
    /// [`Report::Refused`], maybe after a [`Report::Full`] and some [`Report::Working`]
    Allocate {
        buffer: BufferId,
        bytes: u64,
        writer: Peer,
    },
    /// From now on it is read, not written. -> [`Report::Sealed`]
    Seal { buffer: BufferId },
    /// Move the bytes of a sealed buffer to disk. -> [`Report::Spilled`] or
    /// [`Report::SpillFailed`], maybe after some [`Report::Working`]
    Spill { buffer: BufferId },
    /// Nobody needs it any more, in memory or on disk. No reader holds it; a writer may not know
    /// yet, when the stream has ended under it. Not answered; what was ordered before is answered
    /// all the same, or not.
    Free { buffer: BufferId },
}

/// What the coordinator says to a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, and encoded as soon as it is made"
)]
pub enum Notice {
    /// To a question.
    Answer { ticket: Ticket, answer: Answer },
    /// To a block store.
    Order(Order),
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are described at the variants")]
pub enum Answer {
    /// The stream is open for writing. `committed` is the number of whole steps, where a restarted
    /// program goes on; `next` is the first step that this rank has not committed (the same, or one
    /// more). `block_stores` are those there are now, by number.
    Writing {
        writer: WriterId,
        committed: Step,
        next: Step,
        block_stores: Vec<BlockStoreInfo>,
    },
    /// Those who keep blocks now, by number.
    BlockStores { block_stores: Vec<BlockStoreInfo> },
    /// The step is begun, or there are more buffers: one for each want, in order.
    Begun { buffers: Vec<BufferAt> },
    /// This rank has committed that step already, before it was restarted: nothing is to be
    /// written. `next` is the first step that it has not.
    Already { next: Step },
    /// The part is taken; it will be there when the process is not.
    Committed,
    /// The rank has closed the stream.
    Closed,
    /// The stream is open for reading; the rank has taken so many steps before it was restarted.
    Reading { reader: ReaderId, taken: u64 },
    /// The box is watched.
    Watching { watch: WatchId },
    /// Something was written.
    News(Box<News>),
    /// How everything stands.
    Figures(Figures),
    /// Here it is.
    Step(StepRecord),
    /// There are no more.
    End(EndOfStream),
    /// Not within `timeout`, and everybody that it waits for lives: ask again. The fault is for an
    /// asker that does not want to wait longer.
    Waiting(Fault),
    /// It cannot be.
    Failed(Fault),
}
