//! What a service does with the actions of its server, and what servers say to each other.

use super::client::ToClient;
use super::{Said, Simulation, Value, home, process};
use crate::protocol::server::{ServerAction, ServerEvent};
use crate::protocol::{
    Answer, Between, ChunkId, Content, Fault, GuardId, Process, Ticket, Version,
};
use std::collections::{BTreeMap, VecDeque};

impl Simulation {
    /// Says something to another server.
    pub(super) fn tell(
        &mut self,
        from: usize,
        to: Process,
        message: Between,
        content: Option<(Value, Option<GuardId>)>,
    ) {
        let delay = self.random.below(20);
        let line = self.between.entry((from, to.peer.0 as usize)).or_default();
        let after = line.back().map_or(0, |said| said.at);
        line.push_back(Said {
            at: after.max(self.now + delay),
            message,
            content,
        });
    }

    /// The first message of a server to another one arrives.
    pub(super) fn server_hears(&mut self, from: usize, at: usize) {
        let Some(said) = self
            .between
            .get_mut(&(from, at))
            .and_then(VecDeque::pop_front)
        else {
            return;
        };
        let Said {
            message, content, ..
        } = said;
        match (&message, content) {
            (Between::Grant { chunk, .. }, Some((value, _))) => {
                self.copies.insert((at, *chunk), value);
            }
            (Between::Commit { chunk, .. }, Some(content)) => {
                self.commit_of.insert((at, from, *chunk), content);
            }
            _ => {}
        }
        if let Some(chunk) = message.recalls() {
            self.recall(chunk);
        }
        let from = process(from);
        self.event(at, ServerEvent::Between { from, message });
    }

    /// Returns the content of a chunk at a server.
    pub(super) fn content(&self, at: usize, chunk: ChunkId) -> Value {
        match home(chunk) == at {
            true => self.present(chunk).1,
            false => self.copies.get(&(at, chunk)).copied().unwrap_or(0),
        }
    }

    pub(super) fn send(&mut self, to: Process, message: ToClient) {
        let delay = self.random.below(20);
        let now = self.now;
        if let Some(client) = self.clients.iter_mut().find(|client| client.me == to) {
            let after = client.in_box.back().map_or(0, |(at, _)| *at);
            client.in_box.push_back((after.max(now + delay), message));
        }
    }

    pub(super) fn present(&self, chunk: ChunkId) -> (Version, Value) {
        let all = &self.commits[&chunk];
        let last = all.last().map_or(0, |(value, _)| *value);
        (Version(all.len() as u64), last)
    }

    /// Does what the service does with an action, and checks it.
    pub(super) fn act(&mut self, at: usize, action: ServerAction) -> Option<ServerEvent> {
        match action {
            ServerAction::Answer { to, ticket, answer } => {
                self.arrived.remove(&(to, ticket));
                self.send(to, ToClient::Answer(ticket, answer));
            }
            ServerAction::Late { to, ticket, .. } => {
                self.arrived.remove(&(to, ticket));
                let late = Fault::Late {
                    holders: Vec::new(),
                    before: 0,
                    full: Vec::new(),
                };
                self.send(to, ToClient::Answer(ticket, Answer::Failed(late)));
            }
            ServerAction::Create { .. } => {}
            ServerAction::Hold { .. }
            | ServerAction::Keep { .. }
            | ServerAction::Unkeep { .. }
            | ServerAction::TakeOver { .. } => unreachable!("no chunk has replicas"),
            ServerAction::Send { to, message } => {
                let content = match &message {
                    Between::Grant { chunk, .. } => Some((self.present(*chunk).1, None)),
                    _ => None,
                };
                self.tell(at, to, message, content);
            }
            ServerAction::Forward {
                to,
                chunk,
                guard,
                sent,
                epoch,
                tag,
                writer,
            } => {
                let brought = sent.and_then(|asker| self.arrived.remove(&asker));
                if let Some(value) = brought {
                    self.forwarded.insert(guard, value);
                }
                let value = brought.or_else(|| self.written.get(&guard).copied());
                let value = value.expect("a commit has a content");
                let message = Between::Commit {
                    chunk,
                    epoch,
                    tag,
                    writer,
                    content: Content::Zeros,
                };
                self.tell(at, to, message, Some((value, Some(guard))));
            }
            ServerAction::AdoptFrom { from, chunk } => {
                let commit = self.commit_of.remove(&(at, from.peer.0 as usize, chunk));
                let (value, guard) = commit.expect("a commit has a content");
                self.commits_now(chunk, guard.expect("a commit has a guard"), value);
            }
            ServerAction::DropFrom { from, chunk } => {
                _ = self.commit_of.remove(&(at, from.peer.0 as usize, chunk));
            }
            ServerAction::DropCopy { chunk } => _ = self.copies.remove(&(at, chunk)),
            ServerAction::Give {
                to,
                ticket,
                chunk,
                guard,
                version,
                ..
            } => {
                let present = self.present(chunk);
                assert_eq!(version, present.0, "not the last version of {chunk:?}");
                assert_eq!(self.content(at, chunk), present.1, "not its content");
                if self
                    .clients
                    .iter()
                    .any(|one| one.me == to && one.asks(chunk) == at)
                {
                    self.fenced_own.remove(&(to, chunk));
                }
                if self.takes.contains(&(to, ticket)) {
                    assert!(self.taken.insert((chunk, version)), "taken twice");
                }
                self.send(
                    to,
                    ToClient::Given {
                        at,
                        ticket,
                        chunk,
                        guard,
                        version,
                        value: present.1,
                    },
                );
            }
            ServerAction::Own {
                to,
                ticket,
                chunk,
                version,
                ..
            } => return self.own((to, ticket), chunk, version),
            ServerAction::Show {
                to,
                ticket,
                chunk,
                version,
                ..
            } => {
                assert_eq!(version, self.present(chunk).0);
                self.send(to, ToClient::Shown(ticket));
            }
            ServerAction::Draft {
                to,
                ticket,
                chunk,
                draft,
            } => self.send(to, ToClient::Drafted(ticket, chunk, draft)),
            ServerAction::Change { to, ticket, .. } => {
                self.value += 1;
                self.arrived.insert((to, ticket), self.value);
            }
            ServerAction::Adopt { chunk, guard, sent } => self.adopt(at, chunk, guard, sent),
            ServerAction::Discard { guard, .. } => {
                self.forwarded.remove(&guard);
                self.written.remove(&guard);
            }
            ServerAction::Tell { chunk, telling } => {
                let last = telling.events.last().map(|event| event.version);
                let present = self.present(chunk);
                assert!(!telling.with_content || last == Some(present.0));
                let all = &self.commits[&chunk];
                for event in &telling.events {
                    // Changes at the home have the tag 0 here.
                    let tag = all[event.version.0 as usize - 1].1;
                    assert!(event.tag == tag || event.tag == 0);
                }
                let (to, id) = telling.to;
                let events = telling.events.iter();
                let told = ToClient::Told {
                    id,
                    events: events.map(|event| (event.version, event.tag)).collect(),
                    missed: telling.missed,
                    value: telling.with_content.then_some(present.1),
                };
                self.send(to, told);
            }
            ServerAction::Took { .. } | ServerAction::Free { .. } => {}
            ServerAction::Open { chunk, version, .. } => {
                assert_eq!(version, self.present(chunk).0);
                self.open.insert((at, chunk), version);
            }
            ServerAction::Close { chunk } => {
                self.open.remove(&(at, chunk));
                self.closing.insert((at, chunk));
                return self.drained(at, chunk);
            }
        }
        None
    }

    pub(super) fn has_own(&self, at: usize, chunk: ChunkId) -> bool {
        self.clients.iter().any(|client| {
            let count = client.own.get(&chunk).copied().unwrap_or(0);
            let is_here = client.asks(chunk) == at;
            is_here && count > 0 && !self.fenced_own.contains(&(client.me, chunk))
        })
    }

    pub(super) fn drained(&mut self, at: usize, chunk: ChunkId) -> Option<ServerEvent> {
        if self.has_own(at, chunk) || !self.closing.remove(&(at, chunk)) {
            return None;
        }
        Some(ServerEvent::Closed(chunk))
    }

    pub(super) fn all_drained(&mut self) {
        let closing = self.closing.clone().into_iter();
        let stopped = self.stopped.clone();
        for (at, chunk) in closing.filter(|(at, _)| !stopped.contains_key(at)) {
            let closed = self.drained(at, chunk);
            closed.into_iter().for_each(|event| self.event(at, event));
        }
    }

    /// What was written is the content of a server.
    pub(super) fn adopt(
        &mut self,
        at: usize,
        chunk: ChunkId,
        guard: GuardId,
        sent: Option<(Process, Ticket)>,
    ) {
        let brought = match self.forwarded.remove(&guard) {
            None => sent.and_then(|asker| self.arrived.remove(&asker)),
            forwarded => forwarded,
        };
        let value = brought.or_else(|| self.written.remove(&guard));
        let value = value.expect("a commit has a content");
        match home(chunk) == at {
            true => self.commits_now(chunk, guard, value),
            false => _ = self.copies.insert((at, chunk), value),
        }
    }

    /// A version is committed at its home.
    pub(super) fn commits_now(&mut self, chunk: ChunkId, guard: GuardId, value: Value) {
        assert!(
            !self.fenced.contains(&guard),
            "a fenced guard has committed"
        );
        let owner = self.owned.get(&chunk).map(|owning| owning.client);
        assert_eq!(owner.is_some(), guard.0 == u64::MAX, "{owner:?} owns it");
        for client in &self.clients {
            let count = |of: &BTreeMap<ChunkId, u64>| of.get(&chunk).copied().unwrap_or(0);
            let (own, stale) = (count(&client.own), count(&client.stale));
            assert!(
                own <= stale,
                "a commit to {chunk:?} under a guard of {}",
                client.me
            );
        }
        for client in &self.clients {
            for (of, held) in &client.held {
                let is_other = *of != guard && held.chunk == chunk;
                let is_out = is_other && !self.fenced.contains(of);
                assert!(
                    !is_out,
                    "a commit to {chunk:?} under {of:?} of {}",
                    client.me
                );
            }
        }
        let all = self.commits.get_mut(&chunk).expect("a chunk");
        assert!(
            all.iter().all(|(old, _)| *old != value),
            "a version comes back"
        );
        all.push((value, value));
    }
}
