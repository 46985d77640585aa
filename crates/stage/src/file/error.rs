//! What can go wrong with files of steps.

use crate::protocol::{Fault, Step};
use crate::{Dtype, Region, SpaceError};
use std::path::{Path, PathBuf};

/// What can go wrong with files of steps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No steps of ours.
    #[error(
        "{path} is not a stream of Samite, which is a folder with a file `rank-R.samite` for each writer rank"
    )]
    NotAStream {
        /// The file or folder.
        path: PathBuf,
    },
    /// Bytes that cannot be right.
    #[error("{path} is damaged at byte {at}: {what}; read another copy, or the steps before it")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Written by a newer Samite.
    #[error(
        "{path} has version {version} of the format, and this Samite reads version {known}: read it with the Samite that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What it has.
        version: u32,
        /// What we know.
        known: u32,
    },
    /// A file that belongs to another stream, or to another number of ranks.
    #[error("{path} belongs to {found}, not to {wanted}: use another folder, or remove the file")]
    Stranger {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
    /// Two processes write as the same rank.
    #[error(
        "another process is writing {path}, the file of rank {rank}: give each process a rank of its own, and each run a folder of its own"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        rank: u32,
    },
    /// Steps come in order.
    #[error("step {step} cannot follow step {last} in {path}: write steps in increasing order")]
    Order {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        step: Step,
        /// What is the last one there.
        last: Step,
    },
    /// A writer gives as many blocks as its layout names, with as many bytes.
    #[error("block {block} of the layout needs {needed} bytes, but {given} were given")]
    Content {
        /// Its number in the layout.
        block: usize,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are; 0 where the block is missing.
        given: u64,
    },
    /// A step that is not there, or not by all ranks.
    #[error("{path} has no step {step}{}", between(.first, .last))]
    NoStep {
        /// The folder.
        path: PathBuf,
        /// What was asked.
        step: Step,
        /// The first that there is.
        first: Option<Step>,
        /// The last that there is.
        last: Option<Step>,
    },
    /// A variable that is not there.
    #[error("step {step} has no variable `{name}`; it has {has}")]
    NoVariable {
        /// The step.
        step: Step,
        /// What was asked.
        name: String,
        /// What there is.
        has: String,
    },
    /// Ranks that do not agree.
    #[error(
        "ranks {one} and {other} wrote `{name}` as {one_is} and {other_is}: write it the same way in all ranks"
    )]
    Clash {
        /// The variable.
        name: String,
        /// A rank.
        one: u32,
        /// Another one.
        other: u32,
        /// Type and shape at the first.
        one_is: String,
        /// Type and shape at the second.
        other_is: String,
    },
    /// A type that was not asked for.
    #[error("`{name}` has elements of type {is}, but {asked} was requested: read it as {is}")]
    Type {
        /// The variable.
        name: String,
        /// Its type.
        is: Dtype,
        /// What was asked.
        asked: Dtype,
    },
    /// Points that no rank has written.
    #[error("no rank wrote {hole} of `{name}` in step {step}: ask for a smaller box, or write it")]
    Hole {
        /// The variable.
        name: String,
        /// The step.
        step: Step,
        /// Some of the points.
        hole: Box<Region>,
    },
    /// A block that is not what was written.
    #[error(
        "block {block} of `{name}` in step {step} is not what rank {rank} wrote: its checksum differs"
    )]
    Checksum {
        /// The variable.
        name: String,
        /// The step.
        step: Step,
        /// Who wrote it.
        rank: u32,
        /// Which points.
        block: Box<Region>,
    },
    /// Blocks that cannot be a step: they overlap, or lie outside of their array.
    #[error(transparent)]
    Layout(Box<Fault>),
    /// A box that cannot be.
    #[error(transparent)]
    Space(Box<SpaceError>),
    /// What a library for another format said.
    #[error("{path}: {what}")]
    Foreign {
        /// The array or store.
        path: PathBuf,
        /// What it said.
        what: String,
    },
}

samite_mem::error_codes!(FileError, "file", {
    Io = 360, NotAStream = 361, Corrupt = 362, Version = 363, Stranger = 364, InUse = 365,
    Order = 366, Content = 367, NoStep = 368, NoVariable = 369, Clash = 370, Type = 371, Hole = 372,
    Checksum = 373, Foreign = 374,
}, inner: Layout, Space);

impl From<SpaceError> for FileError {
    fn from(error: SpaceError) -> Self {
        FileError::Space(Box::new(error))
    }
}

impl From<Fault> for FileError {
    fn from(fault: Fault) -> Self {
        FileError::Layout(Box::new(fault))
    }
}

fn between(first: &Option<Step>, last: &Option<Step>) -> String {
    match (first, last) {
        (Some(first), Some(last)) => format!("; it has steps {first} to {last}"),
        _ => "; it has none yet".to_owned(),
    }
}

/// Says with which file the system refused what.
pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io {
        doing,
        path,
        source,
    }
}
