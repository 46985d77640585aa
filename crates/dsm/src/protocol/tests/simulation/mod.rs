//! One to three servers and their clients in one thread, with a clock and a network of their own. A
//! seed decides what the clients do, how long messages take, and who is stopped or killed when. The
//! same [`Server`] runs in production.
//!
//! What is checked:
//! * A version is what one writer has written, whole: contents are numbers that are never used
//!   twice. Nobody commits under a guard that is fenced or has ended.
//! * Nothing is committed while a client that lives and is not fenced has a read guard, given or
//!   taken without a message; at most one client has a write guard.
//! * What a reader gets is the last committed version at that moment.
//! * Events come in order, each once, with their tags and contents; what is missed is counted.
//! * A version is taken once.
//! * A copy has the content of its version. A server whose lease is over is not waited for, and
//!   nothing that it gives or commits after that is taken for valid.
//! * When the faults are over, every request is answered by its deadline; when all clients are
//!   gone, nothing of them is left.
//!
//! # Files
//! `mod` (the whole, and its steps) · `client` (what clients do and hear) · `service` (what a
//! service does with the actions of its server) · `owners` (clients that commit without asking) ·
//! `faults` (who is killed, stopped and fenced) · `random`

mod client;
mod faults;
mod owners;
mod random;
mod service;

use self::client::{Asked, Client};
use self::owners::Owning;
pub(super) use self::random::Random;
use super::world::process;
use crate::protocol::server::{Server, ServerEvent};
use crate::protocol::{
    Between, ChunkId, GuardId, Kind, Process, Protocol, Request, ServerId, Ticket, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a version contains: its number is never used again.
type Value = u64;

/// Chunks of each server, at most.
const CHUNKS: usize = 3;

/// Milliseconds that a stopped client may keep others waiting.
const LEASE: u64 = 200;

fn home(chunk: ChunkId) -> usize {
    usize::from(chunk.home().0)
}

/// Requests under way, from one client to one server: they arrive in order.
type Line = VecDeque<(u64, Option<Ticket>, Request)>;

/// A message between servers, with the content and the guard under which it was written.
#[derive(Debug)]
struct Said {
    at: u64,
    message: Between,
    content: Option<(Value, Option<GuardId>)>,
}

struct Simulation {
    random: Random,
    now: u64,
    servers: Vec<Server>,
    chunks: Vec<ChunkId>,
    clients: Vec<Client>,
    lines: BTreeMap<(Process, usize), Line>,
    between: BTreeMap<(usize, usize), VecDeque<Said>>,
    /// When a server was stopped; and the homes that have fenced it since.
    stopped: BTreeMap<usize, u64>,
    /// The clients that died meanwhile.
    unheard: BTreeMap<usize, Vec<Process>>,
    /// The servers that requests were sent to.
    asked_at: BTreeMap<(Process, Ticket), usize>,
    voided: BTreeSet<(usize, usize)>,
    /// The contents of copies, and of commits of other servers.
    copies: BTreeMap<(usize, ChunkId), Value>,
    commit_of: BTreeMap<(usize, usize, ChunkId), (Value, Option<GuardId>)>,
    /// The chunks that are written at their homes, as clients have heard.
    at_home: BTreeSet<ChunkId>,
    /// All versions of the chunks, with their tags.
    commits: BTreeMap<ChunkId, Vec<(Value, u64)>>,
    /// What was written under guards and drafts, in place, and what requests have brought.
    written: BTreeMap<GuardId, Value>,
    /// What was sent with commits that are on their way to another home.
    forwarded: BTreeMap<GuardId, Value>,
    arrived: BTreeMap<(Process, Ticket), Value>,
    open: BTreeMap<(usize, ChunkId), Version>,
    closing: BTreeSet<(usize, ChunkId)>,
    owned: BTreeMap<ChunkId, Owning>,
    /// Own guards that are not waited for any more.
    fenced_own: BTreeSet<(Process, ChunkId)>,
    fenced: BTreeSet<GuardId>,
    taken: BTreeSet<(ChunkId, Version)>,
    /// The requests to take a version.
    takes: BTreeSet<(Process, Ticket)>,
    value: Value,
    trace: Vec<String>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random(seed);
        let count = 2 + random.below(4) as usize;
        let servers = 1 + random.below(3) as usize;
        let near = |random: &mut Random| {
            let near = random.below(1 + servers as u64) as usize;
            (near < servers).then_some(near)
        };
        let mut simulation = Simulation {
            now: 0,
            servers: (0..servers)
                .map(|at| Server::new(process(at), ServerId(at as u16)))
                .collect(),
            chunks: Vec::new(),
            clients: (1..=count)
                .map(|number| Client::new(process(10 + number), near(&mut random)))
                .collect(),
            random,
            lines: BTreeMap::new(),
            between: BTreeMap::new(),
            stopped: BTreeMap::new(),
            unheard: BTreeMap::new(),
            asked_at: BTreeMap::new(),
            voided: BTreeSet::new(),
            copies: BTreeMap::new(),
            commit_of: BTreeMap::new(),
            at_home: BTreeSet::new(),
            commits: BTreeMap::new(),
            written: BTreeMap::new(),
            forwarded: BTreeMap::new(),
            arrived: BTreeMap::new(),
            open: BTreeMap::new(),
            closing: BTreeSet::new(),
            owned: BTreeMap::new(),
            fenced_own: BTreeSet::new(),
            fenced: BTreeSet::new(),
            taken: BTreeSet::new(),
            takes: BTreeSet::new(),
            value: 0,
            trace: Vec::new(),
        };
        for at in 0..servers {
            for other in (0..servers).filter(|other| *other != at) {
                let (server, process) = (ServerId(other as u16), process(other));
                simulation.event(at, ServerEvent::Known { server, process });
            }
        }
        for number in 0..CHUNKS {
            let at = number % servers;
            let protocol = match simulation.random.is(30) {
                true => Protocol::Update,
                false => Protocol::HomeMesi,
            };
            let open = Request::Open {
                name: format!("chunk {number}"),
                kind: Kind {
                    name: "u64".to_owned(),
                    size: 8,
                },
                bytes: Some(16),
                protocol,
                replicas: None,
                timeout: 0,
            };
            let chunk =
                ChunkId(ServerId(at as u16).first_number(process(at)) + (number / servers) as u64);
            simulation.chunks.push(chunk);
            simulation.commits.insert(chunk, Vec::new());
            if protocol == Protocol::Update {
                simulation.at_home.insert(chunk);
            }
            simulation.event(
                at,
                ServerEvent::Request {
                    from: simulation.clients[0].me,
                    ticket: Some(Ticket(number as u64)),
                    request: open,
                },
            );
        }
        for client in &mut simulation.clients {
            client.in_box.clear();
        }
        simulation
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if self.trace.len() == 400 {
            self.trace.remove(0);
        }
        let line = format!("{:>6} {}", self.now, what());
        self.trace.push(line);
    }

    fn event(&mut self, at: usize, event: ServerEvent) {
        self.say(|| format!("server {at} <- {event:?}"));
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.servers[at].on_event(self.now, event) {
                self.say(|| format!("   {action:?}"));
                events.extend(self.act(at, action));
            }
        }
    }

    /// One step of the whole.
    fn step(&mut self, has_faults: bool) {
        self.now += self.random.below(5);
        let which = self.random.below(self.clients.len() as u64) as usize;
        if has_faults && self.random.is(1) {
            return self.dies(which);
        }
        if has_faults && self.random.is(2) {
            let client = &mut self.clients[which];
            client.is_stopped = !client.is_stopped;
        }
        let at = self.random.below(self.servers.len() as u64) as usize;
        if has_faults && self.servers.len() > 1 && self.random.is(1) {
            self.stops_or_goes_on(at);
        }
        if !self.stopped.contains_key(&at) {
            self.server_acts(at, has_faults);
        }
        if self.clients[which].is_stopped {
            return;
        }
        let first = self.clients[which].in_box.front();
        if first.is_some_and(|(at, _)| *at <= self.now) {
            self.hears(which);
        }
        if has_faults {
            self.writes_as_owner(which);
            self.client_acts(which);
        }
    }

    /// A server handles what has arrived.
    fn server_acts(&mut self, at: usize, has_faults: bool) {
        if self.now % LEASE < 5 {
            self.fence(at);
        }
        self.fence_servers(at);
        for which in 0..self.clients.len() {
            let me = self.clients[which].me;
            let is_due = |line: &Line| line.front().is_some_and(|(due, ..)| *due <= self.now);
            if self.lines.get(&(me, at)).is_some_and(is_due) {
                self.arrives(me, at);
            }
        }
        for from in 0..self.servers.len() {
            let line = self.between.get(&(from, at));
            let first = line.and_then(VecDeque::front);
            if first.is_some_and(|said| said.at <= self.now) {
                self.server_hears(from, at);
            }
        }
        if self.servers[at]
            .wake_at()
            .is_some_and(|due| due <= self.now)
        {
            self.event(at, ServerEvent::Tick);
        }
        if has_faults && self.random.is(3) {
            let idle: Vec<_> = self.servers[at].idle_copies().collect();
            if let Some(chunk) = self.random.of(&idle) {
                self.event(at, ServerEvent::Evict(chunk));
            }
        }
    }

    /// No more faults: the clients take what they are told, and end what they have.
    fn come_to_rest(&mut self) {
        for which in 0..self.clients.len() {
            self.clients[which].is_stopped = false;
        }
        for at in 0..self.servers.len() {
            if self.stopped.contains_key(&at) {
                self.stops_or_goes_on(at);
            }
        }
        for _ in 0..20_000 {
            self.step(false);
            self.owners_stop();
            for which in 0..self.clients.len() {
                let guards: Vec<_> = self.clients[which].held.keys().copied().collect();
                guards.into_iter().for_each(|guard| self.ends(which, guard));
                let ids: Vec<_> = self.clients[which].subscribed.keys().copied().collect();
                for id in ids {
                    let subscribed = &self.clients[which].subscribed[&id];
                    if subscribed.taken < subscribed.last {
                        self.takes_events(which, id);
                    }
                }
                let own = self.clients[which].own.clone();
                for (chunk, _) in own.into_iter().filter(|(_, count)| *count > 0) {
                    self.clients[which].own.insert(chunk, 0);
                    let (me, at) = (self.clients[which].me, self.clients[which].asks(chunk));
                    self.ask(me, at, None, Request::Drained { chunk });
                }
            }
            let waits = self.clients.iter().any(|client| !client.asked.is_empty());
            let is_quiet = self.lines.values().all(VecDeque::is_empty)
                && self.between.values().all(VecDeque::is_empty)
                && self.clients.iter().all(|client| client.in_box.is_empty());
            if is_quiet && !waits {
                return;
            }
            if is_quiet {
                // Somebody waits for a version to take. Nothing else is left to wait for.
                for asked in self.clients.iter().flat_map(|client| client.asked.values()) {
                    let Asked::Take(chunk) = asked else {
                        unreachable!("{asked:?} is kept waiting");
                    };
                    let present = self.present(*chunk).0;
                    let is_taken = self.taken.contains(&(*chunk, present));
                    assert!(present.0 == 0 || is_taken, "nobody gets {chunk:?}");
                }
                let at = self.servers.iter().filter_map(Server::wake_at).min();
                let at = at.expect("a request without an answer, and without a deadline");
                self.now = self.now.max(at);
            }
        }
        unreachable!("it does not come to rest");
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step(true);
        }
        self.come_to_rest();
        for at in 0..self.servers.len() {
            for which in 0..self.clients.len() {
                self.loses(at, self.clients[which].me);
            }
            assert_eq!(
                self.servers[at].held(),
                0,
                "something of the clients is left"
            );
        }
        assert!(self.arrived.is_empty(), "{:?}", self.arrived);
    }
}

/// Runs one seed, and prints what happened if it fails. Returns what happened at last.
fn run(seed: u64, steps: u64) -> Vec<String> {
    let mut simulation = Simulation::new(seed);
    let ran = std::panic::AssertUnwindSafe(|| simulation.run(steps));
    if let Err(panic) = std::panic::catch_unwind(ran) {
        eprintln!("{}", simulation.trace.join("\n"));
        eprintln!("seed {seed} fails: SAMITE_SEED={seed} runs it alone");
        std::panic::resume_unwind(panic);
    }
    simulation.trace
}

fn seeds(count: u64) {
    if let Some(seed) = std::env::var("SAMITE_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        run(seed, 300);
        return;
    }
    for seed in 0..count {
        run(seed, 300);
    }
}

#[test]
fn ten_thousand_seeds() {
    seeds(10_000);
}

/// Part of `cargo xtask nightly`. Alone, and optimised:
/// `cargo test --release -p samite-dsm --lib -- --ignored`.
#[test]
#[ignore = "takes long: for the night"]
fn a_million_seeds() {
    seeds(1_000_000);
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..20 {
        assert_eq!(run(seed, 300), run(seed, 300));
    }
}
