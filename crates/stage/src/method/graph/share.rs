//! Redistribution: which part of an array is a reader's own.
//!
//! The reader computes its boxes from the shape, its rank and its size, without communication, and
//! then requests them like any other box. So the partition of the writers does not matter, and
//! parts may be uneven or empty (more readers than rows).

use super::edge::Redistribution;
use crate::space::Grid;
use crate::{Region, SpaceError};
use ndarray::{Array, Dimension};

/// A reader's own part of an array.
#[derive(Clone, Debug)]
pub struct Share<T, D: Dimension> {
    /// Its numbers: the regions one after another, along the slowest dimension.
    pub array: Array<T, D>,
    /// Their regions in the whole array; one region with `count` and `block`, one for each item
    /// with `round`. None is empty.
    pub regions: Vec<Region>,
}

/// Returns the boxes of reader `rank` of `size`, of which none is empty; together, all readers have
/// every element once. `None` if parts are not assigned. There may be as many as the array has
/// rows, whatever was written of it.
///
/// # Errors
/// An invalid shape; no readers.
pub fn regions(
    how: Redistribution,
    shape: &[u64],
    (rank, size): (u32, u32),
) -> Result<Option<impl Iterator<Item = Region>>, SpaceError> {
    let (rank, size, whole) = (u64::from(rank), u64::from(size), Region::whole(shape)?);
    let one = rank..rank + 1;
    let (grid, parts) = match how {
        Redistribution::Box => return Ok(None),
        Redistribution::Count => (Grid::along(shape, 0, size)?, one),
        Redistribution::Block => (Grid::cubic(shape, size)?, one),
        Redistribution::Round if size == 0 => return Err(SpaceError::Grid(vec![size])),
        Redistribution::Round => {
            let rows = if whole.is_empty() { 0 } else { whole.extent(0) };
            (Grid::along(shape, 0, rows.max(1))?, rank..rows)
        }
    };
    let parts = parts.step_by(usize::try_from(size).unwrap_or(usize::MAX));
    let boxes = parts.map(move |part| grid.part(part));
    Ok(Some(boxes.filter(|part| !part.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{first_hole, first_overlap};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_element_is_somebodys_once(shape in proptest::collection::vec(0u64..9, 1..4), size in 1u32..12) {
            for how in [Redistribution::Count, Redistribution::Round, Redistribution::Block] {
                let mut parts = Vec::new();
                for rank in 0..size {
                    let own = regions(how, &shape, (rank, size)).unwrap().unwrap();
                    let own: Vec<Region> = own.collect();
                    prop_assert!(own.iter().all(|region| !region.is_empty()));
                    parts.extend(own);
                }
                let whole = Region::whole(&shape).unwrap();
                prop_assert_eq!(first_overlap(&parts), None, "{:?}", how);
                prop_assert_eq!(first_hole(&whole, &parts), None, "{:?}", how);
                prop_assert!(parts.iter().all(|part| whole.contains(part)));
            }
        }
    }

    #[test]
    fn parts_are_dealt_as_the_words_say() {
        let all = |how, shape: &[u64], reader| {
            let own = regions(how, shape, reader).unwrap();
            own.map(Iterator::collect::<Vec<Region>>)
        };
        let own = |how, rank| all(how, &[5, 4], (rank, 2));
        let region = |lower: [u64; 2], upper: [u64; 2]| Region::new(&lower, &upper).unwrap();
        assert_eq!(own(Redistribution::Box, 0), None);
        assert_eq!(
            own(Redistribution::Count, 1),
            Some(vec![region([3, 0], [5, 4])])
        );
        let odd = vec![region([1, 0], [2, 4]), region([3, 0], [4, 4])];
        assert_eq!(own(Redistribution::Round, 1), Some(odd));
        let many = all(Redistribution::Block, &[512, 512], (3, 4));
        assert_eq!(many, Some(vec![region([256, 256], [512, 512])]));
        for how in [
            Redistribution::Count,
            Redistribution::Round,
            Redistribution::Block,
        ] {
            assert!(matches!(
                regions(how, &[5, 4], (0, 0)),
                Err(SpaceError::Grid(_))
            ));
        }
    }
}
