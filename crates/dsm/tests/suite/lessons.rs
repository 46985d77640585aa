//! What went wrong in other systems of coherent memory, publishing and caching. Each test is a
//! class of defects that one of them has shipped. Classes that other files test, and the simulation
//! of the protocol, are not repeated here: a lock-up of processes that acquire chunks in opposite
//! orders (`together.rs`, `vectors.rs`), a lossless subscriber that dies or is stopped
//! (`faults.rs`), memory of the dead (`faults.rs`).

use crate::{runs, served};
use samite_dsm::{Carry, Chunk, Dsm, Error, Policy, Snapshot, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Cluster, Outcome, Who, check, full_name, matches_or_fail, pause, same};
use std::time::Duration;

/// Sharers are more than a machine word has bits (ArgoDSM: the bit of a sharer was not set).
#[test]
fn more_sharers_than_bits_of_a_word() {
    const UNITS: u32 = 70;
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let (unit, count) = (fabric.identity().unit, u64::from(UNITS));
        let dsm = Dsm::join(fabric)?;
        let chunk: Chunk<u8> = dsm.alloc("shared", 5000)?;
        let mut events = chunk.subscribe(Policy::Every, Version(0))?;
        dsm.barrier("subscribed", count)?;
        for round in 1..=3 {
            // The last unit, and others, write while all have the version before.
            let writer = (round * 69) % count;
            if u64::from(unit) == writer {
                chunk.put(&pattern(round, 5000), round)?;
            }
            same!(events.next_event()?.tag, round);
            for _ in 0..2 {
                let read = chunk.read()?;
                same!(read.tag(), round);
                verify(round, &read)?;
            }
            dsm.barrier("read", count)?;
        }
        Ok(())
    };
    let name = full_name(module_path!(), "more_sharers_than_bits_of_a_word");
    served(UNITS, Mask::default()).run(&name, body);
}

/// What came with an event, and nobody has looked at, is not taken for the present version
/// (ArgoDSM: a page that was prefetched and not touched stayed as it was).
fn untouched(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk: Chunk<u8> = dsm.alloc("chunk", 9000)?;
    let mut all = match unit {
        0 => None,
        _ => Some(chunk.subscribe_carrying(Policy::Every, Carry::Content, Version(0))?),
    };
    dsm.barrier("subscribed", 2)?;
    for version in 1..=10 {
        if unit == 0 {
            chunk.put(&pattern(version, 9000), version)?;
        }
        dsm.barrier("written", 2)?;
        // The content of events waits meanwhile.
        for _ in 0..2 {
            let read = chunk.read()?;
            same!((read.version(), read.tag()), (Version(version), version));
            verify(version, &read)?;
        }
        same!(chunk.snapshot()?.version(), Version(version));
        dsm.barrier("read", 2)?;
    }
    for version in 1..=10 {
        if let Some(all) = &mut all {
            let snapshot = all.next_version()?;
            same!(snapshot.version(), Version(version));
            verify(version, &snapshot)?;
        }
    }
    Ok(())
}

everywhere!(
    what_came_and_was_not_touched_is_not_read,
    runs(2, untouched)
);

/// A subscriber misses many events, and then nothing happens any more: it still gets the last one
/// (Hazelcast: a client that missed few invalidations stayed stale for ever on quiet maps).
fn quiet(fabric: &Fabric, unit: u32) -> Outcome {
    const COMMITS: u64 = 1300;
    let dsm = Dsm::join(fabric)?;
    let chunk: Chunk<u64> = dsm.alloc(&format!("of {unit}"), 1)?;
    let every = chunk.subscribe_carrying(Policy::Every, Carry::Content, Version(0))?;
    let latest = chunk.subscribe_carrying(Policy::Latest, Carry::Content, Version(0))?;
    for version in 1..=COMMITS {
        chunk.put(&[version], version)?;
    }
    for mut events in [every, latest] {
        let mut last = None;
        while events.after().0 < COMMITS {
            let before = events.after();
            match events.next_version() {
                Ok(snapshot) => {
                    check!(snapshot.version() > before);
                    same!(snapshot[0], snapshot.version().0);
                    last = Some(snapshot);
                }
                // Its content is gone, or it was missed.
                Err(Error::Lagged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let last = last.map(|snapshot: Snapshot<u64>| snapshot[0]);
        same!(last, Some(COMMITS));
        let none = events.next_within(Duration::ZERO);
        matches_or_fail!(none, Err(Error::NoEvent { .. }));
    }
    Ok(())
}

everywhere!(a_quiet_chunk_has_been_told_of, runs(2, quiet));

/// Several processes write, each in several ways: all are told in the order of versions, each once
/// (Hazelcast: two senders, and batches of invalidations out of order).
fn from_all(fabric: &Fabric, unit: u32) -> Outcome {
    const EACH: u64 = 100;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let chunk: Chunk<u64> = dsm.alloc("chunk", 4)?;
    let mut events = chunk.subscribe(Policy::Every, Version(0))?;
    dsm.barrier("subscribed", count)?;
    let mut taken = 0;
    let mut of_unit = vec![0; count as usize];
    let mut take = |most: u64| -> Outcome {
        for _ in 0..most {
            let event = events.next_event()?;
            taken += 1;
            same!(event.version, Version(taken));
            let (writer, number) = (event.tag >> 32, event.tag & 0xffff);
            let before = &mut of_unit[writer as usize];
            same!(number, *before + 1);
            *before = number;
        }
        Ok(())
    };
    for number in 1..=EACH {
        let tag = u64::from(unit) << 32 | number;
        match number % 3 {
            0 => _ = chunk.put(&[tag; 4], tag)?,
            1 => {
                let mut guard = chunk.update()?;
                guard.fill(tag);
                guard.commit(tag)?;
            }
            _ => _ = chunk.delegate(0, samite_dsm::Op::Add(1), tag)?,
        }
        take(1)?;
    }
    take(EACH * count - EACH)
}

everywhere!(several_writers_are_told_in_order, runs(3, from_all));

/// A process that has left a chunk, and comes back, has nothing of it (Hazelcast: a cache had to be
/// cleared when it was registered again).
fn back(fabric: &Fabric, unit: u32) -> Outcome {
    let name = "chunk";
    let first = Dsm::join(fabric)?;
    for round in 0..5 {
        let version = 2 * round + 1;
        let dsm = match fabric.domain() {
            Some(_) => Dsm::join(fabric)?,
            None => first.clone(),
        };
        let chunk: Chunk<u8> = dsm.alloc(name, 6000)?;
        if unit == 0 {
            chunk.put(&pattern(version, 6000), version)?;
        }
        first.barrier("written", 2)?;
        drop(chunk.read()?);
        let read = chunk.read()?;
        same!(read.tag(), version);
        let events = chunk.subscribe_carrying(Policy::Every, Carry::Content, read.version())?;
        drop((read, events, chunk, dsm));
        first.barrier("left", 2)?;
        // Nobody waits for those who have left, and they are told nothing.
        let again: Chunk<u8> = first.lookup(name)?;
        if unit == 0 {
            again.put(&pattern(version + 1, 6000), version + 1)?;
        }
        first.barrier("written again", 2)?;
        let mut events = again.subscribe(Policy::Every, Version(version - 1))?;
        same!(events.next_event()?.tag, version);
        same!(events.next_event()?.tag, version + 1);
        let read = again.read()?;
        same!(read.tag(), version + 1);
        verify(version + 1, &read)?;
        drop(read);
        first.barrier("read", 2)?;
    }
    Ok(())
}

everywhere!(who_comes_back_has_nothing_old, runs(2, back));

/// The memory is full of old versions that a process keeps: the error says so, and nothing waits
/// for ever. When they are dropped, all goes on (Ray: copies that were received filled the store).
#[test]
fn old_versions_fill_the_memory() {
    const BYTES: usize = 4 << 20;
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let unit = fabric.identity().unit;
        let chunk: Chunk<u8> = dsm.alloc("chunk", BYTES as u64)?;
        if unit > 0 {
            dsm.barrier("full", 2)?;
            // Another process is concerned, too, and it can read all the same.
            let read = chunk.read()?;
            verify(read.tag(), &read)?;
            drop(read);
            matches_or_fail!(chunk.put(&[1; BYTES], 0), Err(Error::NoMemory { .. }));
            dsm.barrier("refused", 2)?;
            dsm.barrier("goes on", 2)?;
            let version = chunk.put(&pattern(77, BYTES), 77)?;
            let read = chunk.read()?;
            same!((read.version(), read.tag()), (version, 77));
            return verify(77, &read);
        }
        let mut kept = Vec::new();
        let refused = loop {
            let version = kept.len() as u64 + 1;
            check!(version < 100, "the budget is not kept");
            match chunk.put(&pattern(version, BYTES), version) {
                Ok(_) => kept.push(chunk.snapshot()?),
                Err(error) => break error,
            }
        };
        let text = refused.to_string();
        check!(
            text.contains("no memory for 4194304 bytes of the chunk \"chunk\"")
                && text.contains("drop snapshots of old versions"),
            "{text}"
        );
        check!(kept.len() > 10, "{} versions", kept.len());
        // Others can be used: it has its memory.
        let other: Chunk<u8> = dsm.alloc("other", 100)?;
        other.put(&[3; 100], 1)?;
        dsm.barrier("full", 2)?;
        dsm.barrier("refused", 2)?;
        for (snapshot, version) in kept.iter().zip(1..) {
            verify(version, snapshot)?;
        }
        kept.clear();
        for version in 1..=30 {
            chunk.put(&pattern(version, BYTES), version)?;
            same!(chunk.snapshot()?.tag(), version);
        }
        dsm.barrier("goes on", 2)?;
        Ok(())
    };
    let units = served(2, Mask::default()).budget(96 << 20);
    units.run(
        &full_name(module_path!(), "old_versions_fill_the_memory"),
        body,
    );
}

/// Memory of one length serves chunks of other lengths (Ray: fragmentation alone made the store
/// full).
#[test]
fn memory_of_one_length_serves_another() {
    const MIB: usize = 1 << 20;
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        for round in 0..3 {
            for mib in [1, 20, 3, 17, 8, 24, 2, 12] {
                let chunk: Chunk<u8> = dsm.alloc("chunk", (mib * MIB) as u64)?;
                for version in 1..=2 {
                    let seed = (round << 8 | mib as u64) << 8 | version;
                    chunk.put(&pattern(seed, mib * MIB), version)?;
                    verify(seed, &chunk.read()?)?;
                }
                chunk.free()?;
            }
        }
        Ok(())
    };
    let units = served(1, Mask::default()).budget(80 << 20);
    let name = full_name(module_path!(), "memory_of_one_length_serves_another");
    units.run(&name, body);
}

/// Subscribers die that have not taken the versions which were told of: what they had is used again
/// (Zenoh: the death of a subscriber exhausts the pool of the publisher).
#[test]
fn subscribers_that_die_exhaust_no_memory() {
    const LIVES: u32 = 5;
    const BYTES: usize = 1 << 20;
    const COMMITS: u64 = 40;
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let unit = fabric.identity().unit;
        let chunk: Chunk<u8> = dsm.alloc("chunk", BYTES as u64)?;
        if unit < LIVES {
            pause("ready");
            let present = chunk.snapshot()?.version();
            let every = chunk.subscribe_with_content(Policy::Every, present)?;
            pause("subscribed");
            drop(every);
            return Ok(());
        }
        for life in 0..u64::from(LIVES) {
            pause("ready");
            for version in life * COMMITS + 1..=(life + 1) * COMMITS {
                chunk.put(&pattern(version, BYTES), version)?;
                verify(version, &chunk.snapshot()?)?;
            }
        }
        Ok(())
    };
    // Enough for what two of them have, and not for that of all.
    let units = served(LIVES + 1, Mask::default()).budget(128 << 20);
    let name = full_name(module_path!(), "subscribers_that_die_exhaust_no_memory");
    units.orchestrate(&name, body, |cluster: &mut Cluster| {
        let writer = Who::Unit(LIVES);
        for life in 0..LIVES {
            cluster.wait_point(Who::Unit(life), "ready");
            cluster.release(Who::Unit(life));
            cluster.wait_point(Who::Unit(life), "subscribed");
            cluster.wait_point(writer, "ready");
            if life > 0 {
                cluster.kill(Who::Unit(life - 1));
            }
            cluster.release(writer);
        }
        cluster.release(Who::Unit(LIVES - 1));
        cluster.all_end();
    });
}

/// Writers die somewhere inside of a put: the version that others see is whole, what was
/// acknowledged stays, and others write at once (Ray: a store died when a worker died inside get).
fn died_inside(name: &str, mask: Mask) {
    const LIVES: u32 = 4;
    const BYTES: usize = 150_000;
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let unit = u64::from(fabric.identity().unit);
        let chunk: Chunk<u8> = dsm.alloc("chunk", BYTES as u64)?;
        let acknowledged: Chunk<u64> = dsm.alloc(&format!("acknowledged by {unit}"), 1)?;
        if unit < u64::from(LIVES) {
            pause("ready");
            for number in 1.. {
                let seed = unit << 32 | number;
                let version = chunk.put(&pattern(seed, BYTES), seed)?;
                acknowledged.put(&[version.0], seed)?;
            }
        }
        for life in 0..u64::from(LIVES) {
            pause("ready");
            let of_life: Chunk<u64> = dsm.lookup(&format!("acknowledged by {life}"))?;
            let mut puts = of_life.subscribe(Policy::Every, Version(5))?;
            puts.next_event()?;
            pause("dies");
            let read = chunk.read()?;
            verify(read.tag(), &read)?;
            check!(read.version().0 >= of_life.read()?[0]);
            let next = read.version().next();
            drop(read);
            same!(chunk.put(&pattern(life + 1000, BYTES), life + 1000)?, next);
            verify(life + 1000, &chunk.snapshot()?)?;
        }
        Ok(())
    };
    served(LIVES + 1, mask).orchestrate(name, body, |cluster: &mut Cluster| {
        let reader = Who::Unit(LIVES);
        for life in 0..LIVES {
            cluster.wait_point(Who::Unit(life), "ready");
            cluster.wait_point(reader, "ready");
            cluster.release(Who::Unit(life));
            cluster.release(reader);
            cluster.wait_point(reader, "dies");
            cluster.kill(Who::Unit(life));
            cluster.wait_gone(Who::Unit(life));
            cluster.release(reader);
        }
        cluster.all_end();
    });
}

everywhere!(
    a_writer_that_dies_inside_a_put_leaves_a_whole_version,
    died_inside
);

/// There are more long chunks than the server has segments: the error says what to do, other chunks
/// and layers are not harmed, and what is freed can be used.
#[test]
fn more_long_chunks_than_segments() {
    const BYTES: usize = 5000;
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let mut chunks = Vec::new();
        let refused = loop {
            let number = chunks.len() as u64;
            check!(number < 5000, "there is a limit");
            let chunk: Chunk<u8> = dsm.alloc(&format!("chunk {number}"), BYTES as u64)?;
            match chunk.put(&pattern(number, BYTES), number) {
                Ok(_) => chunks.push(chunk),
                Err(error) => break error,
            }
        };
        let text = refused.to_string();
        check!(text.contains("use fewer, larger chunks"), "{text}");
        matches_or_fail!(refused, Error::NoMemory { .. });
        check!(chunks.len() > 1000, "{} chunks", chunks.len());
        // Short ones have no segments, and those that exist can be read.
        let short: Chunk<u8> = dsm.alloc("short", 4000)?;
        short.put(&[1; 4000], 1)?;
        for number in [0, chunks.len() as u64 / 2, chunks.len() as u64 - 1] {
            verify(number, &chunks[number as usize].read()?)?;
        }
        let last = chunks.drain(50..).collect::<Vec<_>>();
        last.into_iter().try_for_each(Chunk::free)?;
        for (number, chunk) in chunks.iter().enumerate() {
            verify(number as u64, &chunk.read()?)?;
            chunk.put(&pattern(9, BYTES), 9)?;
            verify(9, &chunk.snapshot()?)?;
        }
        Ok(())
    };
    let name = full_name(module_path!(), "more_long_chunks_than_segments");
    served(1, Mask::default()).run(&name, body);
}
