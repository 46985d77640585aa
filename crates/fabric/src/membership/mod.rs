//! Membership of a domain of many nodes: one pure state machine per agent, without IO or clock.
//!
//! The agent of each node owns its slots. The agent of node 0, the **head**, orders *nodes*. Every
//! agent mirrors both into the roster of its node. All pairs of agents are connected: the one with
//! the higher number calls.
//!
//! ```text
//!   agent of a new node                     head                           agent of another node
//!     Join {name, address} ------------------>  orders it: epoch e
//!     <---------------- Welcome {life}          Nodes [e: member] ----------------->
//!     <---------------- Nodes, Slots            <--------------------------- NodesSeen(e)
//!     NodesSeen, SlotsSeen ------------------>
//!     Hello {from, to, what it knows} ----------------------------------------->  is it a member?
//!     <------------------------------------------------------------------- Hello
//!     <----------------- Slots, and SlotsSeen back, both ways ------------------>
//!     Beat, on each connection, all the time
//! ```
//!
//! # Who decides what
//! * **A slot** belongs to its node's agent, which numbers its changes.
//! * **A node** belongs to the head. It gives numbers and incarnations (a name that comes back gets
//!   its number back, in the next life) and numbers the changes: that is the epoch. It declares a
//!   node lost whose connection has been down for [`Config::grace`], that has been silent for
//!   [`Config::silence`] or breaks the rules; and one of two members that have not reached *each
//!   other* for `silence`: the one that more members complain of, else the one that joined later.
//! * **Nobody else declares a node lost.** An agent that is cut off keeps what it knows, and says
//!   only that the head is silent ([`Action::HeadLost`]): one is at most behind. A node that was
//!   declared lost and lives is refused by all, learns it from the head alone
//!   ([`Action::Fenced`]), and starts again as another life.
//!
//! # When the head dies
//! There is no successor. The other nodes keep their connections, slots and messages, but no node
//! can join, and no loss of a node is noticed; `samite run` ends the job. A head that is started
//! again begins another domain, from which the members of the old one learn that theirs is over.
//! The head runs beside the first unit and its launcher, so most jobs end with its node anyway; a
//! successor that cannot disagree with a head that is merely cut off needs a majority, which a
//! domain of two nodes does not have. A head that leaves takes its own units with it.
//!
//! # Invariants
//! N1 A change of a node has one epoch and one content; agents apply changes by rising epoch. One
//!    that is behind may skip a change that a later one of the same node replaced.
//! N2 Incarnations of nodes and of slots only rise, also over lives of the node
//!    ([`NodeLife::incarnations`]): a life that was lost is never alive again, for anybody.
//! N3 The end of a unit's life is reported once, and after its beginning; of a node, first its
//!    units by slot, then itself.
//! N4 What an agent keeps grows with nodes and slots: 8 bytes per slot of others, and two words per
//!    follower and table (`ledger`). Per connection at most one piece of each table is under way,
//!    and what is said within `silence`.
//! N5 A message that breaks a rule ends the connection with its sender, for the rest of that life;
//!    what the message said before that point counts, and nothing after it. The head takes such a
//!    sender for lost; a member that hears it from the head reports the head as lost for good.
//!
//! Not guaranteed: that all have heard the same when the head dies; that a member uses its own name
//! (a connection says only who may call: the domain's secret); few messages (each agent sends a
//! beat to each other one).
//!
//! # For whoever runs it
//! * Carry out actions in order. Messages of a connection arrive in order or not at all;
//!   [`Event::Closed`] comes after the last one, and nothing after it. [`Action::Close`] lets what
//!   was sent before go out.
//! * [`Event::Tick`] comes about every [`Config::beat`], after the messages that have arrived by
//!   then. Time counts at most a quarter of `silence` per tick, so an agent that was stopped hears
//!   what others said meanwhile before it takes them for silent.
//! * Tell that a slot is free some beats after its unit is dead: one that nobody has seen alive or
//!   dead is not told of, and what it has sent may be on its way.
//! * Before a unit is shown as lost, deliver what has arrived of it (T4 of
//!   [`transport`](crate::transport)).
//! * The machine refuses agents of old lives. Whoever takes messages of *units* asks the roster in
//!   which life they are.
//!
//! # Files
//! `event` (what happens, what has to be done) · `id` (nodes, lives) · `message` (what agents say)
//! · `ledger` (a table that tells its changes) · `mirror` (slots of another node) · `nodes`
//! (changes of nodes) · `head` (the orders) · `greeting` (how two agents begin) · `links`
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

pub(crate) use event::{Action, Departure, Event, Link, Refusal};
pub(crate) use id::{NodeId, NodeLife};

use crate::Slot;
use crate::node::State;
use head::Head;
use ledger::Ledger;
use links::{Holder, Line};
use message::{Message, SlotEntry};
use nodes::Node;
use samite_mem::PEERS_MAX;
use std::collections::BTreeMap;

/// Most bytes of what a unit says of itself.
pub(crate) const IDENTITY_MAX: usize = 1024;
/// Most bytes of the name of a node, and of its address.
pub(crate) const NAME_MAX: usize = 255;

/// Deadlines, in milliseconds, and sizes. The same at all agents of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Config {
    /// How often an agent says that it lives, and calls again who was not reached.
    pub beat: u64,
    /// Who has said nothing for so long is taken for gone; several beats.
    pub silence: u64,
    /// How long a node whose connection broke may take to come back to the head.
    pub grace: u64,
    /// Most numbers of nodes: a name that comes when all are used gets that of the node that has
    /// been gone for longest.
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

/// The membership as one agent sees it; see the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Membership {
    config: Config,
    name: Box<str>,
    address: Box<[u8]>,
    domain: u64,
    /// `None` until the head has welcomed it.
    life: Option<NodeLife>,
    slots: Ledger<Slot, OwnSlot>,
    /// Only at the head.
    head: Option<Head>,
    /// All others, with those that are gone.
    nodes: BTreeMap<NodeId, Node>,
    /// Epoch of the last change of a node that was applied.
    epoch: u64,
    links: BTreeMap<Link, Holder>,
    called: u64,
    /// Milliseconds that count: see [`Membership::tick`].
    clock: u64,
    ticked: Option<u64>,
    /// When it last said that it lives.
    beaten: u64,
    contact: Contact,
    stage: Stage,
    /// What the present event asks for; empty between two events.
    out: Vec<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OwnSlot {
    incarnation: u32,
    state: State,
    identity: Box<[u8]>,
}

/// With the head.
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
    /// Since when.
    Leaving(u64),
    Over,
}

impl Membership {
    /// The head of a new domain. `domain` is a random number: no other life of the domain has it.
    pub(crate) fn head(config: Config, domain: u64, name: &str, address: &[u8]) -> Membership {
        let mut head = Membership::new(config, name, address);
        head.domain = domain;
        head.life = Some(NodeLife::HEAD);
        head.head = Some(Head::new());
        head
    }

    /// A node that joins the domain whose head has an address, from the first [`Event::Tick`] on.
    /// It calls until it is admitted or refused, and says [`Action::HeadLost`] when that has taken
    /// [`Config::silence`]. A name that a connected member has is refused until that one is gone.
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

    /// Whether a life of another node is a member now, as far as is known here: what it says
    /// counts.
    pub(crate) fn is_member(&self, life: NodeLife) -> bool {
        let node = self.nodes.get(&life.node);
        node.is_some_and(|node| node.is_member && node.incarnation == life.incarnation)
    }

    /// Takes an event; what has to be done, in order. After the machine has ended, nothing.
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
        if self.news() != before {
            for node in self.ids() {
                self.feed(node);
            }
        }
        self.end_if_left();
        if self.out.iter().any(Action::writes_roster) {
            self.out.push(Action::RaiseEpoch);
        }
        std::mem::take(&mut self.out)
    }

    /// Rises with what others have to be told.
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

    /// What others are told of a slot.
    fn slot_entry(sequence: u64, slot: Slot, own: &OwnSlot) -> SlotEntry<'_> {
        SlotEntry {
            sequence,
            slot,
            incarnation: own.incarnation,
            state: own.state,
            identity: &own.identity,
        }
    }

    /// Time goes on. A jump of it counts a quarter of `silence` at most.
    fn tick(&mut self, now: u64) {
        let last = self.ticked.replace(now).unwrap_or(now);
        let step = now.saturating_sub(last);
        self.clock += step.min(self.config.silence / 4);
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

    /// Whether there is nobody to wait for any more before this node has left.
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

    /// The machine ends.
    fn end(&mut self, last: Action) {
        for link in std::mem::take(&mut self.links).into_keys() {
            let why = "the agent has ended";
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
