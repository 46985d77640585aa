//! From the records of several logs to what happened to each chunk.

use crate::log::{Call, Kind, Level, Log, Record, Role, is_meeting};
use crate::protocol::Process;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// What happened in a run.
pub(super) struct History {
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// The names of processes.
    names: BTreeMap<Process, String>,
    /// When the earliest log begins.
    start: u64,
    /// Until when all that servers did is known; `None` if something may be missing at any time.
    pub(super) known_until: Option<u64>,
    /// When servers have ended the guards of a process: it was stopped, or is gone.
    ends: BTreeMap<Process, Vec<u64>>,
    /// When a server was lost or fenced: with it, guards of any client may have ended.
    ends_of_servers: Vec<u64>,
}

/// What happened to a chunk.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) name: String,
    /// The version that it begins with: more than 0 if its home has taken it over.
    pub(super) first: u64,
    /// The commits as the home knows them, in the order of its records.
    pub(super) adopted: Vec<Adopted>,
    /// The commits as clients know them.
    pub(super) commits: Vec<Operation>,
    /// Guards, snapshots and versions that were taken.
    pub(super) reads: Vec<Operation>,
    pub(super) subscriptions: BTreeMap<(Process, usize, u64), Subscription>,
}

/// A commit at the home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adopted {
    pub(super) time: u64,
    pub(super) version: u64,
    pub(super) tag: u64,
    pub(super) guard: u64,
    pub(super) writer: Process,
}

/// What a client did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) process: Process,
    pub(super) call: Call,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) version: u64,
    pub(super) tag: u64,
    pub(super) guard: u64,
    /// For a guard: until when it is out, as far as is known. Otherwise its end.
    pub(super) until: u64,
    /// Whether it was taken without a message.
    pub(super) is_own: bool,
}

/// What a subscriber was told.
#[derive(Default)]
pub(super) struct Subscription {
    pub(super) after: Option<u64>,
    pub(super) wants_latest: bool,
    /// Whether records may be missing.
    pub(super) has_gaps: bool,
    pub(super) told: Vec<Heard>,
}

/// An event, or a number of events that were missed.
pub(super) enum Heard {
    Event {
        time: u64,
        version: u64,
        tag: u64,
        writer: Process,
    },
    Missed(u64),
}

impl History {
    pub(super) fn of(logs: &[Log], unchecked: &mut Vec<String>) -> History {
        let mut history = History {
            chunks: BTreeMap::new(),
            names: BTreeMap::new(),
            start: logs.iter().map(|log| log.header.start).min().unwrap_or(0),
            // A log that is incomplete says nothing of when: `None` is the least.
            known_until: servers(logs).map(known_until).min().flatten(),
            ends: BTreeMap::new(),
            ends_of_servers: Vec::new(),
        };
        let mut grants = HashMap::new();
        for log in logs.iter().filter(|log| is_usable(log, unchecked)) {
            if log.header.role == Role::Server {
                history.add_server(log, &mut grants);
            }
            let of_chunks = log.names.iter().filter(|(id, _)| !is_meeting(**id));
            for (chunk, name) in of_chunks {
                history.chunk(*chunk).name.clone_from(name);
            }
        }
        let ends = servers(logs).filter_map(|log| history.ends.get(&log.header.process));
        history.ends_of_servers = ends.flatten().copied().collect();
        for (at, log) in logs.iter().enumerate() {
            if log.header.level == Level::Full && log.header.role == Role::Client {
                let name = log.header.name.clone();
                history.names.insert(log.header.process, name);
                history.add_client(at, log, &grants);
            }
        }
        if history.known_until.is_none() {
            unchecked.push(
                "there is no complete log of each server: commits of processes whose logs are \
                 incomplete are not known, nor is when guards of stopped processes have ended"
                    .to_owned(),
            );
        }
        history
    }

    fn chunk(&mut self, chunk: u64) -> &mut Chunk {
        self.chunks.entry(chunk).or_insert_with(|| Chunk {
            name: format!("number {chunk}"),
            ..Chunk::default()
        })
    }

    /// Adds the log of a server. `grants`: when each guard was given.
    fn add_server(&mut self, log: &Log, grants: &mut HashMap<(u64, u64), u64>) {
        for record in &log.records {
            match record.kind {
                Kind::Adopt => self.chunk(record.chunk).adopted.push(Adopted {
                    time: record.time,
                    version: record.version,
                    tag: record.tag,
                    guard: record.guard,
                    writer: record.process(),
                }),
                Kind::Created => self.chunk(record.chunk).first = record.version,
                Kind::Grant => _ = grants.insert((record.chunk, record.guard), record.time),
                Kind::Fence | Kind::Lost => {
                    let ends = self.ends.entry(record.process()).or_default();
                    ends.push(record.time);
                }
                _ => {}
            }
        }
    }

    fn add_client(&mut self, at: usize, log: &Log, grants: &HashMap<(u64, u64), u64>) {
        let process = log.header.process;
        let has_gaps = log.missing > 0;
        let last = log.records.last().map_or(0, |record| record.time);
        // Guards that are out: where they are among the reads of their chunk.
        let mut out: HashMap<(u64, u64), VecDeque<usize>> = HashMap::new();
        for record in &log.records {
            if record.is_of_meeting() {
                continue;
            }
            let operation = Operation {
                process,
                call: record.call(),
                begin: record.began(),
                end: record.time,
                version: record.version,
                tag: record.tag,
                guard: record.guard,
                until: record.time,
                is_own: record.is_hit(),
            };
            match record.kind {
                // Which record is that of its end is not known.
                Kind::Given if record.guard == 0 && has_gaps => {
                    self.chunk(record.chunk).reads.push(operation);
                }
                Kind::Given => {
                    let reads = &mut self.chunk(record.chunk).reads;
                    out.entry((record.chunk, record.guard))
                        .or_default()
                        .push_back(reads.len());
                    reads.push(operation);
                }
                Kind::Got => self.chunk(record.chunk).reads.push(operation),
                Kind::Committed => {
                    // A put has no guard.
                    if record.guard != 0 {
                        self.ends_guard(record, record.began(), &mut out);
                    }
                    self.chunk(record.chunk).commits.push(operation);
                }
                Kind::Failed if record.guard != 0 => {
                    self.ends_guard(record, record.began(), &mut out);
                }
                Kind::Ended => self.ends_guard(record, record.time, &mut out),
                Kind::Subscribed | Kind::Event | Kind::Missed => {
                    let key = (process, at, record.guard);
                    let all = &mut self.chunk(record.chunk).subscriptions;
                    all.entry(key).or_default().add(record, has_gaps);
                }
                _ => {}
            }
        }
        // What has no end was out at the last record; the process may have ended it afterwards, and
        // have been killed before that was written. Or the record of its end was dropped.
        for ((chunk, _), reads) in out {
            for at in reads {
                let read = &mut self.chunk(chunk).reads[at];
                read.until = if has_gaps { read.end } else { last };
            }
        }
        // A server may have ended a guard before its holder did. What is not known of that is not
        // held against anybody.
        let known_until = self.known_until.unwrap_or(0);
        for (id, chunk) in &mut self.chunks {
            for read in chunk
                .reads
                .iter_mut()
                .filter(|read| read.process == process)
            {
                let granted = grants.get(&(*id, read.guard)).copied();
                let since = granted.unwrap_or(read.begin);
                let ends = self.ends.get(&process).into_iter().flatten();
                let ends = ends.chain(&self.ends_of_servers).copied();
                let first = ends.filter(|end| *end >= since).min();
                read.until = read.until.min(first.unwrap_or(known_until));
            }
        }
    }

    /// A guard ends. Of those that were taken without messages, which have no numbers, any one
    /// does: together they are out equally long.
    fn ends_guard(
        &mut self,
        record: &Record,
        time: u64,
        out: &mut HashMap<(u64, u64), VecDeque<usize>>,
    ) {
        let key = (record.chunk, record.guard);
        let Some(at) = out.get_mut(&key).and_then(VecDeque::pop_front) else {
            return;
        };
        if let Some(read) = self.chunk(record.chunk).reads.get_mut(at) {
            read.until = time.max(read.end);
        }
    }

    /// Returns a process by its name.
    pub(super) fn named(&self, process: Process) -> String {
        let name = self.names.get(&process).cloned();
        name.unwrap_or_else(|| process.to_string())
    }

    /// Returns a time for people: seconds since the first log begins.
    pub(super) fn seconds(&self, time: u64) -> String {
        format!("{:.6} s", time.saturating_sub(self.start) as f64 / 1e9)
    }
}

impl Subscription {
    fn add(&mut self, record: &Record, has_gaps: bool) {
        self.has_gaps = has_gaps;
        match record.kind {
            Kind::Subscribed => {
                self.after = Some(record.version);
                self.wants_latest = record.tag != 0;
            }
            Kind::Missed => self.told.push(Heard::Missed(record.value)),
            _ => self.told.push(Heard::Event {
                time: record.time,
                version: record.version,
                tag: record.tag,
                writer: record.process(),
            }),
        }
    }
}

fn servers(logs: &[Log]) -> impl Iterator<Item = &Log> {
    let servers = logs.iter();
    servers.filter(|log| log.header.role == Role::Server)
}

/// Returns until when a server's log has all that the server did.
fn known_until(server: &Log) -> Option<u64> {
    let last = server.records.last().map(|record| record.time);
    let until = match server.is_closed {
        true => Some(u64::MAX),
        false => last,
    };
    until.filter(|_| server.header.level == Level::Full && server.missing == 0)
}

/// Returns true if a log has records; otherwise says why it is not checked.
fn is_usable(log: &Log, unchecked: &mut Vec<String>) -> bool {
    if log.header.level != Level::Full {
        unchecked.push(format!(
            "{} has counters only: run with --config dsm.log=full",
            log.path.display()
        ));
        return false;
    }
    if log.missing > 0 {
        unchecked.push(format!(
            "{} misses {} records: the file was too slow",
            log.path.display(),
            log.missing
        ));
    }
    true
}
