//! Membership of a domain of many nodes: one pure state machine per agent, without IO or a clock.
//!
//! The agent of each node owns its slots. The agent of node 0, the **head**, decides about *nodes*.
//! Every agent mirrors both into the roster of its node. Every pair of agents is connected; the
//! agent with the higher number opens the connection.
//!
//! ```text
//!   agent of a new node                     head                           agent of another node
//!     Join {name, address} ------------------>  admits it: epoch e
//!     <---------------- Welcome {life}          Nodes [e: member] ----------------->
//!     <---------------- Nodes, Slots            <--------------------------- NodesSeen(e)
//!     NodesSeen, SlotsSeen ------------------>
//!     Hello {from, to, what it knows} ----------------------------------------->  is it a member?
//!     <------------------------------------------------------------------- Hello
//!     <----------------- Slots, and SlotsSeen back, both ways ------------------>
//!     Beat, on each connection, at regular intervals
//! ```
//!
//! # Who decides what
//! * **A slot** belongs to the agent of its node, which numbers the changes.
//! * **A node** belongs to the head. The head assigns numbers and incarnations (a node that returns
//!   under the same name gets the same number, in the next life) and numbers the changes: that
//!   number is the epoch. The head declares a node lost if its connection has been down for
//!   [`Config::grace`], if it has been silent for [`Config::silence`], or if it breaks the rules.
//!   If two members have not reached *each other* for `silence`, the head declares one of them
//!   lost: the one that more members complain about, otherwise the one that joined later.
//! * **No other agent declares a node lost.** An agent that is cut off keeps what it knows and
//!   reports only that the head is silent ([`Action::HeadLost`]); its view can only be out of date.
//!   If a node is declared lost but is still running, all agents refuse it. It learns this from the
//!   head alone ([`Action::Fenced`]) and starts again in another life.
//!
//! # When the head dies
//! There is no successor. The other nodes keep their connections, slots and messages, but no node
//! can join, and the loss of a node is not noticed; `samite run` ends the job. A head that is
//! restarted begins another domain; when members of the old domain reach it, they learn that theirs
//! is over. The head runs on the node of the first unit and the launcher, so most jobs end with
//! that node anyway. A successor that cannot disagree with a head that is merely cut off needs a
//! majority, which a domain of two nodes does not have. A head that leaves takes its own units with
//! it.
//!
//! # Invariants
//! N1 A change of a node has one epoch and one content; agents apply changes in increasing order of
//!    epoch. An agent that is behind may skip a change that a later change of the same node
//!    replaced.
//! N2 Incarnations of nodes and slots only increase, also across lives of a node
//!    ([`NodeLife::incarnations`]). No agent ever sees a lost life as alive again.
//! N3 The end of a unit's life is reported once, and after its beginning. The end of a node is
//!    reported after the ends of its units, which come in order of slots.
//! N4 The state of an agent grows with the number of nodes and slots: 8 bytes per slot of another
//!    node, and two words per follower and table (`ledger`). Per connection, at most one piece of
//!    each table is in flight, and the other messages of one `silence`.
//! N5 A message that breaks a rule ends the connection with its sender, for the rest of that life.
//!    The part of the message before the violation counts; nothing after it does. The head declares
//!    such a sender lost. A member that receives such a message from the head reports the head as
//!    lost for good.
//!
//! Not guaranteed: that all agents have received the same changes when the head dies; that a member
//! uses its own name (the only check on a connection is the domain's secret); a small number of
//! messages (each agent sends a beat to every other agent).
//!
//! # For the driver of the machine
//! * Carry out actions in order. Messages on a connection arrive in order or not at all;
//!   [`Event::Closed`] comes after the last one, and nothing follows it. [`Action::Close`] lets
//!   everything go out that was sent before.
//! * Deliver [`Event::Tick`] about every [`Config::beat`], after the messages that have arrived by
//!   then. A tick advances the time by at most one beat, however long the agent was stopped: it
//!   processes what arrived meanwhile, and has answered the calls of nodes that reconnect, before
//!   it considers anyone silent or gone.
//! * Report a slot as free only some beats after its unit is dead. A unit that no agent has seen
//!   alive or dead is not reported, and what it sent may still be in flight.
//! * Deliver what has arrived from a unit before the unit is shown as lost (T4 of
//!   [`transport`](crate::transport)).
//! * The machine refuses agents of old lives. The code that receives messages of *units* asks the
//!   roster for their present incarnation.
//!
//! # Files
//! `event` (events and actions) · `id` (nodes, lives) · `message` (what agents send) · `ledger` (a
//! table that numbers its changes) · `mirror` (slots of another node) · `nodes` (changes of nodes)
//! · `head` (the decisions of the head) · `greeting` (the first messages of two agents) · `links`
//! (connections)

mod event;
mod greeting;
mod head;
mod id;
mod ledger;
mod links;
mod message;
mod mirror;
mod nodes;
#[cfg(test)]
mod tests;

pub(crate) use event::{Action, Departure, Event, Link, Refusal, WhyClosed};
pub(crate) use id::{NodeId, NodeLife};
pub(crate) use message::MESSAGE_MAX;

use crate::Slot;
use crate::node::State;
use head::Head;
use ledger::Ledger;
use links::{Holder, Line};
use message::{Message, SlotEntry};
use nodes::Node;
use samite_mem::PEERS_MAX;
use std::collections::BTreeMap;

/// Maximum size in bytes of what a unit states about itself.
pub(crate) const IDENTITY_MAX: usize = 1024;
/// Maximum length in bytes of a node's name, and of its address.
pub(crate) const NAME_MAX: usize = 255;

/// Deadlines, in milliseconds, and sizes. They are the same for all agents of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Config {
    /// Interval at which an agent sends beats, and calls again the nodes that it did not reach.
    pub beat: u64,
    /// An agent that has sent nothing for this long is considered gone; several beats.
    pub silence: u64,
    /// How long a node whose connection broke may take to reconnect to the head; some beats.
    pub grace: u64,
    /// Maximum number of node numbers. When all are used, a new name gets the number of the node
    /// that has been gone for longest.
    pub nodes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            beat: 500,
            silence: 10_000,
            grace: 2_000,
            nodes: 4096,
        }
    }
}

/// The membership as one agent sees it; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Membership {
    config: Config,
    name: Box<str>,
    address: Box<[u8]>,
    domain: u64,
    /// `None` until the head has admitted this node.
    life: Option<NodeLife>,
    slots: Ledger<Slot, OwnSlot>,
    /// Set only at the head.
    head: Option<Head>,
    /// All other nodes, including those that are gone.
    nodes: BTreeMap<NodeId, Node>,
    /// Epoch of the last change of a node that was applied here.
    epoch: u64,
    links: BTreeMap<Link, Holder>,
    called: u64,
    /// Milliseconds counted so far: see [`Membership::tick`].
    clock: u64,
    ticked: Option<u64>,
    /// When this agent last sent beats.
    beaten: u64,
    contact: Contact,
    stage: Stage,
    /// Actions of the current event; empty between events.
    out: Vec<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OwnSlot {
    incarnation: u32,
    state: State,
    identity: Box<[u8]>,
}

/// State of the contact with the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Contact {
    Heard,
    Silent,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Joining, or a member.
    Running,
    /// Leaving since this time.
    Leaving(u64),
    Over,
}

impl Membership {
    /// Creates the head of a new domain. `domain` is a random number that no other life of the
    /// domain has.
    pub(crate) fn head(config: Config, domain: u64, name: &str, address: &[u8]) -> Membership {
        let mut head = Membership::new(config, name, address);
        head.domain = domain;
        head.life = Some(NodeLife::HEAD);
        head.head = Some(Head::new());
        head
    }

    /// Creates a node that joins the domain whose head has the address `head`, from the first
    /// [`Event::Tick`] on. It calls until it is admitted or refused, and reports
    /// [`Action::HeadLost`] when that has taken [`Config::silence`]. A name that a connected member
    /// has is refused until that member is gone.
    pub(crate) fn member(config: Config, name: &str, address: &[u8], head: &[u8]) -> Membership {
        let mut member = Membership::new(config, name, address);
        member.nodes.insert(NodeId::HEAD, Node::new(0, head, 0));
        member
    }

    fn new(config: Config, name: &str, address: &[u8]) -> Membership {
        assert!(name.len() <= NAME_MAX && address.len() <= NAME_MAX);
        Membership {
            config,
            name: name.into(),
            address: address.into(),
            domain: 0,
            life: None,
            slots: Ledger::new(),
            head: None,
            nodes: BTreeMap::new(),
            epoch: 0,
            links: BTreeMap::new(),
            called: 0,
            clock: 0,
            ticked: None,
            beaten: 0,
            contact: Contact::Heard,
            stage: Stage::Running,
            out: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn life(&self) -> Option<NodeLife> {
        self.life
    }

    /// Returns true if a life of another node is a member now, as far as this agent knows. Only
    /// then do its messages count.
    pub(crate) fn is_member(&self, life: NodeLife) -> bool {
        let node = self.nodes.get(&life.node);
        node.is_some_and(|node| node.is_member && node.incarnation == life.incarnation)
    }

    /// Processes an event and returns the actions to take, in order; none after the machine has
    /// ended.
    pub(crate) fn on_event(&mut self, event: Event<'_>) -> Vec<Action> {
        if self.stage == Stage::Over {
            return Vec::new();
        }
        let before = self.news();
        match event {
            Event::Tick { now } => self.tick(now),
            Event::Accepted { link } => self.accepted(link),
            Event::Connected { link } => self.connected(link),
            Event::Closed { link } => self.closed(link),
            Event::Message { link, bytes } => self.message(link, bytes),
            Event::Slot {
                slot,
                incarnation,
                state,
                identity,
            } => self.own_slot(slot, incarnation, state, identity),
            Event::Leave => self.leave(),
        }
        // Changes of this event go to all connected agents at once, not only at the next tick.
        if self.news() != before {
            for node in self.ids() {
                self.feed(node);
            }
        }
        self.end_if_left();
        // Once, after all entries, so that units read them all.
        if self.out.iter().any(Action::writes_roster) {
            self.out.push(Action::RaiseEpoch);
        }
        std::mem::take(&mut self.out)
    }

    /// Increases whenever there is something new to send to other agents.
    fn news(&self) -> (u64, u64) {
        (
            self.slots.last(),
            self.head.as_ref().map_or(0, |head| head.epoch()),
        )
    }

    fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    fn own_slot(&mut self, slot: Slot, incarnation: u32, state: State, identity: &[u8]) {
        let life = self.life.expect("units join a member");
        assert!(life.incarnations().contains(&incarnation) && identity.len() <= IDENTITY_MAX);
        assert!(slot.index() < PEERS_MAX, "{slot} of a node");
        let before = self.slots.get(slot);
        if before.is_some_and(|own| (own.incarnation, own.state) == (incarnation, state)) {
            return;
        }
        let identity = match state {
            State::Free => Box::default(),
            State::Alive | State::Dead => identity.into(),
        };
        let own = OwnSlot {
            incarnation,
            state,
            identity,
        };
        self.slots.set(slot, own);
    }

    /// Returns the entry about a slot that other agents receive.
    fn slot_entry(sequence: u64, slot: Slot, own: &OwnSlot) -> SlotEntry<'_> {
        SlotEntry {
            sequence,
            slot,
            incarnation: own.incarnation,
            state: own.state,
            identity: &own.identity,
        }
    }

    /// Advances the time. A jump counts as one beat.
    fn tick(&mut self, now: u64) {
        let last = self.ticked.replace(now).unwrap_or(now);
        let step = now.saturating_sub(last);
        self.clock += step.min(self.config.beat);
        let has_beat = self.clock - self.beaten >= self.config.beat;
        if has_beat {
            self.beaten = self.clock;
        }
        self.hang_up_on_strangers();
        for node in self.ids() {
            self.tend(node, has_beat);
        }
        if self.head.is_some() {
            self.rule();
        } else {
            self.listen_for_head();
        }
    }

    fn leave(&mut self) {
        if self.stage != Stage::Running {
            return;
        }
        self.stage = Stage::Leaving(self.clock);
        if self.head.is_some() {
            self.order_end();
        } else if let Some(line) = self.nodes.get(&NodeId::HEAD).map(|head| &head.line)
            && let Line::Up(up) = line
        {
            self.out.push(send(up.link, &Message::Leave));
        }
    }

    /// Ends the machine if this node is leaving and need not wait for any other agent.
    fn end_if_left(&mut self) {
        let Stage::Leaving(since) = self.stage else {
            return;
        };
        let is_done = match &self.head {
            Some(head) => {
                let knows = |node: &Node| match &node.line {
                    Line::Up(up) => up.nodes.seen() == head.epoch(),
                    _ => true,
                };
                self.nodes.values().all(knows) || self.clock - since > self.config.silence
            }
            None => self.life.is_none() || self.contact != Contact::Heard,
        };
        if is_done {
            self.end(Action::Left);
        }
    }

    /// Ends the machine.
    fn end(&mut self, last: Action) {
        for link in std::mem::take(&mut self.links).into_keys() {
            let why = WhyClosed::Over;
            self.out.push(Action::Close { link, why });
        }
        self.nodes.clear();
        self.stage = Stage::Over;
        self.out.push(last);
    }
}

fn send(link: Link, message: &Message<'_>) -> Action {
    Action::Send {
        link,
        bytes: message.encode(),
    }
}
