//! Accesses as the checking mode sees them ([`crate::check`]). If it is switched off, an access
//! costs one predictable branch on a byte of the segment itself.

use super::{Segment, Shared};
use crate::check::{AccessKind, Memory};
use crate::{Elem, Result};
use samite_fabric::Remote;
use std::ops::Range;
use std::panic::Location;

impl<T: Elem> Segment<T, Shared> {
    /// Gets elements in a race that is intended and detected afterwards by the caller: the checking
    /// mode does not check it.
    pub(crate) fn get_racing(&self, rank: u32, index: u64, into: &mut [T]) -> Result<()> {
        let remote = self.part_of(rank, index, into.len())?;
        let count = into.len();
        remote
            .get(self.offset(index), crate::bytes_of_mut(into))
            .map_err(|error| self.say(error, rank, index, count))
    }

    /// Returns an element of a member's part, for an atomic that is about to be executed.
    #[track_caller]
    pub(crate) fn word(&self, rank: u32, index: u64, kind: AccessKind) -> Result<(&Remote, u64)> {
        let remote = self.watched_part(rank, index, 1, kind)?;
        Ok((remote, self.offset(index)))
    }

    /// Returns the same as [`Segment::word`], if the checking mode is asked separately.
    pub(crate) fn unwatched_word(&self, rank: u32, index: u64) -> Result<(&Remote, u64)> {
        let remote = self.part_of(rank, index, 1)?;
        Ok((remote, self.offset(index)))
    }

    /// Continues unfinished work for which others wait, before this unit waits for a member whose
    /// memory is not mapped.
    #[cold]
    pub(super) fn finish_for_others(&self) {
        let job = &self.team().0.job;
        job.unfinished.step(&job.fabric);
    }

    /// Returns true if a member's elements are mapped here.
    #[inline(always)]
    pub(crate) fn is_near(&self, rank: u32) -> bool {
        let window = self.state.windows.get(rank as usize);
        window.is_some_and(|window| !window.is_empty())
    }

    /// Returns a member's part, for an access to `count` elements from `index` on that is about to
    /// happen.
    #[inline(always)]
    #[track_caller]
    pub(super) fn watched_part(
        &self,
        rank: u32,
        index: u64,
        count: usize,
        kind: AccessKind,
    ) -> Result<&Remote> {
        let part = self.part_of(rank, index, count)?;
        if self.parts.checked {
            let elements = index..index.saturating_add(count as u64);
            if elements.end > self.parts.counts[rank as usize] {
                // The access itself will report the error.
                return Ok(part);
            }
            self.watch_all(rank, std::iter::once(elements), kind, Location::caller())?;
        }
        Ok(part)
    }

    /// Reports accesses that are about to happen to the checking mode.
    #[cold]
    pub(super) fn watch_all(
        &self,
        rank: u32,
        elements: impl Iterator<Item = Range<u64>>,
        kind: AccessKind,
        place: &Location<'_>,
    ) -> Result<()> {
        match &self.team().0.job.check {
            None => Ok(()),
            Some(check) => check.access(self.memory(rank)?, elements, kind, place),
        }
    }

    /// Reports an atomic access that has happened to the checking mode.
    #[inline(always)]
    pub(crate) fn seen(&self, rank: u32, index: u64) -> Result<()> {
        if self.parts.checked {
            self.take_note(rank, index)?;
        }
        Ok(())
    }

    #[cold]
    fn take_note(&self, rank: u32, index: u64) -> Result<()> {
        match &self.team().0.job.check {
            None => Ok(()),
            Some(check) => check.seen(self.memory(rank)?, index),
        }
    }

    fn memory(&self, rank: u32) -> Result<Memory> {
        let key = self.remote(rank)?.key();
        Ok(Memory {
            owner: self.team().unit(rank)?,
            segment: key.segment as u16,
            generation: key.generation as u8,
            element_bytes: size_of::<T>() as u64,
        })
    }
}
