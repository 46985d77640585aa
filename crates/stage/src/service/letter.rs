//! What travels between the processes of a stream, as active messages.
//!
//! Slots of processes are used again. So a message says which life of its slot its sender is, and for which life of the other
//! one it is meant: what was meant for a process that is gone reaches nobody, and whoever has its slot now is another peer.

use super::{Inbox, letters};
use crate::Result;
use crate::protocol::{self, BufferId, LONGEST, Notice, Order, Peer, Request, Ticket};
use samite_fabric::{Fabric, PeerId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Numbers of the handlers: of a service, and of a process that writes or reads.
pub(crate) const SERVICE: u16 = 0x5a01;
pub(crate) const CLIENT: u16 = 0x5a02;
/// Answered by a service that takes letters: before, they would be lost.
pub(crate) const HELLO: u16 = 0x5a03;

/// One message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Letter {
    /// To the steward.
    Request(Request),
    /// To a keeper, from the steward.
    Order(Order),
    /// To a keeper, from who writes or reads.
    Ask(KeeperAsk),
    /// To who writes or reads, from the steward.
    Answer(Ticket, protocol::Answer),
    /// To who writes or reads, from a keeper.
    Kept(KeeperAnswer),
}

// Letters are moved several times on their way, and lists of four of them made: what is large and rare is in a box.
const _: () = assert!(size_of::<Letter>() <= 160);

/// What those ask a keeper who do not map its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum KeeperAsk {
    /// Lets bytes be put into a buffer by messages: nobody has borrowed it.
    Open(Ticket, BufferId),
    /// Bytes of a spilled buffer: offset and length.
    Load(Ticket, BufferId, u64, u64),
    /// What it has: a [`Kept`](super::Kept), encoded.
    Figures(Ticket),
}

/// The answer of a keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeeperAnswer {
    pub(crate) ticket: Ticket,
    /// The bytes that were asked for, or why not.
    pub(crate) result: Result<Vec<u8>, String>,
}

impl Letter {
    /// Whether somebody waits for an answer to it.
    pub(crate) fn is_question(&self) -> bool {
        match self {
            Letter::Request(request) => request.ticket().is_some(),
            Letter::Ask(_) => true,
            Letter::Order(_) | Letter::Answer(..) | Letter::Kept(_) => false,
        }
    }

    /// What is sent instead, if it has so many bytes. A step is never too long: it would not have been committed.
    pub(super) fn instead(&self, bytes: usize) -> Option<Letter> {
        let too_long = bytes > LONGEST;
        let Letter::Answer(ticket, answer) = self else {
            return None;
        };
        debug_assert!(!too_long || !matches!(answer, protocol::Answer::Step(_)));
        let (bytes, most) = (bytes as u64, LONGEST as u64);
        let fault = protocol::Fault::AnswerTooLong { bytes, most };
        too_long.then_some(Letter::Answer(*ticket, protocol::Answer::Failed(fault)))
    }

    pub(crate) fn of_notice(notice: Notice) -> Letter {
        match notice {
            Notice::Answer { ticket, answer } => Letter::Answer(ticket, answer),
            Notice::Order(order) => Letter::Order(order),
        }
    }
}

/// This process, as the others know it.
pub(crate) fn own(fabric: &Fabric) -> Peer {
    Peer::new(fabric.me().0, fabric.incarnation())
}

/// A letter as it travels to one peer.
pub(crate) struct Packed {
    handler: u16,
    bytes: Vec<u8>,
}

impl Packed {
    /// For a peer, from this process.
    pub(crate) fn new(fabric: &Fabric, to: Peer, letter: &Letter) -> Packed {
        let handler = match letter {
            Letter::Request(_) | Letter::Order(_) | Letter::Ask(_) => SERVICE,
            Letter::Answer(..) | Letter::Kept(_) => CLIENT,
        };
        let lives = (fabric.incarnation(), to.incarnation());
        let bytes = protocol::encode(&(lives, letter));
        Packed { handler, bytes }
    }

    #[cfg(test)]
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Packed {
        let handler = SERVICE;
        Packed { handler, bytes }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sends it to the peer that it is for.
    pub(crate) fn send(&self, fabric: &Fabric, to: Peer, deadline: Duration) -> Result<()> {
        let to = PeerId(to.slot());
        Ok(fabric.tell_within(deadline, to, self.handler, &self.bytes)?)
    }
}

/// Sends a letter to whom it is for.
pub(crate) fn send(fabric: &Fabric, to: Peer, letter: &Letter) -> Result<()> {
    Packed::new(fabric, to, letter).send(fabric, to, fabric.deadline())
}

/// What came, from a process that has this slot, for life `own` of this process; nothing if it is nonsense, or for another one.
pub(crate) fn open(from: PeerId, own: u32, bytes: &[u8]) -> Option<(Peer, Letter)> {
    let Some(((sender, addressee), letter)) = protocol::decode::<((u32, u32), Letter)>(bytes)
    else {
        tracing::warn!(%from, "{} bytes that are no letter", bytes.len());
        return None;
    };
    if addressee != own {
        tracing::debug!(%from, ?letter, "a letter for who had this slot before");
        return None;
    }
    Some((Peer::new(from.0, sender), letter))
}

/// Puts the letters that come into an inbox. Nonsense is dropped: whoever sent it waits until its deadline.
pub(super) fn receive(fabric: &Fabric, handler: u16, inbox: &Inbox) {
    let (inbox, own) = (inbox.clone(), fabric.incarnation());
    fabric.on(handler, move |from, bytes| {
        letters(&inbox).extend(open(from, own, bytes));
        None
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Answer, Fault};

    #[test]
    fn an_answer_that_is_too_long_is_an_error_instead() {
        let answer = Letter::Answer(Ticket(7), Answer::Committed);
        assert!(answer.instead(LONGEST).is_none());
        let Some(Letter::Answer(Ticket(7), Answer::Failed(fault))) = answer.instead(LONGEST + 1)
        else {
            panic!("it is too long");
        };
        let (bytes, most) = (LONGEST as u64 + 1, LONGEST as u64);
        assert_eq!(fault, Fault::AnswerTooLong { bytes, most });
        let order = Letter::Order(Order::Seal {
            buffer: BufferId {
                stream: protocol::StreamId(1),
                number: 2,
            },
        });
        assert!(order.instead(LONGEST + 1).is_none());
    }
}
