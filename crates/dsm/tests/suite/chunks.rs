//! Chunks that several processes write and read. The content of a version says which unit wrote
//! it, and when: a version that is mixed, or comes back, is seen.

use crate::served;
use samite_dsm::{Chunk, Dsm, Error, Policy, Version};
use samite_fabric::{Fabric, Mask};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Outcome, check, matches_or_fail, same};
use std::time::Duration;

/// What a unit writes as a version.
fn seed(version: Version, unit: u32) -> u64 {
    version.0 << 8 | u64::from(unit)
}

/// Returns what runs a body in that many units.
fn runs(count: u32, body: fn(&Fabric, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[_]| body(fabric, fabric.identity().unit);
        served(count, mask).run(name, body);
    }
}

/// Lengths around the longest that travels inside a message.
const LENGTHS: [u64; 5] = [1, 4095, 4096, 4097, 300_000];

/// Writes the next version after checking the present one.
fn write_next(chunk: &Chunk<u8>, unit: u32) -> Outcome<Version> {
    let mut guard = chunk.update()?;
    let next = guard.version().next();
    let old = guard.to_vec();
    guard.copy_from_slice(&pattern(seed(next, unit), old.len()));
    let tag = seed(next, unit);
    same!(guard.commit(tag)?, next);
    Ok(next)
}

fn all_write(fabric: &Fabric, unit: u32) -> Outcome {
    const ROUNDS: u64 = 12;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let done = dsm.alloc::<u64>("done", 1)?;
    for length in LENGTHS {
        let chunk = dsm.alloc::<u8>(&format!("chunk of {length}"), length)?;
        same!(chunk.len(), length);
        for _ in 0..ROUNDS {
            write_next(&chunk, unit)?;
            let read = chunk.read()?;
            check!(read.version().0 > 0);
            verify(read.tag(), &read)?;
            same!(read.tag() >> 8, read.version().0);
            drop(read);
            let snapshot = chunk.snapshot()?;
            verify(snapshot.tag(), &snapshot)?;
        }
    }
    // Each unit adds one: what is read under a guard is what the last one has committed.
    let mut guard = done.update()?;
    guard[0] += 1;
    guard.commit(0)?;
    let mut commits = done.subscribe(Policy::Latest, Version::default())?;
    while commits.after().0 < count {
        commits.next_event()?;
    }
    same!(done.read()?[0], count);
    for length in LENGTHS {
        let chunk = dsm.lookup::<u8>(&format!("chunk of {length}"))?;
        same!(chunk.read()?.version().0, ROUNDS * count);
    }
    Ok(())
}

everywhere!(versions_are_whole_and_none_is_lost, runs(4, all_write));

fn followed(fabric: &Fabric, unit: u32) -> Outcome {
    const COMMITS: u64 = 200;
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("followed", 5000)?;
    if unit == 0 {
        for _ in 0..COMMITS {
            write_next(&chunk, 0)?;
        }
        return Ok(());
    }
    let policy = match unit {
        1 => Policy::Every,
        _ => Policy::Latest,
    };
    let mut commits = chunk.subscribe(policy, Version::default())?;
    let mut last = Version::default();
    while last.0 < COMMITS {
        let event = commits.next_event()?;
        match policy {
            Policy::Every | Policy::Lossless { .. } => same!(event.version, last.next()),
            Policy::Latest => check!(event.version > last),
        }
        same!(event.tag, seed(event.version, 0));
        let writer = fabric.name_of(event.writer.peer, None);
        check!(writer.is_none_or(|name| &*name == "unit.0"));
        // An event comes when its version can be read.
        check!(chunk.snapshot()?.version() >= event.version);
        last = event.version;
    }
    let late = commits.next_within(Duration::ZERO);
    matches_or_fail!(late, Err(Error::NoEvent { .. }));
    // One that begins later is told of what it does not know.
    let mut resumed = chunk.subscribe(Policy::Every, Version(COMMITS - 3))?;
    for version in COMMITS - 2..=COMMITS {
        same!(resumed.next_event()?.version, Version(version));
    }
    Ok(())
}

everywhere!(commits_are_told_in_order, runs(3, followed));

/// Nothing is committed under a guard, also if it was taken without a message.
fn hammered(fabric: &Fabric, unit: u32) -> Outcome {
    const COMMITS: u64 = 300;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let chunk = dsm.alloc::<u8>("hammered", 6000)?;
    let there = dsm.alloc::<u64>("readers", 1)?;
    if unit > 0 {
        let mut guard = there.update()?;
        guard[0] += 1;
        guard.commit(0)?;
        let mut last = Version::default();
        while last.0 < COMMITS {
            let read = chunk.read()?;
            check!(read.version() >= last);
            last = read.version();
            if last.0 > 0 {
                verify(seed(last, 0), &read)?;
                std::thread::yield_now();
                verify(seed(last, 0), &read)?;
                same!(chunk.snapshot()?.version(), last);
            }
        }
        return Ok(());
    }
    let mut commits = there.subscribe(Policy::Latest, Version::default())?;
    while commits.after().0 < count - 1 {
        commits.next_event()?;
    }
    for _ in 0..COMMITS {
        write_next(&chunk, 0)?;
    }
    Ok(())
}

everywhere!(nothing_is_committed_under_a_guard, runs(3, hammered));

/// A process that has read a chunk finds its later versions in shared memory, if it is mapped.
fn found(fabric: &Fabric, unit: u32) -> Outcome {
    const COMMITS: u64 = 20;
    let dsm = Dsm::join(fabric)?;
    for length in LENGTHS {
        let chunk = dsm.alloc::<u8>(&format!("found, {length}"), length)?;
        let wanted = dsm.alloc::<u64>(&format!("wanted, {length}"), 1)?;
        if unit == 0 {
            let mut wishes = wanted.subscribe(Policy::Every, Version::default())?;
            for _ in 0..COMMITS {
                wishes.next_event()?;
                write_next(&chunk, unit)?;
            }
            // When it drops the chunk, it gives up what it owns.
            dsm.barrier(&format!("end, {length}"), 2)?;
            continue;
        }
        drop(chunk.read()?);
        let mut commits = chunk.subscribe(Policy::Every, Version::default())?;
        for version in 1..=COMMITS {
            wanted.put(&[version], 0)?;
            same!(commits.next_event()?.version, Version(version));
            let read = chunk.read()?;
            same!(read.version(), Version(version));
            verify(seed(read.version(), 0), &read)?;
            // Its second guard of a version is one without a message wherever that is possible.
            same!(read.without_message(), chunk.read()?.without_message());
            same!(chunk.snapshot()?.version(), Version(version));
        }
        dsm.barrier(&format!("end, {length}"), 2)?;
    }
    Ok(())
}

everywhere!(later_versions_are_read_without_messages, runs(2, found));

/// A snapshot keeps its content, whatever is committed later.
fn kept(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>(&format!("of {unit}"), 100_000)?;
    let before = chunk.snapshot()?;
    check!(before.iter().all(|byte| *byte == 0), "no version yet");
    let mut all = Vec::new();
    for _ in 0..8 {
        write_next(&chunk, unit)?;
        all.push(chunk.snapshot()?);
    }
    for (snapshot, version) in all.iter().zip(1..) {
        same!(snapshot.version(), Version(version));
        verify(seed(Version(version), unit), snapshot)?;
    }
    check!(before.iter().all(|byte| *byte == 0));
    Ok(())
}

everywhere!(snapshots_stay, runs(2, kept));

fn aborted(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>(&format!("of {unit}"), 10_000)?;
    write_next(&chunk, unit)?;
    let mut guard = chunk.write()?;
    guard.fill(9);
    drop(guard);
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut guard = chunk.write().expect("nobody else has one");
        guard[0] = 9;
        std::panic::resume_unwind(Box::new(()));
    }));
    check!(panics.is_err());
    drop(chunk.read()?);
    let read = chunk.read()?;
    same!(read.version(), Version(1));
    verify(seed(Version(1), unit), &read)?;
    // The same thread has a guard: a second one has to wait.
    let second = fabric.within(Duration::from_millis(50), || chunk.write().map(drop));
    matches_or_fail!(second, Err(Error::Late { .. }));
    let text = second
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    check!(text.contains(&format!("unit.{unit} reads it")), "{text}");
    drop(read);
    same!(chunk.put(&vec![3; 10_000], 5)?, Version(2));
    same!(chunk.read()?.tag(), 5);
    let short = chunk.put(&[3; 9], 5);
    matches_or_fail!(
        short,
        Err(Error::Length {
            has: 9,
            len: 10_000,
            ..
        })
    );
    Ok(())
}

everywhere!(a_guard_without_a_commit_changes_nothing, runs(2, aborted));

/// Two libraries of a program may each join: a guard that one of them has keeps the other waiting.
fn joined_twice(fabric: &Fabric, unit: u32) -> Outcome {
    let (one, other) = (Dsm::join(fabric)?, Dsm::join(fabric)?);
    let name = format!("of {unit}");
    let chunk = one.alloc::<u8>(&name, 10_000)?;
    let same_chunk = other.alloc::<u8>(&name, 10_000)?;
    write_next(&chunk, unit)?;
    drop(chunk.read()?);
    let read = chunk.read()?;
    same!(read.without_message(), samite_testkit::maps_host(fabric));
    let late = fabric.within(Duration::from_millis(50), || same_chunk.write().map(drop));
    matches_or_fail!(late, Err(Error::Late { .. }));
    drop(read);
    write_next(&same_chunk, unit)?;
    same!(chunk.read()?.version(), Version(2));
    Ok(())
}

everywhere!(a_process_may_join_twice, runs(2, joined_twice));

/// The server has no memory for what a commit brings: the guard ends all the same.
#[test]
fn a_commit_without_memory_ends_its_guard() {
    const BYTES: usize = 24 << 20;
    let body = |fabric: &Fabric, _: &[_]| -> Outcome {
        let chunk = Dsm::join(fabric)?.alloc::<u8>("large", BYTES as u64)?;
        let content = pattern(1, BYTES);
        // The memory to write in place, which cannot be mapped, takes most of the budget.
        let mut guard = chunk.write()?;
        guard.copy_from_slice(&content);
        matches_or_fail!(guard.commit(1), Err(Error::NoMemory { .. }));
        same!(chunk.read()?.version(), Version::default());
        same!(chunk.put(&content, 1)?, Version(1));
        verify(1, &chunk.read()?)?;
        Ok(())
    };
    let units = served(1, samite_testkit::MESSAGES_ONLY).budget(32 << 20);
    let name = samite_testkit::full_name(module_path!(), "a_commit_without_memory_ends_its_guard");
    units.run(&name, body);
}

fn named(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    if unit == 0 {
        // The other one waits for it.
        let chunk = dsm.alloc::<f64>("field", 10)?;
        chunk.put(&[0.5; 10], 1)?;
        same!(dsm.alloc::<f64>("field", 10)?.read()?[9], 0.5);
        let differs = dsm.alloc::<f64>("field", 11).err();
        let text = differs.map(|error| error.to_string()).unwrap_or_default();
        check!(text.contains("has 10 elements of type f64"), "{text}");
        for name in [String::new(), "n".repeat(257)] {
            matches_or_fail!(dsm.alloc::<u8>(&name, 1), Err(Error::BadName(_)));
        }
        let empty = dsm.alloc::<u64>("nothing", 0)?;
        same!(empty.put(&[], 3)?, Version(1));
        same!((empty.read()?.len(), empty.read()?.tag()), (0, 3));
        return Ok(());
    }
    let chunk = dsm.lookup::<f64>("field")?;
    same!(chunk.len(), 10);
    matches_or_fail!(dsm.lookup::<u64>("field"), Err(Error::Differs { .. }));
    let missing = fabric.within(Duration::from_millis(20), || dsm.lookup::<u8>("feild"));
    matches_or_fail!(missing, Err(Error::NotFound { .. }));
    Ok(())
}

everywhere!(chunks_are_found_by_name, runs(2, named));

fn in_place(fabric: &Fabric, _: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u32>("mapped", 1 << 20)?;
    let mut guard = chunk.write()?;
    guard.fill(7);
    guard.commit(0)?;
    let read = chunk.read()?;
    same!(read.in_place(), samite_testkit::maps_host(fabric));
    same!(read[(1 << 20) - 1], 7);
    // Also the first one, of a version that is new to this process.
    same!(read.without_message(), samite_testkit::maps_host(fabric));
    Ok(())
}

everywhere!(nothing_is_copied_where_memory_is_mapped, runs(1, in_place));
