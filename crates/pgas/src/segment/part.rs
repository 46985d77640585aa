//! Parts of this unit's memory as arguments of collectives: read and written in place by the
//! members.

use super::{Segment, Shared, out_of_range};
use crate::pointer::Origin;
use crate::{Elem, GlobalPtr, Group, Result, Team};
use samite_mem::SharedBytes;
use std::ops::{Bound, RangeBounds};

/// Elements of this unit's part of a shared segment.
#[derive(Clone, Debug)]
pub struct Part<'a, T> {
    bytes: SharedBytes,
    pointer: GlobalPtr<T>,
    count: u64,
    /// Whose the segment is.
    group: &'a Group,
}

impl<T: Elem> Segment<T, Shared> {
    /// Elements of this unit's own part, as an argument of a collective. Local. The members may
    /// give different ranges, and of different segments. Of a segment of the same team, or of a
    /// larger one, the others read and write the elements in place.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`].
    pub fn part(&self, range: impl RangeBounds<u64>) -> Result<Part<'_, T>> {
        let first = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len(),
        };
        let count = end.saturating_sub(first);
        let rank = self.team().rank();
        if end > self.len() || first > end {
            let unit = self.team().unit(rank)?;
            return Err(out_of_range(unit, first, count, self.len()));
        }
        let size = size_of::<T>() as u64;
        Ok(Part {
            bytes: self.state.bytes.slice(first * size, count * size),
            pointer: self.pointer(rank, first)?,
            count,
            group: self.team().group(),
        })
    }
}

impl<T> Part<'_, T> {
    /// How many elements.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes, here.
    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// What the members of `team` reach it by; `None` if it is not for all of them: registered
    /// memory, and segments of a smaller team, whose phases the others do not follow.
    pub(crate) fn reach(&self, team: &Team) -> Option<GlobalPtr<u8>> {
        let collective = self.pointer.flags().origin() == Origin::Collective;
        let everybody = || {
            let same = self.group == team.group();
            same || team
                .group()
                .into_iter()
                .all(|unit| self.group.contains(unit))
        };
        (collective && everybody()).then(|| self.pointer.cast())
    }

    /// Whether both have bytes in common.
    pub(crate) fn overlaps(&self, other: &Part<'_, T>) -> bool {
        let (a, b) = (&self.bytes, &other.bytes);
        a.address() < b.address() + b.len() && b.address() < a.address() + a.len()
    }
}
