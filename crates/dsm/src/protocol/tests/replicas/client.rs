//! What clients do, and what they hear.

use super::{NAMES, Process, Said, Value, World, home};
use crate::protocol::{
    Answer, ChunkId, Fault, GuardId, Kind, Mode, Policy, Protocol, PutFrom, Request, ServerId,
    SubscriptionId, Ticket, Version,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a client waits for.
#[derive(Clone, Debug)]
pub(super) enum Wait {
    /// A chunk by its name, or the successor of one.
    Place(Place),
    Guard(ChunkId, Mode),
    /// What is written.
    Write(ChunkId, Value),
    Other,
    Subscription(SubscriptionId),
}

/// A search for a chunk, through the servers.
#[derive(Clone, Debug)]
pub(super) struct Place {
    name: usize,
    /// The chunk whose successor is asked for.
    of: Option<ChunkId>,
    /// The next one in the order, and one that a server has named.
    at: usize,
    hint: Option<ServerId>,
    /// The servers that were lost, in this round and in the one before.
    lost: BTreeSet<ServerId>,
    before: Option<BTreeSet<ServerId>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) at: Process,
    pub(super) chunk: ChunkId,
    mode: Mode,
}

#[derive(Debug)]
struct Subscribed {
    name: usize,
    chunk: ChunkId,
    policy: Policy,
    last: Version,
    taken: Version,
}

pub(super) struct Client {
    pub(super) me: Process,
    pub(super) near: Option<usize>,
    lost: BTreeSet<Process>,
    /// The present ids of chunks, as far as it knows.
    places: BTreeMap<usize, ChunkId>,
    pub(super) asked: BTreeMap<Ticket, (Process, Wait)>,
    pub(super) held: BTreeMap<GuardId, Held>,
    /// The versions that it may read without a message at a server, and how often it does.
    known: BTreeMap<(Process, ChunkId), Version>,
    pub(super) own: BTreeMap<(Process, ChunkId), u64>,
    subscribed: BTreeMap<SubscriptionId, Subscribed>,
    next: u64,
}

impl Client {
    pub(super) fn new(me: Process, near: Option<usize>) -> Client {
        Client {
            me,
            near,
            lost: BTreeSet::new(),
            places: BTreeMap::new(),
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            known: BTreeMap::new(),
            own: BTreeMap::new(),
            subscribed: BTreeMap::new(),
            next: 1,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let mut taken = self.subscribed.values();
        let is_taken = taken.all(|of| of.taken == of.last);
        self.asked.is_empty() && self.held.is_empty() && is_taken
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    fn searches(&self, name: usize) -> bool {
        let mut asked = self.asked.values();
        asked.any(|(_, wait)| matches!(wait, Wait::Place(place) if place.name == name))
    }
}

impl World {
    fn ask(&mut self, which: usize, to: Process, request: Request, wait: Wait) {
        let client = &mut self.clients[which];
        let (me, ticket) = (client.me, client.ticket());
        client.asked.insert(ticket, (to, wait));
        self.say(|| format!("{me:?} asks {to:?} {ticket:?}: {request:?}"));
        match self.clients[which].lost.contains(&to) || !self.knows(which, to) {
            true => self.fails(which, ticket),
            false => self.send(me, to, Said::Request(Some(ticket), request)),
        }
    }

    /// Returns true if a client has not yet heard of the end of a server, or will.
    fn knows(&self, which: usize, server: Process) -> bool {
        self.is_heard_of(server, self.clients[which].me)
    }

    fn note(&mut self, which: usize, to: Process, request: Request) {
        let me = self.clients[which].me;
        self.send(me, to, Said::Request(None, request));
    }

    /// Searches for a chunk: by its name, or the successor of a home that is lost.
    fn search(&mut self, which: usize, name: usize, of: Option<ChunkId>) {
        if self.clients[which].searches(name) {
            return;
        }
        let place = Place {
            name,
            of,
            at: 0,
            hint: None,
            lost: BTreeSet::new(),
            before: None,
        };
        self.search_on(which, place);
    }

    /// Asks the next server.
    fn search_on(&mut self, which: usize, mut place: Place) {
        let replicas = self.names[place.name].clone();
        let server = match place.hint.take() {
            Some(server) => server,
            None => match replicas.order.get(place.at) {
                Some(server) => {
                    place.at += 1;
                    *server
                }
                None if place.of.is_none() => return, // None is left.
                None if place.before.as_ref() == Some(&place.lost) => {
                    unreachable!("nobody has {place:?}")
                }
                None => {
                    place.at = 0;
                    place.before = Some(std::mem::take(&mut place.lost));
                    return self.search_on(which, place);
                }
            },
        };
        let process = self.nodes[usize::from(server.0)].me;
        let client = &self.clients[which];
        if client.lost.contains(&process) {
            place.lost.insert(server);
            if place.lost.len() == replicas.order.len() {
                return; // None is left.
            }
            return self.search_on(which, place);
        }
        let request = match place.of {
            Some(chunk) => Request::Successor {
                chunk,
                timeout: 5_000,
            },
            None => Request::Open {
                name: format!("{}", place.name),
                kind: Kind {
                    name: "u64".to_owned(),
                    size: 8,
                },
                bytes: Some(8 * (place.name as u64 + 1)),
                protocol: match place.name {
                    0 => Protocol::Update,
                    _ => Protocol::HomeMesi,
                },
                replicas: Some(replicas),
                timeout: 5_000,
            },
        };
        self.ask(which, process, request, Wait::Place(place));
    }

    /// Returns where a client asks for guards of a chunk.
    fn near(&self, which: usize, chunk: ChunkId, mode: Mode) -> Process {
        let near = self.clients[which].near.map(|near| self.nodes[near].me);
        let near = near.filter(|near| self.lives(*near));
        match mode == Mode::Write && self.at_home.contains(&chunk) {
            true => home(chunk),
            false => near.unwrap_or(home(chunk)),
        }
    }

    /// Lets one client do something.
    pub(super) fn client_acts(&mut self, which: usize) {
        let name = self.random.below(NAMES as u64) as usize;
        let what = self.random.below(100);
        let timeout = match self.random.is(20) {
            true => self.random.below(50),
            false => 5_000,
        };
        let client = &self.clients[which];
        let Some(chunk) = client.places.get(&name).copied() else {
            return self.search(which, name, None);
        };
        if client.lost.contains(&home(chunk)) {
            return self.search(which, name, Some(chunk));
        }
        let can_ask = client.asked.len() < 3 && client.held.len() < 3;
        let guards: Vec<_> = client.held.keys().copied().collect();
        let ids: Vec<_> = client.subscribed.keys().copied().collect();
        match what {
            0..25 if can_ask => {
                let mode = match self.random.is(40) {
                    true => Mode::Read,
                    false => Mode::Write,
                };
                let request = Request::Acquire {
                    chunk,
                    mode,
                    in_place: mode == Mode::Write,
                    timeout,
                };
                let at = self.near(which, chunk, mode);
                self.ask(which, at, request, Wait::Guard(chunk, mode));
            }
            25..40 if can_ask => {
                let value = self.new_value();
                let put = Request::Put {
                    chunk,
                    tag: value,
                    from: PutFrom::Inline(Vec::new()),
                    timeout,
                };
                self.ask(which, home(chunk), put, Wait::Write(chunk, value));
            }
            40..45 if can_ask => {
                self.ask(which, home(chunk), Request::Snapshot { chunk }, Wait::Other);
            }
            45..50 if can_ask && ids.len() < 3 => {
                let (present, _) = self.last(name);
                let after = Version(present.0.saturating_sub(self.random.below(3)));
                let policy = match self.random.below(3) {
                    0 => Policy::Every,
                    1 => Policy::Latest,
                    _ => Policy::Lossless { high_water: 2 },
                };
                self.subscribes(which, (name, chunk), policy, after);
            }
            50..60 => self.reads_itself(which, chunk),
            60..70 => {
                if let Some(id) = self.random.of(&ids) {
                    self.takes_events(which, id);
                }
            }
            70..99 => {
                if let Some(guard) = self.random.of(&guards) {
                    self.ends(which, guard);
                }
            }
            _ if can_ask => self.search(which, name, None),
            _ => {}
        }
    }

    fn subscribes(
        &mut self,
        which: usize,
        (name, chunk): (usize, ChunkId),
        policy: Policy,
        after: Version,
    ) {
        let id = SubscriptionId(self.clients[which].ticket().0);
        let subscribed = Subscribed {
            name,
            chunk,
            policy,
            last: after,
            taken: after,
        };
        self.clients[which].subscribed.insert(id, subscribed);
        let request = Request::Subscribe {
            chunk,
            id,
            inbox: 0,
            after,
            policy,
            with_content: false,
            prefetch: None,
            watches: false,
        };
        self.ask(which, home(chunk), request, Wait::Subscription(id));
    }

    /// Ends a guard: by a commit, or without one.
    fn ends(&mut self, which: usize, guard: GuardId) {
        let Some(held) = self.clients[which].held.remove(&guard) else {
            return;
        };
        let Held { at, chunk, mode } = held;
        if mode == Mode::Read || self.random.is(20) {
            return self.note(which, at, Request::Release { chunk, guard });
        }
        let value = self.new_value();
        let commit = Request::Commit {
            chunk,
            guard,
            tag: value,
            data: self.random.is(50).then(Vec::new),
            under: None,
        };
        self.ask(which, at, commit, Wait::Write(chunk, value));
    }

    /// Takes a read guard without a message, or drops such a guard.
    fn reads_itself(&mut self, which: usize, chunk: ChunkId) {
        let at = self.near(which, chunk, Mode::Read);
        self.reads_itself_at(which, at, chunk);
        // It may still use its server before this one, or the home before.
        let known: Vec<_> = self.clients[which].known.keys().copied().collect();
        if let Some((at, chunk)) = self.random.of(&known) {
            self.reads_itself_at(which, at, chunk);
        }
    }

    fn reads_itself_at(&mut self, which: usize, at: Process, chunk: ChunkId) {
        let node = &self.nodes[at.peer.0 as usize];
        let is_same = node.me == at;
        let open = node.open.get(&chunk).copied().filter(|_| is_same);
        let is_leased = self.is_leased(at, chunk);
        let client = &mut self.clients[which];
        let known = client.known.get(&(at, chunk)).copied();
        let own = client.own.entry((at, chunk)).or_default();
        if *own > 0 && self.random.is(60) {
            *own -= 1;
            let is_last = *own == 0;
            if is_last && open.is_none() {
                self.note(which, at, Request::Drained { chunk });
            }
        } else if open.is_some() && open == known && is_leased {
            *own += 1;
            let (last, _) = self.last(self.name_of(chunk));
            assert_eq!(open, Some(last), "an old version is open");
        }
    }

    fn takes_events(&mut self, which: usize, id: SubscriptionId) {
        let Some(subscribed) = self.clients[which].subscribed.get_mut(&id) else {
            return;
        };
        let (chunk, version) = (subscribed.chunk, subscribed.last);
        subscribed.taken = version;
        self.note(which, home(chunk), Request::Took { chunk, id, version });
    }

    pub(super) fn client_hears(&mut self, which: usize, from: Process, said: Said) {
        let me = self.clients[which].me;
        self.say(|| format!("{me:?} <- {said:?} of {from:?}"));
        match said {
            Said::Given {
                ticket,
                chunk,
                guard,
                version,
            } => {
                let client = &mut self.clients[which];
                let Some((at, Wait::Guard(_, mode))) = client.asked.remove(&ticket) else {
                    return;
                };
                client.held.insert(guard, Held { at, chunk, mode });
                client.known.insert((at, chunk), version);
            }
            Said::Shown(ticket) => _ = self.clients[which].asked.remove(&ticket),
            Said::Answer(ticket, answer) => {
                if let Some((_, wait)) = self.clients[which].asked.remove(&ticket) {
                    self.answered(which, answer, wait);
                }
            }
            Said::Told { id, events, missed } => self.told(which, id, events, missed),
            Said::Lost => {
                self.clients[which].lost.insert(from);
                let asked = self.clients[which].asked.iter();
                let asked = asked.filter(|(_, (at, _))| *at == from);
                for ticket in asked.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
                    self.fails(which, ticket);
                }
            }
            said => unreachable!("{said:?} is for servers"),
        }
    }

    /// The server that was asked is lost.
    fn fails(&mut self, which: usize, ticket: Ticket) {
        match self.clients[which].asked.remove(&ticket) {
            Some((at, Wait::Place(mut place))) => {
                place.lost.insert(ServerId(at.peer.0 as u16));
                self.search_on(which, place);
            }
            Some((_, Wait::Subscription(id))) => _ = self.clients[which].subscribed.remove(&id),
            // Whether a commit takes place is unknown.
            _ => {}
        }
    }

    fn answered(&mut self, which: usize, answer: Answer, wait: Wait) {
        match (answer, wait) {
            (Answer::Opened { chunk, .. } | Answer::Moved { chunk }, Wait::Place(place)) => {
                self.clients[which].places.insert(place.name, chunk);
                self.resumes(which, place.name, chunk);
            }
            (Answer::Failed(Fault::Elsewhere { server }), Wait::Place(mut place)) => {
                place.hint = Some(server);
                place.at = 0;
                self.search_on(which, place);
            }
            (Answer::Failed(Fault::NotFound), Wait::Place(place)) if place.of.is_some() => {
                self.search_on(which, place);
            }
            (Answer::Failed(Fault::AtHome), Wait::Guard(chunk, _)) => {
                self.at_home.insert(chunk);
            }
            (Answer::Committed { version, .. }, Wait::Write(chunk, value)) => {
                let found = self.value_of(self.name_of(chunk), version);
                assert_eq!(found, value, "an acknowledged commit is lost");
            }
            (Answer::Failed(Fault::Lost { .. }), Wait::Subscription(id)) => {
                self.clients[which].subscribed.remove(&id);
            }
            (Answer::Failed(Fault::Lost { .. }), _) => {} // It is unknown.
            (Answer::Failed(Fault::Fenced | Fault::Late { .. }), Wait::Write(chunk, value)) => {
                let name = self.name_of(chunk);
                assert!(!self.was_seen(name, value), "refused, and visible");
                self.seen.never.insert(value);
            }
            (Answer::Failed(Fault::Late { .. } | Fault::Fenced | Fault::NotFound), _) => {}
            (Answer::Failed(fault), wait) => unreachable!("{fault:?} for {wait:?}"),
            _ => {}
        }
    }

    /// Subscriptions go on at another home, after the last event that was taken.
    fn resumes(&mut self, which: usize, name: usize, chunk: ChunkId) {
        let subscribed = self.clients[which].subscribed.iter();
        let old = subscribed.filter(|(_, of)| of.name == name && of.chunk != chunk);
        let old: Vec<_> = old.map(|(id, _)| *id).collect();
        for id in old {
            if let Some(of) = self.clients[which].subscribed.remove(&id) {
                self.subscribes(which, (name, chunk), of.policy, of.taken);
            }
        }
    }

    fn told(&mut self, which: usize, id: SubscriptionId, events: Vec<(Version, u64)>, missed: u64) {
        let Some(subscribed) = self.clients[which].subscribed.get_mut(&id) else {
            return;
        };
        subscribed.last.0 += missed;
        for (version, _) in &events {
            match subscribed.policy {
                Policy::Latest => assert!(*version > subscribed.last),
                _ => assert_eq!(*version, subscribed.last.next(), "{id:?}"),
            }
            subscribed.last = *version;
        }
    }

    /// Ends what a client has, and takes what it was told.
    pub(super) fn client_ends_all(&mut self, which: usize) {
        let guards: Vec<_> = self.clients[which].held.keys().copied().collect();
        guards.into_iter().for_each(|guard| self.ends(which, guard));
        let own = self.clients[which].own.clone();
        for ((at, chunk), _) in own.into_iter().filter(|(_, count)| *count > 0) {
            self.clients[which].own.insert((at, chunk), 0);
            self.note(which, at, Request::Drained { chunk });
        }
        let subscribed = self.clients[which].subscribed.iter();
        let behind = subscribed.filter(|(_, of)| of.taken < of.last);
        for id in behind.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.takes_events(which, id);
        }
        let places = self.clients[which].places.clone();
        for (name, chunk) in places {
            if self.clients[which].lost.contains(&home(chunk)) {
                self.search(which, name, Some(chunk));
            }
        }
    }

    /// A client opens a chunk.
    pub(super) fn opens(&mut self, which: usize, name: usize) {
        self.search(which, name, None);
    }

    /// A client asks for the content of a chunk.
    pub(super) fn shows(&mut self, which: usize, name: usize) {
        let chunk = self.clients[which].places[&name];
        self.ask(which, home(chunk), Request::Snapshot { chunk }, Wait::Other);
    }
}
