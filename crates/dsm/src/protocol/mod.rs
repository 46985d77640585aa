//! The pure state machines of a chunk.

mod cache;
mod directory;
mod ids;
mod message;
mod server;
#[cfg(test)]
mod tests;

pub use cache::{Cache, CacheAction, CacheEvent, Mode, State};
pub use directory::{Access, Directory, DirectoryAction, DirectoryEvent};
pub use ids::{ChunkId, GuardId, Process, Ticket, Version};
pub use message::{Answer, Content, Event, Fault, INLINE, Kind, LONGEST_NAME, Request};
pub use server::{Server, ServerAction, ServerEvent};
