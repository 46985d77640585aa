//! Errors of files of steps.

use crate::protocol::{Fault, Step};
use crate::space::Dims;
use crate::{Dtype, Region, SpaceError};
use std::path::{Path, PathBuf};

/// Errors of files of steps.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused an operation.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Not a stream of Samite.
    #[error(
        "{path} is not a stream of Samite, which is a folder with a file `rank-R.samite` for each writer rank"
    )]
    NotAStream {
        /// The file or folder.
        path: PathBuf,
    },
    /// Damaged bytes.
    #[error("{path} is damaged at byte {at}: {what}; read another copy, or the steps before it")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset.
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
        /// The version of the file.
        version: u32,
        /// The version of this program.
        known: u32,
    },
    /// A file that belongs to another stream, or to another number of ranks.
    #[error("{path} belongs to {found}, not to {wanted}: use another folder, or remove the file")]
    Stranger {
        /// The file.
        path: PathBuf,
        /// The owner that was found.
        found: String,
        /// The expected owner.
        wanted: String,
    },
    /// Two processes write as the same rank.
    #[error(
        "another process is writing {path}, the file of rank {rank}: give each process a rank of its own, and each run a folder of its own"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: u32,
    },
    /// A step out of order.
    #[error(
        "step {step} cannot be written to {path}, {}: write steps in increasing order, below 2^64 - 1",
        after(.last)
    )]
    Order {
        /// The file.
        path: PathBuf,
        /// The step to be written.
        step: Step,
        /// The last step of the file.
        last: Option<Step>,
    },
    /// Blocks that do not match the layout: another number, or another length.
    #[error("block {block} of the layout needs {needed} bytes, but {given} were given")]
    Content {
        /// The index of the block in the layout.
        block: usize,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that were given; 0 if the block is missing.
        given: u64,
    },
    /// A step that does not exist, or not at all ranks.
    #[error("{path} has no step {step}{}", between(.first, .last))]
    NoStep {
        /// The folder.
        path: PathBuf,
        /// The requested step.
        step: Step,
        /// The first existing step.
        first: Option<Step>,
        /// The last existing step.
        last: Option<Step>,
    },
    /// An unknown variable.
    #[error("step {step} has no variable `{name}`; it has {has}")]
    NoVariable {
        /// The step.
        step: Step,
        /// The requested name.
        name: String,
        /// The existing names.
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
    /// A type other than the requested one.
    #[error("`{name}` has elements of type {is}, but {asked} was requested: read it as {is}")]
    Type {
        /// The variable.
        name: String,
        /// Its type.
        is: Dtype,
        /// The requested type.
        asked: Dtype,
    },
    /// Points that no rank has written.
    #[error("no rank wrote {hole} of `{name}` in step {step}: ask for a smaller box, or write it")]
    Hole {
        /// The variable.
        name: String,
        /// The step.
        step: Step,
        /// Some of these points.
        hole: Box<Region>,
    },
    /// A block that differs from what was written.
    #[error(
        "block {block} of `{name}` in step {step} is not what rank {rank} wrote: its checksum differs"
    )]
    Checksum {
        /// The variable.
        name: String,
        /// The step.
        step: Step,
        /// The rank that wrote it.
        rank: u32,
        /// The box of the block.
        block: Box<Region>,
    },
    /// Blocks that cannot form a step: they overlap, or are outside their array.
    #[error(transparent)]
    Layout(Box<Fault>),
    /// An invalid box.
    #[error(transparent)]
    Space(Box<SpaceError>),
    /// The error of a library for another format.
    #[error("{path}: {what}")]
    Foreign {
        /// The array or store.
        path: PathBuf,
        /// Its message.
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

fn after(last: &Option<Step>) -> String {
    match last {
        Some(last) => format!("whose last step is {last}"),
        None => "which has no step yet".to_owned(),
    }
}

fn between(first: &Option<Step>, last: &Option<Step>) -> String {
    match (first, last) {
        (Some(first), Some(last)) => format!("; it has steps {first} to {last}"),
        _ => "; it has none yet".to_owned(),
    }
}

/// Checks that two ranks, each with what it wrote, agree on a variable.
pub(super) fn check_same(
    name: &str,
    one: (u32, Dtype, &Dims),
    other: (u32, Dtype, &Dims),
) -> Result<(), FileError> {
    let is = |(_, dtype, shape): (u32, Dtype, &Dims)| format!("{dtype} {shape:?}");
    match (one.1, one.2) == (other.1, other.2) {
        true => Ok(()),
        false => Err(FileError::Clash {
            name: name.to_owned(),
            one: one.0,
            other: other.0,
            one_is: is(one),
            other_is: is(other),
        }),
    }
}

/// Converts an error of the system, adding the operation and the file.
pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io {
        doing,
        path,
        source,
    }
}
