//! The names of units in errors.

use super::Job;
use crate::{Error, Unit};
use samite_fabric::{Named, PeerId};
use std::sync::Arc;

impl Job {
    /// Returns a unit as errors name it: `heat.1`, or its number: only members have names.
    #[cold]
    pub(crate) fn named(&self, unit: Unit) -> Named<Unit> {
        let at = self.group.position(unit);
        Named::new(
            unit,
            at.and_then(|at| self.name_of(self.peers[at as usize])),
        )
    }

    /// Returns the name of the peer that is, or was, a unit.
    fn name_of(&self, peer: PeerId) -> Option<Arc<str>> {
        self.fabric.name_of(peer, self.lives.get(&peer).copied())
    }

    /// Returns the error for a unit that is not a member.
    #[cold]
    pub(crate) fn not_a_member(&self, unit: Unit) -> Error {
        Error::NotAMember(self.named(unit))
    }
}
