//! RMA of a transport: reads and writes of a peer's memory by its remote key.
//!
//! # What a transport with RMA promises
//! T7 Operations are unordered, with each other and with frames, even to one peer. Only a flush
//!    orders them: it completes when every operation that was started before it to that peer has
//!    completed, and what those wrote is visible there, also to the processors of the peer's node.
//! T8 An accepted operation ([`Push::Done`]) completes once, by its id
//!    ([`super::Sink::completed`]), which returns its buffer: a put when its bytes have left the
//!    buffer and the peer's memory accepts them, a get when its bytes are in the buffer, an atomic
//!    when its old value has arrived. Until then the transport owns the buffer.
//! T9 A refused start ([`Push::Full`], [`Push::Gone`]) has no effect; the operation keeps its
//!    buffer.
//! T10 When a peer is lost, every operation to it that has not completed does so with
//!    [`RmaError::Lost`], before the loss is reported. Whether it took effect is unknown.
//! T11 When `deregister` returns, nothing reads or writes the range through its key any more. Puts
//!    that completed before are in place. Later operations are refused ([`RmaError::Refused`]), or
//!    their sender loses the connection; they never reach memory. (`ucp_mem_unmap` and
//!    `ibv_dereg_mr` invalidate the key in the adapter before they return.) The transport keeps the
//!    range until then, with the lease that it holds.
//! T12 With [`Rma::Bypasses`] an operation needs nothing from its target; with
//!    [`Rma::NeedsProgress`] it waits for a poll of the target, and wakes a sleeping target.
//!
//! Source: the common part of UCX (`ucp_put_nbx`, `ucp_get_nbx`, `ucp_atomic_op_nbx`,
//! `ucp_ep_flush_nbx`) and MPI-3 RMA in passive mode.

use super::Push;
use crate::{Atomic, Width};
use samite_mem::lend::{ReadBuf, WriteBuf};
use smallvec::SmallVec;

/// Whether a transport reads and writes a peer's memory, and what the peer must do for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rma {
    /// No RMA.
    #[default]
    None,
    /// The peer must poll.
    NeedsProgress,
    /// The peer does nothing.
    Bypasses,
}

/// What names a registered range to peers: opaque bytes, at most [`RemoteKey::MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteKey(SmallVec<[u8; 16]>);

impl RemoteKey {
    /// Longest key in bytes.
    pub const MAX: usize = 64;

    /// Returns a key from the bytes that its owner sent; `None` if there are none, or too many.
    pub fn of(bytes: &[u8]) -> Option<RemoteKey> {
        let fits = (1..=RemoteKey::MAX).contains(&bytes.len());
        fits.then(|| RemoteKey(SmallVec::from_slice(bytes)))
    }

    /// Returns the bytes that are sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A registered range, as its owner names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Registration(pub u64);

/// A place in the registered range of a peer.
#[derive(Clone, Debug)]
pub struct RmaAddress {
    /// The range.
    pub key: RemoteKey,
    /// The offset in bytes. The operation lies inside the range.
    pub offset: u64,
}

/// An operation on a peer's memory.
#[derive(Debug)]
pub enum RmaVerb {
    /// Writes the buffer.
    Put(RmaAddress, ReadBuf),
    /// Fills the buffer.
    Get(RmaAddress, WriteBuf),
    /// An operation on an aligned word, with two operands.
    Atomic(RmaAddress, (Atomic, Width), (u64, u64)),
    /// Waits for the effects of earlier operations.
    Flush,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmaError {
    /// The key is no longer valid.
    Refused,
    /// The peer is lost.
    Lost,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completed {
    /// The operation's id.
    pub id: u64,
    /// The operation, with its buffer.
    pub verb: RmaVerb,
    /// The old value of an atomic; 0 for the others.
    pub result: Result<u64, RmaError>,
}

/// An operation that was not accepted, and why.
pub type NotStarted = Box<(Push, RmaVerb)>;
