//! Non-blocking collectives: results, order of waiting, and what becomes of those that nobody waits
//! for.

use crate::collective::results::{Sample, compose};
use samite_fabric::Fabric;
use samite_pgas::{Error, Operator, Pending, Pgas, Segment, Sum, Team};
use samite_testkit::{Outcome, check, everywhere, maps_all, same};

fn filled<T: Sample>(rank: u64, count: u64) -> Vec<T> {
    (0..count).map(|index| T::at(rank, index)).collect()
}

/// All of them at once, waited for in the reverse order.
fn all_at_once<T: Sample, O: Operator<T> + Send + 'static>(
    world: &Team,
    count: u64,
    op: impl Fn() -> O,
) -> Outcome {
    let (me, size) = (u64::from(world.rank()), u64::from(world.size()));
    let root = (size - 1) as u32;
    let here = me == size - 1;
    let mine: Vec<T> = filled(me, count);
    let model = |ranks: std::ops::Range<u64>, first: u64| -> Vec<T> {
        let fold = |index| {
            let all = ranks.clone().map(|rank| T::at(rank, index));
            all.reduce(|sum, next| op().apply(sum, next))
        };
        (first..first + count).filter_map(fold).collect()
    };
    let all: Vec<T> = (0..size).flat_map(|rank| filled(rank, count)).collect();
    let nothing = Vec::new;
    let barrier = world.ibarrier()?;
    let broadcast = world.ibroadcast(root, mine.clone())?;
    let given: Vec<T> = if here {
        filled(me, count * size)
    } else {
        nothing()
    };
    let scatter = world.iscatter(root, given, count)?;
    let gather = world.igather(root, mine.clone())?;
    let all_gather = world.iall_gather(mine.clone())?;
    let all_to_all = world.iall_to_all(filled::<T>(me, count * size))?;
    let reduce = world.ireduce(root, mine.clone(), op())?;
    let all_reduce = world.iall_reduce(mine.clone(), op())?;
    let reduce_scatter = world.ireduce_scatter(filled::<T>(me, count * size), op())?;
    let scan = world.iscan(mine.clone(), op())?;
    let exscan = world.iexscan(mine.clone(), op())?;
    // Blocks of rank + count elements.
    let counts: Vec<u64> = (0..size).map(|rank| rank + count).collect();
    let total = counts.iter().sum();
    let known = if here { &counts[..] } else { &[] };
    let given: Vec<T> = filled(me, if here { total } else { 0 });
    let scatter_v = world.iscatter_v(root, given, known, me + count)?;
    let gather_v = world.igather_v(root, filled::<T>(me, me + count), known)?;
    let all_gather_v = world.iall_gather_v(filled::<T>(me, me + count), &counts)?;
    let same_for_all = vec![me + count; size as usize];
    let given: Vec<T> = filled(me, total);
    let all_to_all_v = world.iall_to_all_v(given, &counts, &same_for_all)?;

    let first = |rank: u64| counts[..rank as usize].iter().sum::<u64>();
    let from = |rank: u64| (0..me + count).map(move |i| T::at(rank, first(me) + i));
    let expected: Vec<T> = (0..size).flat_map(from).collect();
    check!(all_to_all_v.wait()? == expected, "iall_to_all_v");
    let all_v: Vec<T> = (0..size)
        .flat_map(|rank| filled(rank, rank + count))
        .collect();
    check!(all_gather_v.wait()? == all_v, "iall_gather_v");
    check!(
        gather_v.wait()? == if here { all_v } else { nothing() },
        "igather_v"
    );
    let expected: Vec<T> = from(size - 1).collect();
    check!(scatter_v.wait()? == expected, "iscatter_v");
    let before = if me == 0 { nothing() } else { model(0..me, 0) };
    check!(exscan.wait()? == before, "iexscan");
    check!(scan.wait()? == model(0..me + 1, 0), "iscan");
    check!(
        reduce_scatter.wait()? == model(0..size, me * count),
        "ireduce_scatter"
    );
    check!(all_reduce.wait()? == model(0..size, 0), "iall_reduce");
    let sum = if here { model(0..size, 0) } else { nothing() };
    check!(reduce.wait()? == sum, "ireduce");
    let from = |rank: u64| (0..count).map(move |i| T::at(rank, me * count + i));
    check!(
        all_to_all.wait()? == (0..size).flat_map(from).collect::<Vec<T>>(),
        "iall_to_all"
    );
    check!(all_gather.wait()? == all, "iall_gather");
    check!(
        gather.wait()? == if here { all } else { nothing() },
        "igather"
    );
    check!(
        scatter.wait()? == from(size - 1).collect::<Vec<T>>(),
        "iscatter"
    );
    check!(
        broadcast.wait()? == filled::<T>(size - 1, count),
        "ibroadcast"
    );
    barrier.wait()?;
    Ok(())
}

fn all_results(fabric: &Fabric) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let many = if fabric.domain().is_none() {
        9_000
    } else {
        60_000
    };
    for count in [0, 1, 7, 1000, many] {
        all_at_once::<f64, _>(world, count, || Sum)?;
    }
    all_at_once::<[u64; 3], _>(world, 2000, compose)?;
    Ok(world.barrier()?)
}

everywhere!(alone, 1, |fabric, _| all_results(fabric));
everywhere!(of_two, 2, |fabric, _| all_results(fabric));
everywhere!(of_three, 3, |fabric, _| all_results(fabric));
everywhere!(of_five, 5, |fabric, _| all_results(fabric));

// What is in flight moves on while its member waits in something else: each waits first for what
// the other one waits for last.
everywhere!(waits_move_others_on, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me().0);
    for round in 0..20 {
        let sum = world.iall_reduce(vec![u64::from(me) + round; 5000], Sum)?;
        let other = world.ibarrier()?;
        let expected = vec![3 + 3 * round; 5000];
        match me {
            0 => {
                world.barrier()?;
                other.wait()?;
                same!(sum.wait()?, expected);
            }
            1 => {
                same!(sum.wait()?, expected);
                world.barrier()?;
                other.wait()?;
            }
            _ => {
                other.wait()?;
                same!(sum.wait()?, expected);
                world.barrier()?;
            }
        }
    }
    Ok(world.barrier()?)
});

// The forms of a collective match: each member chooses anew, and calls are in flight behind others.
everywhere!(with_blocking_ones, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), u64::from(pgas.me().0));
    for round in 0..12 {
        for count in [1, 6000] {
            let mine = vec![me + round; count];
            let expected = vec![3 + 3 * round; count];
            let (mut sum, mut all) = (vec![0; count], vec![0; 3 * count]);
            let waits = |call: u64| (me + round + call).is_multiple_of(2);
            let early = (!waits(0)).then(|| world.iall_reduce(mine.clone(), Sum));
            if early.is_none() {
                world.all_reduce(&mine, &mut sum, Sum)?;
            }
            let later = (!waits(1)).then(|| world.iall_gather(mine.clone()));
            if later.is_none() {
                world.all_gather(&mine, &mut all)?;
            }
            if let Some(later) = later {
                all = later?.wait()?;
            }
            if let Some(early) = early {
                sum = early?.wait()?;
            }
            same!(sum, expected);
            let gathered = (0..3).flat_map(|rank| vec![rank + round; count]);
            check!(all == gathered.collect::<Vec<u64>>(), "round {round}");
        }
    }
    Ok(world.barrier()?)
});

// Parts of symmetric memory are read and written where they are.
everywhere!(in_symmetric_memory, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), u64::from(pgas.me().0));
    for count in [5, 9000] {
        let (from, into) = (
            world.allocate::<u64>(count)?,
            world.allocate::<u64>(3 * count)?,
        );
        let local = |part: &Segment<u64>, len: u64| -> Outcome<Vec<u64>> {
            let mut found = vec![0; len as usize];
            part.read_local(0, &mut found)?;
            Ok(found)
        };
        from.write_local(0, &filled::<u64>(me, count))?;
        world.barrier()?;
        let used = fabric.shared_bytes();
        let gather = world.iall_gather((from.part(..)?, into.part(..)?))?;
        gather.wait()?;
        let all: Vec<u64> = (0..3).flat_map(|rank| filled(rank, count)).collect();
        check!(local(&into, 3 * count)? == all, "all-gather of {count}");
        let broadcast = world.ibroadcast(2, into.part(..count)?)?;
        let sum = world.iall_reduce((from.part(..)?, into.part(count..2 * count)?), Sum)?;
        sum.wait()?;
        broadcast.wait()?;
        // Who is done has not told the others.
        world.barrier()?;
        let got = local(&into, 2 * count)?;
        check!(got[..count as usize] == all[..count as usize], "{count}");
        let sums = (0..count).map(|i| (0..3).map(|rank| u64::at(rank, i)).sum::<u64>());
        let sums: Vec<u64> = sums.collect();
        check!(got[count as usize..] == sums, "all-reduce of {count}");
        let staged = fabric.shared_bytes() - used;
        check!(!maps_all(fabric) || staged < 1 << 16, "{staged} bytes");
        // In place, which takes a copy.
        world.iall_reduce(from.part(..)?, Sum)?.wait()?;
        check!(local(&from, count)? == sums, "in place, of {count}");
        let short = world.iall_gather((from.part(..)?, into.part(..count)?));
        check!(matches!(short, Err(Error::WrongLength { .. })), "{short:?}");
    }
    Ok(world.barrier()?)
});

// Dropped and forgotten ones go on: the others get their results.
everywhere!(nobody_waits_for_it, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), u64::from(pgas.me().0));
    for turn in 0..6 {
        let sum = world.iall_reduce(vec![me + turn; 20_000], Sum)?;
        match (me + turn) % 3 {
            0 => drop(sum),
            1 => std::mem::forget(sum),
            _ => same!(sum.wait()?, vec![3 + 3 * turn; 20_000]),
        }
        // Here the others move theirs on.
        world.barrier()?;
    }
    Ok(world.barrier()?)
});

everywhere!(tested_and_awaited, 2, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me().0);
    let mut sum = world.iall_reduce(vec![me + 1; 10_000], Sum)?;
    let found = loop {
        if let Some(found) = sum.test() {
            break found?;
        }
    };
    same!(found, vec![3; 10_000]);
    same!(sum.wait()?, found);
    same!(block_on(world.iall_gather(vec![me])?)?, vec![0, 1]);
    Ok(world.barrier()?)
});

/// The smallest executor: it polls.
fn block_on<R>(mut pending: Pending<R>) -> Result<R, samite_pgas::Error> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        let pinned = std::pin::Pin::new(&mut pending);
        if let std::task::Poll::Ready(result) = pinned.poll(&mut context) {
            return result;
        }
    }
}
