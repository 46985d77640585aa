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

/// Returns the boxes of reader `rank` of `size`; together, all readers have every element once.
/// `None` if parts are not assigned.
///
/// # Errors
/// An invalid shape.
pub fn regions(
    how: Redistribution,
    shape: &[u64],
    (rank, size): (u32, u32),
) -> Result<Option<Vec<Region>>, SpaceError> {
    let (rank, size) = (u64::from(rank), u64::from(size));
    let one = |grid: Grid| {
        let part = grid.part(rank);
        if part.is_empty() { vec![] } else { vec![part] }
    };
    Ok(Some(match how {
        Redistribution::Box => return Ok(None),
        Redistribution::Count => one(Grid::along(shape, 0, size)?),
        Redistribution::Block => one(Grid::cubic(shape, size)?),
        Redistribution::Round => {
            let whole = Region::whole(shape)?;
            if whole.is_empty() {
                return Ok(Some(vec![]));
            }
            let items =
                (rank..whole.extent(0)).step_by(usize::try_from(size).unwrap_or(usize::MAX));
            let item = |at: u64| whole.cut(0, at).1.cut(0, at + 1).0;
            items.map(item).collect()
        }
    }))
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
        let own = |how, rank| regions(how, &[5, 4], (rank, 2)).unwrap();
        let region = |lower: [u64; 2], upper: [u64; 2]| Region::new(&lower, &upper).unwrap();
        assert_eq!(own(Redistribution::Box, 0), None);
        assert_eq!(
            own(Redistribution::Count, 1),
            Some(vec![region([3, 0], [5, 4])])
        );
        let odd = vec![region([1, 0], [2, 4]), region([3, 0], [4, 4])];
        assert_eq!(own(Redistribution::Round, 1), Some(odd));
        let many = regions(Redistribution::Block, &[512, 512], (3, 4)).unwrap();
        assert_eq!(many, Some(vec![region([256, 256], [512, 512])]));
    }
}
