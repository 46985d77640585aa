//! Beginning and ending, many times in one process, without a leak.

use samite_fabric::{Fabric, Identity, PeerId};
use samite_pgas::{Error, Pgas, Sum};
use samite_testkit::{MESSAGES_ONLY, Outcome, Who, check, everywhere, pause, point, same, units};
use std::time::Duration;

const CYCLES: u32 = 370;

/// Everything that global memory has, once.
fn a_life(fabric: &Fabric, cycle: u32) -> Outcome {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let there = 1 - world.rank();
    let data = world.allocate::<u64>(1000)?;
    let own = world.register(vec![cycle; 10])?;
    let lock = world.lock()?;
    let piece = pgas.allocate::<u32>(100)?;
    data.put_value(there, 999, u64::from(cycle))?;
    data.put_implicit(there, 0, &[1; 100])?;
    pgas.flush_all()?;
    let half = world.split_by(u64::from(world.rank()))?;
    let mut sum = [0_u64];
    world.all_reduce(&[1_u64], &mut sum, Sum)?;
    same!(sum[0], 2);
    drop(lock.acquire()?);
    same!(own.get_value(there, 9)?, cycle);
    same!(data.get_value(world.rank(), 999)?, u64::from(cycle));
    let data = data.into_local()?.into_shared()?;
    half.allocate::<u8>(5)?.free()?;
    pgas.put(piece, &[cycle])?;
    if cycle.is_multiple_of(2) {
        // Some clean up, some just leave.
        pgas.free(piece)?;
        lock.free()?;
        data.free()?;
    }
    Ok(world.barrier()?)
}

// Two of them on one fabric would take each other's messages.
everywhere!(one_life_at_a_time, 2, |fabric, _| {
    for _ in 0..3 {
        let pgas = Pgas::new(fabric)?;
        same!(Pgas::new(fabric).err(), Some(Error::AlreadyBegun));
        // A team that is kept keeps it.
        let world = pgas.world().clone();
        drop(pgas);
        same!(Pgas::new(fabric).err(), Some(Error::AlreadyBegun));
        world.barrier()?;
    }
    Ok(())
});

/// A unit that begins before the others have joined may try again.
#[test]
fn a_beginning_that_came_too_early() {
    let body = |unit: &samite_testkit::Unit| {
        if unit.rank == 1 {
            pause("has not joined");
        }
        let fabric = Fabric::join(&unit.domain, unit.identity(), unit.config.clone())?;
        if unit.rank == 0 {
            let early = fabric.within(Duration::from_millis(5), || Pgas::new(&fabric));
            let is_absent = matches!(early, Err(Error::NotBegun { unit: None, .. }));
            check!(is_absent, "{early:?}");
            point("was too early");
        }
        let pgas = Pgas::new(&fabric)?;
        Ok(pgas.world().barrier()?)
    };
    let name = "faults::lives::a_beginning_that_came_too_early";
    units(2).orchestrate_bare(name, body, |cluster| {
        cluster.wait_point(Who::Unit(1), "has not joined");
        cluster.wait_point(Who::Unit(0), "was too early");
        cluster.release(Who::Unit(1));
    });
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn free_segments(fabric: &Fabric) -> u32 {
    fabric
        .free_segments()
        .iter()
        .map(|word| word.count_ones())
        .sum()
}

/// Pages that are resident, private and shared.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let words = statm.split_whitespace().nth(1);
    words.and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

/// Rings of idle pairs come and go: two of them, with room for bodies.
const RINGS: u64 = 2 * (300 << 10);

/// What the other one is still attached to, of the life that it is about to end.
const STAGING: u64 = 1 << 20;

/// Connections by which memory goes back to the agent at one time, and one by which it is asked for
/// more.
const RETURNING: usize = 16 + 1;

fn lives(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let mut before = None;
    for cycle in 0..CYCLES {
        a_life(fabric, cycle)?;
        let (descriptors, segments) = (descriptors(), free_segments(fabric));
        let shared = fabric.shared_bytes();
        if cycle >= 10 {
            let before = *before.get_or_insert((descriptors, segments, shared));
            // Some more while the agent is being told of memory that comes back. (One of each life
            // would be 360.)
            check!(
                descriptors <= before.0 + RETURNING,
                "{} {descriptors}",
                before.0
            );
            // What the other one has not left yet keeps its number until the next life.
            check!(segments.abs_diff(before.1) <= 10, "{} {segments}", before.1);
            // The segments of a life are some 10 KiB, of which each would be missed after 360
            // lives.
            check!(
                shared <= before.2 + RINGS + STAGING,
                "{} {shared}",
                before.2
            );
        }
    }
    Ok(())
}

#[test]
fn many_lives_on_one_fabric() {
    units(2).run("faults::lives::many_lives_on_one_fabric", lives);
}

#[test]
fn many_lives_on_one_fabric_by_messages() {
    let units = units(2).mask(MESSAGES_ONLY);
    units.run("faults::lives::many_lives_on_one_fabric_by_messages", lives);
}

#[test]
fn many_lives_with_the_fabric() {
    let body = |unit: &samite_testkit::Unit| {
        let mut before = None;
        for cycle in 0..CYCLES {
            let identity = Identity {
                job: format!("{}-{cycle}", unit.domain),
                ..unit.identity()
            };
            let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
            a_life(&fabric, cycle)?;
            drop(fabric);
            if cycle >= 20 {
                let (descriptors_before, pages) =
                    *before.get_or_insert((descriptors(), resident()));
                same!(descriptors(), descriptors_before);
                // 350 lives of more than a page each.
                check!(resident() < pages + 256, "{pages} {}", resident());
            }
        }
        Ok(())
    };
    units(2).orchestrate_bare("faults::lives::many_lives_with_the_fabric", body, |_| ());
}
