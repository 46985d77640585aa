//! Sorting distributed arrays, against the library's sort.

use bytemuck::{Pod, Zeroable};
use samite_fabric::Fabric;
use samite_pgas::array::{Array, ArrayError, Dist, Halo, Pattern};
use samite_pgas::{Error, Pgas};
use samite_testkit::{Outcome, everywhere, units};
use std::cmp::Ordering;

fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 29
}

/// Sequences that sorts find hard, of `n` elements.
fn sequences(n: u64) -> Vec<Vec<u64>> {
    let of = |f: &dyn Fn(u64) -> u64| (0..n).map(f).collect();
    vec![
        of(&random),
        of(&|i| random(i) % 3),
        of(&|_| 5),
        of(&|i| i),
        of(&|i| n - i),
        of(&|i| i % 7 * 1000 + i / 7),
        of(&|i| if i < n / 2 { u64::MAX } else { 0 }),
    ]
}

fn sorts(fabric: &Fabric) -> Outcome {
    let pgas = &Pgas::new(fabric)?;
    for n in [0, 1, 2, 3, 5, 64, 257] {
        for elements in sequences(n) {
            let pattern = Pattern::block([n], pgas.units())?;
            let mut array = Array::<u64, 1>::new(pgas.world(), pattern)?;
            array.fill_with(|[i]| elements[i as usize])?;
            array.sort()?;
            let found: Vec<u64> = array.elements().collect::<Result<_, _>>()?;
            let mut expected = elements;
            expected.sort_unstable();
            assert_eq!(found, expected);
            array.free()?;
        }
    }
    Ok(())
}

everywhere!(two_units_sort, 2, |fabric, _| sorts(fabric));
everywhere!(three_units_sort, 3, |fabric, _| sorts(fabric));

#[test]
fn other_numbers_of_units_sort() {
    for count in [1, 4, 7] {
        units(count).run("array_sort::other_numbers_of_units_sort", |fabric, _| {
            sorts(fabric)
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Record {
    key: u32,
    place: u32,
}

everywhere!(equal_elements_stay_in_order, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let pattern = Pattern::block([500], 3)?.with_halo(Halo::new([2]))?;
    let mut array = Array::<Record, 1>::new(pgas.world(), pattern)?;
    let record = |[i]: [u64; 1]| Record {
        key: (random(i) % 11) as u32,
        place: i as u32,
    };
    array.fill_with(record)?;
    array.sort_by(|a, b| a.key.cmp(&b.key))?;
    let found: Vec<Record> = array.elements().collect::<Result<_, _>>()?;
    let mut expected: Vec<Record> = (0..500).map(|i| record([i])).collect();
    expected.sort_by_key(|record| record.key);
    assert_eq!(found, expected);
    Ok(array.free()?)
});

everywhere!(floats_by_their_total_order, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let mut array = Array::<f64, 1>::new(pgas.world(), Pattern::block([101], 2)?)?;
    array.fill_with(|[i]| if i == 50 { f64::NAN } else { 50.0 - i as f64 })?;
    array.sort_by(f64::total_cmp)?;
    let found: Vec<f64> = array.elements().collect::<Result<_, _>>()?;
    assert!(found[..100].is_sorted() && found[100].is_nan());
    array.free()?;
    let scattered = Pattern::balanced([10], [Dist::Cyclic], 2)?;
    let mut array = Array::<u64, 1>::new(pgas.world(), scattered)?;
    assert_eq!(array.sort(), Err(Error::Array(ArrayError::NotInBlocks)));
    Ok(array.free()?)
});

// Comparisons that are none: whatever comes out, it is no panic, it ends, and all units are told
// the same.
everywhere!(what_is_no_order, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let me = u64::from(pgas.me().0);
    let mut refused = 0;
    for seed in 0..40 {
        let mut array = Array::<u64, 1>::new(pgas.world(), Pattern::block([15], 3)?)?;
        array.fill_with(|[i]| i)?;
        // Less or more by chance, or by another chance at each unit.
        let of = if seed % 2 == 0 { 0 } else { me };
        let answer = array.sort_by(
            |a, b| match random(seed ^ a << 20 ^ b << 40 ^ of << 60) % 2 {
                0 => Ordering::Less,
                _ => Ordering::Greater,
            },
        );
        let code = match answer {
            Ok(()) => 0_u64,
            Err(Error::Array(ArrayError::NoOrder)) => 1,
            Err(other) => return Err(other.into()),
        };
        let mut answers = [0; 3];
        pgas.world().all_gather(&[code], &mut answers)?;
        assert_eq!(answers, [code; 3]);
        refused += code;
        // It can be sorted after all.
        array.fill_with(|[i]| random(i))?;
        array.sort()?;
        let found: Vec<u64> = array.elements().collect::<Result<_, _>>()?;
        assert!(found.is_sorted());
        array.free()?;
    }
    assert!(refused > 0, "some orders are found out");
    Ok(())
});

// Each member takes the other one's element for the pivot, and drops nothing.
everywhere!(opposite_orders, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let mut array = Array::<u64, 1>::new(pgas.world(), Pattern::block([8], 2)?)?;
    array.fill_with(|[i]| (i + 10) % 14)?;
    let is_first = pgas.me().0 == 0;
    let answer = array.sort_by(|a, b| if is_first { a.cmp(b) } else { b.cmp(a) });
    assert_eq!(answer, Err(Error::Array(ArrayError::NoOrder)));
    Ok(array.free()?)
});

everywhere!(a_larger_array, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let n = 100_003;
    let mut array = Array::<u64, 1>::new(pgas.world(), Pattern::block([n], 4)?)?;
    array.fill_with(|[i]| random(i))?;
    let sum = |array: &Array<u64, 1>| array.reduce(u64::wrapping_add);
    let before = sum(&array)?;
    array.sort()?;
    assert_eq!(sum(&array)?, before);
    let mut own = vec![0; array.local_len() as usize];
    array.read_local(0, &mut own)?;
    assert!(own.is_sorted());
    if let (Some(last), Some(first)) = (own.last(), array.pattern().index(place(pgas, own.len()))) {
        let next = first[0] + 1;
        if next < n {
            assert!(*last <= array.get_value([next])?);
        }
    }
    Ok(array.free()?)
});

/// The last element of this unit's block.
fn place(pgas: &Pgas, len: usize) -> samite_pgas::array::Location {
    samite_pgas::array::Location {
        rank: pgas.me().0,
        offset: len as u64 - 1,
    }
}
