//! What a server records: in its event log, and how active each chunk is, for people
//! ([`Figures`](crate::protocol::Figures)).
//!
//! It sees each request when it arrives, and each action before it is carried out. So a version
//! that is adopted is in the log before anybody can see it.

use crate::log::{Call, Kind, Record, Role, Writer, now};
use crate::protocol::{
    Activity, ChunkId, Commits, Event, GuardId, Mode, Process, PutFrom, Request, Server,
    ServerAction, ServerEvent, Ticket, Version,
};
use samite_fabric::Fabric;
use std::collections::HashMap;

/// The recorder of a server.
#[derive(Debug)]
pub(super) struct Recorder {
    log: Writer,
    active: HashMap<ChunkId, Active, foldhash::fast::FixedState>,
}

/// A chunk.
#[derive(Debug, Default)]
struct Active {
    name: String,
    counts: Activity,
    /// The last version that was adopted.
    version: Version,
}

impl Recorder {
    pub(super) fn new(fabric: &Fabric) -> Recorder {
        let log = Writer::open(fabric, Role::Server).unwrap_or_else(|error| {
            tracing::warn!("the server of chunks has no event log: {error}");
            Writer::off()
        });
        Recorder {
            log,
            active: HashMap::default(),
        }
    }

    /// Returns how active each chunk is, or that one.
    pub(super) fn activity(
        &self,
        only: Option<ChunkId>,
    ) -> impl Iterator<Item = (ChunkId, Activity)> {
        let one = only.and_then(|id| Some((id, self.active.get(&id)?.counts)));
        let all = self.active.iter().filter(move |_| only.is_none());
        one.into_iter()
            .chain(all.map(|(id, active)| (*id, active.counts)))
    }

    /// Returns the name of a chunk.
    pub(super) fn name(&self, chunk: ChunkId) -> String {
        let active = self.active.get(&chunk);
        active.map_or_else(String::new, |active| active.name.clone())
    }

    /// A request, or a note, has arrived.
    pub(super) fn request(&mut self, from: Process, ticket: Option<Ticket>, request: &Request) {
        self.log.put(|| {
            let (call, chunk) = call_of(request);
            let record = Record::new(Kind::Request, now()).by(call).with(from);
            let record = match chunk {
                Some(chunk) => record.of(chunk),
                None => record,
            };
            record.under(GuardId(ticket.map_or(0, |ticket| ticket.0)))
        });
    }

    /// The owner of a chunk has committed before, without a word to the server.
    pub(super) fn owner_committed(&mut self, chunk: ChunkId, owner: Process, commits: &Commits) {
        let active = self.active.entry(chunk).or_default();
        active.counts.commits += commits.count;
        active.version.0 = active.version.0.saturating_add(commits.count);
        let first = active.version.0.saturating_add(1);
        let first = first.saturating_sub(commits.last.len() as u64);
        for (version, (tag, time)) in (first..).zip(&commits.last) {
            self.log.put(|| {
                let record = Record::new(Kind::Adopt, *time).of(chunk).with(owner);
                record.at(Version(version), *tag)
            });
        }
    }

    /// A process loses its guards, or is gone.
    pub(super) fn event(&self, event: &ServerEvent) {
        let (kind, process) = match event {
            ServerEvent::Fence(process) | ServerEvent::FenceServer(process) => {
                (Kind::Fence, *process)
            }
            ServerEvent::Lost(process) => (Kind::Lost, *process),
            _ => return,
        };
        self.log.put(|| Record::new(kind, now()).with(process));
    }

    /// An action is about to be carried out.
    pub(super) fn action(&mut self, action: &ServerAction, server: &Server) {
        let Recorder { log, active } = self;
        let of = |kind, chunk| Record::new(kind, now()).of(chunk);
        match action {
            ServerAction::Create { chunk, name, bytes } => {
                let of_chunk = Active {
                    name: name.clone(),
                    ..Active::default()
                };
                active.insert(*chunk, of_chunk);
                log.put_name(chunk.0, name);
                log.put(|| of(Kind::Created, *chunk).worth(*bytes));
            }
            ServerAction::TakeOver {
                chunk,
                name,
                version,
                bytes,
                ..
            } => {
                let of_chunk = Active {
                    name: name.clone(),
                    version: *version,
                    ..Active::default()
                };
                active.insert(*chunk, of_chunk);
                log.put_name(chunk.0, name);
                log.put(|| of(Kind::Created, *chunk).at(*version, 0).worth(*bytes));
                // The version that it begins with is as good as a commit.
                if *version > Version::default() {
                    log.put(|| adopted(server, (*chunk, GuardId(0)), *version));
                }
            }
            ServerAction::Free { chunk, .. } => {
                active.remove(chunk);
                log.put(|| of(Kind::Removed, *chunk));
            }
            ServerAction::Give {
                to,
                chunk,
                guard,
                version,
                tag,
                ..
            } => {
                active.entry(*chunk).or_default().counts.guards += 1;
                log.put(|| {
                    let record = of(Kind::Grant, *chunk).under(*guard).with(*to);
                    record.at(*version, *tag)
                });
            }
            // A commit takes place at the home of its chunk.
            ServerAction::Adopt { chunk, .. } if !server.is_home(*chunk) => {}
            ServerAction::Adopt { chunk, .. } | ServerAction::AdoptFrom { chunk, .. } => {
                let guard = match action {
                    ServerAction::Adopt { guard, .. } => *guard,
                    _ => GuardId(0), // Only the server that gave it knows its number.
                };
                let active = active.entry(*chunk).or_default();
                active.counts.commits += 1;
                active.version = active.version.next();
                log.put(|| adopted(server, (*chunk, guard), active.version));
            }
            ServerAction::DropCopy { chunk } => _ = active.remove(chunk),
            ServerAction::Close { chunk } => {
                active.entry(*chunk).or_default().counts.closed += 1;
                log.put(|| of(Kind::Close, *chunk));
            }
            ServerAction::Open { chunk, version, .. } => {
                log.put(|| of(Kind::Open, *chunk).at(*version, 0));
            }
            ServerAction::Tell { chunk, telling } => log.put(|| {
                let (process, id) = telling.to;
                let last = telling.events.last();
                let at = last.map_or((Version(0), 0), |last| (last.version, last.tag));
                let record = of(Kind::Told, *chunk).under(GuardId(id.0)).with(process);
                record.at(at.0, at.1).worth(telling.events.len() as u64)
            }),
            ServerAction::Late { to, chunk, .. } => {
                log.put(|| of(Kind::Late, *chunk).with(*to));
            }
            _ => {}
        }
    }
}

/// Returns the record of a commit. Several may be carried out at once: the server's present
/// version may be a later one.
fn adopted(server: &Server, (chunk, guard): (ChunkId, GuardId), version: Version) -> Record {
    let record = Record::new(Kind::Adopt, now()).of(chunk).under(guard);
    match server.commit_of(chunk, version) {
        Some(Event { tag, writer, .. }) => record.at(version, tag).with(writer),
        None => record.at(version, 0),
    }
}

/// Returns what a client asks for, and of which chunk.
fn call_of(request: &Request) -> (Call, Option<ChunkId>) {
    match request {
        Request::Acquire {
            chunk,
            mode: Mode::Read,
            ..
        } => (Call::Read, Some(*chunk)),
        Request::Acquire { chunk, .. } => (Call::Write, Some(*chunk)),
        Request::Snapshot { chunk } => (Call::Snapshot, Some(*chunk)),
        Request::Commit { chunk, .. } => (Call::Commit, Some(*chunk)),
        Request::Take { chunk, .. } => (Call::Take, Some(*chunk)),
        Request::Change { chunk, .. } => (Call::Change, Some(*chunk)),
        Request::Free { chunk } => (Call::Free, Some(*chunk)),
        Request::Draft { chunk } => (Call::Draft, Some(*chunk)),
        Request::Put {
            chunk,
            from: PutFrom::Inline(_) | PutFrom::Draft(_),
            ..
        } => (Call::Put, Some(*chunk)),
        Request::Subscribe { chunk, .. } => (Call::Subscribe, Some(*chunk)),
        Request::Release { chunk, .. } => (Call::Release, Some(*chunk)),
        Request::Took { chunk, .. } => (Call::Event, Some(*chunk)),
        Request::Open { .. } => (Call::Open, None),
        Request::Meet { .. } => (Call::Meet, None),
        _ => (Call::Other, None),
    }
}
