//! How frames move between the programs: one file per way, behind three traits.
//!
//! | [`Via`] | file | a worker gets |
//! |---|---|---|
//! | `dsm`, `dsm-fused`, `dsm-strict` | `chunks` | a frame when it needs one, by the predictions of `schedule` |
//! | `mp-sync` | `mp_sync` | each n-th frame; the source waits until it has been taken |
//! | `mp-async` | `mp_async` | each n-th frame; one is on its way while the source reads the next |
//! | `mp-async-each` | `mp_async_each` | the next frame when it has taken the one before |
//! | `req-rep` | `req_rep` | a frame when it requests one |
//! | `push-pull` | `push_pull` | each n-th frame, unless ten wait for it |
//!
//! `message` has what the ways by messages share: the tags, and the ends of workers and sink.

mod chunks;
mod message;
mod mp_async;
mod mp_async_each;
mod mp_sync;
mod push_pull;
mod req_rep;
mod schedule;

pub(super) use message::only;

use super::{Error, Header, Result};
use chunks::Way;
use clap::ValueEnum;
use samite::Fabric;
use samite::dsm::Snapshot;
use std::fmt::{Display, Formatter};
use std::ops::Deref;

/// How frames move between the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// They do not: the sink reads and processes all of them, and the other programs end at once.
    Sequential,
    /// Through chunks of coherent memory: each access is one request, and an event brings the
    /// frame.
    Dsm,
    /// As `dsm`, but events bring no frame.
    DsmFused,
    /// As `dsm-fused`, but each access takes a guard.
    DsmStrict,
    /// By messages: the source sends each frame to the next worker in turn, and waits until it has
    /// been taken.
    MpSync,
    /// By messages: as `mp-sync`, but the source reads the next frame while one is on its way.
    MpAsync,
    /// By messages: one frame may be on its way to each worker.
    MpAsyncEach,
    /// By messages: a worker requests a frame, and the source replies.
    ReqRep,
    /// By messages: the source sends frames to the workers in turn; up to ten wait for each.
    PushPull,
}

impl Via {
    /// Whether frames move through chunks, which servers keep.
    pub(super) fn has_servers(self) -> bool {
        matches!(self, Via::Dsm | Via::DsmFused | Via::DsmStrict)
    }
}

impl Display for Via {
    /// Writes the name that the command line has for it.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The bytes of results that may wait at the sink for the one before them: through chunks, no more
/// frames are given, and by messages, no more results are received. In tests of this crate, as few
/// as possible.
pub(super) const EARLY: u64 = if cfg!(test) { 1 } else { 4 << 30 };

/// The end of the source.
pub(super) trait ToWorkers {
    /// Gives a frame to a worker, and waits for one if the way says so. `left`: how many frames
    /// come after it, if that is known.
    fn send(&mut self, number: u64, pixels: &[u8], left: Option<u64>) -> Result<()>;

    /// Gives the workers all frames that it still has, and tells all that there are no more.
    fn finish(&mut self, frames: u64) -> Result<()>;

    /// Returns how many messages it has sent; 0 where the server counts them.
    fn messages(&self) -> u64;
}

/// The end of a worker.
pub(super) trait AtWorker {
    fn header(&self) -> Header;

    /// Waits for a frame, lets `work` compute the result, and passes it on. Returns false after the
    /// last frame.
    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool>;

    /// As [`ToWorkers::messages`].
    fn messages(&self) -> u64;
}

/// The end of the sink.
pub(super) trait FromWorkers {
    fn header(&self) -> Header;

    /// Waits for a result, in any order, or only for that of the frame `only`: all others would
    /// have to wait for it. The source sees to that where frames move through chunks. Returns
    /// `None` after the last one.
    fn next(&mut self, only: Option<u64>) -> Result<Option<Processed>>;

    /// As [`FromWorkers::next`], but only returns a result that has arrived, and does not wait.
    fn next_now(&mut self, only: Option<u64>) -> Result<Option<Processed>>;

    /// Returns how many messages it has sent. Where a server moves the frames: how many messages
    /// of the whole job that server has received and sent.
    fn messages(&self) -> Result<u64>;
}

/// A frame that a worker has processed.
#[derive(Debug)]
pub(super) struct Processed {
    pub(super) number: u64,
    /// The rank of the worker.
    pub(super) worker: usize,
    pub(super) pixels: Pixels,
}

/// Where the pixels of a frame are.
#[derive(Debug)]
pub(super) enum Pixels {
    /// In a version of a chunk.
    Chunk(Snapshot<u8>),
    /// In a message.
    Message(Vec<u8>),
}

impl Deref for Pixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Pixels::Chunk(snapshot) => snapshot,
            Pixels::Message(bytes) => bytes,
        }
    }
}

fn alone() -> Error {
    Error::Unexpected("a frame of a sequential run".to_owned())
}

pub(super) fn to_workers(fabric: &Fabric, via: Via, header: Header) -> Result<Box<dyn ToWorkers>> {
    Ok(match via {
        Via::Sequential => return Err(alone()),
        Via::Dsm => Box::new(chunks::ToWorkers::new(fabric, header, Way::Inline)?),
        Via::DsmFused => Box::new(chunks::ToWorkers::new(fabric, header, Way::Fused)?),
        Via::DsmStrict => Box::new(chunks::ToWorkers::new(fabric, header, Way::Strict)?),
        Via::MpSync => Box::new(mp_sync::ToWorkers::new(fabric, header)?),
        Via::MpAsync => Box::new(mp_async::ToWorkers::new(fabric, header)?),
        Via::MpAsyncEach => Box::new(mp_async_each::ToWorkers::new(fabric, header)?),
        Via::ReqRep => Box::new(req_rep::ToWorkers::new(fabric, header)?),
        Via::PushPull => Box::new(push_pull::ToWorkers::new(fabric, header)?),
    })
}

pub(super) fn at_worker(fabric: &Fabric, via: Via) -> Result<Box<dyn AtWorker>> {
    Ok(match via {
        Via::Sequential => return Err(alone()),
        Via::Dsm => Box::new(chunks::AtWorker::new(fabric, Way::Inline)?),
        Via::DsmFused => Box::new(chunks::AtWorker::new(fabric, Way::Fused)?),
        Via::DsmStrict => Box::new(chunks::AtWorker::new(fabric, Way::Strict)?),
        Via::MpSync | Via::MpAsync | Via::MpAsyncEach | Via::ReqRep => {
            Box::new(message::AtWorker::new(fabric, via == Via::ReqRep)?)
        }
        Via::PushPull => Box::new(push_pull::AtWorker::new(fabric)?),
    })
}

pub(super) fn from_workers(fabric: &Fabric, via: Via) -> Result<Box<dyn FromWorkers>> {
    Ok(match via {
        Via::Sequential => return Err(alone()),
        Via::Dsm => Box::new(chunks::FromWorkers::new(fabric, Way::Inline)?),
        Via::DsmFused => Box::new(chunks::FromWorkers::new(fabric, Way::Fused)?),
        Via::DsmStrict => Box::new(chunks::FromWorkers::new(fabric, Way::Strict)?),
        Via::MpSync | Via::MpAsync | Via::MpAsyncEach | Via::ReqRep | Via::PushPull => {
            Box::new(message::FromWorkers::new(fabric, via == Via::ReqRep)?)
        }
    })
}
