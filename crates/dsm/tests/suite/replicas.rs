//! Chunks with replicas: their homes and backups are killed, or stopped. All servers are those of
//! `servers`; the home of these chunks is the right one.

use crate::content::{content, is_whole, tag};
use crate::servers::{CLIENT, cluster, of, unit, without, write_next};
use samite_dsm::{Chunk, Dsm, Error, Op, Policy, Subscription, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::{Cluster, Outcome, Who, check, matches_or_fail, pause, point, same};
use std::collections::BTreeMap;
use std::time::Duration;

const BYTES: u64 = 10_000;

/// Waits for all clients, at the server that stays.
fn meet(dsm: &Dsm) -> Outcome {
    Ok(dsm.barrier("gateway all", 4)?)
}

/// Checks that the present version is what its tag says, and returns it.
fn check_present(chunk: &Chunk<u8>) -> Outcome<Version> {
    let read = chunk.read()?;
    is_whole!(chunk, read)?;
    Ok(read.version())
}

/// What was committed before the home dies is there afterwards, for old handles and new ones, and
/// all go on.
fn goes_on(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("pair", BYTES)?;
    let short = dsm.alloc::<u64>("triple", 2)?;
    let own = write_next(&chunk, rank)?;
    short.delegate(0, Op::Add(1), 1)?;
    check!(check_present(&chunk)? >= own);
    meet(dsm)?;
    pause("here");
    same!(check_present(&chunk)?, Version(4));
    same!(chunk.snapshot()?.version(), Version(4));
    same!(short.read()?[0], 4);
    meet(dsm)?;
    let new = write_next(&chunk, rank)?;
    check!(new > Version(4));
    let later = tag(1 << 20);
    let next = chunk.put(&content(&chunk, later), later)?;
    check!(next > new);
    short.delegate(0, Op::Add(1), 1)?;
    meet(dsm)?;
    let found = dsm.lookup::<u8>("pair")?;
    same!(check_present(&found)?, Version(12));
    same!(check_present(&chunk)?, Version(12));
    same!(dsm.alloc::<u64>("triple", 2)?.read()?[..], [8, 0]);
    // One that did not exist has another home, which it keeps.
    let other = dsm.alloc::<u8>("pair later", BYTES)?;
    write_next(&other, rank)?;
    meet(dsm)?;
    same!(check_present(&other)?, Version(4));
    meet(dsm)?;
    if rank == 0 {
        chunk.clone().free()?;
    }
    meet(dsm)?;
    matches_or_fail!(
        chunk.put(&content(&chunk, tag(1)), tag(1)),
        Err(Error::Freed { .. })
    );
    let again = dsm.alloc::<u8>("pair", 5)?;
    same!(again.read()?[..], [0; 5]);
    meet(dsm)
}

everywhere!(a_chunk_goes_on_without_its_home, without(1, false, goes_on));

/// Guards and drafts of the home that dies.
fn holds(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("pair held", BYTES)?;
    if rank == 3 {
        write_next(&chunk, rank)?;
        let mut guard = chunk.update()?;
        guard.fill(99);
        pause("here");
        // Now it knows that the home is lost.
        let found = dsm.lookup::<u8>(chunk.name())?;
        same!(found.snapshot()?.version(), Version(1));
        let ended = guard.commit(99);
        matches_or_fail!(&ended, Err(Error::Interrupted { is_known: true, .. }));
        let said = ended.expect_err("it was lost").to_string();
        check!(said.contains("\"right\"") && said.contains("nothing was committed"));
        same!(check_present(&chunk)?, Version(1));
        write_next(&chunk, rank)?;
        return meet(dsm);
    }
    let other = dsm.alloc::<u8>(&format!("pair held by {rank}"), BYTES)?;
    write_next(&other, rank)?;
    let read = other.read()?;
    let mut draft = other.draft()?;
    let second = tag(of(Version(2), rank));
    draft.copy_from_slice(&content(&other, second));
    pause("here");
    // What is read stays, and what was drafted is put at the other home, whose lease ends.
    is_whole!(other, read)?;
    let found = dsm.lookup::<u8>(other.name())?;
    same!(found.snapshot()?.version(), Version(1));
    same!(draft.put(second)?, Version(2));
    is_whole!(other, read)?;
    drop(read);
    same!(check_present(&other)?, Version(2));
    meet(dsm)
}

everywhere!(guards_of_a_lost_home_end, without(1, false, holds));

/// Kills a server while the clients do not wait for anything.
fn during(server: u32, body: fn(&Dsm, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[PeerId]| unit(fabric, body);
        cluster(mask).orchestrate(name, body, |cluster: &mut Cluster| {
            for client in 0..4 {
                cluster.wait_point(Who::Unit(CLIENT + client), "writes");
            }
            cluster.kill(Who::Unit(server));
            for client in 0..4 {
                cluster.wait_point(Who::Unit(CLIENT + client), "goes on");
                cluster.release(Who::Unit(CLIENT + client));
            }
            cluster.all_end();
        });
    }
}

/// All write as fast as they can, while a server dies. What was acknowledged is told to all, in
/// order, each once; what is unknown is there once, or not at all.
fn all_write(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("pair busy", BYTES)?;
    let triple = dsm.alloc::<u8>("triple busy", 100)?;
    for chunk in [&chunk, &triple] {
        let policy = Policy::Every;
        let mut events = chunk.subscribe(policy, Version::default())?;
        meet(dsm)?;
        let mut acknowledged = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut last = Version::default();
        for round in 0..100_u64 {
            let tag = tag(round << 8 | u64::from(rank) << 1 | 1);
            let content = content(chunk, tag);
            let written = match round % 2 {
                0 => chunk.put(&content, tag),
                _ => chunk.write().and_then(|mut guard| {
                    guard.copy_from_slice(&content);
                    guard.commit(tag)
                }),
            };
            match written {
                Ok(version) => {
                    check!(version > last, "{version} after {last}");
                    last = version;
                    acknowledged.insert(version, tag);
                }
                Err(Error::Interrupted { is_known, .. }) => {
                    if !is_known {
                        unknown.push(tag);
                    }
                }
                // The client's own server was lost.
                Err(Error::Fabric(samite_fabric::Error::PeerLost { .. })) => unknown.push(tag),
                Err(error) => return Err(error.into()),
            }
            if round == 10 {
                point("writes");
            }
            check!(check_present(chunk)? >= last);
        }
        if chunk.name() == "triple busy" {
            pause("goes on");
        }
        meet(dsm)?;
        let present = check_present(chunk)?;
        meet(dsm)?;
        let (mut expected, mut known) = (Version::default(), 0);
        while expected < present {
            let event = match events.next_event() {
                Err(Error::Lagged { missed, .. }) => {
                    // More than the server that has taken it over has seen.
                    expected.0 += missed;
                    continue;
                }
                event => event?,
            };
            expected = expected.next();
            same!(event.version, expected);
            if event.tag >> 1 & 0x7f != u64::from(rank) {
                continue;
            }
            match acknowledged.get(&event.version) {
                Some(tag) => {
                    same!(event.tag, *tag);
                    known += 1;
                }
                None => check!(unknown.contains(&event.tag), "tag {}", event.tag),
            }
            unknown.retain(|tag| *tag != event.tag);
        }
        check!(known > 0 && known <= acknowledged.len());
        meet(dsm)?;
    }
    Ok(())
}

everywhere!(no_commit_is_lost_with_a_home, during(1, all_write));
everywhere!(no_commit_is_lost_with_a_backup, during(0, all_write));

/// Subscriptions go on where the chunk is: with content, in order, each once.
fn told(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("pair told", BYTES)?;
    let policy = Policy::Lossless { high_water: 3 };
    let mut events = chunk.subscribe_with_content(policy, Version::default())?;
    let mut next = |version: u64| -> Outcome {
        let event = events.next_version()?;
        same!(event.version(), Version(version));
        is_whole!(chunk, event)
    };
    meet(dsm)?;
    for version in 1..=20_u64 {
        if version == 11 {
            pause("here");
        }
        if version % 4 == u64::from(rank) {
            while chunk.read()?.version().0 < version - 1 {
                std::thread::yield_now();
            }
            same!(write_next(&chunk, rank)?, Version(version));
        }
        next(version)?;
        check!(chunk.read()?.version() >= Version(version));
    }
    meet(dsm)
}

everywhere!(
    subscriptions_go_on_without_the_home,
    without(1, false, told)
);

/// Several subscriptions are waited for, whose home dies.
fn told_of_several(dsm: &Dsm, rank: u32) -> Outcome {
    let chunks: Vec<_> = ["pair first", "triple second"]
        .iter()
        .map(|name| dsm.alloc::<u8>(name, BYTES))
        .collect::<Result<_, _>>()?;
    let begin = |chunk: &Chunk<u8>| chunk.subscribe(Policy::Every, Version::default());
    let mut all: Vec<_> = chunks.iter().map(begin).collect::<Result<_, _>>()?;
    let mut heard = [0; 2];
    meet(dsm)?;
    for version in 1..=20_u64 {
        if version == 11 {
            pause("here");
        }
        if version % 4 == u64::from(rank) {
            for chunk in &chunks {
                write_next(chunk, rank)?;
            }
        }
        while heard.iter().any(|heard| *heard < version) {
            let mut each: Vec<_> = all.iter_mut().collect();
            let which = Subscription::select(&mut each, Duration::from_secs(30))?;
            heard[which] += 1;
            same!(all[which].next_event()?.version, Version(heard[which]));
        }
    }
    meet(dsm)
}

everywhere!(
    several_subscriptions_go_on_without_the_home,
    without(1, false, told_of_several)
);

/// The home is stopped: nobody takes its chunks over, and all go on with it.
fn stops(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("pair stops", BYTES)?;
    let other = dsm.alloc::<u8>("left other", BYTES)?;
    write_next(&chunk, rank)?;
    meet(dsm)?;
    same!(check_present(&chunk)?, Version(4));
    pause("here");
    if rank == 3 {
        write_next(&other, rank)?;
        point("done");
    }
    write_next(&chunk, rank)?;
    meet(dsm)?;
    same!(check_present(&chunk)?, Version(8));
    meet(dsm)
}

everywhere!(a_home_that_is_stopped_goes_on, without(1, true, stops));
