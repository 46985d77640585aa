//! Two transports as one: shared memory to the units of this node, another one to all others.
//!
//! ```text
//!   push(to)   to.node() == this node?  near : far
//!   poll       near each time; far each time while it is in use, else once in `SELDOM`
//!   sleep      on one socket, which neighbours wake, and the descriptor of the far transport
//! ```
//!
//! A poll of the network costs some hundred nanoseconds: more than a message to a neighbour. So a
//! process that hears of no other node looks there seldom, and always before it sleeps.

use super::ordered::Ordered;
use super::shm::Shm;
use super::ucx::Ucx;
use super::{AnyTransport, Clock, Outgoing, Push, Sink, Sleep, Transport};
use crate::node::NodeMember;
use crate::{Error, PeerId};
use samite_mem::WakeSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Polls after which the far transport is polled although nothing was heard of it.
const SELDOM: u32 = 32;
/// Polls for which it is polled each time after something was sent or has arrived.
const OFTEN: u32 = 1024;

/// The transport; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Spanning {
    near: Shm,
    /// Puts the frames of UCX in order.
    far: Ordered,
    node: u32,
    socket: Arc<WakeSocket>,
    descriptor: Arc<OwnedFd>,
    polls: u32,
    /// Polls of the far transport that are still made each time.
    often: u32,
}

impl Spanning {
    pub(crate) fn new(near: Shm, far: Ucx, node: &NodeMember) -> Result<Spanning, Error> {
        let descriptor = far.descriptor();
        let far = AnyTransport::Ucx(Box::new(far));
        Ok(Spanning {
            near,
            far: Ordered::new(far, node.incarnation),
            node: node.number,
            socket: Arc::new(WakeSocket::new()?),
            descriptor,
            polls: 0,
            often: 0,
        })
    }

    fn ucx(&mut self) -> Option<&mut Ucx> {
        match self.far.inner() {
            AnyTransport::Ucx(ucx) => Some(ucx),
            _ => None,
        }
    }

    fn poll_far<S: Sink>(&mut self, sink: &mut S) -> usize {
        self.polls = 0;
        let far = self.far.poll(sink);
        self.often = match far {
            0 => self.often.saturating_sub(1),
            _ => OFTEN,
        };
        far
    }

    fn is_near(&self, peer: PeerId) -> bool {
        peer.node() == self.node
    }
}

impl Transport for Spanning {
    fn name(&self) -> &'static str {
        "shm, ucx"
    }

    #[inline]
    fn now(&self) -> Duration {
        self.near.now()
    }

    fn clock(&self) -> Clock {
        self.near.clock()
    }

    #[inline]
    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        if self.is_near(to) {
            return self.near.push(to, frame);
        }
        self.often = OFTEN;
        self.far.push(to, frame)
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        self.polls += 1;
        if self.often == 0 && self.polls < SELDOM {
            return self.near.poll(sink);
        }
        // T6: the other one first if it had no turn the last time.
        let is_far_first = self.polls > 1;
        let far = if is_far_first { self.poll_far(sink) } else { 0 };
        let near = match sink.satisfied() {
            true => 0,
            false => self.near.poll(sink),
        };
        if is_far_first || sink.satisfied() {
            return far + near;
        }
        near + self.poll_far(sink)
    }

    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        match self.is_near(peer) {
            true => self.near.announce(peer, sink),
            false => self.far.announce(peer, sink),
        }
    }

    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        self.polls = SELDOM; // The next poll looks everywhere.
        let due = self.ucx().and_then(|ucx| ucx.next_due());
        if !self.ucx().is_some_and(Ucx::arm) {
            return None;
        }
        let how = samite_mem::Sleep::Descriptors(self.socket.address());
        let bell = self.near.announce_sleep_as(how, there)?;
        let (socket, descriptor) = (self.socket.clone(), self.descriptor.clone());
        let sleep = Sleep::Descriptors(bell, socket, descriptor);
        Some(match due {
            None => sleep,
            Some(due) => Sleep::Until(Box::new(sleep), due),
        })
    }

    fn leave(&mut self) {
        self.far.leave();
    }

    fn yield_now(&mut self) {
        self.near.yield_now();
    }

    fn oversubscribed(&self) -> bool {
        self.near.oversubscribed()
    }
}
