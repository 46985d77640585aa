//! Every error that the coordinator can answer, as a sentence for the user.

use super::{Interest, Peer, Step};
use crate::{Dtype, Region};
use samite_fabric::Named;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Why a request to the coordinator failed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the sentence of the variant says what its fields are"
)]
pub enum Fault {
    // Waiting
    #[error(
        "no reader has opened the stream {stream} yet, and its {steps} unread steps have reached the limit: start the reader, or let unread steps be discarded"
    )]
    NobodyReads { stream: String, steps: u64 },
    #[error(
        "the reader group {group} of the stream {stream} is {steps} steps behind, which is its limit: wait longer, raise the limit, or choose another policy for it"
    )]
    ReadersBehind {
        stream: String,
        group: String,
        steps: u64,
    },
    #[error(
        "{} has not committed step {step} of the stream {stream} yet, and the next step begins only when every rank has: wait longer, or check what that rank is doing",
        unit(program, rank)
    )]
    WriterBehind {
        stream: String,
        program: String,
        rank: u32,
        step: Step,
    },
    #[error(
        "no memory for {bytes} bytes became free in time: {used} of {limit} bytes are in use at {at}; make the readers faster, or {}",
        raise(at)
    )]
    NoMemory {
        bytes: u64,
        used: u64,
        limit: u64,
        at: Room,
    },
    #[error(
        "{block_store} had no segment for another buffer in time: {used} of its {limit} are in use, one per buffer whatever its length; make the readers faster, retain fewer steps, or write fewer, larger blocks"
    )]
    NoBuffer {
        used: u64,
        limit: u64,
        block_store: Named<Peer>,
    },
    #[error(
        "{block_store} did not allocate {bytes} bytes in time: wait longer, or check whether its process is stopped"
    )]
    BlockStoreSilent {
        block_store: Named<Peer>,
        bytes: u64,
    },
    #[error(
        "{block_store} has no free memory for {bytes} bytes, because buffers of ended streams or of finished steps are still in use: let the processes that hold those steps drop them"
    )]
    StillInUse {
        block_store: Named<Peer>,
        bytes: u64,
    },
    #[error(
        "no step of the stream {stream} came in time; {committed} are committed, and this rank is waiting for {whom}"
    )]
    NoStep {
        stream: String,
        committed: u64,
        whom: String,
    },
    #[error(
        "this wait would never end, because {}: raise a limit, or change the order in which one of them reads or writes",
        waits.join(", and ")
    )]
    Circle { waits: Arc<[String]> },
    #[error(
        "no program opened the stream {stream} for writing in time: check its name, or wait longer{}",
        open_ones(stream, open)
    )]
    NoStream {
        stream: String,
        /// The streams that are open, some of them if they are many; `None` if it is not known.
        open: Option<Vec<String>>,
    },

    // Memory that can never be granted
    #[error(
        "one step of the stream {stream}, with the previous one where its writer keeps it, needs {bytes} bytes, but {at} may use only {limit}: write less per step, or {}",
        raise(at)
    )]
    TooLarge {
        stream: String,
        bytes: u64,
        limit: u64,
        at: Room,
    },
    #[error(
        "one step of the stream {stream} needs {buffers} buffers at {block_store}, which has {most} segments for them, one per buffer whatever its length: write fewer, larger blocks, or use more servers"
    )]
    TooManyBuffers {
        stream: String,
        buffers: u64,
        most: u64,
        block_store: Named<Peer>,
    },
    #[error(
        "{block_store} is not a block store, or is no longer one: open the stream again to use those that are there"
    )]
    NoBlockStore { block_store: Named<Peer> },
    #[error(
        "{block_store} died while step {step} was being written into it: abort the step and write it again"
    )]
    BlockStoreLost {
        block_store: Named<Peer>,
        step: Step,
    },
    #[error(
        "{block_store} is within its budget, but its node has no more shared memory: keep fewer retained or unread steps, or find out what else uses the memory of the node"
    )]
    BlockStoreFull { block_store: Named<Peer> },
    #[error(
        "memory.budget is used up: a buffer of {bytes} bytes was requested of {block_store}, and the programs of the domain use {used} of the {budget} bytes; retain fewer steps, free segments, or raise memory.budget"
    )]
    BudgetUsedUp {
        block_store: Named<Peer>,
        bytes: u64,
        used: u64,
        budget: u64,
    },
    #[error(
        "{block_store} has memory left, but all of its {numbers} segments are in use, one per buffer whatever its length: write fewer, larger blocks, retain fewer steps, or use more servers"
    )]
    NumbersUsedUp {
        block_store: Named<Peer>,
        numbers: u64,
    },

    // Opening
    #[error(
        "the stream {stream} is already written by {there}, so {program} cannot write it: give one of the two streams another name"
    )]
    TwoWriters {
        stream: String,
        there: String,
        program: String,
    },
    #[error(
        "{} is there already{}: give each process a rank of its own",
        unit(program, rank),
        as_whom(peer, program, *rank)
    )]
    RankTaken {
        program: String,
        rank: u32,
        peer: Named<Peer>,
    },
    #[error(
        "{} says that there are {size} ranks, but other ranks say {there}: give all ranks the same number",
        unit(program, rank)
    )]
    SizeDiffers {
        program: String,
        rank: u32,
        size: u32,
        there: u32,
    },
    #[error(
        "{} does not exist: {program} has {size} ranks, numbered from 0",
        unit(program, rank)
    )]
    RankBeyond {
        program: String,
        rank: u32,
        size: u32,
    },
    #[error(
        "the stream {stream} has ended, and its steps have not all been read: open it again once they have, or choose another name"
    )]
    Over { stream: String, why: EndOfStream },
    #[error("{program} says that it has {size} ranks, but at most {most} are possible: use fewer")]
    TooManyRanks {
        program: String,
        size: u32,
        most: u32,
    },
    #[error(
        "{of} would need {bytes} bytes of the coordinator's memory for its streams, reader groups, subscriptions and steps, but the limit is {most}: close some of them, or retain fewer steps"
    )]
    TooMuchOpen { of: String, bytes: u64, most: u64 },
    #[error(
        "the name that begins with {begins} has {bytes} bytes: the name of a stream, program, reader group or variable can have at most {most}"
    )]
    NameTooLong {
        begins: String,
        bytes: u64,
        most: u64,
    },
    #[error("the policy or a limit of {of} is zero: allow at least one step")]
    ZeroLimit { of: String },
    #[error(
        "this process has not opened the stream or has closed it, or the stream has ended: open it first"
    )]
    NotOpen,

    // Writing
    #[error("this rank sent a request while another one was still unanswered: send one at a time")]
    Busy,
    #[error("step {asked} cannot begin: the next step of this rank is {next}")]
    WrongStep { asked: Step, next: Step },
    #[error("this rank has not begun step {step}, or has aborted it: begin it first")]
    NotBegun { step: Step },
    #[error(
        "{} has closed the stream {stream} without writing step {step}, so that step can never be complete: write the same number of steps in every rank",
        unit(program, rank)
    )]
    RankClosed {
        stream: String,
        program: String,
        rank: u32,
        step: Step,
    },
    #[error(
        "{} closes the stream {stream} without step {step}, which {} has committed: write the same number of steps in every rank",
        unit(program, rank),
        unit(program, other)
    )]
    ClosesEarly {
        stream: String,
        program: String,
        rank: u32,
        step: Step,
        other: u32,
    },
    #[error(
        "the stream {stream} ended before it was complete: {} {how}",
        writer(program.as_deref(), *rank)
    )]
    WriterFailed {
        stream: String,
        /// The program that writes it; `None` if it is not known.
        program: Option<String>,
        rank: u32,
        how: Failure,
    },
    #[error(
        "rank {rank} commits step {step} a second time with different contents: after a restart, write the same step again"
    )]
    Differs { rank: u32, step: Step },
    #[error(
        "rank {rank} refers to a layout that the coordinator does not have: send the whole layout"
    )]
    UnknownLayout { rank: u32 },
    #[error("the part of rank {rank} names a buffer that was not given to it for this step")]
    ForeignBuffer { rank: u32 },
    #[error("rank {rank} gives the offsets of {places} blocks, but its layout has {blocks}")]
    PlacesDiffer { rank: u32, places: u64, blocks: u64 },
    #[error(
        "block {block} of {variable} of rank {rank} does not fit into its buffer, or does not begin at a multiple of 128 bytes"
    )]
    BadPlace {
        rank: u32,
        variable: String,
        block: u64,
    },
    #[error(
        "the description of step {step} of the stream {stream} would take up to {bytes} bytes with the part of rank {rank}, and a message can have at most {most}: write fewer, larger blocks, or shorter attributes"
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
    #[error("{variable} has {dims} dimensions, but at most {most} are possible")]
    TooManyDimensions {
        variable: String,
        dims: u64,
        most: u64,
    },
    #[error("block {block} of {variable} has {dims} dimensions, but its array has {shape}")]
    BlockDimensions {
        variable: String,
        block: Box<Region>,
        dims: u64,
        shape: u64,
    },
    #[error(
        "block {block} of {variable} of rank {rank} is outside the array, whose shape is {shape:?}"
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
    #[error(
        "the {blocks} blocks of {variable} lie in each other's way, so that a search for overlaps would take too long: write fewer, larger blocks, or cut the array like a grid"
    )]
    Entangled { variable: String, blocks: u64 },
    #[error("the size of block {block} of {variable} does not fit into 64 bits")]
    Uncountable {
        variable: String,
        block: Box<Region>,
    },

    // Watching
    #[error(
        "nothing was written to {interest} of the stream {stream} in time; {committed} steps are committed, and the next one is waiting for {whom}"
    )]
    NothingWritten {
        stream: String,
        interest: Box<Interest>,
        committed: u64,
        whom: String,
    },
    #[error(
        "{interest} is outside the array of step {step}, whose shape is {shape:?}: watch a box inside it"
    )]
    NoSuchBox {
        step: Step,
        interest: Box<Interest>,
        shape: Vec<u64>,
    },
    #[error("{interest} is an empty box, to which nothing is ever written: watch a larger one")]
    EmptyBox { interest: Box<Interest> },

    // Reading
    #[error(
        "the answer would take {bytes} bytes, and a message can have at most {most}: keep fewer streams and steps"
    )]
    AnswerTooLong { bytes: u64, most: u64 },
    #[error(
        "step {step} of the stream {stream}, or one after it, is no longer available; {}",
        there_is(oldest)
    )]
    Gone {
        stream: String,
        step: Step,
        oldest: Option<Step>,
    },
    #[error(
        "step {step} has lost blocks, because {} died and no other store had a copy of them: set stage.replicas to 2 or more",
        all_of(block_stores)
    )]
    Damaged {
        step: Step,
        block_stores: Vec<Named<Peer>>,
    },
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
    AnswerTooLong = 449, Gone = 450, Damaged = 451, Entangled = 452,
    BudgetUsedUp = 453,
});

fn all_of(block_stores: &[Named<Peer>]) -> String {
    let names: Vec<String> = block_stores.iter().map(Named::to_string).collect();
    names.join(" and ")
}

fn there_is(oldest: &Option<Step>) -> String {
    match oldest {
        Some(step) => format!("the oldest one that is available is step {step}"),
        None => "none is available".to_owned(),
    }
}

/// Returns the end of the sentence about a stream that nobody opened: which ones are open, and
/// which of these has a similar name, if one has.
fn open_ones(stream: &str, open: &Option<Vec<String>>) -> String {
    let Some(open) = open else {
        return String::new();
    };
    let open: Vec<&str> = open.iter().map(String::as_str).collect();
    match open.is_empty() {
        true => "; no stream is open".to_owned(),
        false => format!("; {}", instead(stream, &open, "these are open")),
    }
}

/// Returns which names there are instead of `name`, introduced by `what`, and which of them is
/// similar, if one is.
pub(crate) fn instead(name: &str, there: &[&str], what: &str) -> String {
    let limit = (name.chars().count() / 3).max(2);
    let distance = |other: &&&str| strsim::damerau_levenshtein(name, other);
    let near = there.iter().min_by_key(distance);
    let near = near.filter(|other| distance(other) <= limit);
    let all = there.join(", ");
    match near {
        None => format!("{what}: {all}"),
        Some(near) => {
            let (first, rest) = what.split_at(1);
            format!("did you mean {near}? {}{rest}: {all}", first.to_uppercase())
        }
    }
}

/// Returns the name of a rank in errors. A group of the method `graph` is named `program/stream`.
pub(crate) fn unit(program: &str, rank: impl fmt::Display) -> String {
    let program = program.split('/').next().unwrap_or(program);
    format!("{program}.{rank}")
}

/// Returns the name of a writer rank. Files do not say which program has written them.
fn writer(program: Option<&str>, rank: u32) -> String {
    program.map_or_else(
        || format!("writer rank {rank}"),
        |program| unit(program, rank),
    )
}

/// Returns which process has a rank, unless its name says that already: a process may open a stream
/// as a rank of another program.
fn as_whom(peer: &Named<Peer>, program: &str, rank: u32) -> String {
    let name = peer.name().filter(|name| **name != *unit(program, rank));
    name.map_or_else(String::new, |name| format!(", as {name}"))
}

/// What has a limit of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Room {
    /// A stream, whose limit is a setting.
    Stream(String),
    /// A block store, whose limit is the budget of its process.
    BlockStore(Named<Peer>),
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Room::Stream(name) => write!(f, "the stream {name}"),
            Room::BlockStore(block_store) => block_store.fmt(f),
        }
    }
}

/// The remedy for a limit that admission control names.
fn raise(at: &Room) -> &'static str {
    match at {
        Room::BlockStore(_) => {
            "give it more memory: memory.budget on its node, or --memory of a staging server"
        }
        Room::Stream(_) => "raise stage.memory, its limit",
    }
}

/// The names of block stores.
pub type Names = BTreeMap<Peer, Arc<str>>;

impl Fault {
    /// Gives the block stores that it names their names.
    pub(crate) fn name_block_stores(&mut self, names: &Names) {
        let name = |known: &mut Named<Peer>| {
            if known.name().is_none() {
                *known = Named::new(known.id, names.get(&known.id).cloned());
            }
        };
        match self {
            Fault::NoMemory { at, .. } | Fault::TooLarge { at, .. } => match at {
                Room::BlockStore(block_store) => name(block_store),
                Room::Stream(_) => {}
            },
            Fault::NoBuffer { block_store, .. }
            | Fault::BlockStoreSilent { block_store, .. }
            | Fault::StillInUse { block_store, .. }
            | Fault::TooManyBuffers { block_store, .. }
            | Fault::NoBlockStore { block_store }
            | Fault::BlockStoreLost { block_store, .. }
            | Fault::BlockStoreFull { block_store }
            | Fault::BudgetUsedUp { block_store, .. }
            | Fault::NumbersUsedUp { block_store, .. } => name(block_store),
            Fault::Damaged { block_stores, .. } => block_stores.iter_mut().for_each(name),
            _ => {}
        }
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
    /// Returns the error of a stream that ended in this way; `None` if it was closed. `program`
    /// writes it, if it is known.
    pub fn fault(self, stream: &str, program: Option<&str>) -> Option<Fault> {
        match self {
            EndOfStream::Closed => None,
            EndOfStream::WriterFailed { rank, how } => Some(Fault::WriterFailed {
                stream: stream.to_owned(),
                program: program.map(str::to_owned),
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
