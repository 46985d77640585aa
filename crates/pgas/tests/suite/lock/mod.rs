//! Locks: exclusion, order, waiting, and deaths at every place of the queue (`deaths`), homes that
//! do not answer in time, and homes that say nonsense (`late`), panics of what runs meanwhile
//! (`panics`).

mod deaths;
mod late;
mod panics;

use samite_pgas::{Error, Lock, Pgas, Signal, SignalOp, Unit, Wanted};
use samite_testkit::{Failed, Outcome, check, everywhere, same, units};
use std::time::Duration;

everywhere!(nothing_is_lost_under_a_lock, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let counters = world.allocate::<u64>(4)?;
    for _ in 0..3 {
        // Each home in turn.
        let lock = world.lock()?;
        for _ in 0..100 {
            let guard = lock.acquire()?;
            let mut values = [0; 4];
            counters.get(0, 0, &mut values)?;
            same!(values, [values[0]; 4]);
            // Not complete when the guard goes: the lock sees to that.
            counters.put_implicit(0, 0, &[values[0] + 1; 2])?;
            counters.put(0, 2, &[values[0] + 1; 2])?;
            guard.release()?;
        }
        world.barrier()?;
        same!(lock.queue()?, []);
        lock.free()?;
    }
    same!(counters.get_value(0, 0)?, 900);
    Ok(world.barrier()?)
});

/// Waits until so many are in the queue.
fn until_queued(lock: &Lock, count: usize) -> Outcome {
    while lock.queue()?.len() < count {
        lock.team().fabric().progress();
    }
    Ok(())
}

everywhere!(first_come_first_served, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (rank, size) = (world.rank(), world.size());
    let lock = world.lock()?;
    let order = world.allocate::<u64>(1 + u64::from(size))?;
    for first in 0..size {
        // They come in the order first, first + 1, ...
        let place = (rank + size - first) % size;
        until_queued(&lock, place as usize)?;
        let guard = lock.acquire()?;
        if place == 0 {
            until_queued(&lock, size as usize)?;
            let units = (0..size)
                .map(|at| Unit((first + at) % size))
                .collect::<Vec<_>>();
            same!(lock.queue()?, units);
        }
        let turn = order.get_value(0, 0)?;
        order.put(0, 1 + turn, &[u64::from(rank)])?;
        order.put_value(0, 0, turn + 1)?;
        guard.release()?;
        world.barrier()?;
        let mut served = vec![0; size as usize];
        order.get(0, 1, &mut served)?;
        same!(
            served,
            (0..size)
                .map(|at| u64::from((first + at) % size))
                .collect::<Vec<_>>()
        );
        world.barrier()?;
        if rank == 0 {
            order.put_value(0, 0, 0)?;
        }
        world.barrier()?;
    }
    Ok(world.barrier()?)
});

everywhere!(who_tries_does_not_wait, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let lock = world.lock()?;
    for holder in 0..2 {
        if world.rank() == holder {
            let guard = lock.try_acquire()?;
            check!(guard.is_some());
            same!(lock.try_acquire().err(), Some(Error::AlreadyHeld));
            same!(lock.acquire().err(), Some(Error::AlreadyHeld));
            same!(lock.recover().err(), Some(Error::AlreadyHeld));
            world.barrier()?;
            world.barrier()?;
        } else {
            world.barrier()?;
            check!(lock.try_acquire()?.is_none());
            world.barrier()?;
        }
        world.barrier()?;
        check!(lock.recover()?.lost_holder().is_none(), "nothing is broken");
        world.barrier()?;
    }
    Ok(())
});

everywhere!(many_locks, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let mut before = None;
    for _ in 0..8 {
        let locks = (0..500)
            .map(|_| world.lock())
            .collect::<Result<Vec<_>, _>>()?;
        let mut homes = [0; 3];
        for lock in &locks {
            homes[lock.home() as usize] += 1;
        }
        check!(homes.iter().all(|of| (160..=173).contains(of)), "{homes:?}");
        let mine = locks.iter().skip(world.rank() as usize).step_by(3);
        let guards = mine.map(Lock::acquire).collect::<Result<Vec<_>, _>>()?;
        world.barrier()?;
        let (mut held, mut busy) = (0, 0);
        for lock in &locks {
            match lock.try_acquire() {
                Err(Error::AlreadyHeld) => held += 1,
                Ok(None) => busy += 1,
                other => check!(false, "{other:?}"),
            }
        }
        same!((held, busy), (guards.len(), 500 - guards.len()));
        world.barrier()?;
        drop(guards);
        let ends = locks.into_iter().map(Lock::free);
        ends.collect::<Result<Vec<_>, _>>()?;
        // Pages that are used up are given back when everybody has left them; the rings are there
        // since the first time.
        world.barrier()?;
        let now = fabric.shared_bytes();
        check!(now <= *before.get_or_insert(now) + (200 << 10));
    }
    Ok(world.barrier()?)
});

everywhere!(a_value_with_its_lock, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let value = world.global_lock([5_u32, 0, 0])?;
    for _ in 0..50 {
        let mut value = value.acquire()?;
        value[1] += 1;
        value[2] = value[1] * 2;
        value.release()?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        let mut guard = value
            .try_acquire()?
            .ok_or_else(|| Failed::new("it is free"))?;
        same!(*guard, [5, 150, 300]);
        check!(guard.lost_holder().is_none());
        guard[0] = 6;
    }
    world.barrier()?;
    same!(*value.recover()?, [6, 150, 300]);
    world.barrier()?;
    world.global_lock(())?.free()?;
    Ok(value.free()?)
});

everywhere!(a_deadline_keeps_the_place, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let lock = world.lock()?;
    let words = world.allocate::<u64>(1)?;
    let go = |rank| {
        words.signal(
            rank,
            Signal {
                index: 0,
                op: SignalOp::Add,
                value: 1,
            },
        )
    };
    match world.rank() {
        0 => {
            let guard = lock.acquire()?;
            go(1)?;
            words.wait_until(0, Wanted::Equal(1))?;
            go(2)?;
            until_queued(&lock, 3)?;
            guard.release()?;
        }
        1 => {
            words.wait_until(0, Wanted::Equal(1))?;
            let before = fabric.deadline();
            fabric.set_deadline(Duration::from_millis(30));
            let over = lock.acquire();
            let timeout = |error: &Error| {
                matches!(error, Error::Fabric(samite_fabric::Error::Timeout { .. }))
            };
            check!(over.as_ref().is_err_and(timeout), "{over:?}");
            drop(over);
            check!(lock.try_acquire()?.is_none());
            fabric.set_deadline(before);
            go(0)?;
            let guard = lock.acquire()?;
            same!(lock.queue()?, [Unit(1), Unit(2)]);
            guard.release()?;
        }
        _ => {
            words.wait_until(0, Wanted::Equal(1))?;
            until_queued(&lock, 2)?;
            drop(lock.acquire()?);
        }
    }
    Ok(world.barrier()?)
});

everywhere!(a_lock_that_is_dropped_lets_others_by, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let left = world.allocate::<u64>(1)?;
    // With each home; unit 1 leaves as the last one, or with unit 2 behind it.
    for round in 0..8 {
        let behind = round % 2 == 1;
        let mut lock = Some(world.lock()?);
        if let Some(lock) = &lock {
            match world.rank() {
                0 => {
                    let guard = lock.acquire()?;
                    while left.load(0, 0)? <= round {
                        fabric.progress();
                    }
                    same!(lock.queue()?.contains(&Unit(1)), false);
                    guard.release()?;
                }
                1 => {
                    until_queued(lock, 1)?;
                    let patient = fabric.deadline();
                    fabric.set_deadline(Duration::from_millis(30));
                    check!(lock.acquire().is_err());
                    fabric.set_deadline(patient);
                    until_queued(lock, if behind { 3 } else { 2 })?;
                }
                2 if behind => {
                    until_queued(lock, 2)?;
                    lock.acquire()?.release()?;
                }
                _ => {}
            }
        }
        if world.rank() == 1 {
            // All that is left of it is its place in the queue.
            drop(lock.take());
            left.fetch_add(0, 0, 1)?;
        }
        world.barrier()?;
        if world.rank() == 3
            && let Some(lock) = &lock
        {
            // It is in the way neither of whoever only tries, nor of whoever waits.
            check!(lock.try_acquire()?.is_some());
            drop(lock.acquire()?);
        }
        world.barrier()?;
    }
    Ok(())
});

everywhere!(a_panic_publishes_nothing, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let value = world.global_lock([3_u64, 4])?;
    for holder in 0..2 {
        if world.rank() == holder {
            // The guard lives until the panic has passed it.
            let mut kept = None;
            let panicked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match value.acquire() {
                    Ok(mut guard) => {
                        guard[0] = 99;
                        std::panic::resume_unwind(Box::new("half done"));
                    }
                    Err(error) => kept = Some(error),
                }));
            check!(panicked.is_err(), "{kept:?}");
        }
        world.barrier()?;
        same!(*value.acquire()?, [3, 4]);
        world.barrier()?;
    }
    // A guard that is taken while its thread unwinds is not half of anything.
    struct Last<'l>(&'l samite_pgas::GlobalLock<[u64; 2]>);
    impl Drop for Last<'_> {
        fn drop(&mut self) {
            if let Ok(mut guard) = self.0.acquire() {
                guard[1] += 1;
            }
        }
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _last = Last(&value);
        std::panic::resume_unwind(Box::new(()));
    }));
    check!(panicked.is_err());
    world.barrier()?;
    same!(*value.acquire()?, [3, 6]);
    Ok(value.free()?)
});

#[test]
fn more_units_than_cores_wait() {
    units(8).run("lock::more_units_than_cores_wait", |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let value = pgas.world().global_lock(0_u64)?;
        for _ in 0..200 {
            *value.acquire()? += 1;
        }
        pgas.world().barrier()?;
        same!(*value.acquire()?, 1600);
        Ok(pgas.world().barrier()?)
    });
}
