//! One node: the memory that its processes share, its members, and the agent that manages both.
//!
//! Everything here except `others` deals in slots, the numbers of the processes on this node, and
//! knows nothing of other nodes. A [`PeerId`] in an argument or a result is that of a slot of this
//! node.
//!
//! # Files
//! `layout` (of shared memory) · `table` (which processes are alive, as the agent publishes it) ·
//! `others`, `remote_table` (the units of other nodes) · `join` (becoming a member) · `simulated`
//! (members that are threads) · `wait` (what is published of a wait) · `agent/`

pub mod agent;
mod join;
mod layout;
mod others;
mod remote_table;
mod simulated;
mod table;
mod wait;

pub(crate) use crate::peer::Slot;
pub(crate) use agent::Far;
#[cfg(test)]
pub(crate) use join::PrivateExtents;
pub(crate) use join::{AgentWatch, Joined, NodeMember, join_domain, start_alone};
pub(crate) use layout::{
    ClaimWord, EXTENTS, Entry, Layout, SEGMENTS_MAX, own_cpus, segment_id, segment_of,
};
pub(crate) use others::Others;
pub(crate) use remote_table::{RemoteTable, RemoteTableWriter, SAID_MAX};
pub(crate) use simulated::SimulatedNode;
pub(crate) use table::{Cpus, PeerTable, PeerTableWriter, State};
pub(crate) use wait::{IDLE, TEXT_MAX, WaitRecord};
