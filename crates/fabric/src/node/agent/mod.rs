//! The agent: the one Samite process per node and domain.
//!
//! It owns the arena (so that the bytes of a dead process outlive it), admits processes, grants
//! extents against the budget, and watches every process by its pidfd: a death is published in the
//! table of peers, and every sleeper woken, as soon as the kernel reports it. No timer is involved.
//!
//! It is its node's single point of failure: when it dies, running units keep their memory and
//! their messages, but nobody can join, no extent is granted and no death is detected any more.
//! Units notice that ([`crate::Error::AgentLost`]) and `samite run` ends the job.
//!
//! # Files
//! `control` (requests, answers, socket) · `client` (how a process asks) · `extents` (how it asks
//! for memory) · `book` (extents and budget, pure) · `jobs` (which units have joined, pure) ·
//! `slots` (which process has which number, pure) · `node` (the agent's state of a node) · `server`
//! (the loop) · `listener` (a socket that it accepts from) · `nodes` (the agents of other nodes) ·
//! `service` (the services that it hosts)

mod book;
pub(crate) mod client;
pub(crate) mod control;
mod extents;
#[cfg(test)]
mod hostile;
mod jobs;
mod listener;
mod node;
mod nodes;
mod server;
mod service;
mod slots;

pub(crate) use book::Book;
pub(crate) use client::Memory;
pub(crate) use client::Seat;
pub use client::{facts, join_retrying, unit_ended};
pub use control::{DomainFacts, domains};
pub(crate) use extents::AgentExtents;
pub(crate) use jobs::{Roster, Wanted};
pub use node::Node;
pub(crate) use nodes::Far;
pub use nodes::{FarTransport, Network, NodeFacts, Secret};
pub use server::{AgentConfig, run};
pub(crate) use service::is_agent;
pub use service::{
    Host, Lost, Owned, Service, ServiceFacts, Starter, find_head, find_host, host, identity,
    is_host, is_on_head, services,
};
pub(crate) use slots::Life;
