//! The job: a source, workers that take a frame when they are ready, and a sink.
//!
//! ```text
//!              a free slot                a slot is done
//!   [source] --- frame ---> [workers] --- result ---> [sink]
//!       ^                                               |
//!       +-------------------- slot ---------------------+
//! ```
//! The three programs of a job are called `source` (one unit), `worker` and `sink` (one unit).
//! Each worker has [`SLOTS`] slots: while it computes in one of them, the next frame arrives in
//! another. The sink puts the frames in order again. [`Via`] chooses how frames move; the result is
//! the same, bit by bit, as that of [`crate::sequential`].
//!
//! # Files
//! `args` (what the programs share on their command lines) · `via_chunks`, `via_messages` (how
//! frames move) · [`source`], [`worker`], [`sink`] (the programs) · `error`

mod args;
mod error;
pub mod sink;
pub mod source;
mod via_chunks;
mod via_messages;
pub mod worker;

pub use args::{Clip, Via};
pub use error::Error;
use via_chunks::Way;

use crate::Size;
use crate::y4m::Rate;
use samite::Fabric;
use samite::dsm::Snapshot;
use std::ops::Deref;

/// The slots of each worker.
const SLOTS: usize = 2;

/// The names of the programs in a job.
const WORKERS: &str = "worker";
const SOURCE: &str = "source";
const SINK: &str = "sink";

type Result<T> = std::result::Result<T, Error>;

/// What the source tells the others before the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    size: Size,
    rate: Rate,
}

impl Header {
    const WORDS: usize = 4;

    fn to_words(self) -> [u64; Header::WORDS] {
        let (width, height) = (self.size.width() as u64, self.size.height() as u64);
        let Rate { frames, seconds } = self.rate;
        [width, height, u64::from(frames), u64::from(seconds)]
    }

    /// Checks what has arrived.
    fn from_words(words: &[u64]) -> Result<Header> {
        let unexpected = || Error::Unexpected(format!("a header of {words:?}"));
        let [width, height, frames, seconds] = *words else {
            return Err(unexpected());
        };
        let word = |word: u64| u32::try_from(word).map_err(|_| unexpected());
        Ok(Header {
            size: Size::new(width, height)?,
            rate: Rate {
                frames: word(frames)?,
                seconds: word(seconds)?,
            },
        })
    }
}

/// The end of the source.
trait ToWorkers {
    /// Waits for a worker that is ready, and gives it a frame.
    fn send(&mut self, number: u64, pixels: &[u8]) -> Result<()>;

    /// Waits until all frames have arrived at the sink, and tells all that there are no more.
    fn finish(&mut self, frames: u64) -> Result<()>;
}

/// The end of a worker.
trait AtWorker {
    fn header(&self) -> Header;

    /// Waits for a frame, lets `work` compute the result, and passes it on. Returns false after the
    /// last frame.
    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool>;
}

/// The end of the sink.
trait FromWorkers {
    fn header(&self) -> Header;

    /// Waits for a result, in any order. Returns `None` after the last one.
    fn next(&mut self) -> Result<Option<Processed>>;

    /// Returns the number of messages of the job so far, if they are counted.
    fn messages(&self) -> Result<Option<u64>>;
}

/// A frame that a worker has processed.
#[derive(Debug)]
struct Processed {
    number: u64,
    /// The rank of the worker.
    worker: usize,
    pixels: Pixels,
}

/// Where the pixels of a frame are.
#[derive(Debug)]
enum Pixels {
    /// In a version of a chunk.
    Chunk(Snapshot<u8>),
    /// In a message: after its number.
    Message(Vec<u8>),
}

impl Deref for Pixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Pixels::Chunk(snapshot) => snapshot,
            Pixels::Message(bytes) => bytes.get(via_messages::NUMBER..).unwrap_or(&[]),
        }
    }
}

fn to_workers(fabric: &Fabric, via: Via, header: Header) -> Result<Box<dyn ToWorkers>> {
    Ok(match via {
        Via::Dsm => Box::new(via_chunks::ToWorkers::new(fabric, header, Way::Inline)?),
        Via::DsmFused => Box::new(via_chunks::ToWorkers::new(fabric, header, Way::Fused)?),
        Via::DsmStrict => Box::new(via_chunks::ToWorkers::new(fabric, header, Way::Strict)?),
        Via::Messages => Box::new(via_messages::ToWorkers::new(fabric, header)?),
    })
}

fn at_worker(fabric: &Fabric, via: Via) -> Result<Box<dyn AtWorker>> {
    Ok(match via {
        Via::Dsm => Box::new(via_chunks::AtWorker::new(fabric, Way::Inline)?),
        Via::DsmFused => Box::new(via_chunks::AtWorker::new(fabric, Way::Fused)?),
        Via::DsmStrict => Box::new(via_chunks::AtWorker::new(fabric, Way::Strict)?),
        Via::Messages => Box::new(via_messages::AtWorker::new(fabric)?),
    })
}

fn from_workers(fabric: &Fabric, via: Via) -> Result<Box<dyn FromWorkers>> {
    Ok(match via {
        Via::Dsm => Box::new(via_chunks::FromWorkers::new(fabric, Way::Inline)?),
        Via::DsmFused => Box::new(via_chunks::FromWorkers::new(fabric, Way::Fused)?),
        Via::DsmStrict => Box::new(via_chunks::FromWorkers::new(fabric, Way::Strict)?),
        Via::Messages => Box::new(via_messages::FromWorkers::new(fabric)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_checked() {
        let header = Header {
            size: Size::HD,
            rate: Rate::default(),
        };
        assert_eq!(Header::from_words(&header.to_words()).unwrap(), header);
        for words in [&[][..], &[0, 1, 1, 1], &[1, 1, 1], &[1, 1, 1 << 32, 1]] {
            assert!(Header::from_words(words).is_err(), "{words:?}");
        }
    }
}
