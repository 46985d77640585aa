//! A half-open N-d box of `u64`.

use super::SpaceError;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// Maximum number of dimensions of an array.
pub const MAX_DIMS: usize = 16;

/// One number per dimension, the slowest first.
pub type Dims = SmallVec<[u64; 4]>;

/// A half-open box, `lower[d] <= x[d] < upper[d]` in every dimension `d`; the last dimension is
/// contiguous in memory.
///
/// Only checked constructors create it: it has 1 to [`MAX_DIMS`] dimensions, and no upper corner is
/// below its lower one. An empty box (some `lower[d] == upper[d]`) is a valid box with volume 0.
/// Decoding checks the same.
///
/// ```
/// use samite_stage::Region;
/// let block = Region::at(&[10, 0], &[5, 100]).unwrap();
/// let asked = Region::new(&[12, 90], &[40, 95]).unwrap();
/// assert_eq!(block.intersection(&asked).unwrap().to_string(), "[12..15, 90..95]");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Corners", into = "Corners")]
pub struct Region {
    lower: Dims,
    upper: Dims,
}

/// A box as it is encoded.
#[derive(Clone, Serialize, Deserialize)]
struct Corners {
    #[serde(deserialize_with = "crate::protocol::few")]
    lower: Dims,
    #[serde(deserialize_with = "crate::protocol::few")]
    upper: Dims,
}

impl From<Region> for Corners {
    fn from(region: Region) -> Self {
        Corners {
            lower: region.lower,
            upper: region.upper,
        }
    }
}

impl TryFrom<Corners> for Region {
    type Error = SpaceError;
    fn try_from(corners: Corners) -> Result<Self, SpaceError> {
        Region::new(&corners.lower, &corners.upper)
    }
}

impl Region {
    /// Returns the box from `lower` (inside) to `upper` (outside).
    ///
    /// # Errors
    /// Different numbers of dimensions, none or more than [`MAX_DIMS`], an upper corner below the
    /// lower one.
    pub fn new(lower: &[u64], upper: &[u64]) -> Result<Self, SpaceError> {
        if lower.len() != upper.len() {
            return Err(SpaceError::Dimensions {
                one: lower.len(),
                other: upper.len(),
            });
        }
        if lower.is_empty() || lower.len() > MAX_DIMS {
            return Err(SpaceError::DimensionCount { dims: lower.len() });
        }
        for (dim, (&lower, &upper)) in lower.iter().zip(upper).enumerate() {
            if lower > upper {
                return Err(SpaceError::Inverted { dim, lower, upper });
            }
        }
        Ok(Region {
            lower: Dims::from_slice(lower),
            upper: Dims::from_slice(upper),
        })
    }

    /// Returns the box that begins at `start` and has `count` points in each dimension.
    ///
    /// # Errors
    /// As [`new`](Self::new); a sum beyond 64 bits is reported as inverted.
    pub fn at(start: &[u64], count: &[u64]) -> Result<Self, SpaceError> {
        if start.len() != count.len() {
            return Err(SpaceError::Dimensions {
                one: start.len(),
                other: count.len(),
            });
        }
        let upper: Dims = start
            .iter()
            .zip(count)
            .map(|(&s, &c)| s.wrapping_add(c))
            .collect();
        Region::new(start, &upper)
    }

    /// Returns the box of a whole array of that shape.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn whole(shape: &[u64]) -> Result<Self, SpaceError> {
        let lower: Dims = shape.iter().map(|_| 0).collect();
        Region::new(&lower, shape)
    }

    /// Returns the first point.
    pub fn lower(&self) -> &[u64] {
        &self.lower
    }

    /// Returns one beyond the last point, in each dimension.
    pub fn upper(&self) -> &[u64] {
        &self.upper
    }

    /// Returns the number of dimensions.
    pub fn dims(&self) -> usize {
        self.lower.len()
    }

    /// Returns the length in dimension `dim`.
    pub fn extent(&self, dim: usize) -> u64 {
        self.upper[dim] - self.lower[dim]
    }

    /// Returns the lengths in all dimensions.
    pub fn shape(&self) -> Dims {
        (0..self.dims()).map(|dim| self.extent(dim)).collect()
    }

    /// Returns true if it has no point.
    pub fn is_empty(&self) -> bool {
        (0..self.dims()).any(|dim| self.extent(dim) == 0)
    }

    /// Returns the number of points; `None` if it exceeds 64 bits.
    pub fn volume(&self) -> Option<u64> {
        if self.is_empty() {
            return Some(0); // even if the product of the other dimensions would overflow
        }
        (0..self.dims()).try_fold(1u64, |volume, dim| volume.checked_mul(self.extent(dim)))
    }

    /// Returns the bytes of a dense array over the box.
    ///
    /// # Errors
    /// The number exceeds 64 bits.
    pub fn bytes(&self, element: u64) -> Result<u64, SpaceError> {
        self.volume()
            .and_then(|volume| volume.checked_mul(element))
            .ok_or_else(|| SpaceError::TooLarge {
                region: self.clone(),
                element,
            })
    }

    /// Returns the points in both; `None` if there are none, or the boxes have different numbers of
    /// dimensions.
    pub fn intersection(&self, other: &Region) -> Option<Region> {
        if self.dims() != other.dims() {
            return None;
        }
        let mut cut = self.clone();
        for dim in 0..self.dims() {
            cut.lower[dim] = cut.lower[dim].max(other.lower[dim]);
            cut.upper[dim] = cut.upper[dim].min(other.upper[dim]);
            if cut.lower[dim] >= cut.upper[dim] {
                return None;
            }
        }
        Some(cut)
    }

    /// Returns true if they share a point.
    pub fn intersects(&self, other: &Region) -> bool {
        self.dims() == other.dims()
            && (0..self.dims()).all(|dim| {
                self.lower[dim].max(other.lower[dim]) < self.upper[dim].min(other.upper[dim])
            })
    }

    /// Returns true if every point of `other` is in it. An empty box is inside if its corners are.
    pub fn contains(&self, other: &Region) -> bool {
        self.dims() == other.dims()
            && (0..self.dims()).all(|dim| {
                self.lower[dim] <= other.lower[dim] && other.upper[dim] <= self.upper[dim]
            })
    }

    /// Returns the box relative to `origin`: its corners minus the lower corner of `origin`.
    ///
    /// # Errors
    /// It is not inside `origin`.
    pub fn relative_to(&self, origin: &Region) -> Result<Region, SpaceError> {
        if !origin.contains(self) {
            return Err(SpaceError::Outside {
                asked: self.clone(),
                whole: origin.clone(),
            });
        }
        let mut moved = self.clone();
        for dim in 0..self.dims() {
            moved.lower[dim] -= origin.lower[dim];
            moved.upper[dim] -= origin.lower[dim];
        }
        Ok(moved)
    }

    /// Returns the number of elements from one index to the next, in each dimension, of a dense
    /// row-major array over the box. The slowest dimension comes first; the last stride is 1.
    ///
    /// # Errors
    /// The product exceeds 64 bits.
    pub fn strides(&self) -> Result<Dims, SpaceError> {
        self.bytes(1)?;
        let mut strides: Dims = self.lower.iter().map(|_| 1).collect();
        for dim in (0..self.dims() - 1).rev() {
            // The product of the extents of an empty box may exceed 64 bits; its strides are never
            // used.
            strides[dim] = strides[dim + 1].saturating_mul(self.extent(dim + 1));
        }
        Ok(strides)
    }

    /// Cuts the box at `at` in dimension `dim`. Returns the part below, and the rest.
    pub(crate) fn cut(&self, dim: usize, at: u64) -> (Region, Region) {
        let at = at.clamp(self.lower[dim], self.upper[dim]);
        let (mut below, mut above) = (self.clone(), self.clone());
        below.upper[dim] = at;
        above.lower[dim] = at;
        (below, above)
    }
}

impl fmt::Display for Region {
    /// Writes `[0..4, 10..20]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for dim in 0..self.dims() {
            let comma = if dim == 0 { "" } else { ", " };
            write!(f, "{comma}{}..{}", self.lower[dim], self.upper[dim])?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(lower: &[u64], upper: &[u64]) -> Region {
        Region::new(lower, upper).unwrap()
    }

    #[test]
    fn a_box_is_checked_when_it_is_made() {
        assert!(matches!(
            Region::new(&[0], &[1, 2]),
            Err(SpaceError::Dimensions { one: 1, other: 2 })
        ));
        assert!(matches!(
            Region::new(&[], &[]),
            Err(SpaceError::DimensionCount { dims: 0 })
        ));
        assert!(Region::new(&[0; 17], &[1; 17]).is_err());
        assert!(Region::new(&[0; 16], &[1; 16]).is_ok());
        assert!(matches!(
            Region::new(&[0, 5], &[1, 4]),
            Err(SpaceError::Inverted {
                dim: 1,
                lower: 5,
                upper: 4
            })
        ));
        assert!(
            Region::at(&[u64::MAX], &[2]).is_err(),
            "the sum passes 64 bits"
        );
    }

    #[test]
    fn volumes_are_counted_in_64_bits_and_not_beyond() {
        assert_eq!(
            Region::whole(&[1 << 33, 1 << 30]).unwrap().volume(),
            Some(1 << 63)
        );
        assert_eq!(Region::whole(&[1 << 33, 1 << 31]).unwrap().volume(), None);
        assert_eq!(
            Region::whole(&[1 << 33, 1 << 31, 0]).unwrap().volume(),
            Some(0)
        );
        assert!(
            Region::whole(&[1 << 32, 1 << 30])
                .unwrap()
                .bytes(8)
                .is_err()
        );
        assert!(
            Region::whole(&[1 << 32, 1 << 32])
                .unwrap()
                .strides()
                .is_err()
        );
    }

    #[test]
    fn boxes_meet_in_a_box() {
        let one = region(&[0, 0, 0], &[10, 10, 10]);
        let other = region(&[5, 9, 0], &[20, 20, 1]);
        assert_eq!(
            one.intersection(&other),
            Some(region(&[5, 9, 0], &[10, 10, 1]))
        );
        assert!(one.intersects(&other) && other.intersects(&one));
        let beside = region(&[10, 0, 0], &[11, 1, 1]);
        assert_eq!(one.intersection(&beside), None, "half-open boxes touch");
        assert!(!one.intersects(&beside));
        assert_eq!(one.intersection(&region(&[0], &[1])), None);
        assert!(one.contains(&region(&[2, 2, 2], &[10, 3, 3])));
        assert!(!one.contains(&region(&[2, 2, 2], &[11, 3, 3])));
    }

    #[test]
    fn strides_and_origin() {
        let one = region(&[3, 4, 5], &[6, 8, 10]);
        assert_eq!(one.strides().unwrap().as_slice(), [20, 5, 1]);
        assert_eq!(
            region(&[4, 4, 6], &[5, 8, 7]).relative_to(&one).unwrap(),
            region(&[1, 0, 1], &[2, 4, 2])
        );
        assert!(region(&[2, 4, 6], &[5, 8, 7]).relative_to(&one).is_err());
    }
}
