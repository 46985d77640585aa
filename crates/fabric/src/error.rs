//! What can go wrong in the fabric, said to a person.

use crate::PeerId;
use std::time::Duration;

/// Whom a wait was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// One peer.
    Peer(PeerId),
    /// Whoever sends first.
    Any,
    /// The agent of the node.
    Agent,
}

impl std::fmt::Display for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Whom::Peer(peer) => write!(f, "{peer}"),
            Whom::Any => f.write_str("any peer"),
            Whom::Agent => f.write_str("the agent"),
        }
    }
}

/// Failures of the world; back-pressure is not among them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer died (or left) before the operation was complete.
    #[error("{peer} (incarnation {incarnation}) was lost before the operation was complete")]
    PeerLost {
        /// Who.
        peer: PeerId,
        /// Which life of the slot.
        incarnation: u32,
    },
    /// Nobody with this number is in the domain.
    #[error("{0} is not in the domain; `samite info --domain NAME` lists its processes")]
    NoSuchPeer(PeerId),
    /// A wait went on beyond its deadline.
    #[error("{what}: no answer from {whom} within {after:?}; is it stopped, or waiting for us?")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// Whom it waited for.
        whom: Whom,
        /// How long.
        after: Duration,
    },
    /// The message is longer than the buffer; the buffer holds its beginning or nothing.
    #[error(
        "a message of {message} bytes from {from} does not fit into a buffer of {buffer} bytes"
    )]
    Truncated {
        /// The sender.
        from: PeerId,
        /// Length of the message.
        message: u64,
        /// Length of the buffer.
        buffer: u64,
    },
    /// The receive that had matched the message was given up (cancelled, or its deadline was over)
    /// before the message was whole: what had come of it is dropped.
    #[error("{0} gave up the matching receive before the whole message had arrived; send it again")]
    NotReceived(PeerId),
    /// The operation was cancelled before it was matched, or its sender gave it up.
    #[error("the operation was cancelled")]
    Cancelled,
    /// What a peer wrote into shared memory makes no sense; nothing more is taken from it.
    #[error("{peer} sent invalid data ({what}); the connection to it is closed")]
    PeerCorrupt {
        /// Who.
        peer: PeerId,
        /// What was found.
        what: samite_mem::Corrupt,
    },
    /// A range lies outside a segment.
    #[error("bytes {offset}..{end} lie outside a segment of {bytes} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the segment.
        bytes: u64,
    },
    /// The segment does not exist (any more), or is misaligned for the operation.
    #[error("{peer} has no segment {segment}; was it freed?")]
    NoSuchSegment {
        /// The owner.
        peer: PeerId,
        /// Its number.
        segment: u32,
    },
    /// The owner has the segment for itself, or lets it be read only.
    #[error("segment {segment} of {peer} is in a phase that does not allow this access")]
    WrongPhase {
        /// The owner.
        peer: PeerId,
        /// Its number.
        segment: u32,
    },
    /// The segment cannot change its phase, or be taken back, while somebody uses it.
    #[error(
        "segment {segment} is still in use by {}; drop all attachments to it, and ranges of it, first",
        names(users)
    )]
    InUse {
        /// Its number.
        segment: u32,
        /// The processes that are attached, or have ranges of it; this one may be among them.
        users: Vec<PeerId>,
    },
    /// An atomic needs an aligned offset.
    #[error("offset {0} is not aligned for an atomic of this size")]
    Misaligned(u64),
    /// The key of a signal is 2^63 or above.
    #[error("{0} is not a valid signal key: keys are below 2^63")]
    NoSuchKey(u64),
    /// An active message names a handler that its receiver did not register.
    #[error("{peer} has no handler {handler}")]
    NoHandler {
        /// The receiver.
        peer: PeerId,
        /// The handler's number.
        handler: u16,
    },
    /// The handler of an active message panicked, so that there is no reply.
    #[error("handler {handler} of {peer} panicked")]
    HandlerPanicked {
        /// The receiver.
        peer: PeerId,
        /// The handler's number.
        handler: u16,
    },
    /// A service that this process hosts panicked.
    #[error("the agent's service \"{service}\" panicked, which is a defect of Samite")]
    ServicePanicked {
        /// Its name.
        service: &'static str,
    },
    /// An active message, or the reply to one, is longer than they may be.
    #[error(
        "{what} of {bytes} bytes is longer than {most}; send a message, or the key of a segment"
    )]
    TooLong {
        /// Which of them.
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// Most that there may be.
        most: u64,
    },
    /// The budget of shared memory is reached.
    #[error("shared memory: {0}")]
    Memory(String),
    /// The budget of shared memory is reached.
    #[error(
        "shared memory: {asked} bytes were requested, and {used} of the budget of {budget} bytes are in use; \
         free segments or raise memory.budget"
    )]
    Budget {
        /// Bytes asked for.
        asked: u64,
        /// Bytes in use by the domain.
        used: u64,
        /// The budget.
        budget: u64,
    },
    /// The domain could not be joined.
    #[error("cannot join domain \"{domain}\": {why}")]
    Join {
        /// Its name.
        domain: String,
        /// What happened and what to do.
        why: String,
    },
    /// A unit that this one waited for has not joined.
    #[error("{unit} of job \"{job}\" has not joined: {how}")]
    Absent {
        /// What people call it; several, if several are missing.
        unit: String,
        /// The job.
        job: String,
        /// How it ended, or how long it was waited for.
        how: String,
    },
    /// The agent of the node is gone; who joins, dies or needs memory is no longer heard of.
    #[error("the agent of domain \"{0}\" is gone; start the job again")]
    AgentLost(String),
    /// This process is a fork of the one that joined: what it has is a copy, and not its own.
    #[error(
        "this process is a fork of one that joined a domain, and cannot use the parent's membership; join again in this process"
    )]
    Forked,
}

fn names(users: &[PeerId]) -> String {
    let names: Vec<String> = users.iter().map(PeerId::to_string).collect();
    match names.is_empty() {
        true => "a process that has just left it".into(),
        false => names.join(", "),
    }
}

samite_mem::error_codes!(Error, "fabric", {
    PeerLost = 1, NoSuchPeer = 2, Timeout = 3, Truncated = 4, Cancelled = 5, PeerCorrupt = 6,
    OutOfRange = 7, NoSuchSegment = 8, Misaligned = 9, NoHandler = 10, Memory = 11, Budget = 12,
    Join = 13, AgentLost = 14, WrongPhase = 15, InUse = 16, Absent = 17, TooLong = 18, Forked = 19,
    NotReceived = 20, NoSuchKey = 21, HandlerPanicked = 22, ServicePanicked = 23,
});

impl Error {
    /// Of memory that a peer describes.
    pub(crate) fn of_memory_of(peer: PeerId) -> impl Fn(samite_mem::Error) -> Error {
        move |error| match error {
            samite_mem::Error::Corrupt(what) => Error::PeerCorrupt { peer, what },
            other => other.into(),
        }
    }
}

impl From<samite_mem::Error> for Error {
    fn from(error: samite_mem::Error) -> Self {
        match error {
            samite_mem::Error::Budget {
                asked,
                used,
                budget,
            } => Error::Budget {
                asked,
                used,
                budget,
            },
            samite_mem::Error::OutOfRange { offset, end, bytes } => {
                Error::OutOfRange { offset, end, bytes }
            }
            samite_mem::Error::Forked => Error::Forked,
            other => Error::Memory(other.to_string()),
        }
    }
}
