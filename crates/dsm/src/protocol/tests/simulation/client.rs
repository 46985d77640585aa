//! The clients: what they ask, hear and do.

use super::{CHUNKS, Simulation, Value, home};
use crate::protocol::{
    Answer, ChunkId, Fault, GuardId, Mode, Op, Policy, Process, PutFrom, Request, ServerEvent,
    SubscriptionId, Ticket, Token, Version,
};
use samite_fabric::SegmentKey;
use std::collections::{BTreeMap, VecDeque};

/// A message to a client.
#[derive(Clone, Debug)]
pub(super) enum ToClient {
    Answer(Ticket, Answer),
    Given {
        /// The server.
        at: usize,
        ticket: Ticket,
        chunk: ChunkId,
        guard: GuardId,
        version: Version,
        value: Value,
    },
    Shown(Ticket),
    Drafted(Ticket, ChunkId, GuardId),
    Told {
        id: SubscriptionId,
        events: Vec<(Version, u64)>,
        missed: u64,
        value: Option<Value>,
    },
}

/// What a client waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Guard(ChunkId, Mode),
    Take(ChunkId),
    /// What is written.
    Write(ChunkId, Value),
    Change,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The server that gave it.
    pub(super) at: usize,
    pub(super) chunk: ChunkId,
    pub(super) mode: Mode,
}

#[derive(Debug)]
pub(super) struct Subscribed {
    pub(super) chunk: ChunkId,
    pub(super) policy: Policy,
    /// The last event.
    pub(super) last: Version,
    pub(super) taken: Version,
    /// Whether it looks itself what an owner commits.
    pub(super) watches: bool,
    /// Whether nobody waits for it any more.
    pub(super) is_fenced: bool,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) me: Process,
    /// Its own server.
    pub(super) near: Option<usize>,
    pub(super) asked: BTreeMap<Ticket, Asked>,
    pub(super) held: BTreeMap<GuardId, Held>,
    pub(super) drafts: BTreeMap<GuardId, ChunkId>,
    pub(super) subscribed: BTreeMap<SubscriptionId, Subscribed>,
    /// The versions that it may read without a message, and how often it does; and how many of
    /// these guards it has lost.
    pub(super) known: BTreeMap<ChunkId, Version>,
    pub(super) own: BTreeMap<ChunkId, u64>,
    pub(super) stale: BTreeMap<ChunkId, u64>,
    pub(super) is_stopped: bool,
    pub(super) next: u64,
    pub(super) in_box: VecDeque<(u64, ToClient)>,
}

impl Client {
    pub(super) fn new(me: Process, near: Option<usize>) -> Client {
        Client {
            me,
            near,
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            drafts: BTreeMap::new(),
            subscribed: BTreeMap::new(),
            known: BTreeMap::new(),
            own: BTreeMap::new(),
            stale: BTreeMap::new(),
            is_stopped: false,
            next: 1,
            in_box: VecDeque::new(),
        }
    }

    /// Returns the server that it asks for guards.
    pub(super) fn asks(&self, chunk: ChunkId) -> usize {
        self.near.unwrap_or(home(chunk))
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Simulation {
    /// Lets one client do something.
    pub(super) fn client_acts(&mut self, which: usize) {
        let chunk = self.chunks[self.random.below(CHUNKS as u64) as usize];
        let what = self.random.below(100);
        let timeout = match self.random.is(20) {
            true => self.random.below(50),
            false => 5_000,
        };
        let client = &mut self.clients[which];
        let (me, ticket) = (client.me, Ticket(client.number()));
        let can_ask = client.asked.len() < 3 && client.held.len() < 3;
        let guards: Vec<_> = client.held.keys().copied().collect();
        let drafts: Vec<_> = client.drafts.keys().copied().collect();
        let tickets: Vec<_> = client.asked.keys().copied().collect();
        let ids: Vec<_> = client.subscribed.keys().copied().collect();
        let (asked, request) = match what {
            0..20 if can_ask => {
                let mode = match self.random.is(50) {
                    true => Mode::Read,
                    false => Mode::Write,
                };
                let request = Request::Acquire {
                    chunk,
                    mode,
                    in_place: mode == Mode::Write,
                    timeout,
                };
                (Asked::Guard(chunk, mode), request)
            }
            20..26 if can_ask => {
                self.takes.insert((me, ticket));
                (Asked::Take(chunk), Request::Take { chunk, timeout })
            }
            26..34 if can_ask => {
                self.value += 1;
                let value = self.value;
                self.arrived.insert((me, ticket), value);
                let request = Request::Put {
                    chunk,
                    tag: value,
                    from: PutFrom::Inline(Vec::new()),
                    timeout,
                };
                (Asked::Write(chunk, value), request)
            }
            34..38 if can_ask => {
                let request = Request::Change {
                    chunk,
                    offset: 0,
                    op: Op::Add(1),
                    tag: 0,
                    timeout,
                };
                (Asked::Change, request)
            }
            38..42 if can_ask => (Asked::Other, Request::Draft { chunk }),
            42..46 if can_ask => (Asked::Other, Request::Snapshot { chunk }),
            46..51 if can_ask && ids.len() < 3 => {
                let id = SubscriptionId(client.number());
                let present = Version(self.commits[&chunk].len() as u64);
                let after = Version(present.0.saturating_sub(self.random.below(3)));
                let policy = match self.random.below(3) {
                    0 => Policy::Every,
                    1 => Policy::Latest,
                    _ => Policy::Lossless {
                        high_water: self.random.below(4) as u32,
                    },
                };
                let is_near = client.asks(chunk) == home(chunk);
                let with_content = self.random.is(30);
                let is_lossless = matches!(policy, Policy::Lossless { .. });
                let watches = is_near && !with_content && !is_lossless;
                let subscribed = Subscribed {
                    chunk,
                    policy,
                    watches,
                    last: after,
                    taken: after,
                    is_fenced: false,
                };
                self.clients[which].subscribed.insert(id, subscribed);
                let request = Request::Subscribe {
                    chunk,
                    id,
                    inbox: 0,
                    after,
                    policy,
                    with_content,
                    prefetch: None,
                    watches,
                };
                (Asked::Other, request)
            }
            51..54 => {
                // Gives up what it waits for.
                if let Some(ticket) = self.random.of(&tickets) {
                    self.clients[which].asked.remove(&ticket);
                    let at = self.asked_at[&(me, ticket)];
                    self.ask(me, at, None, Request::Forget { ticket });
                }
                return;
            }
            54..64 => return self.reads_itself(which, chunk),
            64..72 => {
                if let Some(id) = self.random.of(&ids) {
                    self.takes_events(which, id);
                }
                return;
            }
            72..76 => {
                if let Some(draft) = self.random.of(&drafts) {
                    let Some(chunk) = self.clients[which].drafts.remove(&draft) else {
                        return;
                    };
                    self.value += 1;
                    let value = self.value;
                    self.arrived.insert((me, ticket), value);
                    let put = Request::Put {
                        chunk,
                        tag: value,
                        from: PutFrom::Draft(draft),
                        timeout,
                    };
                    (Asked::Write(chunk, value), put)
                } else {
                    return;
                }
            }
            76..94 => {
                let Some(guard) = self.random.of(&guards) else {
                    return;
                };
                return self.ends(which, guard);
            }
            _ if can_ask && client.asks(chunk) == home(chunk) => {
                let page = SegmentKey::from_bytes(&[0; 24]);
                let request = Request::Own {
                    chunk,
                    segment: page,
                    offset: 0,
                    timeout,
                };
                (Asked::Other, request)
            }
            _ => return,
        };
        self.clients[which].asked.insert(ticket, asked);
        let at = match &request {
            Request::Acquire {
                mode: Mode::Write, ..
            } if self.at_home.contains(&chunk) => home(chunk),
            Request::Acquire { chunk, .. } => self.clients[which].asks(*chunk),
            Request::Put { chunk, .. } => home(*chunk),
            _ => home(chunk),
        };
        self.ask(me, at, Some(ticket), request);
    }

    /// Ends a guard: by a commit, or without one.
    pub(super) fn ends(&mut self, which: usize, guard: GuardId) {
        let client = &mut self.clients[which];
        let (me, ticket) = (client.me, Ticket(client.number()));
        let Some(held) = client.held.remove(&guard) else {
            return;
        };
        let Held { at, chunk, .. } = held;
        if held.mode == Mode::Read || self.random.is(30) {
            return self.ask(me, at, None, Request::Release { chunk, guard });
        }
        self.value += 1;
        let value = self.value;
        // In place, or with the commit.
        let data = self.random.is(50).then(Vec::new);
        match &data {
            Some(_) => _ = self.arrived.insert((me, ticket), value),
            None => _ = self.written.insert(guard, value),
        }
        self.clients[which]
            .asked
            .insert(ticket, Asked::Write(chunk, value));
        // Under a lock that nobody has, nothing is committed; the guard is released then.
        let knows_lock = home(chunk) == at && self.random.is(5);
        let under = knows_lock.then_some(Token {
            guard: GuardId(u64::MAX),
            lock: chunk,
        });
        let commit = Request::Commit {
            chunk,
            guard,
            tag: value,
            data,
            under,
        };
        self.ask(me, at, Some(ticket), commit);
        if under.is_some() {
            self.ask(me, at, None, Request::Release { chunk, guard });
        }
    }

    /// Takes a read guard without a message, or drops such a guard.
    pub(super) fn reads_itself(&mut self, which: usize, chunk: ChunkId) {
        let at = self.clients[which].asks(chunk);
        let open = self.open.get(&(at, chunk)).copied();
        let present = self.present(chunk).0;
        // Its server has not been heard of for longer than its lease.
        let is_void = self.voided.contains(&(home(chunk), at));
        let is_readable = at == home(chunk) && self.is_readable(chunk);
        let client = &mut self.clients[which];
        let (me, is_fenced) = (client.me, self.fenced_own.contains(&(client.me, chunk)));
        let own = client.own.entry(chunk).or_default();
        if *own > 0 && self.random.is(60) {
            *own -= 1;
            let is_last = *own == 0;
            let stale = client.stale.entry(chunk).or_default();
            *stale = stale.saturating_sub(1);
            if is_last && open.is_none() && !is_readable {
                self.ask(me, at, None, Request::Drained { chunk });
            }
        } else if let Some(version) = open.or(is_readable.then_some(present))
            && !is_fenced
            && !is_void
        {
            // A version that it does not know is published.
            assert_eq!(version, present, "an old version is open");
            *own += 1;
            client.known.insert(chunk, version);
        }
    }

    pub(super) fn takes_events(&mut self, which: usize, id: SubscriptionId) {
        let is_over = self.random.is(10);
        self.watches(which, id);
        let client = &mut self.clients[which];
        let me = client.me;
        let Some(subscribed) = client.subscribed.get_mut(&id) else {
            return;
        };
        let (chunk, version) = (subscribed.chunk, subscribed.last);
        subscribed.taken = version;
        let note = match is_over {
            true => {
                client.subscribed.remove(&id);
                Request::Unsubscribe { chunk, id }
            }
            false => Request::Took { chunk, id, version },
        };
        self.ask(me, home(chunk), None, note);
    }

    pub(super) fn ask(
        &mut self,
        from: Process,
        at: usize,
        ticket: Option<Ticket>,
        request: Request,
    ) {
        let delay = self.random.below(20);
        if let Some(ticket) = ticket {
            self.asked_at.insert((from, ticket), at);
        }
        let line = self.lines.entry((from, at)).or_default();
        let after = line.back().map_or(0, |(at, ..)| *at);
        line.push_back((after.max(self.now + delay), ticket, request));
    }

    /// The first request of a client arrives at the server.
    pub(super) fn arrives(&mut self, from: Process, at: usize) {
        let Some((_, ticket, request)) = self
            .lines
            .get_mut(&(from, at))
            .and_then(VecDeque::pop_front)
        else {
            return;
        };
        match request {
            Request::Drained { chunk } => {
                let closed = self.drained(at, chunk);
                closed.into_iter().for_each(|event| self.event(at, event));
            }
            Request::Disowned { chunk } => self.recall_again(chunk),
            request => {
                self.before(from, &request);
                if let Request::Forget { ticket } = request {
                    self.arrived.remove(&(from, ticket));
                }
                self.event(
                    at,
                    ServerEvent::Request {
                        from,
                        ticket,
                        request,
                    },
                );
            }
        }
    }

    /// The first message to a client arrives.
    pub(super) fn hears(&mut self, which: usize) {
        let Some((_, message)) = self.clients[which].in_box.pop_front() else {
            return;
        };
        let me = self.clients[which].me;
        self.say(|| format!("{me} <- {message:?}"));
        match message {
            ToClient::Given {
                at,
                ticket,
                chunk,
                guard,
                version,
                value,
            } => self.gets(which, at, ticket, (chunk, guard), (version, value)),
            ToClient::Shown(ticket) => _ = self.clients[which].asked.remove(&ticket),
            ToClient::Drafted(ticket, chunk, draft) => {
                let client = &mut self.clients[which];
                match client.asked.remove(&ticket) {
                    Some(_) => _ = client.drafts.insert(draft, chunk),
                    // It has given up, and gives the draft back, too.
                    None => {
                        let guard = draft;
                        self.ask(me, home(chunk), None, Request::Release { chunk, guard });
                    }
                }
            }
            ToClient::Answer(ticket, answer) => {
                let asked = self.clients[which].asked.remove(&ticket);
                match (answer, asked) {
                    (Answer::Failed(Fault::AtHome), Some(Asked::Guard(chunk, mode))) => {
                        self.at_home.insert(chunk);
                        self.clients[which]
                            .asked
                            .insert(ticket, Asked::Guard(chunk, mode));
                        let again = Request::Acquire {
                            chunk,
                            mode,
                            in_place: true,
                            timeout: 5_000,
                        };
                        self.ask(me, home(chunk), Some(ticket), again);
                    }
                    (Answer::Failed(Fault::AtHome), None) => {}
                    (Answer::Committed { version, .. }, Some(Asked::Write(chunk, value))) => {
                        let all = &self.commits[&chunk];
                        let at = all.get(version.0 as usize - 1);
                        assert_eq!(at, Some(&(value, value)), "an acknowledged commit is lost");
                    }
                    (Answer::Failed(Fault::Fenced), Some(Asked::Write(chunk, value))) => {
                        let all = &self.commits[&chunk];
                        assert!(
                            all.iter().all(|(of, _)| *of != value),
                            "fenced, and visible"
                        );
                    }
                    (Answer::Failed(Fault::Late { .. }), Some(Asked::Write(chunk, value))) => {
                        let all = &self.commits[&chunk];
                        assert!(all.iter().all(|(of, _)| *of != value), "late, and visible");
                    }
                    (Answer::Failed(fault), _) => assert!(
                        matches!(fault, Fault::Late { .. } | Fault::Fenced),
                        "{fault:?}"
                    ),
                    _ => {}
                }
            }
            ToClient::Told {
                id,
                mut events,
                missed,
                value,
            } => {
                let Some(subscribed) = self.clients[which].subscribed.get_mut(&id) else {
                    return;
                };
                let is_latest = subscribed.policy == Policy::Latest;
                assert!(!is_latest || events.len() == 1);
                // It has seen these already.
                let is_old = |event: &(Version, u64)| event.0 <= subscribed.last;
                let old = events.iter().rposition(is_old);
                let old = old.filter(|_| subscribed.watches);
                let (chunk, seen) = (subscribed.chunk, old.map(|old| events[old].0));
                let events = events.split_off(old.map_or(0, |old| old + 1));
                for (version, _) in &events {
                    match is_latest {
                        true => assert!(*version > subscribed.last),
                        false => assert_eq!(*version, subscribed.last.next(), "{id:?}"),
                    }
                    subscribed.last = *version;
                }
                if let (Policy::Lossless { high_water }, false) =
                    (subscribed.policy, subscribed.is_fenced)
                {
                    let behind = subscribed.last.0 - subscribed.taken.0;
                    assert!(behind <= u64::from(high_water.max(1)), "above the mark");
                }
                assert_eq!(missed, 0, "the history is long enough");
                if let (Some(value), Some((version, _))) = (value, events.last()) {
                    let all = &self.commits[&chunk];
                    assert_eq!(all[version.0 as usize - 1].0, value);
                }
                if let Some(version) = seen {
                    self.ask(me, home(chunk), None, Request::Took { chunk, id, version });
                }
            }
        }
    }

    /// A client gets a guard.
    pub(super) fn gets(
        &mut self,
        which: usize,
        at: usize,
        ticket: Ticket,
        (chunk, guard): (ChunkId, GuardId),
        (version, value): (Version, Value),
    ) {
        let client = &mut self.clients[which];
        let asked = client.asked.remove(&ticket);
        let mode = match asked {
            Some(Asked::Guard(_, mode)) => mode,
            Some(Asked::Take(_)) => Mode::Read,
            // The server hears that it has given up, and ends the guard.
            _ => return,
        };
        if self.fenced.contains(&guard) {
            return;
        }
        client.held.insert(guard, Held { at, chunk, mode });
        if client.asks(chunk) == at {
            client.known.insert(chunk, version);
        }
        let all = &self.commits[&chunk];
        assert_eq!(Version(all.len() as u64), version, "written under a guard");
        assert_eq!(all.last().map_or(0, |(last, _)| *last), value);
        if mode == Mode::Write {
            let all = self.clients.iter().flat_map(|client| &client.held);
            let others = all.filter(|(of, held)| {
                held.chunk == chunk && **of != guard && !self.fenced.contains(of)
            });
            assert_eq!(others.count(), 0, "not alone");
        }
    }
}
