//! One job, many threads: each of them puts, gets, updates, sends, waits, locks and calls
//! collectives of a team of its own.

use rayon::prelude::*;
use samite_fabric::{Fabric, Match, PeerId};
use samite_pgas::array::{Array, Map, Pattern};
use samite_pgas::{
    Error, Fetch, GlobalGuard, GlobalLock, GlobalPtr, Group, Guard, Local, Lock, Op, Part, Pending,
    Pgas, ReadOnly, Segment, Signal, SignalOp, Sum, Team, Unit, Unturned, Update, Updates, Wanted,
};
use samite_testkit::{
    Cluster, Failed, MESSAGES_ONLY, Outcome, TWO_NODES, Who, check, full_name, pause, point, same,
    units,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const THREADS: u64 = 8;

#[test]
fn everything_goes_to_any_thread() {
    fn goes<T: Send + Sync>() {}
    goes::<(Pgas, Team, Group, GlobalPtr<u64>, Error)>();
    goes::<(Segment<u64>, Segment<u64, Local>, Segment<u64, ReadOnly>)>();
    goes::<(
        Part<'_, u64>,
        Fetch<u64>,
        Updates<'_, u64>,
        Unturned<Segment<u64>>,
    )>();
    goes::<(Lock, Guard<'_>, GlobalLock<u64>, GlobalGuard<'_, u64>)>();
    goes::<(Array<f64, 2>, Array<f64, 2, Local>, Array<f64, 2, ReadOnly>)>();
    goes::<(Map<u64, u64>, Pattern<2>, Pending<Vec<u64>>, Pending<()>)>();
}

/// Runs `thread` in so many threads at once; the first failure.
fn in_threads(count: u64, thread: impl Fn(u64) -> Outcome + Sync) -> Outcome {
    let thread = &thread;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| scope.spawn(move || thread(index)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Outcome>| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(Failed::new("a thread panicked")))
        };
        let ended: Vec<_> = threads.into_iter().map(join).collect();
        ended.into_iter().collect()
    })
}

/// The threads of a pool share a segment, by rank and by pointers.
fn pool(fabric: &Fabric, _: &[PeerId], rounds: u64) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let words = world.allocate::<u64>(rounds + 1)?;
    let (me, there) = (u64::from(world.rank()), 1 - world.rank());
    let counter = words.pointer(there, rounds)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build();
    let pool = pool.map_err(|error| Failed::new(error.to_string()))?;
    let each = |index: u64| -> Outcome {
        let value = me << 32 | index;
        words.put_value(there, index, value)?;
        same!(words.get_value(there, index)?, value);
        let pointer = words.pointer(there, index)?;
        pgas.put(pointer, &[value + 1])?;
        let mut found = [0];
        pgas.get(pointer, &mut found)?;
        same!(found[0], value + 1);
        same!(words.swap(there, index, value + 2)?, value + 1);
        words.fetch_add(there, rounds, 1)?;
        pgas.fetch_op(counter, Update::Sum, 1)?;
        Ok(())
    };
    pool.install(|| (0..rounds).into_par_iter().try_for_each(each))?;
    world.barrier()?;
    let mut mine = vec![0; rounds as usize + 1];
    words.read_local(0, &mut mine)?;
    same!(mine.pop(), Some(2 * rounds));
    let other = u64::from(there) << 32;
    check!(
        (0..)
            .zip(mine)
            .all(|(index, word)| word == other + index + 2)
    );
    Ok(words.free()?)
}

#[test]
fn a_pool_shares_a_segment() {
    let name = full_name(module_path!(), "a_pool_shares_a_segment");
    units(2).run(&name, |fabric, members| pool(fabric, members, 50_000));
}

#[test]
fn a_pool_shares_a_segment_by_messages() {
    let name = full_name(module_path!(), "a_pool_shares_a_segment_by_messages");
    units(2)
        .mask(MESSAGES_ONLY)
        .run(&name, |fabric, members| pool(fabric, members, 300));
}

/// Each thread of one unit talks to the thread with its number of the other, in all ways that there
/// are.
fn threads_talk(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let (me, there) = (world.rank(), 1 - world.rank());
    let other = members[there as usize];
    let data = world.allocate::<u64>(THREADS)?;
    let flags = world.allocate::<u64>(THREADS)?;
    let of_all = Mutex::new(world.lock()?);
    let shared = world.allocate::<u64>(1)?;
    let mut own = Vec::new();
    for _ in 0..THREADS {
        own.push((world.duplicate()?, world.global_lock(0u64)?));
    }
    let rounds = 40;
    in_threads(THREADS, |thread| {
        let (team, value) = &own[thread as usize];
        for round in 1..=rounds {
            let sent = thread << 32 | round;
            fabric.send(other, thread, &sent.to_le_bytes())?;
            let mut got = [0; 8];
            fabric.recv(Match::from(other, thread), &mut got)?;
            same!(u64::from_le_bytes(got), sent);

            let (op, value_of_signal) = (SignalOp::Set, round);
            let signal = Signal {
                index: thread,
                op,
                value: value_of_signal,
            };
            data.put_signal(there, thread, &[sent], &flags, signal)?;
            flags.wait_until_from(thread, Wanted::AtLeast(round), there)?;
            check!(
                data.get_value(me, thread)? >= sent,
                "a signal came before its data"
            );

            // The threads with this number have a lock, and all threads of a unit have one
            // together.
            *value.acquire()? += 1;
            {
                let lock = of_all.lock().unwrap_or_else(|poison| poison.into_inner());
                let held = lock.acquire()?;
                let before = shared.get_value(0, 0)?;
                shared.put_value(0, 0, before + 1)?;
                held.release()?;
            }

            let mut sum = [0];
            team.all_reduce(&[sent], &mut sum, Sum)?;
            same!(sum[0], 2 * sent);
            if round % 8 == 0 {
                let part = team.allocate::<u64>(round)?;
                part.put_value(there, 0, sent)?;
                team.barrier()?;
                same!(part.get_value(me, 0)?, sent);
                let gathered = team.iall_gather(vec![sent])?.wait()?;
                same!(gathered, [sent; 2]);
                part.free()?;
            }
        }
        team.barrier()?;
        same!(*value.acquire()?, 2 * rounds);
        Ok(())
    })?;
    world.barrier()?;
    same!(shared.get_value(0, 0)?, 2 * THREADS * rounds);
    Ok(world.barrier()?)
}

#[test]
fn eight_threads_talk_to_eight() {
    let name = full_name(module_path!(), "eight_threads_talk_to_eight");
    units(2).run(&name, threads_talk);
}

#[test]
fn eight_threads_talk_by_messages() {
    let name = full_name(module_path!(), "eight_threads_talk_by_messages");
    units(2).mask(MESSAGES_ONLY).run(&name, threads_talk);
}

/// A flush of a unit that makes no progress does not keep another thread from flushing another
/// unit.
#[test]
fn flushes_of_two_threads_do_not_wait_for_each_other() {
    let name = "threads::flushes_of_two_threads_do_not_wait_for_each_other";
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let words = world.allocate::<u64>(2)?;
        match world.rank() {
            0 => {
                pause("begins");
                let is_flushing = AtomicBool::new(false);
                in_threads(2, |thread| {
                    if thread == 0 {
                        words.put_implicit(1, 0, &[1])?;
                        is_flushing.store(true, Ordering::Relaxed);
                        return Ok(pgas.flush(Unit(1))?);
                    }
                    while !is_flushing.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    for round in 1..=1000 {
                        words.put_implicit(2, 1, &[round])?;
                        pgas.flush(Unit(2))?;
                    }
                    point("flushed");
                    Ok(())
                })?;
            }
            1 => drop(pause("stands still")),
            _ => {}
        }
        world.barrier()?;
        let own = words.get_value(world.rank(), u64::from(world.rank().saturating_sub(1)))?;
        same!(own, [0, 1, 1000][world.rank() as usize]);
        Ok(world.barrier()?)
    };
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        stand_still(cluster, Who::Unit(0), "flushed")
    });
}

/// Unit 1 stands still from before the beginning of unit 0 until somebody has come to a point.
fn stand_still(cluster: &mut Cluster, who: Who, until: &str) {
    cluster.wait_point(Who::Unit(1), "stands still");
    cluster.wait_point(Who::Unit(0), "begins");
    cluster.release(Who::Unit(0));
    cluster.wait_point(who, until);
    cluster.release(Who::Unit(1));
}

/// A signal to a unit waits for what was put to that unit, and not for what goes to another one.
#[test]
fn a_signal_waits_for_its_unit_alone() {
    let name = "threads::a_signal_waits_for_its_unit_alone";
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let words = world.allocate::<u64>(1)?;
        match world.rank() {
            0 => {
                pause("begins");
                words.put_implicit(1, 0, &[7])?;
                let (index, op, value) = (0, SignalOp::Set, 7);
                words.signal(2, Signal { index, op, value })?;
            }
            1 => drop(pause("stands still")),
            _ => {
                words.wait_until(0, Wanted::Equal(7))?;
                point("signalled");
            }
        }
        world.barrier()?;
        pgas.flush_all()?;
        Ok(world.barrier()?)
    };
    // Units 0 and 2 share memory.
    let units = units(3).mask(TWO_NODES);
    units.orchestrate(name, body, |cluster| {
        stand_still(cluster, Who::Unit(2), "signalled")
    });
}

/// Of two threads that call a collective of a team at the same time one is told so, and nobody else
/// notices.
#[test]
fn a_team_has_one_caller() {
    let name = full_name(module_path!(), "a_team_has_one_caller");
    units(2).run(&name, |fabric, members| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        for _ in 0..20 {
            if world.rank() == 1 {
                fabric.await_signal(members[0], 1)?;
                world.barrier()?;
                continue;
            }
            let refused = AtomicU64::new(0);
            in_threads(2, |_| {
                match world.barrier() {
                    Err(Error::TeamInUse) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                        // Until now the other thread waited for unit 1.
                        fabric.signal(members[1], 1)?;
                    }
                    done => done?,
                }
                Ok(())
            })?;
            same!(refused.into_inner(), 1);
        }
        // An operator is a part of the call that it belongs to.
        let inner = Mutex::new(None);
        let team = world.clone();
        let operator = Op::new(|left: u64, right: u64| {
            *inner.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(team.barrier());
            left + right
        });
        let mut sum = [0];
        world.all_reduce(&[2], &mut sum, operator)?;
        same!(sum, [4]);
        same!(
            inner.into_inner().ok().flatten(),
            Some(Err(Error::TeamInUse))
        );
        Ok(world.barrier()?)
    });
}

/// A lock is the unit's: another thread of it is told that it is held, and may give it back.
#[test]
fn a_guard_goes_to_another_thread() {
    let name = full_name(module_path!(), "a_guard_goes_to_another_thread");
    units(2).run(&name, |fabric, _| {
        let pgas = Pgas::new(fabric)?;
        let lock = pgas.world().lock()?;
        for _ in 0..50 {
            let guard = lock.acquire()?;
            in_threads(1, |_| {
                same!(lock.acquire().err(), Some(Error::AlreadyHeld));
                Ok(())
            })?;
            std::thread::scope(|scope| scope.spawn(|| guard.release()).join())
                .map_err(|_| Failed::new("a thread panicked"))??;
        }
        Ok(pgas.world().barrier()?)
    });
}

/// A thread that sleeps does not keep memory that a pointer has led it to: another one lets go of
/// it.
#[test]
fn threads_let_go_for_each_other() {
    let name = full_name(module_path!(), "threads_let_go_for_each_other");
    units(2).run(&name, |fabric, _| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let owner = world.rank() == 1;
        let own = match owner {
            true => pgas.register(vec![7u64; 1000])?.to_bits(),
            false => pgas.allocate::<u64>(1)?.to_bits(),
        };
        let heap = pgas.allocate::<u64>(1 << 20)?;
        let mut pointers = [0; 2];
        world.all_gather(&[own][..], &mut pointers[..])?;
        let mut heaps = [0; 2];
        world.all_gather(&[heap.to_bits()][..], &mut heaps[..])?;
        let there = |all: [u128; 2]| GlobalPtr::<u64>::from_bits(all[1 - world.rank() as usize]);
        let (followed, wake) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| -> Outcome {
            let sleeper = scope.spawn(|| -> Outcome {
                let mut found = [0];
                let got = pgas.get(there(pointers), &mut found);
                let more = pgas.get(there(heaps), &mut found);
                followed.wait();
                wake.wait();
                got?;
                Ok(more?)
            });
            followed.wait();
            let rest = || -> Outcome {
                world.barrier()?;
                if owner {
                    let back = pgas.unregister(GlobalPtr::<u64>::from_bits(own), 1000)?;
                    same!(back, vec![7; 1000]);
                }
                Ok(world.barrier()?)
            };
            let done = rest();
            wake.wait();
            sleeper
                .join()
                .map_err(|_| Failed::new("a thread panicked"))??;
            done
        })
    });
}
