//! Parts of this unit's memory as arguments of collectives: the members read and write them in
//! place.

use super::{Segment, Shared, out_of_range};
use crate::pointer::Origin;
use crate::{Elem, GlobalPtr, Group, Result, Team};
use samite_mem::SharedBytes;
use std::ops::{Bound, RangeBounds};

/// A range of elements of this unit's part of a shared segment.
#[derive(Clone, Debug)]
pub struct Part<'a, T> {
    bytes: SharedBytes,
    pointer: GlobalPtr<T>,
    count: u64,
    /// The members of the segment's team.
    group: &'a Group,
}

impl<T: Elem> Segment<T, Shared> {
    /// Returns the bytes of this unit's own part, for a layer that accesses them by itself, such as
    /// moved code. A clone is a use of the memory: until it is dropped, the phase of the segment
    /// does not change, and freed memory is not used again.
    pub fn bytes(&self) -> &SharedBytes {
        &self.state.bytes
    }

    /// Returns elements of this unit's own part, as an argument of a collective. Local. The members
    /// may pass different ranges, and ranges of different segments. If the segment belongs to the
    /// same team or a larger one, the other members read and write the elements in place.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// use samite_pgas::Sum;
    /// let (values, totals) = (world.allocate::<f64>(100)?, world.allocate::<f64>(100)?);
    /// // Members read and write each other's memory, without copies in between.
    /// world.all_reduce(values.part(..)?, totals.part(..)?, Sum)?;
    /// world.broadcast(0, totals.part(0..10)?)?;
    /// # values.free()?;
    /// # totals.free()?;
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
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
            return Err(out_of_range(self.team(), unit, first, count, self.len()));
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
    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes in this unit's memory.
    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns the pointer by which the members of `team` access it. `None` if not all of them can:
    /// for registered memory, and for segments of a smaller team, whose phases the others do not
    /// follow.
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

    /// Returns true if both have bytes in common.
    pub(crate) fn overlaps(&self, other: &Part<'_, T>) -> bool {
        let (a, b) = (&self.bytes, &other.bytes);
        a.address() < b.address() + b.len() && b.address() < a.address() + a.len()
    }
}
