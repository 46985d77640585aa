//! The network: virtual time, events in flight, and the choice of the unit that runs.

use super::agents::{Far, Heard, Host};
use super::rma::{Operations, Step};
use super::{Parcel, Scenario};
use crate::membership::Link;
use crate::node::NodeMember;
use crate::transport::{Class, Completed, Outgoing, Push, RawFrame};
use crate::{Error, PeerId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An event that a unit finds when it polls.
#[derive(Debug)]
pub(super) enum UnitEvent {
    Frame(Parcel),
    /// An RMA operation that this unit is to carry out.
    Rma(Step),
    /// The completion of an operation that this unit started.
    Completed(Completed),
    Killed,
}

/// An event of the simulation.
#[derive(Debug)]
pub(super) enum Event {
    Deliver {
        to: u32,
        parcel: Parcel,
    },
    Rma(Step),
    Kill {
        unit: u32,
    },
    /// The agent of a unit notices that the unit is gone.
    Part {
        unit: u32,
    },
    Agent(usize, Heard),
    StartNode {
        node: u32,
    },
    KillNode {
        node: u32,
    },
    /// The loss of a unit that is not run, as all others see it.
    LoseBystander {
        unit: u32,
    },
}

/// One life of a unit.
#[derive(Debug)]
pub(super) struct Unit {
    /// Index of the unit in the scenario.
    pub(super) unit: u32,
    /// The life of its node; `None` before that life has begun.
    pub(super) host: Option<usize>,
    pub(super) incarnation: u32,
    pub(super) inbox: VecDeque<UnitEvent>,
    /// When its wait ends; `None` if it has not begun or has ended.
    pub(super) wakes: Option<Duration>,
    pub(super) alive: bool,
    /// The unit has ended: nothing polls for it any more.
    pub(super) has_left: bool,
}

impl Unit {
    pub(super) fn reachable(&self) -> bool {
        self.alive && !self.has_left
    }

    /// Ends the wait of the unit as soon as it can run.
    pub(super) fn wake(&mut self, now: Duration) {
        self.wakes = self.wakes.map(|wakes| wakes.min(now));
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: fastrand::Rng,
    pub(super) random_of_agents: fastrand::Rng,
    pub(super) now: Duration,
    /// By time, then by order of creation, so that runs are deterministic.
    events: BTreeMap<(Duration, u64), Event>,
    made: u64,
    /// The first lives of all units, then those on nodes that return.
    pub(super) units: Vec<Unit>,
    pub(super) hosts: Vec<Host>,
    /// The ends of the agents' connections.
    pub(super) ends: BTreeMap<(usize, Link), Far>,
    pub(super) operations: Operations,
    /// When the last frame of a pair arrives, because frames of a pair stay in order.
    last: BTreeMap<(u32, u32), Duration>,
    under_way: BTreeMap<(u32, u32), usize>,
    running: Option<u32>,
    entered: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) scenario: Scenario,
    state: Mutex<State>,
    /// Signalled when all units have entered.
    complete: Condvar,
    /// One per unit: signalled when the unit may run.
    turns: Vec<Condvar>,
}

/// Maximum delay between a death and the news of it, in nanoseconds.
const NEWS_DELAY_MAX: u64 = 50_000;

impl Network {
    /// Creates the network, in which the nodes of the beginning already know each other.
    pub(super) fn new(scenario: &Scenario) -> Network {
        let unit = |unit| Unit {
            unit,
            host: None,
            incarnation: 0,
            inbox: VecDeque::new(),
            wakes: None,
            alive: true,
            has_left: false,
        };
        let mut state = State {
            random: fastrand::Rng::with_seed(scenario.seed),
            random_of_agents: fastrand::Rng::with_seed(!scenario.seed),
            now: Duration::ZERO,
            events: BTreeMap::new(),
            made: 0,
            units: scenario.lives().map(unit).collect(),
            hosts: Vec::new(),
            ends: BTreeMap::new(),
            operations: Operations::default(),
            last: BTreeMap::new(),
            under_way: BTreeMap::new(),
            running: None,
            entered: 0,
        };
        // Start one node at a time, each after the previous ones have settled, so that numbers are
        // fixed.
        for node in (0..scenario.nodes).filter(|node| !scenario.comes_later(*node)) {
            state.start_host(node, scenario);
            while !state.is_settled(scenario) {
                state.go_on(scenario);
            }
        }
        // The times of the scenario count from now.
        let begin = state.now;
        for (unit, at) in &scenario.kills {
            state.make(begin + *at, Event::Kill { unit: *unit });
        }
        for (node, at) in &scenario.node_kills {
            state.make(begin + *at, Event::KillNode { node: *node });
        }
        for (node, at) in &scenario.starts {
            state.make(begin + *at, Event::StartNode { node: *node });
        }
        for unit in 0..scenario.lost_bystanders {
            let at = begin + super::YIELD * unit;
            state.make(at, Event::LoseBystander { unit });
        }
        let turns = state.units.iter().map(|_| Condvar::new()).collect();
        let (scenario, state) = (scenario.clone(), Mutex::new(state));
        Network {
            scenario,
            state,
            complete: Condvar::new(),
            turns,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the thread of a unit and waits for its first turn. Dropping the baton ends the
    /// unit.
    pub(super) fn enter(&self, index: u32) -> Baton<'_> {
        let mut state = self.lock();
        state.entered += 1;
        self.complete.notify_all();
        drop(self.wait_turn(state, index));
        Baton {
            network: self,
            unit: index,
        }
    }

    /// Gives the first turn once all units have entered.
    pub(super) fn start(&self) {
        let mut state = self.lock();
        while state.entered < state.units.len() {
            state = self
                .complete
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.pass_on(&mut state);
    }

    /// Chooses the next unit to run and signals it.
    fn pass_on(&self, state: &mut State) {
        state.pass_on(&self.scenario);
        if let Some(next) = state.running {
            self.turns[next as usize].notify_one();
        }
    }

    fn wait_turn<'a>(&self, mut state: MutexGuard<'a, State>, unit: u32) -> MutexGuard<'a, State> {
        while state.running != Some(unit) {
            state = self.turns[unit as usize]
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    pub(super) fn now(&self) -> Duration {
        self.lock().now
    }

    pub(super) fn idle(&self, unit: u32, at_most: Duration) {
        let mut state = self.lock();
        let until = state.now + at_most.max(Duration::from_nanos(1));
        state.units[unit as usize].wakes = Some(until);
        self.pass_on(&mut state);
        drop(self.wait_turn(state, unit));
    }

    pub(super) fn take(&self, unit: u32) -> Option<UnitEvent> {
        self.lock().units[unit as usize].inbox.pop_front()
    }

    /// Ends the wait of a unit as soon as it can run.
    pub(super) fn wake(&self, unit: u32) {
        let mut state = self.lock();
        let now = state.now;
        state.units[unit as usize].wake(now);
    }

    /// Makes a life of a unit a member of its node.
    pub(super) fn join(&self, unit: u32) -> Result<NodeMember, Error> {
        let state = self.lock();
        let unit = &state.units[unit as usize];
        let node = unit.host.and_then(|host| state.hosts[host].node.as_ref());
        let node = node.expect("a unit runs once its node is a member");
        let slot = self.scenario.peer_of(unit.unit).slot();
        node.join(slot, &self.scenario.identity(unit.unit))
    }

    /// Returns the index of a life of a peer, if that life is run.
    pub(super) fn find(&self, peer: PeerId, incarnation: u32) -> Option<u32> {
        let unit = self.scenario.unit_of(peer);
        let state = self.lock();
        let mut units = state.units.iter();
        let found = units.position(|life| (life.unit, life.incarnation) == (unit, incarnation));
        found.map(|index| index as u32)
    }

    /// Returns true if frames from one unit to another have not arrived yet.
    pub(super) fn is_under_way(&self, from: u32, to: u32) -> bool {
        let state = self.lock();
        state
            .under_way
            .get(&(from, to))
            .is_some_and(|count| *count > 0)
    }

    pub(super) fn push(&self, from: u32, to: u32, frame: &Outgoing<'_>) -> Push {
        let mut state = self.lock();
        if !state.units[from as usize].alive {
            return Push::Gone;
        }
        let under_way = state.under_way.entry((from, to)).or_default();
        // Replies have twice the capacity, so they never wait for requests.
        let limit = match frame.class {
            Class::Request => self.scenario.in_flight_max,
            Class::Reply => self.scenario.in_flight_max * 2,
        };
        if *under_way >= limit {
            return Push::Full;
        }
        *under_way += 1;
        let of = |state: &State, unit: u32| self.scenario.peer_of(state.units[unit as usize].unit);
        let (from_peer, to_peer) = (of(&state, from), of(&state, to));
        let life = (from_peer, state.units[from as usize].incarnation);
        let frame = RawFrame::of(frame);
        let arrives = state.flight(&self.scenario.latency);
        let wire = Duration::from_nanos(
            (16 + frame.len()) * 1_000_000_000 / self.scenario.bandwidth.max(1),
        );
        let last = state.last.get(&(from, to)).copied().unwrap_or_default();
        let at = match self.scenario.is_ordered || from_peer.node() == to_peer.node() {
            true => arrives.max(last) + wire,
            false => arrives + wire,
        };
        state.last.insert((from, to), at.max(last));
        let parcel = Parcel { from, life, frame };
        state.make(at, Event::Deliver { to, parcel });
        Push::Done
    }
}

impl State {
    pub(super) fn make(&mut self, at: Duration, event: Event) {
        self.made += 1;
        self.events.insert((at, self.made), event);
    }

    /// Returns a random time at which the news of an end arrives.
    pub(super) fn news(&mut self) -> Duration {
        self.now + Duration::from_nanos(self.random_of_agents.u64(..NEWS_DELAY_MAX))
    }

    /// Advances the time to the next event and handles that event.
    fn go_on(&mut self, scenario: &Scenario) {
        if let Some(((at, _), event)) = self.events.pop_first() {
            self.now = self.now.max(at);
            self.happen(event, scenario);
        }
    }

    /// Chooses the next unit to run; advances the time if none can run.
    fn pass_on(&mut self, scenario: &Scenario) {
        loop {
            while self
                .events
                .first_key_value()
                .is_some_and(|((at, _), _)| *at <= self.now)
            {
                self.go_on(scenario);
            }
            let now = self.now;
            let can_run = |unit: &Unit| {
                unit.wakes
                    .is_some_and(|wakes| wakes <= now || !unit.inbox.is_empty())
            };
            let ready: Vec<usize> = (0..self.units.len())
                .filter(|index| can_run(&self.units[*index]))
                .collect();
            if !ready.is_empty() {
                let chosen = ready[self.random.usize(..ready.len())];
                self.running = Some(chosen as u32);
                return;
            }
            let wakes = self.units.iter().filter_map(|unit| unit.wakes).min();
            if wakes.is_none() && self.units.iter().all(|unit| unit.host.is_some()) {
                self.running = None; // Everybody has ended.
                return;
            }
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let next = [wakes, event].into_iter().flatten().min();
            self.now = self.now.max(next.expect("a node that is to start does so"));
        }
    }

    /// Ends a unit that has returned or was killed.
    fn leave(&mut self, unit: u32) {
        let ended = &mut self.units[unit as usize];
        ended.wakes = None;
        if ended.alive {
            ended.has_left = true;
            let at = self.news();
            self.make(at, Event::Part { unit });
        }
    }

    /// Kills a unit: nothing more arrives from it.
    pub(super) fn die(&mut self, unit: u32) {
        let dead = &mut self.units[unit as usize];
        dead.alive = false;
        dead.inbox
            .retain(|event| matches!(event, UnitEvent::Completed(_)));
        dead.inbox.push_back(UnitEvent::Killed);
    }

    fn happen(&mut self, event: Event, scenario: &Scenario) {
        match event {
            Event::Rma(step) => self.happen_rma(step, scenario),
            Event::Deliver { to, parcel } => {
                if let Some(count) = self.under_way.get_mut(&(parcel.from, to)) {
                    *count = count.saturating_sub(1);
                }
                let (is_alive, now) = (self.units[parcel.from as usize].alive, self.now);
                let unit = &mut self.units[to as usize];
                match is_alive && unit.alive {
                    true => unit.inbox.push_back(UnitEvent::Frame(parcel)),
                    false => unit.wake(now), // Its loss can be told.
                }
            }
            Event::Kill { unit } => {
                self.die(unit);
                let at = self.news();
                self.make(at, Event::Part { unit });
            }
            Event::Part { unit } => self.part(unit, scenario),
            Event::Agent(host, heard) => self.hear(host, heard, scenario),
            Event::StartNode { node } => self.start_host(node, scenario),
            Event::KillNode { node } => self.lose_node(node),
            Event::LoseBystander { unit } => self.lose_bystander(scenario.bystander(unit)),
        }
    }
}

/// A unit's place in the run. Dropping it lets the others continue.
#[derive(Debug)]
pub(super) struct Baton<'a> {
    network: &'a Network,
    unit: u32,
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        let mut state = self.network.lock();
        state.leave(self.unit);
        self.network.pass_on(&mut state);
    }
}
