//! Clients that own chunks: they commit without a word to the server, until it takes that over.

use super::client::ToClient;
use super::{Simulation, home};
use crate::protocol::server::ServerEvent;
use crate::protocol::{
    Answer, ChunkId, Commits, GuardId, Process, Request, SubscriptionId, Ticket, Version,
};

/// The guard of a commit by an owner.
const NONE: GuardId = GuardId(u64::MAX);

/// The page of an owner, and what the home knows of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owning {
    pub(super) client: Process,
    ticket: Ticket,
    /// The version after which it began.
    since: Version,
    /// The last version that the home has taken over.
    known: Version,
    /// Whether the owner has begun to write a version.
    pub(super) is_writing: bool,
    is_recalled: bool,
}

impl Simulation {
    /// Lets a client own a chunk, if it is mapped: most are.
    pub(super) fn own(
        &mut self,
        asker: (Process, Ticket),
        chunk: ChunkId,
        version: Version,
    ) -> Option<ServerEvent> {
        let (client, ticket) = asker;
        assert_eq!(version, self.present(chunk).0);
        if self.random.is(10) {
            self.send(client, ToClient::Answer(ticket, Answer::NotOwned));
            let commits = Commits::default();
            return Some(ServerEvent::Disowned { chunk, commits });
        }
        let owning = Owning {
            client,
            ticket,
            since: version,
            known: version,
            is_writing: false,
            is_recalled: false,
        };
        assert!(self.owned.insert(chunk, owning).is_none(), "two owners");
        let answer = Answer::Owned {
            number: 1,
            readers: Vec::new(),
        };
        self.send(client, ToClient::Answer(ticket, answer));
        None
    }

    /// Returns true if clients may read what an owner commits.
    pub(super) fn is_readable(&self, chunk: ChunkId) -> bool {
        let owning = self.owned.get(&chunk);
        owning.is_some_and(|owning| !owning.is_recalled && !owning.is_writing)
    }

    /// Before a request is handled.
    pub(super) fn before(&mut self, from: Process, request: &Request) {
        if let Some(chunk) = request.recalls() {
            self.recall(chunk);
        }
        if let Request::Forget { ticket } = request {
            let owned = self.owned.clone().into_iter();
            let its = owned.filter(|(_, one)| (one.client, one.ticket) == (from, *ticket));
            its.for_each(|(chunk, _)| self.takes_over(chunk, true));
        }
    }

    pub(super) fn recall(&mut self, chunk: ChunkId) {
        if let Some(owning) = self.owned.get_mut(&chunk) {
            owning.is_recalled = true;
            let ends = !owning.is_writing;
            self.takes_over(chunk, ends);
        }
    }

    /// An owner says that it has stopped.
    pub(super) fn recall_again(&mut self, chunk: ChunkId) {
        if self.owned.get(&chunk).is_some_and(|one| !one.is_writing) {
            self.recall(chunk);
        }
    }

    /// A client is fenced, or lost: it owns nothing of a server any more.
    pub(super) fn end_ownerships(&mut self, at: usize, client: Process) {
        let owned = self.owned.clone().into_iter();
        let its = owned.filter(|(chunk, one)| one.client == client && home(*chunk) == at);
        its.for_each(|(chunk, _)| self.takes_over(chunk, true));
    }

    fn takes_over(&mut self, chunk: ChunkId, ends: bool) {
        let present = self.present(chunk).0;
        let Some(owning) = self.owned.get_mut(&chunk) else {
            return;
        };
        let known = std::mem::replace(&mut owning.known, present);
        if ends {
            self.owned.remove(&chunk);
        }
        let all = &self.commits[&chunk];
        let tags = all[known.0 as usize..].iter().map(|(_, tag)| (*tag, 0));
        let commits = Commits {
            count: present.0 - known.0,
            last: tags.collect(),
            draft: None,
        };
        let event = match ends {
            true => ServerEvent::Disowned { chunk, commits },
            false => ServerEvent::Adopted { chunk, commits },
        };
        self.event(home(chunk), event);
    }

    /// A client writes a chunk that it owns: begins, goes on, or stops.
    pub(super) fn writes_as_owner(&mut self, which: usize) {
        let me = self.clients[which].me;
        let owned: Vec<_> = self.owned.iter().map(|(id, one)| (*id, *one)).collect();
        for (chunk, owning) in owned.into_iter().filter(|(_, one)| one.client == me) {
            let can_begin = !owning.is_recalled && !self.has_own(home(chunk), chunk);
            if !owning.is_writing && !can_begin {
                continue;
            }
            let (mut is_writing, mut commits) = (self.random.is(50), self.random.is(70));
            if self.random.is(30) && !owning.is_writing {
                // It only begins.
                (is_writing, commits) = (true, false);
            }
            if commits {
                self.value += 1;
                self.commits_now(chunk, NONE, self.value);
                is_writing = false;
            }
            if let Some(owning) = self.owned.get_mut(&chunk) {
                owning.is_writing = is_writing;
            }
            if owning.is_recalled && !is_writing {
                self.ask(me, home(chunk), None, Request::Disowned { chunk });
            }
        }
    }

    /// All that have begun to write a version take that back.
    pub(super) fn owners_stop(&mut self) {
        let owned: Vec<_> = self.owned.iter().map(|(id, one)| (*id, *one)).collect();
        for (chunk, owning) in owned.into_iter().filter(|(_, one)| one.is_writing) {
            if let Some(owning) = self.owned.get_mut(&chunk) {
                owning.is_writing = false;
            }
            if owning.is_recalled {
                let from = owning.client;
                self.ask(from, home(chunk), None, Request::Disowned { chunk });
            }
        }
    }

    /// A subscriber looks itself what the owner has committed.
    pub(super) fn watches(&mut self, which: usize, id: SubscriptionId) {
        let Some(subscribed) = self.clients[which].subscribed.get(&id) else {
            return;
        };
        let (chunk, last) = (subscribed.chunk, subscribed.last);
        let owning = self.owned.get(&chunk).copied();
        let owning = owning.filter(|one| !one.is_recalled && last >= one.since);
        let present = self.present(chunk).0;
        if owning.is_none() || present <= last || !subscribed.watches {
            return;
        }
        if let Some(subscribed) = self.clients[which].subscribed.get_mut(&id) {
            subscribed.last = present;
        }
    }
}
