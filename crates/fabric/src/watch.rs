//! Waiting for a word that other units store without a frame: flags of collectives, queue locks,
//! signals.
//!
//! The storing side stores with Release, then calls [`Bell::nudge`]. The waiting side calls
//! [`Fabric::wait_until`], with a condition that loads with Acquire. Between units without shared
//! memory the store is a put, which the owner's progress inside the wait brings; `nudge` then has
//! nothing to do. A put by RMA that bypasses the owner wakes nobody: if a process may sleep until a
//! store, the store must be an atomic, which the owner's progress does.

use crate::fabric::{Core, Fabric};
use crate::route::Reach;
use crate::transport::Transport;
use crate::transport::sim::Waker;
use crate::{Error, PeerId};
use samite_mem::{Doorbell, Guard, SharedBytes};

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
    /// Returns the bell of a peer; it wakes nobody if the peer shares no memory with this process.
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
    /// Returns the bell of a peer; it wakes nobody if no peer can have this number.
    pub fn bell(&self, peer: PeerId) -> Bell {
        let bell = self.0.with(|core| Bell::of(core, peer));
        bell.unwrap_or(Bell(Wakes::Nobody))
    }

    /// Returns the error with which operations to a peer end, if the peer is gone.
    pub fn lost(&self, peer: PeerId) -> Option<Error> {
        self.0.lock().map_or_else(Some, |mut core| core.gone(peer))
    }

    /// As [`Fabric::lost`], for one incarnation of a peer: it is lost when its number has been
    /// reassigned.
    pub fn lost_life(&self, peer: PeerId, incarnation: u32) -> Option<Error> {
        let lost = |mut core: Guard<'_, Core>| core.lost_life(peer, incarnation);
        self.0.lock().map_or_else(Some, lost)
    }
}
