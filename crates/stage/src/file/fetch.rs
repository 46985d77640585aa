//! Reads a box from a block in a file, with few reads.
//!
//! A read costs as much as a few kilobytes more do. So bytes that are close together are read at
//! once, including gaps, and the points are copied out of them; distant ones are read separately. A
//! part that is dense both in the block and in the destination array is read directly into its
//! place.

use super::error::FileError;
use super::frame::Frames;
use crate::space::{Dims, Strided, copy_box};
use crate::{Region, SpaceError};

/// Bytes that cost as much as one more read.
const READ_COST: u64 = 4 << 10;
/// Maximum bytes that are read at once with gaps.
const SCRATCH: u64 = 1 << 20;

/// A dense block in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) frames: &'a Frames,
    /// The offset of its bytes.
    pub(super) at: u64,
    pub(super) region: &'a Region,
    /// Bytes of an element.
    pub(super) element: u64,
}

/// Reads `part`, which is inside the block and inside `region`, into `to`, a dense array over
/// `region`.
pub(super) fn fetch(
    source: Source,
    part: &Region,
    region: &Region,
    to: &mut [u8],
) -> Result<(), FileError> {
    let mut fetch = Fetch {
        source,
        strides: source.region.strides()?,
        target: Strided::dense(region.clone())?,
        target_strides: region.strides()?,
        scratch: Vec::new(),
    };
    fetch.part(part, to)
}

struct Fetch<'a> {
    source: Source<'a>,
    strides: Dims,
    target: Strided,
    target_strides: Dims,
    scratch: Vec<u8>,
}

impl Fetch<'_> {
    fn part(&mut self, part: &Region, to: &mut [u8]) -> Result<(), FileError> {
        if part.is_empty() {
            return Ok(());
        }
        let element = self.source.element;
        let wanted = part.bytes(element)?;
        let span = span(part, &self.strides) * element;
        let from = self.source.at + offset(part, self.source.region, &self.strides) * element;
        if span == wanted && self::span(part, &self.target_strides) * element == wanted {
            let at = offset(part, self.target.region(), &self.target_strides) * element;
            let place = usize::try_from(at)
                .ok()
                .zip(usize::try_from(at + wanted).ok());
            let place = place.and_then(|(from, to_)| to.get_mut(from..to_));
            let place = place.ok_or_else(|| SpaceError::Short {
                region: self.target.region().clone(),
                needed: at + wanted,
                given: 0,
            })?;
            return self.source.frames.read(from, place);
        }
        let gaps_are_cheap = span - wanted <= (runs(part, &self.strides) - 1) * READ_COST;
        if span <= SCRATCH && gaps_are_cheap {
            self.scratch.resize(span as usize, 0);
            self.source.frames.read(from, &mut self.scratch)?;
            let read = Strided::new(part.clone(), &self.strides, 0)?;
            copy_box(element, &self.scratch, &read, to, &self.target)?;
            return Ok(());
        }
        // It has more than one point: a single one has no gaps and is small. Cutting halves it, so
        // the recursion ends.
        let dim = (0..part.dims()).find(|&dim| part.extent(dim) > 1);
        let dim = dim.unwrap_or(part.dims() - 1);
        let middle = part.lower()[dim] + part.extent(dim) / 2;
        let (below, above) = part.cut(dim, middle);
        self.part(&below, to)?;
        self.part(&above, to)
    }
}

/// Returns the number of elements from the first point of `part` through its last one.
fn span(part: &Region, strides: &[u64]) -> u64 {
    let steps = (0..part.dims()).map(|dim| (part.extent(dim) - 1) * strides[dim]);
    steps.sum::<u64>() + 1
}

/// Returns the number of elements before the first point of `part` in a dense array over `whole`.
fn offset(part: &Region, whole: &Region, strides: &[u64]) -> u64 {
    let ahead = part.lower().iter().zip(whole.lower()).zip(strides);
    ahead
        .map(|((part, whole), stride)| (part - whole) * stride)
        .sum()
}

/// Returns the number of runs without gaps.
fn runs(part: &Region, strides: &[u64]) -> u64 {
    let mut dense = 1;
    for dim in (0..part.dims()).rev() {
        if part.extent(dim) > 1 && strides[dim] != dense {
            return (0..=dim).map(|dim| part.extent(dim)).product();
        }
        dense *= part.extent(dim);
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_up_to_the_first_gap() {
        let whole = Region::whole(&[6, 5, 4]).unwrap();
        let strides = whole.strides().unwrap();
        let part = |lower: [u64; 3], upper: [u64; 3]| Region::new(&lower, &upper).unwrap();
        for (part, count, length) in [
            (part([1, 0, 0], [3, 5, 4]), 1, 40),
            (part([1, 2, 0], [2, 4, 4]), 1, 8),
            (part([1, 2, 0], [3, 4, 4]), 2, 28),
            (part([1, 2, 1], [3, 4, 3]), 4, 26),
            (part([5, 4, 3], [6, 5, 4]), 1, 1),
            (part([0, 4, 0], [6, 5, 1]), 6, 101),
        ] {
            assert_eq!(runs(&part, &strides), count, "{part}");
            assert_eq!(span(&part, &strides), length, "{part}");
        }
        assert_eq!(offset(&part([1, 2, 1], [3, 4, 3]), &whole, &strides), 29);
    }
}
