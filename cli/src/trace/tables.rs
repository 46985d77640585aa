//! The tables of `samite trace` on the terminal.

use super::tally::{Tallies, Tally, Wait, slowest};
use crate::screen::{printable, size, table};
use samite::dsm::log::{Kind, Level, Log, Role};
use std::cmp::Reverse;
use std::path::Path;

/// Returns all tables, each of at most `rows` rows.
pub(super) fn text(folder: &Path, logs: &[Log], rows: usize) -> String {
    let tallies = Tallies::of(logs);
    let records: usize = logs.iter().map(|log| log.records.len()).sum();
    let mut text = format!(
        "{}: {} logs, {records} records, {:.3} s\n",
        printable(&folder.display().to_string()),
        logs.len(),
        duration(logs) as f64 / 1e9
    );
    text += &chunks(&tallies, rows);
    text += &processes(logs, &tallies, rows);
    text += &waits(logs, &tallies, &slowest(logs, rows));
    text
}

/// Returns the time from the beginning of the first log to the last record.
fn duration(logs: &[Log]) -> u64 {
    let start = logs.iter().map(|log| log.header.start).min().unwrap_or(0);
    let records = logs.iter().flat_map(|log| &log.records);
    let end = records.map(|record| record.time).max().unwrap_or(start);
    end.saturating_sub(start)
}

const COLUMNS: [&str; 9] = [
    "reads", "hits", "writes", "commits", "events", "waited", "longest", "idle", "failed",
];

fn cells(tally: &Tally) -> Vec<String> {
    vec![
        tally.reads.to_string(),
        tally.hits.to_string(),
        tally.writes.to_string(),
        tally.commits.to_string(),
        tally.events.to_string(),
        time(tally.waited),
        time(tally.longest),
        time(tally.idle),
        tally.failures.to_string(),
    ]
}

/// Returns a duration as people read it.
pub(super) fn time(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        0.0 => "0".to_owned(),
        _ if nanos < 1e3 => format!("{nanos:.0} ns"),
        _ if nanos < 1e6 => format!("{:.1} us", nanos / 1e3),
        _ if nanos < 1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

fn chunks(tallies: &Tallies, rows: usize) -> String {
    let header = ["chunk", "bytes", "closed"].into_iter().chain(COLUMNS);
    let header: Vec<&str> = header.collect();
    let mut all: Vec<(&u64, &Tally)> = tallies.chunks.iter().collect();
    all.sort_by_key(|(chunk, tally)| {
        let active = tally.reads.saturating_add(tally.commits);
        (Reverse((tally.waited, active)), **chunk)
    });
    let mut lines = table(&header);
    for (chunk, tally) in all.iter().take(rows) {
        let mut row = vec![
            printable(&tallies.name(**chunk)),
            size(tally.bytes),
            tally.closed.to_string(),
        ];
        row.extend(cells(tally));
        lines.add_row(row);
    }
    let notes = "closed: how often a server ended the reading without messages, because somebody \
                 wanted to write.\nwaited: for guards, commits and snapshots. idle: for events, \
                 and for others at a meeting.\n";
    format!("\nchunks{}\n{lines}\n{notes}", left_out(all.len(), rows))
}

fn processes(logs: &[Log], tallies: &Tallies, rows: usize) -> String {
    let header = ["process", "peer", "committed"].into_iter().chain(COLUMNS);
    let header: Vec<&str> = header.chain(["log"]).collect();
    let clients = logs.iter().zip(&tallies.processes);
    let clients: Vec<_> = clients
        .filter(|(log, _)| log.header.role == Role::Client)
        .collect();
    let mut lines = table(&header);
    for (log, tally) in clients.iter().take(rows) {
        let process = log.header.process;
        let mut row = vec![
            printable(&log.header.name),
            format!("{} ({})", process.peer.0, process.incarnation),
            size(tally.bytes),
        ];
        row.extend(cells(tally));
        row.push(state(log));
        lines.add_row(row);
    }
    format!("\nprocesses{}\n{lines}\n", left_out(clients.len(), rows))
}

/// Returns how a log is, in a few words.
fn state(log: &Log) -> String {
    let level = match log.header.level {
        Level::Full => "",
        Level::Counters | Level::Off => "counters, ",
    };
    let end = match (log.is_closed, log.missing) {
        (true, 0) => "complete".to_owned(),
        (false, 0) => "ends early".to_owned(),
        (_, missing) => format!("{missing} records dropped"),
    };
    format!("{level}{end}")
}

fn waits(logs: &[Log], tallies: &Tallies, waits: &[Wait]) -> String {
    if waits.is_empty() {
        return String::new();
    }
    let start = logs.iter().map(|log| log.header.start).min().unwrap_or(0);
    let mut lines = table(&["wait", "process", "for", "chunk", "since", "ended"]);
    for Wait { log, record } in waits {
        let ended = match record.kind {
            Kind::Failed => format!("error {}", record.version),
            _ => format!("version {}", record.version),
        };
        let since = record.began().saturating_sub(start) as f64 / 1e9;
        lines.add_row([
            time(record.value),
            printable(&logs[*log].header.name),
            record.call().word().to_owned(),
            printable(&tallies.name(record.chunk)),
            format!("{since:.6} s"),
            ended,
        ]);
    }
    format!("\nslowest waits\n{lines}\n")
}

fn left_out(all: usize, rows: usize) -> String {
    match all.saturating_sub(rows) {
        0 => String::new(),
        more => format!(" ({more} more with --rows {all})"),
    }
}
