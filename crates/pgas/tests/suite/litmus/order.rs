//! What orders more than two units: barriers, collectives, locks, phases.

use crate::litmus::{litmus, rounds};
use samite_pgas::{Pgas, Sum};
use samite_testkit::{check, same};

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
    let (rank, size) = (world.rank(), world.size());
    // For each member an element for all, and one by way of the root.
    let data = world.allocate::<u64>(2 * u64::from(size))?;
    let by_root = |of: u32| u64::from(size + of);
    for round in 1..=rounds(fabric) {
        let root = (round % 3) as u32;
        let (there, from) = ((rank + 1) % size, (rank + size - 1) % size);
        // Everybody hears of everybody.
        data.put_value(there, u64::from(rank), round)?;
        let mut all = [0; 3];
        match round % 2 {
            0 => world.all_gather(&[u64::from(rank)], &mut all)?,
            _ => world.all_to_all(&[u64::from(rank); 3], &mut all)?,
        }
        same!(all, [0, 1, 2]);
        same!(data.load(rank, u64::from(from))?, round);
        // The root hears of all; then all hear of the root, and of what it heard.
        data.put_value(there, by_root(rank), round)?;
        let mut sum = [0];
        world.reduce(root, &[1_u64], &mut sum, Sum)?;
        if rank == root {
            for of in 0..size {
                let index = by_root((of + size - 1) % size);
                same!(data.get_value(of, index)?, round);
            }
        }
        world.broadcast(root, &mut sum)?;
        same!(sum, [3]);
        same!(
            data.get_value(from, by_root((from + size - 1) % size))?,
            round
        );
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
