//! Homes whose words change all the time, predecessors that violate the protocol, homes that do not
//! answer, and calls of a lock during a wait.

use super::drive::State;
use super::{GlobalLock, Lock};
use crate::tampered::{ALMOST_ALL, GET, LIES, Lies, PUT, lose, simulate_checked, starve, starving};
use crate::unfinished::Finish;
use crate::{Elem, Error, Pgas, Result, Team, Unit, Wanted};
use parking_lot::Mutex;
use samite_fabric::testing::{RawFrame, send};
use samite_fabric::transport::{Class, Push};
use samite_fabric::{Error as Below, Fabric, Match};
use samite_testkit::{Outcome, check, same, simulate};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const PATIENT: Duration = Duration::from_secs(10);

/// Creates a lock whose home is unit 0.
fn lock_of_the_first(world: &Team) -> Outcome<Lock> {
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

/// At which step the false answers begin.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    /// The tail is different each time.
    Joining,
    /// Another unit was behind the predecessor each time.
    Announcing,
    /// A unit comes each time.
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
                    // The predecessor is written and the tail exchanged, twice.
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

fn until_queued(lock: &Lock, count: usize) -> Outcome {
    while lock.queue()?.len() < count {
        lock.team.fabric().progress();
    }
    Ok(())
}

/// Unit 1 holds the lock and violates the protocol towards unit 2, which waits behind it. Unit 2
/// keeps its place until it drops the lock; then unit 3, behind it, gets the lock.
#[test]
fn a_predecessor_that_breaks_the_rules() {
    let name = "lock::tests::a_predecessor_that_breaks_the_rules";
    simulate(name, 4, 0..8, |fabric, peers| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let words = world.allocate::<u64>(1)?;
        let lock = lock_of_the_first(world)?;
        match world.rank() {
            0 => {
                world.barrier()?;
                words.wait_until(0, Wanted::Equal(1))?;
                words.put_value(1, 0, 1)?;
            }
            1 => {
                let guard = lock.acquire()?;
                world.barrier()?;
                until_queued(&lock, 3)?;
                let nonsense = RawFrame {
                    class: Class::Request,
                    kind: u8::MAX,
                    arg: 0,
                    inline: Vec::new(),
                    body: Vec::new(),
                };
                check!(matches!(send(fabric, peers[2], &nonsense), Push::Done));
                words.wait_until(0, Wanted::Equal(1))?;
                guard.release()?;
            }
            2 => {
                world.barrier()?;
                for _ in 0..3 {
                    let done = lock.acquire();
                    let corrupt = matches!(done, Err(Error::Fabric(Below::PeerCorrupt { .. })));
                    check!(corrupt, "{done:?}");
                    check!(lock.try_acquire()?.is_none());
                    same!(lock.queue()?, [Unit(1), Unit(2), Unit(3)]);
                }
                drop(lock);
                words.put_value(0, 0, 1)?;
            }
            _ => {
                world.barrier()?;
                until_queued(&lock, 2)?;
                lock.acquire()?.release()?;
            }
        }
        Ok(())
    });
}

/// Creates a lock with a value whose home is unit 1.
fn value_of_the_second<T: Elem>(world: &Team, value: T) -> Outcome<GlobalLock<T>> {
    loop {
        let lock = world.global_lock(value)?;
        if lock.lock().home() == 1 {
            return Ok(lock);
        }
    }
}

/// A value of several messages is put back, and the credit is used up in the middle: the next
/// holder finds the old value.
#[test]
fn no_half_of_a_value_is_put_back() {
    let name = "lock::tests::no_half_of_a_value_is_put_back";
    let state = &Arc::new(AtomicU64::new(starving::IDLE));
    simulate(name, 3, 0..8, |fabric, _| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let value = value_of_the_second(world, [1_u64; 1024])?;
        let words = world.allocate::<u64>(1)?;
        if world.rank() == 0 {
            state.store(starving::IDLE, Relaxed);
            starve(fabric, state);
            let mut guard = value.acquire()?;
            *guard = [2; 1024];
            state.store(starving::KEEPS, Relaxed);
            for _ in 0..ALMOST_ALL {
                drop(words.put_nb(1, 0, &[1])?);
            }
            state.store(starving::SENDS_ONE, Relaxed);
            fabric.set_deadline(Duration::from_millis(50));
            timed_out(&guard.release())?;
            fabric.set_deadline(PATIENT);
            words.put(2, 0, &[1])?;
        }
        world.barrier()?;
        for turn in 0..3 {
            if world.rank() == turn {
                let mut guard = value.acquire()?;
                let expected = u64::from(turn) + 1;
                check!(guard.iter().all(|word| *word == expected), "{turn}");
                *guard = [expected + 1; 1024];
                guard.release()?;
            }
            world.barrier()?;
        }
        Ok(())
    });
}

const PANICS: u16 = 7;

/// The home does not answer with the value that a lock guards, an operation without a handle is
/// still on its way, and a handler panics: the caller does not keep the lock.
#[test]
fn a_value_that_cannot_be_read_leaves_the_lock_free() {
    let name = "lock::tests::a_value_that_cannot_be_read_leaves_the_lock_free";
    let lost = &Arc::new(AtomicU64::new(0));
    simulate(name, 3, 0..8, |fabric, peers| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let value = value_of_the_second(world, 1_u64)?;
        let words = world.allocate::<u64>(1)?;
        if world.rank() == 0 {
            let panics = lost.clone();
            fabric.on(PANICS, move |_, _| {
                if panics.load(Relaxed) != 0 {
                    resume_unwind(Box::new("a handler"));
                }
                None
            });
            lose(fabric, lost);
        }
        world.barrier()?;
        match world.rank() {
            0 => {
                lost.store(u64::from(PUT), Relaxed);
                words.put_implicit(1, 0, &[1])?;
                lost.store(u64::from(GET), Relaxed);
                fabric.set_deadline(Duration::from_millis(50));
                let ended = catch_unwind(AssertUnwindSafe(|| value.acquire().map(drop)));
                lost.store(0, Relaxed);
                if let Ok(done) = &ended {
                    timed_out(done)?;
                }
                drop(pgas.flush_all());
                fabric.set_deadline(PATIENT);
                same!(*value.acquire()?, 1);
            }
            2 => {
                // By then unit 0's wait for the value has timed out, and a second wait of that
                // length has not.
                fabric.set_deadline(Duration::from_millis(75));
                timed_out(&words.wait_until(0, Wanted::Equal(1)))?;
                fabric.set_deadline(PATIENT);
                drop(fabric.request(peers[0], PANICS, &[])?.wait());
            }
            _ => {}
        }
        world.barrier()?;
        *value.acquire()? += 1;
        world.barrier()?;
        same!(*value.acquire()?, 4);
        Ok(world.barrier()?)
    });
}

/// A value that one unit could not read, and that another unit changes afterwards, is not a race.
#[test]
fn a_value_that_cannot_be_read_is_no_race() {
    let lost = &Arc::new(AtomicU64::new(0));
    simulate_checked(3, |fabric, peers| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let value = value_of_the_second(world, 1_u64)?;
        world.barrier()?;
        if world.rank() == 0 {
            lose(fabric, lost);
            lost.store(u64::from(GET), Relaxed);
            fabric.set_deadline(Duration::from_millis(50));
            timed_out(&value.acquire().map(drop))?;
            lost.store(0, Relaxed);
            fabric.set_deadline(PATIENT);
            // The checking mode does not see this message, so only the lock orders the two units.
            fabric.send(peers[2], 5, &[])?;
        }
        if world.rank() == 2 {
            fabric.recv(Match::from(peers[0], 5), &mut [])?;
            *value.acquire()? += 1;
        }
        world.barrier()?;
        same!(*value.acquire()?, 2);
        Ok(world.barrier()?)
    });
}

/// Calls a lock while another call of it waits.
#[derive(Debug)]
struct Calls {
    lock: Arc<Lock>,
    answers: Arc<Mutex<Vec<Option<Error>>>>,
}

impl Finish for Calls {
    fn go_on(&mut self) -> bool {
        let waits = self.lock.call.state() == State::Busy;
        if waits {
            let mut answers = self.answers.lock();
            answers.push(self.lock.acquire().err());
            answers.push(self.lock.try_acquire().err());
            answers.push(self.lock.recover().err());
        }
        waits
    }
}

/// A handler that runs while a call waits asks for the same lock: it gets an error, and the call
/// continues.
#[test]
fn a_lock_that_waits_is_asked_for_again() {
    let name = "lock::tests::a_lock_that_waits_is_asked_for_again";
    simulate(name, 2, 0..8, |fabric: &Fabric, _| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let lock = Arc::new(lock_of_the_first(world)?);
        let guard = (world.rank() == 0).then(|| lock.acquire()).transpose()?;
        world.barrier()?;
        if world.rank() == 1 {
            let answers = Arc::default();
            let calls = Calls {
                lock: lock.clone(),
                answers: Arc::clone(&answers),
            };
            pgas.job.unfinished.add(calls);
            fabric.set_deadline(Duration::from_millis(50));
            timed_out(&lock.acquire())?;
            fabric.set_deadline(PATIENT);
            same!(*answers.lock(), vec![Some(Error::AlreadyHeld); 3]);
            same!(lock.queue()?, [Unit(0), Unit(1)]);
        }
        world.barrier()?;
        guard.map_or(Ok(()), |guard| guard.release())?;
        lock.acquire()?.release()?;
        Ok(world.barrier()?)
    });
}
