//! The messages between writers, readers, block stores and the coordinator, and the pure state
//! machines that decide.
//!
//! ```text
//!   writer rank                    coordinator                     block store                    reader rank
//!     OpenWriter ---------------->
//!     <----- Answer::Writing {writer, next, block stores}                                       OpenReader
//!                                  Answer::Reading {reader} ----------------------------------->
//!     Begin {step, wants} ------->   (back-pressure, budget)                                Next, At
//!                                  Order::Allocate ----------->
//!                                  <---------- Report::Allocated {buffer, handle}
//!     <----- Answer::Begun {buffers}
//!     (puts into the buffers)
//!   Reserve {wants} ----------->   ... more buffers, any number of times
//!     Commit {part} ------------->
//!     <----- Answer::Committed     Order::Seal --------------->  turns the buffers to reading
//!                                  <---------- Report::Sealed
//!          all ranks have committed, all buffers are sealed: the step is complete
//!                                  Answer::Step {record} -------------------------------------->
//!                                                                <------- views, or gets bytes of the buffers
//!                                  <-------------------------------------------------------- Release
//!                                Order::Free ---------------->  when no reader can get the step any more
//! ```
//!
//! # For the code that runs the machines
//! * [`Coordinator`] is everything: feed it [`Event`]s, carry out its [`Action`]s in order, and
//!   call it with [`Event::Tick`] no later than [`Coordinator::wake_at`]. Times are milliseconds of
//!   any monotonic clock.
//! * Messages between a pair of peers arrive in the order in which they were sent (FIFO per pair),
//!   except that a long one, whose bytes the receiver fetches, may arrive after short ones that
//!   were sent later. So the sender of a long one (a commit with its layout) sends nothing more
//!   about its step before the answer. If the sender gives up after a time-out, the late message is
//!   refused or ignored, because the buffers that it names are freed by then. Between pairs there
//!   is no order.
//! * A [`Peer`] is one process, and never another one: [`Event::Lost`] comes after its last
//!   message.
//! * Every request with a [`Ticket`] is answered exactly once, at its deadline at the latest
//!   (`timeout`, counted from its arrival at the coordinator), unless the requester dies. Answers
//!   to one requester may be in another order than its requests.
//! * A deadline ends a wait for a process that does not answer, died or never joined. If a request
//!   for a step (`Begin`, `Next`, `At`) or for memory (`Begin`, `Reserve`) waits only for living
//!   writers or readers at its deadline, the answer is [`Answer::Waiting`]. The same holds for a
//!   block store that has made progress with one of its buffers since the request came
//!   ([`Report::Working`]): allocating large memory or writing it to disk takes time. It also holds
//!   for a second after memory was granted, or after the last rank has committed: the block store
//!   that allocates or seals has not caused the delay. A request for memory keeps its place, and
//!   the buffers that are being allocated, for the same request when it comes again.
//! * A block store carries out its orders in the order in which they arrive. After `Free` it
//!   forgets the buffer; if readers still have it mapped it may wait for them, but the coordinator
//!   frees only buffers that no reader holds.
//!
//! # Files
//! * `ids`, `interest`: the ids of peers, streams, buffers, and boxes. `settings`:
//!   [`StreamConfig`], [`Reader`]. `message`: [`Request`], [`Answer`], [`Order`], [`Report`] and
//!   their contents.
//! * `layout`: [`Layout`] of a rank's part, its hash, and the packing rule.
//! * `decode`: how much memory a message may use. `fault`: [`Fault`], every error that the
//!   coordinator can answer.
//! * `queue`: which steps a reader group gets. `admission`: grants of memory. `ledger`: how much of
//!   the coordinator's own memory each peer uses. `watch`: subscriptions. `stream/`: one stream.
//!   `coordinator`: all of them; `opening`: requests that wait to open one; `deadlines`: what is
//!   known about all waits.
//! * `figures`: the state of everything, for display. `history`: what was opened so far.

pub mod admission;
mod coordinator;
mod deadlines;
mod decode;
mod fault;
mod figures;
mod history;
mod ids;
mod interest;
mod layout;
mod ledger;
mod message;
mod opening;
pub mod queue;
mod settings;
pub mod stream;
mod watch;

pub use coordinator::{Action, Coordinator, Event};
pub(crate) use decode::few;
pub use decode::{decode, decode_request};
pub use fault::{EndOfStream, Failure, Fault, Names, Room};
pub(crate) use fault::{instead, unit};
pub use figures::{BlockStoreFigures, Figures, GroupFigures, StreamFigures, Wait};
pub use history::History;
pub use ids::{
    BufferAt, BufferId, Handle, Peer, ReaderId, Slot, StreamId, Ticket, Want, WatchId, WriterId,
};
pub use interest::{Interest, News, Written};
pub(crate) use layout::check_disjoint;
pub use layout::{ALIGN, Attribute, Block, Layout, LayoutHash, Packing, Variable};
pub use message::{
    Answer, BlockOffsets, BlockStoreInfo, Lack, LayoutRef, Layouts, Notice, Order, Part,
    PartRecord, Report, Request, StepRecord,
};
pub use settings::{
    Expected, LONGEST_LEASE, Limits, Policy, Reader, Retain, Start, StreamConfig, Unread,
};
pub use watch::MOST_NEWS;

/// Number of a step of a stream, starting at 0.
pub type Step = u64;

/// Maximum bytes of a message: the limit of an active message of the fabric.
pub(crate) const LONGEST: usize = 64 << 20;

/// Encodes a message for sending.
pub fn encode<T: serde::Serialize>(message: &T) -> Vec<u8> {
    // Plain data with known lengths: writing it to memory cannot fail.
    postcard::to_stdvec(message).expect("a message of plain data is encodable")
}

/// Returns the bytes that `part` adds to an encoded message.
fn encoded_bytes<T: serde::Serialize>(part: &T) -> u64 {
    let counter = postcard::ser_flavors::Size::default();
    postcard::serialize_with_flavor(part, counter).map_or(u64::MAX, |bytes| bytes as u64)
}
