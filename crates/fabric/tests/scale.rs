//! What a unit keeps does not grow with its domain, counted in bytes of the allocator.

use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Fabric, Match};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Outcome, check};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::sync::OnceLock;
use std::time::Duration;

#[global_allocator]
static MEMORY: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn live_bytes() -> u64 {
    let stats = MEMORY.stats();
    (stats.bytes_allocated - stats.bytes_deallocated) as u64
}

/// Units that run, on three nodes.
const UNITS: u32 = 21;
/// Units that nobody runs and that are lost while the others talk.
const LOST: u32 = 500;

/// Sends to all others and receives from them, short and long messages; then waits until `LOST`
/// others are gone. The changes of membership that the unit has heard of.
fn talk(fabric: &Fabric) -> Outcome<u64> {
    let members = fabric.job()?;
    check!(members.len() == UNITS as usize);
    for len in [100, 100_000] {
        let others = || members.iter().filter(|peer| **peer != fabric.me());
        let mut sends = Vec::new();
        for to in others() {
            sends.push(fabric.isend(*to, len, pattern(1, len as usize))?);
        }
        for from in others() {
            verify(1, &fabric.recv_vec(Match::from(*from, len))?.1)?;
        }
        for send in sends {
            send.wait()?;
        }
    }
    let nobody = fabric.within(Duration::from_millis(20), || fabric.recv_vec(Match::any(9)));
    check!(nobody.is_err());
    let changes = fabric.changes();
    fabric.barrier(&members)?;
    Ok(changes)
}

/// Bytes when the units begin, and by which all that they have grows while they talk, in a domain
/// with so many others.
fn measure(bystanders: u32) -> (u64, u64, Vec<u64>) {
    let mut scenario = Scenario::new(1, UNITS).on_nodes(3);
    scenario.bystanders = bystanders;
    scenario.lost_bystanders = LOST.min(bystanders);
    let begin = OnceLock::new();
    let ended = scenario.run(|fabric| {
        begin.get_or_init(live_bytes);
        let changes = talk(fabric)?;
        Ok((live_bytes(), changes))
    });
    let ended: Outcome<Vec<(u64, u64)>> = ended.into_iter().collect();
    let ended = ended.unwrap_or_else(|why| panic!("with {bystanders} others: {why}"));
    // The first one to end saw all of them.
    let most = ended.iter().map(|(bytes, _)| *bytes).max();
    let begin = begin.into_inner().unwrap_or_default();
    let grown = most.unwrap_or_default() - begin;
    (
        begin,
        grown,
        ended.into_iter().map(|(_, changes)| changes).collect(),
    )
}

/// The bar: a unit of a domain of 100,000 that talks to 20 keeps at most 1 MiB more than one in a
/// domain of 20.
#[test]
fn a_unit_keeps_only_what_it_has_to_do_with() {
    measure(0); // What is allocated once is there.
    let (few_begin, few, changes_of_few) = measure(0);
    let (many_begin, many, changes_of_many) = measure(100_000);
    let units = u64::from(UNITS);
    println!(
        "with {UNITS} units: {} bytes each; with 100,000: {}",
        few / units,
        many / units
    );
    println!(
        "the roster: {} bytes a node",
        many_begin.saturating_sub(few_begin) / 3
    );
    let bar = units << 20;
    assert!(
        many <= few + bar,
        "{many} bytes of {UNITS} units, {few} in a small domain"
    );
    // No loss of a unit that it has nothing to do with reaches a unit.
    assert_eq!(changes_of_few, changes_of_many);
}
