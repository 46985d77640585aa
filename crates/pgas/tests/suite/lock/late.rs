//! Homes that do not answer in time, over messages, and homes whose words are nonsense.

use crate::lock::until_queued;
use samite_fabric::{Error as Below, Fabric, PeerId, SegmentKey};
use samite_pgas::{Error, Lock, Pgas, Segment, Signal, SignalOp, Team, Unit, Update, Wanted};
use samite_testkit::{Cluster, MESSAGES_ONLY, Outcome, Who, check, pause, point, same, units};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A lock that is at home at unit 0.
pub(super) fn lock_of_the_first(world: &Team) -> Outcome<Lock> {
    loop {
        let lock = world.lock()?;
        if lock.home() == 0 {
            return Ok(lock);
        }
    }
}

fn timed_out(done: Result<(), Error>) -> Outcome {
    let over = matches!(done, Err(Error::Fabric(Below::Timeout { .. })));
    check!(over, "{done:?}");
    Ok(())
}

/// Unit 1 does something that the home does not answer in time: unit 0 is away.
fn while_away(fabric: &Fabric, me: Unit, asks: impl FnOnce() -> Result<(), Error>) -> Outcome {
    match me {
        Unit(0) => drop(pause("away")),
        Unit(1) => {
            pause("ready");
            let patient = fabric.deadline();
            fabric.set_deadline(Duration::from_millis(50));
            timed_out(asks())?;
            fabric.set_deadline(patient);
            pause("late");
        }
        _ => {}
    }
    Ok(())
}

fn send_away(cluster: &mut Cluster) {
    cluster.wait_point(Who::Unit(0), "away");
    cluster.wait_point(Who::Unit(1), "ready");
    cluster.release(Who::Unit(1));
    cluster.wait_point(Who::Unit(1), "late");
    cluster.release(Who::Unit(0));
    cluster.release(Who::Unit(1));
}

/// The lock is asked for, and given back, while the home is away; then both are brought to their
/// ends.
fn goes_on(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me());
    let lock = lock_of_the_first(world)?;
    world.barrier()?;
    while_away(fabric, me, || lock.acquire().map(drop))?;
    let mut guard = None;
    if me == Unit(1) {
        guard = Some(lock.acquire()?);
        same!(lock.queue()?, [Unit(1)]);
    }
    world.barrier()?;
    while_away(fabric, me, || guard.map_or(Ok(()), |guard| guard.release()))?;
    if me == Unit(1) {
        lock.acquire()?.release()?;
    }
    world.barrier()?;
    if me == Unit(2) {
        lock.acquire()?.release()?;
    }
    Ok(())
}

/// The lock is asked for while the home is away, and dropped: nobody waits for unit 1.
fn drops(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me());
    let lock = lock_of_the_first(world)?;
    world.barrier()?;
    while_away(fabric, me, || lock.acquire().map(drop))?;
    if me == Unit(1) {
        drop(lock);
        world.barrier()?;
    } else {
        world.barrier()?;
        lock.acquire()?.release()?;
    }
    Ok(world.barrier()?)
}

#[test]
fn what_was_begun_is_brought_to_its_end() {
    let name = "lock::late::what_was_begun_is_brought_to_its_end";
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(name, goes_on, |cluster| {
        send_away(cluster);
        send_away(cluster);
    });
}

#[test]
fn a_lock_is_dropped_before_the_home_has_answered() {
    let name = "lock::late::a_lock_is_dropped_before_the_home_has_answered";
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(name, drops, send_away);
}

/// Puts to a unit that is away until it can be sent nothing more.
fn use_up_the_credit(words: &Segment<u64>, rank: u32) -> Result<(), Error> {
    let block = vec![7; 8192];
    loop {
        drop(words.put_nb(rank, 8, &block)?);
    }
}

/// The home is away, and nothing more can be sent to it: neither an acquisition is lost, nor a
/// release, nor that of a lock which is dropped.
#[test]
fn what_finds_no_credit_is_sent_later() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let words = world.allocate::<u64>(8200)?;
        let lock = lock_of_the_first(world)?;
        {
            let takes = || lock.acquire().map(drop);
            let all_take = || {
                takes()?;
                // Unit 1 does not take it again before the others have had it.
                world.barrier()
            };
            let held = || (me == Unit(1)).then(|| lock.acquire()).transpose();
            let away = |asks: &mut dyn FnMut() -> Result<(), Error>| {
                world.barrier()?;
                while_away(fabric, me, || {
                    let full = use_up_the_credit(&words, 0);
                    timed_out(full).expect("unit 0 is away");
                    asks()
                })?;
                Outcome::Ok(world.barrier()?)
            };
            away(&mut || takes())?;
            all_take()?;
            let mut guard = held()?;
            away(&mut || guard.take().map_or(Ok(()), |guard| guard.release()))?;
            all_take()?;
            let mut guard = held()?;
            away(&mut || guard.take().map_or(Ok(()), |guard| guard.release()))?;
        }
        let mut lock = Some(lock);
        world.barrier()?;
        while_away(fabric, me, || {
            let full = use_up_the_credit(&words, 0);
            drop(lock.take());
            full
        })?;
        world.barrier()?;
        lock.map_or(Ok(()), |lock| lock.acquire()?.release())?;
        Ok(world.barrier()?)
    };
    let name = "lock::late::what_finds_no_credit_is_sent_later";
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        (0..4).for_each(|_| send_away(cluster))
    });
}

fn signal(words: &Segment<u64>, rank: u32) -> Result<(), Error> {
    let op = SignalOp::Add;
    let signal = Signal {
        index: 0,
        op,
        value: 1,
    };
    words.signal(rank, signal)
}

/// A lock that is given back while its home is away, with and without credit, goes to unit 2, which
/// waits for it, and is free for the others though unit 1, who has it still, only goes to a
/// barrier.
#[test]
fn a_release_that_is_late_needs_no_other_call_of_the_lock() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let words = world.allocate::<u64>(8200)?;
        let lock = lock_of_the_first(world)?;
        for (turn, with_credit) in (1..).zip([true, false]) {
            let mut guard = (me == Unit(1)).then(|| lock.acquire()).transpose()?;
            world.barrier()?;
            match me {
                Unit(0) => drop(words.wait_until(0, Wanted::Equal(turn))?),
                Unit(1) => {
                    until_queued(&lock, 2)?;
                    signal(&words, 0)?;
                }
                _ => lock.acquire()?.release()?,
            }
            while_away(fabric, me, || {
                if !with_credit {
                    timed_out(use_up_the_credit(&words, 0)).expect("unit 0 is away");
                }
                guard.take().map_or(Ok(()), |guard| guard.release())
            })?;
            if me == Unit(0) {
                lock.acquire()?.release()?;
            }
            world.barrier()?;
            // The place that was given back is not used again.
            for unit in 0..world.size() {
                if world.rank() == unit {
                    lock.acquire()?.release()?;
                }
                world.barrier()?;
            }
            same!(lock.queue()?, []);
            world.barrier()?;
        }
        Ok(())
    };
    let name = "lock::late::a_release_that_is_late_needs_no_other_call_of_the_lock";
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        (0..2).for_each(|_| send_away(cluster))
    });
}

/// What unit 1 does in the next test.
const WAYS: usize = 10;

/// A release that found no credit is sent in whatever else unit 1 does with global memory.
#[test]
fn a_release_that_is_late_is_sent_by_accesses() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let words = world.allocate::<u64>(8200)?;
        let lock = lock_of_the_first(world)?;
        let other = loop {
            let lock = world.lock()?;
            if lock.home() == 2 {
                break lock;
            }
        };
        let mut value = [0];
        let mut ways: [&mut dyn FnMut() -> Result<(), Error>; WAYS] = [
            &mut || pgas.flush_all(),
            &mut || {
                pgas.flush_local();
                Ok(())
            },
            &mut || words.put(2, 1, &[1]),
            &mut || words.get(2, 1, &mut value),
            &mut || {
                words
                    .put_nb(2, 1, &[1])?
                    .wait()
                    .map(drop)
                    .map_err(Error::from)
            },
            &mut || words.get_nb(2, 1, 1)?.wait().map(drop),
            &mut || words.fetch_add(2, 1, 1).map(drop),
            &mut || words.compare_swap(2, 1, 0, 1).map(drop),
            &mut || words.accumulate(2, 1, &[1], Update::Sum),
            &mut || other.acquire()?.release(),
        ];
        for (turn, way) in (1..).zip(&mut ways) {
            let mut guard = (me == Unit(1)).then(|| lock.acquire()).transpose()?;
            world.barrier()?;
            while_away(fabric, me, || {
                timed_out(use_up_the_credit(&words, 0)).expect("unit 0 is away");
                guard.take().map_or(Ok(()), |guard| guard.release())
            })?;
            if me == Unit(1) {
                while words.get_value(1, 0)? < 2 * turn {
                    way()?;
                    fabric.progress();
                }
            } else {
                lock.acquire()?.release()?;
                signal(&words, 1)?;
            }
            world.barrier()?;
        }
        Ok(())
    };
    let name = "lock::late::a_release_that_is_late_is_sent_by_accesses";
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        (0..WAYS).for_each(|_| send_away(cluster))
    });
}

/// Whoever is next is stopped, and nothing more can be sent to it: it is woken when it goes on.
#[test]
fn a_wake_that_finds_no_credit_is_sent_later() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let words = world.allocate::<u64>(8200)?;
        let lock = lock_of_the_first(world)?;
        world.barrier()?;
        match pgas.me() {
            Unit(1) => {
                let guard = lock.acquire()?;
                signal(&words, 2)?;
                until_queued(&lock, 2)?;
                point("queued");
                words.wait_until(0, Wanted::Equal(1))?;
                let patient = fabric.deadline();
                fabric.set_deadline(Duration::from_millis(50));
                timed_out(use_up_the_credit(&words, 2))?;
                // It is free, and unit 2 does not hear of it; if that one has not said yet that it
                // waits, it need not.
                guard.release().or_else(|error| timed_out(Err(error)))?;
                fabric.set_deadline(patient);
                point("late");
                lock.acquire()?.release()?;
            }
            Unit(2) => {
                words.wait_until(0, Wanted::Equal(1))?;
                lock.acquire()?.release()?;
            }
            Unit(3) => {
                pause("is told");
                signal(&words, 1)?;
            }
            // The home answers.
            _ => {}
        }
        Ok(world.barrier()?)
    };
    let name = "lock::late::a_wake_that_finds_no_credit_is_sent_later";
    let units = units(4).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(1), "queued");
        cluster.wait_asleep(Who::Unit(2));
        cluster.stop(Who::Unit(2));
        cluster.wait_point(Who::Unit(3), "is told");
        cluster.release(Who::Unit(3));
        cluster.wait_point(Who::Unit(1), "late");
        cluster.go_on(Who::Unit(2));
    });
}

/// The lock is dropped while the home is away, and the home comes back after the deadline: whoever
/// was behind gets it, behind a unit that held it (1) and behind one that waited (2).
#[test]
fn whoever_drops_a_lock_leaves_the_queue_in_the_end() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let words = world.allocate::<u64>(1)?;
        let patient = fabric.deadline();
        for place in 0..2 {
            let lock = lock_of_the_first(world)?;
            world.barrier()?;
            let behind = place as usize + 1;
            match me {
                Unit(0) => {
                    words.wait_until(0, Wanted::AtLeast(place + 1))?;
                    pause("away");
                }
                Unit(1) => {
                    until_queued(&lock, place as usize)?;
                    let guard = match place {
                        0 => Some(lock.acquire()?),
                        _ => {
                            fabric.set_deadline(Duration::from_millis(50));
                            timed_out(lock.acquire().map(drop))?;
                            fabric.set_deadline(patient);
                            None
                        }
                    };
                    until_queued(&lock, behind + 1)?;
                    pause("in the queue");
                    signal(&words, 0)?;
                    pause("ready");
                    fabric.set_deadline(Duration::from_millis(50));
                    guard.map_or(Ok(()), |guard| timed_out(guard.release()))?;
                    drop(lock);
                    fabric.set_deadline(patient);
                    pause("late");
                    signal(&words, 2)?;
                }
                Unit(2) if place == 1 => {
                    let guard = lock.acquire()?;
                    until_queued(&lock, 3)?;
                    words.wait_until(0, Wanted::AtLeast(2))?;
                    guard.release()?;
                }
                Unit(3) => {
                    until_queued(&lock, behind)?;
                    lock.acquire()?.release()?;
                }
                _ => {}
            }
            world.barrier()?;
        }
        Ok(())
    };
    let name = "lock::late::whoever_drops_a_lock_leaves_the_queue_in_the_end";
    let units = units(4).mask(MESSAGES_ONLY);
    units.orchestrate(name, body, |cluster| {
        for _ in 0..2 {
            cluster.wait_point(Who::Unit(1), "in the queue");
            cluster.wait_asleep(Who::Unit(3));
            cluster.release(Who::Unit(1));
            send_away(cluster);
        }
    });
}

/// In the checking mode the home hears who holds the lock. A call that has waited for the lock, and
/// has it, and cannot tell a home that is away, gives it back: no later call goes on with a place
/// that is used up.
#[test]
fn a_place_that_was_used_is_not_used_again() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me());
        let lock = lock_of_the_first(world)?;
        let mut guard = (me == Unit(2)).then(|| lock.acquire()).transpose()?;
        world.barrier()?;
        if me == Unit(1) {
            let patient = fabric.deadline();
            fabric.set_deadline(Duration::from_millis(50));
            timed_out(lock.acquire().map(drop))?;
            fabric.set_deadline(patient);
            same!(lock.queue()?, [Unit(2), Unit(1)]);
        }
        world.barrier()?;
        guard.take().map_or(Ok(()), |guard| guard.release())?;
        world.barrier()?;
        // The words are mapped: it has the lock, and the home does not hear of it.
        while_away(fabric, me, || lock.acquire().map(drop))?;
        world.barrier()?;
        if me == Unit(3) {
            guard = Some(lock.acquire()?);
        }
        world.barrier()?;
        same!(lock.queue()?, [Unit(3)]);
        if me == Unit(1) {
            check!(lock.try_acquire()?.is_none(), "unit 3 holds it");
        }
        world.barrier()?;
        guard.take().map_or(Ok(()), |guard| guard.release())?;
        lock.acquire()?.release()?;
        world.barrier()?;
        same!(lock.queue()?, []);
        Ok(world.barrier()?)
    };
    let name = "lock::late::a_place_that_was_used_is_not_used_again";
    let units = units(4).config(|config| config.check = true);
    units.orchestrate(name, body, send_away);
}

/// A lock that is at home at unit 0, who is this peer, and the segments there that have come with
/// it. Collective.
fn lock_and_pages(
    fabric: &Fabric,
    world: &Team,
    first: PeerId,
) -> Outcome<(Lock, Vec<SegmentKey>)> {
    let segments = || {
        let all = (0..1024).filter_map(|number| fabric.look_up(first, number).transpose());
        all.collect::<Result<Vec<_>, _>>()
    };
    world.barrier()?;
    let before = segments()?;
    world.barrier()?;
    let lock = lock_of_the_first(world)?;
    let mut pages = segments()?;
    pages.retain(|key| !before.contains(key));
    check!(!pages.is_empty());
    Ok((lock, pages))
}

/// Every word of the lock becomes nonsense of another kind: errors, and no panic.
#[test]
fn words_that_are_nonsense() {
    let body = |fabric: &Fabric, peers: &[PeerId]| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let (lock, pages) = lock_and_pages(fabric, world, peers[0])?;
        for word in [
            u64::MAX,
            1 << 22,
            5000 << 1,
            5000 | 5000 << 1,
            7 << 22 | 9 << 1,
            1 << 21,
            3,
            // The first ticket of unit 1, which does not wait.
            1 << 22 | 2 << 1,
        ] {
            if pgas.me() == Unit(2) {
                for page in &pages {
                    let remote = fabric.attach(*page)?;
                    let bytes = remote.mapped().expect("it is mapped");
                    for at in (0..bytes.len() / 8 * 8).step_by(8) {
                        bytes.write(at, &word.to_le_bytes());
                    }
                }
            }
            world.barrier()?;
            if pgas.me() == Unit(1) {
                let patient = fabric.deadline();
                fabric.set_deadline(Duration::from_millis(20));
                drop(lock.queue());
                drop(lock.try_acquire());
                drop(lock.acquire());
                drop(lock.recover());
                fabric.set_deadline(patient);
            }
            world.barrier()?;
        }
        Ok(())
    };
    units(3).run("lock::late::words_that_are_nonsense", body);
}

/// Repairs a lock when it is dropped.
struct Repairs<'l>(&'l Lock);

impl Drop for Repairs<'_> {
    fn drop(&mut self) {
        let guard = self.0.recover().expect("it says who died");
        assert_eq!(guard.lost_holder(), Some(Unit(2)));
    }
}

/// A broken lock whose home does not say who died: the caller has an error, and not the lock, which
/// stays broken. So it does when the repair ends by a panic.
#[test]
fn who_gets_an_error_has_no_lock() {
    let body = |fabric: &Fabric, peers: &[PeerId]| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let (lock, pages) = lock_and_pages(fabric, world, peers[0])?;
        // Whoever it is that died, by every record: the words for waking of 64 locks, then lines of
        // three members.
        let breaks = |tail: Option<u64>, lost: u64| -> Outcome {
            for page in &pages {
                let remote = fabric.attach(*page)?;
                let bytes = remote.mapped().expect("it is mapped");
                for record in (512..bytes.len() / 256 * 256).step_by(256) {
                    if let Some(tail) = tail {
                        bytes.write(record, &tail.to_le_bytes());
                    }
                    bytes.write(record + 8, &lost.to_le_bytes());
                }
            }
            Ok(())
        };
        world.barrier()?;
        if pgas.me() == Unit(1) {
            breaks(Some(1), u64::MAX)?;
            for _ in 0..3 {
                check!(matches!(lock.recover(), Err(Error::NoSuchRank { .. })));
            }
            breaks(None, 3)?;
            let lost = Error::HolderLost {
                unit: Unit(2).into(),
            };
            same!(lock.acquire().err(), Some(lost.clone()));
            let repair = AssertUnwindSafe(|| {
                let _guard = lock.recover().expect("it says who died");
                panic!("in the middle of a repair");
            });
            let panicked: Result<(), _> = catch_unwind(repair);
            check!(panicked.is_err());
            same!(lock.acquire().err(), Some(lost));
            // A repair that is begun and ended while the thread unwinds is whole.
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _last = Repairs(&lock);
                panic!("somewhere else");
            }));
            check!(panicked.is_err());
            same!(lock.acquire().err(), None);
            breaks(Some(1), 3)?;
            same!(lock.recover()?.lost_holder(), Some(Unit(2)));
            same!(lock.recover()?.lost_holder(), None);
        }
        world.barrier()?;
        // It is as good as new for others too.
        lock.acquire()?.release()?;
        Ok(world.barrier()?)
    };
    units(3).run("lock::late::who_gets_an_error_has_no_lock", body);
}
