use super::*;
use crate::Pgas;
use crate::tampered::{
    ALMOST_ALL, Lies, Losing, delay_an_addition, delay_an_exchange, simulate_checked, starve,
    starving,
};
use crate::unfinished::Finish;
use samite_fabric::testing::tamper;
use samite_fabric::{Config, Error as Below, Fabric, Identity, PeerId};
use samite_testkit::{Outcome, check, same, simulate};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// After the search for a key, and before the search with the chain held, the entry appears and is
/// busy. The second search fails, and no chain stays held.
#[test]
fn a_search_that_fails_leaves_no_chain_held() {
    let fabric = Fabric::alone(Identity::by_hand("map"), Config::default()).expect("a fabric");
    fabric.set_deadline(Duration::from_millis(20));
    let pgas = Pgas::new(&fabric).expect("a job");
    let map = Map::<u64, u64>::new(pgas.world(), 4).expect("a map");
    map.insert(7, 1).expect("there is room");
    let search = map.search(&7);
    let updated = map.update(7, |_| {
        let added = map.add(&search, || 3, &mut Attempts::default());
        assert!(
            matches!(added, Err(Error::Fabric(Below::Timeout { .. }))),
            "{added:?}"
        );
        2
    });
    assert_eq!(updated, Ok(2));
    let home = map.state(0, search.home).expect("it is there");
    assert!(!home.is_held());
    for key in 8..11 {
        assert_eq!(map.insert(key, key), Ok(None));
    }
    assert_eq!(map.get(&7), Ok(Some(2)));
}

fn timed_out<T: std::fmt::Debug>(done: &Result<T>) -> Outcome {
    let over = matches!(done, Err(Error::Fabric(Below::Timeout { .. })));
    check!(over, "{done:?}");
    Ok(())
}

/// Returns two keys of unit 1 whose searches begin at the same slot and whose tags differ.
fn neighbours(map: &Map<u64, u64>) -> [u64; 2] {
    let mut keys = (0..).filter(|key| map.owner(key) == 1);
    let first = keys.next().unwrap_or(0);
    let of = |key: &u64| (map.search(key).home, map.search(key).tag);
    let (home, tag) = of(&first);
    let is_other = |key: &u64| of(key).0 == home && of(key).1 != tag;
    [first, keys.find(is_other).unwrap_or(0)]
}

/// An exchange of unit 0 reaches the owner after its call has timed out: afterwards neither the
/// slot nor the chain is taken.
#[test]
fn an_exchange_that_is_late_takes_nothing() {
    let name = "array::map::tests::an_exchange_that_is_late_takes_nothing";
    let armed = &Arc::new(AtomicU64::new(0));
    simulate(name, 2, 0..8, |fabric, _| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let map = Map::<u64, u64>::new(world, 8)?;
        let [first, second] = neighbours(&map);
        if world.rank() == 0 {
            delay_an_exchange(fabric, armed);
        }
        // A key that is absent, the same key again, a second key in its chain, a removal.
        for turn in 0..4 {
            let late = || match turn {
                0 => map.insert(first, 1),
                1 => map.insert(first, 2),
                2 => map.insert(second, 3),
                _ => map.remove(&first),
            };
            if world.rank() == 0 {
                let patient = fabric.deadline();
                fabric.set_deadline(Duration::from_millis(50));
                armed.store(1, Relaxed);
                timed_out(&late())?;
                same!(armed.load(Relaxed), 0);
                fabric.set_deadline(patient);
            }
            world.barrier()?;
            if world.rank() == 1 {
                let before = (turn > 0).then_some(7);
                same!(map.get(&first)?, before);
                same!(map.get(&second)?, None);
                same!(map.insert(first, 7)?, before);
                if turn == 2 {
                    same!(map.insert(second, 8)?, None);
                    same!(map.remove(&second)?, Some(8));
                }
            }
            world.barrier()?;
        }
        Ok(map.free()?)
    });
}

/// A handler panics while the exchange of unit 0 is on its way: afterwards the slot is not taken.
#[test]
fn a_panic_behind_an_exchange_takes_nothing() {
    let name = "array::map::tests::a_panic_behind_an_exchange_takes_nothing";
    let armed = &Arc::new(AtomicU64::new(0));
    simulate(name, 2, 0..8, |fabric, peers| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let map = Map::<u64, u64>::new(world, 8)?;
        let [key, _] = neighbours(&map);
        if world.rank() == 0 {
            fabric.on(PANICS, |_, _| resume_unwind(Box::new("a handler")));
            delay_an_exchange(fabric, armed);
            armed.store(1, Relaxed);
        }
        world.barrier()?;
        if world.rank() == 0 {
            let ended = catch_unwind(AssertUnwindSafe(|| map.insert(key, 1)));
            check!(ended.is_err(), "{ended:?}");
        } else {
            disturb(fabric, peers[0], armed, 0)?;
        }
        world.barrier()?;
        if world.rank() == 1 {
            same!(map.insert(key, 7)?, None);
        }
        world.barrier()?;
        Ok(map.free()?)
    });
}

/// The id of a handler of unit 0, for requests of unit 1.
const PANICS: u16 = 7;

/// Run by unit 1: as soon as `state` is `wanted`, sends unit 0 a request whose handler panics.
fn disturb(fabric: &Fabric, whom: PeerId, state: &AtomicU64, wanted: u64) -> Outcome {
    while state.load(Relaxed) != wanted {
        fabric.progress();
    }
    drop(fabric.request(whom, PANICS, &[])?.wait());
    Ok(())
}

/// A handler panics while unit 0 waits for the answer to giving a slot back: the slot is given back
/// once.
#[test]
fn a_panic_behind_the_end_of_a_change_changes_nothing() {
    let name = "array::map::tests::a_panic_behind_the_end_of_a_change_changes_nothing";
    let armed = &Arc::new(AtomicU64::new(0));
    simulate(name, 2, 0..8, |fabric, peers| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let map = Map::<u64, u64>::new(world, 8)?;
        let [first, second] = neighbours(&map);
        if world.rank() == 0 {
            fabric.on(PANICS, |_, _| resume_unwind(Box::new("a handler")));
            delay_an_addition(fabric, armed);
        }
        // A new key, the same key again, a second key in its chain, which is held meanwhile.
        for (turn, key) in (1..).zip([first, first, second]) {
            if world.rank() == 0 {
                armed.store(1, Relaxed);
            }
            world.barrier()?;
            if world.rank() == 0 {
                let ended = catch_unwind(AssertUnwindSafe(|| map.insert(key, turn)));
                check!(ended.is_err(), "{ended:?}");
            } else {
                disturb(fabric, peers[0], armed, 0)?;
            }
            world.barrier()?;
            if world.rank() == 1 {
                same!(map.get(&key)?, Some(turn));
                same!(map.insert(key, 7)?, Some(turn));
            }
            world.barrier()?;
        }
        if world.rank() == 1 {
            same!(map.remove(&second)?, Some(7));
            same!(map.insert(second, 8)?, None);
        }
        world.barrier()?;
        Ok(map.free()?)
    });
}

/// The checking mode gets no answer, after the exchange that takes a slot and before the slot is
/// given back. The wait ends at its deadline or by a panic: the slot is not left busy, and is given
/// back once.
#[test]
fn a_question_without_an_answer_leaves_no_slot_busy() {
    let lost = &Arc::new(AtomicU64::new(0));
    simulate_checked(2, |fabric, peers| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let map = Map::<u64, u64>::new(world, 8)?;
        let [key, _] = neighbours(&map);
        if world.rank() == 0 {
            fabric.on(PANICS, |_, _| resume_unwind(Box::new("a handler")));
            let losing = Losing {
                what: lost.clone(),
                has_exchanged: false,
            };
            tamper(fabric, Box::new(losing));
        }
        let mut before = None;
        for (what, panics) in [(1, false), (2, false), (1, true), (2, true)] {
            if world.rank() == 0 {
                lost.store(what, Relaxed);
            }
            world.barrier()?;
            let value = 10 * what + u64::from(panics);
            match world.rank() {
                0 if panics => {
                    let ended = catch_unwind(AssertUnwindSafe(|| map.insert(key, value)));
                    check!(ended.is_err(), "{ended:?}");
                }
                0 => {
                    let patient = fabric.deadline();
                    fabric.set_deadline(Duration::from_millis(50));
                    timed_out(&map.insert(key, value))?;
                    fabric.set_deadline(patient);
                }
                _ if panics => disturb(fabric, peers[0], lost, 0)?,
                _ => {}
            }
            world.barrier()?;
            if world.rank() == 1 {
                // Without an answer before the slot is given back, the error is returned after the
                // change.
                let there = if what == 2 { Some(value) } else { before };
                same!(map.insert(key, 7)?, there);
            }
            before = Some(7);
            world.barrier()?;
        }
        Ok(map.free()?)
    });
}

/// A handler panics between two frames of a value: no unit reads a mixture of the new value and the
/// old one.
#[test]
fn a_panic_in_the_middle_of_a_value_leaves_none() {
    type Value = [u64; 1024];
    let name = "array::map::tests::a_panic_in_the_middle_of_a_value_leaves_none";
    let state = &Arc::new(AtomicU64::new(starving::IDLE));
    simulate(name, 3, 0..8, |fabric, peers| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let map = Map::<u64, Value>::new(world, 8)?;
        let words = world.allocate::<u64>(1)?;
        let key = (0..).find(|key| map.owner(key) == 1).unwrap_or(0);
        if world.rank() == 0 {
            state.store(starving::IDLE, Relaxed);
            fabric.on(PANICS, |_, _| resume_unwind(Box::new("a handler")));
            map.insert(key, [1; 1024])?;
            starve(fabric, state);
        }
        world.barrier()?;
        match world.rank() {
            0 => {
                state.store(starving::KEEPS, Relaxed);
                for _ in 0..ALMOST_ALL {
                    words.put_implicit(1, 0, &[1])?;
                }
                state.store(starving::SENDS_ONE, Relaxed);
                let ended = catch_unwind(AssertUnwindSafe(|| map.insert(key, [2; 1024])));
                check!(ended.is_err());
                words.put(2, 0, &[1])?;
            }
            1 => disturb(fabric, peers[0], state, starving::STARVES)?,
            _ => {}
        }
        world.barrier()?;
        if world.rank() > 0 {
            same!(map.get(&key)?.map(|value| (value[0], value[1023])), None);
        }
        world.barrier()?;
        if world.rank() == 1 {
            check!(map.insert(key, [3; 1024])?.is_none());
        }
        world.barrier()?;
        same!(
            map.get(&key)?.map(|value| (value[0], value[1023])),
            Some((3, 3))
        );
        world.barrier()?;
        Ok(map.free()?)
    });
}

/// Gives back one slot after another, each when a unit has waited for it.
#[derive(Debug)]
struct GivesBack {
    map: Arc<Map<u64, u64>>,
    slots: Vec<u64>,
    waited: u32,
}

impl Finish for GivesBack {
    fn go_on(&mut self) -> bool {
        self.waited += 1;
        if self.waited.is_multiple_of(40)
            && let Some(slot) = self.slots.pop()
        {
            let given = self.map.give_back(0, slot, EMPTY_OUT);
            assert_eq!(given, Ok(()));
        }
        self.slots.is_empty()
    }
}

/// Counts how often this unit resumes what it has left unfinished.
#[derive(Debug)]
struct Counts(Arc<AtomicU32>);

impl Finish for Counts {
    fn go_on(&mut self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// A unit resumes its unfinished work before it takes a slot by messages, and while it waits for
/// the answer.
#[test]
fn taking_a_slot_goes_on_with_what_was_left() {
    let name = "array::map::tests::taking_a_slot_goes_on_with_what_was_left";
    simulate(name, 2, 0..2, |fabric, _| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let map = Map::<u64, u64>::new(world, 8)?;
        let [key, _] = neighbours(&map);
        if world.rank() == 0 {
            map.insert(key, 1)?;
            let count = Arc::new(AtomicU32::new(0));
            pgas.job.unfinished.add(Counts(count.clone()));
            // The search does not take a slot.
            same!(map.get(&key)?, Some(1));
            same!(count.load(Ordering::Relaxed), 0);
            same!(map.remove(&key)?, Some(1));
            check!(
                count.load(Ordering::Relaxed) >= 2,
                "{}",
                count.load(Ordering::Relaxed)
            );
        }
        Ok(world.barrier()?)
    });
}

/// Iterating over all slots waits for each of them separately, not for all together.
#[test]
fn every_slot_is_waited_for() {
    let fabric = Fabric::alone(Identity::by_hand("map"), Config::default()).expect("a fabric");
    let pgas = Pgas::new(&fabric).expect("a job");
    let map = Arc::new(Map::<u64, u64>::new(pgas.world(), 4).expect("a map"));
    for slot in 0..4 {
        let state = map.state(0, slot).expect("it is there");
        let taken = map.take((0, slot), state, state.taken(1), EMPTY_OUT);
        let taken = taken.expect("the slot is there").map(std::mem::forget);
        assert_eq!(taken, Some(()));
    }
    let gives_back = GivesBack {
        map: map.clone(),
        slots: vec![3, 2, 1, 0],
        waited: 0,
    };
    pgas.job.unfinished.add(gives_back);
    fabric.set_deadline(Duration::ZERO);
    assert_eq!(map.local_len(), Ok(0));
}

/// The owner reports at each read that the word of a slot has changed: the caller gets an error in
/// the end.
#[test]
fn words_that_change_all_the_time() {
    let name = "array::map::tests::words_that_change_all_the_time";
    const VERSION: u64 = 1 << 35;
    let lies = &Lies::new();
    // At each read; only between the search and the change; between the reads for a free slot.
    for case in 0..3 {
        simulate(name, 2, 0..1, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let map = Map::<u64, u64>::new(world, 4)?;
            let [first, second] = neighbours(&map);
            if world.rank() == 1 {
                map.insert(first, 1)?;
                let mut there = 0;
                lies.tell(fabric, move |count, word| {
                    if count == 0 {
                        there = word;
                    }
                    match case {
                        0 => word.wrapping_add(count * VERSION),
                        1 if count % 3 == 2 => there.wrapping_add(VERSION),
                        1 => there,
                        _ if count < 8 => word,
                        _ => count * VERSION,
                    }
                });
            }
            world.barrier()?;
            if world.rank() == 0 {
                let patient = fabric.deadline();
                fabric.set_deadline(Duration::from_millis(20));
                lies.begin();
                let ended = match case {
                    0 => map.get(&first),
                    1 => map.insert(first, 2),
                    _ => map.insert(second, 2),
                };
                let told_all = lies.end();
                fabric.set_deadline(patient);
                timed_out(&ended)?;
                check!(!told_all);
            }
            Ok(world.barrier()?)
        });
    }
}
