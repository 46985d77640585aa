//! Connections of an agent with the others: calling, greeting, receiving changes, timeouts.

use super::id::{NodeId, NodeLife};
use super::ledger::Feed;
use super::message::{Message, Nonsense, encode, entries};
use super::{Action, Contact, Departure, Link, Membership, Stage, WhyClosed, send};

/// Maximum number of callers that have not identified themselves. A further one is rejected.
const STRANGERS_MAX: usize = 1024;
/// Maximum number of members that one beat complains about.
const UNREACHABLE_MAX: usize = 64;

/// The connection with another node, of which there is at most one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Line {
    /// Not connected since `since`. The agent that calls tries again at `retry`.
    Down {
        since: u64,
        retry: u64,
    },
    /// A call is in progress; not connected since `since`.
    Calling {
        link: Link,
        since: u64,
        begun: u64,
    },
    Up(Up),
    /// The node broke the rules; it is not connected again.
    Broken,
}

/// A connection on which both sides have identified themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Up {
    pub(super) link: Link,
    heard: u64,
    /// Used only by the head.
    pub(super) nodes: Feed,
    slots: Feed,
    /// The members that the node reports as unreachable. Used only by the head.
    pub(super) unreachable: Vec<NodeLife>,
}

/// The agent at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// A caller, connected at this time, that has not identified itself.
    Stranger(u64),
    Node(NodeId),
}

impl Line {
    fn link(&self) -> Option<Link> {
        match self {
            Line::Calling { link, .. } => Some(*link),
            Line::Up(up) => Some(up.link),
            Line::Down { .. } | Line::Broken => None,
        }
    }

    /// Returns since when the line has been down, `None` if it is up.
    fn down_since(&self) -> Option<u64> {
        match self {
            Line::Down { since, .. } | Line::Calling { since, .. } => Some(*since),
            Line::Broken => Some(0),
            Line::Up(_) => None,
        }
    }
}

impl Up {
    /// Creates a connection with a node that knows the node changes and slot changes of this agent
    /// up to the given numbers.
    pub(super) fn new(
        link: Link,
        now: u64,
        nodes: u64,
        slots: u64,
        of: &Membership,
    ) -> Result<Up, Nonsense> {
        let nodes = match &of.head {
            Some(head) => Feed::after(nodes, head.orders())?,
            None => Feed::default(),
        };
        Ok(Up {
            link,
            heard: now,
            nodes,
            slots: Feed::after(slots, &of.slots)?,
            unreachable: Vec::new(),
        })
    }
}

impl Membership {
    /// Returns true if this agent calls `node`, and not the other way round.
    pub(super) fn calls(&self, node: NodeId) -> bool {
        match self.life {
            None => node == NodeId::HEAD,
            Some(_) if node == NodeId::HEAD => self.contact != Contact::Over,
            Some(own) => node < own.node,
        }
    }

    pub(super) fn call(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let since = node.line.down_since().unwrap_or(self.clock);
        self.called += 1;
        let (link, begun) = (Link::Out(self.called), self.clock);
        node.line = Line::Calling { link, since, begun };
        self.links.insert(link, Holder::Node(id));
        let address = node.address.clone();
        self.out.push(Action::Connect { link, address });
    }

    /// Closes the connection with a node, if there is one.
    pub(super) fn hang_up(&mut self, id: NodeId, why: WhyClosed) {
        let link = self.nodes.get(&id).and_then(|node| node.line.link());
        if let Some(link) = link {
            self.out.push(Action::Close { link, why });
            self.closed(link);
        }
    }

    pub(super) fn accepted(&mut self, link: Link) {
        let is_stranger = |holder: &&Holder| matches!(holder, Holder::Stranger(_));
        if self.links.values().filter(is_stranger).count() >= STRANGERS_MAX {
            let why = WhyClosed::TooManyUnnamed;
            self.out.push(Action::Close { link, why });
            return;
        }
        self.links.insert(link, Holder::Stranger(self.clock));
    }

    pub(super) fn closed(&mut self, link: Link) {
        let Some(Holder::Node(id)) = self.links.remove(&link) else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let since = node.line.down_since().unwrap_or(self.clock);
        let retry = self.clock + self.config.beat;
        node.line = Line::Down { since, retry };
    }

    pub(super) fn is_up(&self, id: NodeId) -> bool {
        let line = self.nodes.get(&id).map(|node| &node.line);
        matches!(line, Some(Line::Up(_)))
    }

    pub(super) fn connect_line(&mut self, id: NodeId, up: Up) {
        let link = up.link;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.line = Line::Up(up);
        self.links.insert(link, Holder::Node(id));
        if id == NodeId::HEAD {
            if std::mem::replace(&mut self.contact, Contact::Heard) == Contact::Silent {
                self.out.push(Action::HeadBack);
            }
            if matches!(self.stage, Stage::Leaving(_)) {
                self.out.push(send(link, &Message::Leave));
            }
        }
        self.feed(id);
    }

    pub(super) fn message(&mut self, link: Link, bytes: &[u8]) {
        let Some(holder) = self.links.get(&link).copied() else {
            return;
        };
        let heard = Message::decode(bytes).and_then(|message| match holder {
            Holder::Stranger(_) => self.greeted(link, message),
            Holder::Node(id) if self.is_up(id) => self.told(id, message),
            Holder::Node(id) => self.answered(link, id, message),
        });
        if let Err(Nonsense(why)) = heard {
            self.broke_rules(link, holder, why);
        }
    }

    /// Ends the connection with an agent that broke a rule (N5).
    fn broke_rules(&mut self, link: Link, holder: Holder, why: &'static str) {
        tracing::warn!(?link, ?holder, why, "another agent broke the rules");
        let line = match holder {
            Holder::Node(id) => self.nodes.get_mut(&id).map(|node| (id, &mut node.line)),
            Holder::Stranger(_) => None,
        };
        if self.links.contains_key(&link) {
            let why = WhyClosed::BrokeRule(why);
            self.out.push(Action::Close { link, why });
        }
        match line {
            // Another agent may now have the address of a node that is gone.
            None | Some((_, Line::Calling { .. })) => self.closed(link),
            Some((id, line)) => {
                *line = Line::Broken;
                self.links.remove(&link);
                if self.head.is_some() {
                    self.dismiss(id, Departure::Lost);
                } else if id == NodeId::HEAD {
                    self.lose_head();
                }
            }
        }
    }

    /// Handles a message of a connected member.
    fn told(&mut self, id: NodeId, message: Message<'_>) -> Result<(), Nonsense> {
        let is_head = self.head.is_some();
        let Some(Line::Up(up)) = self.nodes.get_mut(&id).map(|node| &mut node.line) else {
            return Ok(());
        };
        up.heard = self.clock;
        let link = up.link;
        match message {
            Message::Nodes { after, entries } if id == NodeId::HEAD => {
                // Acknowledge first: applying the changes may close the connection.
                let at = self.out.len();
                self.apply_nodes(after, entries)?;
                self.out
                    .insert(at, send(link, &Message::NodesSeen(self.epoch)));
            }
            Message::Slots { after, entries } => {
                let seen = self.apply_slots(id, after, entries)?;
                self.out.push(send(link, &Message::SlotsSeen(seen)));
            }
            Message::NodesSeen(epoch) if is_head => {
                up.nodes.acknowledge(epoch)?;
                self.feed(id);
            }
            Message::SlotsSeen(sequence) => {
                up.slots.acknowledge(sequence)?;
                self.feed(id);
            }
            Message::Beat { unreachable } => {
                let missed: Result<Vec<NodeLife>, Nonsense> =
                    entries(unreachable).take(UNREACHABLE_MAX).collect();
                let missed = missed?;
                if is_head {
                    up.unreachable = missed;
                }
            }
            Message::Leave if is_head => self.dismiss(id, Departure::Left),
            Message::Refused(refusal) => self.was_refused(link, id, refusal),
            _ => return Err(Nonsense("a message that has no place here")),
        }
        Ok(())
    }

    /// Sends a node the changes that it does not know yet.
    pub(super) fn feed(&mut self, id: NodeId) {
        let Some(Line::Up(up)) = self.nodes.get_mut(&id).map(|node| &mut node.line) else {
            return;
        };
        let orders = self.head.as_ref().map(|head| head.orders());
        let nodes = orders.and_then(|orders| {
            up.nodes
                .next(orders, |epoch, node, record| record.entry(epoch, node))
        });
        if let Some((after, entries)) = nodes {
            let entries = &entries;
            self.out
                .push(send(up.link, &Message::Nodes { after, entries }));
        }
        if let Some((after, entries)) = up.slots.next(&self.slots, Self::slot_entry) {
            let entries = &entries;
            self.out
                .push(send(up.link, &Message::Slots { after, entries }));
        }
    }

    pub(super) fn hang_up_on_strangers(&mut self) {
        let (now, silence) = (self.clock, self.config.silence);
        self.links.retain(|link, holder| {
            let is_late = matches!(holder, Holder::Stranger(since) if now - *since > silence);
            if is_late {
                let (link, why) = (*link, WhyClosed::Unnamed);
                self.out.push(Action::Close { link, why });
            }
            !is_late
        });
    }

    /// Does what is due for a node: timeouts, beats, calls.
    pub(super) fn tend(&mut self, id: NodeId, has_beat: bool) {
        let (now, silence) = (self.clock, self.config.silence);
        let Some(node) = self.nodes.get(&id).filter(|node| node.is_member) else {
            return;
        };
        match &node.line {
            Line::Up(up) if now - up.heard > silence => {
                // The outage began with the last message, not now.
                let heard = up.heard;
                self.hang_up(id, WhyClosed::Silent);
                if let Some(node) = self.nodes.get_mut(&id) {
                    let (since, retry) = (heard, now);
                    node.line = Line::Down { since, retry };
                }
            }
            Line::Up(up) if has_beat => {
                let link = up.link;
                let unreachable = match id {
                    NodeId::HEAD => self.unreachable(),
                    _ => Vec::new(),
                };
                let unreachable = &unreachable;
                self.out.push(send(link, &Message::Beat { unreachable }));
            }
            Line::Calling { begun, .. } if now - begun > silence => {
                self.hang_up(id, WhyClosed::Unanswered);
            }
            Line::Down { retry, .. } if now >= *retry && self.calls(id) => self.call(id),
            _ => {}
        }
        let since = self.nodes.get(&id).and_then(|node| node.line.down_since());
        if self.head.is_some() && since.is_some_and(|since| now - since > self.config.grace) {
            self.dismiss(id, Departure::Lost);
        }
    }

    /// Encodes, for a beat to the head, the members that were not reached for `silence`.
    pub(super) fn unreachable(&self) -> Vec<u8> {
        let missed = self.nodes.iter().filter(|(id, node)| {
            let since = node.line.down_since();
            let is_late = since.is_some_and(|since| self.clock - since > self.config.silence);
            **id != NodeId::HEAD && node.is_member && is_late
        });
        let lives = missed.map(|(id, node)| encode(&node.life(*id)));
        lives.take(UNREACHABLE_MAX).flatten().collect()
    }

    /// Reports the head as lost if it has been silent for too long.
    pub(super) fn listen_for_head(&mut self) {
        let line = self.nodes.get(&NodeId::HEAD).map(|head| &head.line);
        let since = line.and_then(Line::down_since);
        let is_late = since.is_some_and(|since| self.clock - since > self.config.silence);
        if is_late && self.contact == Contact::Heard {
            self.contact = Contact::Silent;
            self.out.push(Action::HeadLost { finally: false });
        }
    }
}
