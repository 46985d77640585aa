//! The value of each element: a function of the step and of its index in the whole array, so that a
//! byte from a wrong step or index is detected.

use ndarray::{ArrayViewD, ArrayViewMutD};
use samite::stage::{Element, Region};

/// Odd, and without a pattern in its bits (the golden ratio).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Distance between the indices of one step and those of the next.
const STRIDE: u64 = 0xD1B5_4A32_D192_ED03;

/// A numeric type that can be made from bits; the upper ones matter most.
pub trait Value: Element {
    /// Returns the number.
    fn of(bits: u64) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn of(bits: u64) -> Self {
                (bits >> (64 - <$type>::BITS)) as $type
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Value for f32 {
    fn of(bits: u64) -> Self {
        (bits >> 40) as f32
    }
}

impl Value for f64 {
    fn of(bits: u64) -> Self {
        (bits >> 11) as f64
    }
}

/// Returns the element at `place` (counted row by row over the whole array) in a step.
pub fn value<T: Value>(step: u64, place: u64) -> T {
    let place = step
        .wrapping_mul(STRIDE)
        .wrapping_add(place)
        .wrapping_add(1);
    T::of(place.wrapping_mul(GOLDEN))
}

/// Returns the index of the first element of each row of a box, in order.
fn rows(shape: &[u64], region: &Region) -> Vec<u64> {
    let mut firsts = vec![0];
    for (dim, extent) in shape.iter().enumerate() {
        let last = dim + 1 == shape.len();
        let lower = region.lower()[dim];
        let upper = if last { lower + 1 } else { region.upper()[dim] };
        let next = |first: &u64| {
            let base = first * extent;
            (lower..upper).map(move |at| base + at)
        };
        firsts = firsts.iter().flat_map(next).collect();
    }
    firsts
}

/// Fills the part `region` of an array of `shape`.
pub fn fill<T: Value>(mut part: ArrayViewMutD<'_, T>, shape: &[u64], region: &Region, step: u64) {
    if region.is_empty() {
        return;
    }
    for (mut row, first) in part.rows_mut().into_iter().zip(rows(shape, region)) {
        for (element, place) in row.iter_mut().zip(first..) {
            *element = value(step, place);
        }
    }
}

/// Returns how many elements of the part `region` are wrong, and the index of the first one.
pub fn check<T: Value>(
    part: &ArrayViewD<'_, T>,
    shape: &[u64],
    region: &Region,
    step: u64,
) -> (u64, Option<u64>) {
    let (mut wrong, mut at) = (0, None);
    if region.is_empty() {
        return (wrong, at);
    }
    for (row, first) in part.rows().into_iter().zip(rows(shape, region)) {
        for (element, place) in row.iter().zip(first..) {
            if *element != value(step, place) {
                wrong += 1;
                at = at.or(Some(place));
            }
        }
    }
    (wrong, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::ArrayD;

    fn filled<T: Value>(shape: &[u64], region: &Region, step: u64) -> ArrayD<T> {
        let extent: Vec<usize> = region
            .shape()
            .iter()
            .map(|extent| *extent as usize)
            .collect();
        let mut part = ArrayD::from_elem(extent, T::of(0));
        fill(part.view_mut(), shape, region, step);
        part
    }

    #[test]
    fn a_box_has_the_elements_of_the_whole() {
        let shape = [5, 4, 6];
        let whole = filled::<i32>(&shape, &Region::whole(&shape).unwrap(), 3);
        let mut places = 0..;
        assert!(
            whole
                .iter()
                .all(|element| Some(*element) == places.next().map(|at| value(3, at)))
        );
        let region = Region::new(&[1, 0, 2], &[4, 3, 5]).unwrap();
        let part = filled::<i32>(&shape, &region, 3);
        let cut = whole.slice_each_axis(|axis| [1..4, 0..3, 2..5][axis.axis.0].clone().into());
        assert_eq!(part, cut);
        assert_eq!(check(&part.view(), &shape, &region, 3), (0, None));
    }

    #[test]
    fn other_steps_places_and_bits_are_wrong() {
        fn wrong<T: Value>() {
            let shape = [16, 16];
            let region = Region::new(&[2, 3], &[10, 11]).unwrap();
            let mut part = filled::<T>(&shape, &region, 7);
            // Single bytes may be equal by chance.
            assert!(check(&part.view(), &shape, &region, 8).0 >= 60);
            let moved = Region::new(&[2, 4], &[10, 12]).unwrap();
            assert!(check(&part.view(), &shape, &moved, 7).0 >= 60);
            part[[1, 2]] = value(7, 0);
            assert_eq!(
                check(&part.view(), &shape, &region, 7),
                (1, Some(3 * 16 + 5))
            );
        }
        wrong::<u8>();
        wrong::<i16>();
        wrong::<u64>();
        wrong::<f32>();
        wrong::<f64>();
    }
}
