//! Steps in files: the simplest of the methods, and the target of spilling.
//!
//! A stream is a folder; each writer rank has a file `rank-R.samite` in it, so that ranks write
//! without communication. A step exists when the files of all ranks contain it. The files are
//! self-describing: names, types, shapes, attributes, the box of each block.
//!
//! ```text
//!   HEADER   stream, rank, ranks, run, life
//!   LAYOUT   variables and boxes of blocks; again only when they change
//!   DATA     the blocks of step 0, as written, each at a multiple of 128 bytes
//!   RECORD   step 0: which layout, where its data begin, their checksums, attributes     <- now the step exists
//!   DATA     step 1
//!   RECORD   step 1
//!   INDEX    where all records are                                                       <- the file was ended
//!   END      where the index is: the last 256 bytes of the file
//! ```
//!
//! All of them are *frames* (`frame`): a head of 128 bytes with kind, step, length and checksum,
//! then the content. A reader goes from head to head, or directly to the index.
//!
//! # Runs
//! A folder is reused, and its ranks begin one after another. So a header says to which *run* its
//! file belongs: a number that all ranks of a job have in common, and no other job has. It also
//! says which *life* of the stream in that run it is, since a run may write a stream to its end and
//! begin it again. Steps are composed only of files of one life of one run.
//!
//! # Objects
//! * [`StepFile`]: one rank's file, new or resumed after a crash.
//! * [`Archive`]: the folder; [`StoredStep`] reads any box.
//! * `zarr` (with the feature of that name): the same steps in a format that other programs read.
//!
//! # Files
//! `frame` (bytes of a head) · `claim` (which process writes a file) · `writer` · `lives` (what
//! older runs and lives have left) · `folder` (which files belong together) · `scan` (which steps a
//! file has) · `archive` · `fetch` (a box from a block, with few reads) · `error` · `zarr` · `zstd`
//!
//! # Invariants
//! * W1: a file only grows, except for its mark, and except that [`StepFile::resume`] truncates it
//!   after the last complete step, and a writer removes what it could not write completely.
//! * W2: a record is written after everything that it refers to. So a process that sees an intact
//!   record also sees its step; after a crash of the writer, the file ends with at most one step
//!   without a record.
//! * W3: the step numbers of a file increase.
//! * W4: one process at a time writes a file, and no fork of it: it holds its lock (`flock`), and
//!   its mark is in the file (`claim`). A restarted stream is another file of that name, so readers
//!   of the old one may continue.
//! * W5: an end is written after everything before it is on the disk, if the writer waits for the
//!   disk; so is a record with [`Durability::Step`]. No step and no end is removed that readers may
//!   have seen, even if the disk refuses it afterwards.
//! * R1: every length and offset that was read is checked against the file before it is used; an
//!   invalid one is [`FileError::Corrupt`], with its offset.
//! * R2: an error of the system is never taken for the end of a file, and neither is damage with
//!   intact frames after it.
//!
//! # What it does not guarantee
//! * A crash of the *machine* may lose steps that were not synced: by default those of files that
//!   were not ended, by choice all or none ([`Durability`]). Records that reached the disk before
//!   their data then show as wrong checksums.
//! * No end is written after a refused sync ([`StepFile::sync`]); but a process that resumes the
//!   file cannot know of the refusal.
//! * A read checks the checksum of a block only when it reads the whole block;
//!   [`StoredStep::check`] checks all of them. A writer may omit them
//!   ([`StepFile::without_checksums`]); those of heads, layouts and records always exist.
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
#[cfg(feature = "zarr")]
mod zstd;

pub use archive::Archive;
pub(crate) use archive::Writers;
pub use error::FileError;
pub(crate) use stored::StepRecords;
pub use stored::{StoredBlock, StoredStep, StoredVariable};
pub(crate) use writer::check_rank;
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
    /// The same for all files of a job, and for no other job; 0 if not set.
    run: u64,
    /// How often this run began the stream again before.
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

/// Maximum number of ranks of a stream: a malformed number must not exhaust the memory.
const MOST_RANKS: u32 = 1 << 20;

/// Content of a frame `RECORD`. The blocks of the layout are in the frame `DATA`, in order, each at
/// the next multiple of [`frame::ALIGN`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    /// Where the frame `LAYOUT` begins.
    layout: u64,
    /// Where the frame `DATA` begins.
    data: u64,
    /// CRC-32C of each block; empty if the writer computed none.
    checksums: Vec<u32>,
    attributes: Vec<(String, Attribute)>,
}

/// Content of the frame `INDEX`: where the record of each step begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Index {
    records: Vec<(Step, u64)>,
}

/// Returns the path of a rank's file.
fn file_of(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}.samite"))
}

#[cfg(test)]
mod tests;
