//! Boxes of indices.

use std::ops::Range;

/// A box of indices: `lo` is inside, `hi` is not. It is empty if some `hi` is not above its `lo`.
/// It is made from a range or from an array of ranges.
///
/// ```
/// use samite_pgas::array::Bounds;
/// assert_eq!(Bounds::from([2..4, 0..3]).len(), 6);
/// assert_eq!(Bounds::from(5..9), Bounds { lo: [5], hi: [9] });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds<const D: usize> {
    /// The lowest index inside, per dimension.
    pub lo: [u64; D],
    /// One past the highest index inside, per dimension.
    pub hi: [u64; D],
}

impl<const D: usize> Bounds<D> {
    /// Returns the box of all indices below these extents.
    pub fn whole(extents: [u64; D]) -> Bounds<D> {
        Bounds {
            lo: [0; D],
            hi: extents,
        }
    }

    /// Returns the number of indices along each dimension.
    #[inline]
    pub fn extents(&self) -> [u64; D] {
        std::array::from_fn(|d| self.hi[d].saturating_sub(self.lo[d]))
    }

    /// Returns the number of indices; `u64::MAX` if there are more.
    #[inline]
    pub fn len(&self) -> u64 {
        let extents = self.extents();
        // A box with an extent of 0 is empty, even if the product of the others overflows.
        let is_empty = extents.contains(&0);
        let all = |all: u64, extent: &u64| all.saturating_mul(*extent);
        if is_empty {
            0
        } else {
            extents.iter().fold(1, all)
        }
    }

    /// Returns true if the box contains no index.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if an index is inside.
    pub fn contains(&self, index: [u64; D]) -> bool {
        (0..D).all(|d| (self.lo[d]..self.hi[d]).contains(&index[d]))
    }

    /// Returns the position of an index inside the box in row-major order: the last dimension
    /// changes fastest.
    #[inline]
    pub fn linear(&self, index: [u64; D]) -> u64 {
        let mut place = 0;
        for (d, index) in index.iter().enumerate() {
            place = place * (self.hi[d] - self.lo[d]) + (index - self.lo[d]);
        }
        place
    }

    /// Returns the index at a position in row-major order; the inverse of [`Bounds::linear`].
    #[inline]
    pub fn index(&self, place: u64) -> [u64; D] {
        let (mut index, mut rest) = (self.lo, place);
        for d in (0..D).rev() {
            let extent = self.hi[d] - self.lo[d];
            index[d] += rest % extent;
            rest /= extent;
        }
        index
    }

    /// Iterates over all indices inside in row-major order.
    pub fn indices(&self) -> impl Iterator<Item = [u64; D]> + use<D> {
        let bounds = *self;
        let mut next = (!bounds.is_empty()).then_some(bounds.lo);
        std::iter::from_fn(move || {
            let index = next?;
            let mut after = index;
            next = (0..D).rev().find_map(|d| {
                after[d] += 1;
                if after[d] < bounds.hi[d] {
                    return Some(after);
                }
                after[d] = bounds.lo[d];
                None
            });
            Some(index)
        })
    }
}

impl From<Range<u64>> for Bounds<1> {
    fn from(range: Range<u64>) -> Bounds<1> {
        Bounds::from([range])
    }
}

impl<const D: usize> From<[Range<u64>; D]> for Bounds<D> {
    fn from(ranges: [Range<u64>; D]) -> Bounds<D> {
        Bounds {
            lo: std::array::from_fn(|d| ranges[d].start),
            hi: std::array::from_fn(|d| ranges[d].end),
        }
    }
}

impl<const D: usize> std::fmt::Display for Bounds<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for d in 0..D {
            let comma = if d > 0 { ", " } else { "" };
            write!(f, "{comma}{}..{}", self.lo[d], self.hi[d])?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_come_in_row_major_order_and_have_places() {
        let bounds = Bounds::from([1..3, 5..5 + 2, 0..3]);
        let all: Vec<_> = bounds.indices().collect();
        assert_eq!(all.len(), 12);
        assert!(all.is_sorted());
        for (place, index) in all.into_iter().enumerate() {
            assert_eq!(bounds.linear(index), place as u64);
            assert_eq!(bounds.index(place as u64), index);
            assert!(bounds.contains(index));
        }
    }

    #[test]
    fn a_box_without_width_is_empty() {
        assert!(Bounds::from([4..4, 0..9]).is_empty());
        let all = 0..u64::MAX;
        assert_eq!(Bounds::from([all.clone(), all.clone(), 4..4]).len(), 0);
        assert_eq!(Bounds::from([all.clone(), all]).len(), u64::MAX);
        assert_eq!(Bounds::from([4..4, 0..9]).indices().count(), 0);
        assert_eq!(Bounds::<0>::whole([]).indices().count(), 1);
        assert_eq!(Bounds::from([2..3, 0..9]).to_string(), "[2..3, 0..9]");
    }
}
