//! Threads that wait concurrently. No park ends by time here ([`PARK`]), so a lost wake-up shows as
//! an expired deadline.

use super::*;
use crate::node::ClaimWord;
use crate::ops::{Pull, Source, Status, Then, Work};
use crate::proto::rendezvous::push_eager;
use crate::{Config, Identity, Match};
use samite_mem::BellWords;
use samite_mem::lend::WriteBuf;
use samite_mem::ring::Body;
use samite_mem::sync::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::time::Instant;

fn alone() -> Fabric {
    Fabric::alone(Identity::by_hand("waiting"), Config::default()).unwrap()
}

/// Waits until so many threads are parked and the driver sleeps.
fn until_asleep(fabric: &Fabric, parked: usize) {
    let begin = Instant::now();
    while begin.elapsed() < fabric.deadline() {
        let core = fabric.0.core().unwrap();
        if core.waiters.is_asleep() && core.waiters.parked() == parked {
            return;
        }
        drop(core);
        std::thread::yield_now();
    }
    panic!("no thread sleeps beside {parked} parked ones");
}

/// A condition is evaluated with the engine locked, and may name the units of an error.
#[test]
fn a_condition_names_units() {
    let fabric = &alone();
    let late = || Error::timeout("a test", Whom::Peer(fabric.me()), Duration::ZERO);
    let mut looks = 0;
    let named = fabric.wait_until("a test", &[], || {
        looks += 1;
        (looks > 1).then(|| fabric.named(late()))
    });
    let sentence = named.unwrap().to_string();
    assert!(sentence.contains("waiting.0"), "{sentence}");
}

/// A check that returns true ends the waits of its threads, the driver and a parked one. The
/// receives that ended take no message.
#[test]
fn waits_are_interrupted() {
    static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
    let fabric = &alone();
    let me = fabric.me();
    std::thread::scope(|scope| {
        let wait = |tag| {
            let check = || IS_INTERRUPTED.load(Ordering::Relaxed);
            move || fabric.interruptible(check, || fabric.recv_vec(Match::any(tag)))
        };
        let waits = [1, 2].map(|tag| scope.spawn(wait(tag)));
        let other = scope.spawn(|| fabric.recv_vec(Match::any(3)));
        until_asleep(fabric, 2);
        IS_INTERRUPTED.store(true, Ordering::Relaxed);
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Err(Error::Interrupted));
        }
        for tag in [1, 2, 3] {
            fabric.send(me, tag, &[tag as u8]).unwrap();
        }
        assert_eq!(other.join().unwrap().unwrap().1, [3]);
        for tag in [1, 2] {
            assert_eq!(fabric.recv_vec(Match::any(tag)).unwrap().1, [tag as u8]);
        }
    });
}

/// A thread that waits for room for a note is parked while another one drives. A third thread, in
/// the server, takes a note.
#[test]
fn a_note_finds_the_room_that_a_server_makes() {
    let fabric = &alone();
    let me = crate::rpc::Life {
        peer: fabric.me(),
        incarnation: fabric.incarnation(),
    };
    let service = crate::rpc::ServiceId::COORDINATOR;
    let server = fabric.serve(service, 1);
    let note = || fabric.note(service, me, fabric.deadline(), b"note");
    note().unwrap();
    std::thread::scope(|threads| {
        let drives = threads.spawn(|| fabric.recv(Match::any(1), &mut []));
        until_asleep(fabric, 0);
        let waits = threads.spawn(note);
        until_asleep(fabric, 1);
        assert!(server.take().is_some());
        waits.join().unwrap().unwrap();
        fabric.send(fabric.me(), 1, b"").unwrap();
        drives.join().unwrap().unwrap();
    });
    assert!(server.take().is_some());
}

/// One thread steps and leaves; the other one, parked beside it, is woken to drive.
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
                        start.wait(); // It drove before the other one came.
                    }
                    let others = fabric.0.core().unwrap().waiters.parked();
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

/// Threads whose messages arrive in another order than their waits began.
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

/// A handler panics in a turn that has ended the receives of two parked threads: one of a short
/// message, and one of a message that this process copies after taking what arrived.
#[test]
fn what_came_before_a_panic_is_told() {
    what_came_is_told(|core| {
        core.engine.send_active(core.engine.me, 1, b"", false);
        core.engine.flush(&mut core.transport);
    });
    what_came_is_told(|core| {
        let segment = core.engine.node.heap.block_soon(4096).unwrap();
        let pull = Pull {
            buf: WriteBuf::owned(vec![0; 8]),
            status: Status {
                from: core.engine.me,
                incarnation: 0,
                tag: 0,
                len: 8,
            },
            send: 0,
            source: Source::Mapped(segment.bytes().slice(64, 8)),
            claim: ClaimWord(segment.bytes().slice(0, 8)),
            claim_at: 0,
            piece: 8,
            then: Then::Handle {
                handler: 1,
                request: 0,
            },
            helped: false,
            ending: None,
        };
        let ops = &mut core.engine.ops;
        let key = ops.add(None, "an active message", Work::Pull(Box::new(pull)));
        ops.detach(key);
        core.engine.active.push_back(key);
    });
}

fn what_came_is_told(panics: impl FnOnce(&mut Core)) {
    let fabric = &alone();
    fabric.on(1, |_, _| panic!("a handler"));
    std::thread::scope(|threads| {
        let waits = |tag| threads.spawn(move || fabric.recv(Match::any(tag), &mut [0]));
        let driver = waits(0);
        until_asleep(fabric, 0);
        let parked = [waits(1), waits(2)];
        until_asleep(fabric, 2);
        let mut guard = fabric.0.core().unwrap();
        let core = &mut *guard;
        let me = core.engine.me;
        // All in one turn of this thread.
        for tag in [1, 2] {
            push_eager(&mut core.transport, me, tag, &Body::Slice(&[1]), 16);
        }
        panics(core);
        assert!(catch_unwind(AssertUnwindSafe(|| core.turn())).is_err());
        assert_eq!(core.waiters.parked(), 0);
        drop(guard);
        for thread in parked {
            thread.join().unwrap().unwrap();
        }
        fabric.send(me, 0, &[1]).unwrap();
        driver.join().unwrap().unwrap();
    });
}

/// A receive whose message has already arrived leaves the copy to the driving thread, whose
/// doorbell it rings.
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
        let core = fabric.0.core().unwrap();
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

/// The deadline of a receive expires while another thread's turn brings its message: either this
/// receive gets it, or the next one.
#[test]
fn a_deadline_loses_no_message() {
    const MESSAGES: u64 = 20_000;
    let (fabric, are_sent) = (&alone(), &AtomicBool::new(false));
    std::thread::scope(|threads| {
        let receives = threads.spawn(move || {
            let soon = Duration::from_nanos(1);
            let mut got = 0;
            loop {
                // ORDERING: Acquire pairs with the Release below: all messages have left.
                let is_last = are_sent.load(Ordering::Acquire);
                match fabric.within(soon, || fabric.recv_vec(Match::any(1))) {
                    Ok(_) => got += 1,
                    Err(_) if is_last => return got,
                    Err(error) => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
                }
            }
        });
        for message in 0..MESSAGES {
            let core = &mut *fabric.0.core().unwrap();
            push_eager(&mut core.transport, fabric.me(), 1, &Body::Slice(&[1]), 16);
            core.turn();
            // At a different point of that thread's turns each time.
            (0..message * 7919 % 1009).for_each(|_| std::hint::spin_loop());
        }
        // ORDERING: Release pairs with the Acquire above.
        are_sent.store(true, Ordering::Release);
        assert_eq!(receives.join().unwrap(), MESSAGES);
    });
}

/// A condition that holds only once the deadline is over, as if another thread's turn had brought
/// what it waits for while the waiting thread let others have the lock.
struct InTheLastMoment(Duration);

impl Condition for InTheLastMoment {
    type Value = ();
    fn look(&mut self, _: &mut Guard<'_, Core>, waiting: &mut Waiting<'_>) -> Option<()> {
        (waiting.waited() >= self.0).then_some(())
    }
}

#[test]
fn a_wait_looks_once_more_when_its_deadline_is_over() {
    let soon = Duration::from_nanos(1);
    let wait = Wait::of_engine(soon, "the last moment", Whom::Any, None);
    let ended = alone().wait_for(&wait, InTheLastMoment(soon));
    assert_eq!(ended, Ok(()));
}

/// A thread waits with a buffer in its stack frame while another one forks. In the fork a new
/// thread has that stack, and the wait's operation ends without touching it.
#[test]
fn a_fork_leaves_the_stacks_of_other_threads_alone() {
    const MARK: u8 = 0xa5;
    let fabric = &alone();
    std::thread::scope(|threads| {
        let receives = threads.spawn(move || fabric.recv(Match::any(1), &mut [0; 8]));
        until_asleep(fabric, 0);
        let child = match fork::fork().unwrap() {
            fork::Fork::Child => {
                let both = Arc::new(Barrier::new(2));
                let other = both.clone();
                let thread = std::thread::spawn(move || {
                    let stack = std::hint::black_box([MARK; 64 << 10]);
                    other.wait();
                    other.wait();
                    stack.iter().all(|byte| *byte == MARK)
                });
                both.wait();
                fabric.progress();
                both.wait();
                let is_untouched = thread.join().unwrap_or(false);
                std::process::exit(i32::from(!is_untouched));
            }
            fork::Fork::Parent(child) => rustix::process::Pid::from_raw(child),
        };
        let options = rustix::process::WaitOptions::empty();
        let ended = rustix::process::waitpid(child, options).unwrap();
        let status = ended.and_then(|(_, status)| status.exit_status());
        assert_eq!(status, Some(0));
        fabric.send(fabric.me(), 1, &[1; 8]).unwrap();
        receives.join().unwrap().unwrap();
    });
}

/// A layer that wants to look again after each turn, and finds nothing.
struct Patient;

impl crate::upcall::Upcall for Patient {
    fn arrived(&self, _: crate::rpc::Life, _: u64, _: &[u8], _: &Body<'_>) {}

    fn work(&self, fabric: &Fabric) -> bool {
        fabric.want_work_later();
        false
    }
}

/// A layer above that waits for something keeps no thread awake: the driver sleeps, and others are
/// parked beside it.
#[test]
fn a_layer_that_works_later_lets_threads_sleep() {
    let fabric = &alone();
    fabric.set_upcall(Some(Arc::new(Patient)));
    std::thread::scope(|threads| {
        let waits = [1, 2].map(|tag| {
            threads.spawn(move || fabric.recv_vec(Match::any(tag)).unwrap());
            tag
        });
        until_asleep(fabric, 1);
        for tag in waits {
            fabric.send(fabric.me(), tag, b"").unwrap();
        }
    });
    fabric.set_upcall(None);
}
