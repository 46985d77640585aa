//! What every agent does with reported changes of nodes and slots. The head applies its own
//! decisions in the same way.

use super::id::{NodeId, NodeLife};
use super::links::Line;
use super::message::{NodeEntry, Nonsense, SlotEntry, Standing, entries};
use super::mirror::Mirror;
use super::{
    Action, Contact, Departure, IDENTITY_MAX, Membership, NAME_MAX, Stage, State, WhyClosed,
};

/// Another node, in its present or its last life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) incarnation: u32,
    pub(super) is_member: bool,
    /// Empty if the node is gone, as is the mirror.
    pub(super) address: Box<[u8]>,
    pub(super) mirror: Mirror,
    pub(super) line: Line,
}

impl Node {
    /// Creates a member that has not been reached yet.
    pub(super) fn new(incarnation: u32, address: &[u8], now: u64) -> Node {
        Node {
            incarnation,
            is_member: true,
            address: address.into(),
            mirror: Mirror::default(),
            line: Line::Down {
                since: now,
                retry: now,
            },
        }
    }

    pub(super) fn life(&self, node: NodeId) -> NodeLife {
        let incarnation = self.incarnation;
        NodeLife { node, incarnation }
    }

    fn gone(incarnation: u32) -> Node {
        Node {
            is_member: false,
            ..Node::new(incarnation, &[], 0)
        }
    }
}

impl Membership {
    /// Applies node changes from the head.
    pub(super) fn apply_nodes(&mut self, after: u64, told: &[u8]) -> Result<(), Nonsense> {
        if after != self.epoch {
            return Err(Nonsense("node changes that begin elsewhere"));
        }
        for entry in entries::<NodeEntry<'_>>(told) {
            self.apply_node(&entry?)?;
        }
        Ok(())
    }

    pub(super) fn apply_node(&mut self, entry: &NodeEntry<'_>) -> Result<(), Nonsense> {
        let (epoch, life) = (entry.epoch, entry.life);
        if epoch <= self.epoch {
            return Err(Nonsense("a change of a node out of order"));
        }
        self.epoch = epoch;
        if self.life.is_some_and(|own| own.node == life.node) {
            // A node that is no longer a member learns it by a refusal, before the connection is
            // closed.
            let is_own = self.head.is_some() || self.life == Some(life);
            return is_own
                .then_some(())
                .ok_or(Nonsense("another life of the listener"));
        }
        if life.node.number() >= self.config.nodes || life.incarnation > NodeLife::LAST {
            return Err(Nonsense("a node that cannot be"));
        }
        let known = self.nodes.get(&life.node);
        let known = known.map(|known| (known.incarnation, known.is_member));
        let is_new = known.is_none_or(|(incarnation, _)| incarnation < life.incarnation);
        let ends =
            known == Some((life.incarnation, true)) && matches!(entry.standing, Standing::Gone(_));
        if !(is_new || ends) || (is_new && life.node == NodeId::HEAD) {
            return Err(Nonsense("a node that goes back to an earlier life"));
        }
        // A new life without a report of the end of the previous one: that one was lost.
        let how = match entry.standing {
            Standing::Gone(how) if !is_new => how,
            _ => Departure::Lost,
        };
        self.lose(life.node, epoch, how);
        match entry.standing {
            Standing::Gone(_) => {
                self.nodes.insert(life.node, Node::gone(life.incarnation));
            }
            Standing::Member { name, address } => {
                if name.len() > NAME_MAX || address.len() > NAME_MAX {
                    return Err(Nonsense("a name that is too long"));
                }
                let node = Node::new(life.incarnation, address, self.clock);
                self.nodes.insert(life.node, node);
                self.out.push(Action::NodeJoined {
                    epoch,
                    life,
                    name: name.into(),
                    address: address.into(),
                });
                if self.calls(life.node) {
                    self.call(life.node);
                }
            }
        }
        Ok(())
    }

    /// The head says that this node is no longer a member.
    pub(super) fn dismissed(&mut self) {
        let last = match self.stage {
            Stage::Leaving(_) => Action::Left,
            _ => Action::Fenced,
        };
        self.end(last);
    }

    /// Ends the membership of a node if it is a member: its units first, then the node. The caller
    /// updates its record.
    fn lose(&mut self, id: NodeId, epoch: u64, how: Departure) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.is_member) else {
            return;
        };
        let life = node.life(id);
        let lost = node
            .mirror
            .living()
            .map(|(slot, incarnation)| Action::Unit {
                peer: id.unit(slot),
                incarnation,
                state: State::Dead,
                identity: Box::default(),
            });
        self.out.extend(lost);
        self.out.push(Action::NodeGone { epoch, life, how });
        self.hang_up(id, WhyClosed::NoMember);
        if id == NodeId::HEAD {
            self.lose_head();
        }
    }

    /// Nothing more will be received from the head.
    pub(super) fn lose_head(&mut self) {
        if self.contact != Contact::Over {
            self.contact = Contact::Over;
            self.out.push(Action::HeadLost { finally: true });
        }
    }

    /// Applies slot changes from a member.
    pub(super) fn apply_slots(
        &mut self,
        id: NodeId,
        after: u64,
        told: &[u8],
    ) -> Result<u64, Nonsense> {
        let Some(node) = self.nodes.get_mut(&id) else {
            return Err(Nonsense("slots of nobody"));
        };
        // Pieces must be contiguous; otherwise changes would be missing.
        if after != node.mirror.seen() {
            return Err(Nonsense("slot changes that begin elsewhere"));
        }
        let life = node.life(id);
        for entry in entries::<SlotEntry<'_>>(told) {
            let entry = entry?;
            if entry.identity.len() > IDENTITY_MAX {
                return Err(Nonsense("an identity that is too long"));
            }
            let peer = id.unit(entry.slot);
            let turns = node.mirror.apply(life, &entry)?;
            self.out
                .extend(turns.map(|(state, incarnation)| Action::Unit {
                    peer,
                    incarnation,
                    state,
                    identity: match state {
                        State::Alive => entry.identity.into(),
                        State::Dead | State::Free => Box::default(),
                    },
                }));
        }
        Ok(node.mirror.seen())
    }
}
