//! Floor 2: peers, segments, messages, one-sided operations, progress, membership, and the agent.
//!
//! # Core objects
//! * [`Fabric`]: the handle of this process. Clones share it, and everything that it creates
//!   (segments, operations, views) keeps it alive. Any thread may use it. A waiting thread makes
//!   progress; there is no hidden thread.
//! * Messages: [`Fabric::send`], [`Fabric::recv`], their non-blocking forms, in a [`Scope`]
//!   (borrowed buffers) or owned, [`Fabric::recv_view`] (no copy), [`Fabric::probe`], cancellation.
//! * Active messages: [`Fabric::on`], [`Fabric::tell`], [`Fabric::request`]. Requests that are
//!   answered later: [`rpc`]. Frames for a layer that works on them without a lock: [`upcall`].
//! * One-sided: [`Segment`] (owned by this process), [`Remote`] (owned by a peer): put, get,
//!   atomics.
//! * [`agent::run`]: the process that owns a node's shared memory and watches its peers. It also
//!   hosts services ([`agent::Service`]).
//!
//! # Files
//! `fabric` (join, peers) · `roster` (the units of a job) · `barrier` · `layer` · `waiting/` (the
//! one wait loop), `backoff`, `waited`, `interrupt`, `watch` (words that others store to) ·
//! `message`, `scope`, `handle`, `view`, `direct` · `upcall` · `rpc/` (requests, responses,
//! services) · `route` (how a peer is reached), `access_path` (how a segment is) · `segment`,
//! `remote`, `far`, `phased`, `atomic` (one-sided) · `peer`, `key`, `config`, `error`, `named` ·
//! `engine/` (receives frames, advances operations) · `proto/` (one protocol per file) · `matching`
//! (tags, pure) · `ops` (operations in flight) · `wire` (contents of frames) · `transport/{ordered,
//! rma, shm, sim}` · `node/` (the shared memory of one node, joining, `node/agent/`) ·
//! `membership/` (many nodes: pure) · `testing` (for tests with hostile peers)
//!
//! Arrows of imports point from calls to the engine, from the engine to the transports, and from
//! these to `node/`. Two sets of files import each other. The engine and its protocols: these are
//! methods of `Engine`, which holds the state of each, and of the routes. And the handle with what
//! every call needs: waiting (`waiting`, `watch`) and the layers (`layer`, `barrier`). Besides, a
//! segment is a phased one that cannot turn (`segment`, `phased`), and the files of `transport/sim`
//! are one network.
//!
//! # Rules
//! * No `unsafe`: all access to shared bytes is in `samite_mem`.
//! * The state and incarnation of every peer are read from memory that only the agent can write.
//! * Data from a peer is read once and checked. Invalid data ends only the connection with that
//!   peer.
//! * Every wait has a deadline and names the peer that it waits for.
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

mod access_path;
mod atomic;
mod backoff;
mod barrier;
mod config;
mod deadline;
mod direct;
mod engine;
mod error;
mod fabric;
mod far;
mod handle;
mod interrupt;
mod key;
mod layer;
mod matching;
mod membership;
mod message;
mod named;
mod node;
mod ops;
mod peer;
mod phased;
mod proto;
mod remote;
mod roster;
mod route;
pub mod rpc;
mod scope;
mod segment;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
pub mod upcall;
mod view;
mod waited;
mod waiting;
mod watch;
mod wire;

pub use atomic::{Atomic, Width};
pub use config::{Config, Link, Mask, Ptracer};
pub use error::{Error, Expected, Whom};
pub use fabric::Fabric;
pub use handle::{Handle, Outcome, Received, Scoped, Sent, test_all, wait_all};
pub use key::SegmentKey;
pub use layer::Layer;
pub use matching::{Match, Matcher};
pub use named::Named;
pub use node::agent;
pub use ops::Status;
pub use peer::{Identity, PeerId, PeerInfo, Slot, UnitLife};
pub use phased::{Borrowed, Growing, Owned, Phased, Published};
pub use proto::batch::WordUpdate;
pub use proto::cost::{Choice, CostModel, Rate};
pub use proto::rma_over_am::Served;
pub use remote::Remote;
pub use samite_mem::ErrorCode;
pub use scope::Scope;
pub use segment::{Reserved, Segment};
pub use transport::ucx::has_ucx;
pub use view::View;
pub use waited::Waited;
pub use waiting::{Awaited, PeerWait};
pub use watch::Bell;

/// Result of the operations of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
