//! What a server says of its chunks, for people: the most active ones, and who waits.

use super::chunk::{Chunk, Home};
use super::{Server, Waiting};
use crate::protocol::message::Event;
use crate::protocol::overview::{Activity, Figures, MOST_FIGURES, MOST_NAMED, Overview, Waits};
use crate::protocol::{ChunkId, Mode, Process, Version};
use std::cmp::Reverse;
use std::collections::BTreeSet;

impl Server {
    /// Returns true if this server is the home of a chunk.
    pub fn is_home(&self, chunk: ChunkId) -> bool {
        self.chunks
            .get(&chunk)
            .is_some_and(|chunk| chunk.home().is_some())
    }

    /// Returns a commit that the server, which is the home of the chunk, still knows of.
    pub fn commit_of(&self, chunk: ChunkId, version: Version) -> Option<Event> {
        let history = &self.chunks.get(&chunk)?.home()?.history;
        let first = history.front()?.version.0;
        let place = usize::try_from(version.0.checked_sub(first)?).ok()?;
        history.get(place).copied()
    }

    /// Returns the most active chunks, or that one, and the requests that wait, for as many as an
    /// answer may name. `activity`: of the chunks in question; `name`: of a chunk; `readers`: the
    /// processes that have read guards of a chunk which they took themselves.
    pub fn overview(
        &self,
        only: Option<ChunkId>,
        activity: impl Iterator<Item = (ChunkId, Activity)>,
        name: impl Fn(ChunkId) -> String,
        readers: impl Fn(ChunkId) -> Vec<Process>,
    ) -> Overview {
        let is_wanted = |id: &ChunkId| only.is_none_or(|only| *id == only);
        let activity = activity.filter(|(id, _)| is_wanted(id));
        let mut active: Vec<_> = activity.filter(|(id, _)| self.is_home(*id)).collect();
        let waits = self
            .waiting
            .iter()
            .filter_map(|((process, _), (_, waiting))| {
                let id = waiting.chunk();
                let is_wanted = id.map_or(only.is_none(), |id| is_wanted(&id));
                is_wanted.then_some((*process, waiting))
            });
        let waits: Vec<_> = waits.collect();
        let more = active.len().saturating_sub(MOST_FIGURES);
        let more_waits = waits.len().saturating_sub(MOST_FIGURES);
        // Those that somebody waits for come first.
        let awaited = waits.iter().filter_map(|(_, waiting)| waiting.chunk());
        let awaited: BTreeSet<ChunkId> = awaited.collect();
        let order = |(id, counts): &(ChunkId, Activity)| {
            let total = counts.guards + counts.commits + counts.closed;
            Reverse((awaited.contains(id), total, Reverse(*id)))
        };
        // There may be a million.
        if active.len() > MOST_FIGURES {
            active.select_nth_unstable_by_key(MOST_FIGURES, order);
            active.truncate(MOST_FIGURES);
        }
        active.sort_by_key(order);
        let active = active.into_iter();
        let chunks = active.filter_map(|(id, activity)| {
            let chunk = self.chunks.get(&id)?;
            let names = (id, name(id));
            Some(self.figures(names, (chunk, chunk.home()?), activity, readers(id)))
        });
        let waits = waits.into_iter().take(MOST_FIGURES);
        let waits = waits.map(|(process, waiting)| {
            let chunk = waiting.chunk();
            let (what, other) = words_of(waiting);
            Waits {
                process,
                what: what.to_owned(),
                chunk,
                name: chunk.map_or_else(|| other.to_owned(), &name),
                on: self.awaited(process, waiting, &readers),
            }
        });
        Overview {
            chunks: chunks.collect(),
            waits: waits.collect(),
            more: more as u64,
            more_waits: more_waits as u64,
            servers: self.servers().collect(),
        }
    }

    fn figures(
        &self,
        (id, name): (ChunkId, String),
        (chunk, home): (&Chunk, &Home),
        activity: Activity,
        own: Vec<Process>,
    ) -> Figures {
        let (version, tag) = home.directory.version();
        // To the cache, an owner is a writer, also while it writes nothing.
        let owner = home.owner.as_ref().map(|owner| owner.client);
        let guards = || {
            let all = chunk.cache.holders();
            all.filter(move |(who, .., mode)| (Some(*who), *mode) != (owner, Mode::Write))
        };
        let writer = guards().find(|(.., mode)| *mode == Mode::Write);
        let readers = guards().filter(|(.., mode)| *mode == Mode::Read);
        let readers: BTreeSet<Process> = readers.map(|(who, ..)| who).chain(own).collect();
        let subscribers = home.subscribers.all().into_iter();
        let subscribers: Vec<Process> = subscribers.map(|((who, _), _)| who).collect();
        // The first of those that take may wait at the cache, too.
        let waits = home.gate.len() + chunk.cache.waiting() + home.takers.len();
        Figures {
            chunk: id,
            name,
            bytes: chunk.bytes,
            version,
            tag,
            home: self.me,
            owner: home.directory.owner(),
            sharers: home.directory.holders().len() as u64,
            writer: writer.map(|(who, ..)| who),
            reading: readers.len() as u64,
            readers: readers.into_iter().take(MOST_NAMED).collect(),
            queue: (waits - usize::from(home.is_taking)) as u64,
            subscriptions: subscribers.len() as u64,
            subscribers: subscribers.into_iter().take(MOST_NAMED).collect(),
            full: home.full().take(MOST_NAMED).collect(),
            last_writer: home.history.back().map(|event| event.writer),
            activity,
        }
    }

    /// Returns the processes that a request waits for.
    fn awaited(
        &self,
        asker: Process,
        waiting: &Waiting,
        readers: impl Fn(ChunkId) -> Vec<Process>,
    ) -> Vec<Process> {
        let mut all = BTreeSet::new();
        match waiting {
            Waiting::Open { .. } | Waiting::Successor { .. } => {}
            Waiting::Meet { name } => all.extend(self.meetings.absent(name)),
            of_chunk => {
                if let Some((id, chunk)) = of_chunk
                    .chunk()
                    .and_then(|id| Some((id, self.chunks.get(&id)?)))
                {
                    all.extend(chunk.cache.holders().map(|(who, ..)| who));
                    all.extend(readers(id));
                    all.extend(chunk.servers_waited_for().map(|(server, _)| server));
                    all.extend(chunk.home().into_iter().flat_map(Home::full));
                }
            }
        }
        all.remove(&asker);
        all.into_iter().take(MOST_NAMED).collect()
    }
}

/// Returns what a request waits for, and of what if that is no chunk.
fn words_of(waiting: &Waiting) -> (&'static str, &str) {
    match waiting {
        Waiting::Open { name, .. } => ("somebody to allocate", name),
        Waiting::Successor { .. } => ("a server to take over a chunk", ""),
        Waiting::Acquire { .. } => ("a guard of", ""),
        Waiting::Put { .. } => ("its put to", ""),
        Waiting::Take { .. } => ("a version to take of", ""),
        Waiting::Change { .. } => ("its change of", ""),
        Waiting::Own { .. } => ("to own", ""),
        Waiting::Meet { name } => ("others at the meeting", name),
    }
}
