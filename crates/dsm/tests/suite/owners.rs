//! A process that writes a chunk again and again owns it, and commits without a message.

use crate::content::{content, is_whole, number, tag};
use crate::served;
use samite_dsm::{Chunk, Dsm, Error, Policy, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::{
    Cluster, Outcome, Who, check, full_name, matches_or_fail, pause, point, same,
};
use std::time::Duration;

/// The bytes of a chunk whose content is in the page of its owner, and of one whose content is in
/// memory of its home.
const SHORT: u64 = 500;
const LONG: u64 = 100_000;

/// Runs a test with chunks of both lengths: everywhere, or where memory is mapped.
macro_rules! both {
    ($name:ident, $run:expr) => {
        both!($name: everywhere!(run, $run););
    };
    (mapped $name:ident, $run:expr) => {
        both!($name:
            #[test]
            fn mapped() {
                let name = full_name(module_path!(), "mapped");
                $run(&name, Mask::default());
            }
        );
    };
    ($name:ident: $($test:tt)*) => {
        mod $name {
            use super::*;
            mod short {
                use super::*;
                const BYTES: u64 = SHORT;
                $($test)*
            }
            mod long {
                use super::*;
                const BYTES: u64 = LONG;
                $($test)*
            }
        }
    };
}

/// More than a process writes before it asks to own a chunk.
const MANY: u64 = 20;

/// Returns what runs a body in that many units.
fn runs(count: u32, body: fn(&Fabric, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[PeerId]| body(fabric, fabric.identity().unit);
        served(count, mask).run(name, body);
    }
}

/// Puts the next version, by each of the ways in turn.
fn write(chunk: &Chunk<u8>, version: u64) -> Outcome {
    let tag = tag(version);
    let content = content(chunk, tag);
    let written = match version % 4 {
        0 => chunk.put(&content, tag)?,
        1 => {
            let mut guard = chunk.write()?;
            same!(guard.version(), Version(version - 1));
            guard.copy_from_slice(&content);
            guard.commit(tag)?
        }
        2 => {
            let mut guard = chunk.update()?;
            // It contains what was written before.
            let before = chunk.snapshot()?;
            same!(before.version(), guard.version());
            same!(&guard[..], &before[..]);
            guard.copy_from_slice(&content);
            guard.commit(tag)?
        }
        _ => {
            let mut draft = chunk.draft()?;
            draft.copy_from_slice(&content);
            draft.put(tag)?
        }
    };
    same!(written, Version(version));
    Ok(())
}

/// Writes so many versions. Returns the number of messages that the server gets meanwhile.
fn messages(dsm: &Dsm, chunk: &Chunk<u8>, from: u64, count: u64) -> Outcome<u64> {
    let before = dsm.counters()?.received;
    for version in from..from + count {
        write(chunk, version)?;
    }
    Ok(dsm.counters()?.received - before)
}

/// Writes a thousand versions. Returns whether there are a hundred of them for which the server
/// gets no message but the question how many it has got. On a busy machine the server may refuse to
/// let the chunk be owned at first.
fn is_quiet(dsm: &Dsm, chunk: &Chunk<u8>, from: u64) -> Outcome<bool> {
    let mut is_quiet = false;
    for first in (from..from + 1000).step_by(100) {
        is_quiet |= messages(dsm, chunk, first, 100)? <= 1;
    }
    Ok(is_quiet)
}

fn owns<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    if unit == 0 {
        messages(&dsm, &chunk, 1, MANY)?;
        check!(
            is_quiet(&dsm, &chunk, MANY + 1)?,
            "a message for each version"
        );
        // What it reads itself needs none, either.
        let before = dsm.counters()?.received;
        for _ in 0..100 {
            is_whole!(chunk, chunk.read()?)?;
            is_whole!(chunk, chunk.snapshot()?)?;
        }
        same!(dsm.counters()?.received - before, 1);
    }
    dsm.barrier("written", 2)?;
    let read = chunk.read()?;
    same!(read.version(), Version(MANY + 1000));
    is_whole!(chunk, read)
}

both!(mapped who_writes_again_and_again_sends_no_messages, runs(2, owns::<BYTES>));

/// Each version that a reader sees is whole, and not older than the one before.
fn read_on<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    const VERSIONS: u64 = 3000;
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    dsm.barrier("all", 3)?;
    if unit == 0 {
        for version in 1..=VERSIONS {
            write(&chunk, version)?;
        }
        return dsm.barrier("end", 3).map_err(Into::into);
    }
    let mut last = Version::default();
    while last < Version(VERSIONS) {
        let version = match unit {
            1 => {
                let read = chunk.read()?;
                is_whole!(chunk, read)?;
                // Nothing is committed as long as the guard exists.
                same!(chunk.snapshot()?.version(), read.version());
                read.version()
            }
            _ => {
                let snapshot = chunk.snapshot()?;
                is_whole!(chunk, snapshot)?;
                snapshot.version()
            }
        };
        check!(version >= last, "{version} after {last}");
        last = version;
    }
    dsm.barrier("end", 3).map_err(Into::into)
}

both!(readers_see_whole_versions, runs(3, read_on::<BYTES>));

/// Subscribers of both kinds, and one that begins later.
fn subscribe<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    const VERSIONS: u64 = 2000;
    const STEP: u64 = 100;
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    let seen = |unit: u32| dsm.alloc::<u64>(&format!("what {unit} has seen"), 1);
    let writer = fabric.me();
    if unit == 0 {
        let of_others = [seen(1)?, seen(2)?];
        dsm.barrier("all", 3)?;
        for version in 1..=VERSIONS {
            write(&chunk, version)?;
            // Nobody may miss more than a page has.
            let is_behind =
                |seen: &Chunk<u64>| Ok::<_, Error>(seen.snapshot()?[0] + STEP < version);
            for other in &of_others {
                while is_behind(other)? {
                    std::thread::yield_now();
                }
            }
        }
        return dsm.barrier("end", 3).map_err(Into::into);
    }
    let policy = [Policy::Every, Policy::Latest][unit as usize - 1];
    let mut events = chunk.subscribe(policy, Version::default())?;
    let seen = seen(unit)?;
    dsm.barrier("all", 3)?;
    let mut last = Version::default();
    while last < Version(VERSIONS) {
        let event = events.next_event()?;
        match policy {
            Policy::Every => same!(event.version, last.next()),
            _ => check!(event.version > last, "{} after {last}", event.version),
        }
        same!(number(event.tag), event.version.0);
        check!(event.writer.peer != writer, "it is another process");
        last = event.version;
        seen.put(&[last.0], 0)?;
        // What was told can be read.
        check!(chunk.snapshot()?.version() >= last, "{last} is not there");
        if last.0.is_multiple_of(701) {
            events = chunk.subscribe(policy, last)?;
        }
    }
    dsm.barrier("end", 3).map_err(Into::into)
}

both!(subscribers_hear_of_each_commit, runs(3, subscribe::<BYTES>));

/// The writer computes for a while, so that the subscriber sleeps.
fn wake(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunks = [dsm.alloc::<u64>("0", 1)?, dsm.alloc::<u64>("1", 1)?];
    let (own, other) = (&chunks[unit as usize], &chunks[1 - unit as usize]);
    let mut events = other.subscribe(Policy::Every, Version::default())?;
    dsm.barrier("all", 2)?;
    for round in 1..=60 {
        if unit == 0 {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            own.put(&[round], round)?;
        }
        let event = events.next_event()?;
        same!((event.version, event.tag), (Version(round), round));
        if unit == 1 {
            own.put(&[round], round)?;
        }
    }
    Ok(())
}

everywhere!(who_sleeps_is_woken, runs(2, wake));

/// All add to one number, in all ways: none is lost.
fn count(fabric: &Fabric, unit: u32) -> Outcome {
    const EACH: u64 = 600;
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u64>("shared", 2)?;
    let units = u64::from(fabric.identity().units);
    dsm.barrier("all", units)?;
    for turn in 0..EACH {
        // For a while the same process, and then another one.
        if turn % 50 == 0 && turn / 50 % 3 == u64::from(unit) {
            chunk.delegate(0, samite_dsm::Op::Add(1), 0)?;
            continue;
        }
        let mut guard = chunk.update()?;
        guard[0] += 1;
        guard[1] = guard[0];
        guard.commit(0)?;
    }
    dsm.barrier("end", units)?;
    same!(chunk.read()?[0], units * EACH);
    same!(chunk.read()?.version(), Version(units * EACH));
    Ok(())
}

everywhere!(no_update_is_lost, runs(3, count));

/// Two processes write in bursts; a third one reads by messages only, where that is possible.
fn bursts<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    for round in 0..8 {
        if unit == round % 2 {
            for version in 0..50 {
                write(&chunk, u64::from(round) * 50 + version + 1)?;
            }
        }
        dsm.barrier("written", 3)?;
        let read = chunk.read()?;
        same!(read.version(), Version(u64::from(round + 1) * 50));
        is_whole!(chunk, read)?;
        drop(read);
        dsm.barrier("read", 3)?;
    }
    Ok(())
}

both!(writers_take_turns, runs(3, bursts::<BYTES>));

/// An owner waits for readers, as any writer does.
fn wait<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    if unit == 0 {
        messages(&dsm, &chunk, 1, MANY)?;
    }
    dsm.barrier("owned", 2)?;
    let read = (unit == 1).then(|| chunk.read()).transpose()?;
    dsm.barrier("read", 2)?;
    if unit == 0 {
        let short = Duration::from_millis(30);
        let late = fabric.within(short, || chunk.put(&vec![1; BYTES as usize], 1));
        matches_or_fail!(late, Err(Error::Late { holders, .. }) if holders.len() == 1);
        let late = fabric.within(short, || chunk.write().map(drop));
        matches_or_fail!(late, Err(Error::Late { .. }));
    }
    dsm.barrier("late", 2)?;
    if let Some(read) = read {
        same!(read.version(), Version(MANY));
        is_whole!(chunk, read)?;
    }
    dsm.barrier("over", 2)?;
    if unit == 0 {
        write(&chunk, MANY + 1)?;
    }
    Ok(())
}

both!(an_owner_waits_for_readers, runs(2, wait::<BYTES>));

/// Returns what runs unit 0, which is killed at the point "here", and unit 1, which goes on then.
fn killed<const BYTES: u64>(first: fn(&Dsm) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = move |fabric: &Fabric, _: &[PeerId]| {
            let dsm = Dsm::join(fabric)?;
            if fabric.identity().unit == 0 {
                return first(&dsm);
            }
            // It has read the chunk before.
            let chunk = dsm.alloc::<u8>("shared", BYTES)?;
            drop(chunk.read()?);
            let mut events = chunk.subscribe(Policy::Every, Version::default())?;
            pause("ready");
            for version in 1..=MANY {
                let event = events.next_event()?;
                same!((event.version.0, number(event.tag)), (version, version));
            }
            let read = chunk.read()?;
            same!(read.version(), Version(MANY));
            is_whole!(chunk, read)?;
            drop(read);
            write(&chunk, MANY + 1)?;
            same!(events.next_event()?.version, Version(MANY + 1));
            Ok(())
        };
        served(2, mask).orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "ready");
            cluster.wait_point(Who::Unit(0), "begins");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "here");
            cluster.kill(Who::Unit(0));
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
    }
}

fn owned<const BYTES: u64>(dsm: &Dsm) -> Outcome<Chunk<u8>> {
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    pause("begins");
    for version in 1..=MANY {
        write(&chunk, version)?;
    }
    Ok(chunk)
}

both!(
    what_a_killed_owner_has_committed_stays,
    killed::<BYTES>(|dsm| {
        let chunk = owned::<BYTES>(dsm)?;
        pause("here");
        drop(chunk);
        Ok(())
    })
);

both!(
    what_a_killed_owner_has_not_committed_is_lost,
    killed::<BYTES>(|dsm| {
        let chunk = owned::<BYTES>(dsm)?;
        let mut guard = chunk.update()?;
        guard[..100].fill(99);
        pause("here");
        drop(guard);
        Ok(())
    })
);

both!(
    what_an_owner_has_read_keeps_nobody_waiting,
    killed::<BYTES>(|dsm| {
        let chunk = owned::<BYTES>(dsm)?;
        let read = chunk.read()?;
        pause("here");
        drop(read);
        Ok(())
    })
);

/// An owner is stopped while it writes, for longer than its lease.
fn stopped<const BYTES: u64>(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let chunk = dsm.alloc::<u8>("shared", BYTES)?;
        if fabric.identity().unit == 0 {
            for version in 1..=MANY {
                write(&chunk, version)?;
            }
            let mut guard = chunk.write()?;
            guard.fill(99);
            pause("here");
            matches_or_fail!(guard.commit(99), Err(Error::Fenced { .. }));
            point("fenced");
            // It may write again.
            return write(&chunk, MANY + 2);
        }
        pause("ready");
        let read = chunk.snapshot()?;
        same!(read.version(), Version(MANY));
        is_whole!(chunk, read)?;
        write(&chunk, MANY + 1)?;
        pause("written");
        Ok(())
    };
    served(2, mask).orchestrate(name, body, |cluster: &mut Cluster| {
        let (owner, other) = (Who::Unit(0), Who::Unit(1));
        cluster.wait_point(owner, "here");
        cluster.wait_point(other, "ready");
        cluster.stop(owner);
        cluster.release(other);
        cluster.wait_point(other, "written");
        cluster.go_on(owner);
        cluster.release(owner);
        cluster.wait_point(owner, "fenced");
        cluster.release(other);
        cluster.all_end();
    });
}

both!(mapped an_owner_that_is_stopped_too_long_is_fenced, stopped::<BYTES>);

/// The chunk is freed, or its owner has dropped all handles: then it owns nothing any more.
fn end<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    if unit == 0 {
        let chunk = dsm.alloc::<u8>("dropped", BYTES)?;
        messages(&dsm, &chunk, 1, MANY)?;
        drop(chunk);
        let chunk = dsm.alloc::<u8>("freed", BYTES)?;
        messages(&dsm, &chunk, 1, MANY)?;
        let guard = chunk.write()?;
        dsm.barrier("owned", 2)?;
        dsm.barrier("freed", 2)?;
        matches_or_fail!(guard.commit(1), Err(Error::Freed { .. }));
        let freed = chunk.put(&vec![1; BYTES as usize], 1);
        matches_or_fail!(freed, Err(Error::Freed { .. }));
        matches_or_fail!(chunk.read().map(drop), Err(Error::Freed { .. }));
        return Ok(());
    }
    let dropped = dsm.lookup::<u8>("dropped")?;
    let freed = dsm.lookup::<u8>("freed")?;
    dsm.barrier("owned", 2)?;
    same!(dropped.read()?.version(), Version(MANY));
    is_whole!(dropped, dropped.read()?)?;
    write(&dropped, MANY + 1)?;
    freed.free()?;
    dsm.barrier("freed", 2)?;
    Ok(())
}

both!(an_ownership_ends, runs(2, end::<BYTES>));

/// A chunk is owned again by a process that has joined again, after others have read it, and left.
fn again<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    let mut written = 0;
    for round in 0..4 {
        let dsm = Dsm::join(fabric)?;
        let chunk = dsm.alloc::<u8>("shared", BYTES)?;
        if unit == 1 && round % 2 == 0 {
            drop(chunk.read()?);
        }
        dsm.barrier("read", 2)?;
        if unit == 0 {
            messages(&dsm, &chunk, written + 1, MANY)?;
            let is_quiet = is_quiet(&dsm, &chunk, written + MANY + 1)?;
            check!(is_quiet, "a message for each version");
            written += MANY + 1000;
        }
        dsm.barrier("all", 2)?;
    }
    Ok(())
}

both!(mapped a_chunk_is_owned_again, runs(2, again::<BYTES>));

/// What is committed under a lock is committed by the home, which knows whether it is held.
fn lock<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    if unit == 0 {
        messages(&dsm, &chunk, 1, MANY)?;
        let mut guard = chunk.write()?;
        let tag_of_next = tag(MANY + 1);
        guard.copy_from_slice(&content(&chunk, tag_of_next));
        let lock = dsm.lock("lock")?;
        let version = guard.commit_under(tag_of_next, lock.token())?;
        same!(version, Version(MANY + 1));
        let late = lock.token();
        drop(lock);
        drop(dsm.lock("lock")?);
        let guard = chunk.write()?;
        matches_or_fail!(guard.commit_under(1, late), Err(Error::Fenced { .. }));
        write(&chunk, MANY + 2)?;
    }
    dsm.barrier("written", 2)?;
    same!(chunk.read()?.version(), Version(MANY + 2));
    is_whole!(chunk, chunk.read()?)
}

both!(an_owner_commits_under_locks, runs(2, lock::<BYTES>));

/// Several threads of a process write a chunk, and ask to own it; another process does, too.
fn threads<const BYTES: u64>(fabric: &Fabric, _: u32) -> Outcome {
    const EACH: u64 = 400;
    const THREADS: u64 = 3;
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u64>("shared", BYTES / 8)?;
    dsm.barrier("all", 2)?;
    let add = || -> Outcome {
        for turn in 0..EACH {
            let mut guard = chunk.update()?;
            let next = guard[0] + 1;
            same!(guard[guard.len() - 1], guard[0]);
            guard.fill(next);
            // Some are not committed.
            if turn % 7 == 3 {
                drop(guard);
                chunk.update()?.commit(0)?;
            } else {
                guard.commit(next)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Outcome {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(add)).collect();
        for thread in threads {
            thread.join().expect("it does not panic")?;
        }
        Ok(())
    })?;
    dsm.barrier("end", 2)?;
    let read = chunk.read()?;
    let dropped = (0..EACH).filter(|turn| turn % 7 == 3).count() as u64;
    same!(read[0], 2 * THREADS * (EACH - dropped));
    same!(read.version(), Version(2 * THREADS * EACH));
    Ok(())
}

both!(
    threads_write_what_their_process_owns,
    runs(2, threads::<BYTES>)
);

/// Old versions that others keep stay as they are, however many the owner writes, and their memory
/// is used again when they are dropped.
fn keep<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    const VERSIONS: u64 = 60;
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    if unit == 0 {
        messages(&dsm, &chunk, 1, MANY)?;
    }
    let mut kept = Vec::new();
    for round in 0..VERSIONS {
        dsm.barrier("read", 2)?;
        if unit == 0 {
            write(&chunk, MANY + 1 + round)?;
        } else {
            let snapshot = chunk.snapshot()?;
            check!(snapshot.version() >= Version(MANY + round), "an old one");
            kept.push(snapshot);
            if round % 20 == 19 {
                for snapshot in kept.drain(..) {
                    is_whole!(chunk, snapshot)?;
                }
            }
        }
        dsm.barrier("written", 2)?;
    }
    if unit == 0 {
        // It has enough memory now.
        let is_quiet = is_quiet(&dsm, &chunk, MANY + VERSIONS + 1)?;
        check!(is_quiet, "a message for each version");
    }
    dsm.barrier("all", 2)?;
    same!(chunk.read()?.version(), Version(MANY + VERSIONS + 1000));
    is_whole!(chunk, chunk.read()?)
}

both!(mapped versions_that_are_kept_stay, runs(2, keep::<BYTES>));

/// Drafts of a chunk that is owned: several at a time, in any order, and some that are dropped.
fn drafts<const BYTES: u64>(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    let mut version = MANY;
    if unit == 0 {
        messages(&dsm, &chunk, 1, MANY)?;
    }
    dsm.barrier("owned", 2)?;
    for round in 0..20 {
        if unit == 0 {
            let mut drafts = Vec::new();
            for number in 0..5 {
                let mut draft = chunk.draft()?;
                draft.fill(99);
                drafts.push((number, draft));
            }
            drafts.swap(0, 3);
            for (number, mut draft) in drafts {
                if number == 2 {
                    continue; // It is dropped.
                }
                version += 1;
                let tag = tag(version);
                draft.copy_from_slice(&content(&chunk, tag));
                same!(draft.put(tag)?, Version(version));
                let read = chunk.read()?;
                same!(read.version(), Version(version));
                is_whole!(chunk, read)?;
            }
        } else {
            version += 4;
            // Sometimes the home takes the chunk back while there are drafts.
            if round % 3 == 0 {
                let snapshot = chunk.snapshot()?;
                is_whole!(chunk, snapshot)?;
            }
        }
    }
    dsm.barrier("written", 2)?;
    same!(chunk.read()?.version(), Version(version));
    is_whole!(chunk, chunk.read()?)
}

both!(an_owner_puts_drafts, runs(2, drafts::<BYTES>));
