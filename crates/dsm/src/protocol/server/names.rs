//! The chunks of a server, by name: they are created, found and removed.

use super::{Chunk, MOST_CHUNKS, MOST_FREED, Protocol, Server, ServerAction, Waiting};
use super::{answer_to, fail};
use crate::protocol::message::{Answer, Fault, Kind, LONGEST_KIND, LONGEST_NAME};
use crate::protocol::{Between, ChunkId, DirectoryEvent, Process, Ticket, Version};

impl Server {
    pub(super) fn open(
        &mut self,
        asker: (Process, Ticket),
        (name, kind): (String, Kind),
        (bytes, protocol): (Option<u64>, Protocol),
        at: u64,
        actions: &mut Vec<ServerAction>,
    ) {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return fail(asker, Fault::BadName, actions);
        }
        let is_whole = |bytes: u64| kind.size == 0 || bytes.is_multiple_of(kind.size);
        if kind.name.len() > LONGEST_KIND || !bytes.is_none_or(is_whole) {
            return fail(asker, Fault::Malformed, actions);
        }
        match (self.names.get(&name), bytes) {
            (Some(chunk), bytes) => {
                let answer = self.opened(*chunk, &kind, bytes);
                answer_to(asker, answer, actions);
            }
            (None, None) => self.wait(asker, at, Waiting::Open { name, kind }),
            (None, Some(_)) if self.chunks.len() as u64 >= MOST_CHUNKS => {
                fail(asker, Fault::TooMany { most: MOST_CHUNKS }, actions);
            }
            (None, Some(bytes)) => {
                let chunk = self.create(&name, &kind, bytes, protocol);
                actions.push(ServerAction::Create { chunk, bytes });
                answer_to(asker, self.opened(chunk, &kind, None), actions);
                self.found(chunk, &name, actions);
            }
        }
    }

    fn create(&mut self, name: &str, kind: &Kind, bytes: u64, protocol: Protocol) -> ChunkId {
        let id = self.next_chunk;
        self.next_chunk.0 += 1;
        self.names.insert(name.to_owned(), id);
        self.chunks
            .insert(id, Chunk::at_home(name, kind, bytes, protocol));
        id
    }

    /// Answers those that waited for a chunk of that name.
    pub(super) fn found(&mut self, chunk: ChunkId, name: &str, actions: &mut Vec<ServerAction>) {
        let waited = |(asker, (_, waiting)): (&(Process, Ticket), &(u64, Waiting))| match waiting {
            Waiting::Open { name: of, kind } if of == name => Some((*asker, kind.clone())),
            _ => None,
        };
        let waited: Vec<_> = self.waiting.iter().filter_map(waited).collect();
        for (asker, kind) in waited {
            self.waits_no_more(asker);
            answer_to(asker, self.opened(chunk, &kind, None), actions);
        }
    }

    pub(super) fn opened(&self, id: ChunkId, kind: &Kind, bytes: Option<u64>) -> Answer {
        let chunk = &self.chunks[&id];
        let Some(home) = chunk.home() else {
            return Answer::Failed(Fault::Malformed);
        };
        if home.kind != *kind || bytes.is_some_and(|bytes| bytes != chunk.bytes) {
            return Answer::Failed(Fault::Differs {
                kind: home.kind.clone(),
                bytes: chunk.bytes,
            });
        }
        Answer::Opened {
            chunk: id,
            bytes: chunk.bytes,
            version: home.directory.version().0,
            protocol: home.protocol,
        }
    }

    /// Returns why a request of a chunk that is not there fails.
    pub(super) fn no_chunk(&self, chunk: ChunkId) -> Fault {
        let last = Version::default();
        match (chunk.home() == self.id, chunk < self.next_chunk) {
            // Of an earlier life of this server.
            (true, _) if !chunk.is_of(self.me) => Fault::Lost { last },
            (true, true) => Fault::Freed,
            (true, false) => Fault::Malformed,
            (false, _) => Fault::Lost { last },
        }
    }

    /// Removes a chunk.
    pub(super) fn free(
        &mut self,
        asker: (Process, Ticket),
        chunk: ChunkId,
        actions: &mut Vec<ServerAction>,
    ) {
        match self.free_one(chunk, actions) {
            true => answer_to(asker, Answer::Freed, actions),
            false => fail(asker, self.no_chunk(chunk), actions),
        }
    }

    /// Removes the chunks whose names begin with a text, or as many as one request may.
    pub(super) fn free_all(
        &mut self,
        asker: (Process, Ticket),
        prefix: &str,
        actions: &mut Vec<ServerAction>,
    ) {
        let all = self.names.range(prefix.to_owned()..);
        let all = all.take_while(|(name, _)| name.starts_with(prefix));
        let all: Vec<ChunkId> = all.take(MOST_FREED).map(|(_, chunk)| *chunk).collect();
        for chunk in &all {
            self.free_one(*chunk, actions);
        }
        let more = all.len() == MOST_FREED;
        answer_to(asker, Answer::FreedSome { more }, actions);
    }

    /// Removes a chunk. Returns false if this server is not its home.
    fn free_one(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) -> bool {
        let Some(home) = self.home(chunk) else {
            return false;
        };
        let servers = std::mem::take(&mut home.servers);
        let name = std::mem::take(&mut home.name);
        self.names.remove(&name);
        let tell = |to| ServerAction::Send {
            to,
            message: Between::Freed { chunk },
        };
        actions.extend(servers.into_iter().map(tell));
        self.remove(chunk, &Fault::Freed, actions);
        true
    }

    /// Ends all that waits for a chunk, and forgets it.
    pub(super) fn remove(&mut self, chunk: ChunkId, why: &Fault, actions: &mut Vec<ServerAction>) {
        let Some(found) = self.chunks.remove(&chunk) else {
            return;
        };
        self.blocked.remove(&chunk);
        self.used.retain(|_, used| {
            used.remove(&chunk);
            !used.is_empty()
        });
        let waited = self.waiting.iter();
        let waited = waited.filter(|(_, (_, waiting))| waiting.chunk() == Some(chunk));
        let waited: Vec<_> = waited.map(|(asker, _)| *asker).collect();
        for asker in waited {
            self.waits_no_more(asker);
            fail(asker, why.clone(), actions);
        }
        let given = self.given.extract_if(.., |_, (.., of)| *of == chunk);
        let given: Vec<_> = given.map(|(guard, _)| guard).collect();
        let drafts = self.drafts.extract_if(.., |_, (_, of, _)| *of == chunk);
        // A commit that is on its way has no guard any more, but memory.
        let writing = found.cache.holders().map(|(_, guard, _)| guard);
        let writing = writing.filter(|guard| !given.contains(guard));
        let ended: Vec<_> = writing.chain(given.iter().copied()).collect();
        let ended = ended.into_iter().chain(drafts.map(|(guard, _)| guard));
        actions.extend(ended.map(|guard| ServerAction::Discard { chunk, guard }));
        for commit in found.home().into_iter().flat_map(|home| &home.late) {
            if let DirectoryEvent::Commit { from, .. } = *commit {
                actions.push(ServerAction::DropFrom { from, chunk });
            }
        }
        let subscribers = found.home().map(|home| home.subscribers.all());
        let subscribers = subscribers.unwrap_or_default();
        for (who, _) in &subscribers {
            self.subscriptions.remove(who);
            let (who, version) = (*who, None);
            actions.push(ServerAction::Took { who, version });
        }
        if let Some((to, ticket)) = found.cache.committing() {
            fail((to, ticket), why.clone(), actions);
        }
        actions.push(ServerAction::Free { chunk, subscribers });
    }
}
