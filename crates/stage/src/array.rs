//! Shapes and boxes as a program writes them: arrays of numbers and ranges, or [`Region`]s.

use crate::space::Dims;
use crate::{Error, Region, Result};
use ndarray::{ArrayViewD, Axis, Slice};
use std::ops::{Range, RangeFull};

/// One number per dimension, the slowest first: `[ny, nx]`, of type `u64` or `usize`; or literals,
/// `[0, 0]`.
pub trait Shape {
    /// Returns the numbers.
    fn dims(&self) -> Dims;
}

impl<const N: usize> Shape for [u64; N] {
    fn dims(&self) -> Dims {
        Dims::from_slice(self)
    }
}

impl<const N: usize> Shape for [usize; N] {
    fn dims(&self) -> Dims {
        self.iter().map(|extent| *extent as u64).collect()
    }
}

/// The type of literals without a suffix. A negative one becomes a number that is outside any
/// array.
impl<const N: usize> Shape for [i32; N] {
    fn dims(&self) -> Dims {
        self.iter().map(|extent| number(*extent)).collect()
    }
}

fn number(written: i32) -> u64 {
    u64::try_from(written).unwrap_or(u64::MAX)
}

impl Shape for &[u64] {
    fn dims(&self) -> Dims {
        Dims::from_slice(self)
    }
}

impl Shape for &[usize] {
    fn dims(&self) -> Dims {
        self.iter().map(|extent| *extent as u64).collect()
    }
}

/// A box of an array: `[10..110, 20..70]`, a [`Region`], or `..` for all of it.
///
/// ```
/// use samite_stage::{Region, Selection};
/// let shape = [40, 100];
/// let rows = [10..20, 0..100].region(&shape)?; // ranges of literals, `u64` or `usize`
/// assert_eq!(rows, Region::at(&[10, 0], &[10, 100])?);
/// assert_eq!((..).region(&shape)?, Region::whole(&shape)?);
/// # Ok::<(), samite_stage::Error>(())
/// ```
pub trait Selection {
    /// Returns the box, in an array of this shape.
    fn region(&self, shape: &[u64]) -> Result<Region>;
}

impl<const N: usize> Selection for [Range<u64>; N] {
    fn region(&self, _: &[u64]) -> Result<Region> {
        let lower = self.each_ref().map(|range| range.start);
        let upper = self.each_ref().map(|range| range.end);
        Ok(Region::new(&lower, &upper)?)
    }
}

impl<const N: usize> Selection for [Range<usize>; N] {
    fn region(&self, shape: &[u64]) -> Result<Region> {
        let ranges = self.each_ref();
        ranges
            .map(|range| range.start as u64..range.end as u64)
            .region(shape)
    }
}

/// The type of ranges of literals without a suffix.
impl<const N: usize> Selection for [Range<i32>; N] {
    fn region(&self, shape: &[u64]) -> Result<Region> {
        let ranges = self.each_ref();
        ranges
            .map(|range| number(range.start)..number(range.end))
            .region(shape)
    }
}

impl Selection for Region {
    fn region(&self, _: &[u64]) -> Result<Region> {
        Ok(self.clone())
    }
}

impl<S: Selection> Selection for &S {
    fn region(&self, shape: &[u64]) -> Result<Region> {
        (**self).region(shape)
    }
}

impl Selection for RangeFull {
    fn region(&self, shape: &[u64]) -> Result<Region> {
        Ok(Region::whole(shape)?)
    }
}

/// Returns a box of a variable, after checking that it is inside the array.
pub(crate) fn inside(variable: &str, shape: &[u64], asked: Region) -> Result<Region> {
    let whole = Region::whole(shape)?;
    if asked.dims() != whole.dims() {
        return Err(Error::BoxDimensions {
            variable: variable.to_owned(),
            asked,
            shape: shape.to_vec(),
        });
    }
    match whole.contains(&asked) {
        true => Ok(asked),
        false => Err(Error::OutsideArray {
            variable: variable.to_owned(),
            asked,
            shape: shape.to_vec(),
        }),
    }
}

/// Returns the box of a block that is put into an array of this shape.
///
/// # Errors
/// The three have different numbers of dimensions; the block is not inside the array.
pub(crate) fn block(
    variable: &str,
    shape: &[u64],
    start: &[u64],
    extent: &[u64],
) -> Result<Region> {
    if start.len() != shape.len() || extent.len() != shape.len() {
        return Err(Error::BlockDimensions {
            variable: variable.to_owned(),
            shape: shape.to_vec(),
            start: start.to_vec(),
            block: extent.to_vec(),
        });
    }
    let ends = |dim: usize| start[dim].checked_add(extent[dim]);
    let is_inside = |dim| ends(dim).is_some_and(|end| end <= shape[dim]);
    match (0..shape.len()).all(is_inside) {
        true => Ok(Region::at(start, extent)?),
        false => Err(Error::BlockOutside {
            variable: variable.to_owned(),
            shape: shape.to_vec(),
            // A negative number was given, if it is that large.
            start: start.iter().map(|start| *start as i64).collect(),
            block: extent.to_vec(),
        }),
    }
}

/// Lengths as ndarray counts them.
pub(crate) fn lengths(shape: &[u64]) -> Vec<usize> {
    shape.iter().map(|extent| *extent as usize).collect()
}

/// Cuts a box out of the view of a block that begins at `lower`.
pub(crate) fn cut<'a, T>(
    mut whole: ArrayViewD<'a, T>,
    lower: &[u64],
    region: &Region,
) -> ArrayViewD<'a, T> {
    for (dim, lower) in lower.iter().enumerate() {
        let start = region.lower()[dim] - lower;
        let end = region.upper()[dim] - lower;
        whole.slice_axis_inplace(Axis(dim), Slice::from(start as usize..end as usize));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_written_without_a_type() {
        let typed = Region::new(&[10, 20], &[110, 70]).unwrap();
        assert_eq!([10..110, 20..70].region(&[]).unwrap(), typed);
        assert_eq!([10usize..110, 20..70].region(&[]).unwrap(), typed);
        assert_eq!([200, 300].dims().as_slice(), [200, 300]);
        assert!([-1..110, 20..70].region(&[]).is_err());
        assert_eq!([0, -3].dims().as_slice(), [0, u64::MAX]);
    }
}
