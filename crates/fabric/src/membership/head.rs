//! The decisions of the head: which nodes are members, under which number and in which life.

use super::id::{NodeId, NodeLife};
use super::ledger::Ledger;
use super::links::{Line, Up};
use super::message::{Message, NodeEntry, Nonsense, Standing, VERSION};
use super::{Departure, Link, Membership, NAME_MAX, Refusal, Stage, send};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// State that only the head has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Head {
    orders: Ledger<NodeId, Record>,
}

/// What the head knows of a node number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    incarnation: u32,
    name: Box<str>,
    address: Box<[u8]>,
    departure: Option<Departure>,
}

impl Record {
    pub(super) fn entry(&self, epoch: u64, node: NodeId) -> NodeEntry<'_> {
        let incarnation = self.incarnation;
        let standing = match self.departure {
            Some(how) => Standing::Gone(how),
            None => Standing::Member {
                name: &self.name,
                address: &self.address,
            },
        };
        NodeEntry {
            epoch,
            life: NodeLife { node, incarnation },
            standing,
        }
    }

    fn can_come_back(&self) -> bool {
        self.departure.is_some() && self.incarnation < NodeLife::LAST
    }
}

impl Head {
    pub(super) fn new() -> Head {
        Head {
            orders: Ledger::new(),
        }
    }

    pub(super) fn orders(&self) -> &Ledger<NodeId, Record> {
        &self.orders
    }

    /// Returns the number of the last change.
    pub(super) fn epoch(&self) -> u64 {
        self.orders.last()
    }

    fn records(&self) -> impl Iterator<Item = (NodeId, &Record)> {
        self.orders.after(0).map(|(_, node, record)| (node, record))
    }

    fn member_of_name(&self, name: &str) -> Option<NodeId> {
        let mut members = self.records().filter(|(_, r)| r.departure.is_none());
        let found = members.find(|(_, record)| *record.name == *name);
        found.map(|(node, _)| node)
    }

    /// Returns the next life of the number that this name had, or of a number that was never used,
    /// or of the number that has been unused for longest.
    fn life_for(&self, name: &str, nodes: u32) -> Option<NodeLife> {
        let next = |(node, record): (NodeId, &Record)| NodeLife {
            node,
            incarnation: record.incarnation + 1,
        };
        let mut gone = self.records().filter(|(_, record)| record.can_come_back());
        let own = self
            .records()
            .find(|(_, r)| r.can_come_back() && *r.name == *name);
        // Number 0 is the head's.
        let fresh = self.orders.len() as u32 + 1;
        let fresh = NodeId::new(fresh).filter(|_| fresh < nodes);
        let fresh = fresh.map(|node| NodeLife {
            node,
            incarnation: 0,
        });
        own.map(next).or(fresh).or_else(|| gone.next().map(next))
    }
}

impl Membership {
    /// Handles the request of a node to become a member.
    pub(super) fn join(
        &mut self,
        link: Link,
        version: u32,
        (name, address): (&str, &[u8]),
    ) -> Result<(), Nonsense> {
        if name.is_empty() || name.len() > NAME_MAX || address.len() > NAME_MAX {
            return Err(Nonsense("a name that is empty or too long"));
        }
        match self.admit(version, (name, address)) {
            Err(refusal) => self.refuse(link, refusal),
            Ok(life) => {
                let welcome = Message::Welcome {
                    domain: self.domain,
                    life,
                    name: &self.name,
                };
                self.out.push(send(link, &welcome));
                let up = Up::new(link, self.clock, 0, 0, self)?;
                self.connect_line(life.node, up);
            }
        }
        Ok(())
    }

    fn admit(&mut self, version: u32, (name, address): (&str, &[u8])) -> Result<NodeLife, Refusal> {
        if version != VERSION {
            return Err(Refusal::Version);
        }
        let head = self.head.as_ref().ok_or(Refusal::NotHead)?;
        if self.stage != Stage::Running {
            return Err(Refusal::Ending);
        }
        let before = head.member_of_name(name);
        if *name == *self.name || before.is_some_and(|node| self.is_up(node)) {
            return Err(Refusal::NameTaken);
        }
        if let Some(node) = before {
            // The old connection broke, and the node is back in its next life.
            self.dismiss(node, Departure::Lost);
        }
        let head = self.head.as_ref().ok_or(Refusal::NotHead)?;
        let life = head.life_for(name, self.config.nodes);
        let life = life.ok_or(Refusal::Full)?;
        let record = Record {
            incarnation: life.incarnation,
            name: name.into(),
            address: address.into(),
            departure: None,
        };
        self.order(life.node, record);
        Ok(life)
    }

    /// Ends the membership of a node.
    pub(super) fn dismiss(&mut self, node: NodeId, how: Departure) {
        let record = self.head.as_ref().and_then(|head| head.orders.get(node));
        let Some(record) = record.filter(|record| record.departure.is_none()) else {
            return;
        };
        let record = Record {
            departure: Some(how),
            ..record.clone()
        };
        if let Some(Line::Up(up)) = self.nodes.get(&node).map(|node| &node.line) {
            self.out
                .push(send(up.link, &Message::Refused(Refusal::Gone)));
        }
        self.order(node, record);
    }

    fn order(&mut self, node: NodeId, record: Record) {
        let Some(head) = &mut self.head else {
            return;
        };
        let epoch = head.orders.set(node, record.clone());
        self.apply_node(&record.entry(epoch, node))
            .expect("an order of this agent follows the rules");
    }

    /// The head leaves: from now on, the domain has no authority over nodes.
    pub(super) fn order_end(&mut self) {
        let record = Record {
            incarnation: NodeLife::HEAD.incarnation,
            name: self.name.clone(),
            address: Box::default(),
            departure: Some(Departure::Left),
        };
        self.order(NodeId::HEAD, record);
    }

    /// Removes members that cannot reach each other, one of each pair, until all that remain can.
    pub(super) fn rule(&mut self) {
        while let Some(node) = self.most_missed() {
            tracing::warn!(
                node = node.number(),
                "two nodes do not reach each other: one is lost"
            );
            self.dismiss(node, Departure::Lost);
        }
    }

    /// Returns the node with the most mutual complaints (each of two nodes complains about the
    /// other); among several, the one that joined last.
    fn most_missed(&self) -> Option<NodeId> {
        let mut complaints: BTreeMap<NodeLife, &[NodeLife]> = BTreeMap::new();
        for (node, known) in &self.nodes {
            if let Line::Up(up) = &known.line
                && !up.unreachable.is_empty()
            {
                complaints.insert(known.life(*node), &up.unreachable);
            }
        }
        let missed_by = |who: &NodeLife| complaints.get(who).copied().unwrap_or_default();
        let counted = complaints.iter().map(|(life, missed)| {
            let mutual = missed
                .iter()
                .filter(|other| missed_by(other).contains(life));
            (mutual.count(), *life)
        });
        let joined = |life: &NodeLife| {
            let orders = self.head.as_ref().map(|head| &head.orders);
            orders.and_then(|orders| orders.changed(life.node))
        };
        let most = counted
            .filter(|(mutual, _)| *mutual > 0)
            .min_by_key(|(mutual, life)| Reverse((*mutual, joined(life))));
        most.map(|(_, life)| life.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_lives_left_is_never_used_again() {
        let mut head = Head::new();
        let one = NodeId::new(1).unwrap();
        let record = Record {
            incarnation: NodeLife::LAST,
            name: "a".into(),
            address: Box::default(),
            departure: Some(Departure::Lost),
        };
        head.orders.set(one, record);
        let life = head
            .life_for("a", 3)
            .map(|life| (life.node.number(), life.incarnation));
        assert_eq!(life, Some((2, 0)));
        assert_eq!(head.life_for("a", 2), None);
    }
}
