//! What keeps the memory of a dead peer from being given away: somebody here may still read it.
//!
//! A view and a mapped segment lie in the memory of another process. When that process dies, this
//! one tells the agent that it has seen it only after the last of them is gone; until then the agent
//! neither frees the memory nor gives its peer number to anybody else.

use crate::PeerId;
use std::cell::RefCell;
use std::rc::Rc;

/// How many holds there are, by peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds(Rc<RefCell<Vec<u32>>>);

impl Holds {
    /// Holds on to the memory of a peer.
    pub(crate) fn hold(&self, peer: PeerId) -> Hold {
        let mut counts = self.0.borrow_mut();
        if counts.len() <= peer.index() {
            counts.resize(peer.index() + 1, 0);
        }
        counts[peer.index()] += 1;
        Hold {
            holds: self.clone(),
            peer,
        }
    }

    /// Whether some peer that `which` says is held.
    pub(crate) fn any(&self, which: impl Fn(PeerId) -> bool) -> bool {
        let counts = self.0.borrow();
        counts
            .iter()
            .enumerate()
            .any(|(peer, count)| *count > 0 && which(PeerId(peer as u32)))
    }
}

/// One hold; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    holds: Holds,
    peer: PeerId,
}

impl Clone for Hold {
    fn clone(&self) -> Hold {
        self.holds.hold(self.peer)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.0.borrow_mut()[self.peer.index()] -= 1;
    }
}
