//! Atomics: one order of all of them, atomic with each other, and nothing else.

use crate::litmus::{litmus, rounds};
use samite_pgas::{Pgas, Result, Team, Update};
use samite_testkit::{check, same};

/// What each unit saw in each round, for everybody: `seen(round, unit)` after the last one.
fn observe(
    world: &Team,
    rounds: u64,
    round: impl Fn(u64) -> Result<u64>,
) -> Result<impl Fn(u64, u32) -> Result<u64>> {
    let seen = world.allocate::<u64>(rounds)?;
    for at in 0..rounds {
        world.barrier()?;
        let found = round(at)?;
        seen.put_value(world.rank(), at, found)?;
    }
    world.barrier()?;
    Ok(move |round, unit| seen.get_value(unit, round))
}

litmus!(store_buffering, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    // The window is small.
    let rounds = 4 * rounds(fabric);
    let words = &world.allocate::<u64>(rounds)?;
    let (mine, other) = (world.rank(), 1 - world.rank());
    let seen = observe(world, rounds, |round| {
        // Each word is at its writer, or at its reader.
        let place = |of: u32| if round % 2 == 0 { of } else { 1 - of };
        words.swap(place(mine), round, 1)?;
        words.load(place(other), round)
    })?;
    for round in 0..rounds {
        let both = (seen(round, 0)?, seen(round, 1)?);
        check!(both != (0, 0), "both read before the other wrote");
    }
    Ok(world.barrier()?)
});

litmus!(independent_reads_of_independent_writes, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let rounds = rounds(fabric);
    let (x, y) = (
        &world.allocate::<u64>(rounds)?,
        &world.allocate::<u64>(rounds)?,
    );
    let seen = observe(world, rounds, |round| {
        let home = (round % 4) as u32;
        let (left, right) = (home, (home + 1) % 4);
        match world.rank() {
            0 => x.fetch_add(left, round, 1),
            1 => y.fetch_add(right, round, 1),
            2 => Ok(10 * x.load(left, round)? + y.load(right, round)?),
            _ => {
                let y = y.load(right, round)?;
                Ok(10 * x.load(left, round)? + y)
            }
        }
    })?;
    for round in 0..rounds {
        // The one saw x before y, the other y before x: there is no order of the two writes.
        let both = (seen(round, 2)?, seen(round, 3)?);
        check!(both != (10, 1), "round {round}: two orders of two writes");
    }
    Ok(world.barrier()?)
});

litmus!(coherence, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let rounds = rounds(fabric);
    let word = &world.allocate::<u64>(1)?;
    for home in 0..3 {
        world.barrier()?;
        if world.rank() == 0 {
            for value in 1..=rounds {
                same!(word.swap(home, 0, value)?, value - 1);
            }
            continue;
        }
        let mut last = 0;
        while last < rounds {
            let now = word.load(home, 0)?;
            check!(now >= last, "{now} after {last}");
            last = now;
            fabric.progress();
        }
    }
    Ok(world.barrier()?)
});

litmus!(counters_are_monotonic, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (rounds, size) = (rounds(fabric), u64::from(world.size()));
    let counter = world.allocate::<u64>(1)?;
    let given = world.allocate::<u8>(rounds * size)?;
    let mut last = None;
    for _ in 0..rounds {
        let mine = counter.fetch_add(1, 0, 1)?;
        check!(last < Some(mine), "{mine} after {last:?}");
        same!(given.fetch_add(2, mine, 1)?, 0);
        last = Some(mine);
    }
    world.barrier()?;
    let mut all = vec![0; (rounds * size) as usize];
    given.get(2, 0, &mut all)?;
    check!(all.iter().all(|times| *times == 1), "each number once");
    // One of all that want it.
    let won = counter.compare_swap(0, 0, 0, u64::from(world.rank()) + 1)? == 0;
    world.barrier()?;
    same!(counter.load(0, 0)? == u64::from(world.rank()) + 1, won);
    Ok(world.barrier()?)
});

litmus!(
    updates_of_all_kinds_are_atomic_with_each_other,
    2,
    |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let rounds = rounds(fabric);
        let sums = world.allocate::<u32>(2)?;
        let floats = world.allocate::<f64>(1)?;
        let pointer = sums.pointer(0, 0)?;
        // Through the segment, through a pointer, in rows, together, and by exchange, all at once.
        for _ in 0..rounds {
            sums.fetch_add(0, 0, 1)?;
            pgas.fetch_op(pointer, Update::Sum, 1)?;
            sums.accumulate(0, 0, &[1, 1], Update::Sum)?;
            floats.fetch_add(0, 0, 0.5)?;
            let mut old = sums.load(0, 0)?;
            loop {
                let found = sums.compare_swap(0, 0, old, old + 1)?;
                if found == old {
                    break;
                }
                old = found;
            }
        }
        let mut updates = sums.updates(Update::Sum);
        for _ in 0..rounds {
            updates.push(0, 0, 1)?;
        }
        updates.finish()?;
        world.barrier()?;
        let times = 2 * rounds as u32;
        same!((sums.load(0, 0)?, sums.load(0, 1)?), (5 * times, times));
        same!(floats.load(0, 0)?, f64::from(times) * 0.5);
        Ok(world.barrier()?)
    }
);

litmus!(neighbours_are_independent, 3, |fabric, _| {
    // Bytes side by side: some are put, some are updated, each by one unit.
    const BYTES: u64 = 48;
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let bytes = world.allocate::<u8>(BYTES)?;
    let rank = u64::from(world.rank());
    let rounds = (rounds(fabric) / BYTES).max(2);
    for round in 0..rounds {
        for index in (rank..BYTES).step_by(3) {
            match index % 2 {
                0 => bytes.put(0, index, &[round as u8 + 1])?,
                _ => drop(bytes.fetch_add(0, index, 1)?),
            }
        }
    }
    world.barrier()?;
    let mut found = [0; BYTES as usize];
    bytes.get(0, 0, &mut found)?;
    same!(found, [rounds as u8; BYTES as usize]);
    Ok(world.barrier()?)
});
