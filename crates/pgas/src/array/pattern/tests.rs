//! Tests that every element has one location, and that the runs of a box are its elements.

use super::*;
use crate::array::dist::tests::dists;
use proptest::prelude::*;
use std::collections::HashSet;

fn patterns() -> impl Strategy<Value = Pattern<3>> {
    let cut = [dists(), dists(), dists()];
    let shape = [1u32..4, 1u32..4, 1u32..4];
    let halo = [0u64..3, 0u64..3, 0u64..3];
    ([0u64..9, 0u64..9, 0u64..9], cut, shape, halo).prop_map(|(extents, cut, mut shape, halo)| {
        for d in 0..3 {
            if cut[d] == Dist::Whole {
                shape[d] = 1;
            }
        }
        let pattern = Pattern::new(extents, cut, Grid::new(shape).unwrap()).unwrap();
        pattern.with_halo(Halo::new(halo)).unwrap_or(pattern)
    })
}

proptest! {
    #[test]
    fn elements_are_one_to_one_with_places(pattern in patterns()) {
        let mut counts = vec![0; pattern.grid().ranks() as usize];
        let mut places = HashSet::new();
        for index in pattern.bounds().indices() {
            let place = pattern.locate(index);
            prop_assert!(place.offset < pattern.stored_len(place.rank));
            prop_assert!(places.insert(place));
            prop_assert_eq!(pattern.index(place), Some(index));
            counts[place.rank as usize] += 1;
        }
        for rank in 0..pattern.grid().ranks() {
            prop_assert_eq!(pattern.local_len(rank), counts[rank as usize]);
            prop_assert!(pattern.stored_len(rank) <= pattern.capacity());
            // Every offset that is not an element is a ghost cell.
            let offsets = 0..pattern.capacity() + 2;
            let found = offsets.filter(|offset| pattern.index(Location { rank, offset: *offset }).is_some());
            prop_assert_eq!(found.count() as u64, counts[rank as usize]);
            if pattern.halo() == Halo::new([0; 3]) {
                prop_assert_eq!(pattern.local_len(rank), pattern.stored_len(rank));
            }
        }
    }

    #[test]
    fn runs_of_a_box_are_its_elements(
        pattern in patterns(), a in [0u64..9, 0u64..9, 0u64..9], b in [0u64..9, 0u64..9, 0u64..9]
    ) {
        let extents = pattern.extents();
        let bounds = Bounds {
            lo: std::array::from_fn(|d| a[d].min(b[d]).min(extents[d])),
            hi: std::array::from_fn(|d| a[d].max(b[d]).min(extents[d])),
        };
        let mut left: HashSet<_> = bounds.indices().collect();
        let mut ranks = HashSet::new();
        for rank in pattern.ranks(bounds) {
            prop_assert!(ranks.insert(rank));
            let mut end = 0;
            for run in pattern.runs(rank, bounds) {
                prop_assert!(run.offset >= end && run.len > 0);
                end = run.offset + run.len;
                for step in 0..run.len {
                    let [i, j, k] = run.index;
                    let index = [i, j, k + step];
                    prop_assert_eq!(pattern.locate(index), Location { rank, offset: run.offset + step });
                    prop_assert!(left.remove(&index));
                }
            }
            prop_assert!(end > 0, "a rank that has nothing");
        }
        prop_assert!(left.is_empty());
        for rank in (0..pattern.grid().ranks()).filter(|rank| !ranks.contains(rank)) {
            prop_assert_eq!(pattern.runs(rank, bounds).count(), 0);
        }
    }

    #[test]
    fn sizes_beyond_2_to_the_32(
        index in [0u64..1 << 33, 0u64..1 << 30],
        cut in prop_oneof![Just(Dist::Block), Just(Dist::Cyclic), Just(Dist::Tiled(1 << 20)),
            Just(Dist::BlockCyclic((1 << 32) + 1))],
    ) {
        let pattern = Pattern::balanced([1 << 33, 1 << 30], [cut, Dist::Block], 12).unwrap();
        let place = pattern.locate(index);
        prop_assert_eq!(pattern.index(place), Some(index));
        let stored: u64 = (0..12).map(|rank| pattern.stored_len(rank)).sum();
        prop_assert_eq!(stored, pattern.len());
        let one = Bounds { lo: index, hi: index.map(|i| i + 1) };
        prop_assert_eq!(pattern.ranks(one).collect::<Vec<_>>(), vec![place.rank]);
        let run = Run { index, offset: place.offset, len: 1 };
        prop_assert_eq!(pattern.runs(place.rank, one).collect::<Vec<_>>(), vec![run]);
    }
}

#[test]
fn tiles_lie_one_after_the_other() {
    let tiles = [Dist::Tiled(2), Dist::Tiled(3)];
    let pattern = Pattern::new([3, 4], tiles, Grid::new([1, 1]).unwrap()).unwrap();
    let offsets: Vec<u64> = pattern
        .bounds()
        .indices()
        .map(|i| pattern.locate(i).offset)
        .collect();
    assert_eq!(offsets, [0, 1, 2, 6, 3, 4, 5, 7, 8, 9, 10, 11]);
    let runs: Vec<u64> = pattern.local_runs(0).map(|run| run.len).collect();
    assert_eq!(runs, [3, 3, 1, 1, 3, 1]);
}

#[test]
fn more_ranks_than_elements() {
    let pattern = Pattern::block([3], 5).unwrap();
    let sizes: Vec<u64> = (0..5).map(|rank| pattern.local_len(rank)).collect();
    assert_eq!(sizes, [1, 1, 1, 0, 0]);
    let pattern = Pattern::block([3], 5)
        .unwrap()
        .with_halo(Halo::new([1]))
        .unwrap();
    let stored: Vec<u64> = (0..5).map(|rank| pattern.stored_len(rank)).collect();
    assert_eq!(stored, [3, 3, 3, 0, 0]);
}

#[test]
fn what_cannot_be_is_refused() {
    let grid = Grid::new([2, 1]).unwrap();
    let new = |extents, cut| Pattern::new(extents, cut, grid);
    let both = [Dist::Block, Dist::Block];
    assert_eq!(
        new([4, 4], [Dist::Whole, Dist::Block]),
        Err(ArrayError::NothingToCut { ranks: 2 })
    );
    assert_eq!(
        new([4, 4], [Dist::Block, Dist::Tiled(0)]),
        Err(ArrayError::EmptyBlock { dimension: 1 })
    );
    assert_eq!(
        new([1 << 40, 1 << 40], both),
        Err(ArrayError::TooLarge(vec![1 << 40, 1 << 40]))
    );
    assert!(new([1 << 40, 1 << 40], both).is_err());
    assert!(new([u64::MAX, 0], both).unwrap().is_empty());
    let pattern = new([4, 4], [Dist::Cyclic, Dist::Block]).unwrap();
    assert_eq!(
        pattern.with_halo(Halo::new([1, 1])),
        Err(ArrayError::ScatteredHalo { dimension: 0 })
    );
    let wide = ArrayError::WideHalo {
        dimension: 0,
        width: 3,
        block: 2,
    };
    assert_eq!(
        new([4, 4], both).unwrap().with_halo(Halo::new([3, 1])),
        Err(wide)
    );
    assert!(
        new([u64::MAX, 1], both)
            .unwrap()
            .with_halo(Halo::new([1, 1]))
            .is_err()
    );
}
