//! Collectives of a team.

use crate::{Elem, Result, Team};
use samite_fabric::Match;

impl Team<'_> {
    /// Waits until all members have called it.
    pub fn barrier(&self) -> Result<()> {
        Ok(self.fabric().barrier(self.peers())?)
    }

    /// Every member gets what all give, by rank.
    pub fn all_gather<T: Elem>(&self, from: &[T], into: &mut [T]) -> Result<()> {
        let tag = 0xd5 << 56 | self.0.id.0 << 8 & 0x00ff_ffff_ffff_ff00;
        for peer in self.peers() {
            self.fabric().send(*peer, tag, crate::bytes_of(from))?;
        }
        for (rank, peer) in self.peers().iter().enumerate() {
            let part = &mut into[rank * from.len()..(rank + 1) * from.len()];
            self.fabric()
                .recv(Match::from(*peer, tag), crate::bytes_of_mut(part))?;
        }
        Ok(())
    }
}

/// What the collectives of a job share.
#[derive(Debug)]
pub(crate) struct State<'f>(std::marker::PhantomData<&'f ()>);

impl<'f> State<'f> {
    pub(crate) fn new(_: &'f samite_fabric::Fabric) -> Self {
        State(std::marker::PhantomData)
    }
}

/// What the members of a team share in memory.
#[derive(Debug)]
pub(crate) struct Board;
