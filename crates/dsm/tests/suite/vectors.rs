//! Arrays over many chunks.

use crate::{runs, served, servers};
use samite_dsm::{ChunkedVec, Dsm, Error, Policy, Version};
use samite_fabric::{Fabric, Mask};
use samite_testkit::{Outcome, check, matches_or_fail, same};
use std::time::Duration;

/// What a unit writes to an element in a round.
fn value(round: u64, index: u64) -> u64 {
    round << 40 | index
}

/// Each unit writes its part, in several ways, and reads all of it.
fn partitioned(dsm: &Dsm, unit: u32, ranks: u64) -> Outcome {
    const ROUNDS: u64 = 4;
    // Chunks that travel inside messages, and others; lengths that are multiples, or not.
    for (len, chunk_len) in [(1000, 100), (1001, 7), (40_000, 1024), (5, 100), (0, 3)] {
        let name = format!("{len} by {chunk_len}");
        let vector: ChunkedVec<u64> = match unit {
            0 => dsm.alloc_vector(&name, len, chunk_len)?,
            _ => dsm.lookup_vector(&name)?,
        };
        same!((vector.len(), vector.chunk_len()), (len, chunk_len));
        let part = vector.part(unit.into(), ranks);
        for round in 1..=ROUNDS {
            match round % 3 {
                0 => {
                    let mine: Vec<u64> = part.clone().map(|index| value(round, index)).collect();
                    vector.put(part.start, &mine, round)?;
                }
                1 => {
                    let mut guard = vector.write(part.clone())?;
                    for (at, slice) in guard.slices_mut() {
                        let each = slice.iter_mut().zip(at..);
                        each.for_each(|(to, index)| *to = value(round, index));
                    }
                    let versions = guard.commit(round)?;
                    check!(versions.iter().all(|version| version.0 == round));
                }
                _ => vector.update_each_chunk(part.clone(), round, |_, slice| {
                    slice.iter_mut().for_each(|to| *to += 1 << 40);
                    Ok(())
                })?,
            }
            dsm.barrier("written", ranks)?;
            let is_so = |(found, index): (&u64, u64)| *found == value(round, index);
            check!(vector.read(0..len)?.iter().zip(0..).all(is_so));
            check!(vector.snapshot(0..len)?.iter().zip(0..).all(is_so));
            let mut copy = vec![0; len as usize];
            vector.get(0, &mut copy)?;
            check!(copy.iter().zip(0..).all(is_so));
            let mut next = 0;
            vector.for_each_chunk(0..len, |at, slice| {
                assert_eq!(at, next);
                next += slice.len() as u64;
                assert!(slice.iter().zip(at..).all(is_so));
                Ok(())
            })?;
            same!(next, len);
            dsm.barrier("read", ranks)?;
        }
    }
    Ok(())
}

everywhere!(
    each_writes_its_part,
    runs(3, |fabric, unit| partitioned(&Dsm::join(fabric)?, unit, 3))
);
everywhere!(
    chunks_have_several_homes,
    servers::runs(|dsm, unit| partitioned(dsm, unit, 4))
);

/// All write ranges that overlap, and add one to each element.
fn overlapping(fabric: &Fabric, unit: u32) -> Outcome {
    const LEN: u64 = 2000;
    const ROUNDS: u64 = 30;
    let dsm = Dsm::join(fabric)?;
    let ranks = u64::from(fabric.identity().units);
    let vector = dsm.alloc_vector::<u64>("all", LEN, 300)?;
    for round in 0..ROUNDS {
        // Chunks are first used in another order by each unit: that of acquisition is the same.
        let begin = (round * 37 + u64::from(unit) * 911) % 500;
        let mut guard = vector.update(begin..begin + 1000)?;
        let seen: Vec<u64> = guard.iter().copied().collect();
        guard
            .slices_mut()
            .for_each(|(_, slice)| slice.iter_mut().for_each(|to| *to += 1));
        same!(guard[begin], seen[0] + 1);
        guard.commit(round)?;
        // What is in all ranges is written as a whole, though it is in several chunks.
        let read = vector.read(500..1000)?;
        check!(read.iter().all(|count| *count == read[500]));
    }
    dsm.barrier("end", ranks)?;
    let sum: u64 = vector.read(0..LEN)?.iter().sum();
    same!(sum, ranks * ROUNDS * 1000);
    Ok(())
}

everywhere!(
    ranges_that_overlap_are_changed_as_a_whole,
    runs(3, overlapping)
);

fn refused(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let ranks = u64::from(fabric.identity().units);
    // Of several that create it, all have the same.
    let vector = dsm.alloc_vector::<f64>("field", 100, 10)?;
    for other in [
        dsm.alloc_vector::<f64>("field", 100, 20),
        dsm.alloc_vector::<f64>("field", 99, 10),
    ] {
        let text = other.err().map(|error| error.to_string());
        let text = text.unwrap_or_default();
        check!(
            text.contains("100 elements of type f64 in chunks of 10"),
            "{text}"
        );
    }
    matches_or_fail!(
        dsm.alloc_vector::<i64>("field", 100, 10),
        Err(Error::Differs { .. })
    );
    matches_or_fail!(dsm.lookup_vector::<u8>("field"), Err(Error::Differs { .. }));
    matches_or_fail!(dsm.lookup::<u64>("field"), Err(Error::Differs { .. }));
    let no_name = dsm.alloc_vector::<u8>("", 1, 1);
    matches_or_fail!(no_name, Err(Error::BadName(_)));
    let within =
        |f: &dyn Fn() -> samite_dsm::Result<()>| fabric.within(Duration::from_millis(20), f);
    let missing = within(&|| dsm.lookup_vector::<f64>("feild").map(drop));
    matches_or_fail!(missing, Err(Error::NotFound { .. }));
    let text = vector.read(90..101).map(drop);
    let text = text
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    check!(text.contains("has no elements 90..101"), "{text}");
    matches_or_fail!(vector.put(99, &[0.0; 2], 0), Err(Error::OutOfRange { .. }));
    let over = vector.put(u64::MAX, &[0.0; 2], 0);
    matches_or_fail!(over, Err(Error::OutOfRange { .. }));
    matches_or_fail!(vector.chunk(10), Err(Error::OutOfRange { .. }));
    // Its chunks are chunks.
    dsm.barrier("tried", ranks)?;
    if unit == 0 {
        vector.put(40, &[2.5; 10], 9)?;
    }
    let mut commits = vector.chunk(4)?.subscribe(Policy::Every, Version(0))?;
    same!(commits.next_event()?.tag, 9);
    dsm.barrier("put", ranks)?;
    // It is freed for all, and its name is free; the next one does not have its content.
    if unit == 0 {
        vector.clone().free()?;
    }
    dsm.barrier("freed", ranks)?;
    matches_or_fail!(vector.get(40, &mut [0.0]), Err(Error::Freed { .. }));
    matches_or_fail!(vector.get(50, &mut [0.0]), Err(Error::Freed { .. }));
    matches_or_fail!(vector.clone().free(), Err(Error::Freed { .. }));
    let again = dsm.alloc_vector::<f64>("field", 100, 10)?;
    check!(
        again
            .snapshot(0..100)?
            .iter()
            .all(|element| *element == 0.0)
    );
    Ok(())
}

everywhere!(what_does_not_fit_is_refused, runs(2, refused));

/// An array of very many chunks costs what is used of it.
fn sparse(fabric: &Fabric, unit: u32) -> Outcome {
    const LEN: u64 = 1 << 50;
    let dsm = Dsm::join(fabric)?;
    let ranks = u64::from(fabric.identity().units);
    let vector = dsm.alloc_vector::<u16>("sparse", LEN, 1000)?;
    for step in 0..100 {
        let index = (step * ranks + u64::from(unit)) * (LEN / (100 * ranks));
        vector.put(index, &[unit as u16 + 1], step)?;
    }
    dsm.barrier("put", ranks)?;
    for step in 0..100 * ranks {
        let mut found = [0; 2];
        vector.get(step * (LEN / (100 * ranks)), &mut found)?;
        same!(found, [(step % ranks) as u16 + 1, 0]);
    }
    // It is freed by few requests, however many chunks it might have.
    let used = vector.chunk(vector.chunk_of(LEN / 2))?;
    dsm.barrier("found", ranks)?;
    if unit == 0 {
        let before = dsm.counters()?.received;
        vector.clone().free()?;
        let asked = dsm.counters()?.received - before;
        check!(asked < 20, "{asked} requests");
    }
    dsm.barrier("freed", ranks)?;
    matches_or_fail!(used.read(), Err(Error::Freed { .. }));
    // The library chooses the chunks.
    let chosen = dsm.alloc_vector::<f64>("chosen", 1 << 40, 0)?;
    same!((chosen.chunks(), chosen.chunk_len()), (1024, 1 << 30));
    same!(dsm.alloc_vector::<u8>("few", 10, 0)?.chunk_len(), 1 << 20);
    Ok(())
}

everywhere!(what_is_not_used_costs_nothing, runs(2, sparse));

/// The home of some chunks is lost: those of the others are freed all the same.
fn freed_without_a_home(dsm: &Dsm, rank: u32) -> Outcome {
    const COUNT: u64 = 60;
    let home_of = |name: &str| dsm.topology().name(dsm.topology().home(name)).to_owned();
    check!(home_of("spread") != "right");
    let vector = dsm.alloc_vector::<u64>("spread", COUNT, 1)?;
    let chunks = (0..COUNT).map(|number| vector.chunk(number));
    let chunks: Vec<_> = chunks.collect::<Result<_, _>>()?;
    samite_testkit::pause("here");
    if rank != 3 {
        return Ok(());
    }
    vector.free()?;
    let mut homes = std::collections::BTreeSet::new();
    for chunk in chunks {
        let home = home_of(chunk.name());
        match home.as_str() {
            "right" => matches_or_fail!(chunk.snapshot(), Err(Error::Lost { .. })),
            _ => matches_or_fail!(chunk.snapshot(), Err(Error::Freed { .. })),
        }
        homes.insert(home);
    }
    same!(homes.len(), 3);
    Ok(())
}

everywhere!(
    what_is_left_of_it_is_freed,
    servers::without(1, false, freed_without_a_home)
);

/// As many chunks as that, all of which are used, and freed.
fn many(name: &str, count: u64) {
    let body = |fabric: &Fabric, _: &[_]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let vector = dsm.alloc_vector::<u64>("many", count, 1)?;
        let all: Vec<u64> = (0..count).map(|index| value(1, index)).collect();
        vector.put(0, &all, 1)?;
        let mut found = vec![0; count as usize];
        vector.get(0, &mut found)?;
        check!(found == all);
        Ok(vector.free()?)
    };
    let units = served(1, Mask::default()).timeout(Duration::from_secs(300));
    units.run(name, body);
}

#[test]
fn many_chunks() {
    many(
        &samite_testkit::full_name(module_path!(), "many_chunks"),
        20_000,
    );
}

#[test]
#[ignore = "takes long: for the night"]
fn very_many_chunks() {
    let name = samite_testkit::full_name(module_path!(), "very_many_chunks");
    many(&name, 100_000);
}
