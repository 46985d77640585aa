//! Guards and snapshots of several chunks of an array.

use super::layout::Piece;
use crate::chunk::Elem;
use crate::error::Result;
use crate::guard::{ReadGuard, Snapshot, WriteGuard};
use crate::protocol::Version;
use std::ops::{Deref, DerefMut, Index, IndexMut, Range};

/// Guards, or snapshots, of the chunks of a range of a [`ChunkedVec`](crate::ChunkedVec). Indices
/// are those of the array.
#[derive(Debug)]
pub struct VecGuard<G> {
    range: Range<u64>,
    /// In the order of the elements.
    guards: Vec<(Piece, G)>,
}

/// Guards to read a range.
pub type VecRead<T> = VecGuard<ReadGuard<T>>;

/// Guards to write a range.
pub type VecWrite<T> = VecGuard<WriteGuard<T>>;

/// Snapshots of a range.
pub type VecSnapshot<T> = VecGuard<Snapshot<T>>;

impl<G> VecGuard<G> {
    pub(super) fn new(range: Range<u64>, guards: Vec<(Piece, G)>) -> VecGuard<G> {
        VecGuard { range, guards }
    }

    /// Returns the range.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns the guards, one for each chunk, in the order of the elements.
    pub fn guards(&self) -> impl Iterator<Item = &G> {
        self.guards.iter().map(|(_, guard)| guard)
    }

    /// Returns where an element is.
    fn find(&self, index: u64) -> Option<(usize, usize)> {
        if !self.range.contains(&index) {
            return None;
        }
        let after = self.guards.partition_point(|(piece, _)| piece.at <= index);
        let place = after.checked_sub(1)?;
        let (piece, _) = &self.guards[place];
        Some((place, piece.inside.start + (index - piece.at) as usize))
    }
}

impl<T: 'static, G: Deref<Target = [T]>> VecGuard<G> {
    /// Returns the elements of each chunk, with the index of the first of them.
    pub fn slices(&self) -> impl Iterator<Item = (u64, &[T])> {
        let each = self.guards.iter();
        each.map(|(piece, guard)| (piece.at, &guard[piece.inside.clone()]))
    }

    /// Returns all elements.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slices().flat_map(|(_, slice)| slice)
    }

    /// Returns an element; `None` if it is not in the range.
    pub fn get(&self, index: u64) -> Option<&T> {
        let (place, inside) = self.find(index)?;
        self.guards[place].1.get(inside)
    }
}

impl<T: Copy + 'static, G: Deref<Target = [T]>> VecGuard<G> {
    /// Copies all elements.
    ///
    /// # Panics
    /// `into` has another length than the range.
    pub fn copy_to(&self, into: &mut [T]) {
        let len = self.range.end - self.range.start;
        assert_eq!(into.len() as u64, len, "the length of the range");
        let mut rest = into;
        for (_, slice) in self.slices() {
            let (now, later) = rest.split_at_mut(slice.len());
            now.copy_from_slice(slice);
            rest = later;
        }
    }
}

impl<T: 'static, G: DerefMut<Target = [T]>> VecGuard<G> {
    /// Returns the elements of each chunk, with the index of the first of them.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = (u64, &mut [T])> {
        let each = self.guards.iter_mut();
        each.map(|(piece, guard)| (piece.at, &mut guard[piece.inside.clone()]))
    }

    /// Returns an element; `None` if it is not in the range.
    pub fn get_mut(&mut self, index: u64) -> Option<&mut T> {
        let (place, inside) = self.find(index)?;
        self.guards[place].1.get_mut(inside)
    }
}

impl<T: Copy + 'static, G: DerefMut<Target = [T]>> VecGuard<G> {
    /// Copies `from` to all elements.
    ///
    /// # Panics
    /// `from` has another length than the range.
    pub fn copy_from(&mut self, from: &[T]) {
        let len = self.range.end - self.range.start;
        assert_eq!(from.len() as u64, len, "the length of the range");
        let mut rest = from;
        for (_, slice) in self.slices_mut() {
            let (now, later) = rest.split_at(slice.len());
            slice.copy_from_slice(now);
            rest = later;
        }
    }
}

impl<T: Elem> VecWrite<T> {
    /// Publishes what was written, under one tag; returns the versions, one for each chunk. Those
    /// who acquire guards see all of it or nothing. A process that dies meanwhile leaves a part of
    /// it, of whole chunks.
    ///
    /// # Errors
    /// As [`WriteGuard::commit`]: the chunks before are committed, those after are not.
    pub fn commit(self, tag: u64) -> Result<Vec<Version>> {
        let guards = self.guards.into_iter();
        guards.map(|(_, guard)| guard.commit(tag)).collect()
    }
}

impl<T: 'static, G: Deref<Target = [T]>> Index<u64> for VecGuard<G> {
    type Output = T;

    /// # Panics
    /// The element is not in the range.
    fn index(&self, index: u64) -> &T {
        let found = self.get(index);
        found.unwrap_or_else(|| panic!("element {index} is not in {:?}", self.range))
    }
}

impl<T: 'static, G: DerefMut<Target = [T]>> IndexMut<u64> for VecGuard<G> {
    /// # Panics
    /// The element is not in the range.
    fn index_mut(&mut self, index: u64) -> &mut T {
        let range = self.range.clone();
        let found = self.get_mut(index);
        found.unwrap_or_else(|| panic!("element {index} is not in {range:?}"))
    }
}
