//! Waiting for a word that other units store into, without a frame: flags of collectives, queue locks,
//! signals.
//!
//! The storing side: store with Release, then [`Bell::nudge`]. The waiting side: [`Fabric::wait_until`],
//! whose condition loads with Acquire. Where units share no memory the store is a put, and the owner's
//! progress inside the wait brings it; `nudge` then has nothing to do.

use crate::backoff::Backoff;
use crate::fabric::Fabric;
use crate::transport::Transport;
use crate::{Error, PeerId, Result, Whom};
use samite_mem::{Doorbell, SharedBytes};

/// Wakes one peer after a store that it may be waiting for.
#[derive(Clone, Debug)]
pub struct Bell(Option<Doorbell<SharedBytes>>);

impl Bell {
    /// Tells the peer that a word changed. One load while it is awake; never blocks.
    #[inline(always)]
    pub fn nudge(&self) {
        if let Some(bell) = &self.0 {
            bell.nudge();
        }
    }
}

/// Looks at the condition between two turns of the engine: a store of a neighbour comes back from its
/// line in less time than a turn takes.
const LOOKS: u32 = 16;

impl Fabric {
    /// The bell of a peer; one that wakes nobody for a number that no peer can have.
    pub fn bell(&self, peer: PeerId) -> Bell {
        let is_here = self.shares_node && peer.index() < samite_mem::PEERS_MAX;
        Bell(is_here.then(|| self.node.layout.doorbell(peer)))
    }

    /// Whether a peer is gone: then the error that operations to it end with.
    pub fn lost(&self, peer: PeerId) -> Option<Error> {
        self.core.borrow().engine.gone(peer)
    }

    /// As [`Fabric::lost`], for one life of a peer: when another process has its number by now, it is lost.
    pub fn lost_life(&self, peer: PeerId, incarnation: u32) -> Option<Error> {
        let core = self.core.borrow();
        let info = core.engine.peers.get(peer.index());
        let info = info.and_then(|peer| peer.info.as_ref());
        let is_another = info.is_some_and(|info| info.incarnation != incarnation);
        let lost = is_another.then_some(Error::PeerLost { peer, incarnation });
        lost.or_else(|| core.engine.gone(peer))
    }

    /// Waits until `done` answers. It depends on `whom`: when one of them is lost, and `done` still has
    /// no answer then, the wait ends with [`Error::PeerLost`]. `done` must not use the fabric.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Timeout`], which names the first of `whom`.
    #[inline]
    pub fn wait_until<T>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        if let Some(value) = done() {
            return Ok(value);
        }
        self.wait_long(what, whom, &mut done)
    }

    /// As [`Fabric::wait_until`], for whoever has operations of its own to move on meanwhile: `step` is
    /// called once per turn, and once more when one of `whom` is lost, and may use the fabric. `there` is asked
    /// once more before a sleep, where news come without a frame; it must not use the fabric.
    pub fn wait_stepping<T>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        mut step: impl FnMut() -> Option<T>,
        mut there: impl FnMut() -> bool,
    ) -> Result<T> {
        let deadline = self.deadline();
        let mut backoff = Backoff::default();
        loop {
            if let Some(value) = step() {
                return Ok(value);
            }
            let mut borrowed = self.core.borrow_mut();
            let core = &mut *borrowed;
            if core.turn() > 0 {
                backoff.moved();
            }
            if core.engine.is_of_parent() {
                return Err(Error::Forked);
            }
            if let Some(error) = whom.iter().find_map(|peer| core.engine.gone(*peer)) {
                drop(borrowed);
                // What it did before it died counts.
                return step().ok_or(error);
            }
            if backoff.rest(core, self.spin(), deadline, &mut there) {
                let whom = whom.first().map_or(Whom::Any, |peer| Whom::Peer(*peer));
                return Err(Error::Timeout {
                    what,
                    whom,
                    after: deadline,
                });
            }
        }
    }

    fn wait_long<T>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        done: &mut dyn FnMut() -> Option<T>,
    ) -> Result<T> {
        let core = &mut *self.core.borrow_mut();
        let deadline = self.deadline();
        let mut backoff = Backoff::default();
        let looks = if core.transport.crowded() { 1 } else { LOOKS };
        let mut changes = None;
        loop {
            for _ in 0..looks {
                if let Some(value) = done() {
                    return Ok(value);
                }
                std::hint::spin_loop();
            }
            if core.turn() > 0 {
                backoff.moved();
            }
            if core.engine.is_of_parent() {
                return Err(Error::Forked);
            }
            if changes != Some(core.engine.changes) {
                changes = Some(core.engine.changes);
                if let Some(error) = whom.iter().find_map(|peer| core.engine.gone(*peer)) {
                    // What it did before it died counts.
                    return done().ok_or(error);
                }
            }
            let mut value = None;
            let over = backoff.rest(core, self.spin(), deadline, &mut || {
                value = done();
                value.is_some()
            });
            if let Some(value) = value {
                return Ok(value);
            }
            if over {
                let whom = whom.first().map_or(Whom::Any, |peer| Whom::Peer(*peer));
                return Err(Error::Timeout {
                    what,
                    whom,
                    after: deadline,
                });
            }
        }
    }
}
