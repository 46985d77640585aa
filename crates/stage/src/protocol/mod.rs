//! What writers, readers, block stores and the coordinator say to each other, and the pure machines
//! that decide.
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
//!     Reserve {wants} ----------->   ... more buffers, as often as it likes
//!     Commit {part} ------------->
//!     <----- Answer::Committed     Order::Seal --------------->  turns the buffers to reading
//!                                  <---------- Report::Sealed
//!            all ranks have committed, all buffers are sealed: the step is there
//!                                  Answer::Step {record} -------------------------------------->
//!                                                                <------- views, or gets bytes of the buffers
//!                                  <-------------------------------------------------------- Release
//!                                  Order::Free ---------------->  when nobody can get the step any more
//! ```
//!
//! # For who runs the machines
//! * [`Coordinator`] is everything: feed it [`Event`]s, carry out its [`Action`]s in order, and
//!   call it with [`Event::Tick`] no later than [`Coordinator::wake_at`]. Times are milliseconds of
//!   any clock that never goes back.
//! * Messages between one pair of peers arrive in the order in which they were sent (FIFO per
//!   pair), except that a long one, whose bytes the receiver fetches, may come after short ones
//!   that were sent later. So whoever sends a long one (a commit with its layout) says nothing more
//!   about its step before it is answered. After a time-out that is given up, it is refused or
//!   ignored by the names in it, of buffers that are freed by then. Between pairs there is no
//!   order.
//! * A [`Peer`] is one process, and never another one: [`Event::Lost`] comes after the last message
//!   of it.
//! * Every request with a [`Ticket`] is answered exactly once, at its deadline at the latest
//!   (`timeout`, counted from when the coordinator hears of it), unless the asker dies. Answers to
//!   one asker may come in another order than its questions.
//! * A deadline ends a wait for somebody who does not answer, died or never came. At the deadline
//!   of a question for a step (`Begin`, `Next`, `At`), or for memory (`Begin`, `Reserve`), that
//!   waits for living writers or readers alone the answer is [`Answer::Waiting`]. So it is for a
//!   block store that has got on with one of its buffers since the question came
//!   ([`Report::Working`]): one that makes large memory, or writes it to disk, takes its time. The
//!   buffers that it is making stay for the same question when it comes again.
//! * A block store obeys its orders in the order in which they come. After `Free` it forgets the
//!   buffer; if readers still have it mapped it may wait for them, but the coordinator frees only
//!   what nobody holds.
//!
//! # Files
//! * `ids`, `interest`: the names of peers, streams, buffers, boxes. `settings`: [`StreamConfig`],
//!   [`Reader`]. `message`: [`Request`], [`Answer`], [`Order`], [`Report`] and what is in them.
//! * `layout`: [`Layout`] of a rank's part, its name, and the packing rule.
//! * `fault`: [`Fault`], every error that the coordinator can answer.
//! * `queue`: which steps a reader group gets. `admission`: who gets memory. `ledger`: who takes
//!   how much of the coordinator's own. `watch`: subscriptions. `stream/`: one stream.
//!   `coordinator`: all of them; `opening`: who waits to open one; `deadlines`: what is known of
//!   all who wait.
//! * `figures`: how everything stands, for a person.

pub mod admission;
mod coordinator;
mod deadlines;
mod fault;
mod figures;
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
pub use fault::{EndOfStream, Failure, Fault};
pub use figures::{BlockStoreFigures, Figures, GroupFigures, StreamFigures, Wait};
pub use ids::{
    BufferAt, BufferId, Handle, Peer, ReaderId, Slot, StreamId, Ticket, Want, WatchId, WriterId,
};
pub use interest::{Interest, News, Written};
pub use layout::{ALIGN, Attribute, Block, Layout, LayoutHash, Packing, Variable};
pub use message::{
    Answer, BlockOffsets, BlockStoreInfo, Lack, LayoutRef, Layouts, Notice, Order, Part,
    PartRecord, Report, Request, StepRecord,
};
pub use settings::{
    Expected, LONGEST_LEASE, Limits, Policy, Reader, Retain, Start, StreamConfig, Unread,
};
pub use watch::MOST_NEWS;

/// Number of a step of a stream, from 0.
pub type Step = u64;

/// Most bytes of a message: an active message of the fabric has no more.
pub(crate) const LONGEST: usize = 64 << 20;

/// A message as it travels.
pub fn encode<T: serde::Serialize>(message: &T) -> Vec<u8> {
    // Plain data with lengths known: writing it to memory cannot fail.
    postcard::to_stdvec(message).expect("a message of plain data is encodable")
}

/// Bytes of a message as it travels, of which this is a part.
fn encoded_bytes<T: serde::Serialize>(part: &T) -> u64 {
    let counter = postcard::ser_flavors::Size::default();
    postcard::serialize_with_flavor(part, counter).map_or(u64::MAX, |bytes| bytes as u64)
}

/// A message that came; `None` when it is nonsense.
pub fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}
