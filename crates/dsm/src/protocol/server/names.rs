//! The chunks of a server, by name: they are created, found and removed.

use super::replicas::Replication;
use super::{
    Chunk, MOST_CHUNKS, MOST_FREED, MOST_SERVERS, Server, ServerAction, Waiting, answer_to, fail,
};
use crate::protocol::message::{
    Answer, Fault, Kind, LONGEST_KIND, LONGEST_NAME, Protocol, Replicas,
};
use crate::protocol::{Between, ChunkId, DirectoryEvent, Process, Ticket, Version};
use std::collections::BTreeSet;

impl Server {
    pub(super) fn open(
        &mut self,
        asker: (Process, Ticket),
        (name, kind): (String, Kind),
        (bytes, protocol, replicas): (Option<u64>, Protocol, Option<Replicas>),
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
        let has_turn = |of: &Replicas| {
            let servers: BTreeSet<_> = of.order.iter().take(MOST_SERVERS + 1).collect();
            let is_order = servers.len() == of.order.len() && servers.len() <= MOST_SERVERS;
            let has_enough = of.count >= 2 && usize::from(of.count) <= servers.len();
            is_order && has_enough && servers.contains(&self.id)
        };
        if !replicas.as_ref().is_none_or(has_turn) {
            return fail(asker, Fault::Malformed, actions);
        }
        let known = self.names.get(&name).copied();
        if let Some(chunk) = known.filter(|chunk| !self.is_new(*chunk)) {
            let answer = self.opened(chunk, &kind, bytes);
            return answer_to(asker, answer, actions);
        }
        if known.is_none()
            && let Some((server, false)) = self.replica_named(&name)
        {
            return fail(asker, Fault::Elsewhere { server }, actions);
        }
        let is_known = known.is_some() || self.replica_named(&name).is_some();
        let create = bytes.map(|bytes| (bytes, protocol));
        let waiting = Waiting::Open {
            name: name.clone(),
            kind: kind.clone(),
            create,
        };
        self.wait(asker, at, waiting);
        match (create, replicas) {
            _ if is_known => {} // It is not at its backups yet, or not taken over.
            (_, Some(replicas)) => self.seek(&name, &replicas, actions),
            (None, None) => {}
            (Some((bytes, protocol)), None) => {
                let made = self.create(&name, (&kind, bytes), protocol, None, actions);
                if let Err(fault) = made {
                    self.waits_no_more(asker);
                    fail(asker, fault, actions);
                }
            }
        }
    }

    /// Creates a chunk, for those that wait for its name.
    pub(super) fn create(
        &mut self,
        name: &str,
        (kind, bytes): (&Kind, u64),
        protocol: Protocol,
        replicas: Option<Replicas>,
        actions: &mut Vec<ServerAction>,
    ) -> Result<(), Fault> {
        if self.chunks.len() as u64 >= MOST_CHUNKS {
            return Err(Fault::TooMany { most: MOST_CHUNKS });
        }
        let id = self.next_chunk;
        self.next_chunk.0 += 1;
        self.names.insert(name.to_owned(), id);
        let mut chunk = Chunk::at_home(name, kind, bytes, protocol);
        if let (Some(home), Some(replicas)) = (chunk.home_mut(), replicas) {
            home.replication = Some(Box::new(Replication::new(replicas, Vec::new())));
        }
        self.chunks.insert(id, chunk);
        actions.push(ServerAction::Create {
            chunk: id,
            name: name.to_owned(),
            bytes,
        });
        match self.is_new(id) {
            true => self.begins(id, actions),
            false => self.found(id, name, actions),
        }
        Ok(())
    }

    /// Returns true if nobody may be given a chunk yet.
    fn is_new(&self, id: ChunkId) -> bool {
        let home = self.chunks.get(&id).and_then(Chunk::home);
        let replication = home.and_then(|home| home.replication.as_ref());
        replication.is_some_and(|replication| replication.is_new)
    }

    /// Answers those that waited for a chunk of that name.
    pub(super) fn found(&mut self, chunk: ChunkId, name: &str, actions: &mut Vec<ServerAction>) {
        let waited = |(asker, (_, waiting)): (&(Process, Ticket), &(u64, Waiting))| match waiting {
            Waiting::Open {
                name: of,
                kind,
                create,
            } if of == name => Some((*asker, kind.clone(), create.map(|(bytes, _)| bytes))),
            _ => None,
        };
        let waited: Vec<_> = self.waiting.iter().filter_map(waited).collect();
        for (asker, kind, bytes) in waited {
            self.waits_no_more(asker);
            answer_to(asker, self.opened(chunk, &kind, bytes), actions);
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
        let replication = home.replication.as_ref();
        let first = replication.and_then(|of| of.was.first().copied());
        Answer::Opened {
            chunk: id,
            bytes: chunk.bytes,
            origin: first.unwrap_or(id),
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

    /// Removes a chunk, when its backups have forgotten it.
    pub(super) fn free(
        &mut self,
        asker: (Process, Ticket),
        chunk: ChunkId,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.home(chunk).is_none() {
            return fail(asker, self.no_chunk(chunk), actions);
        }
        self.free_for(chunk, Some(asker), actions);
    }

    /// Removes the chunks whose names begin with a text, or as many as one request may. Those with
    /// backups are removed when these have forgotten them.
    pub(super) fn free_all(
        &mut self,
        asker: (Process, Ticket),
        prefix: &str,
        actions: &mut Vec<ServerAction>,
    ) {
        let all = self.names.range(prefix.to_owned()..);
        let all = all.take_while(|(name, _)| name.starts_with(prefix));
        let all = all.map(|(_, chunk)| *chunk);
        let all = all.filter(|chunk| !self.is_being_freed(*chunk));
        let all: Vec<ChunkId> = all.take(MOST_FREED).collect();
        for chunk in &all {
            self.free_for(*chunk, None, actions);
        }
        let more = all.len() == MOST_FREED;
        answer_to(asker, Answer::FreedSome { more }, actions);
    }

    /// Returns true if the backups of a chunk were told to forget it.
    fn is_being_freed(&self, chunk: ChunkId) -> bool {
        let home = self.chunks.get(&chunk).and_then(Chunk::home);
        let replication = home.and_then(|home| home.replication.as_ref());
        replication.is_some_and(|replication| !replication.freeing.is_empty())
    }

    fn free_for(
        &mut self,
        chunk: ChunkId,
        asker: Option<(Process, Ticket)>,
        actions: &mut Vec<ServerAction>,
    ) {
        if !self.dismisses(chunk, asker, actions) {
            self.freed(chunk, vec![asker], actions);
        }
    }

    /// Removes a chunk. The first of those that have asked for it has done it; `None`: one that
    /// does not wait for it.
    pub(super) fn freed(
        &mut self,
        chunk: ChunkId,
        askers: Vec<Option<(Process, Ticket)>>,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(home) = self.home(chunk) else {
            return;
        };
        if home.replication.is_some() {
            self.moved.retain(|_, to| *to != chunk);
        }
        let Some(home) = self.home(chunk) else {
            return;
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
        for (place, asker) in askers.into_iter().enumerate() {
            match (asker, place) {
                (None, _) => {}
                (Some(asker), 0) => answer_to(asker, Answer::Freed, actions),
                (Some(asker), _) => fail(asker, Fault::Freed, actions),
            }
        }
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
        let deferred = found.home().and_then(|home| home.replication.as_ref());
        let deferred = deferred.into_iter().flat_map(|of| &of.deferred);
        let late = found.home().into_iter().flat_map(|home| &home.late);
        for commit in late.chain(deferred) {
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
