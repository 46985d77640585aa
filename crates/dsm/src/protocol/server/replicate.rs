//! The home of a chunk with replicas: versions are sent to its backups. See `replicas`.

use super::chunk::{Chunk, Home};
use super::replicas::{Backup, Pending, Replication};
use super::{Server, ServerAction, Waiting, Written, answer_to};
use crate::protocol::message::Answer;
use crate::protocol::{Between, ChunkId, Content, Description, DirectoryEvent, Process, Ticket};

impl Server {
    pub(super) fn replication(&mut self, id: ChunkId) -> Option<&mut Replication> {
        self.home(id)?.replication.as_deref_mut()
    }

    /// Returns true if this server is the home of a chunk that other servers have, too.
    pub fn is_replicated(&self, id: ChunkId) -> bool {
        let home = self.chunks.get(&id).and_then(Chunk::home);
        home.is_some_and(|home| home.replication.is_some())
    }

    /// Returns an event if the directory of its chunk handles it now, and keeps it otherwise: a
    /// commit is sent to the backups before, and what follows waits for that.
    pub(super) fn unless_held_back(
        &mut self,
        id: ChunkId,
        event: DirectoryEvent,
        actions: &mut Vec<ServerAction>,
    ) -> Option<DirectoryEvent> {
        let me = self.me;
        let Some(home) = self.home(id) else {
            return Some(event);
        };
        let Some(replication) = &mut home.replication else {
            return Some(event);
        };
        if replication.is_new || replication.pending.is_some() {
            replication.deferred.push_back(event);
            return None;
        }
        let DirectoryEvent::Commit {
            from,
            epoch,
            tag,
            writer,
            ..
        } = event
        else {
            return Some(event);
        };
        if replication.backups.is_empty() || !home.directory.accepts(from, epoch) {
            return Some(event);
        }
        let own = replication.written.take().filter(|_| from == me);
        let written = own.unwrap_or(Written::Server(from));
        replication.pending = Some(Pending {
            commit: event,
            tag,
            writer,
            is_far: from != me,
        });
        actions.push(ServerAction::Hold { chunk: id, written });
        self.replicate(id, |_| true, actions);
        None
    }

    /// Sends the version that is decided, or the present one, to backups that have joined.
    pub(super) fn replicate(
        &mut self,
        id: ChunkId,
        is_meant: impl Fn(&Backup) -> bool,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(chunk) = self.chunks.get_mut(&id) else {
            return;
        };
        let bytes = chunk.bytes;
        let Some(home) = chunk.home_mut() else {
            return;
        };
        let (present, tag) = home.directory.version();
        let Home {
            name,
            kind,
            protocol,
            replication: Some(replication),
            history,
            ..
        } = home
        else {
            return;
        };
        let (version, tag, writer) = match &replication.pending {
            Some(pending) => (present.next(), pending.tag, Some(pending.writer)),
            None => (present, tag, history.back().map(|event| event.writer)),
        };
        let list = replication.backups.iter();
        let list = list.map(|backup| (backup.server, backup.process)).collect();
        let description = Description {
            name: name.clone(),
            kind: kind.clone(),
            protocol: *protocol,
            replicas: replication.replicas.clone(),
            was: replication.was.clone(),
            backups: list,
        };
        let backups = replication.backups.iter_mut();
        for backup in backups.filter(|backup| backup.is_in() && is_meant(backup)) {
            backup.unanswered += 1;
            let is_described = std::mem::replace(&mut backup.is_described, true);
            let description = (!is_described).then(|| Box::new(description.clone()));
            actions.push(ServerAction::Send {
                to: backup.process,
                message: Between::Replicate {
                    chunk: id,
                    description,
                    bytes,
                    version,
                    tag,
                    writer,
                    content: Content::Zeros,
                },
            });
        }
    }

    /// Lets servers join the backups of a chunk, if there are too few.
    pub(super) fn refill(&mut self, id: ChunkId, actions: &mut Vec<ServerAction>) {
        let (own, servers) = (self.id, self.servers.clone());
        let Some(replication) = self.replication(id) else {
            return;
        };
        if !replication.freeing.is_empty() {
            return;
        }
        let wanted = usize::from(replication.replicas.count).saturating_sub(1);
        let missing = wanted.saturating_sub(replication.backups.len());
        let order = replication.replicas.order.iter();
        let others = order.filter(|server| **server != own);
        let others = others.filter_map(|server| Some((*server, *servers.get(server)?)));
        let others = others.filter(|(_, process)| {
            !replication.has(*process) && !replication.refused.contains(process)
        });
        let new: Vec<_> = others.take(missing).collect();
        if new.is_empty() {
            return;
        }
        // Those before them hear of them first.
        replication.describe();
        for (server, process) in new {
            replication.add(server, process, true);
        }
        self.replicate(id, |backup| !backup.is_described, actions);
    }

    /// Goes on with what waited for the backups of a chunk, if none is waited for any more.
    pub(super) fn settle(&mut self, id: ChunkId, actions: &mut Vec<ServerAction>) {
        let Some(replication) = self.replication(id) else {
            return;
        };
        if replication.waits_for().next().is_some() {
            return;
        }
        let mut has_joined = false;
        for backup in &mut replication.backups {
            has_joined |= std::mem::take(&mut backup.joins);
        }
        if has_joined {
            return self.replicate(id, |backup| !backup.is_described, actions);
        }
        let is_new = std::mem::take(&mut replication.is_new);
        let freeing = std::mem::take(&mut replication.freeing);
        let decided = replication.pending.take().map(|pending| pending.commit);
        let deferred = std::mem::take(&mut replication.deferred);
        if is_new {
            self.is_there(id, actions);
        }
        if decided.is_some() || !deferred.is_empty() {
            self.decided(id, decided, deferred, actions);
        }
        if !freeing.is_empty() {
            self.freed(id, freeing, actions);
        }
    }

    /// A chunk that was created, or taken over, is at its backups: those that wait for it get it.
    pub(super) fn is_there(&mut self, id: ChunkId, actions: &mut Vec<ServerAction>) {
        let Some(home) = self.home(id) else {
            return;
        };
        let name = home.name.clone();
        self.found(id, &name, actions);
        self.moves(id, &Answer::Moved { chunk: id }, actions);
    }

    /// Answers those that wait for the successor of a chunk.
    pub(super) fn moves(&mut self, id: ChunkId, answer: &Answer, actions: &mut Vec<ServerAction>) {
        let waits = self.waiting.iter();
        let waits = waits.filter_map(|(asker, (_, waiting))| match waiting {
            Waiting::Successor { chunk } if self.moved.get(chunk) == Some(&id) => Some(*asker),
            _ => None,
        });
        for asker in waits.collect::<Vec<_>>() {
            self.waits_no_more(asker);
            answer_to(asker, answer.clone(), actions);
        }
    }

    /// Lets the backups of a chunk forget it, before it is freed. Returns false if there are none.
    pub(super) fn dismisses(
        &mut self,
        id: ChunkId,
        asker: Option<(Process, Ticket)>,
        actions: &mut Vec<ServerAction>,
    ) -> bool {
        let Some(replication) = self.replication(id) else {
            return false;
        };
        replication.backups.retain(|backup| !backup.joins);
        if replication.backups.is_empty() {
            return false;
        }
        replication.freeing.push(asker);
        if replication.freeing.len() > 1 {
            return true;
        }
        for backup in &mut replication.backups {
            backup.unanswered += 1;
            actions.push(ServerAction::Send {
                to: backup.process,
                message: Between::Dismiss { chunk: id },
            });
        }
        true
    }

    /// A backup has done what its home has told it.
    pub(super) fn replicated(
        &mut self,
        id: ChunkId,
        from: Process,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(replication) = self.replication(id) else {
            return;
        };
        let mut backups = replication.backups.iter_mut();
        let Some(backup) = backups.find(|backup| backup.process == from) else {
            return;
        };
        backup.unanswered = backup.unanswered.saturating_sub(1);
        if backup.leaves && backup.unanswered == 0 {
            replication.backups.retain(|backup| backup.process != from);
            replication.refused.insert(from);
            // Those that have forgotten a chunk that is freed do not hear of it again.
            if replication.freeing.is_empty() {
                replication.describe();
                self.replicate(id, |_| true, actions);
                self.refill(id, actions);
            }
        }
        self.settle(id, actions);
    }

    /// A backup has no memory for a chunk. It forgets the older version, and another server takes
    /// its place.
    pub(super) fn refused(&mut self, id: ChunkId, from: Process, actions: &mut Vec<ServerAction>) {
        let Some(replication) = self.replication(id) else {
            return;
        };
        let mut backups = replication.backups.iter_mut();
        let Some(backup) = backups.find(|backup| backup.process == from && !backup.leaves) else {
            return;
        };
        // It answers to nothing that was sent meanwhile, except when the chunk is freed.
        let is_dismissed = !replication.freeing.is_empty();
        (backup.leaves, backup.unanswered) = (true, 1);
        if !is_dismissed {
            actions.push(ServerAction::Send {
                to: from,
                message: Between::Dismiss { chunk: id },
            });
        }
    }

    /// A server is there: chunks that have too few backups get it.
    pub(super) fn refill_all(&mut self, actions: &mut Vec<ServerAction>) {
        let all = self.chunks.iter();
        let all =
            all.filter(|(_, chunk)| chunk.home().is_some_and(|home| home.replication.is_some()));
        for id in all.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.refill(id, actions);
            self.settle(id, actions);
        }
    }

    /// Begins to replicate a chunk that was created.
    pub(super) fn begins(&mut self, id: ChunkId, actions: &mut Vec<ServerAction>) {
        self.refill(id, actions);
        self.settle(id, actions);
    }

    /// A server is lost, which may be a backup of chunks of this home.
    pub(super) fn lost_backup(&mut self, lost: Process, actions: &mut Vec<ServerAction>) {
        let all = self.chunks.iter();
        let has = |chunk: &Chunk| {
            let replication = chunk.home().and_then(|home| home.replication.as_ref());
            replication.is_some_and(|replication| replication.has(lost))
        };
        let of_lost = all.filter(|(_, chunk)| has(chunk)).map(|(id, _)| *id);
        for id in of_lost.collect::<Vec<_>>() {
            if let Some(replication) = self.replication(id) {
                replication.backups.retain(|backup| backup.process != lost);
                // The list is a shorter one. What those that are left know is not wrong.
            }
            self.refill(id, actions);
            self.settle(id, actions);
        }
    }
}
