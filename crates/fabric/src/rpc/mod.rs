//! Requests that are answered later: what an active message asks whose answer its handler cannot
//! know.
//!
//! A process *serves* by a [`Server`]: requests wait in its inbox until it takes them, and it
//! responds to each whenever it likes. A client makes a [`Call`] and waits for the response, with a
//! deadline of its own.
//!
//! ```text
//!   client                                      server
//!   call()    ACTIVE, request id  ---------->   inbox
//!             <---------- REPLY: refused                       no server, or a full inbox: the
//!                                                              client sends it again, ever later
//!   wait()                                      take()
//!             <---------- REPLY: the response   respond()      the id's operation ends; also when
//!                         (ACTIVE_RTS: a long one)             the peer is lost
//!   note()    ACTIVE, id 0        ---------->   inbox          nothing comes back
//! ```
//!
//! # Ids
//! The id of a request is its [operation](crate::ops): one table has all that a process waits for,
//! so a response finds its call without a search, and the loss of a peer ends calls like any other
//! operation. An id is never used twice in 2^32 operations, and no id is 0. Which service is asked
//! is a number of an active message from [`KEPT`] on: users have those below. [`Service`] lists
//! them all.
//!
//! # Invariants
//! R1 A request is in the inbox of one life of one peer, once: it is sent again only after it was
//!    refused, and a refused request was never in the inbox.
//! R2 A request, a note and a response name the life of the peer that they are for: to another life
//!    of its number none of them is sent ([`Error::PeerLost`](crate::Error::PeerLost)), and what a
//!    server takes says which life sent it.
//! R3 Every queue is counted in bytes. The inbox has at most so many of each peer beside the first
//!    request, whatever its length; notes, which cannot be sent again, may have twice as many, and
//!    a peer that sends more of them loses them. Of responses to one peer sixteen frames wait here
//!    at most, and as much to be fetched as of any long active message: [`Server::respond`] waits,
//!    or says that it cannot. A process' own inbox is filled without a frame, when
//!    [`Fabric::call`](crate::Fabric::call) or [`Fabric::note`](crate::Fabric::note) returns; a
//!    note of its own waits for room, and is not lost.
//! R4 A call that is dropped is forgotten here; its response is dropped as it comes. The server is
//!    not told.
//!
//! # Not guaranteed
//! * That a request was not carried out, where its call ends with an error: the response may have
//!   been lost with the server, or be late. Requests that may not be carried out twice need a
//!   number of their own.
//! * An order between calls and notes of different threads. Those of one thread to one server
//!   arrive in order, unless one is refused.
//!
//! # Files
//! `call` (the client) · `inbox` · `server` (takes from it, and responds)

mod call;
mod inbox;
mod server;
#[cfg(test)]
mod tests;

pub use call::Call;
pub use inbox::Inbound;
pub(crate) use inbox::Inbox;
pub use server::Server;

use crate::PeerId;

/// The numbers of handlers from here on are those of services, and of the fabric itself.
pub const KEPT: u16 = 0xff00;
/// The handler that looks up the key of a segment by its number.
pub(crate) const LOOK_UP: u16 = u16::MAX;

/// A service that peers ask, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service(u16);

impl Service {
    /// Says what services an agent hosts.
    pub const HOST: Service = Service(KEPT);
    /// Coordinates streams.
    pub const COORDINATOR: Service = Service(KEPT + 1);
    /// Owns the memory of streams.
    pub const BLOCK_STORE: Service = Service(KEPT + 2);

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Whether an active message of this number is for a service.
    pub(crate) fn is(number: u16) -> bool {
        (KEPT..LOOK_UP).contains(&number)
    }
}

/// One life of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// Its number, which another process may have by now.
    pub peer: PeerId,
    /// Which life of the number it is.
    pub incarnation: u32,
}
