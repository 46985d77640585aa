//! What processes do together: locks, meetings, work that one of several takes, changes at the home
//! of a chunk, guards of several chunks, and chunks that are freed.

use crate::served;
use samite_dsm::{Chunk, Dsm, Error, Guard, Mode, Op, Policy, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Cluster, Outcome, Who, check, matches_or_fail, pause, same};
use std::time::Duration;

/// Returns what runs a body in that many units.
fn runs(count: u32, body: fn(&Fabric, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[_]| body(fabric, fabric.identity().unit);
        served(count, mask).run(name, body);
    }
}

const SHORT: Duration = Duration::from_millis(30);

fn locked(fabric: &Fabric, unit: u32) -> Outcome {
    const ROUNDS: u64 = 50;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let counter = dsm.alloc::<u64>("counter", 1)?;
    let mut last = None;
    for _ in 0..ROUNDS {
        let lock = dsm.lock("lock")?;
        check!(
            Some(lock.token()) > last,
            "later holders have larger tokens"
        );
        last = Some(lock.token());
        // Not atomic without the lock.
        let next = counter.snapshot()?[0] + 1;
        counter.put(&[next], u64::from(unit))?;
    }
    dsm.barrier("end", count)?;
    same!(counter.read()?[0], ROUNDS * count);
    let held = dsm.lock(&format!("of {unit}"))?;
    let late = fabric.within(SHORT, || dsm.lock(&format!("of {unit}")).map(drop));
    let text = late
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    check!(text.contains(&format!("unit.{unit} writes it")), "{text}");
    // A commit that requires a lock is refused without it, and then its guard ends.
    let chunk = dsm.alloc::<u8>(&format!("chunk of {unit}"), 5000)?;
    let token = held.token();
    same!(chunk.write()?.commit_under(0, token)?, Version(1));
    let guard = chunk.write()?;
    drop(held);
    matches_or_fail!(guard.commit_under(0, token), Err(Error::Fenced { .. }));
    same!(chunk.put(&[0; 5000], 0)?, Version(2));
    Ok(())
}

everywhere!(locks_exclude_and_fence, runs(3, locked));

fn met(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let own = dsm.alloc::<u64>(&format!("of {unit}"), 1)?;
    for round in 1..=30 {
        own.put(&[round], round)?;
        let all = dsm.rendezvous("all", count, &[u64::from(unit), round])?;
        let mut units: Vec<u64> = all.iter().map(|(_, brought)| brought[0]).collect();
        units.sort_unstable();
        same!(units, (0..count).collect::<Vec<_>>());
        for (who, brought) in &all {
            same!(brought[1], round);
            let name = fabric.name_of(who.peer, None);
            check!(name.is_none_or(|name| *name == *format!("unit.{}", brought[0])));
        }
        // All have written before any goes on, and none writes again before all have read.
        for other in 0..count {
            let chunk = dsm.lookup::<u64>(&format!("of {other}"))?;
            same!(chunk.snapshot()?[0], round);
        }
        dsm.barrier("read", count)?;
    }
    let other = dsm.barrier("read", count + 1);
    let text = other
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    check!(
        text.starts_with(&format!("{count} processes meet under")),
        "{text}"
    );
    let alone = fabric.within(SHORT, || dsm.barrier(&format!("alone {unit}"), 2));
    let text = alone
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    check!(text.starts_with("only 1 of 2 processes came"), "{text}");
    dsm.barrier("end", count)?;
    Ok(())
}

everywhere!(all_wait_for_all, runs(3, met));

/// Unit 0 is killed when it belongs to a meeting at which the others wait.
fn broken(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        dsm.barrier("all", 3)?;
        if fabric.identity().unit == 0 {
            let _lock = dsm.lock("lock")?;
            pause("here");
            return Ok(());
        }
        pause("ready");
        let waits = dsm.barrier("all", 3);
        matches_or_fail!(waits, Err(Error::Broken { .. }));
        let text = waits
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        check!(text.contains("unit.0 belongs to it"), "{text}");
        matches_or_fail!(dsm.barrier("all", 3), Err(Error::Broken { .. }));
        // Its lock is free.
        drop(dsm.lock("lock")?);
        dsm.barrier("others", 2)?;
        Ok(())
    };
    served(3, mask).orchestrate(name, body, |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(0), "here");
        for unit in [1, 2] {
            cluster.wait_point(Who::Unit(unit), "ready");
            cluster.release(Who::Unit(unit));
        }
        cluster.kill(Who::Unit(0));
        cluster.all_end();
    });
}

everywhere!(a_member_that_dies_breaks_its_meetings, broken);

/// Work that one unit hands out, and each piece of which one of the others does.
fn taken(fabric: &Fabric, unit: u32) -> Outcome {
    const PIECES: u64 = 60;
    const LENGTH: u64 = 9000;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let work = dsm.alloc::<u8>("work", LENGTH)?;
    let done = dsm.alloc::<u64>("done", PIECES + 1)?;
    if unit == 0 {
        let mut each = done.subscribe(Policy::Every, Version::default())?;
        for piece in 1..=PIECES {
            work.put(&pattern(piece, LENGTH as usize), piece)?;
            same!(each.next_event()?.tag, piece);
        }
        for _ in 1..count {
            let begun = each.after();
            work.put(&pattern(0, LENGTH as usize), 0)?;
            same!(each.next_event()?.version, begun.next());
        }
        let done = done.read()?;
        check!(
            (1..=PIECES).all(|piece| done[piece as usize] == 1),
            "{:?}",
            &done[..]
        );
        let late = fabric.within(SHORT, || work.take().map(drop));
        matches_or_fail!(late, Err(Error::Late { .. }));
        return Ok(());
    }
    loop {
        let piece = work.take()?;
        let tag = piece.tag();
        verify(tag, &piece)?;
        drop(piece);
        done.delegate(tag, Op::Add(1), tag)?;
        if tag == 0 {
            return Ok(());
        }
    }
}

everywhere!(a_version_is_taken_once, runs(4, taken));

fn delegated(fabric: &Fabric, unit: u32) -> Outcome {
    const EACH: u64 = 200;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let words = dsm.alloc::<u64>("words", 4)?;
    let sums = dsm.alloc::<f64>("sums", 2)?;
    let mut last = None;
    for number in 0..EACH {
        let old = words.delegate(1, Op::Add(1), 0)?;
        check!(Some(old) > last, "{old} after {last:?}");
        last = Some(old);
        words.delegate(2, Op::Max(number * count + u64::from(unit)), 0)?;
        sums.delegate(1, Op::AddF64(0.5), 0)?;
    }
    dsm.barrier("added", count)?;
    same!(words.read()?[..3], [0, EACH * count, EACH * count - 1]);
    same!(sums.read()?[..], [0.0, 0.5 * (EACH * count) as f64]);
    dsm.barrier("read", count)?;
    // One of all sees the word as it was.
    let (expected, new) = (0, u64::from(unit) + 1);
    let old = words.delegate(0, Op::CompareSwap { expected, new }, 0)?;
    let all = dsm.rendezvous("swapped", count, &[old])?;
    same!(all.iter().filter(|(_, old)| old[0] == 0).count(), 1);
    matches_or_fail!(
        words.delegate(4, Op::Swap(0), 0),
        Err(Error::NotAWord { .. })
    );
    matches_or_fail!(
        words.delegate(u64::MAX, Op::Min(0), 0),
        Err(Error::NotAWord { .. })
    );
    let long = dsm.alloc::<u64>("long", 513)?;
    matches_or_fail!(
        long.delegate(0, Op::Swap(0), 0),
        Err(Error::NotAWord { .. })
    );
    Ok(())
}

everywhere!(words_are_changed_at_their_home, runs(3, delegated));

/// Each unit moves a unit of value from one chunk to another, in whatever order it names them.
fn moved(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let chunks: Vec<Chunk<i64>> = (0..4)
        .map(|number| dsm.alloc(&format!("account {number}"), 1))
        .collect::<Result<_, _>>()?;
    for round in 0..60 {
        let from = (round + unit as usize) % 4;
        let to = (from + 1 + round % 3) % 4;
        let other = 6 - from - to;
        let read = &chunks[other.min(3)];
        let wanted = [(&chunks[from], Mode::Write), (&chunks[to], Mode::Write)];
        let mut wanted = wanted.to_vec();
        if other < 4 && other != from && other != to {
            wanted.push((read, Mode::Read));
        }
        let mut guards = Chunk::acquire_all(&wanted)?.into_iter();
        let (Some(Guard::Write(mut first)), Some(Guard::Write(mut second))) =
            (guards.next(), guards.next())
        else {
            unreachable!("the guards are those that were wanted");
        };
        first[0] -= 1;
        second[0] += 1;
        first.commit(0)?;
        second.commit(0)?;
    }
    dsm.barrier("end", count)?;
    let mut sum = 0;
    for chunk in &chunks {
        sum += chunk.read()?[0];
    }
    same!(sum, 0);
    Ok(())
}

everywhere!(guards_of_several_chunks_do_not_lock_up, runs(3, moved));

fn freed(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    for length in [100, 50_000] {
        let name = format!("{length} of {unit}");
        let chunk = dsm.alloc::<u8>(&name, length)?;
        let other = chunk.clone();
        let content = pattern(unit.into(), length as usize);
        chunk.put(&content, 1)?;
        drop(chunk.read()?);
        let (read, snapshot) = (chunk.read()?, chunk.snapshot()?);
        let mut events = chunk.subscribe(Policy::Every, Version(1))?;
        let draft = chunk.draft()?;
        other.free()?;
        matches_or_fail!(events.next_event(), Err(Error::Freed { .. }));
        matches_or_fail!(
            draft.put(2),
            Err(Error::Freed { .. } | Error::Fenced { .. })
        );
        matches_or_fail!(chunk.write().map(drop), Err(Error::Freed { .. }));
        matches_or_fail!(chunk.put(&content, 2), Err(Error::Freed { .. }));
        matches_or_fail!(chunk.snapshot().map(drop), Err(Error::Freed { .. }));
        matches_or_fail!(chunk.read().map(drop), Err(Error::Freed { .. }));
        matches_or_fail!(chunk.clone().free(), Err(Error::Freed { .. }));
        let missing = fabric.within(SHORT, || dsm.lookup::<u8>(&name).map(drop));
        matches_or_fail!(missing, Err(Error::NotFound { .. }));
        // What was read before stays, also while the name is used again, and the memory.
        let again = dsm.alloc::<u8>(&name, length)?;
        for version in 1..=5 {
            let new = pattern(1000 + version, length as usize);
            same!(again.put(&new, version)?, Version(version));
            verify(1000 + version, &again.read()?)?;
        }
        verify(unit.into(), &read)?;
        verify(unit.into(), &snapshot)?;
        let guard = again.write()?;
        dsm.lookup::<u8>(&name)?.free()?;
        matches_or_fail!(guard.commit(9), Err(Error::Freed { .. }));
    }
    Ok(())
}

everywhere!(a_chunk_is_freed_for_all, runs(2, freed));

/// Memory and words of chunks that are freed are used again.
fn many_freed(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    for round in 0..40 {
        let chunk = dsm.alloc::<u8>(&format!("{round} of {unit}"), 4 << 20)?;
        let content = pattern(round << 8 | u64::from(unit), 4 << 20);
        chunk.put(&content, round)?;
        drop(chunk.read()?);
        same!(chunk.read()?.tag(), round);
        chunk.free()?;
    }
    Ok(())
}

#[test]
fn the_memory_of_freed_chunks_is_used_again() {
    let body = |fabric: &Fabric, _: &[_]| many_freed(fabric, fabric.identity().unit);
    let name =
        samite_testkit::full_name(module_path!(), "the_memory_of_freed_chunks_is_used_again");
    let units = served(2, Mask::default()).budget(64 << 20);
    units.run(&name, body);
}
