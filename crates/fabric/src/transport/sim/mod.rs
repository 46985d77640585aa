//! A network in one process: seeded, deterministic, in virtual time.
//!
//! Every unit is a thread, but only one of them runs at a time: a unit that has nothing to do gives
//! up its turn, and the network picks the next unit at random, from its seed. When no unit can run,
//! the time advances to the next event. The same seed gives the same run, message by message. The
//! fabric on top is the one that runs in production.
//!
//! It simulates latency with jitter, bandwidth, full queues, reordering between pairs (within a
//! pair only if the scenario says so), RMA between nodes (`sim/rma`), the death of a unit at a
//! chosen time, late news of that death, and nodes: units of the same node map each other's
//! segments, those of different nodes do not. Nodes join, disappear and return as the agents of
//! `membership` decide (`sim/agents`). It does not simulate corruption: frames arrive whole or not
//! at all.
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

mod agents;
mod network;
mod rma;
mod scenario;
#[cfg(test)]
mod tests;

pub use scenario::Scenario;

use super::lives::{Life, life_of};
use super::{
    Caps, Change, Clock, NotStarted, Outgoing, Push, RawFrame, Registration, RemoteKey, Rma,
    RmaVerb, Sink, Sleep, Transport,
};
use crate::PeerId;
use crate::node::{NodeMember, Slot, State};
use network::{Network, UnitEvent};
use samite_mem::SharedBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How far the time advances at most when a unit yields.
const YIELD: Duration = Duration::from_micros(20);

/// A unit's right to run. The unit passes it on when it sleeps.
#[derive(Debug)]
pub struct Turn {
    network: Arc<Network>,
    unit: u32,
}

impl Turn {
    /// Lets others run. Returns when something has arrived, or after this much virtual time.
    pub(super) fn pass(self, at_most: Duration) {
        self.network.idle(self.unit, at_most);
    }
}

/// The virtual time of a network.
#[derive(Clone, Debug)]
pub struct VirtualClock(Arc<Network>);

impl VirtualClock {
    pub(super) fn now(&self) -> Duration {
        self.0.now()
    }
}

/// One unit's end of the network.
#[derive(Debug)]
pub(crate) struct Sim {
    me: PeerId,
    /// Index of this life of this unit in the network.
    unit: u32,
    node: NodeMember,
    network: Arc<Network>,
    /// The peers that were announced.
    known: BTreeMap<PeerId, Known>,
    /// Frames from lives that the agents have not reported yet.
    early: Vec<Parcel>,
    /// The epoch of which everything has been announced.
    epoch_seen: Option<u64>,
    is_dead: bool,
    empty_polls: u32,
}

/// A peer that was announced.
#[derive(Clone, Copy, Debug)]
struct Known {
    incarnation: u32,
    /// Index of this life in the network; `None` if it is not run.
    unit: Option<u32>,
    is_lost: bool,
}

impl Sim {
    /// Creates the transport of a life of a unit, which is a member of its node.
    fn new(unit: u32, node: NodeMember, network: Arc<Network>) -> Sim {
        Sim {
            me: node.peer(),
            unit,
            node,
            network,
            known: BTreeMap::new(),
            early: Vec::new(),
            epoch_seen: None,
            is_dead: false,
            empty_polls: 0,
        }
    }
}

impl Transport for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn now(&self) -> Duration {
        self.network.now()
    }

    fn clock(&self) -> Clock {
        Clock::Virtual(VirtualClock(self.network.clone()))
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        match self.known.get(&to) {
            Some(Known { unit: Some(to), .. }) => self.network.push(self.unit, *to, frame),
            Some(_) => Push::Done,
            None => Push::Gone,
        }
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut arrived = 0;
        for _ in 0..self.early.len() {
            let frame = self.early.remove(0);
            self.frame(frame, sink);
        }
        while let Some(event) = self.network.take(self.unit) {
            arrived += 1;
            match event {
                UnitEvent::Frame(frame) => self.frame(frame, sink),
                UnitEvent::Rma(step) => self.network.carry_out(step),
                UnitEvent::Completed(completed) => sink.completed(completed),
                UnitEvent::Killed => {
                    self.is_dead = true;
                    let known: Vec<PeerId> = self.known.keys().copied().collect();
                    known.into_iter().for_each(|peer| self.lose(peer, sink));
                    sink.change(Change::AgentLost);
                }
            }
        }
        if self
            .epoch_seen
            .is_none_or(|epoch| !self.node.layout.peers.is_at(epoch))
        {
            self.membership(sink);
        }
        // A program that only polls must not stop the time.
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

    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        self.look_at(peer, sink);
        if self.known.contains_key(&peer) {
            return;
        }
        // The peer is gone: a later poll announces its loss, after its last frames.
        self.announce(peer, sink);
        self.epoch_seen = None;
        if self.is_dead {
            self.lose(peer, sink);
        }
    }

    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        // No other unit runs before this one passes its turn on.
        let (network, unit) = (self.network.clone(), self.unit);
        (!there()).then_some(Sleep::Virtual(Turn { network, unit }))
    }

    fn waker(&self, peer: PeerId) -> Option<Waker> {
        let unit = self.known.get(&peer)?.unit?;
        let network = self.network.clone();
        Some(Waker { network, unit })
    }

    fn yield_now(&mut self) {
        self.network.idle(self.unit, YIELD);
    }

    fn oversubscribed(&self) -> bool {
        true
    }

    fn register(&mut self, bytes: &SharedBytes) -> Option<(Registration, RemoteKey)> {
        let has_rma = self.network.scenario.rma != Rma::None;
        has_rma.then(|| self.network.register(self.unit, bytes))
    }

    fn deregister(&mut self, registration: Registration) {
        self.network.deregister(self.unit, Some(registration));
    }

    fn start(&mut self, to: PeerId, id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        let known = self.known.get(&to).filter(|known| !known.is_lost);
        let unit = known.and_then(|known| known.unit);
        match unit.filter(|_| self.caps_to(to).rma != Rma::None) {
            Some(to) => self.network.start_rma((self.unit, to), id, verb),
            None => Err(Box::new((Push::Gone, verb))),
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.network.deregister(self.unit, None);
    }
}

/// Wakes a unit of the same node after a store that it may be waiting for.
#[derive(Clone, Debug)]
pub struct Waker {
    network: Arc<Network>,
    unit: u32,
}

impl Waker {
    pub(crate) fn wake(&self) {
        self.network.wake(self.unit);
    }
}

impl Sim {
    /// Returns what is possible between this unit and another one.
    fn caps_to(&self, peer: PeerId) -> Caps {
        let scenario = &self.network.scenario;
        let is_near = peer.node() == self.me.node();
        Caps {
            inline_max: samite_mem::ring::INLINE_BYTES as u64,
            body_max: scenario.body_max,
            fragment: 0,
            map: is_near,
            kernel_copy: false,
            sleeps: true,
            rma: if is_near { Rma::None } else { scenario.rma },
            atomics: !is_near && scenario.rma == Rma::NeedsProgress,
            is_ordered: is_near || scenario.is_ordered,
            reports_loss: true,
        }
    }

    /// Returns the state and incarnation of a peer, according to the agents.
    fn standing(&self, peer: PeerId) -> Option<(State, u32)> {
        match peer.node() == self.me.node() {
            true => Some(self.node.layout.peers.state(peer.slot())),
            false => self.node.others.state(peer),
        }
    }

    /// Announces the life of a peer that the agents reported last.
    fn announce(&mut self, peer: PeerId, sink: &mut impl Sink) {
        let info = match peer.node() == self.me.node() {
            true => self.node.layout.peers.info(peer.slot()),
            false => self.node.others.info(peer),
        };
        if let Some(info) = info {
            let known = Known {
                incarnation: info.incarnation,
                unit: self.network.find(peer, info.incarnation),
                is_lost: false,
            };
            self.known.insert(peer, known);
            let caps = self.caps_to(peer);
            sink.change(Change::Joined(info, caps));
        }
    }

    /// Announces that a peer is lost, after the completions of its operations (T10).
    fn lose(&mut self, peer: PeerId, sink: &mut impl Sink) {
        let Some(known) = self.known.get_mut(&peer).filter(|known| !known.is_lost) else {
            return;
        };
        known.is_lost = true;
        let (unit, incarnation) = (known.unit, known.incarnation);
        let lost = unit.map(|unit| self.network.lose_operations(self.unit, unit));
        lost.into_iter()
            .flatten()
            .for_each(|ended| sink.completed(ended));
        sink.change(Change::Lost { peer, incarnation });
    }

    /// Announces the present state of a peer. Returns false if frames of that peer must arrive
    /// first (T4).
    fn look_at(&mut self, peer: PeerId, sink: &mut impl Sink) -> bool {
        let Some((state, incarnation)) = self.standing(peer) else {
            return true;
        };
        let is_alive = state == State::Alive && !self.is_dead;
        if let Some(known) = self.known.get(&peer)
            && !known.is_lost
            && !(is_alive && known.incarnation == incarnation)
        {
            if known
                .unit
                .is_some_and(|from| self.network.is_under_way(from, self.unit))
            {
                return false;
            }
            self.lose(peer, sink);
        }
        let known = self.known.get(&peer);
        if is_alive && known.is_none_or(|known| known.incarnation != incarnation) {
            self.announce(peer, sink);
        }
        true
    }

    /// Announces changes of this node's units, and of the other peers that were announced.
    fn membership(&mut self, sink: &mut impl Sink) {
        let table = &self.node.layout.peers;
        let (epoch, node) = (table.epoch(), self.me.node());
        let near = (0..table.used()).map(|slot| Slot(slot).of(node));
        let all: BTreeSet<PeerId> = near.chain(self.known.keys().copied()).collect();
        let mut is_whole = true;
        for peer in all {
            is_whole &= self.look_at(peer, sink);
        }
        if is_whole {
            self.epoch_seen = Some(epoch);
            self.node.layout.set_seen_epoch(self.me.slot(), epoch);
        }
    }

    /// Delivers a frame; announces its sender first.
    fn frame(&mut self, frame: Parcel, sink: &mut impl Sink) {
        let (peer, incarnation) = frame.life;
        let announced = |sim: &Sim| {
            let known = sim.known.get(&peer)?;
            Some((known.incarnation, known.is_lost))
        };
        // Frames of one life stay in their order.
        if self.early.iter().any(|early| early.life == frame.life) {
            return self.early.push(frame);
        }
        if announced(self) != Some((incarnation, false)) {
            self.look_at(peer, sink);
            let told = self.standing(peer).map(|(_, incarnation)| incarnation);
            match life_of(incarnation, announced(self), told) {
                Life::Known => {}
                Life::Past => return,
                Life::NotYet => return self.early.push(frame),
                Life::Over => {
                    self.announce(peer, sink);
                    self.epoch_seen = None; // Its loss follows its last frame.
                    if announced(self) != Some((incarnation, false)) {
                        return; // Nobody knows any more who it was.
                    }
                }
            }
        }
        sink.frame(frame.frame.incoming(peer));
    }
}

/// A frame in flight.
#[derive(Debug)]
pub(crate) struct Parcel {
    from: u32,
    /// Peer and incarnation of the sender.
    life: (PeerId, u32),
    frame: RawFrame,
}
