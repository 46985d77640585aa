//! Chunks with replicas, in one thread with a clock and a network of their own: two to four servers
//! and their clients. A seed decides what the clients do, how long messages take, and which servers
//! and clients are killed when. A server that was killed may be started again. The same
//! [`Server`](crate::protocol::Server) runs in production.
//!
//! What is checked, as long as one server that has the last version lives:
//! * No version that anybody has seen is lost, and none has two contents. Versions go up by one.
//! * Nobody reads a version before all living backups have it, and nobody reads an older one than
//!   the last, with a message or without, at a home that is lost, too.
//! * Nothing is committed under a guard that is valid. What was refused is never seen.
//! * Events come in order, each once; what is missed is counted.
//! * There is one chunk of a name, whoever opens it where.
//! * When the faults are over, every request is answered, and every chunk can be read, and has as
//!   many replicas as it should have, or all servers.
//!
//! # Files
//! `mod` (the whole, the network, who is killed) · `node` (what the service does with the actions
//! of a server) · `client` (what clients do and hear) · `seen` (what must hold)

mod client;
mod node;
mod seen;

use self::client::Client;
use self::node::Node;
use self::seen::Seen;
use super::simulation::Random;
use crate::protocol::server::ServerEvent;
use crate::protocol::{
    Answer, Between, ChunkId, GuardId, Process, Replicas, Request, ServerId, SubscriptionId,
    Ticket, Version,
};
use samite_fabric::PeerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a version contains: its number is never used again. Nothing was written: 0.
type Value = u64;

const NAMES: usize = 3;

/// Milliseconds.
const LEASE: u64 = 200;

/// The first client.
const CLIENT: usize = 100;

/// A message.
#[derive(Clone, Debug)]
enum Said {
    Request(Option<Ticket>, Request),
    Answer(Ticket, Answer),
    Given {
        ticket: Ticket,
        chunk: ChunkId,
        guard: GuardId,
        version: Version,
    },
    Shown(Ticket),
    Told {
        id: SubscriptionId,
        events: Vec<(Version, u64)>,
        missed: u64,
    },
    Hello(ServerId),
    /// With the content, and the guard under which it was written.
    Between(Between, Option<(Value, Option<GuardId>)>),
    /// The sender is lost: nothing more comes.
    Lost,
}

struct World {
    random: Random,
    now: u64,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    /// How the chunks of each name are to be replicated.
    names: Vec<Replicas>,
    /// Whether servers may have no memory for a version.
    is_short: bool,
    /// Messages under way, from one process to another one: they arrive in order.
    lines: BTreeMap<(Process, Process), VecDeque<(u64, Said)>>,
    /// When servers have died.
    died: BTreeMap<Process, u64>,
    /// The chunks that are written at their homes, as clients have heard.
    at_home: BTreeSet<ChunkId>,
    seen: Seen,
    value: Value,
    trace: Vec<String>,
}

fn process(number: usize, incarnation: u32) -> Process {
    Process {
        peer: PeerId(number as u32),
        incarnation,
    }
}

/// Returns the life of its home in which a chunk was created.
fn home(chunk: ChunkId) -> Process {
    process(usize::from(chunk.home().0), (chunk.0 >> 32) as u32 & 0x3ff)
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let servers = 2 + random.below(3) as usize;
        let count = 2 + random.below(3) as usize;
        let names = (0..NAMES).map(|_| {
            let mut order: Vec<_> = (0..servers).map(|at| ServerId(at as u16)).collect();
            for at in 1..order.len() {
                order.swap(at, random.below(1 + at as u64) as usize);
            }
            let count = 2 + random.below(servers as u64 - 1) as u16;
            Replicas { count, order }
        });
        let names = names.collect();
        let clients = (0..count).map(|number| {
            let near = random.below(1 + servers as u64) as usize;
            let near = (near < servers).then_some(near);
            Client::new(process(CLIENT + number, 1), near)
        });
        let clients = clients.collect();
        let mut world = World {
            now: 0,
            nodes: (0..servers).map(|at| Node::new(at, 1)).collect(),
            clients,
            names,
            is_short: random.is(30),
            random,
            lines: BTreeMap::new(),
            died: BTreeMap::new(),
            at_home: BTreeSet::new(),
            seen: Seen::default(),
            value: 0,
            trace: Vec::new(),
        };
        for at in 0..servers {
            world.joins(at);
        }
        world
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if self.trace.len() == 600 {
            self.trace.remove(0);
        }
        let line = format!("{:>6} {}", self.now, what());
        self.trace.push(line);
    }

    fn new_value(&mut self) -> Value {
        self.value += 1;
        self.value
    }

    /// Returns true if a process lives.
    fn lives(&self, process: Process) -> bool {
        match (process.peer.0 as usize).checked_sub(CLIENT) {
            Some(which) => self.clients[which].me == process,
            None => {
                let node = &self.nodes[process.peer.0 as usize];
                node.me == process && node.server.is_some()
            }
        }
    }

    /// Returns true if a process lives, or its end has not been heard of by another one.
    fn is_heard_of(&self, process: Process, by: Process) -> bool {
        let line = self.lines.get(&(process, by));
        self.lives(process) || line.is_some_and(|line| !line.is_empty())
    }

    fn send(&mut self, from: Process, to: Process, said: Said) {
        if !self.lives(to) {
            return;
        }
        let delay = self.random.below(20);
        let line = self.lines.entry((from, to)).or_default();
        let after = line.back().map_or(0, |(at, _)| *at);
        line.push_back((after.max(self.now + delay), said));
    }

    /// A server begins: it knows the others, and introduces itself.
    fn joins(&mut self, at: usize) {
        let me = self.nodes[at].me;
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            let (server, process) = (ServerId(other as u16), self.nodes[other].me);
            self.event(at, ServerEvent::Known { server, process });
            if !self.lives(process) {
                self.event(at, ServerEvent::Lost(process));
            }
            self.send(me, process, Said::Hello(ServerId(at as u16)));
        }
    }

    /// The first message of a line arrives.
    fn arrives(&mut self, from: Process, to: Process) {
        let line = self.lines.get_mut(&(from, to));
        let Some((_, said)) = line.and_then(VecDeque::pop_front) else {
            return;
        };
        match (to.peer.0 as usize).checked_sub(CLIENT) {
            Some(which) => self.client_hears(which, from, said),
            None => self.server_hears(to.peer.0 as usize, from, said),
        }
    }

    /// A process dies. Some of what it has sent arrives, and then the news of its end.
    fn dies(&mut self, dead: Process) {
        self.say(|| format!("{dead:?} dies"));
        self.lines.retain(|(_, to), _| *to != dead);
        let servers = self.nodes.iter().filter(|node| node.server.is_some());
        let servers = servers.map(|node| node.me);
        let clients = self.clients.iter().map(|client| client.me);
        let all: Vec<_> = servers.chain(clients).filter(|one| *one != dead).collect();
        for to in all {
            let line = self.lines.entry((dead, to)).or_default();
            let sent = self.random.below(1 + line.len() as u64) as usize;
            line.truncate(sent);
            let after = line.back().map_or(0, |(at, _)| *at);
            let at = after.max(self.now + self.random.below(40));
            line.push_back((at, Said::Lost));
        }
    }

    /// Kills a server, if another one has what nobody may lose.
    fn kill(&mut self, at: usize) {
        let me = self.nodes[at].me;
        if self.nodes[at].server.is_none() || !self.may_lose(at) {
            return;
        }
        self.nodes[at].server = None;
        self.died.insert(me, self.now);
        self.dies(me);
    }

    fn starts_again(&mut self, at: usize) {
        if self.nodes[at].server.is_some() {
            return;
        }
        let incarnation = self.nodes[at].me.incarnation + 1;
        self.say(|| format!("server {at} starts again"));
        self.nodes[at] = Node::new(at, incarnation);
        self.joins(at);
    }

    fn client_dies(&mut self, which: usize) {
        let me = self.clients[which].me;
        let next = Process {
            incarnation: me.incarnation + 1,
            ..me
        };
        self.dies(me);
        self.clients[which] = Client::new(next, self.clients[which].near);
        for at in 0..self.nodes.len() {
            self.all_drained(at);
        }
    }

    fn step(&mut self, has_faults: bool) {
        self.now += self.random.below(5);
        let at = self.random.below(self.nodes.len() as u64) as usize;
        let which = self.random.below(self.clients.len() as u64) as usize;
        if has_faults && self.random.is(2) {
            self.kill(at);
        } else if has_faults && self.random.is(2) {
            self.starts_again(at);
        } else if has_faults && self.random.is(1) {
            self.client_dies(which);
        }
        if self.nodes[at].server.is_some() {
            self.server_acts(at, has_faults);
        }
        let due: Vec<_> = self
            .lines
            .iter()
            .filter(|(_, line)| line.front().is_some_and(|(due, _)| *due <= self.now))
            .map(|(which, _)| *which)
            .collect();
        for _ in 0..3 {
            if let Some((from, to)) = self.random.of(&due) {
                let is_due = |line: &VecDeque<(u64, Said)>| {
                    line.front().is_some_and(|(due, _)| *due <= self.now)
                };
                if self.lines.get(&(from, to)).is_some_and(is_due) {
                    self.arrives(from, to);
                }
            }
        }
        if has_faults {
            self.client_acts(which);
        }
    }

    /// No more faults: what was asked for is answered, and what clients have ends.
    fn come_to_rest(&mut self) {
        for _ in 0..20_000 {
            self.step(false);
            self.lines.retain(|_, line| !line.is_empty());
            for which in 0..self.clients.len() {
                self.client_ends_all(which);
            }
            if !self.lines.is_empty() {
                continue;
            }
            if self.clients.iter().all(Client::is_idle) {
                return;
            }
            // Only leases and deadlines are left to wait for.
            self.now += LEASE / 4;
        }
        let asked = self.clients.iter().flat_map(|client| client.asked.values());
        unreachable!("it does not come to rest: {:?}", asked.collect::<Vec<_>>());
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step(true);
        }
        self.come_to_rest();
        self.all_is_there();
        // Everybody finds every chunk, and what it contains.
        for which in 0..self.clients.len() {
            for name in 0..NAMES {
                self.opens(which, name);
            }
        }
        self.come_to_rest();
        for which in 0..self.clients.len() {
            for name in 0..NAMES {
                self.shows(which, name);
            }
        }
        self.come_to_rest();
        for which in 0..self.clients.len() {
            let me = self.clients[which].me;
            self.dies(me);
        }
        self.come_to_rest();
        // The leases of servers that are lost end.
        self.now += LEASE;
        for at in 0..self.nodes.len() {
            if self.nodes[at].server.is_some() {
                self.server_acts(at, false);
            }
        }
        for node in &self.nodes {
            if let Some(server) = &node.server {
                assert_eq!(server.held(), 0, "something of the clients is left");
                assert_eq!(node.held.len(), 0, "a version is held");
            }
        }
    }
}

/// Runs one seed, and prints what happened if it fails. Returns what happened at last.
fn run(seed: u64, steps: u64) -> Vec<String> {
    let mut world = World::new(seed);
    let ran = std::panic::AssertUnwindSafe(|| world.run(steps));
    if let Err(panic) = std::panic::catch_unwind(ran) {
        eprintln!("{}", world.trace.join("\n"));
        eprintln!("seed {seed} fails: SAMITE_SEED={seed} runs it alone");
        std::panic::resume_unwind(panic);
    }
    world.trace
}

fn seeds(count: u64) {
    if let Some(seed) = std::env::var("SAMITE_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        run(seed, 400);
        return;
    }
    for seed in 0..count {
        run(seed, 400);
    }
}

#[test]
fn ten_thousand_seeds() {
    seeds(10_000);
}

/// Part of `cargo xtask nightly`, as that of the other simulation.
#[test]
#[ignore = "takes long: for the night"]
fn a_million_seeds() {
    seeds(1_000_000);
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..20 {
        assert_eq!(run(seed, 400), run(seed, 400));
    }
}
