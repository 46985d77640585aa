//! The calls of a segment that depend on its phase: access by reference, and changes to another
//! phase.

use super::phase::{Local, Open, ReadOnly, Shared};
use super::{Parts, Segment};
use crate::job::Own;
use crate::{Elem, Result};
use std::marker::PhantomData;

impl<T: Elem> Segment<T, Shared> {
    /// Attaches to all parts. Collective; all parts must be offered.
    pub(super) fn share(parts: Parts, own: Own) -> Result<Self> {
        let opened = Open::attach(&parts, own, size_of::<T>() as u64, false);
        Ok(Segment {
            state: opened.map_err(|refused| refused.1.into_error())?,
            parts,
            kind: PhantomData,
        })
    }

    /// Returns this unit's state of the segment without its team, for what a team itself stores.
    pub(crate) fn into_open(self) -> Open {
        self.state
    }
}

impl<T: Elem> Segment<T, Local> {
    /// Returns this unit's part.
    pub fn as_slice(&self) -> &[T] {
        &self.state.memory().as_slice()[..self.len() as usize]
    }

    /// Returns this unit's part, mutable. No other unit can access it in this phase.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        let len = self.len() as usize;
        &mut self.state.memory_mut().as_mut_slice()[..len]
    }
}

impl<T: Elem> Segment<T, ReadOnly> {
    /// Returns a member's part in place; `None` if its memory is not mapped here (then use
    /// [`Segment::get`]).
    pub fn slice(&self, rank: u32) -> Result<Option<&[T]>> {
        let len = self.len_of(rank)? as usize;
        let readable = self.state.remotes[rank as usize].readable();
        Ok(readable.map(|bytes| &bytes.as_slice()[..len]))
    }

    /// Returns this unit's own part.
    pub fn as_slice(&self) -> &[T] {
        match self.slice(self.team().rank()) {
            Ok(Some(own)) => own,
            // Unreachable: a unit's own memory is always mapped.
            _ => &[],
        }
    }

    /// Copies elements of the part of `rank`, beginning at `index`, to `into`. One-sided.
    pub fn get(&self, rank: u32, index: u64, into: &mut [T]) -> Result<()> {
        let (len, count) = (self.len_of(rank)?, into.len() as u64);
        if index.checked_add(count).is_none_or(|end| end > len) {
            return Err(super::out_of_range(
                self.team(),
                self.team().unit(rank)?,
                index,
                count,
                len,
            ));
        }
        let offset = index * size_of::<T>() as u64;
        let remote = &self.state.remotes[rank as usize];
        Ok(remote.get(offset, crate::bytes_of_mut(into))?)
    }
}
