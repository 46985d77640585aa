//! Homes of chunks that are stopped while they are used, and homes that are started again.

use crate::content::{content, is_whole, number, tag};
use crate::served;
use crate::servers::{self, CLIENT};
use samite_dsm::service::ChunkService;
use samite_dsm::{Chunk, Dsm, Error, Policy, Version};
use samite_fabric::{Fabric, PeerId};
use samite_testkit::{Cluster, Outcome, Unit, Who, check, matches_or_fail, pause, point, same};
use std::sync::atomic::{AtomicBool, Ordering};

/// What clients do while the home is stopped again and again.
const PHASES: [&str; 5] = ["reads", "writes", "commits", "puts", "events"];

/// How often it is stopped in each of them.
const STOPS: u32 = 5;

const BYTES: u64 = 20_000;

/// Calls `act` until the test lets this process go on, which it announces.
fn until_released(phase: &str, mut act: impl FnMut() -> Outcome) -> Outcome {
    let goes_on = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause(phase);
            goes_on.store(true, Ordering::Release);
        });
        while !goes_on.load(Ordering::Acquire) {
            act()?;
        }
        Ok(())
    })
}

/// Writes the next version by a guard. Returns false if the guard was lost: its server was stopped
/// for longer than a lease.
fn write(chunk: &Chunk<u8>) -> Outcome<bool> {
    let mut guard = match chunk.update() {
        Err(Error::Fenced { .. }) => return Ok(false),
        guard => guard?,
    };
    let next = guard.version().next();
    let tag = tag(next.0);
    guard.copy_from_slice(&content(chunk, tag));
    match guard.commit(tag) {
        Err(Error::Fenced { .. }) => Ok(false),
        version => {
            same!(version?, next);
            Ok(true)
        }
    }
}

/// Uses a chunk whose home is stopped meanwhile. All commits that were acknowledged are there at
/// the end, and events came in order.
fn used(dsm: &Dsm, rank: u32, ranks: u64) -> Outcome {
    let chunk = dsm.alloc::<u8>("right used", BYTES)?;
    let mut last = Version(0);
    let mut own = 0;
    let mut sees = |version: Version| {
        check!(version >= last, "{version} after {last}");
        last = version;
        Outcome::Ok(())
    };
    let mut look = || {
        let read = chunk.read()?;
        is_whole!(chunk, read)?;
        sees(read.version())?;
        drop(read);
        let snapshot = chunk.snapshot()?;
        is_whole!(chunk, snapshot)?;
        sees(snapshot.version())
    };
    let mut count = |has_committed: bool| own += u64::from(has_committed);
    until_released("reads", || {
        look()?;
        // The others read on without the home.
        if rank == 0 {
            dsm.counters()?;
        }
        Ok(())
    })?;
    until_released("writes", || {
        look()?;
        write(&chunk).map(&mut count)
    })?;
    // One of them writes all the time, the others read.
    until_released("commits", || match rank {
        0 => write(&chunk).map(&mut count),
        _ => look(),
    })?;
    dsm.barrier("committed", ranks)?;
    let mut puts = 0;
    let base = chunk.snapshot()?.version();
    dsm.barrier("counted", ranks)?;
    until_released("puts", || {
        puts += 1;
        // Other numbers than those of the commits before.
        let tag = tag(1 << 30 | puts);
        check!(chunk.put(&content(&chunk, tag), tag)? > base);
        look()
    })?;
    let all = dsm.rendezvous("all put", ranks, &[own, puts])?;
    let sum = |place: usize| all.iter().map(|(_, brought)| brought[place]).sum::<u64>();
    // As many as were acknowledged.
    same!(base.0, sum(0));
    same!(chunk.snapshot()?.version().0, sum(0) + sum(1));
    let told = dsm.alloc::<u8>("right told", BYTES)?;
    let policy = Policy::Lossless { high_water: 3 };
    let mut events = told.subscribe_with_content(policy, Version(0))?;
    dsm.barrier("subscribed", ranks)?;
    if rank == 0 {
        let mut sent = 0;
        let mut send = |is_last| {
            sent += 1;
            let tag = tag(sent << 1 | u64::from(is_last));
            told.put(&content(&told, tag), tag)?;
            let version = events.next_version()?;
            same!(version.tag(), tag);
            is_whole!(told, version)
        };
        until_released("events", || send(false))?;
        return send(true);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| pause("events"));
        let mut next = Version(1);
        loop {
            let event = events.next_version()?;
            same!(event.version(), next);
            same!(number(event.tag()) >> 1, next.0);
            is_whole!(told, event)?;
            next = next.next();
            if event.tag() & 1 == 1 {
                return Ok(());
            }
        }
    })
}

/// Stops a home in each phase, each time until all wait for it.
fn stop(cluster: &mut Cluster, home: Who, clients: std::ops::Range<u32>) {
    for phase in PHASES {
        for client in clients.clone() {
            cluster.wait_point(Who::Unit(client), phase);
        }
        for _ in 0..STOPS {
            cluster.stop(home);
            // Those that read without messages do not wait.
            cluster.wait_asleep(Who::Unit(clients.start));
            cluster.go_on(home);
        }
        for client in clients.clone() {
            cluster.release(Who::Unit(client));
        }
    }
    cluster.all_end();
}

everywhere!(
    an_agent_that_is_stopped_loses_nothing,
    |name: &str, mask| {
        let body =
            |fabric: &Fabric, _: &[PeerId]| used(&Dsm::join(fabric)?, fabric.identity().unit, 3);
        served(3, mask).orchestrate(name, body, |cluster: &mut Cluster| {
            stop(cluster, Who::Agent, 0..3);
        });
    }
);

everywhere!(a_home_that_is_stopped_loses_nothing, |name: &str, mask| {
    let body =
        |fabric: &Fabric, _: &[PeerId]| servers::unit(fabric, |dsm, rank| used(dsm, rank, 4));
    servers::cluster(mask).orchestrate(name, body, |cluster: &mut Cluster| {
        stop(cluster, Who::Unit(1), CLIENT..CLIENT + 4);
    });
});

/// Puts the next version.
fn put(chunk: &Chunk<u8>, version: u64) -> Outcome {
    let tag = tag(version);
    same!(chunk.put(&content(chunk, tag), tag)?, Version(version));
    Ok(())
}

/// A client beside the two lives of a home. What it has of the first one is lost; what it finds by
/// name is the second one's.
fn beside(dsm: &Dsm, rank: u32) -> Outcome {
    let chunk = dsm.alloc::<u8>("right again", BYTES)?;
    let empty = dsm.alloc::<u8>("right empty", BYTES)?;
    let mut events = chunk.subscribe(Policy::Every, Version(0))?;
    dsm.barrier("gateway begin", 4)?;
    if rank == 3 {
        for version in 1..=3 {
            put(&chunk, version)?;
        }
    }
    dsm.barrier("gateway put", 4)?;
    let snapshot = chunk.snapshot()?;
    drop(chunk.read()?);
    let guard = (rank == 3).then(|| empty.write()).transpose()?;
    pause("first");
    // The home has been killed and started again.
    if let Some(guard) = guard {
        matches_or_fail!(
            guard.commit(9),
            Err(Error::Lost { .. } | Error::Fenced { .. })
        );
    }
    let ended = loop {
        match chunk.read() {
            Ok(read) => {
                // A copy of another server, within its lease.
                same!(read.version(), Version(3));
                is_whole!(chunk, read)?;
                drop(read);
                std::thread::yield_now();
            }
            Err(error) => break error,
        }
    };
    matches_or_fail!(
        &ended,
        Error::Lost {
            last: Version(3),
            ..
        }
    );
    matches_or_fail!(chunk.put(&content(&chunk, 4), 4), Err(Error::Lost { .. }));
    matches_or_fail!(chunk.snapshot(), Err(Error::Lost { .. }));
    matches_or_fail!(chunk.write(), Err(Error::Lost { .. }));
    matches_or_fail!(empty.put(&content(&empty, 1), 1), Err(Error::Lost { .. }));
    let ended = loop {
        match events.next_event() {
            Ok(event) => check!(event.version <= Version(3)),
            Err(error) => break error,
        }
    };
    matches_or_fail!(ended, Error::Lost { .. });
    is_whole!(chunk, snapshot)?;
    // The next life begins anew.
    let again = dsm.alloc::<u8>("right again", BYTES)?;
    let mut events = again.subscribe(Policy::Every, Version(0))?;
    dsm.barrier("gateway again", 4)?;
    if rank == 3 {
        for version in 1..=3 {
            // Numbers of its own: what was there before has others.
            let tag = tag(100 + version);
            same!(again.put(&content(&again, tag), tag)?, Version(version));
        }
    }
    dsm.barrier("gateway put again", 4)?;
    for version in 1..=3 {
        same!(events.next_event()?.version, Version(version));
    }
    let read = again.read()?;
    same!((read.version(), number(read.tag())), (Version(3), 103));
    is_whole!(again, read)?;
    drop(read);
    // The handle of the first life stays lost.
    matches_or_fail!(chunk.read(), Err(Error::Lost { .. }));
    dsm.barrier("gateway end", 4)?;
    Ok(())
}

everywhere!(a_home_that_is_started_again, |name: &str, mask| {
    let body = |unit: &Unit| -> Outcome {
        let fabric = unit.join()?;
        if fabric.identity().program == "server" {
            let mut service = ChunkService::join(&fabric, &servers::topology())?;
            point("serves");
            return Ok(service.run_for_job()?);
        }
        let dsm = Dsm::join_with(&fabric, servers::topology())?;
        beside(&dsm, fabric.identity().rank)
    };
    servers::cluster(mask).orchestrate_bare(name, body, |cluster: &mut Cluster| {
        let home = Who::Unit(1);
        cluster.wait_point(home, "serves");
        for client in CLIENT..CLIENT + 4 {
            cluster.wait_point(Who::Unit(client), "first");
        }
        cluster.kill(home);
        cluster.start_again(home);
        cluster.wait_point(home, "serves");
        for client in CLIENT..CLIENT + 4 {
            cluster.release(Who::Unit(client));
        }
        cluster.all_end();
    });
});
