//! What agents say to each other, and how it is read: bounded, and without an allocation.

use super::id::NodeLife;
use super::{Departure, Refusal, State};
use crate::Slot;
use serde::{Deserialize, Serialize};

/// Agents of different versions refuse each other.
pub(super) const VERSION: u32 = 1;
/// Entries of one message, in bytes.
pub(super) const PIECE_MAX: usize = 16 << 10;
/// No message is longer, in bytes.
pub(crate) const MESSAGE_MAX: usize = PIECE_MAX + 64;

/// A message that breaks the rules: what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonsense(pub(super) &'static str);

/// See the text of the module above for who says what when.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Message<'a> {
    /// To the head, first on a connection: a node asks to become a member.
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
    /// First on a connection of two members, and the answer. It asks for all node changes after
    /// `nodes` (heeded by the head) and for all slot changes of the listener after `slots`.
    Hello {
        version: u32,
        domain: u64,
        from: NodeLife,
        to: NodeLife,
        nodes: u64,
        slots: u64,
    },
    /// The connection ends here.
    Refused(Refusal),
    /// Node changes after an epoch, from the head: many [`NodeEntry`].
    Nodes { after: u64, entries: &'a [u8] },
    /// Changes of the sender's slots after a sequence number: many [`SlotEntry`].
    Slots { after: u64, entries: &'a [u8] },
    /// The last `Nodes` was applied; the next may come.
    NodesSeen(u64),
    /// The last `Slots` was applied; the next may come.
    SlotsSeen(u64),
    /// The sender lives. To the head: and has not reached these members for a while (many
    /// [`NodeLife`]).
    Beat { unreachable: &'a [u8] },
    /// To the head: the node leaves in order.
    Leave,
}

/// A change of a node, ordered by the head.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeEntry<'a> {
    pub(super) epoch: u64,
    pub(super) life: NodeLife,
    #[serde(borrow)]
    pub(super) standing: Standing<'a>,
}

/// What becomes of a node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Standing<'a> {
    Member { name: &'a str, address: &'a [u8] },
    Gone(Departure),
}

/// A change of a slot, ordered by its owner.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SlotEntry<'a> {
    pub(super) sequence: u64,
    pub(super) slot: Slot,
    pub(super) incarnation: u32,
    pub(super) state: State,
    /// What the unit said of itself; empty of a free slot.
    pub(super) identity: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Strings and bytes of the message are those of `bytes`: whatever lengths it claims, nothing
    /// is allocated.
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
    // Plain data with lengths known: writing it to memory cannot fail.
    postcard::to_stdvec(value).expect("plain data is encodable")
}

/// The entries of a message, one after the other. Each takes bytes of the message, so there are no
/// more of them than that.
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
