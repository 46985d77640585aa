//! Processes that are killed while they have guards, wait for them, or have committed.

use crate::content::{content, is_whole, number, tag};
use crate::served;
use samite_dsm::{Chunk, Dsm, Error, Policy, Version};
use samite_fabric::{Fabric, Mask, PeerId, agent};
use samite_testkit::{
    Cluster, Outcome, Who, check, full_name, matches_or_fail, pause, point, same,
};

const BYTES: u64 = 200_000;

/// Puts the next version.
fn put(chunk: &Chunk<u8>, version: u64) -> Outcome {
    let tag = tag(version);
    same!(chunk.put(&content(chunk, tag), tag)?, Version(version));
    Ok(())
}

fn check_content(chunk: &Chunk<u8>, version: u64) -> Outcome {
    let read = chunk.read()?;
    let (found, tag) = (read.version(), number(read.tag()));
    same!((found, tag), (Version(version), version));
    is_whole!(chunk, read)
}

/// Returns what runs unit 0, which is killed at the point "here", and unit 1, which goes on then.
fn killed(first: fn(&Dsm) -> Outcome, second: fn(&Dsm) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[PeerId]| {
            let dsm = Dsm::join(fabric)?;
            if fabric.identity().unit == 0 {
                return first(&dsm);
            }
            pause("ready");
            second(&dsm)
        };
        served(2, mask).orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(0), "here");
            cluster.wait_point(Who::Unit(1), "ready");
            cluster.kill(Who::Unit(0));
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
    }
}

fn commits_one(dsm: &Dsm) -> Outcome<Chunk<u8>> {
    let chunk = dsm.alloc::<u8>("shared", BYTES)?;
    put(&chunk, 1)?;
    Ok(chunk)
}

fn dies_writing(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    let mut guard = chunk.update()?;
    guard[..1000].fill(99);
    pause("here");
    drop(guard);
    Ok(())
}

fn sees_the_old_version(dsm: &Dsm) -> Outcome {
    let chunk = dsm.lookup::<u8>("shared")?;
    check_content(&chunk, 1)?;
    put(&chunk, 2)?;
    check_content(&chunk, 2)
}

everywhere!(
    a_writer_that_dies_leaves_the_old_version,
    killed(dies_writing, sees_the_old_version)
);

fn dies_after_its_commit(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    put(&chunk, 2)?;
    pause("here");
    Ok(())
}

everywhere!(
    a_commit_that_was_acknowledged_stays,
    killed(dies_after_its_commit, |dsm| check_content(
        &dsm.lookup::<u8>("shared")?,
        2
    ))
);

fn dies_reading(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    let read = chunk.read()?;
    pause("here");
    drop(read);
    Ok(())
}

/// The second guard is taken without a message where memory is mapped.
fn dies_reading_again(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    drop(chunk.read()?);
    let read = chunk.read()?;
    pause("here");
    drop(read);
    Ok(())
}

everywhere!(
    a_reader_that_dies_keeps_nobody_waiting,
    killed(dies_reading, sees_the_old_version)
);

everywhere!(
    a_reader_that_dies_with_a_guard_of_its_own_keeps_nobody_waiting,
    killed(dies_reading_again, sees_the_old_version)
);

/// Runs unit 0, which is stopped at the point "here" and goes on when unit 1 is done.
fn stopped(first: fn(&Dsm) -> Outcome, second: fn(&Dsm) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[PeerId]| {
            let dsm = Dsm::join(fabric)?;
            if fabric.identity().unit == 0 {
                return first(&dsm);
            }
            pause("ready");
            second(&dsm)?;
            pause("done");
            Ok(())
        };
        served(2, mask).orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(0), "here");
            cluster.wait_point(Who::Unit(1), "ready");
            cluster.stop(Who::Unit(0));
            cluster.release(Who::Unit(1));
            cluster.wait_point(Who::Unit(1), "done");
            cluster.go_on(Who::Unit(0));
            cluster.release(Who::Unit(0));
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
    }
}

/// What a writer commits after its lease is refused; it can write again.
fn stops_writing(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    let mut guard = chunk.update()?;
    guard.fill(99);
    pause("here");
    matches_or_fail!(guard.commit(9), Err(Error::Fenced { .. }));
    check_content(&chunk, 2)?;
    put(&chunk, 3)?;
    check_content(&chunk, 3)
}

everywhere!(
    a_writer_that_is_stopped_is_fenced,
    stopped(stops_writing, sees_the_old_version)
);

/// A reader keeps the version that it has, and asks for the next one.
fn stops_reading(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    drop(chunk.read()?);
    let read = chunk.read()?;
    pause("here");
    same!(number(read.tag()), 1);
    is_whole!(chunk, read)?;
    drop(read);
    for _ in 0..3 {
        check_content(&chunk, 2)?;
    }
    put(&chunk, 3)?;
    check_content(&chunk, 3)
}

fn writes_the_next(dsm: &Dsm) -> Outcome {
    let chunk = dsm.lookup::<u8>("shared")?;
    put(&chunk, 2)?;
    check_content(&chunk, 2)
}

everywhere!(
    a_reader_that_is_stopped_is_not_waited_for,
    stopped(stops_reading, writes_the_next)
);

/// Unit 0 waits for a guard that unit 1 has; unit 2 comes after it.
fn queued(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    match fabric.identity().unit {
        0 => {
            pause("ready");
            let chunk = dsm.lookup::<u8>("shared")?;
            point("asks");
            drop(chunk.write()?);
            check!(false, "it is killed");
        }
        1 => {
            let chunk = commits_one(&dsm)?;
            let mut guard = chunk.update()?;
            let tag = tag(2);
            guard.copy_from_slice(&content(&chunk, tag));
            pause("has a guard");
            same!(guard.commit(tag)?, Version(2));
        }
        _ => {
            pause("ready");
            let chunk = dsm.lookup::<u8>("shared")?;
            put(&chunk, 3)?;
            check_content(&chunk, 3)?;
        }
    }
    Ok(())
}

everywhere!(
    a_process_that_dies_in_the_queue_is_skipped,
    |name: &str, mask| {
        served(3, mask).orchestrate(name, queued, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "has a guard");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "asks");
            cluster.wait_asleep(Who::Unit(0));
            cluster.kill(Who::Unit(0));
            cluster.release(Who::Unit(2));
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
    }
);

/// The memory that dead writers and readers had comes back.
#[test]
fn what_the_dead_had_is_used_again() {
    const LIVES: u32 = 6;
    const LONG: u64 = 10 << 20;
    let name = full_name(module_path!(), "what_the_dead_had_is_used_again");
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let dsm = Dsm::join(fabric)?;
        let chunk = dsm.alloc::<u8>("shared", LONG)?;
        let unit = fabric.identity().unit;
        if unit < LIVES {
            pause("ready");
            let guard = chunk.update()?;
            pause("has a guard");
            drop(guard);
            return Ok(());
        }
        pause("ready");
        for version in 1..=20 {
            put(&chunk, version)?;
            check_content(&chunk, version)?;
        }
        // What is not used for a while comes back, too.
        let begin = fabric.now();
        loop {
            let facts = agent::services(fabric, fabric.deadline())?;
            let owns = facts.iter().flat_map(|service| &service.owns);
            let memory = owns.filter(|owned| owned.is_memory);
            let memory: u64 = memory.map(|owned| owned.amount).sum();
            check!(memory <= 9 * LONG, "{memory} bytes for a chunk of {LONG}");
            // The content, and two drafts of an owner; and as much for the next writers.
            if memory <= 6 * LONG {
                return Ok(());
            }
            let passed = fabric.now().saturating_sub(begin);
            check!(passed < fabric.deadline(), "{memory} bytes stay");
        }
    };
    served(LIVES + 1, Mask::default()).orchestrate(&name, body, |cluster: &mut Cluster| {
        for unit in 0..LIVES {
            cluster.wait_point(Who::Unit(unit), "ready");
            cluster.release(Who::Unit(unit));
            cluster.wait_point(Who::Unit(unit), "has a guard");
            cluster.kill(Who::Unit(unit));
        }
        cluster.wait_point(Who::Unit(LIVES), "ready");
        cluster.release(Who::Unit(LIVES));
        cluster.all_end();
    });
}

/// A subscriber that lets writers wait, and does not take what it is told.
fn dies_full(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    let policy = Policy::Lossless { high_water: 1 };
    let mut all = chunk.subscribe_with_content(policy, Version::default())?;
    pause("here");
    // It was only stopped: what it was told has stayed.
    let first = all.next_version()?;
    same!(first.version(), Version(1));
    is_whole!(chunk, first)
}

everywhere!(
    a_subscriber_that_dies_keeps_no_writer_waiting,
    killed(dies_full, sees_the_old_version)
);

everywhere!(
    a_subscriber_that_is_stopped_is_not_waited_for,
    stopped(dies_full, sees_the_old_version)
);

fn dies_with_a_draft(dsm: &Dsm) -> Outcome {
    let chunk = commits_one(dsm)?;
    let mut draft = chunk.draft()?;
    draft.fill(99);
    pause("here");
    draft.put(9)?;
    Ok(())
}

everywhere!(
    a_process_that_dies_with_a_draft_changes_nothing,
    killed(dies_with_a_draft, sees_the_old_version)
);
