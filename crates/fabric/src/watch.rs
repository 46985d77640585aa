//! Waiting for a word that other units store into, without a frame: flags of collectives, queue
//! locks, signals.
//!
//! The storing side: store with Release, then [`Bell::nudge`]. The waiting side:
//! [`Fabric::wait_until`], whose condition loads with Acquire. Where units share no memory the
//! store is a put, and the owner's progress inside the wait brings it; `nudge` then has nothing to
//! do. A put by RMA that bypasses the owner wakes nobody: a store that somebody may sleep for is an
//! atomic, which the owner's progress does.

use crate::fabric::{Core, Fabric};
use crate::route::Reach;
use crate::transport::Transport;
use crate::transport::sim::Waker;
use crate::{Error, PeerId};
use samite_mem::{Doorbell, SharedBytes};

/// Wakes one peer after a store that it may be waiting for.
#[derive(Clone, Debug)]
pub struct Bell(Wakes);

#[derive(Clone, Debug)]
enum Wakes {
    Nobody,
    Doorbell(Doorbell<SharedBytes>),
    Simulated(Waker),
}

impl Bell {
    /// The bell of a peer; one that wakes nobody where it shares no memory with this process.
    pub(crate) fn of(core: &Core, peer: PeerId) -> Bell {
        let Reach::Node(slot) = core.engine.route(peer).to else {
            return Bell(Wakes::Nobody);
        };
        Bell(match core.transport.waker(peer) {
            Some(waker) => Wakes::Simulated(waker),
            None => Wakes::Doorbell(core.engine.node.layout.doorbell(slot)),
        })
    }

    /// Tells the peer that a word changed. One load while it is awake; never blocks.
    #[inline(always)]
    pub fn nudge(&self) {
        match &self.0 {
            Wakes::Nobody => {}
            Wakes::Doorbell(bell) => bell.nudge(),
            Wakes::Simulated(waker) => waker.wake(),
        }
    }
}

impl Fabric {
    /// The bell of a peer; one that wakes nobody for a number that no peer can have.
    pub fn bell(&self, peer: PeerId) -> Bell {
        let bell = self.0.with(|core| Bell::of(core, peer));
        bell.unwrap_or(Bell(Wakes::Nobody))
    }

    /// Returns whether a peer is gone: then the error that operations to it end with.
    pub fn lost(&self, peer: PeerId) -> Option<Error> {
        self.0.lock().map_or_else(Some, |mut core| core.gone(peer))
    }

    /// As [`Fabric::lost`], for one life of a peer: when another process has its number by now, it
    /// is lost.
    pub fn lost_life(&self, peer: PeerId, incarnation: u32) -> Option<Error> {
        let mut core = match self.0.lock() {
            Ok(core) => core,
            Err(error) => return Some(error),
        };
        core.known(peer);
        core.engine.lost_life(peer, incarnation)
    }
}
