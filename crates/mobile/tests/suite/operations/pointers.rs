//! Chases, lists and trees: where the next word is says the one before it.

use super::{SMALL, at_unit_0, content, fails, fill, is_bad_address, spread};
use crate::{runs, self_bounded_limits};
use samite_fabric::{Fabric, Mask};
use samite_mobile::operation::{END, Lists, Shards, Table, Tree, Way};
use samite_mobile::{Error, Function, Limits, Mobile, Result};
use samite_testkit::{Outcome, check, same, units};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

fn tables(fabric: &Fabric, _: u32) -> Outcome {
    at_unit_0(fabric, |shards| {
        let len = shards.len();
        let next = |address: u64| (address + 7919) % len;
        fill(shards, next)?;
        let table = Table::new(shards)?;
        for depth in [0, 1, 10, 300] {
            let start = content(depth) % len;
            let expected = (0..depth).fold(start, |at, _| next(at));
            for way in Way::ALL {
                same!(table.chase(way, depth, start)?, expected);
            }
            for _ in 0..13 {
                same!(table.chase_auto(depth, start)?, expected);
            }
            // Several at once, two of them from the same address on.
            let starts: Vec<u64> = [0, 1, 5, 1].iter().map(|by| (start + by) % len).collect();
            let end = |start: &u64| (0..depth).fold(*start, |at, _| next(at));
            let ends: Vec<u64> = starts.iter().map(end).collect();
            for way in Way::ALL {
                same!(table.chase_all(way, depth, &starts)?, ends);
            }
        }
        // So many steps at one unit that a call ends before.
        shards.put(9, &[9])?;
        for way in Way::ALL {
            same!(table.chase(way, 200_000, 9)?, 9);
        }
        shards.put(9, &[next(9)])?;
        // A call without hops says where to go on.
        let units = u64::from(fabric.identity().units);
        let (unit, depth) = (shards.units().end - 1, 10_000);
        let grant = u64::from(shards.words() <= SMALL);
        let head = [shards.words(), units << 32 | grant << 56, depth, len - 1];
        let payload: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        for hops in [0, 3] {
            let limits = Limits {
                hops,
                ..self_bounded_limits()
            };
            let call = (shards.mobile()).call_entry(unit, table.code(), 0, &payload, limits)?;
            let reply = call.wait()?;
            same!(reply.len(), 16);
            let address = u64::from_le_bytes(reply[..8].try_into()?);
            let left = u64::from_le_bytes(reply[8..].try_into()?);
            check!(left < depth, "{left}");
            same!(address, (left..depth).fold(len - 1, |at, _| next(at)));
        }
        // An address outside, at the beginning and on the way.
        shards.put(5, &[len])?;
        for way in Way::ALL {
            check!(is_bad_address(table.chase(way, 1, len)), "{way:?}");
            check!(is_bad_address(table.chase(way, 1, u64::MAX)), "{way:?}");
            check!(is_bad_address(table.chase(way, 0, len)), "{way:?}");
            check!(
                is_bad_address(table.chase_all(way, 0, &[0, len])),
                "{way:?}"
            );
        }
        check!(is_bad_address(table.chase_auto(0, len)));
        check!(is_bad_address(table.chase(Way::Gets, 2, 5)), "on the way");
        for way in [Way::Function, Way::Moved] {
            fails(table.chase(way, 2, 5), "an address outside of the shards")?;
        }
        Ok(())
    })
}

on_processes!(a_table_is_chased, runs(3, tables));

/// Chases of a depth go through words of this unit, which are read by loads, and then through those
/// of another one. If these are not mapped here, calls are chosen before long.
fn follows(name: &str, mask: Mask) {
    const DEPTH: u64 = 16;
    let is_mapped = mask == Mask::default();
    let ask = |shards: &Shards| {
        let words = shards.words();
        let next = |address: u64| address - address % words + (address % words + 7) % words;
        fill(shards, next)?;
        let table = Table::new(shards)?;
        let chase = |unit: u64, times: u64| -> Outcome {
            for at in 0..times {
                let start = unit * words + content(at) % words;
                let expected = (0..DEPTH).fold(start, |at, _| next(at));
                same!(table.chase_auto(DEPTH, start)?, expected);
            }
            Ok(())
        };
        // As many as it takes to try all ways for long, and to see what the others then cost.
        const MOST: u64 = 200_000;
        let by_gets = || table.best(DEPTH) == Some(Way::Gets);
        let follows = |unit: u64, should: bool| -> Outcome {
            let mut chases = 0;
            while chases < 50 || by_gets() != should {
                chase(unit, 50)?;
                chases += 50;
                check!(chases < MOST, "{:?} at unit {unit}", table.best(DEPTH));
            }
            Ok(())
        };
        chase(0, MOST / 4)?;
        follows(0, true)?;
        follows(1, is_mapped)
    };
    let body = |fabric: &Fabric, _: &[_]| at_unit_0(fabric, ask);
    units(2).mask(mask).run(name, body);
}

on_processes!(the_choice_follows_the_place_of_the_words, follows);

/// Chases that need several calls are in flight together: none waits for the end of another one.
fn continued_chases(fabric: &Fabric, unit: u32) -> Outcome {
    const DEPTH: u64 = 3;
    const CHASES: u64 = 4;
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    // A step for each call.
    let step = Function::new(move |context, payload| {
        let (words, _) = payload.as_chunks::<8>();
        let [depth, address] = [2, 3].map(|at| u64::from_le_bytes(words[at]));
        seen.lock().expect("nothing panics").push((depth, address));
        match depth {
            1 => context.reply(&address.to_le_bytes()),
            _ => context.reply([address, depth - 1].map(u64::to_le_bytes).as_flattened()),
        }
    });
    mobile.define("samite.chase", step);
    let (_segment, shards) = spread(&mobile, 0, SMALL)?;
    fabric.barrier(&members)?;
    if let Some(shards) = shards {
        let starts: Vec<u64> = (SMALL..SMALL + CHASES).collect();
        let ends = Table::new(&shards)?.chase_all(Way::Function, DEPTH, &starts)?;
        same!(ends, starts);
    }
    fabric.barrier(&members)?;
    if unit == 1 {
        let rounds = (1..=DEPTH).rev();
        let rounds = rounds.flat_map(|depth| (SMALL..SMALL + CHASES).map(move |at| (depth, at)));
        same!(
            *asked.lock().expect("nothing panics"),
            rounds.collect::<Vec<_>>()
        );
    }
    Ok(())
}

on_processes!(chases_go_on_together, runs(2, continued_chases));

fn lists(fabric: &Fabric, _: u32) -> Outcome {
    const BUCKETS: u64 = 16;
    at_unit_0(fabric, |shards| {
        let lists = Lists::new(shards)?;
        let mut random = fastrand::Rng::with_seed(2);
        // Heads are the first words of unit 1; nodes are anywhere behind that in all units.
        let head = |key: u64| shards.words() + key % BUCKETS;
        let mut firsts = vec![END; BUCKETS as usize];
        let mut places: Vec<u64> = (0..300)
            .map(|at| at % 3 * shards.words() + BUCKETS + at / 3 * Lists::NODE)
            .collect();
        random.shuffle(&mut places);
        let mut expected = BTreeMap::new();
        for address in places {
            let (key, value) = (random.u64(..1000), random.u64(..));
            let first = &mut firsts[(key % BUCKETS) as usize];
            shards.put(address, &[key, value, *first])?;
            *first = address;
            expected.insert(key, value);
        }
        shards.put(shards.words(), &firsts)?;
        for key in (0..1000).step_by(3).chain([u64::MAX]) {
            for way in Way::ALL {
                same!(
                    lists.find(way, head(key), key)?,
                    expected.get(&key).copied()
                );
            }
            same!(
                lists.find_auto(head(key), key)?,
                expected.get(&key).copied()
            );
        }
        let at = shards.len() - 7; // A head, and a node behind it.
        let both = |outcome: &dyn Fn(Way) -> Outcome| Way::ALL.into_iter().try_for_each(outcome);
        both(&|way| {
            check!(is_bad_address(lists.find(way, shards.len(), 1)), "{way:?}");
            Ok(())
        })?;
        // A list that leads outside of the shards, and one with a node that is not at one unit.
        for (to, text) in [
            (shards.len(), "an address outside"),
            (shards.len() - 1, "damaged"),
        ] {
            shards.put(at, &[at + 1, 0, 0, to])?;
            both(&|way| match way {
                Way::Gets => {
                    check!(is_bad_address(lists.find(way, at, 1)), "{to}");
                    Ok(())
                }
                _ => fails(lists.find(way, at, 1), text),
            })?;
        }
        if shards.words() > SMALL {
            return long_list(shards, &lists);
        }
        // A list that does not end.
        shards.put(at, &[at + 1, 0, 0, at + 1])?;
        both(&|way| match way {
            Way::Gets => {
                check!(matches!(lists.find(way, at, 1), Err(Error::Damaged(_))));
                Ok(())
            }
            _ => fails(lists.find(way, at, 1), "a damaged structure"),
        })
    })
}

/// A list at one unit that is so long that other calls get their turn.
fn long_list(shards: &Shards, lists: &Lists) -> Outcome {
    const NODES: u64 = 40_000;
    let begin = 2 * shards.words() + 1000;
    let node = |at: u64| [at, content(at), begin + 1 + (at + 1) * Lists::NODE];
    let words = [begin + 1].into_iter().chain((0..NODES).flat_map(node));
    let mut words: Vec<u64> = words.collect();
    *words.last_mut().expect("there are nodes") = END;
    shards.put(begin, &words)?;
    for way in [Way::Function, Way::Moved] {
        let last = NODES - 1;
        same!(lists.find(way, begin, last)?, Some(content(last)));
        same!(lists.find(way, begin, NODES)?, None);
    }
    Ok(())
}

on_processes!(lists_are_followed, runs(3, lists));

fn trees(fabric: &Fabric, _: u32) -> Outcome {
    at_unit_0(fabric, |shards| {
        let mut random = fastrand::Rng::with_seed(3);
        for (count, fan_out) in [(1, 2), (5, 2), (700, 3), (1000, 16), (1000, 200)] {
            let mut pairs = BTreeMap::new();
            while pairs.len() < count {
                pairs.insert(random.u64(..10_000), random.u64(..));
            }
            let sorted: Vec<(u64, u64)> = pairs.iter().map(|(key, value)| (*key, *value)).collect();
            let tree = Tree::build(shards, 10, fan_out, &sorted)?;
            let (first, last) = (sorted[0].0, sorted[count - 1].0);
            let keys = (0..60).map(|_| random.u64(..10_100));
            for key in keys.chain([0, first, last, last + 1, u64::MAX]) {
                let bound = pairs.range(key..).next().map(|(key, value)| (*key, *value));
                for way in Way::ALL {
                    same!(tree.get(way, key)?, pairs.get(&key).copied());
                    same!(tree.lower_bound(way, key)?, bound);
                }
                same!(tree.get_auto(key)?, pairs.get(&key).copied());
                same!(tree.lower_bound_auto(key)?, bound);
            }
            let again = Tree::open(shards, tree.root())?;
            same!(again.get(Way::Moved, last)?, pairs.get(&last).copied());
            // A root whose only child is outside of the shards, or is no node.
            for (child, text) in [(shards.len(), "outside"), (shards.words() - 1, "damaged")] {
                let mut root = vec![0; 2 * fan_out as usize + 2];
                (root[0], root[1 + fan_out as usize]) = (1 | 1 << 16 | fan_out << 32, child);
                shards.put(tree.root(), &root)?;
                check!(is_bad_address(tree.get(Way::Gets, 7)), "{child}");
                for way in [Way::Function, Way::Moved] {
                    fails(tree.get(way, 7), text)?;
                }
            }
        }
        let is_bad = |built: Result<Tree>| matches!(built, Err(Error::BadLayout(_)));
        check!(is_bad(Tree::build(shards, 0, 4, &[])));
        check!(is_bad(Tree::build(shards, 0, 1, &[(1, 1)])));
        check!(is_bad(Tree::build(shards, 0, 4, &[(2, 1), (2, 1)])));
        check!(is_bad(Tree::build(
            shards,
            shards.words() - 9,
            4,
            &[(1, 1)]
        )));
        check!(is_bad(Tree::build(shards, u64::MAX, 4, &[(1, 1)])));
        shards.put(0, &[0])?;
        check!(matches!(Tree::open(shards, 0), Err(Error::Damaged(_))));
        check!(is_bad_address(Tree::open(shards, shards.len())));
        Ok(())
    })
}

on_processes!(trees_are_searched, runs(3, trees));
