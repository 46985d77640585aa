//! Exchange of ghost cells, against the whole array.

use samite_pgas::Pgas;
use samite_pgas::array::{Array, ArrayError, Dist, Grid, Halo, Own, Pattern};
use samite_testkit::{Outcome, everywhere};

/// What an element is in a round.
fn value<const D: usize>(round: u64, index: [u64; D]) -> u64 {
    1 + index.iter().fold(round, |all, i| all * 101 + i)
}

/// What nobody's copies hold.
const UNTOUCHED: u64 = 0;

/// What a cell of this unit's memory has to be: `cell` counts from the first ghost cell.
fn expected<const D: usize>(pattern: &Pattern<D>, rank: u32, round: u64, cell: [u64; D]) -> u64 {
    let (halo, extents) = (pattern.halo(), pattern.extents());
    let at = pattern.grid().coordinates(rank);
    let len = pattern.local_extents(rank);
    let (mut index, mut beside) = ([0; D], 0);
    for d in 0..D {
        // First index of the block: blocks differ by one at most, the longer ones first.
        let (parts, at) = (u64::from(pattern.grid().shape()[d]), u64::from(at[d]));
        let start = at * (extents[d] / parts) + at.min(extents[d] % parts);
        let along = (start + cell[d]) as i64 - halo.widths[d] as i64;
        let inside = halo.widths[d]..halo.widths[d] + len[d];
        beside += u32::from(!inside.contains(&cell[d]));
        if (0..extents[d] as i64).contains(&along) {
            index[d] = along as u64;
        } else if halo.periodic[d] {
            index[d] = along.rem_euclid(extents[d] as i64) as u64;
        } else {
            return UNTOUCHED;
        }
    }
    match beside {
        2.. if !halo.corners => UNTOUCHED,
        _ => value(round, index),
    }
}

fn check<const D: usize, P: Own>(array: &Array<u64, D, P>, round: u64) -> Outcome {
    let (pattern, rank) = (array.pattern(), array.team().rank());
    let cells = samite_pgas::array::Bounds::whole(array.stored_extents());
    let mut memory = vec![0; array.stored_len() as usize];
    array.read_local(0, &mut memory)?;
    for (cell, found) in cells.indices().zip(memory) {
        let expected = expected(pattern, rank, round, cell);
        assert_eq!(
            found, expected,
            "cell {cell:?} of rank {rank} in round {round}: {pattern:?}"
        );
    }
    Ok(())
}

fn exchanges<const D: usize>(pgas: &Pgas, pattern: Pattern<D>) -> Outcome {
    let mut array = Array::<u64, D>::new(pgas.world(), pattern)?;
    for round in 1..5 {
        // Without any synchronisation but that of the exchange itself.
        write(&mut array, round)?;
        if round % 2 == 0 {
            array.exchange_halo()?;
        } else {
            array.start_halo()?;
            // What was sent is what was there when it was sent.
            write(&mut array, 77)?;
            write(&mut array, round)?;
            array.finish_halo()?;
        }
        check(&array, round)?;
    }
    Ok(array.free()?)
}

/// Writes own elements without a barrier.
fn write<const D: usize>(array: &mut Array<u64, D>, round: u64) -> Outcome {
    let runs: Vec<_> = array.local_runs().collect();
    for run in runs {
        let mut index = run.index;
        let mut elements = Vec::new();
        for _ in 0..run.len {
            elements.push(value(round, index));
            index[D - 1] += 1;
        }
        array.write_local(run.offset, &elements)?;
    }
    Ok(())
}

everywhere!(planes, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for periodic in [[false, false], [true, false], [true, true]] {
        for halo in [
            Halo::new([1, 2]),
            Halo::new([2, 1]).with_corners(),
            Halo::new([0, 1]),
        ] {
            let halo = halo.periodic(periodic);
            exchanges(pgas, Pattern::block([9, 7], 4)?.with_halo(halo)?)?;
        }
    }
    Ok(())
});

everywhere!(lines_and_rings, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for periodic in [false, true] {
        let halo = Halo::new([1]).periodic([periodic]);
        // More units than elements, exactly as many, more elements.
        for extent in [0, 1, 2, 3, 10] {
            exchanges(pgas, Pattern::block([extent], 3)?.with_halo(halo)?)?;
        }
    }
    Ok(())
});

everywhere!(spaces, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    for halo in [Halo::new([1, 1, 1]).with_corners(), Halo::new([1, 0, 2])] {
        let halo = halo.periodic([false, true, true]);
        exchanges(pgas, Pattern::block([4, 3, 5], 4)?.with_halo(halo)?)?;
    }
    Ok(())
});

/// One step of a smoothing of a plane whose memory has `columns` columns, one ghost cell around.
fn smooth(old: &[u64], new: &mut [u64], columns: usize) {
    for row in 1..old.len() / columns - 1 {
        for at in row * columns + 1..(row + 1) * columns - 1 {
            let beside = old[at - 1] + old[at + 1] + old[at - columns] + old[at + columns];
            new[at] = (4 * old[at] + beside) / 8;
        }
    }
}

everywhere!(a_stencil_over_slices, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let (rows, columns) = (13, 10);
    let start = |i: u64, j: u64| (i * 7919 + j * 104_729) % 100_000;
    let pattern = Pattern::block([rows, columns], 4)?.with_halo(Halo::new([1, 1]))?;
    let plane = || Array::<u64, 2>::new(pgas.world(), pattern);
    let mut shared = plane()?;
    shared.fill_with(|[i, j]| start(i, j))?;
    let (mut old, mut new) = (shared.into_local()?, plane()?.into_local()?);
    let width = old.stored_extents()[1] as usize;

    // The whole plane with a border of zeros, as the ghost cells at the ends are.
    let all = columns as usize + 2;
    let mut model = vec![0; (rows as usize + 2) * all];
    for [i, j] in pattern.bounds().indices() {
        model[(i as usize + 1) * all + j as usize + 1] = start(i, j);
    }
    for _ in 0..20 {
        old.start_halo()?;
        old.finish_halo()?;
        smooth(old.as_slice(), new.as_mut_slice(), width);
        std::mem::swap(&mut old, &mut new);
        let before = model.clone();
        smooth(&before, &mut model, all);
    }
    assert_eq!(
        old.reduce(|a, b| a.max(b))?,
        model.iter().max().copied(),
        "algorithms work in this phase too"
    );
    let shared = old.into_shared()?;
    for [i, j] in pattern.bounds().indices() {
        let expected = model[(i as usize + 1) * all + j as usize + 1];
        assert_eq!(shared.get_value([i, j])?, expected, "at {i}, {j}");
    }
    pgas.world().barrier()?;
    Ok(())
});

everywhere!(beside_a_tiled_dimension, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let cuts = [Dist::Block, Dist::Tiled(2)];
    let pattern = Pattern::new([6, 7], cuts, Grid::new([2, 2])?)?;
    let halo = Halo::new([1, 0]);
    let mut array = Array::<u64, 2>::new(pgas.world(), pattern.with_halo(halo)?)?;
    array.fill_with(|index| value(1, index))?;
    array.exchange_halo()?;
    // The ghost cells of the upper half are the first row of the lower one, and the reverse: as
    // tiles.
    let mut memory = vec![0; array.stored_len() as usize];
    array.read_local(0, &mut memory)?;
    let (upper, part) = (pgas.me().0 < 2, u64::from(pgas.me().0 % 2));
    let ghosts = if upper { 3 } else { 2 };
    for column in (0..7).filter(|column| column / 2 % 2 == part) {
        let wanted = value(1, [ghosts, column]);
        assert_eq!(memory.iter().filter(|cell| **cell == wanted).count(), 1);
    }
    let ghosts = (array.stored_len() - array.local_len()) / 2;
    let untouched = memory.iter().filter(|cell| **cell == UNTOUCHED).count();
    assert_eq!(untouched as u64, ghosts);
    Ok(array.free()?)
});

everywhere!(misuse_is_an_error, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let pattern = Pattern::block([4], 2)?.with_halo(Halo::new([1]))?;
    let mut array = Array::<u64, 1>::new(pgas.world(), pattern)?;
    let early = Err(ArrayError::Exchange("was not started").into());
    assert_eq!(array.finish_halo(), early);
    array.start_halo()?;
    assert!(array.start_halo().is_err());
    array.finish_halo()?;
    assert_eq!(array.finish_halo(), early);
    array.free()?;
    // Nothing to exchange is no error.
    let mut array = Array::<u64, 1>::new(pgas.world(), Pattern::block([4], 2)?)?;
    array.exchange_halo()?;
    Ok(array.free()?)
});
