//! What can go wrong in staging, as messages for the user.

use crate::method::graph::GraphError;
use crate::protocol::{Fault, Peer, Step};
use crate::{Dtype, Region, SpaceError};
use samite_fabric::Named;

/// Failures of the world, and calls that do not fit the stream they are for.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What the coordinator answered.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The fabric below: a lost peer, a deadline.
    #[error(transparent)]
    Fabric(#[from] samite_fabric::Error),
    /// An invalid edge, or a promise that was broken.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An invalid box or array.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// No process of the domain coordinates streams.
    #[error(
        "this domain has no coordinator of streams: start its agent (`samite agent`), or the program with `samite run`"
    )]
    NoCoordinator,
    /// A second stage in a process that is a domain of its own.
    #[error(
        "this process is a domain of its own and already has a stage, which is still in use: open all streams with that one"
    )]
    SecondStage,
    /// A stream for staging servers, and none is there.
    #[error(
        "the stream {stream} uses the method `server`, but this domain has no staging server: add a program with the command `stage-server` to the workflow, or choose another method"
    )]
    NoServers {
        /// The stream.
        stream: String,
    },
    /// A subscription to a stream with the method `file`.
    #[error(
        "the stream {stream} is stored in files, which cannot be watched: read it, or choose another method"
    )]
    NoNews {
        /// The stream.
        stream: String,
    },
    /// Files of a stream with the method `file`.
    #[error("the files of the stream {stream}: {why}")]
    File {
        /// The stream.
        stream: String,
        /// What the files say of it.
        why: String,
    },
    /// The files of another run, but not those of this run, for which the reader waits.
    #[error(
        "no program of this job opened the stream {stream} for writing in time; {folder} has the steps of another run: to read those, run the reader in a job of its own"
    )]
    OtherRun {
        /// The stream.
        stream: String,
        /// Where its files are.
        folder: std::path::PathBuf,
    },
    /// At the deadline, the file of a rank has fewer steps than those of the others.
    #[error(
        "no step of the stream {stream} came in time; {committed} are committed, and writer rank {rank} of {ranks} {}",
        said_of(.written)
    )]
    RankBehind {
        /// The stream.
        stream: String,
        /// The rank that is behind.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
        /// The number of steps that it has written; `None` if it has no file of this run.
        written: Option<u64>,
        /// The number of steps that all ranks have.
        committed: u64,
    },
    /// The memory of this process.
    #[error("there is no memory for an array of {bytes} bytes: ask for a smaller box")]
    NoMemory {
        /// The number of bytes.
        bytes: u64,
    },
    /// An unexpected answer, or an inconsistent state.
    #[error("an unexpected answer or state: {0}")]
    Nonsense(String),
    /// A block store did not do what it was asked.
    #[error("{block_store} refused a request: {why}")]
    BlockStore {
        /// The block store.
        block_store: Named<Peer>,
        /// What it answered.
        why: String,
    },
    /// An array that is not as large as its box.
    #[error(
        "an array of shape {array:?} does not fill a block of {variable} of shape {block:?}: give both the same shape"
    )]
    ArrayShape {
        /// The variable.
        variable: String,
        /// Shape of the array.
        array: Vec<u64>,
        /// Shape of the box.
        block: Vec<u64>,
    },
    /// An array with another number of dimensions than its variable.
    #[error(
        "the number of dimensions of {variable} is {has}, but an array with {asked} was requested: request one with {has}, or with any number (`IxDyn`)"
    )]
    Dimensions {
        /// The variable.
        variable: String,
        /// Number of dimensions of the array.
        asked: usize,
        /// Number of dimensions of the variable.
        has: usize,
    },
    /// A variable of which this rank allocated nothing, in the step that it can read in place.
    #[error(
        "this rank allocated nothing of {variable} in step {step}, only {there:?}: only what `alloc` returned can be read in place"
    )]
    NotAllocated {
        /// The step.
        step: Step,
        /// What was asked for.
        variable: String,
        /// The variables of which it allocated some.
        there: Vec<String>,
    },
    /// A variable that the writer gave two types or shapes within a step.
    #[error(
        "{variable} was first put as {before}, and now as {now}: give it one type and one shape per step"
    )]
    TwoKinds {
        /// The variable.
        variable: String,
        /// What it was.
        before: String,
        /// What it is now.
        now: String,
    },
    /// A variable that the step does not have.
    #[error("step {step} has no variable {variable}; it has {there:?}")]
    NoVariable {
        /// The step.
        step: Step,
        /// What was asked for.
        variable: String,
        /// What there is.
        there: Vec<String>,
    },
    /// A variable of another type than the reader wants.
    #[error(
        "{writer} writes {variable} as {written}, but {asked} was requested: read it as {written}"
    )]
    Clash {
        /// The variable.
        variable: String,
        /// The writer's program or stream.
        writer: String,
        /// Its type.
        written: Dtype,
        /// What the reader wants.
        asked: Dtype,
    },
    /// A box that is not inside the array.
    #[error("{asked} is outside {variable}, whose shape is {shape:?}: ask for a box inside it")]
    OutsideArray {
        /// The variable.
        variable: String,
        /// The box.
        asked: Region,
        /// Shape of the whole array.
        shape: Vec<u64>,
    },
    /// A box with another number of dimensions than the array.
    #[error(
        "the number of dimensions of {variable} is {} (its shape is {shape:?}), but the box {asked} has {}: give one range for each dimension",
        shape.len(),
        asked.dims()
    )]
    BoxDimensions {
        /// The variable.
        variable: String,
        /// The box.
        asked: Region,
        /// Shape of the whole array.
        shape: Vec<u64>,
    },
    /// A block whose shape, start and array have different numbers of dimensions.
    #[error(
        "a block of shape {block:?} was put at {start:?} into {variable}, whose shape is {shape:?}: give all three the same number of dimensions"
    )]
    BlockDimensions {
        /// The variable.
        variable: String,
        /// Shape of the whole array.
        shape: Vec<u64>,
        /// Where the block begins.
        start: Vec<u64>,
        /// Shape of the block.
        block: Vec<u64>,
    },
    /// A block that is put outside its array.
    #[error(
        "the block of shape {block:?} at {start:?} does not lie inside {variable}, whose shape is {shape:?}: put it inside, or give the array a larger shape"
    )]
    BlockOutside {
        /// The variable.
        variable: String,
        /// Shape of the whole array.
        shape: Vec<u64>,
        /// Where the block begins.
        start: Vec<i64>,
        /// Shape of the block.
        block: Vec<u64>,
    },
    /// A stream that is closed without the step that was begun last.
    #[error(
        "step {step} of the stream {stream} was begun and dropped, so nothing of it is in the stream, which now counts as failed: call `commit` on each step before `close`, or `abort` on one that you leave out"
    )]
    NeverCommitted {
        /// The stream.
        stream: String,
        /// The step.
        step: Step,
    },
    /// A step with a block that was only partly written.
    #[error(
        "step {step} cannot be committed, because an earlier call failed to put a block: drop the step, and begin it again"
    )]
    Spoiled {
        /// The step.
        step: Step,
    },
    /// A box that nobody has written as a whole.
    #[error(
        "no rank wrote {hole} of {variable} in step {step}, which is part of {asked}: ask for a smaller box, or write it"
    )]
    Hole {
        /// The step.
        step: Step,
        /// The variable.
        variable: String,
        /// What was asked for.
        asked: Region,
        /// A box of it that is missing.
        hole: Region,
    },
}

samite_mem::error_codes!(Error, "stage", {
    NoCoordinator = 300, SecondStage = 301, NoServers = 302, NoNews = 303, File = 304, OtherRun = 305,
    RankBehind = 306, NoMemory = 307, Nonsense = 308, BlockStore = 309, ArrayShape = 310,
    TwoKinds = 311, NoVariable = 312, Clash = 313, OutsideArray = 314, Spoiled = 315, Hole = 316,
    Dimensions = 317, NotAllocated = 318, BoxDimensions = 319, BlockDimensions = 320,
    BlockOutside = 321, NeverCommitted = 322,
}, inner: Fault, Fabric, Graph, Space);

fn said_of(written: &Option<u64>) -> String {
    match written {
        Some(steps) => format!("has written {steps}, fewer than others"),
        None => "has not begun its file".to_owned(),
    }
}

impl Error {
    /// Returns true if it says that a process is gone.
    pub(crate) fn is_loss(&self) -> bool {
        use samite_fabric::Error as Fabric;
        matches!(
            self,
            Error::Fabric(
                Fabric::PeerLost { .. } | Fabric::NoSuchPeer(_) | Fabric::NoSuchSegment { .. }
            )
        )
    }
}
