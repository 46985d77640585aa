//! A trace in the format of Chrome (`traceEvents`), which Perfetto reads.
//!
//! Each log is a process of the trace. Its first track has what it waits for; commits are among
//! that. Guards that are out at the same time have tracks of their own. Arrows go from a commit to
//! the events that tell of it.

use super::tally::Tallies;
use anyhow::Result;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use samite::dsm::log::{Call, Kind, Log, Record, Role};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The track of waits; those of guards follow. Further tracks of waits are this far apart.
const WAITS: usize = 0;
const APART: usize = 1000;

/// A guard that was out.
struct Guard {
    from: u64,
    to: u64,
    /// What for.
    call: Call,
    chunk: u64,
    version: u64,
    ended: &'static str,
}

/// Writes the trace of a run to a file, which has all of it, or stays what it was.
pub(super) fn write(logs: &[Log], path: &Path) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    let partial = Path::new(&name);
    let written = write_partial(logs, partial).and_then(|()| Ok(std::fs::rename(partial, path)?));
    if written.is_err() {
        _ = std::fs::remove_file(partial);
    }
    written
}

/// Writes the trace to a file that has no name until it is whole, where the system has such files:
/// nothing is left of it if this process is killed before.
fn write_partial(logs: &[Log], path: &Path) -> Result<()> {
    let unnamed = unnamed_beside(path);
    let is_unnamed = unnamed.is_some();
    let mut out = BufWriter::new(unnamed.map_or_else(|| File::create(path), Ok)?);
    write_to(logs, &mut out)?;
    let file = out.into_inner().map_err(|error| error.into_error())?;
    file.sync_all()?;
    if is_unnamed {
        // One of an earlier process with this number, which was killed at the next step.
        _ = std::fs::remove_file(path);
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
    }
    Ok(())
}

/// Opens a file without a name in the folder of another one; `None`: the system has no such files
/// there.
fn unnamed_beside(path: &Path) -> Option<File> {
    let folder = path.parent()?;
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = open(folder, flags, Mode::from_raw_mode(0o666));
    opened.ok().map(File::from)
}

fn write_to(logs: &[Log], out: &mut impl Write) -> Result<()> {
    let tallies = Tallies::of(logs);
    let start = logs.iter().map(|log| log.header.start).min().unwrap_or(0);
    let mut trace = Trace {
        out,
        start,
        is_first: true,
        flows: 0,
    };
    write!(trace.out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let commits = commits(logs);
    for (at, log) in logs.iter().enumerate() {
        trace.name_process(at, log)?;
        match log.header.role {
            Role::Client => trace.client(at, log, &tallies, &commits)?,
            Role::Server => trace.server(at, log, &tallies)?,
        }
    }
    writeln!(trace.out, "]}}")?;
    Ok(())
}

/// The slice of a commit: its process and track, and when it ends.
type Slice = (usize, usize, u64);

/// Returns the slices of commits, by chunk and version.
fn commits(logs: &[Log]) -> HashMap<(u64, u64), Slice> {
    let clients = logs.iter().enumerate();
    let clients = clients.filter(|(_, log)| log.header.role == Role::Client);
    let each = clients.flat_map(|(pid, log)| {
        let commits = waits(log).into_iter();
        let commits = commits.filter(|(_, record)| record.kind == Kind::Committed);
        commits.map(move |(tid, record)| {
            let key = (record.chunk, record.version);
            (key, (pid, tid, record.time))
        })
    });
    each.collect()
}

/// Returns what a client has waited for, each with its track: threads wait at the same time.
fn waits(log: &Log) -> Vec<(usize, &Record)> {
    let is_wait = |record: &&Record| {
        let kinds = [
            Kind::Given,
            Kind::Committed,
            Kind::Got,
            Kind::Event,
            Kind::Met,
            Kind::Failed,
        ];
        record.value > 0 && kinds.contains(&record.kind) && !record.is_hit()
    };
    let mut waits: Vec<&Record> = log.records.iter().filter(is_wait).collect();
    waits.sort_by_key(|record| record.began());
    let mut lanes = Lanes::default();
    let each = waits.into_iter().map(|record| {
        let lane = lanes.take(record.began(), record.time);
        (WAITS + lane * APART, record)
    });
    each.collect()
}

struct Trace<'a, W> {
    out: &'a mut W,
    start: u64,
    is_first: bool,
    /// The number of arrows.
    flows: u64,
}

impl<W: Write> Trace<'_, W> {
    fn add(&mut self, event: &Value) -> Result<()> {
        if !std::mem::take(&mut self.is_first) {
            self.out.write_all(b",")?;
        }
        self.out.write_all(b"\n")?;
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    /// Returns a time as traces have it: microseconds.
    fn at(&self, time: u64) -> f64 {
        time.saturating_sub(self.start) as f64 / 1e3
    }

    fn name_process(&mut self, pid: usize, log: &Log) -> Result<()> {
        let what = match log.header.role {
            Role::Client => "",
            Role::Server => "server: ",
        };
        let name = format!("{what}{} (pid {})", log.header.name, log.header.pid);
        self.add(&json!({
            "ph": "M", "name": "process_name", "pid": pid, "args": { "name": name },
        }))?;
        self.name_track(pid, WAITS, "waits")
    }

    fn name_track(&mut self, pid: usize, tid: usize, name: &str) -> Result<()> {
        self.add(&json!({
            "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": { "name": name },
        }))
    }

    fn slice(
        &mut self,
        (pid, tid): (usize, usize),
        (from, to): (u64, u64),
        (kind, name): (&str, String),
        args: Value,
    ) -> Result<()> {
        let (ts, dur) = (self.at(from), to.saturating_sub(from) as f64 / 1e3);
        self.add(&json!({
            "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "cat": kind, "name": name,
            "args": args,
        }))
    }

    fn client(
        &mut self,
        pid: usize,
        log: &Log,
        tallies: &Tallies,
        commits: &HashMap<(u64, u64), Slice>,
    ) -> Result<()> {
        let mut named = vec![WAITS];
        for (tid, record) in waits(log) {
            if !named.contains(&tid) {
                named.push(tid);
                self.name_track(pid, tid, "waits")?;
            }
            self.wait((pid, tid), record, tallies)?;
            let commit = commits.get(&(record.chunk, record.version));
            if let (Kind::Event, Some(commit)) = (record.kind, commit) {
                self.arrow(*commit, (pid, tid, record.time))?;
            }
        }
        let mut lanes = Lanes::default();
        for guard in guards(log) {
            let lane = lanes.take(guard.from, guard.to);
            let tid = WAITS + 1 + lane;
            if lanes.is_new(lane) {
                self.name_track(pid, tid, "guards")?;
            }
            let name = format!("{} {}", guard.call.word(), tallies.name(guard.chunk));
            let args = json!({ "version": guard.version, "ended": guard.ended });
            self.slice((pid, tid), (guard.from, guard.to), ("guard", name), args)?;
        }
        Ok(())
    }

    fn wait(&mut self, track: (usize, usize), record: &Record, tallies: &Tallies) -> Result<()> {
        let name = tallies.name(record.chunk);
        let word = record.call().word();
        let (kind, name) = match record.kind {
            Kind::Committed => ("commit", format!("{word} {name}")),
            Kind::Event => ("event", format!("event of {name}")),
            Kind::Failed => ("failed", format!("{word} {name} failed")),
            Kind::Met => ("meeting", format!("meeting {name}")),
            _ => ("wait", format!("waits to {word} {name}")),
        };
        let args = match record.kind {
            Kind::Failed => json!({ "error": record.version }),
            Kind::Met => json!({}),
            _ => json!({ "version": record.version, "tag": record.tag }),
        };
        self.slice(track, (record.began(), record.time), (kind, name), args)
    }

    /// Adds an arrow from a commit to an event that tells of it.
    fn arrow(&mut self, (from, track, committed): Slice, (to, tid, told): Slice) -> Result<()> {
        self.flows += 1;
        let id = self.flows;
        // An arrow begins and ends inside a slice. An event may be taken before its writer hears
        // that the commit is done.
        let begin = self.at(committed.min(told).saturating_sub(1));
        self.add(&json!({
            "ph": "s", "cat": "event", "name": "told", "id": id, "pid": from, "tid": track,
            "ts": begin,
        }))?;
        self.add(&json!({
            "ph": "f", "bp": "e", "cat": "event", "name": "told", "id": id, "pid": to, "tid": tid,
            "ts": self.at(told),
        }))
    }

    fn server(&mut self, pid: usize, log: &Log, tallies: &Tallies) -> Result<()> {
        for record in &log.records {
            let name = match record.kind {
                Kind::Adopt => "commit",
                Kind::Close => "close",
                Kind::Fence => "fence",
                Kind::Lost => "lost",
                Kind::Late => "late",
                Kind::Created => "create",
                Kind::Removed => "remove",
                _ => continue,
            };
            let name = match record.chunk {
                u64::MAX => name.to_owned(),
                chunk => format!("{name} {}", tallies.name(chunk)),
            };
            let args = json!({
                "version": record.version, "tag": record.tag, "peer": record.peer,
            });
            let ts = self.at(record.time);
            self.add(&json!({
                "ph": "i", "s": "t", "pid": pid, "tid": WAITS, "ts": ts, "cat": "server",
                "name": name, "args": args,
            }))?;
        }
        Ok(())
    }
}

/// Returns the guards of a log, in the order in which they were given.
fn guards(log: &Log) -> Vec<Guard> {
    let last = log.records.last().map_or(0, |record| record.time);
    let mut out: BTreeMap<(u64, u64), VecDeque<usize>> = BTreeMap::new();
    let mut guards = Vec::new();
    for record in &log.records {
        let key = (record.chunk, record.guard);
        let (time, ended) = match record.kind {
            Kind::Given => {
                out.entry(key).or_default().push_back(guards.len());
                guards.push(Guard {
                    from: record.time,
                    to: last,
                    call: record.call(),
                    chunk: record.chunk,
                    version: record.version,
                    ended: "never",
                });
                continue;
            }
            Kind::Ended => (record.time, "dropped"),
            Kind::Committed => (record.time, "committed"),
            Kind::Failed if record.guard != 0 => (record.time, "failed"),
            _ => continue,
        };
        if let Some(at) = out.get_mut(&key).and_then(VecDeque::pop_front) {
            let guard: &mut Guard = &mut guards[at];
            (guard.to, guard.ended) = (time, ended);
        }
    }
    guards.sort_by_key(|guard| guard.from);
    guards
}

/// Tracks, so that no two slices of one overlap. Slices come in the order of their beginnings.
#[derive(Default)]
struct Lanes {
    /// When the last slice of each ends.
    ends: Vec<u64>,
    named: usize,
}

impl Lanes {
    fn take(&mut self, from: u64, to: u64) -> usize {
        let free = self.ends.iter().position(|end| *end <= from);
        let lane = free.unwrap_or_else(|| {
            self.ends.push(0);
            self.ends.len() - 1
        });
        self.ends[lane] = to;
        lane
    }

    /// Returns true once for each lane.
    fn is_new(&mut self, lane: usize) -> bool {
        let is_new = lane >= self.named;
        self.named = self.named.max(lane + 1);
        is_new
    }
}
