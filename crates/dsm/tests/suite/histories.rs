//! Histories of several processes that do random things with chunks: one of them is killed, and
//! what the event logs of all say is checked.

use crate::content::{content, is_whole, tag};
use crate::{served, servers};
use fastrand::Rng;
use samite_dsm::history::{self, Report};
use samite_dsm::log::{Kind, Level, Log, Settings};
use samite_dsm::{Chunk, Dsm, Error, Op, Policy, Subscription, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::{Cluster, Outcome, Units, Who, fuzz, pause, point};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The processes; the first one is killed.
const CLIENTS: u32 = 4;

/// What each of them does before the first one is killed, and afterwards.
const BEFORE: u32 = 150;
const AFTER: u32 = 150;

/// The chunk that is written at the end, by its name. The agent's server is its home.
const LAST: &str = "gateway, at the end";

/// The folder of the logs of all rounds.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    folder.join("histories")
}

/// Makes the process record everything.
fn record(_: Who) {
    let settings = Settings {
        level: Level::Full,
        folder: folder(),
    };
    settings.make_default();
}

/// What a process uses.
struct Process {
    random: Rng,
    /// The number of the last version that it has written.
    next: u64,
    chunks: Vec<Chunk<u8>>,
    words: Chunk<u64>,
    events: Vec<Subscription<u8>>,
}

impl Process {
    /// Returns a content that no other version has, and its tag.
    fn content(&mut self, chunk: &Chunk<u8>) -> (u64, Vec<u8>) {
        self.next += 1;
        let tag = tag(self.next);
        (tag, content(chunk, tag))
    }

    fn act(&mut self) -> Outcome {
        let at = self.random.usize(..self.chunks.len());
        let chunk = self.chunks[at].clone();
        let (tag, content) = self.content(&chunk);
        match self.random.u32(..16) {
            0..=5 => {
                let read = chunk.read()?;
                is_whole!(chunk, read)?;
                drop(read);
                // Without a message, if it is still the present version.
                let read = chunk.read()?;
                is_whole!(chunk, read)?;
            }
            6 | 7 => {
                let snapshot = chunk.snapshot()?;
                is_whole!(chunk, snapshot)?;
            }
            8 | 9 => _ = chunk.put(&content, tag)?,
            10 => {
                let mut guard = chunk.write()?;
                guard.copy_from_slice(&content);
                guard.commit(tag)?;
            }
            11 => {
                let mut guard = chunk.update()?;
                guard.copy_from_slice(&content);
                // It is not committed.
                if self.random.bool() {
                    guard.commit(tag)?;
                }
            }
            12 => {
                let mut draft = chunk.draft()?;
                draft.copy_from_slice(&content);
                draft.put(tag)?;
            }
            13 => _ = self.words.delegate(0, Op::Add(1), tag)?,
            _ => self.hear()?,
        }
        Ok(())
    }

    /// Takes the events that are there.
    fn hear(&mut self) -> Outcome {
        for events in &mut self.events {
            loop {
                match events.next_within(Duration::ZERO) {
                    Ok(_) | Err(Error::Lagged { .. }) => {}
                    Err(Error::NoEvent { .. }) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

/// The chunks of a run, by name and length.
type Names = &'static [(&'static str, u64)];

/// Lengths of the chunks: words, inside a message, and in shared memory.
const ONE_SERVER: Names = &[("of 8", 8), ("of 600", 600), ("of 20000", 20_000)];

/// Three servers are their homes.
const SERVERS: Names = &[
    ("gateway", 600),
    ("left", 8),
    ("right", 20_000),
    ("pushed", 600),
    ("apart", 600),
];

/// Does random things, as one of the processes.
fn random_operations(dsm: &Dsm, rank: u32, names: Names, seed: u64) -> Outcome {
    let chunks = names.iter().map(|(name, length)| dsm.alloc(name, *length));
    let chunks: Vec<Chunk<u8>> = chunks.collect::<Result<_, _>>()?;
    let policies = [Policy::Every, Policy::Latest];
    let pairs = chunks
        .iter()
        .zip(policies.into_iter().cycle().skip(rank as usize % 2));
    let events = pairs.map(|(chunk, policy)| chunk.subscribe(policy, Version::default()));
    let events: Vec<Subscription<u8>> = events.collect::<Result<_, _>>()?;
    let mut process = Process {
        random: Rng::with_seed(seed << 8 | u64::from(rank)),
        next: 0,
        words: dsm.alloc("words", 1)?,
        chunks,
        events,
    };
    for _ in 0..BEFORE {
        process.act()?;
    }
    if rank == 0 {
        // It is killed at any point from here on.
        point("goes on");
        loop {
            process.act()?;
        }
    }
    point("half");
    for _ in 0..AFTER {
        process.act()?;
    }
    // The first one may be killed now, if it still lives.
    pause("done");
    process.hear()?;
    // Who finds this in the log of the agent's server has all before it.
    if rank == 1 {
        let last = dsm.alloc::<u8>(LAST, 1)?;
        last.put(&[1], 1)?;
    }
    Ok(())
}

/// Runs one round, and returns its logs. `first`: the unit that is the first client.
fn run(
    name: &str,
    units: Units,
    first: u32,
    body: impl Fn(&Fabric, &[PeerId]) -> Outcome,
) -> Vec<Log> {
    let mut logs = Vec::new();
    let unit = |rank: u32| Who::Unit(first + rank);
    units
        .before(record)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(unit(0), "goes on");
            for rank in 1..CLIENTS {
                cluster.wait_point(unit(rank), "half");
            }
            cluster.kill(unit(0));
            for rank in 1..CLIENTS {
                cluster.wait_point(unit(rank), "done");
            }
            for rank in 1..CLIENTS {
                cluster.release(unit(rank));
            }
            cluster.all_end();
            let domain = cluster.domain().to_owned();
            logs = logs_of(&domain);
        });
    logs
}

/// Returns the logs of a domain, once its server has written the last commit.
fn logs_of(domain: &str) -> Vec<Log> {
    let settings = Settings {
        level: Level::Full,
        folder: folder(),
    };
    let folder = settings.folder_of(domain);
    let begin = Instant::now();
    loop {
        let logs = Log::read_run(&folder).expect("the logs can be read").logs;
        let last = logs.iter().find_map(|log| {
            let names = log.names.iter();
            names
                .filter(|(_, name)| *name == LAST)
                .map(|(id, _)| *id)
                .next()
        });
        let servers = logs.iter().flat_map(|log| &log.records);
        let mut commits = servers.filter(|record| record.kind == Kind::Adopt);
        if commits.any(|record| Some(record.chunk) == last) {
            let _ = std::fs::remove_dir_all(&folder);
            return logs;
        }
        let passed = begin.elapsed();
        assert!(passed < Duration::from_secs(30), "the server writes no log");
        std::thread::yield_now();
    }
}

#[track_caller]
fn expect_consistent(report: &Report) {
    let all: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(report.is_consistent(), "{all:#?}");
}

/// Checks what happened in a round.
fn check(logs: Vec<Log>, processes: u32) {
    assert_eq!(logs.len(), processes as usize);
    let report = history::check(&logs);
    expect_consistent(&report);
    assert!(report.unchecked.is_empty(), "{:?}", report.unchecked);
    let least = u64::from((CLIENTS - 1) * (BEFORE + AFTER) / 8);
    let counts = [report.commits, report.reads, report.events];
    assert!(counts.iter().all(|count| *count > least), "{report:?}");
    damage(logs);
}

fn one_server(name: &str, mask: Mask) {
    fuzz::rounds(name, 3, |seed, _| {
        let body = |fabric: &Fabric, _: &[PeerId]| {
            let dsm = Dsm::join(fabric)?;
            random_operations(&dsm, fabric.identity().unit, ONE_SERVER, seed)
        };
        let units = served(CLIENTS, mask).seed(seed);
        check(run(name, units, 0, body), CLIENTS + 1);
    });
}

fn several_servers(name: &str, mask: Mask) {
    fuzz::rounds(name, 3, |seed, _| {
        let body = |fabric: &Fabric, _: &[PeerId]| {
            servers::unit(fabric, |dsm, rank| {
                random_operations(dsm, rank, SERVERS, seed)
            })
        };
        let units = servers::cluster(mask).seed(seed);
        check(run(name, units, servers::CLIENT, body), CLIENTS + 3);
    });
}

/// The same history with a commit that was later than it says, and with one that readers do not
/// see, is found out.
fn damage(mut logs: Vec<Log>) {
    let records = logs.iter_mut().flat_map(|log| &mut log.records);
    let mut reads: Vec<_> = records
        .filter(|record| record.kind == Kind::Given && record.version > 1)
        .collect();
    let middle = reads.len() / 2;
    reads[middle].version -= 1;
    let report = history::check(&logs);
    assert!(!report.is_consistent(), "a stale read was not seen");
}

everywhere!(what_random_processes_do_is_consistent, one_server);

everywhere!(
    what_they_do_with_several_servers_is_consistent,
    several_servers
);
