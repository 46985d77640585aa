//! The N-d copy of the points that two arrays share.
//!
//! Runs are as long as possible: dimensions that are adjacent in both arrays are merged, so a block
//! that is complete in its fast dimensions is one `memcpy`. What remains is a nest of loops over
//! *units* (a run, possibly a single element) with an inner kernel for each short length of a unit.
//! If the two arrays have different fastest dimensions (a transposed view), both are traversed in
//! square tiles, so that whole cache lines are used on both sides.

use super::{Dims, Region, SpaceError};
use smallvec::SmallVec;

/// Where the points of a box are in a slice of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strided {
    region: Region,
    strides: Dims,
    offset: u64,
}

impl Strided {
    /// Returns a dense, row-major array over `region`, from the first byte on.
    ///
    /// # Errors
    /// Its size exceeds 64 bits.
    pub fn dense(region: Region) -> Result<Self, SpaceError> {
        let strides = region.strides()?;
        Ok(Strided {
            region,
            strides,
            offset: 0,
        })
    }

    /// Returns an array over `region` with any strides (in elements, one per dimension; 0 repeats),
    /// whose first point is `offset` elements into the bytes: a view into a larger array, one with
    /// ghost cells, a transposed one.
    ///
    /// # Errors
    /// Another number of strides than dimensions.
    pub fn new(region: Region, strides: &[u64], offset: u64) -> Result<Self, SpaceError> {
        if strides.len() != region.dims() {
            return Err(SpaceError::Dimensions {
                one: region.dims(),
                other: strides.len(),
            });
        }
        Ok(Strided {
            region,
            strides: Dims::from_slice(strides),
            offset,
        })
    }

    /// Returns the points.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the bytes from the start of the slice to the end of the last point of the box.
    fn needed(&self, element: u64) -> Option<u64> {
        if self.region.is_empty() {
            return Some(0);
        }
        let mut last = self.offset;
        for dim in 0..self.region.dims() {
            let steps = self.region.extent(dim) - 1;
            last = last.checked_add(steps.checked_mul(self.strides[dim])?)?;
        }
        last.checked_add(1)?.checked_mul(element)
    }

    /// Checks that the slice contains all points of the box.
    fn check(&self, element: u64, bytes: usize) -> Result<(), SpaceError> {
        let too_large = || SpaceError::TooLarge {
            region: self.region.clone(),
            element,
        };
        let needed = self.needed(element).ok_or_else(too_large)?;
        if needed > bytes as u64 {
            return Err(SpaceError::Short {
                region: self.region.clone(),
                needed,
                given: bytes as u64,
            });
        }
        Ok(())
    }

    /// Returns the byte at which `point` (inside the box) begins.
    fn byte_of(&self, point: &[u64], element: u64) -> u64 {
        let lower = self.region.lower();
        let ahead: u64 = (0..point.len())
            .map(|dim| (point[dim] - lower[dim]) * self.strides[dim])
            .sum();
        (self.offset + ahead) * element
    }
}

/// Copies the points that both boxes contain, from `from` to `to`. Returns the number of bytes
/// copied (0 if they share none).
///
/// `element` is the size of an element in bytes: 1, 2, 4, 8 or 16. Only these points are written.
///
/// ```
/// use samite_stage::{Region, space::{Strided, copy_box}};
/// let from: Vec<u8> = (0..16).collect(); // 4 x 4
/// let mut to = [0; 4];
/// let from_at = Strided::dense(Region::whole(&[4, 4]).unwrap()).unwrap();
/// let to_at = Strided::dense(Region::new(&[1, 2], &[3, 4]).unwrap()).unwrap();
/// assert_eq!(copy_box(1, &from, &from_at, &mut to, &to_at).unwrap(), 4);
/// assert_eq!(to, [6, 7, 10, 11]);
/// ```
///
/// # Errors
/// Different numbers of dimensions, a slice too short for its box, an invalid element size. Then
/// nothing was copied.
pub fn copy_box(
    element: u64,
    from: &[u8],
    from_at: &Strided,
    to: &mut [u8],
    to_at: &Strided,
) -> Result<u64, SpaceError> {
    if !matches!(element, 1 | 2 | 4 | 8 | 16) {
        return Err(SpaceError::ElementSize(element));
    }
    if from_at.region.dims() != to_at.region.dims() {
        return Err(SpaceError::Dimensions {
            one: from_at.region.dims(),
            other: to_at.region.dims(),
        });
    }
    from_at.check(element, from.len())?;
    to_at.check(element, to.len())?;
    let Some(shared) = from_at.region.intersection(&to_at.region) else {
        return Ok(0);
    };
    let nest = Nest::new(element as usize, &shared, from_at, to_at);
    // Inside both slices from here on: every byte was checked above.
    let from = &from[from_at.byte_of(shared.lower(), element) as usize..];
    let to = &mut to[to_at.byte_of(shared.lower(), element) as usize..];
    nest.run(from, to);
    shared.bytes(element)
}

/// A loop: its count, and the stride of each side in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loop {
    count: usize,
    from: usize,
    to: usize,
}

/// The loops of a copy, outermost first, over units of `unit` bytes that are contiguous on both
/// sides.
#[derive(Debug, PartialEq, Eq)]
struct Nest {
    loops: SmallVec<[Loop; 4]>,
    unit: usize,
}

/// Units along each edge of a tile: 64 cache lines on either side fit well into any first-level
/// cache.
const TILE: usize = 64;

impl Nest {
    fn new(element: usize, shared: &Region, from: &Strided, to: &Strided) -> Self {
        let mut loops: SmallVec<[Loop; 4]> = (0..shared.dims())
            .filter(|&dim| shared.extent(dim) > 1)
            .map(|dim| Loop {
                count: shared.extent(dim) as usize,
                from: (from.strides[dim] as usize) * element,
                to: (to.strides[dim] as usize) * element,
            })
            .collect();
        // Write in memory order: the destination's smallest stride is innermost.
        loops.sort_by_key(|l| std::cmp::Reverse(l.to));
        let mut unit = element;
        while let Some(&last) = loops.last() {
            if last.from == unit && last.to == unit {
                unit *= last.count;
                loops.pop();
            } else {
                break;
            }
        }
        let mut merged: SmallVec<[Loop; 4]> = SmallVec::new();
        for inner in loops {
            match merged.last_mut() {
                Some(outer)
                    if outer.from == inner.count * inner.from
                        && outer.to == inner.count * inner.to =>
                {
                    *outer = Loop {
                        count: outer.count * inner.count,
                        ..inner
                    };
                }
                _ => merged.push(inner),
            }
        }
        Nest {
            loops: merged,
            unit,
        }
    }

    fn run(&self, from: &[u8], to: &mut [u8]) {
        match self.unit {
            1 => self.units::<1>(from, to),
            2 => self.units::<2>(from, to),
            4 => self.units::<4>(from, to),
            8 => self.units::<8>(from, to),
            16 => self.units::<16>(from, to),
            24 => self.units::<24>(from, to),
            32 => self.units::<32>(from, to),
            40 => self.units::<40>(from, to),
            64 => self.units::<64>(from, to),
            _ => self.units::<0>(from, to),
        }
    }

    /// Runs the loops; `UNIT` is the length of a unit, or 0 if only `self.unit` has it.
    fn units<const UNIT: usize>(&self, from: &[u8], to: &mut [u8]) {
        let Some((&inner, outer)) = self.loops.split_last() else {
            return to[..self.unit].copy_from_slice(&from[..self.unit]);
        };
        // The loop that would be innermost for the source, if it is another one.
        let crossed = (0..outer.len())
            .filter(|&at| outer[at].from < inner.from)
            .min_by_key(|&at| outer[at].from);
        let outside: SmallVec<[Loop; 4]> = (0..outer.len())
            .filter(|&at| Some(at) != crossed)
            .map(|at| outer[at])
            .collect();
        walk(&outside, 0, 0, &mut |source, target| match crossed {
            Some(at) => self.tiles::<UNIT>(outer[at], inner, &from[source..], &mut to[target..]),
            None => self.line::<UNIT>(inner, &from[source..], &mut to[target..]),
        });
    }

    #[inline(always)]
    fn line<const UNIT: usize>(&self, inner: Loop, from: &[u8], to: &mut [u8]) {
        let unit = if UNIT == 0 { self.unit } else { UNIT };
        let (mut source, mut target) = (0, 0);
        for _ in 0..inner.count {
            to[target..target + unit].copy_from_slice(&from[source..source + unit]);
            source += inner.from;
            target += inner.to;
        }
    }

    fn tiles<const UNIT: usize>(&self, outer: Loop, inner: Loop, from: &[u8], to: &mut [u8]) {
        for row in (0..outer.count).step_by(TILE) {
            for column in (0..inner.count).step_by(TILE) {
                let part = Loop {
                    count: TILE.min(inner.count - column),
                    ..inner
                };
                for row in row..outer.count.min(row + TILE) {
                    let source = row * outer.from + column * inner.from;
                    let target = row * outer.to + column * inner.to;
                    self.line::<UNIT>(part, &from[source..], &mut to[target..]);
                }
            }
        }
    }
}

/// Calls `each` with the offsets on both sides, for every iteration of the loops.
fn walk(loops: &[Loop], from: usize, to: usize, each: &mut impl FnMut(usize, usize)) {
    let Some((first, rest)) = loops.split_first() else {
        return each(from, to);
    };
    for turn in 0..first.count {
        walk(rest, from + turn * first.from, to + turn * first.to, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a byte that depends on its point, and on its position in the element.
    fn byte_at(point: &[u64], byte: u64) -> u8 {
        let mixed = point.iter().fold(byte + 1, |mixed, &x| {
            (mixed ^ x)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        });
        (mixed >> 40) as u8
    }

    fn points(region: &Region) -> Vec<Vec<u64>> {
        let mut points = vec![vec![]];
        for dim in 0..region.dims() {
            let range = region.lower()[dim]..region.upper()[dim];
            points = points
                .into_iter()
                .flat_map(|point: Vec<u64>| {
                    range
                        .clone()
                        .map(move |x| [point.clone(), vec![x]].concat())
                })
                .collect();
        }
        points
    }

    fn filled(at: &Strided, element: u64, spare: u64) -> Vec<u8> {
        let mut bytes = vec![0; (at.needed(element).unwrap() + spare) as usize];
        for point in points(&at.region) {
            let start = at.byte_of(&point, element);
            for byte in 0..element {
                bytes[(start + byte) as usize] = byte_at(&point, byte);
            }
        }
        bytes
    }

    /// Copies, and compares every byte of the destination with a loop over the points.
    fn check(element: u64, from_at: &Strided, to_at: &Strided) {
        let from = filled(from_at, element, 3);
        let mut to = vec![0xee; (to_at.needed(element).unwrap() + 5) as usize];
        let mut expected = to.clone();
        let mut bytes = 0;
        if let Some(shared) = from_at.region.intersection(&to_at.region) {
            for point in points(&shared) {
                let start = to_at.byte_of(&point, element) as usize;
                for byte in 0..element {
                    expected[start + byte as usize] = byte_at(&point, byte);
                    bytes += 1;
                }
            }
        }
        assert_eq!(
            copy_box(element, &from, from_at, &mut to, to_at).unwrap(),
            bytes
        );
        assert_eq!(to, expected, "{from_at:?} to {to_at:?}");
    }

    fn boxes(dims: usize) -> impl Strategy<Value = Region> {
        // Mostly boxes that intersect, and often whole dimensions.
        let extent = prop_oneof![1 => Just(0u64), 9 => 1u64..6];
        let corners = proptest::collection::vec((0u64..3, extent), dims);
        corners.prop_map(|corners| {
            let (lower, count): (Vec<u64>, Vec<u64>) = corners.into_iter().unzip();
            Region::at(&lower, &count).unwrap()
        })
    }

    /// An array inside a larger one, its dimensions in any memory order.
    fn views(dims: usize) -> impl Strategy<Value = Strided> {
        let order = Just((0..dims).collect::<Vec<_>>()).prop_shuffle();
        let ghosts = proptest::collection::vec(0u64..3, dims);
        (boxes(dims), order, ghosts, 0u64..4).prop_map(move |(region, order, ghosts, offset)| {
            let mut strides = vec![0; dims];
            let mut stride = 1;
            for dim in order {
                strides[dim] = stride;
                stride *= region.extent(dim).max(1) + ghosts[dim];
            }
            Strided::new(region, &strides, offset).unwrap()
        })
    }

    proptest! {
        #[test]
        fn dense_arrays_of_any_boxes((from, to) in (1usize..5).prop_flat_map(|dims| (boxes(dims), boxes(dims))), element in 0u32..5) {
            check(1 << element, &Strided::dense(from).unwrap(), &Strided::dense(to).unwrap());
        }

        #[test]
        fn views_of_any_strides((from, to) in (1usize..5).prop_flat_map(|dims| (views(dims), views(dims))), element in 0u32..5) {
            check(1 << element, &from, &to);
        }
    }

    #[test]
    fn what_only_one_side_has_in_a_row_is_no_run() {
        let inside = Region::new(&[1, 0, 1], &[3, 2, 3]).unwrap();
        let wide = Strided::dense(Region::whole(&[4, 4, 4]).unwrap()).unwrap();
        let dense = Strided::dense(inside).unwrap();
        for element in [1, 8, 16] {
            check(element, &wide, &dense);
            check(element, &dense, &wide);
        }
    }

    #[test]
    fn transposes_larger_than_a_tile() {
        for (rows, columns) in [(130, 67), (64, 64), (1, 200), (200, 1), (65, 129)] {
            let region = Region::whole(&[rows, columns]).unwrap();
            let transposed = Strided::new(region.clone(), &[1, rows], 0).unwrap();
            let dense = Strided::dense(region).unwrap();
            for element in [1, 8] {
                check(element, &transposed, &dense);
                check(element, &dense, &transposed);
            }
        }
    }

    fn nest(from: &Region, to: &Region) -> Nest {
        let shared = from.intersection(to).unwrap();
        let [from, to] = [from, to].map(|region| Strided::dense(region.clone()).unwrap());
        Nest::new(8, &shared, &from, &to)
    }

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        let whole = Region::whole(&[4, 5, 6]).unwrap();
        let slab = Region::new(&[1, 0, 0], &[3, 5, 6]).unwrap();
        assert_eq!(
            nest(&slab, &whole),
            Nest {
                loops: SmallVec::new(),
                unit: 2 * 5 * 6 * 8
            }
        );
        let plane = Region::new(&[0, 2, 0], &[4, 4, 6]).unwrap();
        let planes = nest(&plane, &whole);
        assert_eq!((planes.loops.len(), planes.unit), (1, 2 * 6 * 8));
        // Blocks of extent 1 in the fastest dimension: one loop of single elements.
        let column = Region::new(&[0, 0, 3], &[4, 5, 4]).unwrap();
        let columns = nest(&column, &whole);
        assert_eq!((columns.loops.len(), columns.unit), (1, 8));
        assert_eq!(columns.loops[0].count, 20);
    }

    #[test]
    fn a_repeated_source_fills() {
        let region = Region::whole(&[3, 4]).unwrap();
        let from = Strided::new(region.clone(), &[0, 1], 0).unwrap();
        let mut to = [0; 12];
        let dense = Strided::dense(region).unwrap();
        copy_box(1, &[1, 2, 3, 4], &from, &mut to, &dense).unwrap();
        assert_eq!(to, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
    }

    #[test]
    fn short_slices_and_odd_elements_are_refused() {
        let region = Region::whole(&[4, 4]).unwrap();
        let dense = Strided::dense(region.clone()).unwrap();
        let (full, mut short) = ([0; 16], [7; 15]);
        assert!(matches!(
            copy_box(1, &full, &dense, &mut short, &dense),
            Err(SpaceError::Short {
                needed: 16,
                given: 15,
                ..
            })
        ));
        assert_eq!(short, [7; 15]);
        assert!(matches!(
            copy_box(3, &full, &dense, &mut short, &dense),
            Err(SpaceError::ElementSize(3))
        ));
        let line = Strided::dense(Region::whole(&[4]).unwrap()).unwrap();
        assert!(copy_box(1, &full, &line, &mut short, &dense).is_err());
        let far = Strided::new(region.clone(), &[u64::MAX, 1], 0).unwrap();
        assert!(matches!(
            copy_box(1, &full, &far, &mut [0; 16], &dense),
            Err(SpaceError::TooLarge { .. })
        ));
        assert!(Strided::new(region, &[1], 0).is_err());
    }

    /// Positions beyond 2^32 in a box, without an array of that size.
    #[test]
    fn dimensions_beyond_32_bits() {
        let start = (1u64 << 40) + 5;
        let from = Region::at(&[start, 3], &[4, 2]).unwrap();
        let to = Region::at(&[start + 1, 0], &[2, 9]).unwrap();
        check(
            8,
            &Strided::dense(from).unwrap(),
            &Strided::dense(to).unwrap(),
        );
    }
}
