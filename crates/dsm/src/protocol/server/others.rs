//! What other servers say, and what is done when they are lost.

use super::chunk::{Chunk, Side};
use super::{MOST_CHUNKS, Server, ServerAction, Waiting, fail};
use crate::protocol::message::{Answer, Fault, Protocol};
use crate::protocol::{Between, CacheEvent, ChunkId, DirectoryEvent, Process, ServerId};
use crate::protocol::{Ticket, Version};
use std::collections::BTreeSet;

impl Server {
    /// Returns the other servers that are known.
    pub fn servers(&self) -> impl Iterator<Item = Process> {
        self.servers.values().copied()
    }

    /// Returns the process of another server, if it is known.
    pub fn server(&self, server: ServerId) -> Option<Process> {
        self.servers.get(&server).copied()
    }

    /// Returns true if this process is a server that is known.
    pub fn is_server(&self, process: Process) -> bool {
        self.servers().any(|server| server == process)
    }

    /// Returns the homes of the chunks that are cached here.
    pub fn homes(&self) -> BTreeSet<Process> {
        let homes = self.chunks.values().filter_map(|chunk| match chunk.side {
            Side::Copy { home } => Some(home),
            Side::Home(_) => None,
        });
        homes.collect()
    }

    /// Returns the version of a copy of a chunk of another home, if there is one.
    pub fn copy(&self, chunk: ChunkId) -> Option<Version> {
        self.chunks.get(&chunk)?.cache.version()
    }

    /// Returns the home of a chunk that is cached here, if it is another server.
    pub fn home_of(&self, chunk: ChunkId) -> Option<Process> {
        match self.chunks.get(&chunk)?.side {
            Side::Copy { home } => Some(home),
            Side::Home(_) => None,
        }
    }

    /// Returns the servers that keep others waiting, because they do not answer a recall.
    pub fn blocking_servers(&self) -> BTreeSet<Process> {
        let blocked = self.blocked.iter().filter_map(|id| self.chunks.get(id));
        let homes = blocked.filter_map(Chunk::home);
        // A commit that waits for backups comes first.
        let homes = homes.filter(|home| !home.has_pending());
        let all = homes.flat_map(|home| home.directory.waits_for());
        all.filter(|server| *server != self.me).collect()
    }

    /// Returns true if there is such a chunk. One of another home that is known is cached from now
    /// on, so that clients can enroll before it is granted.
    pub fn knows(&mut self, chunk: ChunkId) -> bool {
        if self.chunks.contains_key(&chunk) {
            return true;
        }
        if self.chunks.len() as u64 >= MOST_CHUNKS {
            return false;
        }
        let home = self.servers.get(&chunk.home()).copied();
        // It may have been started again: then it does not have the chunk any more.
        let has_it = |home: &Process| chunk.home() != self.id && chunk.is_of(*home);
        let Some(home) = home.filter(has_it) else {
            return false;
        };
        self.chunks.insert(chunk, Chunk::copy_of(home));
        true
    }

    /// Pushes each version of a chunk to a server, because a client of it wants that.
    pub(super) fn follow(&mut self, chunk: ChunkId, server: Option<ServerId>) {
        let server = server.and_then(|server| self.servers.get(&server).copied());
        if let (Some(server), Some(home)) = (server, self.home(chunk)) {
            home.servers.insert(server);
            home.followers.insert(server);
        }
    }

    /// Another server is there.
    pub(super) fn knows_server(
        &mut self,
        server: ServerId,
        process: Process,
        actions: &mut Vec<ServerAction>,
    ) {
        self.servers.insert(server, process);
        self.gone.remove(&server);
        self.seek_at(server, process, actions);
        self.refill_all(actions);
    }

    /// Handles what another server says.
    pub(super) fn hear(
        &mut self,
        from: Process,
        message: Between,
        actions: &mut Vec<ServerAction>,
    ) {
        let send = |message| ServerAction::Send { to: from, message };
        match message {
            Between::Ask { chunk, access } => {
                let Some(home) = self.home(chunk) else {
                    return actions.push(send(Between::Freed { chunk }));
                };
                home.servers.insert(from);
                if home.protocol == Protocol::Update {
                    home.followers.insert(from);
                }
                if home.refuses(access) || home.protocol == Protocol::HomeOnly {
                    return actions.push(send(Between::AtHome { chunk }));
                }
                self.at_directory(chunk, DirectoryEvent::Ask { from, access }, actions);
            }
            Between::Recalled { chunk, keeps } => {
                self.at_directory(chunk, DirectoryEvent::Recalled { from, keeps }, actions);
            }
            Between::Commit {
                chunk,
                epoch,
                tag,
                writer,
                ..
            } => {
                let commit = DirectoryEvent::Commit {
                    from,
                    epoch,
                    tag,
                    writer,
                    versions: 1,
                };
                match self.home(chunk) {
                    None => {
                        actions.push(ServerAction::DropFrom { from, chunk });
                        actions.push(send(Between::Freed { chunk }));
                    }
                    Some(home) => {
                        home.late.push_back(commit);
                        self.admit(chunk, actions);
                        self.take(chunk, actions);
                        self.admit(chunk, actions);
                    }
                }
            }
            Between::Void { term } => {
                self.terms_of.insert(from, term);
                self.fence_server(from, actions);
            }
            Between::Unfollow { chunk } => {
                if let Some(home) = self.home(chunk) {
                    home.followers.remove(&from);
                }
            }
            Between::Grant { .. }
            | Between::Recall { .. }
            | Between::Committed { .. }
            | Between::Fenced { .. }
            | Between::NoMemory { .. }
            | Between::AtHome { .. }
            | Between::Freed { .. } => self.hear_home(from, message, actions),
            Between::Replicate { .. } => self.keep(from, message, actions),
            Between::Replicated { chunk } => self.replicated(chunk, from, actions),
            Between::Refused { chunk } => self.refused(chunk, from, actions),
            Between::Dismiss { chunk } => self.dismissed(chunk, from, actions),
            Between::Turn { chunk, was } => self.asked_for_turn(from, chunk, was, actions),
            Between::Pass { chunk } => self.passed(chunk, from, actions),
            Between::Seek { name, round } => {
                self.asked_for_name(from, (name, round), actions);
            }
            Between::Found { name, round, at } => {
                self.found_elsewhere(from, (&name, round), at, actions);
            }
            // About time and the network, which this machine does not know.
            Between::Renew { .. } | Between::Renewed { .. } => {}
        }
    }

    /// Handles what the home of a chunk says that is cached here.
    fn hear_home(&mut self, from: Process, message: Between, actions: &mut Vec<ServerAction>) {
        let Some(chunk) = message.chunk() else {
            return;
        };
        if self.home_of(chunk) != Some(from) {
            // A server that has forgotten a chunk has no copy of it.
            if let Between::Recall { .. } = message {
                let message = Between::Recalled {
                    chunk,
                    keeps: false,
                };
                actions.push(ServerAction::Send { to: from, message });
            }
            return;
        }
        let event = match message {
            Between::Grant {
                bytes,
                access,
                version,
                tag,
                epoch,
                term,
                ..
            } => {
                if term != self.term(from) {
                    return; // It may have been taken back meanwhile.
                }
                if let Some(found) = self.chunks.get_mut(&chunk) {
                    found.bytes = bytes;
                }
                CacheEvent::Granted {
                    access,
                    version,
                    tag,
                    epoch,
                }
            }
            Between::Recall { term, .. } if term != self.term(from) => return,
            Between::Recall { keeps, .. } => CacheEvent::Recall { keeps },
            Between::Committed { version, .. } => CacheEvent::Committed { version },
            Between::Fenced { .. } => CacheEvent::Fenced,
            Between::NoMemory { why, .. } => return self.not_stored(chunk, &why, actions),
            Between::AtHome { .. } => CacheEvent::AtHome,
            Between::Freed { .. } => return self.remove(chunk, &Fault::Freed, actions),
            _ => return,
        };
        self.at_cache(chunk, event, actions);
    }

    /// The home has no memory for the commit that is on its way: as if it were fenced, but the
    /// writer hears why.
    fn not_stored(&mut self, chunk: ChunkId, why: &str, actions: &mut Vec<ServerAction>) {
        let found = self.chunks.get(&chunk);
        let committing = found.and_then(|found| found.cache.committing());
        let begin = actions.len();
        self.at_cache(chunk, CacheEvent::Fenced, actions);
        let bytes = self.bytes(chunk).unwrap_or(0);
        for action in &mut actions[begin..] {
            if let ServerAction::Answer { to, ticket, answer } = action
                && committing == Some((*to, *ticket))
            {
                let why = why.to_owned();
                *answer = Answer::Failed(Fault::NoMemory { bytes, why });
            }
        }
    }

    /// The copy of a chunk is not valid any more: its guards have ended.
    fn void(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        // First: the end of a guard may give the next one.
        let committing = self.chunks.get(&chunk).and_then(|of| of.cache.committing());
        self.given.retain(|_, (of, by, at)| {
            *at != chunk || committing.is_some_and(|commit| commit == (*of, *by))
        });
        self.at_cache(chunk, CacheEvent::Void, actions);
    }

    /// The copies of chunks of a home are not valid any more.
    pub(super) fn void_copies(&mut self, home: Process, actions: &mut Vec<ServerAction>) {
        let term = self.terms.entry(home).or_default();
        *term += 1;
        let message = Between::Void { term: *term };
        actions.push(ServerAction::Send { to: home, message });
        for chunk in self.copies_of(home) {
            self.void(chunk, actions);
        }
    }

    /// Returns the chunks of a home that are cached here.
    fn copies_of(&self, home: Process) -> Vec<ChunkId> {
        let all = self.chunks.iter();
        let is_its = |chunk: &Chunk| matches!(chunk.side, Side::Copy { home: of } if of == home);
        all.filter(|(_, chunk)| is_its(chunk))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns how often copies of the chunks of a home have become void.
    pub fn term(&self, home: Process) -> u64 {
        self.terms.get(&home).copied().unwrap_or(0)
    }

    /// Takes back what a server has: its copies are void, as it says, or because it does not answer
    /// and its lease is over. Then it says so before anything else when it goes on.
    pub(super) fn fence_server(&mut self, server: Process, actions: &mut Vec<ServerAction>) {
        let is_gone = !self.is_server(server);
        for chunk in self.chunks_of(server) {
            if let Some(home) = self.home(chunk) {
                // It has to ask again, and nothing is pushed to it until then.
                home.followers.remove(&server);
                if is_gone {
                    home.servers.remove(&server);
                }
            }
            self.at_directory(chunk, DirectoryEvent::Lost { server }, actions);
        }
    }

    /// A process is lost, which may be a server. Its clients may still read its copies, until its
    /// lease is over: then it is [fenced](Server::fence_server).
    pub(super) fn lost_server(&mut self, server: Process, actions: &mut Vec<ServerAction>) {
        let Some(place) = self.place_of(server) else {
            return;
        };
        self.servers.remove(&place);
        self.gone.insert(place);
        self.terms.remove(&server);
        self.terms_of.remove(&server);
        for chunk in self.chunks_of(server) {
            if let Some(home) = self.home(chunk) {
                home.followers.remove(&server);
                home.late.retain(
                    |commit| !matches!(commit, DirectoryEvent::Commit { from, .. } if *from == server),
                );
            }
            let from = server;
            actions.push(ServerAction::DropFrom { from, chunk });
        }
        for chunk in self.copies_of(server) {
            let last = self.copy(chunk).unwrap_or_default();
            self.remove(chunk, &Fault::Lost { last }, actions);
        }
        self.lost_backup(server, actions);
        self.lost_home((place, server), actions);
        self.seek_again(actions);
    }

    /// Returns the chunks of this home that a server has asked for.
    fn chunks_of(&self, server: Process) -> Vec<ChunkId> {
        let all = self.chunks.iter();
        let has = |chunk: &Chunk| {
            chunk
                .home()
                .is_some_and(|home| home.servers.contains(&server))
        };
        all.filter(|(_, chunk)| has(chunk))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The content of a copy could not be fetched: those that wait for it hear why.
    pub(super) fn unfetched(&mut self, chunk: ChunkId, why: &str, actions: &mut Vec<ServerAction>) {
        let bytes = self.bytes(chunk).unwrap_or(0);
        let of_chunk = |waiting: &Waiting| waiting.chunk() == Some(chunk);
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|(_, (_, waiting))| of_chunk(waiting));
        let waiting: Vec<(Process, Ticket)> = waiting.map(|(asker, _)| *asker).collect();
        for asker in waiting {
            self.waits_no_more(asker);
            let why = why.to_owned();
            fail(asker, Fault::NoMemory { bytes, why }, actions);
            self.cancel(chunk, asker, actions);
        }
        self.void(chunk, actions);
    }

    /// Returns the chunks of other homes of which there is a copy that nobody uses.
    pub fn idle_copies(&self) -> impl Iterator<Item = ChunkId> {
        let is_idle = |chunk: &Chunk| {
            let has_copy = chunk.home().is_none() && chunk.cache.version().is_some();
            has_copy && chunk.cache.holders().next().is_none() && chunk.cache.waiting() == 0
        };
        let idle = self.chunks.iter().filter(move |(_, chunk)| is_idle(chunk));
        idle.map(|(id, _)| *id)
    }
}
