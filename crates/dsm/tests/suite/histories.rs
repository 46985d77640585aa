//! Histories of several processes that do random things with chunks: one of them is killed, and
//! what the event logs of all say is checked.

use crate::served;
use fastrand::Rng;
use samite_dsm::history::{self, Report};
use samite_dsm::log::{Kind, Level, Log, Settings};
use samite_dsm::{Chunk, Dsm, Elem, Error, Op, Policy, Subscription, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Cluster, Outcome, Who, fuzz, pause, point};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The processes; the first one is killed.
const UNITS: u32 = 4;

/// What each of them does before the first one is killed, and afterwards.
const BEFORE: u32 = 150;
const AFTER: u32 = 150;

/// Lengths of the chunks: words, inside a message, and in shared memory.
const LENGTHS: [u64; 3] = [8, 600, 20_000];

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
    /// Its number, and the number of the next version that it writes.
    unit: u64,
    next: u64,
    chunks: Vec<Chunk<u8>>,
    words: Chunk<u64>,
    events: Vec<Subscription<u8>>,
}

impl Process {
    /// Returns a content that no other version has.
    fn content(&mut self, length: u64) -> (u64, Vec<u8>) {
        self.next += 1;
        let seed = self.next << 8 | self.unit;
        (seed, pattern(seed, length as usize))
    }

    fn act(&mut self) -> Outcome {
        let at = self.random.usize(..self.chunks.len());
        let chunk = self.chunks[at].clone();
        let (tag, content) = self.content(chunk.len());
        match self.random.u32(..16) {
            0..=5 => {
                let read = chunk.read()?;
                is_whole(&read, read.version(), read.tag())?;
                drop(read);
                // Without a message, if it is still the present version.
                let read = chunk.read()?;
                is_whole(&read, read.version(), read.tag())?;
            }
            6 | 7 => {
                let snapshot = chunk.snapshot()?;
                is_whole(&snapshot, snapshot.version(), snapshot.tag())?;
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

fn is_whole<T: Elem>(content: &[T], version: Version, tag: u64) -> Outcome {
    match version {
        Version(0) => Ok(()),
        _ => verify(tag, bytemuck::cast_slice(content)),
    }
}

fn random_operations(fabric: &Fabric, seed: u64) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let unit = fabric.identity().unit;
    let chunks = LENGTHS.map(|length| dsm.alloc::<u8>(&format!("of {length} bytes"), length));
    let chunks: Vec<Chunk<u8>> = chunks.into_iter().collect::<Result<_, _>>()?;
    let policies = [Policy::Every, Policy::Latest];
    let pairs = chunks
        .iter()
        .zip(policies.into_iter().cycle().skip(unit as usize % 2));
    let events = pairs.map(|(chunk, policy)| chunk.subscribe(policy, Version::default()));
    let events: Vec<Subscription<u8>> = events.collect::<Result<_, _>>()?;
    let mut process = Process {
        random: Rng::with_seed(seed << 8 | u64::from(unit)),
        unit: unit.into(),
        next: 0,
        words: dsm.alloc("words", 1)?,
        chunks,
        events,
    };
    for _ in 0..BEFORE {
        process.act()?;
    }
    if unit == 0 {
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
    // Who finds this in the log of the server has all before it.
    if unit == 1 {
        let last = dsm.alloc::<u8>("last", 1)?;
        last.put(&[1], 1)?;
    }
    Ok(())
}

/// Runs one round, and returns its logs.
fn run(name: &str, mask: Mask, seed: u64) -> Vec<Log> {
    let body = |fabric: &Fabric, _: &[PeerId]| random_operations(fabric, seed);
    let mut logs = Vec::new();
    let units = served(UNITS, mask).before(record).seed(seed);
    units.orchestrate(name, body, |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(0), "goes on");
        for unit in 1..UNITS {
            cluster.wait_point(Who::Unit(unit), "half");
        }
        cluster.kill(Who::Unit(0));
        for unit in 1..UNITS {
            cluster.wait_point(Who::Unit(unit), "done");
        }
        for unit in 1..UNITS {
            cluster.release(Who::Unit(unit));
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
        let logs = Log::read_run(&folder).expect("the logs can be read");
        let last = logs.iter().find_map(|log| {
            let names = log.names.iter();
            names
                .filter(|(_, name)| *name == "last")
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

/// Returns what runs a few rounds, and checks their histories.
fn checked(name: &str, mask: Mask) {
    fuzz::rounds(name, 3, |seed, _| {
        let logs = run(name, mask, seed);
        assert_eq!(logs.len(), UNITS as usize + 1);
        let report = history::check(&logs);
        expect_consistent(&report);
        assert!(report.unchecked.is_empty(), "{:?}", report.unchecked);
        let least = u64::from((UNITS - 1) * (BEFORE + AFTER) / 8);
        let counts = [report.commits, report.reads, report.events];
        assert!(counts.iter().all(|count| *count > least), "{report:?}");
        damage(logs);
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

everywhere!(what_random_processes_do_is_consistent, checked);
