//! Sums of what happened, for each chunk and each process, from records or from counters.

use samite::dsm::log::{Call, Kind, Level, Log, Record, Role};
use std::collections::BTreeMap;

/// What happened to a chunk, or what a process did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Read guards, versions that were taken, and snapshots.
    pub(super) reads: u64,
    /// Those of them that took no message.
    pub(super) hits: u64,
    /// Write guards.
    pub(super) writes: u64,
    /// Commits, those of puts and changes among them.
    pub(super) commits: u64,
    /// Events that were taken.
    pub(super) events: u64,
    /// Calls that failed.
    pub(super) failures: u64,
    /// Nanoseconds for which clients have waited: for guards, commits and snapshots, and for
    /// events and each other.
    pub(super) waited: u64,
    pub(super) idle: u64,
    /// The longest of the first.
    pub(super) longest: u64,
    /// How often a server has ended the reading without messages.
    pub(super) closed: u64,
    /// Bytes of the chunk; of a process, bytes that it has committed.
    pub(super) bytes: u64,
}

/// All sums of a run.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// By chunk; the numbers of meetings are among them.
    pub(super) chunks: BTreeMap<u64, Tally>,
    /// In the order of the logs.
    pub(super) processes: Vec<Tally>,
    pub(super) names: BTreeMap<u64, String>,
}

impl Tallies {
    pub(super) fn of(logs: &[Log]) -> Tallies {
        let mut all = Tallies::default();
        for log in logs {
            all.names.extend(log.names.clone());
        }
        let lengths = lengths(logs);
        for log in logs {
            let mut process = Tally::default();
            for (kind, call, chunk, count) in counts(log) {
                process.add(log.header.role, (kind, call), count);
                if kind == Kind::Committed {
                    let bytes = lengths.get(&chunk).copied().unwrap_or(0);
                    add(&mut process.bytes, bytes.saturating_mul(count.number));
                }
                if chunk != u64::MAX {
                    let of_chunk = all.chunks.entry(chunk).or_default();
                    of_chunk.add(log.header.role, (kind, call), count);
                }
            }
            all.processes.push(process);
        }
        for (chunk, tally) in &mut all.chunks {
            tally.bytes = lengths.get(chunk).copied().unwrap_or(0);
        }
        all
    }

    /// Returns the name of a chunk or a meeting.
    pub(super) fn name(&self, chunk: u64) -> String {
        let name = self.names.get(&chunk).cloned();
        name.unwrap_or_else(|| format!("number {chunk}"))
    }
}

/// How often something happened.
#[derive(Clone, Copy, Debug)]
struct Count {
    number: u64,
    sum: u64,
    most: u64,
}

/// Returns what is counted in a log, by kind, call and chunk.
fn counts(log: &Log) -> Vec<(Kind, Call, u64, Count)> {
    let own = |record: &Record| {
        // As counters do it.
        let call = if record.is_hit() {
            Call::None
        } else {
            record.call()
        };
        let count = Count {
            number: 1,
            sum: record.value,
            most: record.value,
        };
        (record.kind, call, record.chunk, count)
    };
    if log.header.level == Level::Full {
        return log.records.iter().map(own).collect();
    }
    // Each record of counters replaces the one before.
    let mut last = BTreeMap::new();
    for record in log.records.iter().filter(|one| one.kind == Kind::Count) {
        let Some(kind) = record.counted() else {
            continue;
        };
        let count = Count {
            number: record.guard,
            sum: record.value,
            most: record.tag,
        };
        last.insert((kind, record.call(), record.chunk), count);
    }
    let each = last.into_iter();
    each.map(|((kind, call, chunk), count)| (kind, call, chunk, count))
        .collect()
}

/// Returns the bytes of each chunk.
fn lengths(logs: &[Log]) -> BTreeMap<u64, u64> {
    let mut lengths = BTreeMap::new();
    for (kind, _, chunk, count) in logs.iter().flat_map(counts) {
        if matches!(kind, Kind::Opened | Kind::Created) {
            let length: &mut u64 = lengths.entry(chunk).or_default();
            *length = count.most.max(*length);
        }
    }
    lengths
}

impl Tally {
    fn add(&mut self, role: Role, (kind, call): (Kind, Call), count: Count) {
        let Count { number, sum, most } = count;
        if role == Role::Server {
            if kind == Kind::Close {
                add(&mut self.closed, number);
            }
            return;
        }
        match (kind, call) {
            (Kind::Given, Call::Write) => add(&mut self.writes, number),
            (Kind::Given, Call::None) => {
                add(&mut self.reads, number);
                add(&mut self.hits, number);
            }
            (Kind::Given | Kind::Got, _) => add(&mut self.reads, number),
            (Kind::Committed, _) => add(&mut self.commits, number),
            (Kind::Event, _) => add(&mut self.events, number),
            (Kind::Failed, _) => add(&mut self.failures, number),
            (Kind::Met, _) => {}
            _ => return,
        }
        match kind {
            Kind::Event | Kind::Met => add(&mut self.idle, sum),
            // It took a look at memory.
            Kind::Given if call == Call::None => {}
            _ => {
                add(&mut self.waited, sum);
                self.longest = self.longest.max(most);
            }
        }
    }
}

/// Adds to a sum. The numbers are those of a file.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// A wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// The place of its log.
    pub(super) log: usize,
    pub(super) record: Record,
}

/// Returns the longest waits of clients, the longest first.
pub(super) fn slowest(logs: &[Log], count: usize) -> Vec<Wait> {
    let of_log = |(at, log): (usize, &Log)| {
        let is_wait = |record: &&Record| {
            let kinds = [Kind::Given, Kind::Committed, Kind::Got, Kind::Failed];
            kinds.contains(&record.kind) && record.value > 0 && !record.is_hit()
        };
        let waits = log.records.iter().filter(is_wait);
        let waits = waits.map(move |record| Wait {
            log: at,
            record: *record,
        });
        waits.collect::<Vec<Wait>>()
    };
    let clients = logs.iter().enumerate();
    let clients = clients.filter(|(_, log)| log.header.role == Role::Client);
    let mut waits: Vec<Wait> = clients.flat_map(of_log).collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.record.value));
    waits.truncate(count);
    waits
}
