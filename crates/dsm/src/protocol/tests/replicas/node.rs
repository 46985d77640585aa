//! A server, and what the service does with its actions.

use super::{LEASE, Process, Said, Value, World, process};
use crate::protocol::server::{Server, ServerAction, ServerEvent, Written};
use crate::protocol::{
    Answer, Between, ChunkId, Content, Fault, GuardId, Request, ServerId, Ticket, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(super) struct Node {
    pub(super) me: Process,
    /// `None` while it is dead.
    pub(super) server: Option<Server>,
    /// The versions of chunks of this home.
    pub(super) versions: BTreeMap<ChunkId, Version>,
    /// The contents of chunks of this home, and of copies.
    contents: BTreeMap<ChunkId, Value>,
    pub(super) held: BTreeMap<ChunkId, Value>,
    pub(super) replicas: BTreeMap<ChunkId, Value>,
    /// What requests, and other servers, have brought.
    arrived: BTreeMap<(Process, Ticket), Value>,
    arrived_from: BTreeMap<(Process, ChunkId), (Value, Option<GuardId>)>,
    written: BTreeMap<GuardId, Value>,
    forwarded: BTreeMap<GuardId, Value>,
    /// The guards of commits that are held.
    guards: BTreeMap<ChunkId, GuardId>,
    /// The versions that clients may read without messages.
    pub(super) open: BTreeMap<ChunkId, Version>,
    closing: BTreeSet<ChunkId>,
}

impl Node {
    pub(super) fn new(at: usize, incarnation: u32) -> Node {
        let me = process(at, incarnation);
        Node {
            me,
            server: Some(Server::new(me, ServerId(at as u16))),
            versions: BTreeMap::new(),
            contents: BTreeMap::new(),
            held: BTreeMap::new(),
            replicas: BTreeMap::new(),
            arrived: BTreeMap::new(),
            arrived_from: BTreeMap::new(),
            written: BTreeMap::new(),
            forwarded: BTreeMap::new(),
            guards: BTreeMap::new(),
            open: BTreeMap::new(),
            closing: BTreeSet::new(),
        }
    }

    fn content(&self, chunk: ChunkId) -> Value {
        self.contents.get(&chunk).copied().unwrap_or(0)
    }

    /// Returns the version of a chunk of this home, and its content.
    pub(super) fn present(&self, chunk: ChunkId) -> (Version, Value) {
        (self.versions[&chunk], self.content(chunk))
    }
}

impl World {
    fn server(&mut self, at: usize) -> &mut Server {
        let server = self.nodes[at].server.as_mut();
        server.expect("only a server that lives hears of anything")
    }

    pub(super) fn event(&mut self, at: usize, event: ServerEvent) {
        self.say(|| format!("server {at} <- {event:?}"));
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now = self.now;
            for action in self.server(at).on_event(now, event) {
                self.say(|| format!("   {action:?}"));
                events.extend(self.act(at, action));
            }
        }
    }

    pub(super) fn server_hears(&mut self, at: usize, from: Process, said: Said) {
        match said {
            Said::Request(_, Request::Drained { chunk }) => {
                let closed = self.drained(at, chunk);
                closed.into_iter().for_each(|event| self.event(at, event));
            }
            Said::Request(ticket, request) => {
                self.receives(at, (from, ticket), &request);
                let request = ServerEvent::Request {
                    from,
                    ticket,
                    request,
                };
                self.event(at, request);
            }
            Said::Hello(server) => {
                let process = from;
                if self.gets_to_know(at, (server, process)) {
                    self.event(at, ServerEvent::Known { server, process });
                }
            }
            Said::Between(mut message, content) => {
                if let Between::Replicate {
                    description: Some(of),
                    ..
                } = &mut message
                {
                    of.backups.retain(|backup| self.gets_to_know(at, *backup));
                }
                if self.server(at).is_server(from) {
                    self.hears_server(at, from, message, content);
                }
            }
            Said::Lost => {
                self.nodes[at].arrived_from.retain(|(of, _), _| *of != from);
                self.event(at, ServerEvent::Lost(from));
                self.nodes[at].arrived.retain(|(of, _), _| *of != from);
                self.all_drained(at);
            }
            said => unreachable!("{said:?} is for clients"),
        }
    }

    /// Returns true if a server that is named lives, as far as is known. It is known then.
    fn gets_to_know(&mut self, at: usize, (server, process): (ServerId, Process)) -> bool {
        let me = self.nodes[at].me;
        let known = self.server(at).server(server);
        if known == Some(process) || process == me {
            return true;
        }
        let is_earlier = known.is_some_and(|known| known.incarnation > process.incarnation);
        if is_earlier || !self.is_heard_of(process, me) {
            return false;
        }
        if let Some(old) = known {
            // Its end was not heard of yet.
            while self.server(at).is_server(old) {
                self.arrives(old, me);
            }
        }
        self.event(at, ServerEvent::Known { server, process });
        true
    }

    /// A request brings content: its tag.
    fn receives(
        &mut self,
        at: usize,
        (from, ticket): (Process, Option<Ticket>),
        request: &Request,
    ) {
        let node = &mut self.nodes[at];
        match (ticket, request) {
            (Some(ticket), Request::Put { tag, .. })
            | (
                Some(ticket),
                Request::Commit {
                    tag, data: Some(_), ..
                },
            ) => _ = node.arrived.insert((from, ticket), *tag),
            (
                Some(_),
                Request::Commit {
                    tag,
                    guard,
                    data: None,
                    ..
                },
            ) => _ = node.written.insert(*guard, *tag),
            _ => {}
        }
    }

    fn hears_server(
        &mut self,
        at: usize,
        from: Process,
        message: Between,
        content: Option<(Value, Option<GuardId>)>,
    ) {
        let is_refused = self.is_short && self.random.is(3);
        match (&message, content) {
            (Between::Grant { chunk, .. }, Some((value, _))) => {
                _ = self.nodes[at].contents.insert(*chunk, value);
            }
            (Between::Replicate { .. }, _) if is_refused => {
                return self.event(at, ServerEvent::Unkept { from, message });
            }
            (Between::Commit { chunk, .. } | Between::Replicate { chunk, .. }, Some(content)) => {
                _ = self.nodes[at].arrived_from.insert((from, *chunk), content);
            }
            _ => {}
        }
        self.event(at, ServerEvent::Between { from, message });
    }

    fn act(&mut self, at: usize, action: ServerAction) -> Option<ServerEvent> {
        let me = self.nodes[at].me;
        match action {
            ServerAction::Answer { to, ticket, answer } => {
                self.nodes[at].arrived.remove(&(to, ticket));
                if let Answer::Opened { chunk, .. } | Answer::Moved { chunk } = answer {
                    self.opened(chunk);
                }
                self.send(me, to, Said::Answer(ticket, answer));
            }
            ServerAction::Late { to, ticket, .. } => {
                self.nodes[at].arrived.remove(&(to, ticket));
                let late = Fault::Late {
                    holders: Vec::new(),
                    before: 0,
                    full: Vec::new(),
                };
                self.send(me, to, Said::Answer(ticket, Answer::Failed(late)));
            }
            ServerAction::Create { chunk, bytes, .. } => {
                self.seen.names.insert(chunk, bytes as usize / 8 - 1);
                let node = &mut self.nodes[at];
                node.versions.insert(chunk, Version::default());
                node.contents.insert(chunk, 0);
            }
            ServerAction::TakeOver {
                of, chunk, version, ..
            } => {
                let name = self.name_of(of);
                self.seen.names.insert(chunk, name);
                let node = &mut self.nodes[at];
                let value = node.replicas.remove(&of).expect("a replica has a content");
                node.versions.insert(chunk, version);
                node.contents.insert(chunk, value);
                let (last, content) = self.last(name);
                assert!(version >= last, "{name} loses what was committed");
                assert!(
                    version > last || value == content,
                    "{last} has two contents"
                );
            }
            ServerAction::Hold { chunk, written } => {
                let node = &mut self.nodes[at];
                let (value, guard) = match written {
                    Written::Guard { guard, sent } => {
                        let sent = sent.and_then(|asker| node.arrived.remove(&asker));
                        (sent.or_else(|| node.written.remove(&guard)), Some(guard))
                    }
                    Written::Server(from) => {
                        let commit = node.arrived_from.remove(&(from, chunk));
                        let (value, guard) = commit.expect("a commit has a content");
                        (Some(value), guard)
                    }
                };
                let value = value.expect("a commit has a content");
                assert_eq!(node.held.insert(chunk, value), None, "two are held");
                node.guards.extend(guard.map(|guard| (chunk, guard)));
            }
            ServerAction::Keep { from, chunk } => {
                let node = &mut self.nodes[at];
                let (value, _) = node
                    .arrived_from
                    .remove(&(from, chunk))
                    .expect("a version has a content");
                node.replicas.insert(chunk, value);
            }
            ServerAction::Unkeep { chunk } => _ = self.nodes[at].replicas.remove(&chunk),
            ServerAction::Send { to, message } => {
                let node = &self.nodes[at];
                let content = match &message {
                    Between::Grant { chunk, .. } => Some((node.content(*chunk), None)),
                    Between::Replicate { chunk, .. } => {
                        let held = node.held.get(chunk).copied();
                        Some((held.unwrap_or(node.content(*chunk)), None))
                    }
                    _ => None,
                };
                self.send(me, to, Said::Between(message, content));
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
                let node = &mut self.nodes[at];
                let brought = sent.and_then(|asker| node.arrived.remove(&asker));
                node.forwarded.extend(brought.map(|value| (guard, value)));
                let value = brought.or_else(|| node.written.get(&guard).copied());
                let value = value.expect("a commit has a content");
                let message = Between::Commit {
                    chunk,
                    epoch,
                    tag,
                    writer,
                    content: Content::Zeros,
                };
                self.send(me, to, Said::Between(message, Some((value, Some(guard)))));
            }
            ServerAction::Adopt { chunk, guard, sent } => {
                let node = &mut self.nodes[at];
                let value = match node.held.remove(&chunk) {
                    Some(held) => Some(held),
                    None => {
                        let brought = node.forwarded.remove(&guard);
                        let sent = sent.and_then(|asker| node.arrived.remove(&asker));
                        brought.or(sent).or_else(|| node.written.remove(&guard))
                    }
                };
                let value = value.expect("a commit has a content");
                self.adopts(at, chunk, value, Some(guard));
            }
            ServerAction::AdoptFrom { from, chunk } => {
                let node = &mut self.nodes[at];
                let (value, guard) = match node.held.remove(&chunk) {
                    Some(held) => (held, node.guards.remove(&chunk)),
                    None => node
                        .arrived_from
                        .remove(&(from, chunk))
                        .expect("a commit has a content"),
                };
                self.adopts(at, chunk, value, guard);
            }
            ServerAction::DropFrom { from, chunk } => {
                _ = self.nodes[at].arrived_from.remove(&(from, chunk));
            }
            ServerAction::DropCopy { chunk } => _ = self.nodes[at].contents.remove(&chunk),
            ServerAction::Give {
                to,
                ticket,
                chunk,
                guard,
                version,
                ..
            } => {
                let value = self.nodes[at].content(chunk);
                self.sees(chunk, version, value, None);
                let given = Said::Given {
                    ticket,
                    chunk,
                    guard,
                    version,
                };
                self.send(me, to, given);
            }
            ServerAction::Show {
                to,
                ticket,
                chunk,
                version,
                ..
            } => {
                let value = self.nodes[at].content(chunk);
                self.sees(chunk, version, value, None);
                self.send(me, to, Said::Shown(ticket));
            }
            ServerAction::Discard { guard, .. } => {
                let node = &mut self.nodes[at];
                node.forwarded.remove(&guard);
                node.written.remove(&guard);
            }
            ServerAction::Tell { chunk, telling } => {
                let name = self.name_of(chunk);
                for event in &telling.events {
                    assert_eq!(event.tag, self.value_of(name, event.version));
                }
                let events = telling.events.iter();
                let (to, id) = telling.to;
                let told = Said::Told {
                    id,
                    events: events.map(|event| (event.version, event.tag)).collect(),
                    missed: telling.missed,
                };
                self.send(me, to, told);
            }
            ServerAction::Free { chunk, .. } => {
                let node = &mut self.nodes[at];
                node.contents.remove(&chunk);
                node.open.remove(&chunk);
                node.closing.remove(&chunk);
            }
            ServerAction::Open { chunk, version, .. } => {
                let (of, value) = match self.nodes[at].versions.get(&chunk) {
                    Some(_) => self.nodes[at].present(chunk),
                    None => (version, self.nodes[at].content(chunk)),
                };
                assert_eq!(version, of);
                self.sees(chunk, version, value, None);
                self.nodes[at].open.insert(chunk, version);
            }
            ServerAction::Close { chunk } => {
                self.nodes[at].open.remove(&chunk);
                self.nodes[at].closing.insert(chunk);
                return self.drained(at, chunk);
            }
            ServerAction::Took { .. } => {}
            ServerAction::Draft { .. } | ServerAction::Change { .. } | ServerAction::Own { .. } => {
                unreachable!("nobody asks for that")
            }
        }
        None
    }

    /// What was written is the content of a chunk of this home, or of a copy.
    fn adopts(&mut self, at: usize, chunk: ChunkId, value: Value, by: Option<GuardId>) {
        if self.nodes[at].versions.contains_key(&chunk) {
            // Nobody need have read what a server has taken over.
            let (before, old) = self.nodes[at].present(chunk);
            self.sees(chunk, before, old, by);
        }
        let node = &mut self.nodes[at];
        node.contents.insert(chunk, value);
        let Some(version) = node.versions.get_mut(&chunk) else {
            return;
        };
        *version = version.next();
        let version = *version;
        node.guards.remove(&chunk);
        self.sees(chunk, version, value, by);
    }

    fn has_own(&self, at: usize, chunk: ChunkId) -> bool {
        let of = (self.nodes[at].me, chunk);
        let counts = self.clients.iter();
        let mut counts = counts.filter_map(|client| client.own.get(&of));
        counts.any(|count| *count > 0)
    }

    pub(super) fn drained(&mut self, at: usize, chunk: ChunkId) -> Option<ServerEvent> {
        if self.has_own(at, chunk) || !self.nodes[at].closing.remove(&chunk) {
            return None;
        }
        Some(ServerEvent::Closed(chunk))
    }

    pub(super) fn all_drained(&mut self, at: usize) {
        if self.nodes[at].server.is_none() {
            return;
        }
        for chunk in self.nodes[at].closing.clone() {
            let closed = self.drained(at, chunk);
            closed.into_iter().for_each(|event| self.event(at, event));
        }
    }

    /// Time passes at a server: leases of those that are lost end, and waits.
    pub(super) fn server_acts(&mut self, at: usize, has_faults: bool) {
        for server in self.server(at).blocking_servers() {
            let died = self.died.get(&server);
            if died.is_some_and(|died| died + LEASE <= self.now) {
                self.event(at, ServerEvent::FenceServer(server));
            }
        }
        let now = self.now;
        if self.server(at).wake_at().is_some_and(|due| due <= now) {
            self.event(at, ServerEvent::Tick);
        }
        if has_faults && self.random.is(3) {
            let idle: Vec<_> = self.server(at).idle_copies().collect();
            if let Some(chunk) = self.random.of(&idle) {
                self.event(at, ServerEvent::Evict(chunk));
            }
        }
    }
}
