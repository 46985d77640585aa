//! Every error that the coordinator can answer, as a sentence for the user.

use super::{Interest, Peer, Step};
use crate::{Dtype, Region};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Why a request to the coordinator failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the sentence of the variant says what its fields are"
)]
pub enum Fault {
    // Waiting
    #[error(
        "nobody has opened the stream {stream} for reading, and its {steps} steps fill what may wait: start the reader, or let unread steps be discarded"
    )]
    NobodyReads { stream: String, steps: u64 },
    #[error(
        "the readers {group} of the stream {stream} are {steps} steps behind, which is their limit: wait longer, raise the limit, or choose another policy for them"
    )]
    ReadersBehind {
        stream: String,
        group: String,
        steps: u64,
    },
    #[error(
        "writer rank {rank} of the stream {stream} has not committed step {step} yet, and a step begins when the one before it is whole"
    )]
    WriterBehind {
        stream: String,
        rank: u32,
        step: Step,
    },
    #[error(
        "no memory for {bytes} bytes in time: {used} of {limit} are in use at {at}; let readers go faster, or {}",
        raise(at)
    )]
    NoMemory {
        bytes: u64,
        used: u64,
        limit: u64,
        at: String,
    },
    #[error(
        "no number of a segment for one more buffer in time: {used} of the {limit} that {block_store} has for buffers are in use, one for each, whatever its length; let readers go faster, retain fewer steps, or write fewer, larger blocks"
    )]
    NoBuffer {
        used: u64,
        limit: u64,
        block_store: Peer,
    },
    #[error("{block_store} has not given the memory for {bytes} bytes in time")]
    BlockStoreSilent { block_store: Peer, bytes: u64 },
    #[error(
        "{block_store} has no room for {bytes} bytes: buffers of ended streams or of steps that are over are still in use; let their processes drop those steps"
    )]
    StillInUse { block_store: Peer, bytes: u64 },
    #[error(
        "no step of the stream {stream} came in time; {committed} are committed, and this rank waits for {whom}"
    )]
    NoStep {
        stream: String,
        committed: u64,
        whom: String,
    },
    #[error(
        "this wait would never end, since {}; raise a limit, or let one of them read or write in another order",
        waits.join(", and ")
    )]
    Circle { waits: Arc<[String]> },
    #[error(
        "no program has opened the stream {stream} for writing in time: check its name, or wait longer"
    )]
    NoStream { stream: String },

    // Memory that can never be granted
    #[error(
        "{bytes} bytes for one step of the stream {stream}, and for the last one where its writer keeps it, are more than {limit}, all that {at} may have: write less per step, or {}",
        raise(at)
    )]
    TooLarge {
        stream: String,
        bytes: u64,
        limit: u64,
        at: String,
    },
    #[error(
        "one step of the stream {stream} needs {buffers} buffers at {block_store}, which has {most} numbers of segments for them, one for each, whatever its length: write fewer, larger blocks, or use more servers"
    )]
    TooManyBuffers {
        stream: String,
        buffers: u64,
        most: u64,
        block_store: Peer,
    },
    #[error(
        "{block_store} keeps no blocks (any more): ask for the block stores again by opening the stream"
    )]
    NoBlockStore { block_store: Peer },
    #[error(
        "{block_store} died while step {step} was written into it: abort the step and write it again"
    )]
    BlockStoreLost { block_store: Peer, step: Step },
    #[error(
        "{block_store} gets no more memory of its node, although its budget has room: let it keep less (retained and unread steps), or see what else the node's memory is used for"
    )]
    BlockStoreFull { block_store: Peer },
    #[error(
        "all {numbers} numbers of segments of {block_store} are used up, one for each buffer, whatever its length, although its memory has room: write fewer, larger blocks, retain fewer steps, or use more servers"
    )]
    NumbersUsedUp { block_store: Peer, numbers: u64 },

    // Opening
    #[error(
        "the stream {stream} is written by {there}, so {program} cannot write it: give one of them another name"
    )]
    TwoWriters {
        stream: String,
        there: String,
        program: String,
    },
    #[error(
        "rank {rank} of {program} is there already, as {peer}: two processes have the same rank"
    )]
    RankTaken {
        program: String,
        rank: u32,
        peer: Peer,
    },
    #[error("rank {rank} of {program} says that there are {size} ranks, others say {there}")]
    SizeDiffers {
        program: String,
        rank: u32,
        size: u32,
        there: u32,
    },
    #[error("rank {rank} of {program} is beyond its {size} ranks")]
    RankBeyond {
        program: String,
        rank: u32,
        size: u32,
    },
    #[error(
        "the stream {stream} is over and its steps are not read yet: open it when they are, or take another name"
    )]
    Over { stream: String, why: EndOfStream },
    #[error("{program} says that it has {size} ranks: at most {most} are possible")]
    TooManyRanks {
        program: String,
        size: u32,
        most: u32,
    },
    #[error(
        "{of} would need {bytes} bytes of the coordinator's memory for its streams, groups of readers, subscriptions, and steps that are kept; the limit is {most}: close some of them, or keep fewer steps"
    )]
    TooMuchOpen { of: String, bytes: u64, most: u64 },
    #[error(
        "the name that begins with {begins} has {bytes} bytes: at most {most} are possible, of a stream, a program, a reader group or a variable"
    )]
    NameTooLong {
        begins: String,
        bytes: u64,
        most: u64,
    },
    #[error("the policy or the limits of the readers {group} are zero: give one step or more")]
    ZeroLimit { group: String },
    #[error("this process has not opened that stream, or has closed it, or the stream is over")]
    NotOpen,

    // Writing
    #[error("this rank asks for a second thing before the first was answered")]
    Busy,
    #[error("step {asked} cannot begin, step {next} is the next one of this rank")]
    WrongStep { asked: Step, next: Step },
    #[error("step {step} was not begun by this rank, or it was aborted")]
    NotBegun { step: Step },
    #[error(
        "writer rank {rank} has closed the stream {stream} without step {step}, so that step cannot become whole"
    )]
    RankClosed {
        stream: String,
        rank: u32,
        step: Step,
    },
    #[error(
        "writer rank {rank} closes the stream {stream} without step {step}, which rank {other} has committed: write as many steps in every rank"
    )]
    ClosesEarly {
        stream: String,
        rank: u32,
        step: Step,
        other: u32,
    },
    #[error("the stream {stream} ended before it was complete: writer rank {rank} {how}")]
    WriterFailed {
        stream: String,
        rank: u32,
        how: Failure,
    },
    #[error(
        "rank {rank} commits step {step} again with another content: after a restart a step must be the same"
    )]
    Differs { rank: u32, step: Step },
    #[error("the layout of rank {rank} is the same as one that nobody has sent: send it whole")]
    UnknownLayout { rank: u32 },
    #[error("the part of rank {rank} names a buffer that was not given to it for this step")]
    ForeignBuffer { rank: u32 },
    #[error("rank {rank} says where {places} blocks lie, and its layout has {blocks}")]
    PlacesDiffer { rank: u32, places: u64, blocks: u64 },
    #[error(
        "block {block} of {variable} of rank {rank} does not fit into its buffer, or begins at no multiple of 128 bytes there"
    )]
    BadPlace {
        rank: u32,
        variable: String,
        block: u64,
    },
    #[error(
        "the description of step {step} of the stream {stream} would take up to {bytes} bytes with that of rank {rank}, and a message has at most {most}: write fewer, larger blocks, or less in attributes"
    )]
    StepTooLong {
        stream: String,
        step: Step,
        rank: u32,
        bytes: u64,
        most: u64,
    },
    #[error("rank {rank} names the variable {variable} twice")]
    VariableTwice { rank: u32, variable: String },
    #[error("{variable} has {dims} dimensions: at most {most} are possible")]
    TooManyDimensions {
        variable: String,
        dims: u64,
        most: u64,
    },
    #[error("block {block} of {variable} has {dims} dimensions, its array has {shape}")]
    BlockDimensions {
        variable: String,
        block: Box<Region>,
        dims: u64,
        shape: u64,
    },
    #[error(
        "block {block} of {variable} of rank {rank} is outside of the array, whose shape is {shape:?}"
    )]
    OutsideArray {
        variable: String,
        rank: u32,
        block: Box<Region>,
        shape: Vec<u64>,
    },
    #[error(
        "{variable} has the shape {one_shape:?} at rank {one} and {other_shape:?} at rank {other}"
    )]
    ShapeDiffers {
        variable: String,
        one: u32,
        one_shape: Vec<u64>,
        other: u32,
        other_shape: Vec<u64>,
    },
    #[error("{variable} is {one_dtype} at rank {one} and {other_dtype} at rank {other}")]
    DtypeDiffers {
        variable: String,
        one: u32,
        one_dtype: Dtype,
        other: u32,
        other_dtype: Dtype,
    },
    #[error(
        "blocks of {variable} overlap: {one_block} of rank {one} and {other_block} of rank {other}"
    )]
    Overlap {
        variable: String,
        one: u32,
        one_block: Box<Region>,
        other: u32,
        other_block: Box<Region>,
    },
    #[error("the block {block} of {variable} is larger than 64 bits can count")]
    Uncountable {
        variable: String,
        block: Box<Region>,
    },

    // Watching
    #[error(
        "nothing of {interest} of the stream {stream} was written in time; {committed} steps are committed, and the next one waits for {whom}"
    )]
    NothingWritten {
        stream: String,
        interest: Box<Interest>,
        committed: u64,
        whom: String,
    },
    #[error(
        "{interest} is not a box of the array in step {step}, whose shape is {shape:?}: watch a box inside it"
    )]
    NoSuchBox {
        step: Step,
        interest: Box<Interest>,
        shape: Vec<u64>,
    },
    #[error("{interest} has no points, so nothing is ever written there: watch a larger box")]
    EmptyBox { interest: Box<Interest> },

    // Reading
    #[error("the answer takes {bytes} bytes, and a message has at most {most}")]
    AnswerTooLong { bytes: u64, most: u64 },
    #[error(
        "step {step} of the stream {stream}, or one after it, is not there any more; {}",
        there_is(oldest)
    )]
    Gone {
        stream: String,
        step: Step,
        oldest: Option<Step>,
    },
    #[error(
        "step {step} lost blocks with {}, which died, and there is no other copy of them: keep two replicas",
        all_of(block_stores)
    )]
    Damaged { step: Step, block_stores: Vec<Peer> },
}

samite_mem::error_codes!(Fault, "stream", {
    NobodyReads = 400, ReadersBehind = 401, WriterBehind = 402, NoMemory = 403, NoBuffer = 404,
    BlockStoreSilent = 405, StillInUse = 406, NoStep = 407, Circle = 408, NoStream = 409,
    TooLarge = 410, TooManyBuffers = 411, NoBlockStore = 412, BlockStoreLost = 413, BlockStoreFull = 414,
    NumbersUsedUp = 415, TwoWriters = 416, RankTaken = 417, SizeDiffers = 418, RankBeyond = 419,
    Over = 420, TooManyRanks = 421, TooMuchOpen = 422, NameTooLong = 423, ZeroLimit = 424,
    NotOpen = 425, Busy = 426, WrongStep = 427, NotBegun = 428, RankClosed = 429, ClosesEarly = 430,
    WriterFailed = 431, Differs = 432, UnknownLayout = 433, ForeignBuffer = 434, PlacesDiffer = 435,
    BadPlace = 436, StepTooLong = 437, VariableTwice = 438, TooManyDimensions = 439,
    BlockDimensions = 440, OutsideArray = 441, ShapeDiffers = 442, DtypeDiffers = 443,
    Overlap = 444, Uncountable = 445, NothingWritten = 446, NoSuchBox = 447, EmptyBox = 448,
    AnswerTooLong = 449, Gone = 450, Damaged = 451,
});

fn all_of(block_stores: &[Peer]) -> String {
    let names: Vec<String> = block_stores.iter().map(Peer::to_string).collect();
    names.join(" and ")
}

fn there_is(oldest: &Option<Step>) -> String {
    match oldest {
        Some(step) => format!("the oldest that is there is step {step}"),
        None => "no step is there".to_owned(),
    }
}

/// The remedy for a limit that admission control names: the limit of a stream is another setting
/// than the budget of a block store.
fn raise(at: &str) -> &'static str {
    match at.starts_with("peer ") {
        true => "give it more memory: memory.budget on its node, or --memory of a staging server",
        false => "raise stage.memory, its limit",
    }
}

/// Why a stream has no more steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndOfStream {
    /// Every writer rank has closed it.
    Closed,
    /// A writer rank has not closed it. Every committed step was delivered before; more may be
    /// missing.
    WriterFailed {
        /// The rank.
        rank: u32,
        /// How it ended.
        how: Failure,
    },
}

impl EndOfStream {
    /// Returns the error of a stream that ended in this way; `None` if it was closed.
    pub fn fault(self, stream: &str) -> Option<Fault> {
        match self {
            EndOfStream::Closed => None,
            EndOfStream::WriterFailed { rank, how } => Some(Fault::WriterFailed {
                stream: stream.to_owned(),
                rank,
                how,
            }),
        }
    }
}

/// How a writer rank ended without closing its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// It did not open the stream in time after the first rank of its program.
    NeverCame,
    /// Its process died, and no other one returned as this rank before its lease ended.
    Died,
    /// Its writer was dropped without `close`, by an error or a panic, and did not return before
    /// its lease ended. With the method `file`, which cannot tell the difference, its process may
    /// also have died.
    GaveUp,
    /// With the method `file`: it closed its file with fewer steps than another rank, and could not
    /// be told.
    ClosedEarly,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::NeverCame => "never came",
            Failure::Died => "died and did not come back",
            Failure::GaveUp => "stopped without closing it and did not come back",
            Failure::ClosedEarly => "closed it with fewer steps than another rank has written",
        })
    }
}
