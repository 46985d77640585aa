//! What each step does, and the rules that hold after it.

use super::super::world::process;
use super::{Ask, Asked, CHUNK, CLIENTS, Client, HOME, Held, NEVER, Note, OTHER, Own, Step, World};
use crate::protocol::server::{Server, ServerEvent};
use crate::protocol::{
    Between, Fault, GuardId, Mode, Policy, PutFrom, Request, SubscriptionId, Ticket, Version,
};
use stateright::semantics::register::{RegisterOp, RegisterRet};
use std::collections::VecDeque;

impl World {
    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Acquire(which, mode) => {
                match mode {
                    Mode::Read => self.left.reads -= 1,
                    Mode::Write => self.left.writes -= 1,
                }
                let client = &self.clients[which];
                let at = match mode == Mode::Write && client.is_at_home {
                    true => HOME,
                    false => client.near,
                };
                if mode == Mode::Read {
                    self.invokes(which, RegisterOp::Read);
                }
                self.ask(which, at, Ask::Acquire(mode), true);
            }
            Step::Put(which) => {
                self.left.puts -= 1;
                let value = self.writes();
                self.invokes(which, RegisterOp::Write(value));
                self.ask(which, HOME, Ask::Put(value), true);
            }
            Step::Own(which) => {
                self.left.own -= 1;
                let at = self.clients[which].near;
                let version = self.open[at].unwrap_or_default();
                let value = match at {
                    HOME => self.present().1,
                    _ => self.copy.unwrap_or(0),
                };
                self.clients[which].own = Some(Own {
                    at,
                    value,
                    is_stale: false,
                });
                self.invokes(which, RegisterOp::Read);
                self.returns(which, RegisterRet::ReadOk(value));
                self.sees(which, version);
            }
            Step::EndOwn(which) => {
                if let Some(own) = self.clients[which].own.take()
                    && self.open[own.at].is_none()
                {
                    self.ask(which, own.at, Ask::Drained, false);
                }
            }
            Step::Commit(which, guard) => {
                let Some(held) = self.clients[which].held.remove(&guard) else {
                    return;
                };
                let value = self.writes();
                self.invokes(which, RegisterOp::Write(value));
                self.ask(which, held.at, Ask::Commit(guard, value), true);
            }
            Step::Release(which, guard) => {
                if let Some(held) = self.clients[which].held.remove(&guard) {
                    self.ask(which, held.at, Ask::Release(guard), false);
                }
            }
            Step::Subscribe(which) => {
                self.left.subscriptions -= 1;
                self.clients[which].told = Some(Version(0));
                self.ask(which, HOME, Ask::Subscribe, true);
            }
            Step::Die(which) => {
                self.left.deaths -= 1;
                self.clients[which].is_dead = true;
                self.notes[which].clear();
            }
            Step::Gone(which, at) => {
                let client = &mut self.clients[which];
                client.known_dead_at.insert(at);
                client.own.take_if(|own| own.at == at);
                self.event(at, ServerEvent::Lost(process(CLIENTS + which)));
                self.arrived
                    .retain(|(of, _), _| *of != process(CLIENTS + which));
                self.drains(at);
            }
            Step::Arrive(which, at) => self.arrives(which, at),
            Step::Hear(which) => self.hears(which),
            Step::Between(from) => self.server_hears(from),
            Step::Stop => {
                self.left.stops -= 1;
                self.is_stopped = true;
            }
            Step::GoOn { is_void } => {
                self.is_stopped = false;
                if is_void {
                    let lines = self.asks.iter().filter(|((_, at), _)| *at == OTHER);
                    let late = lines.flat_map(|(_, line)| line);
                    self.fence_guards(late.filter_map(|(_, ask)| ask.committed()).collect());
                    self.is_voided = false;
                    self.event(OTHER, ServerEvent::Void(process(HOME)));
                    self.drains(OTHER);
                }
            }
            Step::Kill => {
                self.left.kills -= 1;
                self.servers[OTHER] = None;
                self.between[HOME].clear();
                for which in 0..self.clients.len() {
                    self.asks.remove(&(which, OTHER));
                    let client = &mut self.clients[which];
                    if client.near == OTHER {
                        (client.near, client.known) = (HOME, None);
                    }
                    // An answer that it had sent is not waited for.
                    if let Some(asked) = client.asked.filter(|asked| asked.at == OTHER) {
                        self.notes[which].retain(|note| note.ticket() != Some(asked.ticket));
                        self.ends_nothing(which);
                    }
                }
            }
            Step::Lost => {
                self.is_known_lost = true;
                self.event(HOME, ServerEvent::Lost(process(OTHER)));
                self.drains(HOME);
            }
            Step::FenceServer => {
                let asked = self.clients.iter().filter_map(|client| client.asked);
                let late = asked.filter(|asked| asked.at == OTHER);
                // One that has been committed before stays.
                self.fence_guards(late.filter_map(|asked| asked.ask.committed()).collect());
                self.is_voided = self.lives(OTHER);
                self.event(HOME, ServerEvent::FenceServer(process(OTHER)));
            }
            Step::Evict => {
                self.left.evictions -= 1;
                self.event(OTHER, ServerEvent::Evict(CHUNK));
            }
        }
        self.check();
    }

    /// The guards that the other server has given count for nothing any more, nor do these, whose
    /// commits are on their way to it.
    pub(super) fn fence_guards(&mut self, late: Vec<GuardId>) {
        self.fenced.extend(late);
        for (client, notes) in self.clients.iter_mut().zip(&self.notes) {
            let held = client.held.iter().filter(|(_, held)| held.at == OTHER);
            self.fenced.extend(held.map(|(guard, _)| *guard));
            for note in notes {
                if let Note::Given { at, guard, .. } = note
                    && *at == OTHER
                {
                    self.fenced.insert(*guard);
                }
            }
            if let Some(own) = client.own.as_mut().filter(|own| own.at == OTHER) {
                own.is_stale = true;
                client.known = None;
            }
        }
    }

    /// The first request of a client arrives at a server.
    pub(super) fn arrives(&mut self, which: usize, at: usize) {
        let line = self.asks.get_mut(&(which, at));
        let Some((ticket, ask)) = line.and_then(VecDeque::pop_front) else {
            return;
        };
        self.asks.retain(|_, line| !line.is_empty());
        let from = process(CLIENTS + which);
        let chunk = CHUNK;
        let mut brings = |value| {
            if let Some(ticket) = ticket {
                self.arrived.insert((from, ticket), value);
            }
        };
        let id = SubscriptionId(which as u64);
        let request = match ask {
            Ask::Drained => return self.drains(at),
            Ask::Acquire(mode) => Request::Acquire {
                chunk,
                mode,
                in_place: mode == Mode::Write,
                timeout: NEVER,
            },
            Ask::Put(value) => {
                brings(value);
                Request::Put {
                    chunk,
                    tag: value.into(),
                    from: PutFrom::Inline(Vec::new()),
                    timeout: NEVER,
                }
            }
            // One client writes in place, the other one sends what it has written.
            Ask::Commit(guard, value) => {
                let data = (which == 0).then(Vec::new);
                match data {
                    Some(_) => brings(value),
                    None => _ = self.written.insert(guard, value),
                }
                Request::Commit {
                    chunk,
                    guard,
                    tag: value.into(),
                    data,
                    under: None,
                }
            }
            Ask::Release(guard) => Request::Release { chunk, guard },
            Ask::Subscribe => Request::Subscribe {
                chunk,
                id,
                inbox: 0,
                after: Version(0),
                policy: Policy::Lossless { high_water: 1 },
                with_content: true,
                prefetch: None,
                watches: false,
            },
            Ask::Took(version) => Request::Took { chunk, id, version },
        };
        let event = ServerEvent::Request {
            from,
            ticket,
            request,
        };
        self.event(at, event);
    }

    /// The first message of a server arrives at the other one.
    pub(super) fn server_hears(&mut self, from: usize) {
        let Some((message, content)) = self.between[from].pop_front() else {
            return;
        };
        match (&message, content) {
            (Between::Grant { .. }, Some((value, _))) => self.copy = Some(value),
            (Between::Commit { .. }, Some((value, Some(guard)))) => {
                self.commit_of = Some((value, guard));
            }
            _ => {}
        }
        let (at, from) = (1 - from, process(from));
        self.event(at, ServerEvent::Between { from, message });
    }

    /// The first message to a client arrives.
    pub(super) fn hears(&mut self, which: usize) {
        let Some(note) = self.notes[which].pop_front() else {
            return;
        };
        let asked = self.clients[which].asked;
        let is_it = |ticket: &Ticket| asked.filter(|asked| asked.ticket == *ticket);
        match note {
            Note::Given {
                at,
                ticket,
                guard,
                version,
                value,
            } => {
                let Some(Asked {
                    ask: Ask::Acquire(mode),
                    ..
                }) = is_it(&ticket)
                else {
                    return self.breaks("a guard that nobody has asked for");
                };
                let client = &mut self.clients[which];
                client.asked = None;
                client.held.insert(guard, Held { at, mode, value });
                let is_fenced = self.fenced.contains(&guard);
                if client.near == at && !is_fenced {
                    client.known = Some(version);
                }
                if mode == Mode::Read {
                    self.returns(which, RegisterRet::ReadOk(value));
                }
                self.sees(which, version);
            }
            Note::Committed(ticket, version) => {
                let Some(Asked {
                    ask: Ask::Put(value) | Ask::Commit(_, value),
                    ..
                }) = is_it(&ticket)
                else {
                    return self.breaks("an answer that nobody waits for");
                };
                self.clients[which].asked = None;
                let at = (version.0 as usize).checked_sub(1);
                if at.and_then(|at| self.commits.get(at)) != Some(&value) {
                    self.breaks("a commit that was acknowledged is lost");
                }
                self.returns(which, RegisterRet::WriteOk);
                self.sees(which, version);
            }
            Note::Refused(ticket, fault) => {
                let Some(asked) = is_it(&ticket) else {
                    return self.breaks("an answer that nobody waits for");
                };
                match (asked.ask, fault) {
                    (Ask::Acquire(mode), Fault::AtHome) => {
                        self.clients[which].is_at_home = true;
                        self.ask(which, HOME, Ask::Acquire(mode), true);
                    }
                    (Ask::Commit(guard, value), Fault::Fenced) => {
                        if self.commits.contains(&value) {
                            self.breaks("a commit that was refused is visible");
                        }
                        if !self.fenced.contains(&guard) {
                            self.breaks("a commit was refused, and its guard was not");
                        }
                        self.refused.insert(value);
                        self.ends_nothing(which);
                    }
                    (ask, fault) => self.breaks(format!("{ask:?} ends with {fault:?}")),
                }
            }
            Note::Subscribed(_) => self.clients[which].asked = None,
            Note::Told(versions, value) => {
                for version in versions {
                    let last = self.clients[which].told.map(Version::next);
                    if last != Some(version) {
                        self.breaks("events are not in order, or not told once");
                    }
                    self.clients[which].told = Some(version);
                    // What it reads from now on is not older.
                    let seen = self.clients[which].seen.max(version);
                    self.clients[which].seen = seen;
                    let of = self.commits[version.0 as usize - 1];
                    if value.is_some_and(|value| value != of) {
                        self.breaks("an event brings another content");
                    }
                    self.ask(which, HOME, Ask::Took(version), false);
                }
            }
        }
    }

    pub(super) fn check(&mut self) {
        let mut writers = 0;
        let mut readers = 0;
        let (_, value) = self.present();
        let mut is_old = false;
        for client in self.clients.iter().filter(|client| !client.is_dead) {
            let held = client.held.iter();
            for (_, held) in held.filter(|(guard, _)| !self.fenced.contains(guard)) {
                match held.mode {
                    Mode::Read => readers += 1,
                    Mode::Write => writers += 1,
                }
                is_old |= held.mode == Mode::Read && held.value != value;
            }
            if let Some(own) = client.own.filter(|own| !own.is_stale) {
                readers += 1;
                is_old |= own.value != value;
            }
        }
        if writers > 1 || (writers == 1 && readers > 0) {
            self.breaks("a writer is not alone");
        }
        if is_old {
            self.breaks("the content changed under a read guard");
        }
        if self.is_quiet() {
            let has_guard = |client: &Client| !client.held.is_empty() || client.own.is_some();
            let live = || self.clients.iter().filter(|client| !client.is_dead);
            if !live().any(has_guard) && live().any(|client| client.asked.is_some()) {
                self.breaks("a client waits for ever");
            }
        }
    }

    /// Returns true if nothing is under way that would go on by itself.
    pub(super) fn is_quiet(&self) -> bool {
        self.deliveries().is_empty() && !self.is_stopped
    }

    /// Returns the steps that happen without a client's will.
    pub(super) fn deliveries(&self) -> Vec<Step> {
        let mut all = Vec::new();
        for ((which, at), _) in self.asks.iter().filter(|((_, at), _)| self.runs(*at)) {
            all.push(Step::Arrive(*which, *at));
        }
        for (which, client) in self.clients.iter().enumerate() {
            if !self.notes[which].is_empty() {
                all.push(Step::Hear(which));
            }
            for at in (0..self.servers.len()).filter(|at| client.is_dead && self.runs(*at)) {
                let has_sent = self.asks.contains_key(&(which, at));
                if !has_sent && !client.known_dead_at.contains(&at) {
                    all.push(Step::Gone(which, at));
                }
            }
        }
        for from in [HOME, OTHER] {
            if !self.between[from].is_empty() && self.runs(1 - from) {
                all.push(Step::Between(from));
            }
        }
        if self.servers.len() > 1 {
            let is_lost = !self.lives(OTHER);
            if is_lost && !self.is_known_lost && self.between[OTHER].is_empty() {
                all.push(Step::Lost);
            }
            let home = self.servers[HOME].iter();
            let mut blocking = home.flat_map(Server::blocking_servers);
            let is_blocking = blocking.any(|server| server == process(OTHER));
            let is_silent = self.is_stopped || self.is_known_lost;
            if is_silent && is_blocking && !self.is_voided {
                all.push(Step::FenceServer);
            }
        }
        all
    }
}
