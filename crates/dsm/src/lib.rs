//! Coherent memory: named chunks that several processes read and write.
//!
//! A *chunk* is an array of fixed length with a name. A process gets at it through a *guard*: many
//! may read at the same time, one may write, alone. What a writer has written is published as a
//! whole, as the next *version*, by its commit; a writer that panics, gives up or dies leaves
//! the old version. *Subscribers* are told of each commit.
//!
//! ```
//! use samite_dsm::{Dsm, Policy, Version};
//! use samite_fabric::{Config, Fabric, Identity};
//! let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! let dsm = Dsm::join(&fabric)?;
//! let frame = dsm.alloc::<f64>("frame", 1_000_000)?; // in any other process: dsm.lookup("frame")
//! let mut changes = frame.subscribe(Policy::Every, Version::default())?;
//!
//! let mut guard = frame.write()?; // shared memory: nothing is copied
//! guard.fill(1.5);
//! guard.commit(7)?; // under a tag of your choice
//!
//! let event = changes.next_event()?;
//! assert_eq!((event.version, event.tag), (Version(1), 7));
//! let frame = frame.read()?; // nobody writes as long as this guard exists
//! assert_eq!(frame[999_999], 1.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Several servers may share the work, and keep replicas of chunks: see [`Topology`].
//!
//! # Core objects
//! * [`Dsm`]: the chunks of a domain. [`Chunk`]: one of them.
//! * [`ReadGuard`], [`WriteGuard`], [`Draft`], [`Snapshot`]: its content. Where the memory of the
//!   server is mapped, they are views of it: nothing is copied.
//! * [`ChunkedVec`]: an array over many chunks.
//! * [`Subscription`]: its commits, to wait for; [`Handlers`] and [`EventStream`]: to be called,
//!   and to await. [`LockGuard`]: a lock; [`Dsm::barrier`] and [`Dsm::rendezvous`] let processes
//!   wait for each other.
//! * [`protocol`]: the messages, and the pure state machines.
//! * [`service`]: the server, which the agent of the domain hosts.
//! * [`log`]: what happens, as records in files. [`history`]: whether that may happen.
//!
//! # Files
//! `dsm` (how a process joins) · `chunk` · `guard` · `meeting` (locks, barriers) · `subscription`
//! · `handlers` and `stream` (other forms of it) · `vector/` (arrays over many chunks) · `client`
//! (requests) · `published` (versions in shared memory) · `owner` and `page` (versions of a
//! process that owns the chunk) · `places` (of shared memory) · `successor` (chunks whose home is
//! lost) · `topology` (which servers there are) · `service/` (a server) · `protocol/{ids, message,
//! between, directory, cache, subscribers, meetings, server}` · `log/` · `history/` (its checker)
//! · `error`
//!
//! Files import each other only where one type spans several: a chunk makes guards and
//! subscriptions, which refer to it (`chunk`, `guard`, `subscription`).
//!
//! # Rules
//! * Nothing in `protocol` does IO or reads a clock. The same code runs in the model checker
//!   (`protocol/tests`) and in production.
//! * Data from another process are checked before use; invalid data are a typed error, never a
//!   panic.
#![forbid(unsafe_code)]

mod chunk;
mod client;
mod clock;
mod dsm;
mod error;
mod guard;
mod handlers;
pub mod history;
pub mod log;
mod meeting;
mod owner;
mod page;
mod places;
pub mod protocol;
mod published;
pub mod service;
mod stream;
mod subscription;
mod successor;
mod topology;
mod vector;

pub use chunk::{Chunk, Elem, HomeGuard};
pub use dsm::Dsm;
pub use error::{Error, Result};
pub use guard::{Draft, Guard, ReadGuard, Snapshot, WriteGuard};
pub use handlers::Handlers;
pub use meeting::LockGuard;
pub use protocol::{Counters, Event, Mode, Op, Policy, Process, Protocol, Token, Version};
pub use stream::{EventStream, VersionStream};
pub use subscription::{Carry, Subscription};
pub use topology::Topology;
pub use vector::{ChunkedVec, VecGuard, VecRead, VecSnapshot, VecWrite};
