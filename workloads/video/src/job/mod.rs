//! The job: a source, workers, and a sink.
//!
//! ```text
//!   [source] --- frame ---> [workers] --- result ---> [sink] ---> file, report, figures, live page
//!       |                       |                        ^
//!       +--- what it measured --+------------------------+
//! ```
//! The three programs of a job are called `source` (one unit), `worker` and `sink` (one unit). The
//! sink puts the frames in order again. [`Via`] chooses how frames move; the result is the same,
//! bit by bit, as that of [`crate::sequential`].
//!
//! # Files
//! `args` (what the programs share on their command lines) · `via/` (how frames move) ·
//! [`source`], [`worker`], [`sink`] (the programs) · `order` (what the sink writes) · [`nodes`]
//! (workers as fast as given boards) · `quota` (by the kernel) · `measured` (what source and
//! workers tell the sink) · [`figures`] (what a run was like, and how fast it could have been) ·
//! [`report`] (as a page) · `live` (while it runs) · `http` (its server) · `error`

mod args;
mod error;
pub mod figures;
mod http;
mod live;
mod measured;
pub mod nodes;
mod order;
mod quota;
pub mod report;
pub mod sink;
pub mod source;
mod via;
pub mod worker;

pub use args::Clip;
pub use error::Error;
pub use via::Via;

use crate::Size;
use crate::y4m::Rate;

/// The most frames that a worker has through chunks.
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
