//! The messages between clients and the server that they use.

use super::{
    Between, ChunkId, GuardId, Mode, Overview, Process, ServerId, SubscriptionId, Ticket, Version,
};
use samite_fabric::SegmentKey;
use serde::{Deserialize, Serialize};

/// The longest name of a chunk, in bytes.
pub const LONGEST_NAME: usize = 256;

/// The longest name of a type of elements, in bytes.
pub(super) const LONGEST_KIND: usize = 4 << 10;

/// The most bytes of a chunk that travel inside a message. Longer chunks are put into segments,
/// which processes of the same node map and others get.
pub const INLINE: u64 = 4 << 10;

/// The type of the elements of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kind {
    /// Its name in Rust.
    pub name: String,
    /// Bytes of an element.
    pub size: u64,
}

/// A message of a client: notes, which have no answer, and a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message<Notes = Vec<Request>, One = Request> {
    /// The notes, the oldest first.
    pub notes: Notes,
    /// What is answered; `None` in a message that is not.
    pub request: Option<One>,
}

/// What a client asks of its server. Times are milliseconds from the arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Find a chunk, or create it. Answer: [`Answer::Opened`].
    Open {
        /// Its name.
        name: String,
        /// The type of its elements.
        kind: Kind,
        /// Its length in bytes, if it is to be created when there is none; otherwise the request
        /// waits until another process creates it.
        bytes: Option<u64>,
        /// How it is kept coherent, if it is created.
        protocol: Protocol,
        /// The servers that have each version; `None`: its home.
        replicas: Option<Replicas>,
        /// How long to wait.
        timeout: u64,
    },
    /// Where is a chunk now whose home is lost? Answer: [`Answer::Moved`].
    Successor {
        /// The chunk, by an id that it had.
        chunk: ChunkId,
        /// How long to wait.
        timeout: u64,
    },
    /// Let me take read guards myself: I count them in this word. Answer: [`Answer::Enrolled`].
    Enroll {
        /// The chunk.
        chunk: ChunkId,
        /// A segment of the client.
        segment: SegmentKey,
        /// Where the word is in it, in bytes.
        offset: u64,
    },
    /// A note: I have no read guard left that I took myself, of a chunk that is closed.
    Drained {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Give me a guard. Answer: [`Answer::Given`].
    Acquire {
        /// The chunk.
        chunk: ChunkId,
        /// What for.
        mode: Mode,
        /// Whether a writer wants memory to write in place.
        in_place: bool,
        /// How long to wait.
        timeout: u64,
    },
    /// Give me the last committed version; nobody waits for that. Answer: [`Answer::Version`].
    Snapshot {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Publish what I have written, and end my guard. Answer: [`Answer::Committed`].
    Commit {
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// The tag of the new version.
        tag: u64,
        /// The content, unless it was written in place.
        data: Option<Vec<u8>>,
        /// The lock that must be held, by whomever.
        under: Option<Token>,
    },
    /// Give me a guard to read a version that was given to nobody else by this request, as soon as
    /// there is one. Answer: [`Answer::Given`].
    Take {
        /// The chunk.
        chunk: ChunkId,
        /// How long to wait.
        timeout: u64,
    },
    /// Change a word of a short chunk, as soon as nobody has a guard. Answer: [`Answer::Changed`].
    Change {
        /// The chunk, of at most [`INLINE`] bytes.
        chunk: ChunkId,
        /// Where the word is, in bytes.
        offset: u64,
        /// How it changes.
        op: Op,
        /// The tag of the new version.
        tag: u64,
        /// How long to wait.
        timeout: u64,
    },
    /// Remove the chunk. Answer: [`Answer::Freed`].
    Free {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Remove the chunks of this home whose names begin with that text. Answer:
    /// [`Answer::FreedSome`].
    FreeAll {
        /// What their names begin with.
        prefix: String,
    },
    /// Wait until so many processes meet under that name. Answer: [`Answer::Met`].
    Meet {
        /// The name.
        name: String,
        /// The number of processes.
        count: u64,
        /// What all of them get.
        bytes: Vec<u8>,
        /// How long to wait.
        timeout: u64,
    },
    /// Give me memory to write the next version in, without a guard. Answer: [`Answer::Drafted`].
    Draft {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Let me put by messages into the memory of my guard or draft: I do not map it. Answer:
    /// [`Answer::Exposed`].
    Expose {
        /// The guard, or the draft.
        guard: GuardId,
    },
    /// Write the whole chunk as soon as nobody has a guard. Answer: [`Answer::Committed`].
    Put {
        /// The chunk.
        chunk: ChunkId,
        /// The tag of the new version.
        tag: u64,
        /// The content.
        from: PutFrom,
        /// How long to wait.
        timeout: u64,
    },
    /// Tell me ([`Told`]) what is committed after a version. Answer: [`Answer::Subscribed`].
    Subscribe {
        /// The chunk.
        chunk: ChunkId,
        /// The number that the client gives the subscription.
        id: SubscriptionId,
        /// The number of the service of the client that takes what is told.
        inbox: u16,
        /// The last version that is known.
        after: Version,
        /// Which commits.
        policy: Policy,
        /// Whether the content is wanted, too.
        with_content: bool,
        /// The server that gets each version, too.
        prefetch: Option<ServerId>,
        /// Whether the client looks itself what the owner of the chunk commits.
        watches: bool,
    },
    /// Let me own this chunk, as soon as nobody has a guard: I write it again and again, and
    /// will commit what I write in this page. Answer: [`Answer::Owned`], [`Answer::NotOwned`].
    Own {
        /// The chunk.
        chunk: ChunkId,
        /// A segment of the client.
        segment: SegmentKey,
        /// Where the page is in it, in bytes.
        offset: u64,
        /// How long to wait.
        timeout: u64,
    },
    /// A note: I do not write a chunk any more that I was to stop owning.
    Disowned {
        /// The chunk.
        chunk: ChunkId,
    },
    /// A note: I have taken the events up to a version.
    Took {
        /// The chunk.
        chunk: ChunkId,
        /// The subscription.
        id: SubscriptionId,
        /// The version.
        version: Version,
    },
    /// A note: tell me nothing more.
    Unsubscribe {
        /// The chunk.
        chunk: ChunkId,
        /// The subscription.
        id: SubscriptionId,
    },
    /// How much have you done? Answer: [`Answer::Counted`].
    Count,
    /// What is known of that chunk, or of the most active ones, and who waits? Answer:
    /// [`Answer::Overview`].
    Overview {
        /// The chunk.
        chunk: Option<ChunkId>,
    },
    /// A note: I have given up waiting for the answer to a request; a guard that was given for it
    /// ends.
    Forget {
        /// The number of the request.
        ticket: Ticket,
    },
    /// A note: I end a guard without a commit, or give a draft up.
    Release {
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
    },
    /// Is a lock held under that token? Answer: [`Answer::Holds`].
    Holds {
        /// The token.
        token: Token,
    },
    /// I am that server of the topology. Answer: [`Answer::Welcome`].
    Hello {
        /// My place.
        server: ServerId,
        /// The digest of the topology.
        topology: u64,
    },
    /// A note of another server.
    Between(Between),
}

/// The servers that have each version of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Replicas {
    /// Their number, that of the home included: at least 2.
    pub count: u16,
    /// All servers, in the order in which they take their turns. The home is the first one, unless
    /// it is lost.
    pub order: Vec<ServerId>,
}

/// How a chunk is kept coherent between servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// A server has copies as it needs them, and a writer's server owns the chunk meanwhile. If
    /// writers of several servers alternate, they are served at the home.
    #[default]
    HomeMesi,
    /// As `HomeMesi`, but it is written at its home, and each version is pushed to the servers that
    /// have asked for it before.
    Update,
    /// It is written once. Copies are never given up because of a writer.
    Immutable,
    /// No server but the home has it: for chunks that are changed often, and read seldom.
    HomeOnly,
}

impl Request {
    /// Returns the chunk that is asked for, if its owner has to stop first.
    pub(crate) fn recalls(&self) -> Option<ChunkId> {
        match self {
            Request::Enroll { chunk, .. }
            | Request::Acquire { chunk, .. }
            | Request::Snapshot { chunk }
            | Request::Take { chunk, .. }
            | Request::Change { chunk, .. }
            | Request::Free { chunk }
            | Request::Put { chunk, .. }
            | Request::Own { chunk, .. }
            | Request::Subscribe { chunk, .. } => Some(*chunk),
            Request::Between(message) => message.recalls(),
            _ => None,
        }
    }
}

impl Protocol {
    /// Returns true if clients ask the home for guards to write.
    pub(crate) fn is_written_at_home(self) -> bool {
        self != Protocol::HomeMesi
    }
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The chunk is there.
    Opened {
        /// Its id.
        chunk: ChunkId,
        /// Its length in bytes.
        bytes: u64,
        /// The id that it had at its first home: the same for all processes, at all times.
        origin: ChunkId,
        /// Its last committed version.
        version: Version,
        /// How it is kept coherent.
        protocol: Protocol,
    },
    /// The home of the chunk is lost, and another server has taken it over.
    Moved {
        /// Its id from now on.
        chunk: ChunkId,
    },
    /// Where the server says whether clients may take read guards themselves, and of which version;
    /// `None` if they may not.
    Enrolled {
        /// The segment, and the offset of the word in bytes. While clients may, it has the number
        /// that came with their guards ([`Answer::Given`]); otherwise it is 0.
        word: Option<(SegmentKey, u64)>,
        /// If the server has the chunk from another home: the place of the time up to which its
        /// copies are valid, in nanoseconds of the monotonic clock of the node.
        lease: Option<(SegmentKey, u64)>,
    },
    /// A guard.
    Given {
        /// Its id.
        guard: GuardId,
        /// The last committed version.
        version: Version,
        /// Its tag.
        tag: u64,
        /// The number of that version by which clients take read guards themselves. It is not 0.
        number: u64,
        /// The content of that version.
        content: Content,
        /// For a write guard: the memory to write in place; `None`: the content is sent with the
        /// commit.
        buffer: Option<SegmentKey>,
    },
    /// The last committed version.
    Version {
        /// Its number.
        version: Version,
        /// Its tag.
        tag: u64,
        /// Its content.
        content: Content,
    },
    /// Memory to write a version in.
    Drafted {
        /// The number under which it is put.
        draft: GuardId,
        /// The memory; `None`: the content is sent with the put.
        buffer: Option<SegmentKey>,
    },
    /// The memory of a guard or a draft takes what is put by messages.
    Exposed,
    /// The commit is the last one.
    Committed {
        /// Its version.
        version: Version,
        /// For a put of a draft: the next draft, and its memory.
        draft: Option<(GuardId, SegmentKey)>,
    },
    /// The client owns the chunk, until the word of the chunk has another number.
    Owned {
        /// The number.
        number: u64,
        /// Those that have words in which they count their read guards of the chunk.
        readers: Vec<Reader>,
    },
    /// The client does not own the chunk.
    NotOwned,
    /// The subscription has begun.
    Subscribed,
    /// What the server has done.
    Counted(Counters),
    /// The chunks.
    Overview(Overview),
    /// The word has changed.
    Changed {
        /// The new version.
        version: Version,
        /// The word before.
        old: u64,
    },
    /// The chunk is removed.
    Freed,
    /// Chunks are removed.
    FreedSome {
        /// Whether there may be more: ask again.
        more: bool,
    },
    /// Whether it is.
    Holds(bool),
    /// The server is known here.
    Welcome,
    /// All are there: who they are, and what they have brought, in the order of their coming.
    Met(Vec<(Process, Vec<u8>)>),
    /// The request cannot be carried out.
    Failed(Fault),
}

/// A client that takes read guards of a chunk itself, as the owner of the chunk knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reader {
    /// The client.
    pub client: Process,
    /// The segment of the word in which it counts them.
    pub segment: SegmentKey,
    /// Where the word is in it, in bytes.
    pub offset: u64,
    /// The number of its service that takes events, if it watches the chunk.
    pub inbox: Option<u16>,
}

/// What the owner of a chunk has committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Commits {
    /// How many versions.
    pub count: u64,
    /// The tags of the last of them, the oldest first, and the times of the commits.
    pub last: Vec<(u64, u64)>,
    /// The draft that is the content of the last one, if the chunk is a long one.
    pub draft: Option<GuardId>,
}

/// Where the content of a version is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Content {
    /// Nothing was committed yet: zeros.
    Zeros,
    /// Here.
    Inline(Vec<u8>),
    /// In a segment that may be read.
    Segment(SegmentKey),
}

/// A change of a word at the home of its chunk. Returns the word before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Adds; wraps around. For `i64`, too.
    Add(u64),
    /// Adds to an `f64`.
    AddF64(f64),
    /// The smaller one, as `u64`.
    Min(u64),
    /// The larger one, as `u64`.
    Max(u64),
    /// Replaces it.
    Swap(u64),
    /// Replaces it if it is as expected.
    CompareSwap {
        /// What it has to be.
        expected: u64,
        /// What it is then.
        new: u64,
    },
}

impl Op {
    /// Returns the word that follows.
    pub(crate) fn apply(self, old: u64) -> u64 {
        match self {
            Op::Add(value) => old.wrapping_add(value),
            Op::AddF64(value) => (f64::from_bits(old) + value).to_bits(),
            Op::Min(value) => old.min(value),
            Op::Max(value) => old.max(value),
            Op::Swap(new) => new,
            Op::CompareSwap { expected, new } if old == expected => new,
            Op::CompareSwap { .. } => old,
        }
    }
}

/// A lock that is held: the fencing token of commits that require it
/// ([`WriteGuard::commit_under`](crate::WriteGuard::commit_under)). A lock that is given later has
/// a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token {
    pub(crate) guard: GuardId,
    pub(crate) lock: ChunkId,
}

/// What a server of chunks has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Messages that it has received.
    pub received: u64,
    /// Messages that it has sent, those of events among them.
    pub sent: u64,
    /// Messages that told subscribers of commits.
    pub told: u64,
    /// Guards that it has given.
    pub guards: u64,
    /// Commits, those of puts among them.
    pub commits: u64,
    /// How often it had to close a chunk that clients read without messages.
    pub closed: u64,
    /// Copies that it was granted by other servers.
    pub granted: u64,
    /// Copies that it had to give up, or to share, because another server asked for the chunk.
    pub recalled: u64,
    /// Copies that it has dropped because it needed their memory.
    pub evicted: u64,
}

impl Counters {
    /// Adds what another server has done.
    pub(crate) fn add(&mut self, other: &Counters) {
        let Counters {
            received,
            sent,
            told,
            guards,
            commits,
            closed,
            granted,
            recalled,
            evicted,
        } = other;
        self.received += received;
        self.sent += sent;
        self.told += told;
        self.guards += guards;
        self.commits += commits;
        self.closed += closed;
        self.granted += granted;
        self.recalled += recalled;
        self.evicted += evicted;
    }
}

/// Where the content of a put is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PutFrom {
    /// Here.
    Inline(Vec<u8>),
    /// In memory of the server: what was given for a [`Request::Draft`].
    Draft(GuardId),
}

/// Which commits a subscriber is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Policy {
    /// Each one, in order, once. One that is more than a thousand behind misses some, and is told
    /// how many ([`Error::Lagged`](crate::Error::Lagged)).
    Every,
    /// Each one, in order, once; nobody may write while the subscriber has that many left to take.
    Lossless {
        /// The number of events, from 1 to 1024; others count as the nearest of these. If events
        /// bring their versions, at most as many as have 512 MiB, and at least 1.
        high_water: u32,
    },
    /// The last one, whenever the subscriber has taken the one before.
    Latest,
}

/// What a server tells a subscriber, in a note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The subscription.
    pub id: SubscriptionId,
    /// The events, the oldest first.
    pub events: Vec<Event>,
    /// The number of events before them that the server no longer knows of.
    pub missed: u64,
    /// The content of the version of the last event. It stays until that event is taken.
    pub content: Option<Content>,
    /// Why there are no more events.
    pub ended: Option<Ended>,
    /// Whether no server has told it: the client has seen it itself.
    #[serde(skip)]
    pub is_seen: bool,
}

/// Why a server tells a subscriber nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ended {
    /// The chunk was removed.
    Freed,
    /// The process has let too many messages of the server wait. It may subscribe again.
    GivenUp,
}

/// A commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// The new version.
    pub version: Version,
    /// Its tag.
    pub tag: u64,
    /// The process that wrote it.
    pub writer: Process,
}

/// Why a request cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fault {
    /// No process has created a chunk of that name in time.
    NotFound,
    /// The chunk has another type or length.
    Differs {
        /// The type of its elements.
        kind: Kind,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A name that is empty or too long.
    BadName,
    /// The guard was revoked, or is not the client's.
    Fenced,
    /// The deadline has passed.
    Late {
        /// The processes that have guards, and what for.
        holders: Vec<(Process, Mode)>,
        /// The number of other requests that wait for one.
        before: u64,
        /// The subscribers that have as many events to take as they may.
        full: Vec<Process>,
    },
    /// The chunk was removed.
    Freed,
    /// A process that belongs to the meeting is lost.
    Broken {
        /// The process.
        lost: Process,
    },
    /// Not all have come in time.
    Missing {
        /// Those that had come.
        here: Vec<Process>,
        /// Those that had come before, and not this time.
        absent: Vec<Process>,
    },
    /// Others meet in another number.
    OtherCount {
        /// The number.
        count: u64,
    },
    /// It is written once, and was.
    Immutable,
    /// Writers are served at the home.
    AtHome,
    /// The server of the chunk is lost, and with it all versions. The last one that is known.
    Lost {
        /// The version; 0 if none is known.
        last: Version,
    },
    /// Another server is, or may become, the home of the chunk: ask there.
    Elsewhere {
        /// The server.
        server: ServerId,
    },
    /// There is no such chunk, or data of another length than the chunk.
    Malformed,
    /// A server of another topology, or another process, is known by that place.
    OtherTopology,
    /// The server has as many chunks as it can have, or the process has as many requests that wait.
    TooMany {
        /// The number.
        most: u64,
    },
    /// There is no memory for the content.
    NoMemory {
        /// The number of bytes.
        bytes: u64,
        /// What the memory said.
        why: String,
    },
}
