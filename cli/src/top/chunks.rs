//! Coherent chunks in the report: what their server says of them, by names.

use super::report::{Named, Processes, Waiter};
use samite::dsm::protocol::{Figures, Overview, Process, Waits};
use serde::Serialize;

/// What a client that waits for events says that it waits for; its server does not know that.
const EVENT: &str = "a commit of another process";

/// A chunk.
#[derive(Serialize)]
pub(super) struct Chunk {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) version: u64,
    pub(super) tag: u64,
    /// The server that stores it.
    pub(super) home: String,
    /// The server that alone has it, and may let clients write.
    pub(super) owner: Option<String>,
    /// The number of servers that may have a copy.
    pub(super) sharers: u64,
    /// The client that has a write guard.
    pub(super) writer: Option<Named>,
    /// The number of clients that have read guards, and the first of them.
    pub(super) reading: u64,
    pub(super) readers: Vec<Named>,
    /// Requests that wait for a guard.
    pub(super) queue: u64,
    pub(super) subscriptions: u64,
    /// Subscribers that let writers wait.
    pub(super) full: Vec<Named>,
    pub(super) commits: u64,
    pub(super) guards: u64,
    /// How often the reading without messages was ended, because somebody wanted to write.
    pub(super) closed: u64,
}

impl Chunk {
    pub(super) fn new(figures: &Figures, processes: &Processes<'_>) -> Chunk {
        let named = |all: &[Process]| {
            let all = all.iter().map(|one| (one.peer, Some(one.incarnation)));
            processes.named(all)
        };
        let one = |process: &Process| named(std::slice::from_ref(process)).pop();
        let server = |process: &Process| one(process).map_or_else(String::new, |one| one.name);
        Chunk {
            name: figures.name.clone(),
            bytes: figures.bytes,
            version: figures.version.0,
            tag: figures.tag,
            home: server(&figures.home),
            owner: figures.owner.as_ref().map(server),
            sharers: figures.sharers,
            writer: figures.writer.as_ref().and_then(one),
            reading: figures.reading,
            readers: named(&figures.readers),
            queue: figures.queue,
            subscriptions: figures.subscriptions,
            full: named(&figures.full),
            commits: figures.activity.commits,
            guards: figures.activity.guards,
            closed: figures.activity.closed,
        }
    }
}

/// Says of clients that wait for the server which chunk that is about, and who keeps it from them.
/// Adds those that have not waited long enough to say it themselves.
pub(super) fn explain(waits: &mut Vec<Waiter>, overview: &Overview, processes: &Processes<'_>) {
    for wait in &overview.waits {
        let known = processes.find(wait.process.peer, Some(wait.process.incarnation));
        let Some((info, state)) = known else {
            continue;
        };
        let on = wait.on.iter().map(|one| (one.peer, Some(one.incarnation)));
        let (waits_for, waits_on) = (words(wait), processes.named(on));
        let is_it = |known: &&mut Waiter| known.stream.is_none() && known.peer == info.peer.0;
        match waits.iter_mut().find(is_it) {
            Some(known) => (known.waits_for, known.waits_on) = (waits_for, waits_on),
            None => waits.push(Waiter {
                stream: None,
                who: super::report::name(info),
                peer: info.peer.0,
                pid: Some(info.pid),
                state: Some(state),
                waits_for,
                waits_on,
                seconds: 0.0,
            }),
        }
    }
    for wait in waits.iter_mut().filter(|wait| wait.waits_for == EVENT) {
        let is_subscriber = |chunk: &&Figures| {
            let mut subscribers = chunk.subscribers.iter();
            subscribers.any(|one| one.peer.0 == wait.peer)
        };
        let all: Vec<&Figures> = overview.chunks.iter().filter(is_subscriber).collect();
        let names: Vec<String> = all
            .iter()
            .map(|chunk| format!("\"{}\"", chunk.name))
            .collect();
        if names.is_empty() {
            continue;
        }
        wait.waits_for = format!("a commit to the chunk {}", names.join(" or "));
        // The processes that write them now.
        let writers = all
            .iter()
            .filter_map(|chunk| chunk.writer.or(chunk.last_writer));
        let others = writers.filter(|one| one.peer.0 != wait.peer);
        wait.waits_on = processes.named(others.map(|one| (one.peer, Some(one.incarnation))));
        wait.waits_on.dedup();
    }
}

fn words(wait: &Waits) -> String {
    format!("{} \"{}\"", wait.what, wait.name)
}
