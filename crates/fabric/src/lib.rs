//! Floor 2: peers, segments, messages, one-sided operations, progress, membership, and the agent.
//!
//! # Core objects
//! * [`Fabric`]: this process among its peers, as a handle: clones share it, and what it makes
//!   (segments, operations, views) keeps it. Any thread may use it. Whoever waits makes progress;
//!   there is no hidden thread.
//! * Messages: [`Fabric::send`], [`Fabric::recv`], their non-blocking forms in a [`Scope`]
//!   (borrowed buffers) or owned, [`Fabric::recv_view`] (no copy at all), [`Fabric::probe`],
//!   cancel.
//! * Active messages: [`Fabric::on`], [`Fabric::tell`], [`Fabric::request`]. Requests that are
//!   answered later: [`rpc`].
//! * One-sided: [`Segment`] (mine), [`Remote`] (somebody's): put, get, atomics.
//! * [`agent::run`]: the process that owns a node's shared memory and watches its peers. What it
//!   hosts beside that is a [`agent::Service`].
//!
//! # Files
//! `fabric` (join, peers) · `roster` (the units of a job) · `barrier` · `layer` ·
//! `waiting/` (the one wait loop), `backoff`, `watch` (words that others store into) ·
//! `message`, `scope`, `handle`, `view`, `direct` · `rpc/` (requests, responses, services) ·
//! `segment`, `remote`, `far`, `phased`, `atomic` (one-sided) · `peer`, `key`, `config`, `error` ·
//! `engine/` (takes frames, moves operations on) · `proto/` (one protocol per file) ·
//! `matching` (tags, pure) · `ops` (operations in flight) · `wire` (what frames say) ·
//! `transport/{shm, sim}` · `node/` (the shared memory of one node, joining, `node/agent/`) ·
//! `membership/` (many nodes: pure) · `testing` (for tests of hostile peers)
//!
//! # Rules
//! * No `unsafe`: what touches shared bytes is in `samite_mem`.
//! * Who lives, and in which life, is read from memory that the agent alone can write.
//! * What a peer says is read once and checked; nonsense ends the connection with that peer only.
//! * Every wait has a deadline and names whom it waits for.
//! * A lost peer ends every operation that depends on it with [`Error::PeerLost`], in order, once.
//!
//! ```
//! use samite_fabric::{Config, Fabric, Identity, Match};
//! let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! fabric.send(fabric.me(), 7, b"to myself")?;
//! let mut buffer = [0; 16];
//! let status = fabric.recv(Match::any(7), &mut buffer)?;
//! assert_eq!(&buffer[..status.len as usize], b"to myself");
//! # Ok::<(), samite_fabric::Error>(())
//! ```

#![forbid(unsafe_code)]

mod atomic;
mod backoff;
mod barrier;
mod config;
mod direct;
mod engine;
mod error;
mod fabric;
mod far;
mod handle;
mod key;
mod layer;
mod matching;
mod membership;
mod message;
mod node;
mod ops;
mod peer;
mod phased;
mod proto;
mod remote;
mod roster;
pub mod rpc;
mod scope;
mod segment;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
mod view;
mod waiting;
mod watch;
mod wire;

pub use atomic::{Atomic, Width};
pub use backoff::Waited;
pub use config::{Config, Mask, Ptracer};
pub use error::{Error, Whom};
pub use fabric::Fabric;
pub use handle::{Handle, Outcome, Received, Scoped, Sent, test_all, wait_all};
pub use key::SegmentKey;
pub use layer::Layer;
pub use matching::{Match, Matcher};
pub use node::{Slot, agent};
pub use ops::Status;
pub use peer::{Identity, PeerId, PeerInfo};
pub use phased::{Borrowed, Growing, Owned, Phased};
pub use proto::batch::WordUpdate;
pub use proto::cost::{Choice, CostModel, Rate};
pub use proto::rma_over_am::Served;
pub use remote::Remote;
pub use samite_mem::ErrorCode;
pub use scope::Scope;
pub use segment::{Reserved, Segment};
pub use view::View;
pub use watch::Bell;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
