//! RMA of a transport: a peer's memory is read and written by its remote key.
//!
//! # What a transport that can do it promises
//! T7 Operations are in no order: neither with each other nor with frames, also towards one peer. A
//!    flush is the only means of order: it completes when every operation that was started before
//!    it towards that peer has completed, and what those wrote is visible there, to the processors
//!    of the peer's node, too.
//! T8 An operation that was taken ([`Push::Done`]) completes once, by its id
//!    ([`super::Sink::completed`]), which hands its buffer back: a put when its bytes have left the
//!    buffer and the peer's memory takes them, a get when its bytes are in the buffer, an atomic
//!    when its old value is here. Until then the buffer is the transport's.
//! T9 A refused start ([`Push::Full`], [`Push::Gone`]) has no effect; the operation keeps its
//!    buffer.
//! T10 When a peer is lost, every operation towards it that has not completed does so with
//!    [`RmaError::Lost`], before the loss is reported. Whether it took effect is not known.
//! T11 When `deregister` returns, nothing reads or writes the range through its key any more. Puts
//!    that had completed by then are in place. What comes later is refused ([`RmaError::Refused`]),
//!    or its sender loses the connection; it never reaches memory. (`ucp_mem_unmap` and
//!    `ibv_dereg_mr` invalidate the key in the adapter before they return.) The transport keeps the
//!    range until then, with the lease that is in it.
//! T12 With [`Rma::Bypasses`] an operation needs nothing of its target; with [`Rma::NeedsProgress`]
//!    it waits for a poll of the target, and wakes a target that sleeps.
//!
//! Source: the common part of UCX (`ucp_put_nbx`, `ucp_get_nbx`, `ucp_atomic_op_nbx`,
//! `ucp_ep_flush_nbx`) and MPI-3 RMA in passive mode.

use super::Push;
use crate::{Atomic, Width};
use samite_mem::lend::{ReadBuf, WriteBuf};
use smallvec::SmallVec;

/// Whether a transport reads and writes a peer's memory, and what the peer has to do for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rma {
    /// It does not.
    #[default]
    None,
    /// The peer has to poll.
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

    /// A key out of the bytes that its owner sent; `None` if there are none, or too many.
    pub fn of(bytes: &[u8]) -> Option<RemoteKey> {
        let fits = (1..=RemoteKey::MAX).contains(&bytes.len());
        fits.then(|| RemoteKey(SmallVec::from_slice(bytes)))
    }

    /// What travels.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A range that is registered, as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Registration(pub u64);

/// A place in the registered range of a peer.
#[derive(Clone, Debug)]
pub struct RmaAddress {
    /// The range.
    pub key: RemoteKey,
    /// Where in it, in bytes. The operation lies inside the range.
    pub offset: u64,
}

/// What is to be done at a peer.
#[derive(Debug)]
pub enum RmaVerb {
    /// Writes the buffer.
    Put(RmaAddress, ReadBuf),
    /// Fills the buffer.
    Get(RmaAddress, WriteBuf),
    /// An operation on an aligned word, with two operands.
    Atomic(RmaAddress, (Atomic, Width), (u64, u64)),
    /// Waits for the effects of what was started before.
    Flush,
}

/// Why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmaError {
    /// The key names nothing any more.
    Refused,
    /// The peer is lost.
    Lost,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completed {
    /// Which.
    pub id: u64,
    /// What it was, with its buffer.
    pub verb: RmaVerb,
    /// The old value of an atomic; 0 for the others.
    pub result: Result<u64, RmaError>,
}

/// An operation that was not taken, and why.
pub type NotStarted = Box<(Push, RmaVerb)>;
