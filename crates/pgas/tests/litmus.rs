//! The memory model, clause by clause: small programs whose forbidden outcomes must not show, on memory
//! that is shared, over messages and on a simulated network. `docs/memory-model.md` names the test of each
//! clause.
//!
//! Each round uses elements of its own, so that nothing has to be set back, and begins at a barrier, so
//! that the units meet.

use samite_fabric::{Fabric, Mask};
use samite_pgas::{
    Error, Pgas, Result, Segment, Signal, SignalOp, Team, Unit, Update, Wanted, wait_all,
};
use samite_testkit::{Outcome, Who, check, everywhere, pause, point, same, units};

/// A test on all transports, and once more in the checking mode, which must find nothing.
macro_rules! litmus {
    ($name:ident, $units:expr, $body:expr) => {
        mod $name {
            use super::*;

            everywhere!(transport, $units, $body);

            #[test]
            fn checked() {
                let name = concat!(stringify!($name), "::checked");
                let checked = units($units).config(|config| config.check = true);
                checked.run(name, $body);
            }
        }
    };
}

/// As many rounds as take no time worth speaking of.
fn rounds(fabric: &Fabric) -> u64 {
    match (fabric.caps().map, fabric.domain()) {
        _ if fabric.checks() => 8,
        (true, _) => 500,
        (false, Some(_)) => 100,
        // Simulated.
        (false, None) => 20,
    }
}

/// Waits for a value by looking, as a program does that has nothing else to do.
fn look_for(segment: &Segment<'_, u64>, rank: u32, index: u64, value: u64) -> Result<()> {
    while segment.load(rank, index)? != value {
        segment.team().fabric().progress();
    }
    Ok(())
}

/// How a writer publishes and a reader waits: the round, the flags of the round, the reader.
struct Passing<'a, 'f> {
    data: &'a Segment<'f, u64>,
    flags: &'a Segment<'f, u64>,
    /// Where the data of this round lie.
    home: u32,
    at: u64,
    reader: u32,
    round: u64,
}

/// Elements of a message.
const LENGTH: u64 = 5;

/// Message passing: every unit writes in turn, to memory of every unit, and another one reads.
fn pass(
    fabric: &Fabric,
    publish: impl Fn(&Pgas<'_>, &Passing<'_, '_>, &[u64]) -> Result<()>,
    wait: impl Fn(&Pgas<'_>, &Passing<'_, '_>) -> Result<()>,
) -> Outcome {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let rounds = rounds(fabric);
    let data = &world.allocate::<u64>(LENGTH * rounds)?;
    let flags = &world.allocate::<u64>(rounds)?;
    for round in 0..rounds {
        let size = u64::from(world.size());
        let writer = (round % size) as u32;
        let passing = Passing {
            data,
            flags,
            home: (round / size % size) as u32,
            at: LENGTH * round,
            reader: (writer + 1) % world.size(),
            round,
        };
        world.barrier()?;
        if world.rank() == writer {
            publish(pgas, &passing, &[round + 1; LENGTH as usize])?;
        } else if world.rank() == passing.reader {
            wait(pgas, &passing)?;
            let mut found = [0; LENGTH as usize];
            data.get(passing.home, passing.at, &mut found)?;
            same!(found, [round + 1; LENGTH as usize]);
        }
    }
    Ok(world.barrier()?)
}

/// The reader looks at a flag of its own by atomics.
fn by_flag(_: &Pgas<'_>, passing: &Passing<'_, '_>) -> Result<()> {
    let Passing {
        flags,
        reader,
        round,
        ..
    } = *passing;
    look_for(flags, reader, round, 1)
}

fn raise(passing: &Passing<'_, '_>) -> Result<()> {
    let Passing {
        flags,
        reader,
        round,
        ..
    } = *passing;
    flags.swap(reader, round, 1).map(drop)
}

litmus!(a_put_that_returned_is_complete, 3, |fabric, _| {
    let publish = |_: &Pgas<'_>, to: &Passing<'_, '_>, from: &[u64]| {
        to.data.put(to.home, to.at, from)?;
        raise(to)
    };
    pass(fabric, publish, by_flag)
});

litmus!(a_handle_that_was_waited_for_is_complete, 3, |fabric, _| {
    let publish = |_: &Pgas<'_>, to: &Passing<'_, '_>, from: &[u64]| {
        let at = |part: usize| to.at + part as u64;
        let handles =
            (0..from.len()).map(|part| to.data.put_nb(to.home, at(part), &from[part..=part]));
        wait_all(handles.collect::<Result<Vec<_>>>()?)?;
        raise(to)
    };
    pass(fabric, publish, by_flag)
});

litmus!(a_flush_completes_what_was_implicit, 3, |fabric, _| {
    let publish = |pgas: &Pgas<'_>, to: &Passing<'_, '_>, from: &[u64]| {
        for (part, value) in from.iter().enumerate() {
            to.data
                .put_implicit(to.home, to.at + part as u64, &[*value])?;
        }
        match to.round % 2 {
            0 => pgas.flush(Unit(to.home))?,
            _ => pgas.flush_all()?,
        }
        raise(to)
    };
    pass(fabric, publish, by_flag)
});

litmus!(a_source_may_be_used_again_at_once, 2, |fabric, _| {
    let publish = |pgas: &Pgas<'_>, to: &Passing<'_, '_>, from: &[u64]| {
        let mut source = from.to_vec();
        to.data.put_implicit(to.home, to.at, &source)?;
        pgas.flush_local();
        source.fill(u64::MAX);
        pgas.flush_all()?;
        raise(to)
    };
    pass(fabric, publish, by_flag)
});

litmus!(own_operations_follow_each_other, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(8)?;
    let (rank, there) = (world.rank(), 1 - world.rank());
    for round in 1..=rounds(fabric) {
        let index = u64::from(rank);
        data.put_value(there, index, 2 * round)?;
        same!(data.get_value(there, index)?, 2 * round);
        same!(data.fetch_add(there, index, 1)?, 2 * round);
        same!(data.get_value(there, index)?, 2 * round + 1);
        data.put_value(rank, 4, round)?;
        same!(data.load(rank, 4)?, round);
    }
    Ok(world.barrier()?)
});

litmus!(what_one_unit_saw_is_there_for_the_next, 3, |fabric, _| {
    // 0 writes, 1 sees it and says so to 2, which knows nothing of 0.
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let rounds = rounds(fabric);
    let data = world.allocate::<u64>(rounds)?;
    let flags = world.allocate::<u64>(rounds)?;
    for round in 0..rounds {
        world.barrier()?;
        // Not at the unit that it is for, and not at the one that says so.
        match world.rank() {
            0 => {
                data.put_implicit((round % 3) as u32, round, &[7])?;
                pgas.flush_all()?;
                flags.swap(1, round, 1)?;
            }
            1 => {
                look_for(&flags, 1, round, 1)?;
                flags.swap(2, round, 1)?;
            }
            _ => {
                look_for(&flags, 2, round, 1)?;
                same!(data.get_value((round % 3) as u32, round)?, 7);
            }
        }
    }
    Ok(world.barrier()?)
});

/// What each unit saw in each round, for everybody: `seen(round, unit)` after the last one.
fn observe<'f>(
    world: &Team<'f>,
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

litmus!(data_come_before_their_signal, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (rounds, there) = (rounds(fabric), 1 - world.rank());
    // Longer than a frame now and then.
    let data = world.allocate::<u64>(3000)?;
    let signals = world.allocate::<u64>(2)?;
    for round in 1..=rounds {
        let count = if round % 16 == 0 { 3000 } else { round % 9 };
        let values = vec![round; count as usize];
        let (op, value) = match round % 2 {
            0 => (SignalOp::Set, round),
            _ => (SignalOp::Add, 1),
        };
        let signal = Signal {
            index: 0,
            op,
            value,
        };
        if round % 2 == u64::from(world.rank()) {
            data.put_signal(there, 0, &values, &signals, signal)?;
            // The answer: the data may be written again.
            signals.wait_until_from(1, Wanted::Equal(round), there)?;
        } else {
            signals.wait_until(0, Wanted::AtLeast(round.div_ceil(2)))?;
            let mut found = vec![0; count as usize];
            data.read_local(0, &mut found)?;
            same!(found, values);
            let answer = Signal {
                index: 1,
                op: SignalOp::Set,
                value: round,
            };
            signals.write_local(0, &[round.div_ceil(2)])?;
            signals.signal(there, answer)?;
        }
    }
    Ok(world.barrier()?)
});

litmus!(a_signal_follows_all_earlier_puts, 2, |fabric, _| {
    let publish = |_: &Pgas<'_>, to: &Passing<'_, '_>, from: &[u64]| {
        for (part, value) in from.iter().enumerate() {
            to.data
                .put_implicit(to.reader, to.at + part as u64, &[*value])?;
        }
        to.flags.signal(
            to.reader,
            Signal {
                index: to.round,
                op: SignalOp::Add,
                value: 1,
            },
        )
    };
    let wait = |_: &Pgas<'_>, at: &Passing<'_, '_>| {
        at.flags.wait_until(at.round, Wanted::Equal(1)).map(drop)
    };
    // The data and the signal go to the same member.
    let to_reader = |pgas: &Pgas<'_>, to: &Passing<'_, '_>, from: &[u64]| {
        let home = to.reader;
        publish(pgas, &Passing { home, ..*to }, from)
    };
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let rounds = rounds(fabric);
    let data = &world.allocate::<u64>(LENGTH * rounds)?;
    let flags = &world.allocate::<u64>(rounds)?;
    for round in 0..rounds {
        let reader = (round % 2) as u32;
        let passing = Passing {
            data,
            flags,
            home: reader,
            at: LENGTH * round,
            reader,
            round,
        };
        if world.rank() == reader {
            wait(pgas, &passing)?;
            let mut found = [0; LENGTH as usize];
            data.read_local(passing.at, &mut found)?;
            same!(found, [round + 1; LENGTH as usize]);
        } else {
            to_reader(pgas, &passing, &[round + 1; LENGTH as usize])?;
        }
    }
    Ok(world.barrier()?)
});

litmus!(a_barrier_orders, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (rank, size) = (world.rank(), world.size());
    let data = world.allocate::<u64>(u64::from(size))?;
    for round in 1..=rounds(fabric) {
        // To everybody; also what is only complete because of the flush.
        for to in 0..size {
            match round % 2 {
                0 => data.put_value(to, u64::from(rank), round)?,
                _ => data.put_implicit(to, u64::from(rank), &[round])?,
            }
        }
        pgas.flush_all()?;
        world.barrier()?;
        let mut own = [0; 3];
        data.read_local(0, &mut own)?;
        same!(own, [round; 3]);
        data.get((rank + 1) % size, 0, &mut own)?;
        same!(own, [round; 3]);
        world.barrier()?;
    }
    Ok(())
});

litmus!(a_collective_orders_what_it_connects, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let size = world.size();
    let data = world.allocate::<u64>(u64::from(size))?;
    for round in 1..=rounds(fabric) / 4 {
        // Everybody hears of everybody.
        let (mine, there) = (u64::from(world.rank()), (world.rank() + 1) % size);
        data.put_value(there, mine, round)?;
        let mut all = [0; 3];
        world.all_gather(&[mine][..], &mut all[..])?;
        same!(all, [0, 1, 2]);
        let from = (world.rank() + size - 1) % size;
        same!(data.load(world.rank(), u64::from(from))?, round);
        world.barrier()?;
    }
    Ok(())
});

litmus!(a_lock_hands_everything_over, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let lock = world.lock()?;
    let data = world.allocate::<u64>(4)?;
    let mut last = 0;
    for _ in 0..rounds(fabric) / 4 {
        let guard = lock.acquire()?;
        let mut turn = [0; 4];
        data.get(0, 0, &mut turn)?;
        same!(turn, [turn[0]; 4]);
        check!(turn[0] >= last, "what was done under the lock stays done");
        for home in 1..3 {
            let mut other = [0; 4];
            data.get(home, 0, &mut other)?;
            same!(other, turn);
        }
        last = turn[0] + 1;
        for home in 0..3 {
            // The lock completes what is implicit.
            data.put_implicit(home, 0, &[last; 4])?;
        }
        guard.release()?;
    }
    world.barrier()?;
    same!(data.get_value(2, 3)?, rounds(fabric) / 4 * 3);
    Ok(world.barrier()?)
});

litmus!(
    a_phase_begins_with_what_the_last_one_wrote,
    3,
    |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let (rank, size) = (world.rank(), world.size());
        let mut shared = world.allocate::<u64>(8)?;
        for round in 1..=rounds(fabric) / 40 + 2 {
            let from = (rank + size - 1) % size;
            shared.put((rank + 1) % size, 0, &[100 * round + u64::from(rank); 4])?;
            shared.put_implicit((rank + 1) % size, 4, &[100 * round + u64::from(rank); 4])?;
            let mut local = shared.into_local()?;
            same!(local.as_slice(), [100 * round + u64::from(from); 8]);
            local.as_mut_slice()[0] = round;
            let read = local.into_read_only()?;
            for of in 0..size {
                let mut found = [0; 1];
                read.get(of, 0, &mut found)?;
                same!(found, [round]);
                if let Some(part) = read.slice(of)? {
                    same!(part[0], round);
                }
            }
            shared = read.into_shared()?;
            same!(shared.load((rank + 1) % size, 0)?, round);
            world.barrier()?;
        }
        Ok(world.barrier()?)
    }
);

everywhere!(a_race_stays_where_it_is, 3, |fabric, _| {
    // All units write the middle at once, and read it: any bytes. Around it nothing changes.
    const MIDDLE: std::ops::Range<usize> = 1000..3000;
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u16>(4000)?;
    let mine = vec![world.rank() as u16 + 1; 4000];
    if world.rank() == 0 {
        data.put(0, 0, &[9; 4000])?;
    }
    world.barrier()?;
    let mut found = vec![0; 4000];
    for _ in 0..rounds(fabric) / 10 + 1 {
        data.put(0, MIDDLE.start as u64, &mine[MIDDLE])?;
        data.get(0, 0, &mut found)?;
        check!(
            found[..MIDDLE.start]
                .iter()
                .chain(&found[MIDDLE.end..])
                .all(|value| *value == 9)
        );
    }
    world.barrier()?;
    // And it ends with the race: from here on there is one writer.
    if world.rank() == 1 {
        data.put(0, 0, &mine)?;
    }
    world.barrier()?;
    data.get(0, 0, &mut found)?;
    same!(found, [2; 4000]);
    Ok(world.barrier()?)
});

litmus!(
    zero_elements_order_nothing_and_harm_nothing,
    2,
    |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let data = world.allocate::<u64>(1)?;
        let there = 1 - world.rank();
        data.put(there, 1, &[])?;
        data.get(there, 0, &mut [])?;
        data.put_nb(there, 1, &[])?.wait()?;
        data.put_implicit(there, 0, &[])?;
        pgas.flush_all()?;
        let over = data.put(there, 2, &[]);
        check!(matches!(over, Err(Error::OutOfRange { .. })), "{over:?}");
        same!(data.get_value(there, 0)?, 0);
        Ok(world.barrier()?)
    }
);

/// Memory of the units' own, which the kernel copies to, or messages where it must not: the signal, which is
/// a store to mapped memory, is not faster than they.
fn registered(fabric: &Fabric, _: &[samite_fabric::PeerId]) -> Outcome {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (rounds, there) = (rounds(fabric) / 4, 1 - world.rank());
    let data = world.register(vec![0_u64; 3000])?;
    let signals = world.allocate::<u64>(1)?;
    for round in 1..=rounds {
        let signal = Signal {
            index: 0,
            op: SignalOp::Set,
            value: round,
        };
        let values = [round; 3000];
        match round % 2 {
            0 => data.put_signal(there, 0, &values, &signals, signal)?,
            _ => {
                data.put_implicit(there, 0, &values)?;
                signals.signal(there, signal)?;
            }
        }
        signals.wait_until(0, Wanted::Equal(round))?;
        let mut found = [0; 3000];
        data.read_local(0, &mut found)?;
        check!(found == values, "{} of round {round}", found[2999]);
        world.barrier()?;
    }
    Ok(world.barrier()?)
}

#[test]
fn a_signal_waits_for_the_kernel() {
    units(2).run("a_signal_waits_for_the_kernel", registered);
}

#[test]
fn a_signal_waits_for_messages() {
    let mask = Mask {
        kernel_copy: true,
        ..Mask::default()
    };
    units(2)
        .mask(mask)
        .run("a_signal_waits_for_messages", registered);
}

/// Unit 1 waits for a line of text, outside of the library, while unit 0 works on its memory.
#[test]
fn shared_memory_needs_no_progress_of_its_owner() {
    let body = |fabric: &Fabric, _: &[samite_fabric::PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let data = world.allocate::<u64>(10_000)?;
        let lock = loop {
            let lock = world.lock()?;
            if lock.home() == 1 {
                break lock;
            }
        };
        world.barrier()?;
        if world.rank() == 1 {
            pause("outside of the library");
            same!(data.load(1, 0)?, 7);
        } else {
            point("waits for unit 1 to be outside");
            pause("it is");
            let from = vec![5; 10_000];
            data.put(1, 0, &from)?;
            data.put_implicit(1, 0, &from)?;
            pgas.flush_all()?;
            data.fetch_add(1, 0, 2)?;
            data.signal(
                1,
                Signal {
                    index: 1,
                    op: SignalOp::Set,
                    value: 1,
                },
            )?;
            let mut back = vec![0; 10_000];
            data.get(1, 0, &mut back)?;
            same!(back[..3], [7, 1, 5]);
            drop(lock.acquire()?);
            point("done");
        }
        Ok(world.barrier()?)
    };
    units(2).conduct(
        "shared_memory_needs_no_progress_of_its_owner",
        body,
        |cast| {
            cast.wait_point(Who::Unit(0), "waits for unit 1 to be outside");
            cast.wait_point(Who::Unit(1), "outside of the library");
            cast.wait_point(Who::Unit(0), "it is");
            cast.stop(Who::Unit(1));
            cast.release(Who::Unit(0));
            cast.wait_point(Who::Unit(0), "done");
            cast.go_on(Who::Unit(1));
            cast.release(Who::Unit(1));
        },
    );
}

litmus!(an_owner_that_makes_progress_answers, 2, |fabric, _| {
    // Over messages the owner's calls answer: here it does nothing but `progress`.
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(2)?;
    if world.rank() == 0 {
        for round in 1..=rounds(fabric) {
            data.put_value(1, 0, round)?;
            same!(data.get_value(1, 0)?, round);
        }
        data.swap(1, 1, 1)?;
    } else {
        while data.load(1, 1)? == 0 {
            pgas.progress();
        }
    }
    Ok(world.barrier()?)
});
