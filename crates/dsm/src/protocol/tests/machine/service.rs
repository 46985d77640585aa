//! What the services of the servers do, with numbers as contents.

use super::super::world::process;
use super::{Ask, Asked, CLIENTS, Client, HOME, Left, NEVER, Note, OTHER, Said, Value, World};
use crate::protocol::server::{Server, ServerAction, ServerEvent};
use crate::protocol::{
    Answer, Between, Content, GuardId, Kind, Process, Protocol, Request, ServerId, Ticket, Version,
};
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl World {
    /// `near`: the server of each client.
    pub(super) fn new(near: &[usize], protocol: Protocol, left: Left) -> World {
        let count = near.iter().max().map_or(1, |most| most + 1);
        let servers = (0..count).map(|at| Some(Server::new(process(at), ServerId(at as u16))));
        let client = |near: &usize| Client {
            near: *near,
            is_at_home: protocol.is_written_at_home(),
            asked: None,
            held: BTreeMap::new(),
            own: None,
            known: None,
            seen: Version(0),
            told: None,
            is_dead: false,
            known_dead_at: BTreeSet::new(),
            next: 1,
            thread: 0,
        };
        let mut world = World {
            servers: servers.collect(),
            clients: near.iter().map(client).collect(),
            asks: BTreeMap::new(),
            notes: vec![VecDeque::new(); near.len()],
            between: Default::default(),
            commits: Vec::new(),
            copy: None,
            written: BTreeMap::new(),
            arrived: BTreeMap::new(),
            forwarded: BTreeMap::new(),
            commit_of: None,
            open: [None; 2],
            is_closing: [false; 2],
            fenced: BTreeSet::new(),
            refused: BTreeSet::new(),
            is_stopped: false,
            is_voided: false,
            is_known_lost: false,
            value: 0,
            history: LinearizabilityTester::new(Register(0)),
            left,
            broken: None,
        };
        for (which, client) in world.clients.iter_mut().enumerate() {
            client.thread = which;
        }
        for (at, other) in [(HOME, OTHER), (OTHER, HOME)] {
            if count == 2 {
                let (server, process) = (ServerId(other as u16), process(other));
                world.event(at, ServerEvent::Known { server, process });
            }
        }
        let open = Request::Open {
            name: "chunk".to_owned(),
            kind: Kind {
                name: "u8".to_owned(),
                size: 1,
            },
            bytes: Some(1),
            protocol,
            replicas: None,
            timeout: NEVER,
        };
        // Of a process that takes no further part.
        world.event(
            HOME,
            ServerEvent::Request {
                from: process(9),
                ticket: Some(Ticket(1)),
                request: open,
            },
        );
        world
    }

    pub(super) fn breaks(&mut self, rule: impl Into<String>) {
        self.broken.get_or_insert(rule.into());
    }

    pub(super) fn present(&self) -> (Version, Value) {
        let value = self.commits.last().copied().unwrap_or(0);
        (Version(self.commits.len() as u64), value)
    }

    pub(super) fn lives(&self, at: usize) -> bool {
        self.servers.get(at).is_some_and(Option::is_some)
    }

    /// Returns true if a server does what it is asked.
    pub(super) fn runs(&self, at: usize) -> bool {
        self.lives(at) && !(at == OTHER && self.is_stopped)
    }

    pub(super) fn event(&mut self, at: usize, event: ServerEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(server) = self.servers[at].as_mut() else {
                return;
            };
            for action in server.on_event(0, event) {
                events.extend(self.act(at, action));
            }
        }
    }

    pub(super) fn client_of(&self, process: Process) -> Option<usize> {
        (process.peer.0 as usize)
            .checked_sub(CLIENTS)
            .filter(|which| !self.clients[*which].is_dead)
    }

    pub(super) fn note(&mut self, to: Process, note: Note) {
        if let Some(which) = self.client_of(to) {
            self.notes[which].push_back(note);
        }
    }

    pub(super) fn say(&mut self, from: usize, said: Said) {
        if self.lives(1 - from) {
            self.between[from].push_back(said);
        }
    }

    /// Does what the service does with an action, and checks it.
    pub(super) fn act(&mut self, at: usize, action: ServerAction) -> Option<ServerEvent> {
        match action {
            ServerAction::Answer { to, ticket, answer } => {
                self.arrived.remove(&(to, ticket));
                match answer {
                    Answer::Committed { version, .. } => {
                        self.note(to, Note::Committed(ticket, version));
                    }
                    Answer::Subscribed => self.note(to, Note::Subscribed(ticket)),
                    Answer::Failed(fault) => self.note(to, Note::Refused(ticket, fault)),
                    Answer::Opened { .. } => {}
                    other => self.breaks(format!("nobody has asked for {other:?}")),
                }
            }
            ServerAction::Give {
                to,
                ticket,
                guard,
                version,
                ..
            } => {
                let (present, value) = self.present();
                let content = match at {
                    HOME => Some(value),
                    _ => self.copy.or((version == Version(0)).then_some(0)),
                };
                if (version, content) != (present, Some(value)) {
                    self.breaks("a guard is given of a version that is not the last one");
                }
                self.note(
                    to,
                    Note::Given {
                        at,
                        ticket,
                        guard,
                        version,
                        value,
                    },
                );
            }
            ServerAction::Send { message, .. } => {
                let content = match &message {
                    Between::Grant { .. } => Some((self.present().1, None)),
                    _ => None,
                };
                self.say(at, (message, content));
            }
            ServerAction::Forward {
                chunk,
                guard,
                sent,
                epoch,
                tag,
                writer,
                ..
            } => {
                let brought = sent.and_then(|asker| self.arrived.remove(&asker));
                if let Some(value) = brought {
                    self.forwarded.insert(guard, value);
                }
                let value = brought.or_else(|| self.written.get(&guard).copied());
                let Some(value) = value else {
                    self.breaks("a commit has no content");
                    return None;
                };
                let commit = Between::Commit {
                    chunk,
                    epoch,
                    tag,
                    writer,
                    content: Content::Zeros,
                };
                self.say(at, (commit, Some((value, Some(guard)))));
            }
            ServerAction::AdoptFrom { .. } => match self.commit_of.take() {
                Some((value, guard)) => self.commits_now(guard, value),
                None => self.breaks("a commit of another server has no content"),
            },
            ServerAction::DropFrom { .. } => self.commit_of = None,
            ServerAction::DropCopy { .. } => self.copy = None,
            ServerAction::Adopt { guard, sent, .. } => {
                let forwarded = self.forwarded.remove(&guard);
                let brought = || sent.and_then(|asker| self.arrived.remove(&asker));
                let value = forwarded.or_else(brought);
                match (value.or_else(|| self.written.remove(&guard)), at) {
                    (Some(value), HOME) => self.commits_now(guard, value),
                    (Some(value), _) => self.copy = Some(value),
                    (None, _) => self.breaks("a commit has no content"),
                }
            }
            ServerAction::Discard { guard, .. } => {
                self.forwarded.remove(&guard);
                self.written.remove(&guard);
            }
            ServerAction::Tell { telling, .. } => {
                let (present, value) = self.present();
                let events: Vec<Version> = telling.events.iter().map(|one| one.version).collect();
                if events.last().is_none_or(|last| *last > present) || telling.missed > 0 {
                    self.breaks("an event of what was not committed, or one that is missed");
                }
                let value = telling.with_content.then_some(value);
                self.note(telling.to.0, Note::Told(events, value));
            }
            ServerAction::Open { version, .. } => {
                if version != self.present().0 {
                    self.breaks("an old version may be read without a message");
                }
                self.open[at] = Some(version);
            }
            ServerAction::Close { .. } => {
                (self.open[at], self.is_closing[at]) = (None, true);
                return self.drained(at);
            }
            ServerAction::Create { .. } | ServerAction::Took { .. } | ServerAction::Free { .. } => {
            }
            other => self.breaks(format!("nobody has asked for {other:?}")),
        }
        None
    }

    /// A version is committed at its home.
    pub(super) fn commits_now(&mut self, guard: GuardId, value: Value) {
        if self.fenced.contains(&guard) || self.refused.contains(&value) {
            self.breaks("a commit that was fenced is visible");
        }
        if self.commits.contains(&value) {
            self.breaks("a version comes back");
        }
        let is_out = |of: &GuardId| *of != guard && !self.fenced.contains(of);
        for (client, notes) in self.clients.iter().zip(&self.notes) {
            let is_under_own = client.own.is_some_and(|own| !own.is_stale);
            let given = notes.iter().filter_map(|note| match note {
                Note::Given { guard, .. } => Some(guard),
                _ => None,
            });
            let is_under = client.held.keys().chain(given).any(is_out);
            if !client.is_dead && (is_under || is_under_own) {
                return self.breaks("a version is committed under the guard of another client");
            }
        }
        self.commits.push(value);
    }

    /// Returns that the chunk is closed at a server, if no client has a guard of its own.
    pub(super) fn drained(&mut self, at: usize) -> Option<ServerEvent> {
        let reads = |client: &Client| client.own.is_some_and(|own| own.at == at && !own.is_stale);
        if !self.is_closing[at] || self.clients.iter().any(reads) {
            return None;
        }
        self.is_closing[at] = false;
        Some(ServerEvent::Closed(super::CHUNK))
    }

    pub(super) fn drains(&mut self, at: usize) {
        let closed = self.drained(at);
        closed.into_iter().for_each(|event| self.event(at, event));
    }

    pub(super) fn ask(&mut self, which: usize, at: usize, ask: Ask, has_answer: bool) {
        let client = &mut self.clients[which];
        client.next += 1;
        let ticket = Ticket(client.next);
        if has_answer {
            client.asked = Some(Asked { at, ticket, ask });
        }
        let ticket = has_answer.then_some(ticket);
        if self.lives(at) {
            let line = self.asks.entry((which, at)).or_default();
            line.push_back((ticket, ask));
        } else if has_answer {
            self.ends_nothing(which);
        }
    }

    /// A client waits for nothing any more: what it wrote may be visible, or not.
    pub(super) fn ends_nothing(&mut self, which: usize) {
        let client = &mut self.clients[which];
        if client.asked.take().is_some() {
            client.thread += self.notes.len();
        }
    }

    pub(super) fn invokes(&mut self, which: usize, op: RegisterOp<Value>) {
        let thread = self.clients[which].thread;
        if let Err(error) = self.history.on_invoke(thread, op).map(drop) {
            self.breaks(error);
        }
    }

    pub(super) fn returns(&mut self, which: usize, ret: RegisterRet<Value>) {
        let thread = self.clients[which].thread;
        if let Err(error) = self.history.on_return(thread, ret).map(drop) {
            self.breaks(error);
        }
    }

    /// A client has read a version, or was told of it.
    pub(super) fn sees(&mut self, which: usize, version: Version) {
        let client = &mut self.clients[which];
        if version < client.seen {
            self.breaks("a client goes back to an old version");
        } else {
            client.seen = version;
        }
    }

    pub(super) fn writes(&mut self) -> Value {
        self.value += 1;
        self.value
    }
}
