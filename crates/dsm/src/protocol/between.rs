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
//! They are notes, and those of two servers arrive in the order in which they were sent. When the
//! lease of a server is over, its copies of the chunks of that home are void, and another *term*
//! begins: [`Between::Void`]. What the home sends before it hears of that is ignored, except the
//! fate of a commit.

use super::{Access, ChunkId, Content, Process, Version};
use serde::{Deserialize, Serialize};

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
            Between::Void { .. } | Between::Renew { .. } | Between::Renewed { .. } => None,
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
            | Between::Freed { chunk } => Some(*chunk),
        }
    }

    /// Returns the content that comes with it, to be fetched before it is handled.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Between::Commit { content, .. } | Between::Grant { content, .. } => Some(content),
            _ => None,
        }
    }
}
