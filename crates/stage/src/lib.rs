//! Staged variables: programs exchange data in memory, step by step.
//!
//! A *writer program* of M ranks puts blocks of global N-d arrays into numbered steps of a
//! *stream*; any number of *reader programs* take the steps, each at its own speed, and read any
//! box of any variable. The data are kept in the memory of *block stores* (the agent of the node,
//! or dedicated units), so a committed step outlives its writer.
//!
//! # Core objects
//! * [`Region`]: a half-open N-d box of `u64`, row-major; [`space`] cuts, copies and checks boxes.
//! * [`Dtype`] and [`Element`]: the numbers that an array may hold.
//! * [`index`]: which blocks of a step touch a box, in at most 96 bytes per block.
//! * [`placement`]: which block store has which block, independent of the geometry of the array.
//! * [`protocol`]: the messages between writers, readers, block stores and the coordinator, and the
//!   pure state machines: [`protocol::Coordinator`], [`protocol::stream`], [`protocol::admission`],
//!   [`protocol::queue`].
//!
//! # Files
//! `stage` (how a process joins) · `writer`, `put`, `slots`, `staged`, `last` (the last step, read
//! in place while the next is written) · `reader`, `step`, `step_buffers`, `located`
//! (where a box lies), `contents` · `watch` · `client` (requests, by [`samite_fabric::rpc`]) ·
//! `service/` (their servers) · `method/` (where blocks go) · `file/` · `array` · `element` ·
//! `process` (identifies a life of a process) · `space/{region, copy, grid, cover}` · `index/{grid,
//! tree}` · `placement/{mod, figures}` · `protocol/{ids, interest, message, layout, fault, figures,
//! queue, admission, watch, opening, coordinator, stream/*}`
//!
//! Files import each other only where one type spans several files: a writer and its step (`put`),
//! a reader, its steps and those of files (`reader`, `step`, `method/files`), an archive and its
//! steps (`file/{archive, stored}`), the block store, the coordinator (`opening`), and a stream:
//! its steps and their check (`stream/{store, check}`), and the subscriptions whose boxes it
//! matches (`watch`, `stream/matching`). `graph/operator` looks up the operators of `graph/builtin`
//! by name, and these implement its trait.
//!
//! # Rules
//! * Nothing in `protocol` does IO or reads a clock: events with their times come in, and actions
//!   go out. The same code runs in the seeded simulator (`tests/suite/simulated`) and in
//!   production.
//! * Sizes are `u64`, and every product of sizes is checked.
//! * Everything may be used from any thread. A stage is shared. A stream is written or read through
//!   `&mut`, by one thread at a time, and can be moved between threads. No lock is held while a
//!   process waits, except for the service of a domain of one process.
//! * The coordinator takes a process for one thread until a second thread makes a request of the
//!   same stage. Until then, the wait of one may end as part of a circle
//!   ([`protocol::Fault::Circle`]) that the other could break; it may be repeated. So share one
//!   stage among threads, and open each stream in the thread that uses it.
//! * Data from another process are checked before use; invalid data are a typed error, never a
//!   panic.

#![forbid(unsafe_code)]
#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

mod array;
mod client;
mod clock;
mod contents;
mod element;
mod error;
pub mod file;
pub mod index;
mod last;
mod located;
pub mod method;
pub mod placement;
mod process;
pub mod protocol;
mod put;
mod reader;
pub mod service;
mod slots;
pub mod space;
mod stage;
mod staged;
mod step;
mod step_buffers;
mod watch;
mod writer;

pub use array::{Selection, Shape};
pub use contents::Variable;
pub use element::{Dtype, Element};
pub use error::Error;
pub use last::LastStep;
pub use located::{Located, Place};
pub use method::graph::{Operator, Share};
pub use method::{Configuration, Method, Settings};
pub use protocol::{
    Attribute, EndOfStream, Failure, Fault, Limits, News, Policy, Start, Step, Written,
};
pub use put::StepWriter;
pub use reader::Reader;
pub use space::{Region, SpaceError};
pub use stage::{Overview, Reading, Stage, Writing};
pub use step::StepReader;
pub use watch::{Watch, Watching};
pub use writer::Writer;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
