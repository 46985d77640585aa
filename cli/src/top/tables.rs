//! A report as tables of cells, the same for `--once` and for the live view.

use super::chunks::Chunk;
use super::report::{Named, Readers, Report, Stream, Waiter};
use super::sample::STOPPED;
use crate::screen::size;
use samite::agent::{Owned, ServiceFacts};

/// A table with a title; the first row is the header.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) header: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
    /// The text for a table without rows.
    pub(super) nothing: &'static str,
    /// What the columns mean, in lines that fit on any terminal.
    pub(super) notes: &'static [&'static str],
    pub(super) is_about_waits: bool,
}

/// Returns the first line: the domain and its memory.
pub(super) fn headline(report: &Report) -> String {
    format!(
        "domain {}: agent {}, {} of {} granted, {} resident",
        report.domain,
        report.agent_pid,
        size(report.granted),
        size(report.budget),
        size(report.resident)
    )
}

/// Returns all tables; `frame` knows their order.
pub(super) fn sections(report: &Report) -> [Section; 6] {
    [
        streams(report),
        waits(report),
        chunks(report),
        units(report),
        block_stores(report),
        services(report),
    ]
}

fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", size(bytes_per_second as u64))
}

fn streams(report: &Report) -> Section {
    let lines = |stream: &Stream| {
        let first = vec![
            stream.name.clone(),
            format!("{} {}/{}", stream.writer, stream.ranks_here, stream.ranks),
            format!("writes, {}", stream.state),
            stream.steps.to_string(),
            format!("{}, {}", stream.held_steps, size(stream.memory)),
            String::new(),
            rate(stream.bytes_per_second),
            size(stream.bytes),
        ];
        let mut lines = vec![first];
        lines.extend(stream.readers.iter().map(readers));
        // Subscriptions share one line below the readers.
        if stream.subscriptions > 0 {
            let mut line = vec![String::new(); 8];
            line[1] = format!("{} subscriptions", stream.subscriptions);
            line[5] = format!("{} news", stream.news);
            lines.push(line);
        }
        lines
    };
    Section {
        title: "streams".to_owned(),
        header: &[
            "stream", "who", "how", "steps", "held", "queue", "rate", "total",
        ],
        rows: report.streams.iter().flat_map(lines).collect(),
        nothing: "no stream is open",
        notes: &[
            "2/4: 2 of 4 ranks have it open. held: steps and bytes in memory, of a reader",
            "those that it has taken. queue: what waits for a reader, of its limits.",
            "rate, total: what was written; of a reader, what it has read.",
        ],
        is_about_waits: false,
    }
}

fn readers(readers: &Readers) -> Vec<String> {
    let name = readers.name.as_deref();
    let limit = match readers.limit_bytes {
        u64::MAX => String::new(),
        bytes => format!(", {}", size(bytes)),
    };
    vec![
        String::new(),
        match name {
            Some(name) => format!("{name} {}/{}", readers.ranks_here, readers.ranks),
            None => "nobody yet".to_owned(),
        },
        format!("reads, {}", readers.policy),
        readers.steps.to_string(),
        format!("{}, {}", readers.held_steps, size(readers.held_bytes)),
        format!(
            "{}, {} of {}{limit}",
            readers.queued_steps,
            size(readers.queued_bytes),
            readers.limit_steps
        ),
        rate(readers.bytes_per_second),
        size(readers.bytes),
    ]
}

fn chunks(report: &Report) -> Section {
    let row = |chunk: &Chunk| {
        let writes = chunk
            .writer
            .as_ref()
            .map(|who| format!("{} writes", process(who)));
        let reads = match (chunk.reading, &chunk.readers[..]) {
            (0, _) => None,
            (1, [only]) => Some(format!("{} reads", process(only))),
            (count, _) => Some(format!("{count} read")),
        };
        let full = chunk
            .full
            .iter()
            .map(|who| format!("{} is full", process(who)));
        let who: Vec<String> = writes.into_iter().chain(reads).chain(full).collect();
        let owner = match (&chunk.owner, chunk.sharers) {
            (Some(owner), _) => owner.clone(),
            (None, sharers) => format!("{sharers} share it"),
        };
        vec![
            chunk.name.clone(),
            size(chunk.bytes),
            chunk.version.to_string(),
            chunk.home.clone(),
            owner,
            who.join(", "),
            chunk.queue.to_string(),
            chunk.subscriptions.to_string(),
            chunk.guards.to_string(),
            chunk.closed.to_string(),
        ]
    };
    let title = match report.more_chunks {
        0 => "chunks".to_owned(),
        more => format!("chunks (and {more} that are less active)"),
    };
    Section {
        title,
        header: &[
            "chunk",
            "bytes",
            "version",
            "home",
            "owner",
            "guards out",
            "queue",
            "subscr.",
            "guards",
            "closed",
        ],
        rows: report.chunks.iter().map(row).collect(),
        nothing: "there is none",
        notes: &[
            "home: the server that stores it. owner: the server whose clients may write it.",
            "guards: given by its server so far. closed: how often readers had to ask again.",
        ],
        is_about_waits: false,
    }
}

fn waits(report: &Report) -> Section {
    let row = |wait: &Waiter| {
        let who = Named {
            name: wait.who.clone(),
            pid: wait.pid,
            state: wait.state,
        };
        vec![
            wait.stream.clone().unwrap_or_default(),
            process(&who),
            format!("{}{}", wait.waits_for, awaited(&wait.waits_on)),
            format!("{:.1} s", wait.seconds),
        ]
    };
    let title = match report.more {
        0 => "who waits".to_owned(),
        more => format!("who waits ({more} streams, readers and waits are not listed)"),
    };
    Section {
        title,
        header: &["stream", "who", "waits for", "since"],
        rows: report.waits.iter().map(row).collect(),
        nothing: "nobody",
        notes: &[],
        is_about_waits: true,
    }
}

/// Returns a process by its name: `solver.1 (pid 77, stopped)`.
fn process(process: &Named) -> String {
    let pid = process.pid.map(|pid| format!("pid {pid}"));
    let stopped = process.state.filter(|state| *state == STOPPED);
    let known: Vec<String> = pid.into_iter().chain(stopped.map(str::to_owned)).collect();
    match known.is_empty() {
        true => process.name.clone(),
        false => format!("{} ({})", process.name, known.join(", ")),
    }
}

/// Returns the first processes that are waited for, after a colon; those that are stopped come
/// first.
fn awaited(processes: &[Named]) -> String {
    const MOST: usize = 3;
    if processes.is_empty() {
        return String::new();
    }
    let named: Vec<String> = processes.iter().take(MOST).map(process).collect();
    let more = match processes.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!(": {}{more}", named.join(", "))
}

fn services(report: &Report) -> Section {
    let owned = |owned: &Owned| match owned.is_memory {
        true => format!("{}: {}", owned.what, size(owned.amount)),
        false => format!("{}: {}", owned.what, owned.amount),
    };
    let row = |service: &ServiceFacts| {
        let owns: Vec<String> = service.owns.iter().map(owned).collect();
        vec![service.name.to_string(), owns.join(", ")]
    };
    Section {
        title: "services of the agent".to_owned(),
        header: &["service", "owns"],
        rows: report.services.iter().map(row).collect(),
        nothing: "it hosts none",
        notes: &[],
        is_about_waits: false,
    }
}

fn block_stores(report: &Report) -> Section {
    let row = |block_store: &super::report::BlockStore| {
        // A block store may not have answered in time.
        let said = |bytes: Option<u64>| bytes.map_or("no answer".to_owned(), size);
        vec![
            block_store.name.clone(),
            block_store.peer.to_string(),
            format!(
                "{} of {}",
                size(block_store.granted),
                size(block_store.memory)
            ),
            said(block_store.used),
            said(block_store.spare),
            block_store
                .buffers
                .map_or(String::new(), |count| count.to_string()),
            format!(
                "{} of {}",
                size(block_store.spilled),
                size(block_store.disk)
            ),
        ]
    };
    Section {
        title: "block stores".to_owned(),
        header: &[
            "block store",
            "peer",
            "granted",
            "allocated",
            "unused",
            "buffers",
            "spilled",
        ],
        rows: report.block_stores.iter().map(row).collect(),
        nothing: "there is no block store",
        notes: &[
            "granted: promised to streams, of its limit. allocated: memory of the machine",
            "that it has. unused: allocated, and no stream has it now. spilled: on disk.",
        ],
        is_about_waits: false,
    }
}

fn units(report: &Report) -> Section {
    let row = |unit: &super::report::Unit| {
        vec![
            format!("{}.{}", unit.program, unit.rank),
            unit.ranks.to_string(),
            unit.peer.to_string(),
            unit.pid.to_string(),
            unit.state.to_owned(),
            size(unit.resident),
        ]
    };
    Section {
        title: "processes".to_owned(),
        header: &["process", "of", "peer", "pid", "state", "resident"],
        rows: report.units.iter().map(row).collect(),
        nothing: "no process is here",
        notes: &[
            "The number after the name of a program is the rank: heat.1 would be rank 1 of heat.",
        ],
        is_about_waits: false,
    }
}
