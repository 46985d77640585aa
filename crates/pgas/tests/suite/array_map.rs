//! The distributed hash map, against the library's.

use samite_fabric::{Error as Below, Fabric, PeerId};
use samite_pgas::array::{ArrayError, Map};
use samite_pgas::{Error, Pgas};
use samite_testkit::{Failed, MESSAGES_ONLY, Outcome, Who, everywhere, maps_all, pause, units};
use std::collections::HashMap;
use std::time::Duration;

fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 29
}

/// Entries of all units, gathered by reading every key.
fn local_entries(map: &Map<u64, [u64; 3]>) -> Outcome<HashMap<u64, [u64; 3]>> {
    let mut all = HashMap::new();
    let mut twice = 0;
    map.for_each_local(|key, value| twice += usize::from(all.insert(key, value).is_some()))?;
    assert_eq!(twice, 0, "a key is there twice");
    Ok(all)
}

everywhere!(one_unit_against_a_model, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let me = u64::from(pgas.me().0);
    // Few slots, so that chains are long and slots are used again.
    let map = Map::<u64, [u64; 3]>::new(pgas.world(), 40)?;
    let mut model = HashMap::new();
    for step in 0..600 {
        let dice = random(step * 2 + me);
        // Keys of one unit are not those of another.
        let key = dice % 25 * 2 + me;
        let value = [dice, step, me];
        match dice >> 32 & 3 {
            0 => assert_eq!(map.remove(&key)?, model.remove(&key)),
            1 => {
                let new =
                    map.update(key, |old| old.map_or(value, |[a, b, c]| [a ^ b, b + 1, c]))?;
                let old = model.get(&key).copied();
                let expected = old.map_or(value, |[a, b, c]: [u64; 3]| [a ^ b, b + 1, c]);
                assert_eq!(new, expected);
                model.insert(key, new);
            }
            2 => assert_eq!(map.insert(key, value)?, model.insert(key, value)),
            _ => assert_eq!(map.get(&key)?, model.get(&key).copied()),
        }
    }
    for key in (0..50).filter(|key| key % 2 == me) {
        assert_eq!(map.get(&key)?, model.get(&key).copied());
    }
    let mut counts = [0; 2];
    pgas.world()
        .all_gather(&[model.len() as u64][..], &mut counts[..])?;
    assert_eq!(map.total_len()?, counts[0] + counts[1]);
    local_entries(&map)?;
    Ok(map.free()?)
});

fn histogram(pgas: &Pgas, samples: u64, keys: u64, slots: u64) -> Outcome {
    let map = Map::<u64, u64>::new(pgas.world(), slots)?;
    let (me, size) = (u64::from(pgas.me().0), u64::from(pgas.units()));
    for sample in 0..samples {
        map.update(random(sample * size + me) % keys, |count| {
            count.unwrap_or(0) + 1
        })?;
    }
    pgas.world().barrier()?;
    let mut model = HashMap::new();
    for sample in 0..samples * size {
        *model.entry(random(sample) % keys).or_insert(0) += 1;
    }
    for (key, count) in &model {
        assert_eq!(map.get(key)?, Some(*count), "key {key}");
    }
    let mut own = HashMap::new();
    map.for_each_local(|key, count| {
        assert_eq!(own.insert(key, count), None, "a key is there twice");
    })?;
    for (key, count) in &own {
        assert_eq!(model.get(key), Some(count));
        assert_eq!(map.owner(key), pgas.me().0);
    }
    assert_eq!(map.local_len()?, own.len() as u64);
    assert_eq!(map.total_len()?, model.len() as u64);
    Ok(map.free()?)
}

everywhere!(all_units_count_into_the_same_keys, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    // Many updates of few keys, then few of many, in tables that are nearly full.
    histogram(pgas, 150, 8, 9)?;
    histogram(pgas, 100, 1000, 140)
});

#[test]
fn a_long_fight_for_few_keys() {
    units(4).run("array_map::a_long_fight_for_few_keys", |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        histogram(pgas, 20_000, 3, 4)?;
        histogram(pgas, 20_000, 3000, 1200)
    });
}

everywhere!(adding_and_removing_leaves_no_double, 4, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let me = u64::from(pgas.me().0);
    // All units add and remove the same few keys in slots that hardly suffice: chains overlap.
    let map = Map::<u64, [u64; 3]>::new(pgas.world(), 12)?;
    for step in 0..150 {
        let dice = random(4 * step + me);
        let key = dice % 12;
        if dice & 1 << 40 == 0 {
            map.insert(key, [key, step, key ^ step])?;
        } else if let Some([a, b, c]) = map.remove(&key)? {
            assert_eq!((a, c), (key, a ^ b), "a value is whole");
        }
        if let Some([a, b, c]) = map.get(&(dice >> 20 & 7))? {
            assert_eq!((a, c), (dice >> 20 & 7, a ^ b), "a value is whole");
        }
    }
    pgas.world().barrier()?;
    let own = local_entries(&map)?;
    for (key, value) in own {
        assert_eq!(map.get(&key)?, Some(value));
    }
    pgas.world().barrier()?;
    // Nobody is left in the way.
    for key in 0..12 {
        map.remove(&key)?;
    }
    assert_eq!(map.total_len()?, 0);
    Ok(map.free()?)
});

everywhere!(
    the_same_keys_added_at_once_are_there_once,
    4,
    |fabric, _| {
        let pgas = &Pgas::new(fabric)?;
        let (me, size) = (u64::from(pgas.me().0), u64::from(pgas.units()));
        let map = Map::<u64, u64>::new(pgas.world(), 12)?;
        for round in 0..20 {
            // In the same order, so that all are at the same key most of the time.
            let keys = || (0..24).map(|key| random(round) % 1000 * 100 + key);
            let mut old = Vec::new();
            for key in keys() {
                old.extend(map.insert(key, me)?);
            }
            assert_eq!(map.total_len()?, 24);
            // Each insertion but the first of a key found another one's value.
            let mut counts = vec![0; size as usize];
            pgas.world()
                .all_gather(&[old.len() as u64][..], &mut counts[..])?;
            assert_eq!(counts.iter().sum::<u64>(), 24 * (size - 1));
            for key in keys().filter(|key| key % size == me) {
                assert!(map.remove(&key)?.is_some());
            }
            assert_eq!(map.total_len()?, 0);
        }
        Ok(map.free()?)
    }
);

everywhere!(what_is_read_is_whole, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let map = Map::<u64, [u64; 512]>::new(pgas.world(), 1)?;
    // Longer where a step takes less.
    let steps = if maps_all(fabric) { 30_000 } else { 50 };
    if pgas.me().0 == 0 {
        for step in 1..=steps {
            map.insert(0, [step; 512])?;
        }
    } else {
        let mut last = 0;
        while last < steps {
            if let Some(value) = map.get(&0)? {
                assert_eq!(value, [value[0]; 512], "half of two values");
                assert!(value[0] >= last, "an older value after a newer one");
                last = value[0];
            }
        }
    }
    Ok(map.free()?)
});

everywhere!(a_full_map_says_so, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let map = Map::<u32, u8>::new(pgas.world(), 5)?;
    if pgas.me().0 == 0 {
        let mut added = Vec::new();
        let mut refused = 0;
        for key in 0..40 {
            match map.insert(key, key as u8) {
                Ok(old) => {
                    assert_eq!(old, None);
                    added.push(key);
                }
                Err(error) => {
                    let unit = pgas.world().unit(map.owner(&key))?;
                    let unit = unit.into();
                    assert_eq!(error, Error::Array(ArrayError::MapFull { unit, slots: 5 }));
                    refused += 1;
                }
            }
        }
        assert_eq!((added.len(), refused), (10, 30));
        for key in &added {
            assert_eq!(
                map.insert(*key, 1)?,
                Some(*key as u8),
                "what is there can change"
            );
        }
        // A slot that is given back is used again.
        map.remove(&added[0])?;
        let owner = map.owner(&added[0]);
        let another = (100..).find(|key| map.owner(key) == owner).unwrap_or(100);
        assert_eq!(map.insert(another, 9)?, None);
        assert_eq!(map.get(&another)?, Some(9));
        assert_eq!(map.get(&added[0])?, None);
    }
    assert_eq!(map.total_len()?, 10);
    map.free()?;
    let none = Map::<u32, u8>::new(pgas.world(), 0)?;
    assert_eq!(none.get(&1)?, None);
    assert!(matches!(
        none.insert(1, 1),
        Err(Error::Array(ArrayError::MapFull { .. }))
    ));
    Ok(none.free()?)
});

#[test]
fn a_holder_that_dies_ends_in_a_timeout() {
    let name = "array_map::a_holder_that_dies_ends_in_a_timeout";
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = &Pgas::new(fabric)?;
        let map = Map::<u64, u64>::new(pgas.world(), 8)?;
        let mut keys = (0..).filter(|key| map.owner(key) == 1);
        let (held, other) = (keys.next().unwrap(), keys.next().unwrap());
        map.update(held, |old| old.unwrap_or(0))?;
        pgas.world().barrier()?;
        if pgas.me().0 == 0 {
            map.update(held, |_| {
                pause("holds");
                1
            })?;
            return Err(Failed::new("it was not killed"));
        }
        pause("waits");
        fabric.set_deadline(Duration::from_millis(100));
        let timeout = |error| matches!(error, Err(Error::Fabric(Below::Timeout { .. })));
        assert!(timeout(map.get(&held)));
        assert!(timeout(map.insert(held, 2)));
        fabric.set_deadline(Duration::from_secs(30));
        map.insert(other, 3)?;
        assert_eq!(
            map.get(&other)?,
            Some(3),
            "the rest of the map is as before"
        );
        Ok(())
    };
    units(2).orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "holds");
        cluster.wait_point(Who::Unit(1), "waits");
        cluster.kill(Who::Unit(0));
        cluster.wait_gone(Who::Unit(0));
        cluster.release(Who::Unit(1));
    });
}

/// An owner that is away while an entry is put: the caller has an error, and nobody finds the slot
/// busy afterwards.
#[test]
fn a_put_that_is_late_leaves_no_slot_busy() {
    let name = "array_map::a_put_that_is_late_leaves_no_slot_busy";
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let map = Map::<u64, [u64; 3]>::new(world, 8)?;
        // A value of several messages.
        let long = Map::<u64, [[u64; 256]; 64]>::new(world, 2)?;
        let key = (0..).find(|key| map.owner(key) == 1).unwrap_or(0);
        let long_key = (0..).find(|key| long.owner(key) == 1).unwrap_or(0);
        let (patient, turns) = (fabric.deadline(), world.allocate::<u64>(1)?);
        // The owner goes away when the slot is busy.
        let late = |turn: u64| {
            let error = turns.fetch_add(1, 0, 1).err();
            assert_eq!(error, None, "turn {turn}");
            pause("holds");
            fabric.set_deadline(Duration::from_millis(50));
        };
        let timed_out = |error: Option<Error>| {
            let is_late = matches!(error, Some(Error::Fabric(Below::Timeout { .. })));
            assert!(is_late, "{error:?}");
            fabric.set_deadline(patient);
            pause("late");
        };
        if pgas.me().0 == 0 {
            long.insert(long_key, [[1; 256]; 64])?;
        }
        let words = world.allocate::<u64>(8192)?;
        for turn in 0_u64..4 {
            if pgas.me().0 == 1 {
                while turns.load(1, 0)? <= turn {
                    fabric.progress();
                }
                pause("away");
            } else if turn < 2 {
                // A key that is not there, then one that is.
                let value = |_| {
                    late(turn);
                    [turn; 3]
                };
                timed_out(map.update(key, value).err());
            } else if turn == 3 {
                // Neither the value nor the end of the change can be sent.
                let value = |_| {
                    late(turn);
                    while words.put_nb(1, 0, &[9; 8192]).is_ok() {}
                    [3; 3]
                };
                timed_out(map.update(key, value).err());
            } else {
                let value = |_| {
                    late(turn);
                    [[2; 256]; 64]
                };
                timed_out(long.update(long_key, value).err());
            }
            world.barrier()?;
            let there = map.get(&key)?;
            match turn {
                0 => {
                    assert_eq!(there, None);
                    world.barrier()?;
                    if pgas.me().0 == 0 {
                        assert_eq!(map.insert(key, [7; 3])?, None);
                    }
                }
                1 => assert_eq!(there, Some([1; 3]), "it arrived, late"),
                3 => assert_eq!(there, Some([1; 3]), "it has not left"),
                _ => assert_eq!(long.get(&long_key)?, None, "it may be half there"),
            }
            world.barrier()?;
        }
        if pgas.me().0 == 0 {
            assert_eq!(long.insert(long_key, [[3; 256]; 64])?, None);
        }
        assert_eq!(map.total_len()?, 1);
        Ok(map.free()?)
    };
    units(2)
        .mask(MESSAGES_ONLY)
        .orchestrate(name, body, |cluster| {
            for _ in 0..4 {
                cluster.wait_point(Who::Unit(0), "holds");
                cluster.wait_point(Who::Unit(1), "away");
                cluster.release(Who::Unit(0));
                cluster.wait_point(Who::Unit(0), "late");
                cluster.release(Who::Unit(1));
                cluster.release(Who::Unit(0));
            }
        });
}

everywhere!(keys_and_values_of_any_size, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let me = pgas.me().0;
    let words = Map::<[u8; 13], [u16; 64]>::new(pgas.world(), 8)?;
    let key = |unit: u32| [unit as u8; 13];
    words.insert(key(me), [me as u16; 64])?;
    pgas.world().barrier()?;
    assert_eq!(words.get(&key(1 - me))?, Some([1 - me as u16; 64]));
    words.free()?;
    // A set, and a map with one possible key.
    let set = Map::<u128, ()>::new(pgas.world(), 8)?;
    set.insert(u128::MAX - u128::from(me), ())?;
    assert_eq!(set.total_len()?, 2);
    set.free()?;
    let one = Map::<(), u64>::new(pgas.world(), 1)?;
    one.update((), |old| old.unwrap_or(0) + 1)?;
    pgas.world().barrier()?;
    assert_eq!(one.get(&())?, Some(2));
    Ok(one.free()?)
});

// What panics while it makes a value leaves the entry as it was, and nobody waits for it.
everywhere!(a_panic_inside_an_update, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let map = Map::<u64, [u64; 3]>::new(world, 4)?;
    let there = (0..).find(|key| map.owner(key) == 1).unwrap_or(0);
    // In the same chain.
    let other = (there + 1..).find(|key| map.owner(key) == 1).unwrap_or(0);
    let panics = |key: u64| {
        let update = || map.update(key, |_| std::panic::resume_unwind(Box::new("no value")));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(update)).is_err()
    };
    for turn in 0_u32..3 {
        if world.rank() == turn % 2 {
            // An entry that is not there yet, then one that is.
            assert!(panics(there));
        }
        world.barrier()?;
        let expected = turn.checked_sub(1).map(|last| [u64::from(last); 3]);
        assert_eq!(map.get(&there)?, expected, "turn {turn}");
        world.barrier()?;
        if world.rank() == 0 {
            assert_eq!(map.insert(there, [u64::from(turn); 3])?, expected);
            assert_eq!(map.insert(other, [7; 3])?, (turn > 0).then_some([7; 3]));
        }
        world.barrier()?;
    }
    assert_eq!(map.total_len()?, 2);
    Ok(map.free()?)
});
