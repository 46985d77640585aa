//! What is said to a service, and what it says, as it travels.

use crate::protocol::{self, Answer, BufferId, Fault, LONGEST, Order, Peer, Request, Ticket};
use samite_fabric::Fabric;
use samite_fabric::rpc::{Life, Server, Service};
use serde::{Deserialize, Serialize};
use std::time::Duration;

// What is said to a coordinator is moved several times on its way: what is large and rare is in a
// box. The id of a request is its ticket; one to which no answer comes is a note.
const _: () = assert!(size_of::<Request>() <= 160);

/// What is said to a block store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToStore {
    /// From its coordinator: a note.
    Order(Order),
    /// From a process that writes or reads: a request, whose response is a [`BlockStoreAnswer`].
    Ask(BlockStoreRequest),
}

/// What those ask a block store who do not map its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum BlockStoreRequest {
    /// Lets bytes be put into a buffer by messages: nobody has borrowed it.
    Open(BufferId),
    /// Bytes of a spilled buffer: offset and length.
    Load(BufferId, u64, u64),
    /// What it has: a [`Usage`](super::Usage), encoded.
    Figures,
}

/// The bytes that a block store was asked for, or why not.
pub(crate) type BlockStoreAnswer = Result<Vec<u8>, String>;

/// This process, as the others know it.
pub(crate) fn own(fabric: &Fabric) -> Peer {
    Peer::new(fabric.me().0, fabric.incarnation())
}

/// A process, as the fabric names it.
pub(crate) fn life(peer: Peer) -> Life {
    Life {
        peer: peer.id(),
        incarnation: peer.incarnation(),
    }
}

/// What a service says to one peer, as it travels.
pub(crate) struct Packed {
    to: To,
    bytes: Vec<u8>,
}

enum To {
    /// A response to that request.
    Asker(u64),
    /// A note to that service.
    Service(Service),
}

impl Packed {
    /// To a block store.
    pub(crate) fn order(order: Order) -> Packed {
        Packed {
            to: To::Service(Service::BLOCK_STORE),
            bytes: protocol::encode(&ToStore::Order(order)),
        }
    }

    /// To the coordinator, which does not answer.
    pub(crate) fn request(request: &Request) -> Packed {
        Packed {
            to: To::Service(Service::COORDINATOR),
            bytes: protocol::encode(request),
        }
    }

    /// The block store's answer.
    pub(crate) fn kept(to: u64, answer: &BlockStoreAnswer) -> Packed {
        Packed::response(to, protocol::encode(answer))
    }

    /// The coordinator's answer. What no message can carry is an error instead; a step is never too
    /// long: it would not have been committed.
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

    pub(super) fn response(to: u64, bytes: Vec<u8>) -> Packed {
        let to = To::Asker(to);
        Packed { to, bytes }
    }

    #[cfg(test)]
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Packed {
        Packed::response(u64::MAX, bytes)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sends it to the peer that it is for, if that one takes it now.
    pub(crate) fn send(
        &self,
        fabric: &Fabric,
        server: &Server,
        to: Peer,
    ) -> samite_fabric::Result<()> {
        let (to, now) = (life(to), Duration::ZERO);
        match self.to {
            To::Asker(id) => server.respond(to, id, &self.bytes, now),
            To::Service(service) => fabric.note(service, to, now, &self.bytes),
        }
    }
}
