//! The messages between servers: between the home of a chunk and the servers that cache it.
//!
//! ```text
//!   a server that caches                     the home
//!   Ask ------------------------------------> directory: recalls other copies, queues
//!   <---------------------------------- Grant with the content
//!   <--------------------------------- Recall as much as another server needs
//!   Recalled -------------------------------> the next request is served
//!   Commit, with the content ---------------> the next version
//!   <--------- Committed, Fenced, or NoMemory
//!   Renew ----------------------------------> the copies of that server stay valid
//!   <-------------------------------- Renewed for a lease from when the request was sent
//! ```
//! A chunk may have replicas, which other servers keep for the time when its home is lost:
//!
//! ```text
//!   the home                                 a backup
//!   Replicate the next version, or all -----> has a copy of its own
//!   <------------------------------ Replicated: the version becomes visible when all have said so
//!   <------------------------------ Refused: it has no memory for it
//!   Dismiss: the chunk is freed, or refused -> Replicated
//!
//!   a backup, when the home is lost          a backup before it
//!   Turn: is it yours? ---------------------> if it has no replica:
//!   <----------------------------------- Pass
//!
//!   a server that is asked for a name        each other server
//!   Seek -----------------------------------> is it the home, or does it know the home?
//!   <---------------------------------- Found, or not
//! ```
//! They are notes, and those of two servers arrive in the order in which they were sent. When the
//! lease of a server is over, its copies of the chunks of that home are void, and another *term*
//! begins: [`Between::Void`]. What the home sends before it hears of that is ignored, except the
//! fate of a commit.

use super::message::{Kind, Protocol, Replicas};
use super::{Access, ChunkId, Content, Process, ServerId, Version};
use serde::{Deserialize, Serialize};

/// What a backup has to know of a chunk to become its home.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub kind: Kind,
    /// How it is kept coherent.
    pub protocol: Protocol,
    /// How many replicas it has.
    pub replicas: Replicas,
    /// The ids that it had at earlier homes, the oldest first.
    pub was: Vec<ChunkId>,
    /// The backups, in the order in which they take it over.
    pub backups: Vec<(ServerId, Process)>,
}

/// What a server says to another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Between {
    /// I want to have a chunk.
    Ask {
        /// The chunk.
        chunk: ChunkId,
        /// How.
        access: Access,
    },
    /// I have done what a recall told me.
    Recalled {
        /// The chunk.
        chunk: ChunkId,
        /// Whether I keep a copy for reading.
        keeps: bool,
    },
    /// My copies of your chunks are void, and so is all that you have sent me before you hear of
    /// it, except the fate of a commit.
    Void {
        /// How often that has happened.
        term: u64,
    },
    /// A client of mine has written the next version.
    Commit {
        /// The chunk.
        chunk: ChunkId,
        /// The epoch of my grant.
        epoch: u64,
        /// The tag of the version.
        tag: u64,
        /// The client.
        writer: Process,
        /// What was written. It stays where it is until the answer.
        content: Content,
    },
    /// Push no more versions of a chunk to me.
    Unfollow {
        /// The chunk.
        chunk: ChunkId,
    },
    /// You have the chunk now.
    Grant {
        /// The chunk.
        chunk: ChunkId,
        /// Its length in bytes.
        bytes: u64,
        /// How you have it.
        access: Access,
        /// The present version.
        version: Version,
        /// Its tag.
        tag: u64,
        /// What your commits must name.
        epoch: u64,
        /// The last term that you have told me.
        term: u64,
        /// The content. It stays where it is until you give the copy up.
        content: Content,
    },
    /// Give a copy up, or only to own the chunk.
    Recall {
        /// The chunk.
        chunk: ChunkId,
        /// What may be left to you.
        keeps: Option<Access>,
        /// The last term that you have told me.
        term: u64,
    },
    /// Your commit is this version.
    Committed {
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: Version,
    },
    /// Your commit came too late: nothing is committed.
    Fenced {
        /// The chunk.
        chunk: ChunkId,
    },
    /// There is no memory for your commit, or its content cannot be had: nothing is committed.
    NoMemory {
        /// The chunk.
        chunk: ChunkId,
        /// What the memory or the fabric said.
        why: String,
    },
    /// The chunk is written at its home only: let writers ask there.
    AtHome {
        /// The chunk.
        chunk: ChunkId,
    },
    /// There is no such chunk any more.
    Freed {
        /// The chunk.
        chunk: ChunkId,
    },
    /// This is the next version of my chunk, or the present one: keep it.
    Replicate {
        /// The chunk.
        chunk: ChunkId,
        /// What the chunk is, if you do not know it, or if that has changed.
        description: Option<Box<Description>>,
        /// Its length in bytes.
        bytes: u64,
        /// The version.
        version: Version,
        /// Its tag.
        tag: u64,
        /// The client that wrote it; `None` before the first commit.
        writer: Option<Process>,
        /// The content. It stays where it is until the answer.
        content: Content,
    },
    /// I have it, or have forgotten it.
    Replicated {
        /// The chunk.
        chunk: ChunkId,
    },
    /// I have no memory for this version of your chunk. I keep the older one until you dismiss me.
    Refused {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Forget my chunk: it is freed, or you have no memory for it.
    Dismiss {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The home of a chunk is lost. Is it your turn to take it over?
    Turn {
        /// The chunk.
        chunk: ChunkId,
        /// The ids that it had before.
        was: Vec<ChunkId>,
    },
    /// I have no version of it.
    Pass {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Is there a chunk with replicas that has this name?
    Seek {
        /// The name.
        name: String,
        /// How often it was asked before.
        round: u64,
    },
    /// There is one, or there is none as far as I know.
    Found {
        /// The name.
        name: String,
        /// As the question has it.
        round: u64,
        /// Its home, or the server that is to create it.
        at: Option<ServerId>,
    },
    /// My copies of your chunks are to stay valid.
    Renew {
        /// Milliseconds of my clock.
        at: u64,
    },
    /// They are, for a lease from then on.
    Renewed {
        /// The time that [`Between::Renew`] brought.
        at: u64,
    },
}

impl Between {
    /// Returns the chunk that the message is about.
    pub fn chunk(&self) -> Option<ChunkId> {
        match self {
            Between::Void { .. }
            | Between::Seek { .. }
            | Between::Found { .. }
            | Between::Renew { .. }
            | Between::Renewed { .. } => None,
            Between::Ask { chunk, .. }
            | Between::Recalled { chunk, .. }
            | Between::Commit { chunk, .. }
            | Between::Unfollow { chunk }
            | Between::Grant { chunk, .. }
            | Between::Recall { chunk, .. }
            | Between::Committed { chunk, .. }
            | Between::Fenced { chunk }
            | Between::NoMemory { chunk, .. }
            | Between::AtHome { chunk }
            | Between::Freed { chunk }
            | Between::Replicate { chunk, .. }
            | Between::Replicated { chunk }
            | Between::Refused { chunk }
            | Between::Dismiss { chunk }
            | Between::Turn { chunk, .. }
            | Between::Pass { chunk } => Some(*chunk),
        }
    }

    /// Returns the chunk that is asked for, if its owner has to stop first.
    pub(crate) fn recalls(&self) -> Option<ChunkId> {
        match self {
            Between::Ask { chunk, .. } => Some(*chunk),
            _ => None,
        }
    }

    /// Returns the content that comes with it, to be fetched before it is handled.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Between::Commit { content, .. }
            | Between::Grant { content, .. }
            | Between::Replicate { content, .. } => Some(content),
            _ => None,
        }
    }
}
