//! Panics of what runs while a call of a lock waits, in programs that catch them: the lock goes on.

use crate::lock::late::lock_of_the_first;
use crate::lock::until_queued;
use samite_fabric::{Fabric, Match, PeerId};
use samite_pgas::{Error, Guard, Lock, Op, Pgas, Segment, Signal, SignalOp, Unit, Wanted};
use samite_testkit::{MESSAGES_ONLY, Outcome, Who, check, everywhere, pause, point, same, units};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const COUNT: usize = 6000;

/// A sum that panics at unit 1, once, when it is made.
fn sum_that_panics(me: Unit) -> Op<impl Fn(u64, u64) -> u64 + 'static> {
    let panics = Cell::new(me == Unit(1));
    Op::new(move |a: u64, b: u64| {
        if panics.replace(false) {
            resume_unwind(Box::new("an operator"));
        }
        a + b
    })
}

fn tell(words: &Segment<u64>, rank: u32) -> Result<(), Error> {
    let (index, op, value) = (0, SignalOp::Add, 1);
    words.signal(rank, Signal { index, op, value })
}

/// Acquires, and is ended by a panic.
fn panics(lock: &Lock) -> Outcome {
    let ended = catch_unwind(AssertUnwindSafe(|| lock.acquire().map(Guard::release)));
    check!(ended.is_err(), "{ended:?}");
    Ok(())
}

// An operator panics while unit 1 waits for the lock: it keeps its place, and goes on with it or,
// the second time, leaves.
everywhere!(an_operator_while_a_lock_is_waited_for, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me());
    let words = world.allocate::<u64>(1)?;
    for turn in 0..2 {
        let lock = lock_of_the_first(world)?;
        let guard = (me == Unit(2)).then(|| lock.acquire()).transpose()?;
        world.barrier()?;
        if me != Unit(1) {
            until_queued(&lock, 2)?;
        }
        let sum = world.iall_reduce(vec![1_u64; COUNT], sum_that_panics(me))?;
        if me == Unit(1) {
            panics(&lock)?;
            same!(lock.queue()?, [Unit(2), Unit(1)]);
            tell(&words, 2)?;
        }
        guard.map_or(Ok(()), |guard| {
            words.wait_until(0, Wanted::AtLeast(turn + 1))?;
            guard.release()
        })?;
        let mut lock = Some(lock);
        match (me, turn) {
            (Unit(1), 0) => lock
                .as_ref()
                .map_or(Ok(()), |lock| lock.acquire()?.release())?,
            (Unit(1), _) => drop(lock.take()),
            _ => {}
        }
        drop(sum.wait());
        world.barrier()?;
        if let Some(lock) = lock {
            lock.acquire()?.release()?;
        }
        world.barrier()?;
    }
    Ok(())
});

/// A handler of unit 1's.
const PANICS: u16 = 7;

/// A handler panics while unit 1 gives the lock back and waits for the answer of a home that is
/// away: unit 3, behind it, gets it.
#[test]
fn a_handler_while_the_home_is_asked() {
    let body = |fabric: &Fabric, peers: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let words = world.allocate::<u64>(1)?;
        let lock = lock_of_the_first(world)?;
        fabric.on(PANICS, |_, _| resume_unwind(Box::new("a handler")));
        let mut guard = (me == Unit(1)).then(|| lock.acquire()).transpose()?;
        world.barrier()?;
        match me {
            Unit(0) => {
                words.wait_until(0, Wanted::Equal(1))?;
                pause("away");
            }
            Unit(1) => {
                until_queued(&lock, 2)?;
                tell(&words, 0)?;
                pause("ready");
                let release = || guard.take().map(Guard::release);
                let ended = catch_unwind(AssertUnwindSafe(release));
                check!(ended.is_err(), "{ended:?}");
                point("late");
            }
            Unit(2) => {
                pause("calls");
                drop(fabric.request(peers[1], PANICS, &[])?.wait());
            }
            _ => lock.acquire()?.release()?,
        }
        world.barrier()?;
        lock.acquire()?.release()?;
        Ok(world.barrier()?)
    };
    let name = "lock::panics::a_handler_while_the_home_is_asked";
    let units = units(4).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "away");
        cluster.wait_point(Who::Unit(1), "ready");
        cluster.wait_point(Who::Unit(2), "calls");
        cluster.release(Who::Unit(1));
        cluster.wait_asleep(Who::Unit(1));
        cluster.release(Who::Unit(2));
        cluster.wait_point(Who::Unit(1), "late");
        cluster.release(Who::Unit(0));
    });
}

/// Handlers panic one after the other while unit 1 gives the lock back: while it waits for what it
/// has put, and while the lock is given back because of the first panic. The process goes on, and
/// unit 3, behind it, gets the lock.
#[test]
fn a_handler_behind_a_handler() {
    let body = |fabric: &Fabric, peers: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let words = world.allocate::<u64>(2)?;
        let lock = lock_of_the_first(world)?;
        fabric.on(PANICS, |_, _| resume_unwind(Box::new("a handler")));
        let mut guard = (me == Unit(1)).then(|| lock.acquire()).transpose()?;
        world.barrier()?;
        match me {
            Unit(0) => {
                words.wait_until(0, Wanted::Equal(1))?;
                pause("away");
            }
            Unit(1) => {
                until_queued(&lock, 2)?;
                tell(&words, 0)?;
                pause("ready");
                words.put_implicit(0, 1, &[5])?;
                let release = || guard.take().map(Guard::release);
                let ended = catch_unwind(AssertUnwindSafe(release));
                check!(ended.is_err(), "{ended:?}");
                point("late");
            }
            Unit(2) => {
                pause("calls");
                let requests = [(); 2].map(|()| fabric.request(peers[1], PANICS, &[]));
                pause("called");
                for request in requests {
                    drop(request?.wait());
                }
            }
            _ => lock.acquire()?.release()?,
        }
        world.barrier()?;
        lock.acquire()?.release()?;
        Ok(world.barrier()?)
    };
    let name = "lock::panics::a_handler_behind_a_handler";
    let units = units(4).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "away");
        cluster.wait_point(Who::Unit(1), "ready");
        cluster.wait_point(Who::Unit(2), "calls");
        cluster.release(Who::Unit(2));
        cluster.wait_point(Who::Unit(2), "called");
        cluster.release(Who::Unit(1));
        cluster.wait_point(Who::Unit(1), "late");
        cluster.release(Who::Unit(2));
        cluster.release(Who::Unit(0));
    });
}

/// Unit 1 is in the queue between two others when a panic ends its call and all of its global
/// memory, but not its process: who is behind it gets the lock.
#[test]
fn a_panic_that_leaves_global_memory() {
    const GONE: u64 = 5;
    const HAS_IT: u64 = 6;
    let left = |fabric: &Fabric| -> Outcome {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let lock = lock_of_the_first(world)?;
        world.barrier()?;
        let patient = fabric.deadline();
        fabric.set_deadline(std::time::Duration::from_millis(50));
        let late = lock.acquire().map(Guard::release);
        check!(late.is_err(), "{late:?}");
        fabric.set_deadline(patient);
        point("late");
        until_queued(&lock, 3)?;
        resume_unwind(Box::new("a caller"))
    };
    let body = move |fabric: &Fabric, peers: &[PeerId]| {
        if fabric.me() == peers[1] {
            let ended = catch_unwind(AssertUnwindSafe(|| left(fabric)));
            check!(ended.is_err(), "{ended:?}");
            fabric.send(peers[0], GONE, &[])?;
            fabric.recv(Match::from(peers[2], HAS_IT), &mut [])?;
            return Ok(());
        }
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let lock = lock_of_the_first(world)?;
        let guard = (me == Unit(0)).then(|| lock.acquire()).transpose()?;
        world.barrier()?;
        if let Some(guard) = guard {
            fabric.recv(Match::from(peers[1], GONE), &mut [])?;
            return Ok(guard.release()?);
        }
        pause("behind");
        lock.acquire()?.release()?;
        Ok(fabric.send(peers[1], HAS_IT, &[])?)
    };
    let name = "lock::panics::a_panic_that_leaves_global_memory";
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(2), "behind");
        cluster.wait_point(Who::Unit(1), "late");
        cluster.release(Who::Unit(2));
    });
}
