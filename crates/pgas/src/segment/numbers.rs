//! Numbers of segments. Teams agree on the lowest one that is free at all members; what is this unit's alone takes its
//! numbers from the top: the memory by which a team agrees may itself be a new chunk.
//!
//! Threads of a unit agree with several teams at the same time, and may agree on one number. Whoever takes it second
//! says so, and its team agrees once more.

use crate::{Error, Result};
use samite_fabric::Fabric;

/// The numbers that are meant for segments to come. Its lock is held from a look at what is free until that is taken.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Vec<u32>);

impl Numbers {
    /// One bit each, the lowest first.
    pub(super) fn free(&self, fabric: &Fabric) -> Vec<u64> {
        let mut free = fabric.free_segments();
        for number in &self.0 {
            free[*number as usize / 64] &= !(1 << (number % 64));
        }
        free
    }

    pub(super) fn is_free(&self, fabric: &Fabric, number: u32) -> bool {
        let free = self.free(fabric);
        let word = free.get(number as usize / 64);
        word.is_some_and(|bits| bits >> (number % 64) & 1 == 1)
    }

    /// For what is this unit's alone.
    pub(crate) fn highest(&self, fabric: &Fabric) -> Result<u32> {
        let free = self.free(fabric);
        let word = free.iter().rposition(|bits| *bits != 0);
        let word = word.ok_or(Error::NoSegment)?;
        Ok(word as u32 * 64 + free[word].ilog2())
    }

    /// Keeps a free number for this thread; whether it was free.
    pub(super) fn reserve(&mut self, fabric: &Fabric, number: u32) -> bool {
        let is_free = self.is_free(fabric, number);
        if is_free {
            self.0.push(number);
        }
        is_free
    }

    pub(super) fn let_go(&mut self, number: u32) {
        self.0.retain(|other| *other != number);
    }
}
