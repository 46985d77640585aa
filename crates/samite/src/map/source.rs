//! Data that code is applied to: a variable of a step, or a chunk.

use super::MapError;
use samite_dsm::{Elem, HomeGuard, Snapshot};
use samite_fabric::SegmentKey;
use samite_stage::{Located, Place, Region, StepReader};
use std::cell::OnceCell;

/// Data that code is applied to.
pub(super) trait Source {
    /// Size of an element, in bytes.
    fn element(&self) -> u64;
    /// Returns where a box lies, in parts of at most so many bytes.
    fn locate(&self, region: &Region, most: u64) -> Result<Vec<Located>, MapError>;
    /// Reads a box: its bytes, row-major.
    fn read(&self, region: &Region, into: &mut [u8]) -> Result<(), MapError>;
}

/// A variable of a step.
pub(super) struct Variable<'s> {
    pub(super) step: &'s StepReader,
    pub(super) name: &'s str,
    pub(super) element: u64,
}

impl Source for Variable<'_> {
    fn element(&self) -> u64 {
        self.element
    }

    fn locate(&self, region: &Region, most: u64) -> Result<Vec<Located>, MapError> {
        Ok(self.step.locate(self.name, region, most)?.1)
    }

    fn read(&self, region: &Region, into: &mut [u8]) -> Result<(), MapError> {
        Ok(self.step.read_bytes(self.name, region, into)?)
    }
}

/// A chunk, under a guard.
pub(super) struct Content<'g, T: Elem> {
    guard: &'g HomeGuard<T>,
    segment: Option<SegmentKey>,
    fetched: OnceCell<Snapshot<T>>,
}

impl<'g, T: Elem> Content<'g, T> {
    pub(super) fn new(guard: &'g HomeGuard<T>) -> Self {
        let segment = guard.segment();
        let fetched = OnceCell::new();
        Content {
            guard,
            segment,
            fetched,
        }
    }

    /// Returns the bytes of a range of elements.
    fn bytes(region: &Region) -> (u64, u64) {
        let element = size_of::<T>() as u64;
        (region.lower()[0] * element, region.upper()[0] * element)
    }
}

impl<T: Elem> Source for Content<'_, T> {
    fn element(&self) -> u64 {
        size_of::<T>() as u64
    }

    fn locate(&self, region: &Region, most: u64) -> Result<Vec<Located>, MapError> {
        let each = (most / self.element()).max(1);
        let (mut at, end) = (region.lower()[0], region.upper()[0]);
        let mut parts = Vec::new();
        while at < end {
            let next = at.saturating_add(each).min(end);
            let region = Region::new(&[at], &[next]).map_err(samite_stage::Error::from)?;
            let (begin, to) = Self::bytes(&region);
            let place = self.segment.map(|key| Place {
                key,
                offset: begin,
                run: to - begin,
                levels: Vec::new(),
            });
            parts.push(Located { region, place });
            at = next;
        }
        Ok(parts)
    }

    fn read(&self, region: &Region, into: &mut [u8]) -> Result<(), MapError> {
        let fetched = match self.fetched.get() {
            Some(fetched) => fetched,
            None => {
                let fetched = self.guard.fetch()?;
                self.fetched.get_or_init(|| fetched)
            }
        };
        let (begin, end) = Self::bytes(region);
        let bytes: &[u8] = bytemuck::cast_slice(fetched);
        into.copy_from_slice(&bytes[begin as usize..end as usize]);
        Ok(())
    }
}
