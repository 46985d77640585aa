//! The election of the driver: each thread gets what it waits for, though no sleep has a limit.
//!
//! Loom reports a thread that is parked, or asleep, when all others have ended.

use crate::model;
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;
use samite_mem::{Waiter, Waiters};

/// What the threads share: the loops below are those of the fabric's `waiting`.
struct Fabric {
    core: Mutex<Core>,
    ring: Mutex<Ring>,
    bell: Condvar,
}

#[derive(Default)]
struct Core {
    waiters: Waiters<usize>,
    ended: [bool; 3],
    /// An operation that a turn can end, without anything that arrives.
    left: Option<usize>,
}

/// The operations whose ends have arrived, and whether the doorbell was rung without that.
#[derive(Default)]
struct Ring {
    frames: Vec<usize>,
    rung: bool,
}

#[derive(Clone, Copy)]
enum Wait {
    /// Looks with the lock.
    Plain,
    /// Looks without it, as `wait_stepping`.
    Stepping,
}

impl Fabric {
    fn new() -> Arc<Fabric> {
        Arc::new(Fabric {
            core: Mutex::new(Core::default()),
            ring: Mutex::new(Ring::default()),
            bell: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap()
    }

    fn arrive(&self, op: usize) {
        self.ring.lock().unwrap().frames.push(op);
        self.bell.notify_one();
    }

    fn ring(&self) {
        self.ring.lock().unwrap().rung = true;
        self.bell.notify_one();
    }

    fn sleep(&self) {
        let mut ring = self.ring.lock().unwrap();
        while ring.frames.is_empty() && !ring.rung {
            ring = self.bell.wait(ring).unwrap();
        }
        ring.rung = false;
    }

    fn turn(&self, core: &mut Core) {
        let mut ended = std::mem::take(&mut self.ring.lock().unwrap().frames);
        ended.extend(core.left.take());
        if ended.is_empty() {
            return;
        }
        ended.into_iter().for_each(|op| core.ended[op] = true);
        let Core { waiters, ended, .. } = core;
        if waiters.tell(|op| ended[*op]) {
            self.ring();
        }
    }

    /// Leaves an operation to be ended by a turn of somebody else.
    fn leave(&self, op: usize) {
        let mut core = self.lock();
        core.left = Some(op);
        if core.waiters.is_asleep() {
            self.ring();
        }
    }

    fn wait(&self, op: usize, how: Wait) {
        let mut waiter = Waiter::default();
        let mut core = self.lock();
        loop {
            self.turn(&mut core);
            core.waiters.look(&mut waiter);
            let found = match how {
                Wait::Plain => core.ended[op],
                Wait::Stepping => {
                    core.waiters.step_out(&mut waiter);
                    drop(core);
                    let found = self.lock().ended[op];
                    core = self.lock();
                    found
                }
            };
            if found {
                break;
            }
            if core.waiters.drive(&mut waiter) {
                // It lets others have the lock.
                drop(core);
                core = self.lock();
                // With something to do it would sleep for a moment only.
                if !core.waiters.has_news(&waiter) && core.left.is_none() {
                    core.waiters.sleep();
                    drop(core);
                    self.sleep();
                    core = self.lock();
                    core.waiters.wake();
                }
            } else if !core.waiters.has_news(&waiter) {
                let id = core.waiters.park(op);
                drop(core);
                thread::park();
                core = self.lock();
                core.waiters.unpark(id);
            }
        }
        drop(core);
        if waiter.has_rested() {
            self.lock().waiters.end(&mut waiter);
        }
    }
}

/// Threads that wait for their operations, whose ends arrive in this order while `beside` runs.
fn all_get_theirs(
    preemptions: usize,
    waits: &'static [Wait],
    order: &'static [usize],
    beside: fn(&Fabric),
) {
    model(preemptions, move || {
        let fabric = Fabric::new();
        let threads: Vec<_> = (waits.iter().enumerate())
            .map(|(op, how)| {
                let fabric = fabric.clone();
                thread::spawn(move || fabric.wait(op, *how))
            })
            .collect();
        order.iter().for_each(|op| fabric.arrive(*op));
        beside(&fabric);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(fabric.lock().waiters.is_empty());
    });
}

#[test]
fn one_drives_and_one_is_parked() {
    all_get_theirs(3, &[Wait::Plain, Wait::Plain], &[0, 1], |_| {});
}

/// The driver ends: the one that it calls may find at once what it waits for, and then calls the
/// next one.
#[test]
fn one_that_is_called_and_need_not_drive_calls_the_next() {
    all_get_theirs(2, &[Wait::Plain; 3], &[0, 2, 1], |_| {});
}

/// One that looks without the lock ends beside one that is parked.
#[test]
fn one_that_steps_hands_over() {
    all_get_theirs(3, &[Wait::Stepping, Wait::Plain], &[0, 1], |_| {});
    all_get_theirs(2, &[Wait::Stepping, Wait::Stepping], &[1, 0], |_| {});
}

/// A thread that does not wait takes what a driver waits for, just before that one goes to sleep.
#[test]
fn what_another_thread_takes_is_not_slept_through() {
    for how in [&[Wait::Plain], &[Wait::Stepping]] {
        all_get_theirs(4, how, &[0], |fabric| fabric.turn(&mut fabric.lock()));
    }
}

/// A thread that does not wait leaves the driver something to do.
#[test]
fn what_is_left_to_a_sleeping_driver_is_done() {
    all_get_theirs(4, &[Wait::Plain], &[], |fabric| fabric.leave(0));
    all_get_theirs(2, &[Wait::Plain, Wait::Plain], &[1], |fabric| {
        fabric.leave(0)
    });
}
