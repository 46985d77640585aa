//! The network: time, what is under way, and whose turn it is.

use super::rma::{Operations, Step};
use super::{Parcel, Scenario};
use crate::node::SimulatedNode;
use crate::transport::{Class, Completed, Outgoing, Push};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a unit finds when it polls.
#[derive(Debug)]
pub(super) enum UnitEvent {
    Frame(Parcel),
    /// An operation of RMA that this unit is to do.
    Rma(Step),
    /// The end of one that this unit has started.
    Completed(Completed),
    Lost(u32),
    Killed,
}

/// What happens at some moment.
#[derive(Debug)]
pub(super) enum Event {
    Deliver { to: u32, parcel: Parcel },
    Rma(Step),
    Kill { unit: u32 },
    Tell { to: u32, lost: u32 },
}

#[derive(Debug)]
pub(super) struct Unit {
    pub(super) inbox: VecDeque<UnitEvent>,
    /// Until when it waits; `None`: it has ended.
    wakes: Option<Duration>,
    pub(super) alive: bool,
    /// It has ended: nobody polls for it.
    has_left: bool,
    /// Whose deaths it was told of.
    told: BTreeSet<u32>,
}

impl Unit {
    pub(super) fn reachable(&self) -> bool {
        self.alive && !self.has_left
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: fastrand::Rng,
    pub(super) now: Duration,
    /// By moment, then by the order in which they were made: deterministic.
    events: BTreeMap<(Duration, u64), Event>,
    made: u64,
    pub(super) units: Vec<Unit>,
    pub(super) operations: Operations,
    /// When the last frame of a pair arrives: frames of a pair keep their order.
    last: BTreeMap<(u32, u32), Duration>,
    under_way: BTreeMap<(u32, u32), usize>,
    running: Option<u32>,
    entered: u32,
    /// Units that are gone, of which their agents have not heard yet.
    parted: Vec<u32>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) scenario: Scenario,
    pub(super) nodes: Vec<SimulatedNode>,
    state: Mutex<State>,
    /// Signalled when all units are there.
    complete: Condvar,
    /// One per unit: signalled when it is its turn.
    turns: Vec<Condvar>,
}

/// News of a death arrives this much later than the death, at most.
const NEWS_DELAY_MAX: u64 = 50_000;

impl Network {
    pub(super) fn new(scenario: &Scenario, nodes: Vec<SimulatedNode>) -> Network {
        let unit = |_| Unit {
            inbox: VecDeque::new(),
            wakes: Some(Duration::ZERO),
            alive: true,
            has_left: false,
            told: BTreeSet::new(),
        };
        let mut state = State {
            random: fastrand::Rng::with_seed(scenario.seed),
            now: Duration::ZERO,
            events: BTreeMap::new(),
            made: 0,
            units: (0..scenario.units).map(unit).collect(),
            operations: Operations::default(),
            last: BTreeMap::new(),
            under_way: BTreeMap::new(),
            running: None,
            entered: 0,
            parted: Vec::new(),
        };
        for (unit, at) in &scenario.kills {
            state.make(*at, Event::Kill { unit: *unit });
        }
        let turns = (0..scenario.units).map(|_| Condvar::new()).collect();
        let (scenario, state) = (scenario.clone(), Mutex::new(state));
        Network {
            scenario,
            nodes,
            state,
            complete: Condvar::new(),
            turns,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by a unit's thread first: waits for its first turn. The guard ends the unit.
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

    /// Gives the first turn once all units are there.
    pub(super) fn start(&self) {
        let mut state = self.lock();
        while state.entered < self.scenario.units {
            state = self
                .complete
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.pass_on(&mut state);
    }

    /// Chooses who runs next and tells it.
    fn pass_on(&self, state: &mut State) {
        state.pass_on(&self.scenario);
        state.parted.drain(..).for_each(|unit| self.part(unit));
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
        let unit = &mut self.lock().units[unit as usize];
        let event = unit.inbox.pop_front();
        if let Some(UnitEvent::Lost(lost)) = &event {
            unit.told.insert(*lost);
        }
        event
    }

    /// Whether a unit has taken the news of a death.
    pub(super) fn has_told(&self, unit: u32, lost: u32) -> bool {
        self.lock().units[unit as usize].told.contains(&lost)
    }

    /// A unit that waits looks again, as soon as it is its turn.
    pub(super) fn wake(&self, unit: u32) {
        let mut state = self.lock();
        let now = state.now;
        if let Some(wakes) = &mut state.units[unit as usize].wakes {
            *wakes = now.min(*wakes);
        }
    }

    /// The agent of a unit's node sees that it is gone.
    fn part(&self, unit: u32) {
        let peer = self.scenario.peer_of(unit);
        if let Some(node) = self.nodes.get(peer.node() as usize) {
            node.part(peer.slot());
        }
    }

    pub(super) fn push(&self, from: u32, to: u32, frame: &Outgoing<'_>) -> Push {
        let mut state = self.lock();
        if to as usize >= state.units.len() || !state.units[from as usize].alive {
            return Push::Gone;
        }
        let under_way = state.under_way.entry((from, to)).or_default();
        // Replies have twice the room: they never wait for requests.
        let limit = match frame.class {
            Class::Request => self.scenario.in_flight_max,
            Class::Reply => self.scenario.in_flight_max * 2,
        };
        if *under_way >= limit {
            return Push::Full;
        }
        *under_way += 1;
        let parcel = Parcel::of(from, frame);
        let latency = self.scenario.latency.clone();
        let (low, high) = (
            latency.start.as_nanos() as u64,
            latency.end.as_nanos() as u64,
        );
        let flight = Duration::from_nanos(state.random.u64(low..high.max(low + 1)));
        let wire =
            Duration::from_nanos(parcel.bytes() * 1_000_000_000 / self.scenario.bandwidth.max(1));
        let last = state.last.get(&(from, to)).copied().unwrap_or_default();
        let (from_peer, to_peer) = (self.scenario.peer_of(from), self.scenario.peer_of(to));
        let at = match self.scenario.is_ordered || from_peer.node() == to_peer.node() {
            true => (state.now + flight).max(last) + wire,
            false => state.now + flight + wire,
        };
        state.last.insert((from, to), at.max(last));
        state.make(at, Event::Deliver { to, parcel });
        Push::Done
    }
}

impl State {
    pub(super) fn make(&mut self, at: Duration, event: Event) {
        self.made += 1;
        self.events.insert((at, self.made), event);
    }

    /// Chooses who runs next; moves time when nobody can.
    fn pass_on(&mut self, scenario: &Scenario) {
        loop {
            while let Some(entry) = self.events.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let event = entry.remove();
                self.happen(event, scenario);
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
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            match [wakes, event].into_iter().flatten().min() {
                Some(next) => self.now = self.now.max(next),
                None => {
                    self.running = None; // Everybody has ended.
                    return;
                }
            }
        }
    }

    /// A unit has ended: the others hear of it after its last frames.
    fn leave(&mut self, unit: u32) {
        if !self.units[unit as usize].alive {
            return; // It was killed: everybody is told already.
        }
        self.parted.push(unit);
        self.units[unit as usize].has_left = true;
        for to in (0..self.units.len() as u32).filter(|to| *to != unit) {
            let last = self
                .last
                .get(&(unit, to))
                .copied()
                .unwrap_or_default()
                .max(self.now);
            let delay = Duration::from_nanos(self.random.u64(..NEWS_DELAY_MAX));
            self.make(last + delay, Event::Tell { to, lost: unit });
        }
    }

    fn happen(&mut self, event: Event, scenario: &Scenario) {
        match event {
            Event::Rma(step) => self.happen_rma(step, scenario),
            Event::Deliver { to, parcel } => {
                if let Some(count) = self.under_way.get_mut(&(parcel.from, to)) {
                    *count = count.saturating_sub(1);
                }
                if self.units[parcel.from as usize].alive && self.units[to as usize].alive {
                    self.units[to as usize]
                        .inbox
                        .push_back(UnitEvent::Frame(parcel));
                }
            }
            Event::Kill { unit } => {
                let dead = &mut self.units[unit as usize];
                dead.alive = false;
                dead.inbox
                    .retain(|event| matches!(event, UnitEvent::Completed(_)));
                for to in 0..self.units.len() as u32 {
                    self.lose_operations(unit, to);
                }
                let dead = &mut self.units[unit as usize];
                dead.inbox.push_back(UnitEvent::Killed);
                self.parted.push(unit);
                for to in (0..self.units.len() as u32).filter(|to| *to != unit) {
                    let delay = Duration::from_nanos(self.random.u64(..NEWS_DELAY_MAX));
                    self.make(self.now + delay, Event::Tell { to, lost: unit });
                }
            }
            Event::Tell { to, lost } => {
                self.lose_operations(to, lost);
                if self.units[to as usize].alive {
                    self.units[to as usize]
                        .inbox
                        .push_back(UnitEvent::Lost(lost));
                }
            }
        }
    }
}

/// A unit's right to exist; its end lets the others go on.
#[derive(Debug)]
pub(super) struct Baton<'a> {
    network: &'a Network,
    unit: u32,
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        let mut state = self.network.lock();
        state.units[self.unit as usize].wakes = None;
        state.leave(self.unit);
        self.network.pass_on(&mut state);
    }
}
