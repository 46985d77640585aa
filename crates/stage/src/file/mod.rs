//! Steps in files: the baseline of the methods, and what a stream spills to.
//!
//! A stream is a folder; each writer rank has a file `rank-R.samite` in it, so that ranks write
//! without a word to each other. A step is there when it is there in the files of all ranks.
//! Everything that a reader needs is in the files: names, types, shapes, attributes, which box each
//! block is.
//!
//! ```text
//!   HEADER   stream, rank, ranks, run, life
//!   LAYOUT   variables and boxes of blocks; again only when they change
//!   DATA     the blocks of step 0, as written, each at a multiple of 128 bytes
//!   RECORD   step 0: which layout, where its data begin, their checksums, attributes     <- the step is there now
//!   DATA     step 1
//!   RECORD   step 1
//!   INDEX    where all records are                                                       <- the end, if it was an orderly one
//!   END      where the index is: the last 256 bytes of the file
//! ```
//!
//! All of them are *frames* (`frame`): a head of 128 bytes that says kind, step, length and
//! checksum, then the content. A reader goes from head to head, or straight to the index.
//!
//! # Runs
//! A folder is used again and again, and its ranks begin one after another. So a header says to
//! which *run* its file belongs: a number that all ranks of a job have in common, and no other job
//! has; and which *life* of the stream in that run it is, since a run may write a stream to its end
//! and begin it again. Steps are made of the files of one life of one run only.
//!
//! # Objects
//! * [`StepFile`]: one rank's file, from its begin or after a crash. * [`Archive`]: the folder;
//!   [`StoredStep`] reads any box.
//! * `zarr` (with the feature of that name): the same steps in a format that others read.
//!
//! # Files
//! `frame` (bytes of a head) · `claim` (who writes a file) · `writer` · `lives` (what older runs
//! and lives have left) · `folder` (whose files there are) · `scan` (which steps a file has) ·
//! `archive` · `fetch` (a box out of a block, in few reads) · `error` · `zarr`
//!
//! # Invariants
//! * W1: a file only ever grows, but for its mark, and except that [`StepFile::resume`] cuts off
//!   what follows the last complete step, and a writer what it could not write.
//! * W2: a record is written after everything that it speaks of. So whoever sees an intact record,
//!   in whatever process, sees its step; after a crash of the writer the file ends with at most one
//!   step that has none.
//! * W3: steps of a file rise.
//! * W4: one process at a time writes a file, and no fork of it: it holds its lock (`flock`), and
//!   its mark is in the file (`claim`). What is begun anew is another file of that name, so who
//!   reads the old one may go on.
//! * W5: an end is written after everything before it is on the disk, where the disk is waited for;
//!   so is a record with [`Durability::Step`]. What the disk refuses is never told as an orderly
//!   end, and no step is taken back that was seen.
//! * R1: every length and offset that was read is checked against the file before it is used;
//!   nonsense is [`FileError::Corrupt`], at its byte.
//! * R2: what the system refuses is never taken for the end of a file, and nor is damage with
//!   intact frames behind it.
//!
//! # What it does not guarantee
//! * A crash of the *machine* may lose steps that were not synced: by default those of files that
//!   were not ended, by choice all or none ([`Durability`]). Records that reached the disk before
//!   their data then show as wrong checksums.
//! * A read checks the checksum of a block only when it takes the whole block;
//!   [`StoredStep::check`] checks all of them. A writer may leave them out
//!   ([`StepFile::without_checksums`]); those of heads, layouts and records are always there.
//!
//! All numbers are little-endian. Contents are in the format of postcard 1; the version is in every
//! head.

mod archive;
mod claim;
mod error;
mod fetch;
mod folder;
mod frame;
mod lives;
mod scan;
mod stored;
mod writer;
#[cfg(feature = "zarr")]
pub mod zarr;

pub use archive::Archive;
pub(crate) use archive::Writers;
pub use error::FileError;
pub(crate) use stored::StepRecords;
pub use stored::{StoredBlock, StoredStep, StoredVariable};
pub use writer::{Content, Durability, StepFile};

use crate::protocol::{Attribute, Step};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Content of the frame `HEADER`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    stream: String,
    rank: u32,
    ranks: u32,
    /// The same for all files of a job, and for no other job; 0 where nobody said.
    run: u64,
    /// How often the stream was begun anew in this run before.
    life: u32,
}

impl Header {
    fn name(&self) -> String {
        format!(
            "rank {} of {} of the stream {}",
            self.rank, self.ranks, self.stream
        )
    }
}

/// Most ranks that a stream may have: a word of nonsense must not cost all memory.
const MOST_RANKS: u32 = 1 << 20;

/// Content of a frame `RECORD`. The blocks of the layout lie in the frame `DATA`, in order, each at
/// the next multiple of [`frame::ALIGN`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    /// Where the frame `LAYOUT` begins.
    layout: u64,
    /// Where the frame `DATA` begins.
    data: u64,
    /// CRC-32C of each block; none at all where the writer made none.
    checksums: Vec<u32>,
    attributes: Vec<(String, Attribute)>,
}

/// Content of the frame `INDEX`: where the record of each step begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Index {
    records: Vec<(Step, u64)>,
}

/// The file of a rank.
fn file_of(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}.samite"))
}

#[cfg(test)]
mod tests;
