//! A network in one process: seeded, deterministic, in virtual time.
//!
//! Every unit is a thread, but only one of them runs at a time: a unit that has nothing to do hands
//! the baton back, and the network picks the next one by its seed. Time is a number that moves to the
//! next event when nobody can run. The same seed gives the same run, message by message; the fabric
//! above is the one that runs in production.
//!
//! What it simulates: latency with jitter, bandwidth, full queues, reordering between pairs (within one only if the
//! scenario says so), RMA between nodes (`sim/rma`), death of a unit at a chosen moment, late news of that death, and
//! nodes: the units of one map each other's segments, those of different ones do not. What it does not simulate: corruption
//! (frames arrive whole or not at all).
//!
//! ```
//! use samite_fabric::transport::sim::Scenario;
//! let sums = Scenario::new(7, 3).run(|fabric| {
//!     let (me, units) = (fabric.identity().unit, fabric.job()?);
//!     fabric.send(units[(me as usize + 1) % 3], 1, &[me as u8])?;
//!     let mut byte = [0];
//!     fabric.recv(samite_fabric::Match::any(1), &mut byte)?;
//!     Ok::<u8, samite_fabric::Error>(byte[0])
//! });
//! assert_eq!(sums.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [2, 0, 1]);
//! ```

mod network;
mod rma;
#[cfg(test)]
mod tests;

use super::ordered::Ordered;
use super::{
    Caps, Change, NotStarted, Outgoing, Push, Registration, RemoteKey, Rma, RmaVerb, Sink, Sleep,
    Transport,
};
use crate::node::{Layout, SimulatedNode, Slot, State};
use crate::transport::AnyTransport;
use crate::{Config, Error, Fabric, Identity, PeerId, PeerInfo};
use network::{Network, UnitEvent};
use samite_mem::SharedBytes;
use samite_mem::ring::Body;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How many units there are.
    pub units: u32,
    /// On how many nodes: unit u is on node u % nodes.
    pub nodes: u32,
    /// A frame takes this long, at random.
    pub latency: Range<Duration>,
    /// Bytes per second of one pair.
    pub bandwidth: u64,
    /// Frames of one pair that may be under way; more are refused for now.
    pub in_flight_max: usize,
    /// Longest body of a frame.
    pub body_max: u64,
    /// RMA between nodes.
    pub rma: Rma,
    /// Whether frames of a pair on two nodes keep their order.
    pub is_ordered: bool,
    /// Which unit dies when.
    pub kills: Vec<(u32, Duration)>,
    /// Settings of every unit.
    pub config: Config,
}

impl Scenario {
    /// A network of `units` on a cluster's scale: 1 to 20 us, 10 GB/s. Each is on a node of its own.
    pub fn new(seed: u64, units: u32) -> Scenario {
        Scenario {
            seed,
            units,
            nodes: units,
            latency: Duration::from_micros(1)..Duration::from_micros(20),
            bandwidth: 10_000_000_000,
            in_flight_max: 64,
            body_max: 4096,
            rma: Rma::None,
            is_ordered: true,
            kills: Vec::new(),
            config: Config {
                deadline: Duration::from_secs(10),
                ..Config::default()
            },
        }
    }

    /// The units are on so many nodes, by turns.
    pub fn on_nodes(mut self, nodes: u32) -> Scenario {
        self.nodes = nodes.clamp(1, self.units.max(1));
        self
    }

    /// Nodes reach each other's memory by RMA.
    pub fn with_rma(mut self, rma: Rma) -> Scenario {
        self.rma = rma;
        self
    }

    /// Frames between nodes overtake each other.
    pub fn unordered(mut self) -> Scenario {
        self.is_ordered = false;
        self
    }

    /// A unit as a peer.
    pub fn peer_of(&self, unit: u32) -> PeerId {
        PeerId::new(unit % self.nodes, unit / self.nodes)
    }

    /// The reverse.
    fn unit_of(&self, peer: PeerId) -> u32 {
        peer.slot().0 * self.nodes + peer.node()
    }

    /// Unit `unit` dies at this moment.
    pub fn kill(mut self, unit: u32, at: Duration) -> Scenario {
        self.kills.push((unit, at));
        self
    }

    /// Runs `unit` once per unit, to the end; the results by unit. A killed unit sees everybody lost.
    /// A panic of a unit says the seed.
    pub fn run<T: Send>(&self, unit: impl Fn(&Fabric) -> T + Sync) -> Vec<T> {
        let nodes = self.build_nodes();
        let nodes = nodes.unwrap_or_else(|error| panic!("the nodes could not be made: {error}"));
        let network = Arc::new(Network::new(self, nodes));
        let (network, unit) = (&network, &unit);
        let run_unit = |index: u32| {
            let _baton = network.enter(index);
            let fabric = self
                .fabric(index, network.clone())
                .map_err(|error| error.to_string());
            match fabric {
                Ok(fabric) => unit(&fabric),
                Err(error) => panic!("a simulated unit could not start: {error}"),
            }
        };
        let run_unit = &run_unit;
        let ended: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.units)
                .map(|index| scope.spawn(move || run_unit(index)))
                .collect();
            network.start();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let ended = ended.into_iter().enumerate();
        ended
            .map(|(index, end)| end.unwrap_or_else(|panic| self.explain(index, panic.as_ref())))
            .collect()
    }

    fn explain(&self, unit: usize, panic: &(dyn std::any::Any + Send)) -> ! {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic");
        panic!(
            "seed {seed}, unit {unit}: {text}\n  repeat it with: SAMITE_SIM_SEED={seed} cargo test",
            seed = self.seed
        );
    }

    /// The nodes, with all their units as members.
    fn build_nodes(&self) -> Result<Vec<SimulatedNode>, Error> {
        const OF_UNIT: u64 = 64 << 20;
        let units = u64::from(self.units.div_ceil(self.nodes.max(1)));
        let numbers = 0..self.nodes.min(self.units);
        let mut nodes = numbers
            .map(|number| SimulatedNode::create(number, units * OF_UNIT))
            .collect::<Result<Vec<_>, Error>>()?;
        for unit in 0..self.units {
            let identity = self.identity(unit);
            nodes[(unit % self.nodes) as usize].admit(&identity)?;
        }
        Ok(nodes)
    }

    fn fabric(&self, index: u32, network: Arc<Network>) -> Result<Fabric, Error> {
        let me = self.peer_of(index);
        let identity = self.identity(index);
        let node = network.nodes[me.node() as usize].join(me.slot(), index)?;
        let sim = AnyTransport::Sim(Box::new(Sim {
            me,
            unit: index,
            layout: node.layout.clone(),
            network,
            greeted: false,
            empty_polls: 0,
            scenario: self.clone(),
        }));
        let transport = match self.is_ordered {
            true => sim,
            false => AnyTransport::Ordered(Ordered::new(sim, 1)),
        };
        Ok(Fabric::assemble(
            node,
            transport,
            identity,
            None,
            self.config.clone(),
        ))
    }

    fn identity(&self, index: u32) -> Identity {
        let (job, program) = ("simulation".to_owned(), "unit".to_owned());
        Identity {
            job,
            program,
            rank: index,
            size: self.units,
            unit: index,
            units: self.units,
        }
    }
}

/// How far time goes on at most when a unit lets others run.
const YIELD: Duration = Duration::from_micros(20);

/// A unit's right to run, which it passes on when it sleeps.
#[derive(Debug)]
pub struct Turn {
    network: Arc<Network>,
    unit: u32,
}

impl Turn {
    /// Lets others run; returns when something arrived, or when so much virtual time is over.
    pub(super) fn pass(self, at_most: Duration) {
        self.network.idle(self.unit, at_most);
    }
}

/// One unit's end of the network.
#[derive(Debug)]
pub(crate) struct Sim {
    me: PeerId,
    unit: u32,
    layout: Layout,
    network: Arc<Network>,
    greeted: bool,
    empty_polls: u32,
    scenario: Scenario,
}

impl Transport for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn now(&self) -> Duration {
        self.network.now()
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        let to = self.scenario.unit_of(to);
        self.network.push(self.unit, to, frame)
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if !std::mem::replace(&mut self.greeted, true) {
            for index in 0..self.scenario.units {
                let info = PeerInfo {
                    peer: self.scenario.peer_of(index),
                    incarnation: 1,
                    identity: self.scenario.identity(index),
                    pid: 0,
                };
                let caps = self.caps_to(info.peer);
                sink.change(Change::Joined(info, caps));
            }
        }
        let mut arrived = 0;
        while let Some(event) = self.network.take(self.unit) {
            arrived += 1;
            match event {
                UnitEvent::Frame(frame) => {
                    let from = self.scenario.peer_of(frame.from);
                    sink.frame(frame.incoming(from));
                }
                UnitEvent::Rma(step) => self.network.carry_out(step),
                UnitEvent::Completed(completed) => sink.completed(completed),
                UnitEvent::Lost(unit) => {
                    self.lose(unit, sink);
                    self.see_deaths();
                }
                UnitEvent::Killed => {
                    (0..self.scenario.units).for_each(|unit| self.lose(unit, sink));
                    sink.change(Change::AgentLost);
                }
            }
        }
        // A program that only polls must not stop time.
        self.empty_polls = if arrived == 0 {
            self.empty_polls + 1
        } else {
            0
        };
        if self.empty_polls >= 16 {
            self.yield_now();
            self.empty_polls = 0;
        }
        arrived
    }

    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        // Nobody else runs before this unit passes its turn on.
        let (network, unit) = (self.network.clone(), self.unit);
        (!there()).then_some(Sleep::Virtual(Turn { network, unit }))
    }

    fn yield_now(&mut self) {
        self.network.idle(self.unit, YIELD);
    }

    fn crowded(&self) -> bool {
        true
    }

    fn register(&mut self, bytes: &SharedBytes) -> Option<(Registration, RemoteKey)> {
        let has_rma = self.scenario.rma != Rma::None;
        has_rma.then(|| self.network.register(self.unit, bytes))
    }

    fn deregister(&mut self, registration: Registration) {
        self.network.deregister(self.unit, Some(registration));
    }

    fn start(&mut self, to: PeerId, id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        if self.caps_to(to).rma == Rma::None {
            return Err(Box::new((Push::Gone, verb)));
        }
        let to = self.scenario.unit_of(to);
        self.network.start_rma((self.unit, to), id, verb)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.network.deregister(self.unit, None);
    }
}

/// Wakes a unit of the same node, after a store that it may be waiting for.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    network: Arc<Network>,
    unit: u32,
}

impl Waker {
    pub(crate) fn wake(&self) {
        self.network.wake(self.unit);
    }
}

impl Sim {
    /// What can be done between this unit and another one.
    fn caps_to(&self, peer: PeerId) -> Caps {
        let is_near = peer.node() == self.me.node();
        Caps {
            inline_max: samite_mem::ring::INLINE_BYTES as u64,
            body_max: self.scenario.body_max,
            map: is_near,
            kernel_copy: false,
            sleeps: true,
            shares_node: is_near,
            rma: match is_near {
                true => Rma::None,
                false => self.scenario.rma,
            },
            atomics: !is_near && self.scenario.rma == Rma::NeedsProgress,
            is_ordered: is_near || self.scenario.is_ordered,
            reports_loss: true,
        }
    }

    /// What wakes a unit of the same node.
    pub(crate) fn waker(&self, peer: PeerId) -> Option<Waker> {
        let (network, unit) = (self.network.clone(), self.scenario.unit_of(peer));
        let is_one = peer.node() == self.me.node() && unit < self.scenario.units;
        is_one.then_some(Waker { network, unit })
    }

    fn lose(&self, unit: u32, sink: &mut impl Sink) {
        sink.change(Change::Lost {
            peer: self.scenario.peer_of(unit),
            incarnation: 1,
        });
    }

    /// Lets the node have the memory of those whose deaths this unit has heard of, once these are all that there were.
    fn see_deaths(&self) {
        let table = &self.layout.peers;
        let epoch = table.epoch();
        let dead = (0..table.used()).map(Slot);
        let mut dead = dead.filter(|slot| table.state(*slot).0 == State::Dead);
        let has_heard = |slot: Slot| {
            let unit = self.scenario.unit_of(slot.of(self.me.node()));
            self.network.has_told(self.unit, unit)
        };
        if dead.all(has_heard) {
            self.layout.set_seen_epoch(self.me.slot(), epoch);
        }
    }
}

/// A frame under way.
#[derive(Debug)]
pub(crate) struct Parcel {
    from: u32,
    kind: u8,
    arg: u64,
    inline: Vec<u8>,
    body: Vec<u8>,
}

impl Parcel {
    fn of(from: u32, frame: &Outgoing<'_>) -> Parcel {
        let (kind, arg) = (frame.kind, frame.arg);
        Parcel {
            from,
            kind,
            arg,
            inline: frame.inline.to_vec(),
            body: frame.body.to_vec(),
        }
    }

    fn bytes(&self) -> u64 {
        16 + (self.inline.len() + self.body.len()) as u64
    }

    fn incoming(&self, from: PeerId) -> super::Incoming<'_> {
        super::Incoming {
            from,
            kind: self.kind,
            arg: self.arg,
            inline: &self.inline,
            body: Body::Slice(&self.body),
        }
    }
}
