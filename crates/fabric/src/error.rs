//! Errors of the fabric, as messages for people.

use crate::{Named, PeerId};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The party that a wait was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// One peer.
    Peer(PeerId),
    /// Any sender.
    Any,
    /// The agent of the node.
    Agent,
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Peer(peer) => write!(f, "{peer}"),
            Whom::Any => f.write_str("any peer"),
            Whom::Agent => f.write_str("the agent"),
        }
    }
}

/// What was expected before a deadline, and did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// The arrival of a message that a receive accepts.
    Message {
        /// The tag that it accepts.
        tag: u64,
        /// The bits of the tag that are compared.
        mask: u64,
        /// Some tags of messages that did come, and that nobody has received.
        others: Vec<u64>,
    },
    /// The rest of a message whose beginning has arrived.
    Rest {
        /// Its tag.
        tag: u64,
    },
    /// That a message was taken.
    Receipt {
        /// Its tag.
        tag: u64,
    },
    /// A signal.
    Signal {
        /// Its key.
        key: u64,
    },
}

/// Failures of the world; back-pressure is not an error.
///
/// Where an error names a peer, it has the name of the unit ([`Named`]), if this process knew it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer died (or left) before the operation was complete.
    #[error("{peer}{} died or left before the operation was complete", life(*incarnation))]
    PeerLost {
        /// The peer.
        peer: Named<PeerId>,
        /// Its incarnation.
        incarnation: u32,
    },
    /// No process with this number is in the domain.
    #[error("{0} is not in the domain; `samite info --domain NAME` lists its processes")]
    NoSuchPeer(PeerId),
    /// A message to the agent: it receives none.
    #[error(
        "{0} receives no messages: it is not a unit; take the numbers of units from `job` or `program`"
    )]
    NoMessages(Named<PeerId>),
    /// A wait passed its deadline.
    #[error("{}", timeout_sentence(what, whom, *after, expected.as_deref()))]
    Timeout {
        /// What the wait was for.
        what: &'static str,
        /// The party that it waited for.
        whom: Named<Whom>,
        /// The deadline.
        after: Duration,
        /// The message or signal that was expected, if it was one.
        expected: Option<Box<Expected>>,
    },
    /// The message is longer than the buffer, which contains its beginning or nothing.
    #[error(
        "the message with tag {tag} from {from} has {message} bytes and does not fit into a buffer of {buffer}; \
         use a larger buffer, or `recv_vec`"
    )]
    Truncated {
        /// The sender.
        from: Named<PeerId>,
        /// Its tag.
        tag: u64,
        /// Length of the message.
        message: u64,
        /// Length of the buffer.
        buffer: u64,
    },
    /// The matching receive was abandoned (cancelled, or past its deadline) before the whole
    /// message had arrived; the part that had arrived was dropped.
    #[error("{0} gave up the matching receive before the whole message had arrived; send it again")]
    NotReceived(Named<PeerId>),
    /// The operation was cancelled before it was matched, or its sender abandoned it.
    #[error("the operation was cancelled")]
    Cancelled,
    /// A peer wrote invalid data into shared memory; nothing more is read from it.
    #[error("{peer} sent invalid data ({what}); the connection to it is closed")]
    PeerCorrupt {
        /// The peer.
        peer: Named<PeerId>,
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
    /// The segment does not exist (any more).
    #[error("{peer} has no segment {segment}; was it freed?")]
    NoSuchSegment {
        /// The owner.
        peer: Named<PeerId>,
        /// Its number.
        segment: u32,
    },
    /// The owner uses the segment exclusively, or allows only reads.
    #[error("segment {segment} of {peer} is in a phase that does not allow this access")]
    WrongPhase {
        /// The owner.
        peer: Named<PeerId>,
        /// Its number.
        segment: u32,
    },
    /// The segment cannot change its phase or be freed while a process uses it.
    #[error(
        "segment {segment} is still in use by {}; drop all attachments to it, and ranges of it, first",
        names(users)
    )]
    InUse {
        /// Its number.
        segment: u32,
        /// The processes that are attached or have ranges of it, possibly including this one.
        users: Vec<Named<PeerId>>,
    },
    /// An atomic needs an aligned offset.
    #[error("offset {0} is not aligned for an atomic of this size")]
    Misaligned(u64),
    /// The key of a signal is 2^63 or above.
    #[error("{0} is not a valid signal key: keys are below 2^63")]
    NoSuchKey(u64),
    /// An active message names a handler that its receiver has not registered.
    #[error("{peer} has no handler {handler}: register it there (`on`) before others use it")]
    NoHandler {
        /// The receiver.
        peer: Named<PeerId>,
        /// The handler's number.
        handler: u16,
    },
    /// The handler of an active message panicked, so there is no reply.
    #[error("handler {handler} of {peer} panicked")]
    HandlerPanicked {
        /// The receiver.
        peer: Named<PeerId>,
        /// The handler's number.
        handler: u16,
    },
    /// A service that this process hosts panicked.
    #[error("the agent's service \"{service}\" panicked, which is a defect of Samite")]
    ServicePanicked {
        /// Its name.
        service: &'static str,
    },
    /// An active message, or the reply to one, is too long.
    #[error(
        "{what} of {bytes} bytes is longer than {most}; send a message, or the key of a segment"
    )]
    TooLong {
        /// Whether it was a message or a reply.
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// The maximum length.
        most: u64,
    },
    /// Another failure of shared memory.
    #[error("shared memory: {0}")]
    Memory(String),
    /// The request exceeds the budget of shared memory.
    #[error(
        "shared memory: {asked} bytes were requested, and {used} of the budget of {budget} bytes are in use; \
         free segments or raise memory.budget"
    )]
    Budget {
        /// Bytes requested.
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
        /// What happened, and what to do about it.
        why: String,
    },
    /// A unit that this one waited for has not joined.
    #[error("{unit} of job \"{job}\" has not joined: {how}")]
    Absent {
        /// The name of the unit; a list if several are missing.
        unit: String,
        /// The job.
        job: String,
        /// How it ended, or how long this process waited for it.
        how: String,
    },
    /// The agent of the domain refused a request of a member, or this process could not send it.
    #[error("a request to the agent of domain \"{domain}\" failed: {why}")]
    Request {
        /// The name of the domain.
        domain: String,
        /// What happened.
        why: String,
    },
    /// The agent of the node is gone: processes can no longer join, get memory or learn of deaths.
    #[error("the agent of domain \"{0}\" is gone; start the job again")]
    AgentLost(String),
    /// A member of a layer ([`crate::Layer`]) counts more lives of it than there can have been.
    #[error(
        "a member of {layer} counts {life} lives of it, more than there can have been: one of the members has a \
         defect, or is hostile"
    )]
    NoSuchLife {
        /// The layer.
        layer: &'static str,
        /// The number that the members agreed on.
        life: u64,
    },
    /// The program asked for the end of the wait ([`crate::Fabric::interruptible`]).
    #[error("the wait was interrupted by this process itself")]
    Interrupted,
    /// This process is a fork of one that joined: its memory is a copy that it must not use.
    #[error(
        "this process is a fork of one that joined a domain, and cannot use the parent's membership; join again under another identity"
    )]
    Forked,
}

/// An incarnation, unless it is the first.
fn life(incarnation: u32) -> String {
    match incarnation {
        0 | 1 => String::new(),
        later => format!(" (incarnation {later})"),
    }
}

/// The sentence of a wait that reached its deadline.
fn timeout_sentence(
    what: &str,
    whom: &Named<Whom>,
    after: Duration,
    expected: Option<&Expected>,
) -> String {
    let is_any = *whom == Whom::Any;
    let stopped = match whom.id {
        Whom::Any => "is any of them still running?",
        Whom::Agent => "is it stopped?",
        Whom::Peer(_) => "is it stopped, or waiting for this process?",
    };
    match expected {
        None => format!("{what}: no answer from {whom} within {after:?}; {stopped}"),
        Some(Expected::Signal { key }) => {
            format!("no signal with key {key} came from {whom} within {after:?}; {stopped}")
        }
        Some(Expected::Receipt { tag }) => format!(
            "the message with tag {tag} was not taken by {whom} within {after:?}; does it receive this tag, \
             is it stopped, or waiting for this process?"
        ),
        Some(Expected::Rest { tag }) => format!(
            "the message with tag {tag} from {whom} did not arrive completely within {after:?}; {stopped}"
        ),
        Some(Expected::Message { tag, mask, others }) => {
            let tags = match *mask {
                u64::MAX => format!("tag {tag}"),
                0 => "any tag".to_owned(),
                mask => format!("a tag that equals {tag:#x} under the mask {mask:#x}"),
            };
            let hint = match (others.as_slice(), is_any) {
                ([], _) => stopped.to_owned(),
                (others, true) => {
                    let those = listed(others);
                    format!(
                        "messages with {those} came, and nobody has received them: is the tag right?"
                    )
                }
                (others, false) => {
                    let those = listed(others);
                    format!(
                        "it sent messages with {those}, which nobody has received: is the tag right?"
                    )
                }
            };
            format!("no message with {tags} came from {whom} within {after:?}; {hint}")
        }
    }
}

/// Returns "tag 8", or "tags 8, 9".
fn listed(tags: &[u64]) -> String {
    let all: Vec<String> = tags.iter().map(u64::to_string).collect();
    match all.len() {
        1 => format!("tag {}", all[0]),
        _ => format!("tags {}", all.join(", ")),
    }
}

fn names(users: &[Named<PeerId>]) -> String {
    let names: Vec<String> = users.iter().map(Named::to_string).collect();
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
    NoMessages = 24, NoSuchLife = 25, Request = 26, Interrupted = 27,
});

/// Results of calls that take nanoseconds hold an error.
const _: () = assert!(size_of::<Error>() <= 72);

impl Error {
    /// A wait that reached its deadline.
    pub fn timeout(what: &'static str, whom: impl Into<Named<Whom>>, after: Duration) -> Error {
        Error::Timeout {
            what,
            whom: whom.into(),
            after,
            expected: None,
        }
    }

    /// Returns whether a wait was given up, at its deadline or because the program was interrupted:
    /// what it waited for may still come.
    pub fn is_given_up(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Interrupted)
    }

    /// Gives the peers that it names the names that are known of them. `name_of` is given a peer
    /// and, if the error has it, the incarnation.
    pub(crate) fn name_peers(&mut self, name_of: impl Fn(PeerId, Option<u32>) -> Option<Arc<str>>) {
        let peer = match self {
            Error::PeerLost { peer, incarnation } => {
                let (id, life) = (peer.id, *incarnation);
                return peer.call(|| name_of(id, Some(life)));
            }
            Error::Timeout { whom, .. } => {
                return match whom.id {
                    Whom::Peer(id) => whom.call(|| name_of(id, None)),
                    Whom::Any | Whom::Agent => {}
                };
            }
            Error::InUse { users, .. } => {
                for user in users {
                    let id = user.id;
                    user.call(|| name_of(id, None));
                }
                return;
            }
            Error::Truncated { from: peer, .. }
            | Error::NotReceived(peer)
            | Error::NoMessages(peer)
            | Error::PeerCorrupt { peer, .. }
            | Error::NoSuchSegment { peer, .. }
            | Error::WrongPhase { peer, .. }
            | Error::NoHandler { peer, .. }
            | Error::HandlerPanicked { peer, .. } => peer,
            _ => return,
        };
        let id = peer.id;
        peer.call(|| name_of(id, None));
    }

    /// Converts an error about memory that a peer described.
    pub(crate) fn of_memory_of(peer: PeerId) -> impl Fn(samite_mem::Error) -> Error {
        move |error| match error {
            samite_mem::Error::Corrupt(what) => Error::PeerCorrupt {
                peer: peer.into(),
                what,
            },
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
