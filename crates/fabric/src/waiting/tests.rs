//! Threads that wait beside each other. Nothing ends a park by time here ([`PARK`]): a wake-up that
//! is lost is a deadline that is over.

use super::*;
use crate::proto::rendezvous::push_eager;
use crate::{Config, Identity, Match};
use samite_mem::BellWords;
use samite_mem::ring::Body;
use samite_mem::sync::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

fn alone() -> Fabric {
    Fabric::alone(Identity::by_hand("waiting"), Config::default()).unwrap()
}

/// Waits until so many threads are parked, and the one that drives sleeps.
fn until_asleep(fabric: &Fabric, parked: usize) {
    loop {
        let core = fabric.0.core.lock();
        if core.waiters.is_asleep() && core.waiters.parked() == parked {
            return;
        }
        drop(core);
        std::thread::yield_now();
    }
}

/// One thread steps and goes away; the other one, parked beside it, is called to drive.
#[test]
fn a_thread_that_stepped_leaves_nobody_parked() {
    let fabric = &alone();
    for _ in 0..100 {
        let (start, ended) = (&Barrier::new(2), &Barrier::new(2));
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let mut turns = 0;
                let step = || {
                    turns += 1;
                    if turns == 2 {
                        start.wait(); // It has driven before the other one comes.
                    }
                    let others = fabric.0.core.lock().waiters.parked();
                    (others > 0 || turns > 100).then_some(())
                };
                fabric.wait_stepping("steps", &[], step, || false).unwrap();
                ended.wait();
            });
            threads.spawn(move || {
                start.wait();
                fabric.recv(Match::any(1), &mut [0]).unwrap();
            });
            ended.wait();
            fabric.send(fabric.me(), 1, &[1]).unwrap();
        });
    }
}

/// Threads whose messages come in another order than they have begun to wait.
#[test]
fn each_thread_gets_its_message() {
    let fabric = &alone();
    for round in 0..100 {
        std::thread::scope(|threads| {
            for tag in 0..4 {
                threads.spawn(move || fabric.recv(Match::any(tag), &mut [0]).unwrap());
            }
            for tag in 0..4 {
                let tag = (tag * 3 + round) % 4;
                fabric.send(fabric.me(), tag, &[1]).unwrap();
            }
        });
    }
}

/// A handler panics in a turn that has ended the receives of two parked threads.
#[test]
fn what_came_before_a_panic_is_told() {
    let fabric = &alone();
    fabric.on(1, |_, _| panic!("a handler"));
    std::thread::scope(|threads| {
        let waits = |tag| threads.spawn(move || fabric.recv(Match::any(tag), &mut [0]));
        let driver = waits(0);
        until_asleep(fabric, 0);
        let parked = [waits(1), waits(2)];
        until_asleep(fabric, 2);
        let mut guard = fabric.0.core.lock();
        let core = &mut *guard;
        let me = core.engine.me;
        // All in one turn, of this thread.
        for tag in [1, 2] {
            push_eager(&mut core.transport, me, tag, &Body::Slice(&[1]), 16);
        }
        core.engine.send_active(me, 1, b"", false);
        core.engine.flush(&mut core.transport);
        assert!(catch_unwind(AssertUnwindSafe(|| core.turn())).is_err());
        drop(guard);
        for thread in parked {
            thread.join().unwrap().unwrap();
        }
        fabric.send(me, 0, &[1]).unwrap();
        driver.join().unwrap().unwrap();
    });
}

/// A receive that finds its message here leaves the copy to the thread that drives, which is rung
/// for it.
#[test]
fn a_sleeping_driver_is_rung_for_what_is_left_to_it() {
    let fabric = &alone();
    let segment = fabric.allocate(1 << 20).unwrap();
    std::thread::scope(|threads| {
        let driver = threads.spawn(move || fabric.recv(Match::any(0), &mut [0]));
        let sent = fabric.isend_shared(fabric.me(), 1, segment.bytes().clone());
        while fabric.probe(Match::any(1)).is_none() {}
        until_asleep(fabric, 0);
        let got = fabric.irecv(Match::any(1), vec![1; 1 << 20]).unwrap();
        let core = fabric.0.core.lock();
        let bell = core.engine.node.layout.doorbell(core.engine.me.slot());
        // ORDERING: Relaxed: this thread has rung it.
        let is_rung = bell.0.asleep().load(Ordering::Relaxed) == 0;
        assert!(is_rung || !core.waiters.is_asleep() || !core.engine.is_busy());
        drop(core);
        assert_eq!(got.wait().unwrap().1.unwrap(), vec![0; 1 << 20]);
        sent.unwrap().wait().unwrap();
        fabric.send(fabric.me(), 0, &[1]).unwrap();
        driver.join().unwrap().unwrap();
    });
}
