//! What is said to a service, and what it says, as it travels.

use crate::Result;
use crate::protocol::{self, Answer, BufferId, Fault, LONGEST, Order, Peer, Request, Ticket};
use samite_fabric::rpc::{Life, Server, Service};
use samite_fabric::{Fabric, PeerId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is said to a service. The id of a request is its ticket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Letter {
    /// To the steward: a request, or a note if no answer comes.
    Request(Request),
    /// To a keeper, from the steward: a note.
    Order(Order),
    /// To a keeper, from who writes or reads: a request, whose response is a [`KeeperAnswer`].
    Ask(KeeperAsk),
}

// Letters are moved several times on their way, and lists of four of them made: what is large and rare is in a box.
const _: () = assert!(size_of::<Letter>() <= 160);

/// What those ask a keeper who do not map its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum KeeperAsk {
    /// Lets bytes be put into a buffer by messages: nobody has borrowed it.
    Open(BufferId),
    /// Bytes of a spilled buffer: offset and length.
    Load(BufferId, u64, u64),
    /// What it has: a [`Kept`](super::Kept), encoded.
    Figures,
}

/// The bytes that a keeper was asked for, or why not.
pub(crate) type KeeperAnswer = Result<Vec<u8>, String>;

/// This process, as the others know it.
pub(crate) fn own(fabric: &Fabric) -> Peer {
    Peer::new(fabric.me().0, fabric.incarnation())
}

/// A process, as the fabric names it.
pub(crate) fn life(peer: Peer) -> Life {
    Life {
        peer: PeerId(peer.slot()),
        incarnation: peer.incarnation(),
    }
}

/// What a service says to one peer, as it travels.
pub(crate) struct Packed {
    /// The request that it responds to; `None` for a note.
    to: Option<u64>,
    bytes: Vec<u8>,
}

impl Packed {
    pub(crate) fn note(letter: &Letter) -> Packed {
        Packed {
            to: None,
            bytes: protocol::encode(letter),
        }
    }

    /// The steward's answer. What no message can carry is an error instead; a step is never too long: it would not have
    /// been committed.
    pub(crate) fn answer(ticket: Ticket, answer: &Answer) -> Packed {
        let bytes = protocol::encode(answer);
        if bytes.len() <= LONGEST {
            return Packed::response(ticket.0, bytes);
        }
        debug_assert!(!matches!(answer, Answer::Step(_)));
        let (bytes, most) = (bytes.len() as u64, LONGEST as u64);
        let fault = Answer::Failed(Fault::AnswerTooLong { bytes, most });
        Packed::response(ticket.0, protocol::encode(&fault))
    }

    pub(crate) fn response(to: u64, bytes: Vec<u8>) -> Packed {
        let to = Some(to);
        Packed { to, bytes }
    }

    #[cfg(test)]
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Packed {
        Packed { to: None, bytes }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sends it to the peer that it is for.
    pub(crate) fn send(
        &self,
        fabric: &Fabric,
        server: &Server,
        to: Peer,
        deadline: Duration,
    ) -> Result<()> {
        match self.to {
            Some(id) => server.respond(life(to), id, &self.bytes, deadline)?,
            None => fabric.note(Service::STAGING, life(to), deadline, &self.bytes)?,
        }
        Ok(())
    }
}
