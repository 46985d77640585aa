//! Messages between agents, and their decoding, which is bounded and does not allocate.

use super::id::NodeLife;
use super::{Departure, Refusal, State};
use crate::Slot;
use serde::{Deserialize, Serialize};

/// Agents of different versions refuse each other.
pub(super) const VERSION: u32 = 1;
/// Maximum size of the entries in one message, in bytes.
pub(super) const PIECE_MAX: usize = 16 << 10;
/// Maximum size of a message, in bytes.
pub(crate) const MESSAGE_MAX: usize = PIECE_MAX + 64;

/// A violation of the rules by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonsense(pub(super) &'static str);

/// The module documentation above says which agent sends which message, and when.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Message<'a> {
    /// First message on a connection to the head: a node asks to become a member.
    Join {
        version: u32,
        name: &'a str,
        address: &'a [u8],
    },
    /// The head's answer to `Join`.
    Welcome {
        domain: u64,
        life: NodeLife,
        name: &'a str,
    },
    /// First message on a connection between two members, and the answer to it. It requests all
    /// node changes after `nodes` (only the head answers this) and all slot changes of the receiver
    /// after `slots`.
    Hello {
        version: u32,
        domain: u64,
        from: NodeLife,
        to: NodeLife,
        nodes: u64,
        slots: u64,
    },
    /// The sender ends the connection.
    Refused(Refusal),
    /// Node changes after an epoch, from the head: a list of [`NodeEntry`].
    Nodes { after: u64, entries: &'a [u8] },
    /// Changes of the sender's slots after a sequence number: a list of [`SlotEntry`].
    Slots { after: u64, entries: &'a [u8] },
    /// The last `Nodes` was applied; the next one may be sent.
    NodesSeen(u64),
    /// The last `Slots` was applied; the next one may be sent.
    SlotsSeen(u64),
    /// The sender is alive. In a message to the head, `unreachable` lists the members that the
    /// sender has not reached for a while ([`NodeLife`]).
    Beat { unreachable: &'a [u8] },
    /// To the head: the node leaves in an orderly way.
    Leave,
}

/// A change of a node, decided by the head.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeEntry<'a> {
    pub(super) epoch: u64,
    pub(super) life: NodeLife,
    #[serde(borrow)]
    pub(super) standing: Standing<'a>,
}

/// The new status of a node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Standing<'a> {
    Member { name: &'a str, address: &'a [u8] },
    Gone(Departure),
}

/// A change of a slot, made by its owner.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SlotEntry<'a> {
    pub(super) sequence: u64,
    pub(super) slot: Slot,
    pub(super) incarnation: u32,
    pub(super) state: State,
    /// What the unit stated about itself; empty for a free slot.
    pub(super) identity: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a message. Its strings and byte slices borrow from `bytes`: nothing is allocated,
    /// whatever lengths the message claims.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Message<'a>, Nonsense> {
        if bytes.len() > MESSAGE_MAX {
            return Err(Nonsense("a message that is too long"));
        }
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            _ => Err(Nonsense("bytes that are no message")),
        }
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain data of known length: encoding it into memory cannot fail.
    postcard::to_stdvec(value).expect("plain data is encodable")
}

/// Iterates over the entries of a message. Each entry takes at least one byte, so the message
/// bounds their number.
pub(super) fn entries<'a, T: Deserialize<'a>>(
    mut rest: &'a [u8],
) -> impl Iterator<Item = Result<T, Nonsense>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match postcard::take_from_bytes(rest) {
            Ok((entry, after)) => {
                rest = after;
                Some(Ok(entry))
            }
            Err(_) => {
                rest = &[];
                Some(Err(Nonsense("bytes that are no entry")))
            }
        }
    })
}
