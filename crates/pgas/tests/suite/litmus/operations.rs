//! Completion of puts and gets, and what orders them.

use crate::litmus::passing::{Passing, by_flag, pass, raise};
use crate::litmus::{litmus, look_for, rounds};
use samite_pgas::{Error, Pgas, Result, Unit, wait_all};
use samite_testkit::{check, same};

litmus!(a_put_that_returned_is_complete, 3, |fabric, _| {
    let publish = |_: &Pgas, to: &Passing<'_>, from: &[u64]| {
        to.data.put(to.home, to.at, from)?;
        raise(to)
    };
    pass(fabric, publish, by_flag)
});

litmus!(a_handle_that_was_waited_for_is_complete, 3, |fabric, _| {
    let publish = |_: &Pgas, to: &Passing<'_>, from: &[u64]| {
        let at = |part: usize| to.at + part as u64;
        let handles =
            (0..from.len()).map(|part| to.data.put_nb(to.home, at(part), &from[part..=part]));
        wait_all(handles.collect::<Result<Vec<_>>>()?)?;
        raise(to)
    };
    pass(fabric, publish, by_flag)
});

litmus!(a_flush_completes_what_was_implicit, 3, |fabric, _| {
    let publish = |pgas: &Pgas, to: &Passing<'_>, from: &[u64]| {
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
    let publish = |pgas: &Pgas, to: &Passing<'_>, from: &[u64]| {
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
