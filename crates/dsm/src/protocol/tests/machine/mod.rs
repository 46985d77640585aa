//! The whole machine of one or two servers, and everything that can happen to one chunk of two
//! clients, in every order: guards, also those that are taken without a message, commits, puts,
//! subscriptions; clients and servers that are lost; a server that is stopped for longer than its
//! lease.
//!
//! The same [`Server`] runs in production. What its service does is done here with numbers as
//! contents. The simulation has longer runs of more processes.
//!
//! # Files
//! `mod` (what can happen, and what is explored) · `service` (what the services of the servers do)
//! · `steps` (what each step does, and the rules)

mod service;
mod steps;

use crate::protocol::server::Server;
use crate::protocol::{
    Between, ChunkId, Fault, GuardId, Mode, Op, Process, Protocol, State, Ticket, Version,
};
use stateright::semantics::register::Register;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use stateright::{Checker, Model, Property};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

/// The first one of the first life of its home.
const CHUNK: ChunkId = ChunkId(1 << 32);

/// The servers: the home of the chunk, and one that caches it.
const HOME: usize = 0;
const OTHER: usize = 1;

/// Clients have other numbers than servers.
const CLIENTS: usize = 10;

const NEVER: u64 = 1 << 40;

/// What a version contains: its number is never used again.
type Value = u8;

impl Hash for Op {
    fn hash<H: Hasher>(&self, to: &mut H) {
        format!("{self:?}").hash(to);
    }
}

/// What a client asks a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ask {
    Acquire(Mode),
    Put(Value),
    Commit(GuardId, Value),
    Release(GuardId),
    Drained,
    Subscribe,
    Took(Version),
}

impl Ask {
    /// Returns the guard that a commit is of.
    fn committed(&self) -> Option<GuardId> {
        match self {
            Ask::Commit(guard, _) => Some(*guard),
            _ => None,
        }
    }
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Note {
    Given {
        at: usize,
        ticket: Ticket,
        guard: GuardId,
        version: Version,
        value: Value,
    },
    Committed(Ticket, Version),
    Refused(Ticket, Fault),
    Subscribed(Ticket),
    Told(Vec<Version>, Option<Value>),
}

impl Note {
    fn ticket(&self) -> Option<Ticket> {
        match self {
            Note::Given { ticket, .. }
            | Note::Committed(ticket, _)
            | Note::Refused(ticket, _)
            | Note::Subscribed(ticket) => Some(*ticket),
            Note::Told(..) => None,
        }
    }
}

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    at: usize,
    ticket: Ticket,
    ask: Ask,
}

/// A guard that a client was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    at: usize,
    mode: Mode,
    value: Value,
}

/// A read guard that a client has taken without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Own {
    at: usize,
    value: Value,
    is_stale: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    near: usize,
    /// Whether it has heard that the chunk is written at its home.
    is_at_home: bool,
    asked: Option<Asked>,
    held: BTreeMap<GuardId, Held>,
    own: Option<Own>,
    /// The version that it may read without a message.
    known: Option<Version>,
    /// The newest version that it has read or heard of.
    seen: Version,
    /// The last event.
    told: Option<Version>,
    is_dead: bool,
    /// The servers that know that.
    known_dead_at: BTreeSet<usize>,
    next: u64,
    /// The thread of the history: another one after an operation that has no end.
    thread: usize,
}

/// How often each may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    reads: u8,
    writes: u8,
    puts: u8,
    own: u8,
    subscriptions: u8,
    deaths: u8,
    stops: u8,
    kills: u8,
    evictions: u8,
}

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Acquire(usize, Mode),
    Put(usize),
    Own(usize),
    EndOwn(usize),
    Commit(usize, GuardId),
    Release(usize, GuardId),
    Subscribe(usize),
    Die(usize),
    /// The next request of a client arrives at a server.
    Arrive(usize, usize),
    /// A server hears that a client is lost, after all that it had sent.
    Gone(usize, usize),
    /// The next message to a client arrives.
    Hear(usize),
    /// The next message of a server to the other one arrives.
    Between(usize),
    /// The other server is stopped, or goes on, with a lease that is over or not.
    Stop,
    GoOn {
        is_void: bool,
    },
    /// It is killed, and the home hears of that.
    Kill,
    Lost,
    /// Its lease is over at the home, which waits for it.
    FenceServer,
    Evict,
}

/// Requests and notes of a client on their way to a server, in order.
type Line = VecDeque<(Option<Ticket>, Ask)>;

/// A message between servers, with a content and the guard under which it was written.
type Said = (Between, Option<(Value, Option<GuardId>)>);

#[derive(Clone, Debug, PartialEq, Hash)]
struct World {
    servers: Vec<Option<Server>>,
    clients: Vec<Client>,
    asks: BTreeMap<(usize, usize), Line>,
    notes: Vec<VecDeque<Note>>,
    between: [VecDeque<Said>; 2],
    /// The contents of the versions.
    commits: Vec<Value>,
    copy: Option<Value>,
    /// What was written in place, was brought, or is on its way to the home.
    written: BTreeMap<GuardId, Value>,
    arrived: BTreeMap<(Process, Ticket), Value>,
    forwarded: BTreeMap<GuardId, Value>,
    commit_of: Option<(Value, GuardId)>,
    open: [Option<Version>; 2],
    is_closing: [bool; 2],
    /// Guards that have ended without their holders, and what was refused.
    fenced: BTreeSet<GuardId>,
    refused: BTreeSet<Value>,
    is_stopped: bool,
    /// Whether the home has taken back what the other server has, which does not know that.
    is_voided: bool,
    /// Whether the home knows that the other server is lost.
    is_known_lost: bool,
    value: Value,
    history: LinearizabilityTester<usize, Register<Value>>,
    left: Left,
    /// The first broken rule.
    broken: Option<String>,
}

struct Few {
    near: &'static [usize],
    protocol: Protocol,
    left: Left,
}

impl Model for Few {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.near, self.protocol, self.left)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        actions.extend(world.deliveries());
        let left = world.left;
        for (which, client) in world.clients.iter().enumerate() {
            if client.is_dead {
                continue;
            }
            for (guard, held) in &client.held {
                actions.push(Step::Release(which, *guard));
                if held.mode == Mode::Write && client.asked.is_none() {
                    actions.push(Step::Commit(which, *guard));
                }
            }
            if client.own.is_some() {
                actions.push(Step::EndOwn(which));
            }
            let has_any = client.asked.is_some() || client.own.is_some();
            if left.deaths > 0 && (has_any || !client.held.is_empty()) {
                actions.push(Step::Die(which));
            }
            let writes = client.held.values().any(|held| held.mode == Mode::Write);
            if client.asked.is_some() || writes {
                continue;
            }
            if left.reads > 0 {
                actions.push(Step::Acquire(which, Mode::Read));
            }
            if left.writes > 0 {
                actions.push(Step::Acquire(which, Mode::Write));
            }
            if left.puts > 0 {
                actions.push(Step::Put(which));
            }
            if left.subscriptions > 0 && client.told.is_none() {
                actions.push(Step::Subscribe(which));
            }
            let open = world.open[client.near];
            // A server that is stopped is not needed for that, until its lease is over.
            let is_valid = client.near == HOME || (world.lives(OTHER) && !world.is_voided);
            let may_own = client.own.is_none() && is_valid && open.is_some();
            if left.own > 0 && may_own && open == client.known {
                actions.push(Step::Own(which));
            }
        }
        if world.lives(OTHER) {
            if left.stops > 0 && !world.is_stopped {
                actions.push(Step::Stop);
            }
            if world.is_stopped {
                let is_void = true;
                actions.push(Step::GoOn { is_void });
                if !world.is_voided {
                    actions.push(Step::GoOn { is_void: false });
                }
            }
            if left.kills > 0 {
                actions.push(Step::Kill);
            }
            let has_copy = |server: &Server| server.copy(CHUNK).is_some();
            let other = world.servers[OTHER].as_ref().filter(|_| world.runs(OTHER));
            if left.evictions > 0 && other.is_some_and(has_copy) {
                actions.push(Step::Evict);
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        world.step(step);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_reached<const STATE: usize>(_: &Few, world: &World) -> bool {
            let servers = world.servers.iter().flatten();
            let mut states = servers.filter_map(|server| server.state(CHUNK));
            states.any(|state| state as usize == STATE)
        }
        vec![
            Property::always("every rule holds", |_, world: &World| {
                world.broken.is_none()
            }),
            Property::always("reads and writes are linearizable", |_, world: &World| {
                world.history.is_consistent()
            }),
            Property::sometimes("I", is_reached::<{ State::I as usize }>),
            Property::sometimes("IS", is_reached::<{ State::IS as usize }>),
            Property::sometimes("IM", is_reached::<{ State::IM as usize }>),
            Property::sometimes("S", is_reached::<{ State::S as usize }>),
            Property::sometimes("SM", is_reached::<{ State::SM as usize }>),
            Property::sometimes("SI", is_reached::<{ State::SI as usize }>),
            Property::sometimes("SIM", is_reached::<{ State::SIM as usize }>),
            Property::sometimes("E", is_reached::<{ State::E as usize }>),
            Property::sometimes("EI", is_reached::<{ State::EI as usize }>),
            Property::sometimes("M", is_reached::<{ State::M as usize }>),
            Property::sometimes("MS", is_reached::<{ State::MS as usize }>),
            Property::sometimes("MI", is_reached::<{ State::MI as usize }>),
        ]
    }
}

/// Explores all. Returns the number of states, and the names of the states of a copy that were
/// reached.
fn explore(near: &'static [usize], protocol: Protocol, left: Left) -> (usize, BTreeSet<String>) {
    let few = Few {
        near,
        protocol,
        left,
    };
    let checker = few.checker().spawn_bfs().join();
    for rule in ["every rule holds", "reads and writes are linearizable"] {
        if let Some(path) = checker.discovery(rule) {
            let steps: Vec<Step> = path.clone().into_actions();
            let world = path.last_state();
            let (broken, history) = (&world.broken, &world.history);
            panic!("{rule}: {broken:?}, {history:?} after {steps:#?}");
        }
    }
    assert!(checker.is_done());
    let reached = checker.discoveries().into_keys().map(str::to_owned);
    let reached = reached.collect();
    println!("{} states; {reached:?}", checker.unique_state_count());
    (checker.unique_state_count(), reached)
}

/// All states of a copy, together.
const STATES: [&str; 12] = [
    "I", "IS", "IM", "S", "SM", "SI", "SIM", "E", "EI", "M", "MS", "MI",
];

#[test]
fn clients_of_one_server() {
    let left = Left {
        reads: 1,
        writes: 1,
        puts: 1,
        own: 1,
        subscriptions: 1,
        ..Left::default()
    };
    let (count, _) = explore(&[HOME, HOME], Protocol::HomeMesi, left);
    assert!(count > 1000, "{count}");
}

#[test]
fn clients_of_one_server_die() {
    let left = Left {
        writes: 1,
        puts: 1,
        own: 1,
        reads: 1,
        subscriptions: 1,
        deaths: 1,
        ..Left::default()
    };
    let (count, _) = explore(&[HOME, HOME], Protocol::HomeMesi, left);
    assert!(count > 1000, "{count}");
}

#[test]
fn clients_of_two_servers() {
    let left = Left {
        reads: 2,
        writes: 2,
        ..Left::default()
    };
    let (_, reached) = explore(&[HOME, OTHER], Protocol::HomeMesi, left);
    for state in STATES {
        assert!(reached.contains(state), "{state} is not reached");
    }
}

#[test]
fn clients_of_two_servers_put_and_subscribe() {
    let left = Left {
        reads: 1,
        puts: 1,
        writes: 1,
        subscriptions: 1,
        own: 1,
        ..Left::default()
    };
    for protocol in [Protocol::HomeMesi, Protocol::Update] {
        let (count, _) = explore(&[HOME, OTHER], protocol, left);
        assert!(count > 1000, "{count}");
    }
}

#[test]
fn a_server_is_stopped() {
    let left = Left {
        reads: 1,
        writes: 2,
        own: 1,
        stops: 1,
        ..Left::default()
    };
    let (count, _) = explore(&[HOME, OTHER], Protocol::HomeMesi, left);
    assert!(count > 1000, "{count}");
}

#[test]
fn a_server_and_a_client_are_lost() {
    let left = Left {
        reads: 1,
        writes: 2,
        own: 1,
        deaths: 1,
        kills: 1,
        ..Left::default()
    };
    let (count, _) = explore(&[HOME, OTHER], Protocol::HomeMesi, left);
    assert!(count > 1000, "{count}");
}

#[test]
fn a_copy_is_evicted() {
    let left = Left {
        reads: 2,
        writes: 1,
        own: 1,
        evictions: 1,
        ..Left::default()
    };
    let (count, _) = explore(&[HOME, OTHER], Protocol::HomeMesi, left);
    assert!(count > 1000, "{count}");
}
