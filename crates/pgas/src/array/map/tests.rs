use super::*;
use crate::Pgas;
use crate::tampered::{Lies, delay_an_exchange};
use samite_fabric::{Config, Error as Below, Fabric, Identity};
use samite_testkit::{Outcome, check, same, simulate};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The entry of the key comes and is busy after the search for it, and before the search under the held chain: which is
/// an error of that one, and no chain that stays held.
#[test]
fn a_search_that_fails_leaves_no_chain_held() {
    let fabric = Fabric::alone(Identity::by_hand("map"), Config::default()).expect("a fabric");
    fabric.set_deadline(Duration::from_millis(20));
    let pgas = Pgas::new(&fabric).expect("a job");
    let map = Map::<u64, u64>::new(pgas.world(), 4).expect("a map");
    map.insert(7, 1).expect("there is room");
    let search = map.search(&7);
    let updated = map.update(7, |_| {
        let added = map.add(&search, || 3, &mut Patience::default());
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

/// Two keys of unit 1 whose search begins at the same slot, and whose tags are different.
fn neighbours(map: &Map<'_, u64, u64>) -> [u64; 2] {
    let mut keys = (0..).filter(|key| map.owner(key) == 1);
    let first = keys.next().unwrap_or(0);
    let of = |key: &u64| (map.search(key).home, map.search(key).tag);
    let (home, tag) = of(&first);
    let is_other = |key: &u64| of(key).0 == home && of(key).1 != tag;
    [first, keys.find(is_other).unwrap_or(0)]
}

/// An exchange of unit 0 reaches the owner when its caller has been told that it is too late: nobody finds the slot, or the
/// chain, taken afterwards.
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
        // An entry that is not there, then the same once more, as it is; one behind it in its chain; a removal.
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

/// The owner says at each look that the word of a slot has changed: whoever asks has an error in the end.
#[test]
fn words_that_change_all_the_time() {
    let name = "array::map::tests::words_that_change_all_the_time";
    const VERSION: u64 = 1 << 35;
    let lies = &Lies::new();
    // At each look; only between the search and the change; between the looks for a free slot.
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
