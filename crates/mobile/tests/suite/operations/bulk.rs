//! Gathers and scans.

use super::{at_unit_0, content, fill, is_bad_address, serve, spread};
use crate::runs;
use samite_fabric::Fabric;
use samite_mobile::Mobile;
use samite_mobile::operation::{Below, Found, Gather, Way};
use samite_testkit::{Outcome, check, same};

fn gathers(fabric: &Fabric, _: u32) -> Outcome {
    at_unit_0(fabric, |shards| {
        fill(shards, content)?;
        let gather = Gather::new(shards)?;
        let mut random = fastrand::Rng::with_seed(1);
        // The last is more than fits into one payload to each unit.
        for count in [0, 1, 100, 30_000] {
            let addresses: Vec<u64> = (0..count).map(|_| random.u64(..shards.len())).collect();
            let expected: Vec<u64> = addresses.iter().map(|at| content(*at)).collect();
            for way in Way::ALL {
                check!(
                    gather.gather(way, &addresses)? == expected,
                    "{way:?} {count}"
                );
            }
            for _ in 0..13 {
                check!(gather.gather_auto(&addresses)? == expected, "{count}");
            }
        }
        for way in Way::ALL {
            check!(
                is_bad_address(gather.gather(way, &[0, shards.len()])),
                "{way:?}"
            );
        }
        Ok(())
    })
}

on_processes!(words_are_gathered, runs(3, gathers));

fn sums(fabric: &Fabric, _: u32) -> Outcome {
    const BOUND: u32 = 1 << 30;
    at_unit_0(fabric, |shards| {
        fill(shards, content)?;
        let below = Below::new(shards)?;
        let len = shards.len();
        for range in [
            0..0,
            5..6,
            3..40,
            7..len - 5,
            shards.words()..2 * shards.words(),
        ] {
            let mut expected = Found::default();
            for word in range.clone().map(content) {
                for half in [word as u32, (word >> 32) as u32] {
                    if half < BOUND {
                        expected.sum += u64::from(half);
                        expected.count += 1;
                    }
                }
            }
            for way in Way::ALL {
                same!(below.find(way, range.clone(), BOUND)?, expected);
            }
            same!(below.find_auto(range, BOUND)?, expected);
        }
        for way in Way::ALL {
            check!(
                is_bad_address(below.find(way, 5..len + 1, BOUND)),
                "{way:?}"
            );
        }
        Ok(())
    })
}

on_processes!(words_below_a_bound_are_summed, runs(3, sums));

/// A long scan is many calls, between which a unit runs those of others.
fn long_scans(fabric: &Fabric, unit: u32) -> Outcome {
    const CALL: u64 = 1 << 20; // words
    const WORDS: u64 = 5 * CALL + CALL / 2;
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    serve(&mobile);
    let (_segment, shards) = spread(&mobile, 0, WORDS)?;
    let below = shards.as_ref().map(Below::new).transpose()?;
    // At both sides of the places at which calls end. All other words are zero.
    let marked = (1..=5).flat_map(|call| [call * CALL - 1, call * CALL]);
    let marked: Vec<u64> = marked.collect();
    if let Some(shards) = &shards {
        for at in &marked {
            shards.put(WORDS + at, &[1 << 32 | at])?;
        }
    }
    for way in [Way::Function, Way::Moved] {
        fabric.barrier(&members)?;
        let before = mobile.counters().calls;
        fabric.barrier(&members)?;
        if let Some(below) = &below {
            let found = below.find(way, WORDS..2 * WORDS, u32::MAX)?;
            let sum = marked.iter().map(|at| at + 1).sum();
            let count = 2 * WORDS;
            same!(found, Found { sum, count });
        }
        fabric.barrier(&members)?;
        let calls = mobile.counters().calls - before;
        same!(calls, if unit == 1 { 6 } else { 0 });
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(long_scans_are_many_calls, runs(2, long_scans));
