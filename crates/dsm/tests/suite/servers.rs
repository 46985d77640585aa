//! Several servers: the agent's, and two units. Clients have a server of their own, or ask the home
//! of each chunk.

use crate::content::{content, is_whole, number, tag};
use samite_dsm::service::{ChunkService, STARTER};
use samite_dsm::{Chunk, Dsm, Error, Mode, Op, Policy, Topology, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::{
    Cluster, Outcome, Units, Who, check, matches_or_fail, pause, point, programs, same,
};
use std::sync::Arc;

/// Two units of a program are servers, beside the agent's.
fn topology_of(program: &str, more: &str) -> Arc<Topology> {
    let text = format!(
        r#"
        [[server]]
        name = "gateway"
        [[server]]
        name = "left"
        program = "{program}"
        rank = 0
        cache = 1500000
        [[server]]
        name = "right"
        program = "{program}"
        rank = 1
        [[chunk]]
        name = "left*"
        home = "left"
        [[chunk]]
        name = "right*"
        home = "right"
        [[chunk]]
        name = "gateway*"
        home = "gateway"
        {more}
        "#
    );
    Arc::new(Topology::parse(&text).expect("it is valid"))
}

/// Of the clients, 0 and 1 use the left server, 2 the right one, and 3 asks the home of each chunk.
const CLIENTS: &str = r#"
    [[client]]
    program = "client"
    ranks = [0, 1]
    server = "left"
    [[client]]
    program = "client"
    ranks = [2]
    server = "right"
    [[chunk]]
    name = "pushed*"
    protocol = "update"
    home = "right"
    [[chunk]]
    name = "once*"
    protocol = "immutable"
    home = "right"
    [[chunk]]
    name = "apart*"
    protocol = "home-only"
    home = "right"
    [[chunk]]
    name = "pair*"
    home = "right"
    replicas = 2
    [[chunk]]
    name = "triple*"
    home = "right"
    replicas = 3
"#;

const HOMES: [&str; 3] = ["gateway", "left", "right"];

/// The first client among the units.
pub(crate) const CLIENT: u32 = 2;

pub(crate) fn topology() -> Arc<Topology> {
    topology_of("server", CLIENTS)
}

pub(crate) fn cluster(mask: Mask) -> Units {
    let units = programs(&[("server", 2), ("client", 4)]);
    units.services(vec![STARTER]).mask(mask)
}

/// Runs a server, or a client with its rank.
pub(crate) fn unit(fabric: &Fabric, client: impl FnOnce(&Dsm, u32) -> Outcome) -> Outcome {
    let topology = topology();
    if fabric.identity().program == "server" {
        let mut service = ChunkService::join(fabric, &topology)?;
        return Ok(service.run_for_job()?);
    }
    let dsm = Dsm::join_with(fabric, topology)?;
    client(&dsm, fabric.identity().rank)
}

/// Returns what runs a body in each of four clients.
pub(crate) fn runs(body: fn(&Dsm, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        cluster(mask).run(name, |fabric: &Fabric, _: &[PeerId]| unit(fabric, body));
    }
}

/// Waits for all clients.
fn meet(dsm: &Dsm) -> Outcome {
    Ok(dsm.barrier("all", 4)?)
}

/// The number of a version that a client writes.
pub(crate) fn of(version: Version, rank: u32) -> u64 {
    version.0 << 8 | u64::from(rank)
}

/// Puts a version with a tag that has that number, below 2^32.
fn put(chunk: &Chunk<u8>, number: u64) -> Outcome {
    let tag = tag(number);
    chunk.put(&content(chunk, tag), tag)?;
    Ok(())
}

/// Writes the next version after checking the present one.
pub(crate) fn write_next(chunk: &Chunk<u8>, rank: u32) -> Outcome<Version> {
    let mut guard = chunk.update()?;
    let next = guard.version().next();
    let tag = tag(of(next, rank));
    guard.copy_from_slice(&content(chunk, tag));
    same!(guard.commit(tag)?, next);
    Ok(next)
}

fn all_write(dsm: &Dsm, rank: u32) -> Outcome {
    const ROUNDS: u64 = 12;
    for home in HOMES {
        for length in [0, 1, 4096, 4097, 300_000] {
            let chunk = dsm.alloc::<u8>(&format!("{home} {length}"), length)?;
            for round in 0..ROUNDS {
                match (u64::from(rank) + round) % 3 {
                    0 => put(&chunk, 1 << 30 | round << 8 | u64::from(rank))?,
                    _ => _ = write_next(&chunk, rank)?,
                }
                let read = chunk.read()?;
                is_whole!(chunk, read)?;
                let version = read.version();
                drop(read);
                let again = chunk.read()?;
                check!(again.version() >= version);
                is_whole!(chunk, again)?;
                drop(again);
                let snapshot = chunk.snapshot()?;
                check!(snapshot.version() >= version);
                is_whole!(chunk, snapshot)?;
            }
        }
    }
    meet(dsm)?;
    for home in HOMES {
        let chunk = dsm.lookup::<u8>(&format!("{home} 300000"))?;
        same!(chunk.read()?.version().0, ROUNDS * 4);
    }
    Ok(())
}

everywhere!(versions_are_whole_at_all_servers, runs(all_write));

/// What one client has committed is seen by all others, whatever servers they use.
fn in_turn(dsm: &Dsm, rank: u32) -> Outcome {
    for home in HOMES {
        let chunk = dsm.alloc::<u8>(&format!("{home} turns"), 10_000)?;
        for version in 0..20_u64 {
            if version % 4 == u64::from(rank) {
                same!(write_next(&chunk, rank)?, Version(version + 1));
            }
            meet(dsm)?;
            let read = chunk.read()?;
            same!(read.version(), Version(version + 1));
            same!(number(read.tag()), of(read.version(), (version % 4) as u32));
            is_whole!(chunk, read)?;
            drop(read);
            meet(dsm)?;
        }
    }
    Ok(())
}

everywhere!(all_see_what_was_committed, runs(in_turn));

fn readers_share(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("right shared", 10_000)?;
    if rank == 3 {
        put(&chunk, 1)?;
    }
    meet(dsm)?;
    drop(chunk.read()?);
    meet(dsm)?;
    // The copy of the own server is read without a message, where it is mapped.
    let before = dsm.counters()?.granted;
    for _ in 0..100 {
        let read = chunk.read()?;
        same!(number(read.tag()), 1);
        is_whole!(chunk, read)?;
        check!(!read.in_place() || read.without_message());
    }
    meet(dsm)?;
    same!(dsm.counters()?.granted, before);
    Ok(())
}

everywhere!(copies_are_read_again_and_again, runs(readers_share));

fn pushed(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("pushed", 10_000)?;
    drop(chunk.read()?);
    for version in 1..=10_u64 {
        meet(dsm)?;
        if rank == 3 {
            put(&chunk, version)?;
        }
        meet(dsm)?;
        let read = chunk.read()?;
        same!(read.version(), Version(version));
        same!(number(read.tag()), version);
        is_whole!(chunk, read)?;
        drop(read);
    }
    Ok(())
}

everywhere!(versions_are_pushed, runs(pushed));

fn written_once(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("once", 10_000)?;
    if rank == 0 {
        let mut guard = chunk.write()?;
        guard.copy_from_slice(&content(&chunk, tag(7)));
        guard.commit(tag(7))?;
    }
    meet(dsm)?;
    is_whole!(chunk, chunk.read()?)?;
    let refused = chunk.put(&content(&chunk, tag(8)), 8);
    matches_or_fail!(refused, Err(Error::Immutable { .. }));
    let refused = chunk.write();
    matches_or_fail!(refused, Err(Error::Immutable { .. }));
    let read = chunk.read()?;
    same!(number(read.tag()), 7);
    is_whole!(chunk, read)?;
    Ok(())
}

everywhere!(an_immutable_chunk_is_written_once, runs(written_once));

fn apart(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u64>("apart", 4)?;
    for _ in 0..25 {
        let mut guard = chunk.update()?;
        guard[0] += 1;
        guard.commit(0)?;
        chunk.delegate(1, Op::Add(2), 0)?;
    }
    meet(dsm)?;
    let read = chunk.read()?;
    same!(read[..], [100, 200, 0, 0]);
    drop(read);
    meet(dsm)?;
    let granted = dsm.counters()?.granted;
    check!(rank > 3 || granted == 0);
    Ok(())
}

everywhere!(a_chunk_may_stay_at_its_home, runs(apart));

/// Clients 0 and 2, which use different servers, write in turn: after a while both are served at
/// the home.
fn alternate(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u64>("gateway bounces", 1)?;
    let write = |rounds: std::ops::Range<u32>| -> Outcome {
        for round in rounds {
            if [0, 2][round as usize % 2] == rank {
                let mut guard = chunk.update()?;
                guard[0] += 1;
                guard.commit(0)?;
            }
            meet(dsm)?;
        }
        Ok(())
    };
    write(0..20)?;
    let first = dsm.counters()?.granted;
    meet(dsm)?;
    write(20..40)?;
    let second = dsm.counters()?.granted - first;
    meet(dsm)?;
    same!(chunk.read()?[0], 40);
    check!(first > 4 && second == 0);
    Ok(())
}

everywhere!(a_chunk_that_bounces_is_served_at_its_home, runs(alternate));

/// The left server has memory for a few copies only.
fn evicts(dsm: &Dsm, rank: u32) -> Outcome {
    const BYTES: usize = 400_000;
    let mut chunks = Vec::new();
    for number in 0..10_u64 {
        let chunk = dsm.alloc::<u8>(&format!("right {number}"), BYTES as u64)?;
        if rank == 3 {
            put(&chunk, number)?;
        }
        chunks.push(chunk);
    }
    meet(dsm)?;
    for round in 0..3 {
        for (number, chunk) in chunks.iter().enumerate() {
            if round == 2 && rank == 2 {
                put(chunk, 100 + number as u64)?;
            }
            let read = chunk.read()?;
            is_whole!(chunk, read)?;
        }
    }
    meet(dsm)?;
    for (number, chunk) in chunks.iter().enumerate() {
        same!(self::number(chunk.read()?.tag()), 100 + number as u64);
    }
    check!(dsm.counters()?.evicted > 0);
    Ok(())
}

everywhere!(copies_are_evicted, runs(evicts));

fn told(dsm: &Dsm, rank: u32) -> Outcome {
    for home in HOMES {
        let chunk = dsm.alloc::<u8>(&format!("{home} told"), 10_000)?;
        let policy = Policy::Lossless { high_water: 3 };
        let mut events = chunk.subscribe_with_content(policy, Version::default())?;
        meet(dsm)?;
        for version in 1..=20_u64 {
            if version % 4 == u64::from(rank) {
                // By a guard of the writer's own server, in turn.
                while chunk.read()?.version().0 < version - 1 {
                    std::thread::yield_now();
                }
                same!(write_next(&chunk, rank)?, Version(version));
            }
            let event = events.next_version()?;
            same!(event.version(), Version(version));
            same!(
                number(event.tag()),
                of(Version(version), (version % 4) as u32)
            );
            is_whole!(chunk, event)?;
            // A reader that has heard of a version sees no older one.
            check!(chunk.read()?.version() >= Version(version));
        }
        meet(dsm)?;
    }
    Ok(())
}

everywhere!(all_are_told_of_commits_at_all_servers, runs(told));

fn locked(dsm: &Dsm, _: u32) -> Outcome {
    let count = dsm.alloc::<u64>("left count", 1)?;
    for name in ["gateway lock", "left lock", "right lock"] {
        for _ in 0..5 {
            let lock = dsm.lock(name)?;
            let mut guard = count.update()?;
            guard[0] += 1;
            guard.commit_under(0, lock.token())?;
        }
    }
    let late = {
        let lock = dsm.lock("right lock")?;
        lock.token()
    };
    let mut guard = count.update()?;
    guard[0] += 1000;
    matches_or_fail!(guard.commit_under(0, late), Err(Error::Fenced { .. }));
    meet(dsm)?;
    same!(count.read()?[0], 60);
    Ok(())
}

everywhere!(locks_of_one_server_fence_chunks_of_another, runs(locked));

fn freed(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("right freed", 10_000)?;
    put(&chunk, 1)?;
    drop(chunk.read()?);
    meet(dsm)?;
    if rank == 1 {
        chunk.clone().free()?;
    }
    meet(dsm)?;
    let mut read = chunk.read();
    // That it is freed may still be on its way to the own server.
    while read.is_ok() {
        drop(read);
        std::thread::yield_now();
        read = chunk.read();
    }
    matches_or_fail!(read, Err(Error::Freed { .. }));
    matches_or_fail!(chunk.write(), Err(Error::Freed { .. }));
    meet(dsm)?;
    let again = dsm.alloc::<u8>("right freed", 5)?;
    same!(again.read()?[..], [0; 5]);
    Ok(())
}

everywhere!(a_chunk_is_freed_at_all_servers, runs(freed));

/// Returns what runs a server that is killed, or stopped, when client 0 is at "here"; the others go
/// on then.
pub(crate) fn without(
    server: u32,
    is_stopped: bool,
    body: fn(&Dsm, u32) -> Outcome,
) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[PeerId]| unit(fabric, body);
        cluster(mask).orchestrate(name, body, |cluster: &mut Cluster| {
            for client in 0..4 {
                cluster.wait_point(Who::Unit(CLIENT + client), "here");
            }
            match is_stopped {
                true => cluster.stop(Who::Unit(server)),
                false => cluster.kill(Who::Unit(server)),
            }
            for client in 0..4 {
                cluster.release(Who::Unit(CLIENT + client));
            }
            if is_stopped {
                cluster.wait_point(Who::Unit(CLIENT + 3), "done");
                cluster.go_on(Who::Unit(server));
            }
            cluster.all_end();
        });
    }
}

/// The home of a chunk dies: all hear that it is lost, and which version was the last.
fn home_dies(dsm: &Dsm, _: u32) -> Outcome {
    let lost = dsm.alloc::<u8>("right lost", 10_000)?;
    let other = dsm.alloc::<u8>("left other", 10_000)?;
    put(&lost, 1)?;
    drop(lost.read()?);
    pause("here");
    let ended = loop {
        match lost.read() {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    matches_or_fail!(&ended, Error::Lost { last, .. } if last.0 >= 1);
    let said = ended.to_string();
    check!(said.contains("\"right\"") && said.contains("right lost"));
    let refused = lost.put(&content(&lost, tag(2)), tag(2));
    matches_or_fail!(refused, Err(Error::Lost { .. }));
    put(&other, 3)?;
    is_whole!(other, other.read()?)
}

everywhere!(a_chunk_is_lost_with_its_home, without(1, false, home_dies));

/// The home of a chunk dies that a client owns. Another one, which has not read the last version,
/// hears it when it already knows that the home is lost.
fn home_of_owner_dies(dsm: &Dsm, rank: u32) -> Outcome {
    const MANY: u64 = 20;
    let lost = dsm.alloc::<u8>("right lost", 10_000)?;
    let other = dsm.alloc::<u8>("right other", 1)?;
    // The clients 2 and 3 have no server but the home of both.
    for (round, writes) in ["left first", "left second"].iter().zip([MANY, 2 * MANY]) {
        if rank == 2 {
            let written = lost.snapshot()?.version().0;
            for number in written + 1..=writes {
                put(&lost, number)?;
            }
        }
        dsm.barrier(&format!("{round} written"), 4)?;
        if rank == 3 && writes == MANY {
            drop(lost.read()?);
        }
        dsm.barrier(&format!("{round} read"), 4)?;
    }
    pause("here");
    while other.put(&[1], 1).is_ok() {
        std::thread::yield_now();
    }
    // The owner hears it a little later.
    while rank == 2 && lost.put(&content(&lost, tag(1)), tag(1)).is_ok() {}
    for _ in 0..2 {
        matches_or_fail!(lost.read().map(drop), Err(Error::Lost { .. }));
        matches_or_fail!(lost.snapshot().map(drop), Err(Error::Lost { .. }));
    }
    Ok(())
}

everywhere!(
    an_owned_chunk_is_lost_with_its_home,
    without(1, false, home_of_owner_dies)
);

/// The server of clients 0 and 1 dies, while it owns a chunk of another home: nothing that was
/// committed is lost, and all go on when its lease is over.
fn own_server_dies(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("right goes on", 10_000)?;
    if rank == 0 {
        write_next(&chunk, 0)?;
        write_next(&chunk, 0)?;
    }
    pause("here");
    let read = chunk.read()?;
    check!(read.version() >= Version(2));
    drop(read);
    write_next(&chunk, rank)?;
    while chunk.read()?.version() < Version(6) {
        std::thread::yield_now();
    }
    let read = chunk.read()?;
    same!(read.version(), Version(6));
    is_whole!(chunk, read)
}

everywhere!(
    clients_go_on_without_their_server,
    without(0, false, own_server_dies)
);

/// The server of clients 0 and 1 is stopped while it owns a chunk of another home.
fn own_server_stops(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("right goes on", 10_000)?;
    if rank == 0 {
        write_next(&chunk, 0)?;
        drop(chunk.read()?);
    }
    pause("here");
    if rank == 3 {
        // The home takes it back when the lease is over.
        write_next(&chunk, 3)?;
        write_next(&chunk, 3)?;
        point("done");
    }
    if rank < 2 {
        // Nothing old is read, without a message or with one. This waits until the server goes on.
        while chunk.read()?.version() < Version(3) {
            std::thread::yield_now();
        }
    }
    let read = chunk.read()?;
    is_whole!(chunk, read)
}

everywhere!(
    a_server_that_is_stopped_is_not_waited_for,
    without(0, true, own_server_stops)
);

/// The home has no memory for what a client of another server commits: the client hears that, and
/// the version stays what it was.
fn too_long(dsm: &Dsm, rank: u32) -> Outcome {
    const LONG: u64 = 60 << 20;
    if rank != 0 {
        return Ok(());
    }
    let chunk = dsm.alloc::<u8>("right long", LONG)?;
    let mut guard = chunk.write()?;
    guard.fill(1);
    let refused = guard.commit(1);
    matches_or_fail!(refused, Err(Error::NoMemory { bytes: LONG, .. }));
    same!(chunk.read()?.version(), Version(0));
    let short = dsm.alloc::<u8>("right short", 10_000)?;
    write_next(&short, rank)?;
    Ok(())
}

everywhere!(a_commit_without_memory_at_its_home, |name: &str, mask| {
    let units = cluster(mask).budget(100 << 20);
    units.run(name, |fabric: &Fabric, _: &[PeerId]| unit(fabric, too_long));
});

fn together(dsm: &Dsm, _: u32) -> Outcome {
    let chunks: Vec<Chunk<u64>> = HOMES
        .iter()
        .map(|home| dsm.alloc::<u64>(&format!("{home} together"), 1))
        .collect::<Result<_, _>>()?;
    for round in 0..20 {
        let mut wanted: Vec<_> = chunks.iter().map(|chunk| (chunk, Mode::Write)).collect();
        wanted.rotate_left(round % 3);
        for guard in Chunk::acquire_all(&wanted)? {
            if let samite_dsm::Guard::Write(mut guard) = guard {
                guard[0] += 1;
                guard.commit(0)?;
            }
        }
    }
    meet(dsm)?;
    for chunk in &chunks {
        same!(chunk.read()?[0], 80);
    }
    Ok(())
}

everywhere!(guards_of_several_servers_do_not_lock_up, runs(together));

/// Clients 0 and 1 are servers themselves, beside the agent's.
const OTHER_CLIENTS: &str = r#"
    [[client]]
    program = "client"
    ranks = [2]
    server = "left"
"#;

/// As [`runs`], where clients are servers. They stay until nobody has anything to do with them.
fn hosts(body: fn(&Dsm, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let units = programs(&[("client", 4)]).services(vec![STARTER]);
        units.mask(mask).run(name, |fabric: &Fabric, _: &[PeerId]| {
            let dsm = Dsm::join_with(fabric, topology_of("client", OTHER_CLIENTS))?;
            body(&dsm, fabric.identity().rank)?;
            meet(&dsm)
        });
    }
}

everywhere!(clients_may_be_servers, hosts(all_write));
everywhere!(clients_that_are_servers_tell_of_commits, hosts(told));
