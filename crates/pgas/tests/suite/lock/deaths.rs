//! Deaths: of a waiter, of the last one, of the holder, of the home, of one in a crowd.

use crate::lock::until_queued;
use samite_fabric::{Fabric, Mask};
use samite_pgas::{Error, Lock, Named, Pgas, Segment, Team, Unit};
use samite_testkit::{
    Cluster, MESSAGES_ONLY, Outcome, Who, check, full_name, pause, point, same, units,
};

/// A body with deaths. Unit 1 is the one that dies; the survivors have a team of their own.
fn with_deaths(
    name: &str,
    (count, mask): (u32, Mask),
    body: impl Fn(&Fabric, &Team, &Team) -> Outcome,
    orchestrator: impl Fn(&mut Cluster),
) {
    let run = |fabric: &Fabric, _: &[samite_fabric::PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let survivors = world.split_by(u64::from(pgas.me() == Unit(1)))?;
        body(fabric, world, &survivors)?;
        Ok(survivors.barrier()?)
    };
    units(count)
        .mask(mask)
        .orchestrate(name, run, &orchestrator);
}

/// The test twice, mapped and over messages.
macro_rules! deaths {
    ($name:ident, $units:expr, $body:expr, $orchestrator:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn mapped() {
                let name = full_name(module_path!(), "mapped");
                with_deaths(&name, ($units, Mask::default()), $body, $orchestrator);
            }

            #[test]
            fn messages() {
                let name = full_name(module_path!(), "messages");
                with_deaths(&name, ($units, MESSAGES_ONLY), $body, $orchestrator);
            }
        }
    };
}

/// A lock that does not live at unit 1.
fn safe_lock(team: &Team) -> Outcome<Lock> {
    loop {
        let lock = team.lock()?;
        if lock.home() != 1 {
            return Ok(lock);
        }
    }
}

deaths!(
    a_waiter_dies,
    4,
    |_, world, _| {
        let lock = safe_lock(world)?;
        // 0 holds, then come 1, which dies, 2, and 3.
        until_queued(&lock, world.rank() as usize)?;
        let guard = lock.acquire()?;
        if world.rank() == 0 {
            until_queued(&lock, 4)?;
            pause("all wait");
        }
        if world.rank() > 1 {
            let first = (world.rank()..4).map(Unit).collect::<Vec<_>>();
            check!(lock.queue()?.starts_with(&first));
        }
        guard.release()?;
        // And once more, through what the dead left behind.
        drop(lock.acquire()?);
        Ok(())
    },
    |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(0), "all wait");
        cluster.kill(Who::Unit(1));
        cluster.wait_gone(Who::Unit(1));
        cluster.release(Who::Unit(0));
    }
);

deaths!(
    the_last_waiter_dies,
    3,
    |fabric, world, survivors| {
        let lock = safe_lock(world)?;
        match world.rank() {
            0 => {
                let guard = lock.acquire()?;
                until_queued(&lock, 2)?;
                pause("it waits");
                guard.release()?;
                survivors.barrier()?;
            }
            1 => {
                until_queued(&lock, 1)?;
                drop(lock.acquire()?);
            }
            _ => {
                survivors.barrier()?;
                // Whoever only tries finds nobody alive in its way, once it has heard of the death.
                while fabric.lost(world.peer(1)?).is_none() {
                    fabric.progress();
                }
                check!(lock.try_acquire()?.is_some());
                check!(lock.recover()?.lost_holder().is_none(), "it was no holder");
            }
        }
        survivors.barrier()?;
        drop(lock.acquire()?);
        Ok(())
    },
    |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(0), "it waits");
        cluster.kill(Who::Unit(1));
        cluster.wait_gone(Who::Unit(1));
        cluster.release(Who::Unit(0));
    }
);

deaths!(
    the_holder_dies,
    3,
    |_, world, survivors| {
        let lock = safe_lock(world)?;
        let value = world.global_lock(7_u64)?;
        if world.rank() == 1 {
            let _guard = lock.acquire()?;
            let guard = value.acquire()?;
            same!(*guard, 7);
            until_queued(&lock, 3)?;
            pause("all wait");
            return Ok(());
        }
        until_queued(&lock, 1)?;
        let lost = Error::HolderLost {
            unit: Unit(1).into(),
        };
        same!(lock.acquire().err(), Some(lost.clone()));
        survivors.barrier()?;
        same!(lock.acquire().err(), Some(lost.clone()));
        same!(lock.try_acquire().err(), Some(lost.clone()));
        survivors.barrier()?;
        if world.rank() == 0 {
            let guard = lock.recover()?;
            same!(guard.lost_holder(), Some(Unit(1)));
            guard.release()?;
        }
        survivors.barrier()?;
        drop(lock.acquire()?);
        survivors.barrier()?;
        check!(lock.recover()?.lost_holder().is_none(), "it is repaired");
        let other = value.acquire().err();
        match value.lock().home() {
            1 => check!(
                matches!(
                    other,
                    Some(Error::UnitLost {
                        unit: Named { id: Unit(1), .. },
                        ..
                    })
                ),
                "{other:?}"
            ),
            _ => same!(other, Some(lost)),
        }
        Ok(())
    },
    |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(1), "all wait");
        cluster.kill(Who::Unit(1));
        cluster.wait_gone(Who::Unit(1));
    }
);

deaths!(
    the_home_dies,
    3,
    |_, world, survivors| {
        let lock = loop {
            let lock = world.lock()?;
            if lock.home() == 1 {
                break lock;
            }
        };
        let lost = |error: Option<Error>| {
            matches!(
                error,
                Some(Error::UnitLost {
                    unit: Named { id: Unit(1), .. },
                    ..
                })
            )
        };
        match world.rank() {
            0 => {
                let guard = lock.acquire()?;
                until_queued(&lock, 2)?;
                point("it waits");
                survivors.barrier()?;
                // Whether the release can still reach the memory is the transport's affair.
                drop(guard);
            }
            1 => {
                // Its progress is needed over messages.
                loop {
                    world.fabric().progress();
                }
            }
            _ => {
                until_queued(&lock, 1)?;
                check!(lost(lock.acquire().err()));
                survivors.barrier()?;
            }
        }
        check!(lost(lock.acquire().err()));
        check!(lost(lock.try_acquire().err()));
        check!(lost(lock.recover().err()));
        Ok(())
    },
    |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(0), "it waits");
        cluster.kill(Who::Unit(1));
        cluster.wait_gone(Who::Unit(1));
    }
);

/// Takes the lock, whatever happened to it.
fn insist(lock: &Lock, both: &Segment<u64>, turn: u64) -> Outcome {
    let (home, mut found) = (lock.home(), [0; 2]);
    let guard = match lock.acquire() {
        Ok(guard) => {
            both.get(home, 0, &mut found)?;
            same!(found[0], found[1]);
            guard
        }
        Err(Error::HolderLost {
            unit: Named { id: Unit(1), .. },
        }) => lock.recover()?,
        Err(other) => return Err(other.into()),
    };
    both.put_value(home, 0, turn)?;
    both.put_value(home, 1, turn)?;
    Ok(guard.release()?)
}

deaths!(
    one_dies_in_the_crowd,
    4,
    |fabric, world, survivors| {
        let lock = safe_lock(world)?;
        let both = world.allocate::<u64>(2)?;
        let mut turn = u64::from(world.rank());
        if world.rank() == 1 {
            point("in the crowd");
        }
        // Until some time after everybody has heard of it.
        let mut left = 200;
        while left > 0 {
            turn += 4;
            insist(&lock, &both, turn)?;
            left -= u32::from(fabric.lost(world.peer(1)?).is_some());
        }
        survivors.barrier()?;
        same!(lock.queue()?, []);
        Ok(())
    },
    |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(1), "in the crowd");
        cluster.kill(Who::Unit(1));
        cluster.wait_gone(Who::Unit(1));
    }
);
