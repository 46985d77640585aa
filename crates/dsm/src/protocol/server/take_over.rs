//! A backup of a chunk: it keeps each version, and takes the chunk over when the home is lost. See
//! `replicas`.

use super::chunk::Chunk;
use super::replicas::{Replica, Replication};
use super::{MOST_CHUNKS, Server, ServerAction, Waiting, answer_to, fail};
use crate::protocol::message::{Answer, Fault, LONGEST_KIND, LONGEST_NAME};
use crate::protocol::{Between, ChunkId, Description, Process, ServerId, Ticket, Version};
use std::collections::VecDeque;

impl Server {
    /// A server is lost, which may be the home of chunks of which this server has replicas, or
    /// another backup of them.
    pub(super) fn lost_home(
        &mut self,
        (place, lost): (ServerId, Process),
        actions: &mut Vec<ServerAction>,
    ) {
        let is_its = |id: &ChunkId| id.home() == place && id.is_of(lost);
        self.refusals.retain(|id, _| !is_its(id));
        let mut turns = Vec::new();
        for (id, replica) in &mut self.replicas {
            let was_before = replica.before.remove(&lost);
            replica.after.retain(|(_, process)| *process != lost);
            if was_before || replica.home == lost {
                turns.push((*id, replica.home == lost));
            }
        }
        for (id, is_first) in turns {
            self.turn(id, is_first, actions);
        }
        let asked = std::mem::take(&mut self.turns);
        for (id, was, from) in asked {
            self.asked_for_turn(from, id, was, actions);
        }
    }

    /// Takes a chunk over if its home is lost and no backup before this server may do so.
    /// `is_first`: the home was just lost.
    pub(super) fn turn(&mut self, id: ChunkId, is_first: bool, actions: &mut Vec<ServerAction>) {
        let Some(replica) = self.replicas.get(&id) else {
            return;
        };
        if self.is_server(replica.home) {
            return;
        }
        if replica.before.is_empty() {
            return self.take_over(id, actions);
        }
        if is_first {
            let was = &replica.was;
            actions.extend(replica.before.iter().map(|to| ServerAction::Send {
                to: *to,
                message: Between::Turn {
                    chunk: id,
                    was: was.clone(),
                },
            }));
        }
    }

    /// Another backup asks whether it is this server's turn.
    pub(super) fn asked_for_turn(
        &mut self,
        from: Process,
        chunk: ChunkId,
        was: Vec<ChunkId>,
        actions: &mut Vec<ServerAction>,
    ) {
        let all = || was.iter().chain([&chunk]);
        let has = |id: &ChunkId| {
            let id = self.moved.get(id).unwrap_or(id);
            self.replicas.contains_key(id) || self.chunks.contains_key(id) && self.is_home(*id)
        };
        if !self.is_server(from) || all().any(has) {
            return; // It hears from this server when that is the home.
        }
        let home = self.servers.get(&chunk.home());
        if home.is_some_and(|home| chunk.is_of(*home)) {
            if (self.turns.len() as u64) < MOST_CHUNKS {
                self.turns.push((chunk, was, from)); // The home may still send a version.
            }
            return;
        }
        actions.push(ServerAction::Send {
            to: from,
            message: Between::Pass { chunk },
        });
    }

    /// A backup before this one has no version of a chunk.
    pub(super) fn passed(&mut self, id: ChunkId, from: Process, actions: &mut Vec<ServerAction>) {
        if let Some(replica) = self.replicas.get_mut(&id)
            && replica.before.remove(&from)
        {
            self.turn(id, false, actions);
        }
    }

    pub(super) fn take_over(&mut self, of: ChunkId, actions: &mut Vec<ServerAction>) {
        let Some(replica) = self.replicas.remove(&of) else {
            return;
        };
        let Replica {
            home: lost,
            name,
            kind,
            protocol,
            replicas,
            mut was,
            after,
            bytes,
            version,
            tag,
            history,
            ..
        } = replica;
        self.replica_names.remove(&name);
        let id = self.next_chunk;
        self.next_chunk.0 += 1;
        was.push(of);
        self.moved.extend(was.iter().map(|old| (*old, id)));
        let mut replication = Replication::new(replicas, was);
        for (server, process) in after {
            replication.add(server, process, false);
        }
        let mut chunk = Chunk::at_home(&name, &kind, bytes, protocol);
        if let Some(home) = chunk.home_mut() {
            home.took_over((version, tag), history, lost);
            home.replication = Some(Box::new(replication));
        }
        self.chunks.insert(id, chunk);
        self.names.insert(name.clone(), id);
        self.seeking.remove(&name);
        actions.push(ServerAction::TakeOver {
            of,
            chunk: id,
            name,
            version,
            bytes,
            lost,
        });
        self.refill(id, actions);
        self.replicate(id, |backup| !backup.is_described, actions);
        self.settle(id, actions);
    }

    /// Keeps a version of a chunk of another home.
    pub(super) fn keep(
        &mut self,
        from: Process,
        message: Between,
        actions: &mut Vec<ServerAction>,
    ) {
        let Between::Replicate {
            chunk,
            description,
            bytes,
            version,
            tag,
            writer,
            ..
        } = message
        else {
            return;
        };
        let send = |message| ServerAction::Send { to: from, message };
        if self.refusals.contains_key(&chunk) {
            return actions.push(ServerAction::DropFrom { from, chunk });
        }
        if let Some(description) = description
            && !self.described(from, chunk, bytes, *description, actions)
        {
            actions.push(ServerAction::DropFrom { from, chunk });
            return self.refuses(from, chunk, None, actions);
        }
        let replica = self.replicas.get_mut(&chunk);
        match replica.filter(|replica| replica.home == from && replica.bytes == bytes) {
            Some(replica) => {
                replica.holds(version, tag, writer);
                actions.push(ServerAction::Keep { from, chunk });
            }
            None => actions.push(ServerAction::DropFrom { from, chunk }), // It is dismissed.
        }
        actions.push(send(Between::Replicated { chunk }));
    }

    /// Learns what a chunk is of which this server is to have each version. Returns false if that
    /// is not possible.
    pub(super) fn described(
        &mut self,
        home: Process,
        id: ChunkId,
        bytes: u64,
        description: Description,
        actions: &mut Vec<ServerAction>,
    ) -> bool {
        let Description {
            name,
            kind,
            protocol,
            replicas,
            was,
            backups,
        } = description;
        let me = self.me;
        let place = backups.iter().position(|(_, process)| *process == me);
        let is_named = !name.is_empty() && name.len() <= LONGEST_NAME;
        let (Some(place), true) = (place, is_named && kind.name.len() <= LONGEST_KIND) else {
            return false;
        };
        if self.replicas.len() as u64 >= MOST_CHUNKS && !self.replica_names.contains_key(&name) {
            return false;
        }
        let old = self.replica_names.remove(&name);
        let old = old.and_then(|old| Some((old, self.replicas.remove(&old)?)));
        let mut history = VecDeque::new();
        if let Some((old, replica)) = old {
            if old != id {
                actions.push(ServerAction::Unkeep { chunk: old });
            }
            if old == id || was.contains(&old) {
                history = replica.history;
            }
        }
        // Those of the list that are lost are not waited for.
        let before = backups[..place].iter().map(|(_, process)| *process);
        let before = before.filter(|process| self.is_server(*process)).collect();
        let after = backups[place + 1..].iter().copied();
        let after = after.filter(|(_, process)| self.is_server(*process));
        let replica = Replica {
            home,
            name: name.clone(),
            kind,
            protocol,
            replicas,
            was,
            before,
            after: after.collect(),
            bytes,
            version: Version::default(),
            tag: 0,
            history,
        };
        self.moved.extend(replica.was.iter().map(|old| (*old, id)));
        self.replicas.insert(id, replica);
        self.replica_names.insert(name.clone(), id);
        let server = id.home();
        self.elsewhere(&name, server, actions);
        // That server says when it can be read.
        self.moves(id, &Answer::Failed(Fault::Elsewhere { server }), actions);
        true
    }

    /// The content of a version of another home could not be fetched, or there is no memory for it.
    pub(super) fn unkept(
        &mut self,
        from: Process,
        message: &Between,
        actions: &mut Vec<ServerAction>,
    ) {
        let Between::Replicate {
            chunk, description, ..
        } = message
        else {
            return;
        };
        let name = description.as_ref().map(|of| &of.name[..]);
        self.refuses(from, *chunk, name, actions);
    }

    /// Tells the home of a chunk that there is no memory for it here. What there is of it stays
    /// until the home has heard of that: it may be lost before.
    pub(super) fn refuses(
        &mut self,
        home: Process,
        chunk: ChunkId,
        name: Option<&str>,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.refusals.contains_key(&chunk) {
            return;
        }
        let named = name.and_then(|name| self.replica_names.get(name).copied());
        let known = Some(chunk).filter(|chunk| self.replicas.contains_key(chunk));
        self.refusals.insert(chunk, named.or(known));
        actions.push(ServerAction::Send {
            to: home,
            message: Between::Refused { chunk },
        });
    }

    /// The home of a chunk frees it, or goes on without this server.
    pub(super) fn dismissed(
        &mut self,
        id: ChunkId,
        from: Process,
        actions: &mut Vec<ServerAction>,
    ) {
        let replica = self.replicas.get(&id);
        let is_its = replica.is_some_and(|replica| replica.home == from);
        match self.refusals.get(&id).copied() {
            Some(Some(kept)) => {
                let last = self.last_kept(kept);
                self.forget_replica(kept, &Fault::Lost { last }, actions);
            }
            Some(None) => {}
            None if is_its => self.forget_replica(id, &Fault::Freed, actions),
            None => {}
        }
        actions.push(ServerAction::Send {
            to: from,
            message: Between::Replicated { chunk: id },
        });
    }

    pub(super) fn forget_replica(
        &mut self,
        id: ChunkId,
        why: &Fault,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(replica) = self.replicas.remove(&id) else {
            return;
        };
        self.replica_names.remove(&replica.name);
        let waits = self.waiting.iter();
        let waits = waits.filter_map(|(asker, (_, waiting))| match waiting {
            Waiting::Successor { chunk } if *chunk == id || replica.was.contains(chunk) => {
                Some(*asker)
            }
            _ => None,
        });
        for asker in waits.collect::<Vec<_>>() {
            self.waits_no_more(asker);
            fail(asker, why.clone(), actions);
        }
        self.moved.retain(|_, to| *to != id);
        actions.push(ServerAction::Unkeep { chunk: id });
    }

    /// Says where a chunk is whose home is lost; waits if that is not decided yet.
    pub(super) fn successor(
        &mut self,
        asker: (Process, Ticket),
        chunk: ChunkId,
        at: u64,
        actions: &mut Vec<ServerAction>,
    ) {
        let id = self.moved.get(&chunk).copied().unwrap_or(chunk);
        let is_new = self.replication(id).map(|replication| replication.is_new);
        let home = self.replicas.get(&id).map(|replica| replica.home);
        match (is_new, home) {
            (Some(false), _) => answer_to(asker, Answer::Moved { chunk: id }, actions),
            (None, Some(home)) if id != chunk && self.is_server(home) => {
                let server = id.home();
                fail(asker, Fault::Elsewhere { server }, actions);
            }
            (None, None) => fail(asker, Fault::NotFound, actions),
            _ => self.wait(asker, at, Waiting::Successor { chunk }),
        }
    }

    /// Returns the last version of a chunk of another home that this server has.
    pub(super) fn last_kept(&self, chunk: ChunkId) -> Version {
        let id = self.moved.get(&chunk).unwrap_or(&chunk);
        let replica = self.replicas.get(id);
        replica.map_or(Version::default(), |replica| replica.version)
    }

    /// Returns the server to ask for a chunk of that name, if this one has a replica of it, and
    /// whether that is this server.
    pub(super) fn replica_named(&self, name: &str) -> Option<(ServerId, bool)> {
        let id = self.replica_names.get(name)?;
        let replica = self.replicas.get(id)?;
        match self.is_server(replica.home) {
            true => Some((id.home(), false)),
            false => Some((self.id, true)),
        }
    }
}
