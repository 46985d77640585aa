//! What a server says of its chunks, for people.

use super::{ChunkId, Process, Version};
use serde::{Deserialize, Serialize};

/// The most chunks, and the most waits, of an answer.
pub const MOST_FIGURES: usize = 64;

/// The most processes that are named for a chunk or a wait.
pub(super) const MOST_NAMED: usize = 8;

/// How often what happened to a chunk since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Guards that its server has given.
    pub guards: u64,
    /// Commits.
    pub commits: u64,
    /// How often it had to be closed, because clients could read it without messages and somebody
    /// wanted to write: each of them asks again.
    pub closed: u64,
}

/// A chunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Its id.
    pub chunk: ChunkId,
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its last version, and the tag of that.
    pub version: Version,
    /// The tag.
    pub tag: u64,
    /// The server that stores it.
    pub home: Process,
    /// The server that alone has it, and may let clients write.
    pub owner: Option<Process>,
    /// The number of servers that may have a copy.
    pub sharers: u64,
    /// The client that has a write guard.
    pub writer: Option<Process>,
    /// The number of clients that have read guards.
    pub reading: u64,
    /// The first of these clients.
    pub readers: Vec<Process>,
    /// The number of requests that wait for a guard.
    pub queue: u64,
    /// The number of subscriptions.
    pub subscriptions: u64,
    /// The clients of the first of them.
    pub subscribers: Vec<Process>,
    /// The first subscribers that let writers wait.
    pub full: Vec<Process>,
    /// The client that wrote the last version.
    pub last_writer: Option<Process>,
    /// What happened to it.
    pub activity: Activity,
}

/// A client that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The client.
    pub process: Process,
    /// What it waits for: words that go before a name.
    pub what: String,
    /// The chunk, if it is one.
    pub chunk: Option<ChunkId>,
    /// The name of the chunk, or of the meeting; empty if the server does not know it.
    pub name: String,
    /// The first of the processes that it waits for.
    pub on: Vec<Process>,
}

/// The most active chunks of a server, and who waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Chunks that somebody waits for, and then the most active ones.
    pub chunks: Vec<Figures>,
    /// The requests that wait.
    pub waits: Vec<Waits>,
    /// The number of chunks that are left out.
    pub more: u64,
    /// The number of waits that are left out.
    pub more_waits: u64,
    /// The other servers that it knows.
    pub servers: Vec<Process>,
}

impl Overview {
    /// Adds what another server says. It may not know the names of chunks of other homes.
    pub(crate) fn add(&mut self, other: Overview) {
        self.chunks.extend(other.chunks);
        self.waits.extend(other.waits);
        self.more += other.more;
        self.more_waits += other.more_waits;
        self.servers.extend(other.servers);
        for wait in self.waits.iter_mut().filter(|wait| wait.name.is_empty()) {
            let mut chunks = self.chunks.iter();
            if let Some(found) = chunks.find(|chunk| Some(chunk.chunk) == wait.chunk) {
                wait.name.clone_from(&found.name);
            }
        }
    }
}
