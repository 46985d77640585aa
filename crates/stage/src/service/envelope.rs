//! The messages to and from a service, as they are transmitted.

use crate::protocol::{self, Answer, BufferId, Fault, LONGEST, Order, Peer, Request, Ticket};
use samite_fabric::Fabric;
use samite_fabric::rpc::{Life, Server, ServiceId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

// A message to a coordinator is moved several times, so large and rare variants are boxed. The id
// of a request is its ticket; a request without an answer is a note.
const _: () = assert!(size_of::<Request>() <= 160);

/// A message to a block store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToStore {
    /// From its coordinator: a note.
    Order(Order),
    /// From a process that writes or reads: a request, whose response is a [`BlockStoreAnswer`].
    Ask(BlockStoreRequest),
}

/// A request to a block store from a process that does not map its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum BlockStoreRequest {
    /// Opens a buffer, which has no borrower, for puts by messages.
    Open(BufferId),
    /// Reads bytes of a spilled buffer: offset and length.
    Load(BufferId, u64, u64),
    /// Asks for its [`Usage`](super::Usage), encoded.
    Figures,
}

/// The requested bytes, or why the block store refuses.
pub(crate) type BlockStoreAnswer = Result<Vec<u8>, String>;

/// Returns this process, as the others know it.
pub(crate) fn own(fabric: &Fabric) -> Peer {
    Peer::new(fabric.me().0, fabric.incarnation())
}

/// Returns the fabric's name of a process.
pub(crate) fn life(peer: Peer) -> Life {
    Life {
        peer: peer.id(),
        incarnation: peer.incarnation(),
    }
}

/// An encoded message of a service to one peer.
pub(crate) struct Packed {
    to: To,
    bytes: Vec<u8>,
}

enum To {
    /// A response to that request.
    Asker(u64),
    /// A note to that service.
    Service(ServiceId),
}

impl Packed {
    /// Packs an order to a block store.
    pub(crate) fn order(order: Order) -> Packed {
        Packed {
            to: To::Service(ServiceId::BLOCK_STORE),
            bytes: protocol::encode(&ToStore::Order(order)),
        }
    }

    /// Packs a note to the coordinator.
    pub(crate) fn request(request: &Request) -> Packed {
        Packed {
            to: To::Service(ServiceId::COORDINATOR),
            bytes: protocol::encode(request),
        }
    }

    /// Packs an answer of the block store.
    pub(crate) fn kept(to: u64, answer: &BlockStoreAnswer) -> Packed {
        Packed::response(to, protocol::encode(answer))
    }

    /// Packs an answer of the coordinator. An answer that is too long for a message becomes an
    /// error. A step is never too long, because it would not have been committed.
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

    /// Sends the message to its peer, if the peer takes it now.
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
