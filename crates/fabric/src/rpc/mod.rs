//! Requests that are answered later: for questions that a handler of active messages cannot answer
//! at once.
//!
//! A process *serves* with a [`Server`]: requests wait in its inbox until it takes them, and it
//! responds to each when it likes. A client makes a [`Call`] and waits for the response, with its
//! own deadline.
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
//! The id of a request is its operation: one table holds all that a process waits
//! for, so a response finds its call without a search, and the loss of a peer ends calls like any
//! other operation. An id is never reused within 2^32 operations, and no id is 0. The service is
//! selected by a number of an active message from [`KEPT`] on; users have the numbers below.
//! [`ServiceId`] lists all services.
//!
//! # Invariants
//! R1 A request is in the inbox of one incarnation of one peer, once: it is resent only after it
//!    was refused, and a refused request was never in the inbox.
//! R2 A request, a note and a response name the incarnation of the peer that they are for: none is
//!    sent to another incarnation of its number ([`Error::PeerLost`](crate::Error::PeerLost)), and
//!    what a server takes names the incarnation that sent it.
//! R3 Every queue is bounded in bytes. The inbox holds a bounded number of bytes per peer besides
//!    the first request, whatever its length; notes, which cannot be resent, may have twice as
//!    many, and a peer that sends more notes loses them. At most sixteen frames of responses to one
//!    peer wait here, and as much to be fetched as of any long active message: [`Server::respond`]
//!    waits, or returns an error. A process's own inbox is filled without a frame, before
//!    [`Fabric::call`](crate::Fabric::call) or [`Fabric::note`](crate::Fabric::note) returns; a
//!    note to itself waits for room, and is not lost.
//! R4 A dropped call is forgotten here; its response is dropped on arrival. The server is not told.
//!
//! # Not guaranteed
//! * That a request whose call ends with an error was not carried out: the response may have been
//!   lost with the server, or be late. Requests that must not be carried out twice need a number of
//!   their own.
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

/// Handler numbers from here on are reserved for services and the fabric itself.
pub const KEPT: u16 = 0xff00;
/// Services from here on have no fixed purpose: see
/// [`Fabric::serve_own`](crate::Fabric::serve_own).
const OWN: u16 = KEPT + 0x40;
/// The number of the handler that looks up a segment's key by its number.
pub(crate) const LOOK_UP: u16 = u16::MAX;

/// A service, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceId(u16);

impl ServiceId {
    /// Tells which services an agent hosts.
    pub const HOST: ServiceId = ServiceId(KEPT);
    /// Coordinates streams.
    pub const COORDINATOR: ServiceId = ServiceId(KEPT + 1);
    /// Owns the memory of streams.
    pub const BLOCK_STORE: ServiceId = ServiceId(KEPT + 2);
    /// Owns coherent chunks.
    pub const CHUNKS: ServiceId = ServiceId(KEPT + 3);

    /// Returns its number, by which another process names it.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns the service that a peer has named; `None` if it is none that
    /// [`Fabric::serve_own`](crate::Fabric::serve_own) starts.
    pub fn own(number: u16) -> Option<ServiceId> {
        (OWN..LOOK_UP)
            .contains(&number)
            .then_some(ServiceId(number))
    }

    /// Returns whether an active message of this number is for a service.
    pub(crate) fn is(number: u16) -> bool {
        (KEPT..LOOK_UP).contains(&number)
    }
}

/// One incarnation of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// Its number, which may have been reassigned.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: u32,
}
