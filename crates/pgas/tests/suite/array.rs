//! Distributed arrays against a sequential model: elements, boxes, algorithms, copies.

use samite_pgas::array::{Array, ArrayError, Bounds, Dist, Grid, Halo, Pattern};
use samite_pgas::{Error, Named, Pgas, Unit};
use samite_testkit::{Outcome, everywhere};

/// What an element is in these tests.
fn value<const D: usize>(index: [u64; D]) -> u64 {
    index.iter().fold(7, |all, i| all * 1009 + i)
}

/// Pseudo-random numbers that are the same at every unit.
fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 29
}

/// Distributions of 2-d arrays over `ranks` ranks, with extents that do not fit them.
fn patterns(ranks: u32) -> Vec<Pattern<2>> {
    use Dist::{Block, BlockCyclic, Cyclic, Tiled, Whole};
    let extents = [[7, 11], [1, 5], [16, 3], [0, 4]];
    let dists = [
        [Block, Block],
        [Block, Whole],
        [Whole, Cyclic],
        [Cyclic, Block],
        [BlockCyclic(2), BlockCyclic(3)],
        [Tiled(2), Tiled(3)],
        [Tiled(3), Block],
    ];
    let mut all = Vec::new();
    for extents in extents {
        for dists in dists {
            all.push(Pattern::balanced(extents, dists, ranks).unwrap());
        }
    }
    let ghosts = Pattern::block([9, 10], ranks).unwrap();
    all.push(ghosts.with_halo(Halo::new([2, 1])).unwrap());
    all
}

fn boxes(extents: [u64; 2]) -> impl Iterator<Item = Bounds<2>> {
    let edge = move |seed: u64, d: usize| random(seed) % (extents[d] + 1);
    (0..12).map(move |seed| {
        let (a, b) = (
            [edge(4 * seed, 0), edge(4 * seed + 1, 1)],
            [edge(4 * seed + 2, 0), edge(4 * seed + 3, 1)],
        );
        Bounds {
            lo: [a[0].min(b[0]), a[1].min(b[1])],
            hi: [a[0].max(b[0]), a[1].max(b[1])],
        }
    })
}

everywhere!(boxes_are_got, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for pattern in patterns(pgas.units()) {
        let mut array = Array::<u64, 2>::new(pgas.world(), pattern)?;
        array.fill_with(value)?;
        for bounds in boxes(pattern.extents()) {
            let mut got = vec![0; bounds.len() as usize];
            array.get(bounds, &mut got)?;
            let expected: Vec<u64> = bounds.indices().map(value).collect();
            assert_eq!(got, expected, "{bounds} of {pattern:?}");
        }
        let all: Vec<u64> = array.elements().collect::<Result<_, _>>()?;
        assert!(all.into_iter().eq(pattern.bounds().indices().map(value)));
        array.free()?;
    }
    Ok(())
});

everywhere!(boxes_are_put, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let (me, units) = (u64::from(pgas.me().0), u64::from(pgas.units()));
    for pattern in patterns(pgas.units()) {
        let array = Array::<u64, 2>::new(pgas.world(), pattern)?;
        // Stripes along one dimension: each unit puts every fourth.
        let [rows, columns] = pattern.extents();
        for column in (me..columns).step_by(units as usize) {
            let stripe = Bounds::from([0..rows, column..column + 1]);
            let elements: Vec<u64> = stripe.indices().map(value).collect();
            array.put(stripe, &elements)?;
        }
        pgas.world().barrier()?;
        for index in pattern.bounds().indices() {
            assert_eq!(
                array.get_value(index)?,
                value(index),
                "{index:?} of {pattern:?}"
            );
        }
        pgas.world().barrier()?;
        if let Some(index) = pattern.bounds().indices().nth(me as usize) {
            array.put_value(index, me + 1)?;
            assert_eq!(pgas_value(pgas, &array, index)?, me + 1);
        }
        array.free()?;
    }
    Ok(())
});

/// An element by its pointer.
fn pgas_value(pgas: &Pgas, array: &Array<u64, 2>, index: [u64; 2]) -> Outcome<u64> {
    let mut value = [0];
    pgas.get(array.pointer(index)?, &mut value)?;
    Ok(value[0])
}

everywhere!(algorithms_do_what_a_loop_does, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for pattern in patterns(pgas.units()) {
        let noise = |index: [u64; 2]| (random(value(index)) % 10) as i64 - 5;
        let mut model: Vec<i64> = pattern.bounds().indices().map(noise).collect();
        let mut array = Array::<i64, 2>::new(pgas.world(), pattern)?;
        array.fill_with(noise)?;

        let index = |at: usize| pattern.bounds().index(at as u64);
        let first = |wanted: i64| model.iter().position(|x| *x == wanted).map(index);
        let min = model.iter().min().map(|x| (*x, first(*x).unwrap()));
        let max = model.iter().max().map(|x| (*x, first(*x).unwrap()));
        assert_eq!(array.min_element()?, min);
        assert_eq!(array.max_element()?, max);
        assert_eq!(array.find(|x| x == 3)?, first(3));
        assert_eq!(array.find(|x| x == 99)?, None);
        let count = model.iter().filter(|x| **x > 0).count() as u64;
        assert_eq!(array.count(|x| x > 0)?, count);
        assert_eq!(
            array.reduce(|a, b| a + b)?,
            model.iter().copied().reduce(|a, b| a + b)
        );

        let mut seen = Vec::new();
        array.for_each(|index, x| seen.push((index, x)))?;
        assert_eq!(seen.len() as u64, array.local_len());
        for (index, x) in seen {
            assert_eq!(pattern.locate(index).rank, pgas.me().0);
            assert_eq!(x, noise(index));
        }

        array.transform(|[i, j], x| 2 * x + i as i64 - j as i64)?;
        for (at, x) in model.iter_mut().enumerate() {
            let [i, j] = index(at);
            *x = 2 * *x + i as i64 - j as i64;
        }
        let mut other = Array::<i32, 2>::new(pgas.world(), pattern)?;
        other.fill(-2)?;
        array.combine(&other, |x, y| x * i64::from(y))?;
        let all: Vec<i64> = array.elements().collect::<Result<_, _>>()?;
        model.iter_mut().for_each(|x| *x *= -2);
        assert_eq!(all, model);
        array.free()?;
        other.free()?;
    }
    Ok(())
});

everywhere!(nothing_that_compares_is_passed_over, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let mut array = Array::<f64, 1>::new(pgas.world(), Pattern::block([6], 2)?)?;
    let elements = [f64::NAN, 2.0, -1.0, f64::NAN, -1.0, f64::NAN];
    array.fill_with(|[i]| elements[i as usize])?;
    assert_eq!(array.min_element()?, Some((-1.0, [2])));
    assert_eq!(array.max_element()?, Some((2.0, [1])));
    array.fill(f64::NAN)?;
    assert_eq!(array.min_element()?, None);
    Ok(array.free()?)
});

everywhere!(copies_between_patterns, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let all = patterns(pgas.units());
    let filled = || all.iter().filter(|pattern| !pattern.is_empty());
    for (from, to) in filled().step_by(3).zip(filled().skip(2).step_by(2)) {
        let mut source = Array::<u64, 2>::new(pgas.world(), *from)?;
        let mut target = Array::<u64, 2>::new(pgas.world(), *to)?;
        source.fill_with(value)?;
        target.fill(1)?;
        let extents: [u64; 2] =
            std::array::from_fn(|d| from.extents()[d].min(to.extents()[d]).saturating_sub(1));
        let shift = |d: usize| from.extents()[d] - extents[d];
        let (there, here) = (
            Bounds::whole(extents),
            Bounds {
                lo: [shift(0), shift(1)],
                hi: from.extents(),
            },
        );
        target.copy_from(there, &source, here)?;
        for index in to.bounds().indices() {
            let copied = there.contains(index);
            let expected = if copied {
                value([index[0] + shift(0), index[1] + shift(1)])
            } else {
                1
            };
            assert_eq!(
                target.get_value(index)?,
                expected,
                "{index:?}: {from:?} to {to:?}"
            );
        }
        pgas.world().barrier()?;
    }
    Ok(())
});

everywhere!(other_dimensions, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let line = Pattern::balanced([1000], [Dist::BlockCyclic(7)], 4)?;
    let mut array = Array::<u64, 1>::new(pgas.world(), line)?;
    array.fill_with(value)?;
    let mut got = [0; 400];
    array.get(300..700, &mut got)?;
    assert!(got.into_iter().eq((300..700).map(|i| value([i]))));
    array.free()?;

    let cuts = [Dist::Cyclic, Dist::Tiled(2), Dist::Whole, Dist::Block];
    let space = Pattern::balanced([3, 5, 2, 4], cuts, 4)?;
    let mut array = Array::<u64, 4>::new(pgas.world(), space)?;
    array.fill_with(value)?;
    let part = Bounds::from([1..3, 0..5, 1..2, 1..4]);
    let mut got = vec![0; part.len() as usize];
    array.get(part, &mut got)?;
    assert!(got.into_iter().eq(part.indices().map(value)));
    array.free()?;

    // A single element of no dimension has one owner, so it needs a team of one.
    let alone = pgas.world().split_by(u64::from(pgas.me().0))?;
    let point = Array::<u64, 0>::new(&alone, Pattern::new([], [], Grid::new([])?)?)?;
    point.put_value([], 5)?;
    assert_eq!(point.elements().collect::<Result<Vec<_>, _>>()?, [5]);
    Ok(point.free()?)
});

everywhere!(algorithms_on_slices, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for pattern in patterns(pgas.units()) {
        let mut array = Array::<u64, 2>::new(pgas.world(), pattern)?.into_local()?;
        array.fill_with(value)?;
        array.transform(|[i, _], x| x + i)?;
        let of = |[i, j]: [u64; 2]| value([i, j]) + i;
        let own = array.local_runs().flat_map(|run| {
            let elements = &array.as_slice()[run.offset as usize..][..run.len as usize];
            let [i, j] = run.index;
            (j..).zip(elements).map(move |(j, x)| ([i, j], *x))
        });
        let own: Vec<_> = own.collect();
        assert_eq!(own.len() as u64, array.local_len());
        assert!(own.into_iter().all(|(index, x)| x == of(index)));
        let model: Vec<u64> = pattern.bounds().indices().map(of).collect();
        assert_eq!(
            array.max_element()?.map(|max| max.0),
            model.iter().max().copied()
        );
        array.write_local(array.stored_len(), &[])?;
        let capacity = pattern.capacity();
        assert!(matches!(
            array.write_local(capacity, &[1]),
            Err(Error::OutOfRange { .. })
        ));
        let array = array.into_shared()?;
        let all = array.elements().collect::<Result<Vec<_>, _>>()?;
        assert_eq!(all, model);
        array.free()?;
    }
    Ok(())
});

everywhere!(reading_in_place, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for pattern in patterns(pgas.units()).into_iter().step_by(4) {
        let mut array = Array::<u64, 2>::new(pgas.world(), pattern)?;
        array.fill_with(value)?;
        let array = array.into_read_only()?;
        for rank in 0..pgas.units() {
            let Some(memory) = array.slice(rank)? else {
                assert!(
                    rank != pgas.me().0 && pgas.node_of(Unit(rank))? != pgas.node_of(pgas.me())?
                );
                continue;
            };
            for run in pattern.local_runs(rank) {
                let [i, j] = run.index;
                let elements = &memory[run.offset as usize..][..run.len as usize];
                assert!(elements.iter().zip(j..).all(|(x, j)| *x == value([i, j])));
            }
        }
        for bounds in boxes(pattern.extents()) {
            let mut got = vec![0; bounds.len() as usize];
            array.get(bounds, &mut got)?;
            assert!(got.into_iter().eq(bounds.indices().map(value)));
        }
        let all = array.elements().collect::<Result<Vec<_>, _>>()?;
        let model: Vec<u64> = pattern.bounds().indices().map(value).collect();
        assert_eq!(all, model);
        assert_eq!(
            array.max_element()?.map(|max| max.0),
            model.iter().max().copied()
        );
        let mut array = array.into_local()?;
        array.fill(1)?;
        array.into_read_only()?.into_shared()?.free()?;
    }
    Ok(())
});

everywhere!(many_elements_pass_through_windows, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for cut in [Dist::Block, Dist::BlockCyclic(3000)] {
        let pattern = Pattern::balanced([10_001], [cut], 2)?;
        let mut array = Array::<u64, 1>::new(pgas.world(), pattern)?;
        array.fill_with(value)?;
        array.transform(|[i], x| x + i)?;
        let sum = (0..10_001).map(|i| value([i]) + i).sum::<u64>();
        assert_eq!(array.reduce(|a, b| a + b)?, Some(sum));
        let all = array.elements().collect::<Result<Vec<_>, _>>()?;
        assert!(all.into_iter().eq((0..10_001).map(|i| value([i]) + i)));
        array.free()?;
    }
    Ok(())
});

everywhere!(elements_without_bytes, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let mut array = Array::<(), 1>::new(pgas.world(), Pattern::block([5], 2)?)?;
    array.fill(())?;
    array.put(1..4, &[(); 3])?;
    let mut got = [(); 5];
    array.get(0..5, &mut got)?;
    assert_eq!(array.count(|()| true)?, 5);
    assert_eq!(array.elements().count(), 5);
    let mut array = array.into_local()?;
    array.fill(())?;
    assert_eq!(array.as_slice().len() as u64, array.local_len());
    Ok(array.free()?)
});

everywhere!(what_does_not_fit_is_refused, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let pattern = Pattern::block([4, 4], 2)?;
    let mut array = Array::<u64, 2>::new(pgas.world(), pattern)?;
    let outside = |what: &str| {
        let (what, extents) = (what.to_owned(), vec![4, 4]);
        Err(Error::Array(ArrayError::Outside { what, extents }))
    };
    assert_eq!(array.put_value([1, 4], 0), outside("the index [1, 4]"));
    assert_eq!(
        array.get([0..2, 3..5], &mut [0; 4]),
        outside("[0..2, 3..5]")
    );
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let reversed = array.put([3..2, 0..4], &[]);
    assert_eq!(reversed, outside("[3..2, 0..4]"));
    let huge = u64::MAX;
    assert_eq!(
        array.get([0..huge, 0..huge], &mut []),
        outside("[0..18446744073709551615, 0..18446744073709551615]")
    );
    assert!(matches!(
        array.put([0..2, 0..2], &[0; 3]),
        Err(Error::WrongLength {
            expected: 4,
            found: 3,
            ..
        })
    ));
    let more = Array::<u64, 2>::new(pgas.world(), Pattern::block([4, 4], 3)?);
    assert_eq!(
        more.map(|_| ()),
        Err(Error::Array(ArrayError::OtherTeam { grid: 3, team: 2 }))
    );
    let other = Array::<u64, 2>::new(pgas.world(), Pattern::block([4, 5], 2)?)?;
    assert_eq!(
        array.combine(&other, |x, _| x),
        Err(Error::Array(ArrayError::OtherPattern))
    );
    assert!(matches!(
        array.copy_from([0..2, 0..2], &other, [0..2, 0..3]),
        Err(Error::Array(ArrayError::OtherShape { .. }))
    ));
    // Arguments that are wrong at one member only: the others do not wait for it.
    let refused = |done: Result<(), Error>| match (pgas.me().0, done) {
        (0, Err(Error::Array(_))) | (1, Err(Error::Refused(Named { id: Unit(0), .. }))) => {}
        (unit, done) => panic!("unit {unit}: {done:?}"),
    };
    let beyond = if pgas.me().0 == 0 { 9 } else { 2 };
    let same = Array::<u64, 2>::new(pgas.world(), *array.pattern())?;
    refused(array.copy_from([0..2, 0..beyond], &same, [0..2, 0..beyond]));
    refused(array.copy_from([0..2, 0..2], &same, [0..2, 0..beyond]));
    let pair = if pgas.me().0 == 0 { &other } else { &same };
    refused(array.combine(pair, |a, b| a + b));
    // Members that mean different patterns are told.
    let own = Pattern::block([4 + u64::from(pgas.me().0), 4], 2)?;
    let made = Array::<u64, 2>::new(pgas.world(), own).map(|_| ());
    assert!(matches!(
        made,
        Err(Error::Mismatch {
            what: "the pattern of an array",
            ..
        })
    ));
    Ok(array.free()?)
});
