//! Names of chunks with replicas: a chunk may be at another server than the first of its order,
//! because that one was lost. A server that is asked for a name which it does not know asks all
//! others before it creates the chunk. If one of them is lost meanwhile, it asks again: the lost
//! one may have been the home, and one that has answered before may have got a replica since.
//!
//! Two servers may do so at the same time, because the first of the order was started again and not
//! all clients know that. Then the one that is earlier in the order creates the chunk.

use super::{Server, ServerAction, Waiting, fail};
use crate::protocol::message::{Fault, Replicas};
use crate::protocol::{Between, Process, ServerId};
use std::collections::BTreeSet;

/// A name that other servers are asked for.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Seeking {
    replicas: Replicas,
    /// How often the others were asked before, and those that have not answered.
    round: u64,
    waits_for: BTreeSet<ServerId>,
}

impl Server {
    /// Asks the other servers for a name, unless that is under way.
    pub(super) fn seek(
        &mut self,
        name: &str,
        replicas: &Replicas,
        actions: &mut Vec<ServerAction>,
    ) {
        if !self.seeking.contains_key(name) {
            self.ask_all(name, replicas.clone(), 0, actions);
        }
    }

    fn ask_all(
        &mut self,
        name: &str,
        replicas: Replicas,
        round: u64,
        actions: &mut Vec<ServerAction>,
    ) {
        // One that is not known yet may still have it.
        let others = replicas.order.iter().copied();
        let others = others.filter(|server| *server != self.id && !self.gone.contains(server));
        let waits_for: BTreeSet<ServerId> = others.collect();
        for process in waits_for.iter().filter_map(|of| self.servers.get(of)) {
            actions.push(asks(*process, name, round));
        }
        let seeking = Seeking {
            replicas,
            round,
            waits_for,
        };
        self.seeking.insert(name.to_owned(), seeking);
        self.sought(name, actions);
    }

    /// Creates the chunk of a name that no other server knows, if a client wants that.
    fn sought(&mut self, name: &str, actions: &mut Vec<ServerAction>) {
        if !self
            .seeking
            .get(name)
            .is_some_and(|seeking| seeking.waits_for.is_empty())
        {
            return;
        }
        let Some(Seeking { replicas, .. }) = self.seeking.remove(name) else {
            return;
        };
        let mut waiting = self.waiting.iter();
        let wanted = waiting.find_map(|(asker, (_, waiting))| match waiting {
            Waiting::Open {
                name: of,
                kind,
                create: Some((bytes, protocol)),
            } if of == name => Some((*asker, kind.clone(), *bytes, *protocol)),
            _ => None,
        });
        if let Some((asker, kind, bytes, protocol)) = wanted {
            let made = self.create(name, (&kind, bytes), protocol, Some(replicas), actions);
            if let Err(fault) = made {
                self.waits_no_more(asker);
                fail(asker, fault, actions);
            }
        }
    }

    /// Another server asks for a name.
    pub(super) fn asked_for_name(
        &mut self,
        from: Process,
        (name, round): (String, u64),
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(asker) = self.place_of(from) else {
            return;
        };
        let at = match (self.names.get(&name), self.replica_named(&name)) {
            (Some(_), _) => Some(self.id),
            (None, Some((server, _))) => Some(server),
            (None, None) => self.creates(&name, asker).then_some(self.id),
        };
        if at.is_none() {
            // It may create it; those that wait here would not hear of that.
            self.elsewhere(&name, asker, actions);
        }
        let message = Between::Found { name, round, at };
        actions.push(ServerAction::Send { to: from, message });
    }

    /// Returns true if this server is about to create a chunk, and is earlier in its order than
    /// another one.
    fn creates(&self, name: &str, other: ServerId) -> bool {
        let Some(seeking) = self.seeking.get(name) else {
            return false;
        };
        let is_wanted = |waiting: &Waiting| matches!(waiting, Waiting::Open { name: of, create: Some(_), .. } if of == name);
        let order = seeking.replicas.order.iter();
        let mut first = order.filter(|server| **server == self.id || **server == other);
        let is_wanted = self.waiting.values().any(|(_, waiting)| is_wanted(waiting));
        is_wanted && first.next() == Some(&self.id)
    }

    /// Another server says where the chunk of a name is.
    pub(super) fn found_elsewhere(
        &mut self,
        from: Process,
        (name, round): (&str, u64),
        at: Option<ServerId>,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(place) = self.place_of(from) else {
            return;
        };
        match at.filter(|at| *at != self.id) {
            Some(at) if self.seeking.contains_key(name) => self.elsewhere(name, at, actions),
            Some(_) => {}
            None => {
                let seeking = self.seeking.get_mut(name);
                if let Some(seeking) = seeking.filter(|seeking| seeking.round == round) {
                    seeking.waits_for.remove(&place);
                }
                self.sought(name, actions);
            }
        }
    }

    /// Sends those that wait for a name to another server.
    pub(super) fn elsewhere(
        &mut self,
        name: &str,
        server: ServerId,
        actions: &mut Vec<ServerAction>,
    ) {
        self.seeking.remove(name);
        let waits = self.waiting.iter();
        let waits = waits.filter_map(|(asker, (_, waiting))| match waiting {
            Waiting::Open { name: of, .. } if of == name => Some(*asker),
            _ => None,
        });
        for asker in waits.collect::<Vec<_>>() {
            self.waits_no_more(asker);
            fail(asker, Fault::Elsewhere { server }, actions);
        }
    }

    /// A server is there that may be asked for names.
    pub(super) fn seek_at(
        &mut self,
        server: ServerId,
        process: Process,
        actions: &mut Vec<ServerAction>,
    ) {
        let seeking = self.seeking.iter();
        let seeking = seeking.filter(|(_, seeking)| seeking.waits_for.contains(&server));
        actions.extend(seeking.map(|(name, seeking)| asks(process, name, seeking.round)));
    }

    /// A server is lost: the others are asked again.
    pub(super) fn seek_again(&mut self, actions: &mut Vec<ServerAction>) {
        for (name, seeking) in std::mem::take(&mut self.seeking) {
            self.ask_all(&name, seeking.replicas, seeking.round + 1, actions);
        }
    }

    /// Returns the place of another server in the topology.
    pub(super) fn place_of(&self, process: Process) -> Option<ServerId> {
        let mut servers = self.servers.iter();
        let found = servers.find(|(_, of)| **of == process);
        found.map(|(server, _)| *server)
    }
}

fn asks(to: Process, name: &str, round: u64) -> ServerAction {
    let name = name.to_owned();
    let message = Between::Seek { name, round };
    ServerAction::Send { to, message }
}
