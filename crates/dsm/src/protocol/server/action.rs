//! What happens to a server, and what it has to do.

use crate::protocol::message::{Answer, Op, Request};
use crate::protocol::{
    Between, ChunkId, Commits, GuardId, Mode, Process, ServerId, Subscriber, Telling, Ticket,
    Version,
};
use samite_fabric::SegmentKey;

/// What happened to a server.
#[derive(Debug)]
pub enum ServerEvent {
    /// A client asks; `None` for a note.
    Request {
        /// The client.
        from: Process,
        /// The number of its request.
        ticket: Option<Ticket>,
        /// What it asks.
        request: Request,
    },
    /// A process is lost. All that it had sent has arrived.
    Lost(Process),
    /// The lease of a process is over: it is stopped, and keeps others waiting.
    Fence(Process),
    /// Memory for a write guard could not be allocated: the guard ends.
    NoMemory {
        /// The client that was to get the guard.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// What the memory said.
        why: String,
    },
    /// No client has a read guard of the chunk that it took itself.
    Closed(ChunkId),
    /// The client that owns a chunk has committed: the content is here. It owns the chunk still.
    Adopted {
        /// The chunk.
        chunk: ChunkId,
        /// What it has committed since this was said last.
        commits: Commits,
    },
    /// As [`ServerEvent::Adopted`], and the client owns the chunk no more. To be said before the
    /// client is fenced or lost.
    Disowned {
        /// The chunk.
        chunk: ChunkId,
        /// What it has committed since this was said last.
        commits: Commits,
    },
    /// Another server says something. Content that came with it was fetched.
    Between {
        /// The server.
        from: Process,
        /// What it says.
        message: Between,
    },
    /// Another server is there.
    Known {
        /// Its place in the topology.
        server: ServerId,
        /// Its process.
        process: Process,
    },
    /// The content of a copy that the home has granted could not be fetched.
    Unfetched {
        /// The chunk.
        chunk: ChunkId,
        /// What the memory or the fabric said.
        why: String,
    },
    /// The content of a version of another home, which this message brings, could not be fetched,
    /// or there is no memory for it.
    Unkept {
        /// The home.
        from: Process,
        /// What it said.
        message: Between,
    },
    /// The copies of chunks of that home may not be valid any more: it has not answered for longer
    /// than a lease.
    Void(Process),
    /// A server that keeps others waiting was not heard of for longer than its lease.
    FenceServer(Process),
    /// The memory of a copy is needed.
    Evict(ChunkId),
    /// Time has passed.
    Tick,
}

/// Where the content of a commit is, at the home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    /// Under a guard.
    Guard {
        /// The guard.
        guard: GuardId,
        /// The request that brought the content; `None` if it was written in place.
        sent: Option<(Process, Ticket)>,
    },
    /// It came from another server.
    Server(Process),
}

/// What a server has to do, in this order.
#[derive(Debug, PartialEq)]
pub enum ServerAction {
    /// Send a message to another server; the content of the present version is added to a grant,
    /// and that of the version that is held, or else the present one, to a replicate.
    Send {
        /// The server.
        to: Process,
        /// The message.
        message: Between,
    },
    /// Send the home what a client has written, as [`Between::Commit`].
    Forward {
        /// The home.
        to: Process,
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// The request that brought the content; `None` if it was written in place.
        sent: Option<(Process, Ticket)>,
        /// The epoch of the grant.
        epoch: u64,
        /// The tag of the version.
        tag: u64,
        /// The client.
        writer: Process,
    },
    /// What another server has sent with its commit is the content now.
    AdoptFrom {
        /// The server.
        from: Process,
        /// The chunk.
        chunk: ChunkId,
    },
    /// What another server has sent with its commit is dropped.
    DropFrom {
        /// The server.
        from: Process,
        /// The chunk.
        chunk: ChunkId,
    },
    /// The content of a copy is not needed any more.
    DropCopy {
        /// The chunk.
        chunk: ChunkId,
    },
    /// What is committed next is taken from where it was written, and sent to backups.
    Hold {
        /// The chunk.
        chunk: ChunkId,
        /// Where it was written.
        written: Written,
    },
    /// What another server has sent is the replica of its chunk now.
    Keep {
        /// The server.
        from: Process,
        /// The chunk.
        chunk: ChunkId,
    },
    /// A replica is not needed any more.
    Unkeep {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The home of a chunk is lost: its replica is the content of a chunk of this server.
    TakeOver {
        /// The id that it had.
        of: ChunkId,
        /// Its id from now on.
        chunk: ChunkId,
        /// Its name.
        name: String,
        /// The version.
        version: Version,
        /// Its length in bytes.
        bytes: u64,
        /// The home that is lost.
        lost: Process,
    },
    /// Answer a request.
    Answer {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The answer.
        answer: Answer,
    },
    /// Answer with memory to write a version in.
    Draft {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The number of the draft.
        draft: GuardId,
    },
    /// Let a client own a chunk, and answer; if that is not possible, [`ServerEvent::Disowned`]
    /// follows at once. Otherwise it follows when the chunk is [asked for](Request), or another
    /// server [asks](Between::Ask), before that is handled.
    Own {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// Where its page is: a segment, and the offset there.
        page: (SegmentKey, u64),
        /// The present version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// Tell a subscriber of commits.
    Tell {
        /// The chunk.
        chunk: ChunkId,
        /// What to tell.
        telling: Telling,
    },
    /// A subscriber has taken the events up to a version, or takes no more of them (`None`).
    Took {
        /// The subscriber.
        who: Subscriber,
        /// The version.
        version: Option<Version>,
    },
    /// Answer that there was no guard in time.
    Late {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The processes that were given guards, and what for.
        holders: Vec<(Process, Mode)>,
        /// The number of other requests that wait for one.
        before: u64,
        /// The subscribers that have as many events to take as they may.
        full: Vec<Process>,
    },
    /// Change a word of the content; the result is what a put of that request brings. It comes
    /// before [`ServerAction::Adopt`].
    Change {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// Where the word is, in bytes.
        offset: u64,
        /// How it changes.
        op: Op,
    },
    /// A chunk is removed.
    Free {
        /// The chunk.
        chunk: ChunkId,
        /// Its subscribers, and their services.
        subscribers: Vec<(Subscriber, u16)>,
    },
    /// A chunk was created: its content is zeros.
    Create {
        /// The chunk.
        chunk: ChunkId,
        /// Its name.
        name: String,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Answer with a guard and the content; for a write guard, with memory to write to.
    Give {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// Whether it comes with memory to write in place.
        in_place: bool,
        /// The last committed version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// Answer with the last committed version.
    Show {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// What was written under a guard is the content now. It comes before the answer to the commit.
    Adopt {
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// The request that brought the content; `None` if it was written in place.
        sent: Option<(Process, Ticket)>,
    },
    /// Clients may take read guards of this version themselves.
    Open {
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// Clients may not do so any more; [`ServerEvent::Closed`] follows when they have none left.
    Close {
        /// The chunk.
        chunk: ChunkId,
    },
    /// What was written under a guard is dropped.
    Discard {
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
    },
}
