//! The agents of the simulated nodes. Each is a state machine of [`crate::membership`]. Their
//! messages take as long as a frame, and what they learn about other nodes is written to the roster
//! of their own node.

use super::Scenario;
use super::network::{Event, State};
use crate::membership::{Action, Config, Event as NodeEvent, Link, Membership, NodeLife};
use crate::node::{Others, SimulatedNode, Slot, State as SlotState};
use crate::{Identity, PeerId};
use std::collections::BTreeSet;
use std::time::Duration;

/// In milliseconds of virtual time.
const CONFIG: Config = Config {
    beat: 100,
    silence: 1000,
    grace: 300,
    nodes: 4096,
};
/// Shared memory per unit of a node.
const OF_UNIT: u64 = 64 << 20;

/// One life of an agent, and of its node.
#[derive(Debug)]
pub(super) struct Host {
    number: u32,
    machine: Membership,
    /// Set once the agent is a member.
    pub(super) node: Option<SimulatedNode>,
    pub(super) is_alive: bool,
    called: u64,
    /// Lives of its slots that had ended at the last beat.
    over: BTreeSet<(Slot, u32)>,
}

/// An input of an agent.
#[derive(Debug)]
pub(super) enum Heard {
    /// A beat has passed.
    Beat,
    /// Slots of its own node may have changed.
    Slots,
    Accepted(Link),
    Connected(Link),
    Closed(Link),
    Message(Link, Vec<u8>),
}

/// The other end of a connection, and the arrival time of the last message to it.
#[derive(Debug)]
pub(super) struct Far {
    host: usize,
    link: Link,
    last: Duration,
}

impl State {
    /// Starts the agent of a node, for the first time or after a loss.
    pub(super) fn start_host(&mut self, number: u32, scenario: &Scenario) {
        let (name, address) = (format!("node {number}"), number.to_le_bytes());
        let machine = match number {
            0 => Membership::head(CONFIG, scenario.seed, &name, &address),
            _ => Membership::member(CONFIG, &name, &address, &0u32.to_le_bytes()),
        };
        let host = self.hosts.len();
        self.hosts.push(Host {
            number,
            machine,
            node: None,
            is_alive: true,
            called: 0,
            over: BTreeSet::new(),
        });
        if number == 0 {
            self.open_node(host, NodeLife::HEAD, scenario);
        }
        self.hear(host, Heard::Beat, scenario);
    }

    /// A node has become a member: starts its units.
    fn open_node(&mut self, host: usize, life: NodeLife, scenario: &Scenario) {
        let number = self.hosts[host].number;
        assert_eq!(
            life.node.number(),
            number,
            "nodes join in the order of their numbers"
        );
        let units: Vec<u32> = scenario.units_of(number).collect();
        let mut node = SimulatedNode::create(life, units.len() as u64 * OF_UNIT)
            .unwrap_or_else(|error| panic!("a node could not be made: {error}"));
        for unit in units {
            let incarnation = node.admit(&scenario.identity(unit));
            let incarnation = incarnation.expect("a node has room for its units");
            let mut lives = self.units.iter_mut();
            let life = lives.find(|life| life.unit == unit && life.host.is_none());
            let life = life.expect("each life of a unit was counted");
            (life.host, life.incarnation, life.wakes) = (Some(host), incarnation, Some(self.now));
        }
        let identity = Others::encode(&Identity::by_hand("bystander"), 0, &[]);
        for unit in 0..scenario.bystanders {
            let (peer, incarnation) = (scenario.bystander(unit), 1);
            let identity = identity.as_slice().into();
            node.others
                .learn(peer, incarnation, SlotState::Alive, identity);
        }
        self.hosts[host].node = Some(node);
        self.make(self.now, Event::Agent(host, Heard::Slots));
    }

    /// Returns true if all running nodes know all of each other's units.
    pub(super) fn is_settled(&self, scenario: &Scenario) -> bool {
        let running = self.units.iter().filter(|unit| unit.host.is_some()).count();
        self.hosts.iter().all(|host| {
            let own = scenario.units_of(host.number).count();
            let others = host.node.as_ref().map(|node| node.others.len());
            others == Some(running - own + scenario.bystanders as usize)
        })
    }

    /// Passes an input to an agent and carries out the resulting actions.
    pub(super) fn hear(&mut self, host: usize, heard: Heard, scenario: &Scenario) {
        if !self.hosts[host].is_alive {
            return;
        }
        let told = match &heard {
            Heard::Beat => {
                let beat = Duration::from_millis(CONFIG.beat);
                self.make(self.now + beat, Event::Agent(host, Heard::Beat));
                self.tell_slots(host, true, scenario);
                NodeEvent::Tick {
                    now: self.now.as_millis() as u64,
                }
            }
            Heard::Slots => return self.tell_slots(host, false, scenario),
            Heard::Accepted(link) => NodeEvent::Accepted { link: *link },
            Heard::Connected(link) => NodeEvent::Connected { link: *link },
            Heard::Closed(link) => {
                self.ends.remove(&(host, *link));
                NodeEvent::Closed { link: *link }
            }
            Heard::Message(link, bytes) => NodeEvent::Message { link: *link, bytes },
        };
        self.tell(host, told, scenario);
    }

    fn tell(&mut self, host: usize, told: NodeEvent<'_>, scenario: &Scenario) {
        for action in self.hosts[host].machine.on_event(told) {
            self.act(host, action, scenario);
        }
    }

    /// Reports the state of its own slots to an agent. A slot is reported free one beat after the
    /// end of its unit, because what the unit sent may still be in flight to nodes that do not know
    /// the unit yet. The node leaves one beat after all of its units have left.
    fn tell_slots(&mut self, host: usize, is_beat: bool, scenario: &Scenario) {
        let mut units = self.units.iter().filter(|unit| unit.host == Some(host));
        // The thread of a dead unit uses its memory until the thread ends.
        let have_ended = units.all(|unit| unit.alive || unit.wakes.is_none());
        let Host { node, over, .. } = &mut self.hosts[host];
        let Some(node) = node else { return };
        let mut slots = node.slots(have_ended);
        let now: BTreeSet<(Slot, u32)> = slots
            .iter()
            .filter(|(_, state, _)| *state != SlotState::Alive)
            .map(|(slot, _, incarnation)| (*slot, *incarnation))
            .collect();
        let is_over = over.len() == slots.len();
        for (_, state, _) in slots
            .iter_mut()
            .filter(|slot| !over.contains(&(slot.0, slot.2)))
        {
            *state = (*state).min(SlotState::Dead);
        }
        if is_beat {
            *over = now;
        }
        let number = self.hosts[host].number;
        for (slot, state, incarnation) in slots {
            let unit = scenario.unit_of(slot.of(number));
            let identity = &Others::encode(&scenario.identity(unit), 0, &[]);
            let told = NodeEvent::Slot {
                slot,
                incarnation,
                state,
                identity,
            };
            self.tell(host, told, scenario);
        }
        let mut units = self.units.iter().filter(|unit| unit.host == Some(host));
        if number != 0 && is_over && units.all(|unit| unit.has_left) {
            self.tell(host, NodeEvent::Leave, scenario);
        }
    }

    fn act(&mut self, host: usize, action: Action, scenario: &Scenario) {
        match action {
            Action::Connect { link, address } => {
                // The address names the latest living agent of the node; without one, the call
                // fails.
                let callee = self
                    .hosts
                    .iter()
                    .rposition(|other| other.is_alive && other.number.to_le_bytes() == *address);
                let there = self.flight_of_agents(scenario);
                let Some(callee) = callee else {
                    return self.make(there, Event::Agent(host, Heard::Closed(link)));
                };
                self.hosts[callee].called += 1;
                let other = Link::In(self.hosts[callee].called);
                let back = there + (self.flight_of_agents(scenario) - self.now);
                let end = |host, link, last| Far { host, link, last };
                self.ends.insert((host, link), end(callee, other, there));
                self.ends.insert((callee, other), end(host, link, back));
                self.make(there, Event::Agent(callee, Heard::Accepted(other)));
                self.make(back, Event::Agent(host, Heard::Connected(link)));
            }
            Action::Send { link, bytes } => {
                self.send(host, link, |link| Heard::Message(link, bytes), scenario);
            }
            Action::Close { link, .. } => {
                self.send(host, link, Heard::Closed, scenario);
                self.ends.remove(&(host, link));
            }
            Action::Admitted { life, .. } => self.open_node(host, life, scenario),
            Action::RaiseEpoch => {
                if let Some(node) = &self.hosts[host].node {
                    node.raise_epoch();
                }
                self.wake_node(host);
            }
            Action::Fenced => self.lose_host(host),
            Action::Left => self.hosts[host].is_alive = false,
            Action::NotAdmitted(_) | Action::HeadLost { .. } if self.hosts[host].node.is_none() => {
                panic!("node {} cannot join: {action:?}", self.hosts[host].number);
            }
            Action::Unit {
                peer,
                incarnation,
                state,
                identity,
            } => {
                if let Some(node) = &self.hosts[host].node {
                    node.others.learn(peer, incarnation, state, identity);
                }
            }
            _ => {}
        }
    }

    /// Returns the arrival time of a message that an agent sends now. Agents have their own random
    /// numbers, so those of the units do not depend on the number of agents.
    fn flight_of_agents(&mut self, scenario: &Scenario) -> Duration {
        std::mem::swap(&mut self.random, &mut self.random_of_agents);
        let at = self.flight(&scenario.latency);
        std::mem::swap(&mut self.random, &mut self.random_of_agents);
        at
    }

    /// Sends a message on a connection; it arrives after the earlier ones.
    fn send(
        &mut self,
        host: usize,
        link: Link,
        heard: impl FnOnce(Link) -> Heard,
        scenario: &Scenario,
    ) {
        let flight = self.flight_of_agents(scenario);
        if let Some(far) = self.ends.get_mut(&(host, link)) {
            far.last = far.last.max(flight);
            let (at, host, link) = (far.last, far.host, far.link);
            self.make(at, Event::Agent(host, heard(link)));
        }
    }

    pub(super) fn lose_node(&mut self, number: u32) {
        let is_it = |host: &Host| host.number == number && host.is_alive;
        if let Some(host) = self.hosts.iter().position(is_it) {
            self.lose_host(host);
        }
    }

    /// Reports the loss of a unit that is not run, as all others see it.
    pub(super) fn lose_bystander(&mut self, peer: PeerId) {
        for host in 0..self.hosts.len() {
            if let Some(node) = &self.hosts[host].node {
                node.others.learn(peer, 1, SlotState::Dead, Box::default());
                node.raise_epoch();
            }
            self.wake_node(host);
        }
    }

    /// Removes a node: its units die and its connections break.
    fn lose_host(&mut self, host: usize) {
        self.hosts[host].is_alive = false;
        let of_host: Vec<(usize, Link)> = self
            .ends
            .range((host, Link::Out(0))..(host + 1, Link::Out(0)))
            .map(|(end, _)| *end)
            .collect();
        for end in of_host {
            if let Some(far) = self.ends.remove(&end) {
                let at = self.news().max(far.last);
                self.make(at, Event::Agent(far.host, Heard::Closed(far.link)));
            }
        }
        for unit in 0..self.units.len() as u32 {
            if self.units[unit as usize].host == Some(host) {
                self.die(unit);
            }
        }
    }

    /// The agent of a unit's node notices that the unit is gone.
    pub(super) fn part(&mut self, unit: u32, scenario: &Scenario) {
        let unit = &self.units[unit as usize];
        let (Some(host), slot) = (unit.host, scenario.peer_of(unit.unit).slot()) else {
            return;
        };
        if let Some(node) = &self.hosts[host].node {
            node.part(slot);
        }
        self.wake_node(host);
        self.hear(host, Heard::Slots, scenario);
    }

    /// Wakes the units of a node after its epoch was raised.
    fn wake_node(&mut self, host: usize) {
        let now = self.now;
        for unit in self.units.iter_mut().filter(|unit| unit.host == Some(host)) {
            unit.wake(now);
        }
    }
}
