//! Access to own elements, in every phase, and iteration over all elements.

use super::phase::{Own, OwnMut, Reach};
use super::{Array, Bounds, Run};
use crate::{Elem, Phase, Result};

/// Returns how many elements go through a buffer at a time if no reference to them is possible: a
/// part of the first-level cache.
fn window<T>() -> u64 {
    ((16 << 10) / size_of::<T>().max(1) as u64).max(1)
}

/// Cuts runs in ascending memory order at the ends of windows.
struct Cutter<I, const D: usize> {
    runs: I,
    rest: Option<Run<D>>,
}

impl<I: Iterator<Item = Run<D>>, const D: usize> Cutter<I, D> {
    fn new(runs: I) -> Self {
        Cutter { runs, rest: None }
    }

    /// Returns the part of the next run, or of what is left of it, that lies below `end`.
    fn below(&mut self, end: u64) -> Option<Run<D>> {
        let mut run = self.rest.take().or_else(|| self.runs.next())?;
        if run.offset >= end {
            self.rest = Some(run);
            return None;
        }
        let len = run.len.min(end - run.offset);
        if len < run.len {
            let mut rest = run;
            rest.index[D - 1] += len;
            rest.offset += len;
            rest.len -= len;
            self.rest = Some(rest);
        }
        run.len = len;
        Some(run)
    }
}

impl<T: Elem, const D: usize, P: Phase> Array<T, D, P> {
    /// Iterates over this unit's elements as runs of consecutive indices, with their offsets in its
    /// memory.
    pub fn local_runs(&self) -> impl Iterator<Item = Run<D>> + use<'_, T, D, P> {
        self.pattern.local_runs(self.rank())
    }

    /// Returns the number of elements that this unit owns.
    pub fn local_len(&self) -> u64 {
        self.pattern.local_len(self.rank())
    }

    /// Returns the extents of this unit's memory along each dimension, with ghost cells.
    pub fn stored_extents(&self) -> [u64; D] {
        self.pattern.stored_extents(self.rank())
    }

    /// Returns the number of elements of memory that this unit uses.
    pub fn stored_len(&self) -> u64 {
        self.pattern.stored_len(self.rank())
    }
}

impl<T: Elem, const D: usize, P: Own> Array<T, D, P> {
    /// Copies this unit's memory from `offset` on, in the order of [`Array::local_runs`]. Local.
    pub fn read_local(&self, offset: u64, into: &mut [T]) -> Result<()> {
        P::read(&self.segment, offset, into)
    }

    /// Calls `show` for all own elements, run by run.
    pub(super) fn see(&self, mut show: impl FnMut(Run<D>, &[T])) -> Result<()> {
        let mut runs = Cutter::new(self.local_runs());
        let stored = self.stored_len();
        let mut each = |first: u64, elements: &[T]| {
            while let Some(run) = runs.below(first + elements.len() as u64) {
                let at = (run.offset - first) as usize;
                show(run, &elements[at..at + run.len as usize]);
            }
        };
        if let Some(own) = P::elements(&self.segment) {
            each(0, &own[..stored as usize]);
            return Ok(());
        }
        let mut buffer = vec![T::zeroed(); window::<T>().min(stored) as usize];
        for first in (0..stored).step_by(buffer.len().max(1)) {
            let part = &mut buffer[..window::<T>().min(stored - first) as usize];
            P::read(&self.segment, first, part)?;
            each(first, part);
        }
        Ok(())
    }
}

impl<T: Elem, const D: usize, P: OwnMut> Array<T, D, P> {
    /// Copies `from` to this unit's memory at `offset`. Local.
    pub fn write_local(&mut self, offset: u64, from: &[T]) -> Result<()> {
        P::write(&mut self.segment, offset, from)
    }

    /// Calls `change` for all own elements, run by run.
    pub(super) fn edit(&mut self, mut change: impl FnMut(Run<D>, &mut [T])) -> Result<()> {
        let pattern = self.pattern;
        let mut runs = Cutter::new(pattern.local_runs(self.rank()));
        let stored = self.stored_len();
        let mut each = |first: u64, elements: &mut [T]| {
            while let Some(run) = runs.below(first + elements.len() as u64) {
                let at = (run.offset - first) as usize;
                change(run, &mut elements[at..at + run.len as usize]);
            }
        };
        if let Some(own) = P::elements_mut(&mut self.segment) {
            each(0, &mut own[..stored as usize]);
            return Ok(());
        }
        let mut buffer = vec![T::zeroed(); window::<T>().min(stored) as usize];
        for first in (0..stored).step_by(buffer.len().max(1)) {
            let part = &mut buffer[..window::<T>().min(stored - first) as usize];
            P::read(&self.segment, first, part)?;
            each(first, part);
            P::write(&mut self.segment, first, part)?;
        }
        Ok(())
    }
}

impl<T: Elem, const D: usize, P: Reach> Array<T, D, P> {
    /// Iterates over all elements of the array in row-major order, whichever unit owns them.
    /// One-sided; gets them in large pieces.
    pub fn elements(&self) -> Elements<'_, T, D, P> {
        Elements {
            array: self,
            next: 0,
            got: Vec::new().into_iter(),
        }
    }
}

/// An iterator over all elements; see [`Array::elements`]. After an error it continues behind the
/// elements that could not be read.
#[derive(Debug)]
pub struct Elements<'a, T, const D: usize, P: Phase> {
    array: &'a Array<T, D, P>,
    /// The first element, in row-major order, that has not been requested yet.
    next: u64,
    got: std::vec::IntoIter<T>,
}

impl<T: Elem, const D: usize, P: Reach> Elements<'_, T, D, P> {
    /// Returns the box of the next elements: the rest of a row, or as many rows or planes as fit
    /// into a window.
    fn advance(&mut self) -> Bounds<D> {
        let whole = self.array.pattern.bounds();
        let extents = whole.extents();
        let lo = whole.index(self.next);
        let mut bounds = Bounds {
            lo,
            hi: lo.map(|index| index + 1),
        };
        let mut count = 1;
        for d in (0..D).rev() {
            let rows = (window::<T>() / count).max(1).min(extents[d] - lo[d]);
            bounds.hi[d] = lo[d] + rows;
            count *= rows;
            if count < extents[d..].iter().product() {
                break;
            }
        }
        self.next += count;
        bounds
    }
}

impl<T: Elem, const D: usize, P: Reach> Iterator for Elements<'_, T, D, P> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if let Some(element) = self.got.next() {
            return Some(Ok(element));
        }
        if self.next >= self.array.len() {
            return None;
        }
        let bounds = self.advance();
        let mut got = vec![T::zeroed(); bounds.len() as usize];
        if let Err(error) = self.array.get(bounds, &mut got) {
            return Some(Err(error));
        }
        self.got = got.into_iter();
        self.got.next().map(Ok)
    }
}
