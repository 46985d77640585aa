//! Homes whose words change all the time.

use super::Lock;
use crate::tampered::{LIES, Lies};
use crate::{Error, Pgas, Result, Team};
use samite_fabric::Error as Below;
use samite_testkit::{Outcome, check, simulate};
use std::time::Duration;

const PATIENT: Duration = Duration::from_secs(10);

/// A lock that is at home at unit 0.
fn lock_of_the_first<'f>(world: &Team<'f>) -> Outcome<Lock<'f>> {
    loop {
        let lock = world.lock()?;
        if lock.home() == 0 {
            return Ok(lock);
        }
    }
}

fn timed_out<T: std::fmt::Debug>(done: &Result<T>) -> Outcome {
    let over = matches!(done, Err(Error::Fabric(Below::Timeout { .. })));
    check!(over, "{done:?}");
    Ok(())
}

/// Where the lies begin.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    /// There is another tail each time.
    Joining,
    /// Somebody else was behind the predecessor each time.
    Announcing,
    /// Somebody comes each time.
    Leaving,
}

#[test]
fn words_that_change_all_the_time() {
    let name = "lock::tests::words_that_change_all_the_time";
    let lies = &Lies::new();
    for case in [Case::Joining, Case::Announcing, Case::Leaving] {
        simulate(name, 3, 0..1, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let lock = lock_of_the_first(world)?;
            if world.rank() == 0 {
                lies.tell(fabric, move |count, word| match case {
                    // A ticket of unit 2.
                    Case::Joining => (count + 1) << 22 | 3 << 1,
                    // Its predecessor is written down, the tail is exchanged, twice.
                    Case::Announcing if count < 4 => word,
                    Case::Announcing | Case::Leaving => count % 2 + 1,
                });
            }
            world.barrier()?;
            let held = (world.rank() == 2).then(|| lock.acquire()).transpose()?;
            world.barrier()?;
            if world.rank() == 1 {
                fabric.set_deadline(Duration::from_millis(20));
                if case == Case::Leaving {
                    timed_out(&lock.acquire())?;
                }
                lies.begin();
                if case == Case::Leaving {
                    drop(held);
                    drop(lock);
                    check!(!lies.end(), "{LIES} answers");
                    fabric.set_deadline(PATIENT);
                    world.barrier()?;
                    return Ok(world.barrier()?);
                }
                timed_out(&lock.acquire())?;
                check!(!lies.end(), "{LIES} answers");
                fabric.set_deadline(PATIENT);
            }
            world.barrier()?;
            held.map_or(Ok(()), |guard| guard.release())?;
            lock.acquire()?.release()?;
            Ok(world.barrier()?)
        });
    }
}
