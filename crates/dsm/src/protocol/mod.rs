//! The pure state machines of a chunk.

mod between;
mod cache;
mod directory;
mod ids;
mod meetings;
mod message;
mod overview;
mod server;
mod subscribers;
#[cfg(test)]
mod tests;

pub use between::{Between, Description};
pub use cache::{Cache, CacheAction, CacheEvent, Mode, State};
pub use directory::{Access, Directory, DirectoryAction, DirectoryEvent};
pub use ids::{ChunkId, GuardId, Process, ServerId, SubscriptionId, Ticket, Version};
pub use message::{
    Answer, Commits, Content, Counters, Ended, Event, Fault, INLINE, Kind, LONGEST_NAME, Message,
    Op, Policy, Protocol, PutFrom, Reader, Replicas, Request, Token, Told,
};
pub use overview::{Activity, Figures, MOST_FIGURES, Overview, Waits};
pub use server::{Server, ServerAction, ServerEvent, Written};
pub(crate) use subscribers::most_contents;
pub use subscribers::{Subscriber, Subscribers, Telling};
