//! Clients that are killed, clients and servers that are stopped, and leases that end.

use super::client::{Client, ToClient};
use super::{LEASE, Simulation, home, process};
use crate::protocol::server::ServerEvent;
use crate::protocol::{ChunkId, Process};
use std::collections::VecDeque;

impl Simulation {
    /// A client is killed, and started again. What it had sent arrives first.
    pub(super) fn dies(&mut self, which: usize) {
        let me = self.clients[which].me;
        self.say(|| format!("{me} dies"));
        for at in 0..self.servers.len() {
            let is_stopped = self.stopped.contains_key(&at);
            let line = self.lines.get(&(me, at)).filter(|_| !is_stopped);
            let line = line.map_or(0, VecDeque::len);
            let sent = self.random.below(1 + line as u64);
            for _ in 0..sent {
                self.arrives(me, at);
            }
            self.lines.remove(&(me, at));
        }
        if self.stopped.is_empty() {
            self.arrived.retain(|(of, _), _| *of != me);
        }
        let next = Process {
            incarnation: me.incarnation + 1,
            ..me
        };
        self.clients[which] = Client::new(next, self.clients[which].near);
        self.fenced_own.retain(|(of, _)| *of != me);
        for at in 0..self.servers.len() {
            match self.stopped.contains_key(&at) {
                true => self.unheard.entry(at).or_default().push(me),
                false => self.loses(at, me),
            }
        }
        self.all_drained();
    }

    /// A server hears that a client is lost.
    pub(super) fn loses(&mut self, at: usize, client: Process) {
        self.end_ownerships(at, client);
        self.event(at, ServerEvent::Lost(client));
    }

    /// The leases of clients that are stopped and keep others waiting end.
    pub(super) fn fence(&mut self, at: usize) {
        for which in 0..self.clients.len() {
            let me = self.clients[which].me;
            if !self.clients[which].is_stopped {
                continue;
            }
            let blocks = self.servers[at]
                .blockers()
                .any(|(chunk, holder)| match holder {
                    Some(holder) => holder == me,
                    None => {
                        let client = &self.clients[which];
                        let has_own = client.own.get(&chunk).is_some_and(|own| *own > 0);
                        client.asks(chunk) == at && has_own
                    }
                });
            if !blocks {
                continue;
            }
            // It may be given another guard at once: that one ends, too.
            self.end_ownerships(at, me);
            // Guards whose commits have arrived are not ended; this one has only sent them.
            self.fence_guards(which, at, |_| true);
            for subscribed in self.clients[which].subscribed.values_mut() {
                subscribed.is_fenced |= home(subscribed.chunk) == at;
            }
            self.event(at, ServerEvent::Fence(me));
            for (of, chunk) in self.closing.clone() {
                if of == at && self.clients[which].asks(chunk) == at {
                    self.fence_own(which, chunk);
                    let closed = self.drained(at, chunk);
                    closed.into_iter().for_each(|event| self.event(at, event));
                }
            }
        }
    }

    /// The guards that a server has given a client count for nothing any more.
    pub(super) fn fence_guards(&mut self, which: usize, at: usize, of: impl Fn(ChunkId) -> bool) {
        let client = &self.clients[which];
        let held = client.held.iter();
        let held = held.filter(|(_, held)| held.at == at && of(held.chunk));
        self.fenced.extend(held.map(|(guard, _)| *guard));
        for (_, message) in &client.in_box {
            if let ToClient::Given {
                at: from,
                chunk,
                guard,
                ..
            } = message
                && *from == at
                && of(*chunk)
            {
                self.fenced.insert(*guard);
            }
        }
    }

    /// The read guards that a client has taken itself count for nothing any more.
    pub(super) fn fence_own(&mut self, which: usize, chunk: ChunkId) {
        let client = &mut self.clients[which];
        let own = client.own.get(&chunk).copied().unwrap_or(0);
        if own > 0 {
            self.fenced_own.insert((client.me, chunk));
            client.stale.insert(chunk, own);
            client.known.remove(&chunk);
        }
    }

    /// A home takes its chunks back from servers that are stopped for longer than their leases.
    pub(super) fn fence_servers(&mut self, at: usize) {
        let blocking = self.servers[at].blocking_servers();
        for server in blocking {
            let other = server.peer.0 as usize;
            let since = self.stopped.get(&other);
            if since.is_none_or(|since| self.now < since + LEASE) {
                continue;
            }
            for which in 0..self.clients.len() {
                self.fence_guards(which, other, |chunk| home(chunk) == at);
                for chunk in self.chunks.clone() {
                    if home(chunk) == at && self.clients[which].asks(chunk) == other {
                        self.fence_own(which, chunk);
                    }
                }
            }
            self.voided.insert((at, other));
            self.event(at, ServerEvent::FenceServer(server));
        }
    }

    /// A server is stopped, or goes on: then it first ends copies whose leases are over.
    pub(super) fn stops_or_goes_on(&mut self, at: usize) {
        match self.stopped.remove(&at) {
            None => _ = self.stopped.insert(at, self.now),
            Some(since) if self.now < since + LEASE => {}
            Some(_) => {
                for other in (0..self.servers.len()).filter(|other| *other != at) {
                    for which in 0..self.clients.len() {
                        self.fence_guards(which, at, |chunk| home(chunk) == other);
                        for chunk in self.chunks.clone() {
                            if home(chunk) == other && self.clients[which].asks(chunk) == at {
                                self.fence_own(which, chunk);
                            }
                        }
                    }
                    self.voided.remove(&(other, at));
                    self.event(at, ServerEvent::Void(process(other)));
                }
            }
        }
        if !self.stopped.contains_key(&at) {
            for dead in self.unheard.remove(&at).unwrap_or_default() {
                self.loses(at, dead);
                if self.unheard.values().flatten().all(|other| *other != dead) {
                    self.arrived.retain(|(of, _), _| *of != dead);
                }
            }
        }
        self.all_drained();
    }
}
