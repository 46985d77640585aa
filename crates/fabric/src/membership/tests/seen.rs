//! What one agent was told by its machine. Each action is checked against the earlier ones.

use super::super::{Action, NodeId, NodeLife, State};
use crate::PeerId;
use std::collections::BTreeMap;

/// The roster that the actions write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) domain: u64,
    /// Members, without this node.
    pub(super) members: BTreeMap<NodeId, u32>,
    pub(super) units: BTreeMap<PeerId, (u32, State)>,
    pub(super) head_lost: bool,
    /// A node that lies; its reports need not be true.
    pub(super) liar: Option<NodeId>,
    /// The highest incarnations seen so far.
    last_nodes: BTreeMap<NodeId, u32>,
    last_units: BTreeMap<PeerId, u32>,
}

/// What a unit states about itself. It is long, so that a node with all slots taken needs several
/// pieces.
pub(super) fn identity_of(incarnation: u32) -> Vec<u8> {
    incarnation.to_le_bytes().repeat(16)
}

fn is_of(peer: &PeerId, node: NodeId) -> bool {
    peer.node() == node.number()
}

/// Returns a sentence as an error if a condition does not hold.
macro_rules! must {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(super) use must;

impl Seen {
    /// Checks and applies the actions of one event.
    pub(super) fn take(&mut self, actions: &[Action]) -> Result<(), String> {
        let raises = |action: &&Action| **action == Action::RaiseEpoch;
        let raised = actions.iter().filter(raises).count();
        let wrote = actions
            .iter()
            .filter(|action| action.writes_roster())
            .count();
        must!(
            raised == usize::from(wrote > 0),
            "{raised} epochs for {wrote} changes"
        );
        must!(
            raised == 0 || actions.last() == Some(&Action::RaiseEpoch),
            "an early epoch"
        );
        for (index, action) in actions.iter().enumerate() {
            self.one(action)?;
            if let Action::NodeGone { life, .. } = action {
                let before = actions[..index]
                    .iter()
                    .rev()
                    .map_while(|action| match action {
                        Action::Unit {
                            peer,
                            state: State::Dead,
                            ..
                        } if is_of(peer, life.node) => Some(peer.slot()),
                        _ => None,
                    });
                must!(
                    before.is_sorted_by(|a, b| a > b),
                    "losses out of order: {actions:?}"
                );
            }
        }
        Ok(())
    }

    fn one(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Admitted { domain, life } => {
                must!(
                    self.domain == 0 && life.node != NodeId::HEAD,
                    "admitted twice"
                );
                self.domain = *domain;
            }
            Action::NodeJoined { life, .. } => {
                let last = self.last_nodes.insert(life.node, life.incarnation);
                must!(
                    last.is_none_or(|last| last < life.incarnation),
                    "{life} is old"
                );
                let before = self.members.insert(life.node, life.incarnation);
                must!(before.is_none(), "{life} joined before its last life went");
            }
            Action::NodeGone { life, .. } => {
                let before = self.members.remove(&life.node);
                must!(
                    before == Some(life.incarnation),
                    "{life} went and was not there"
                );
                let is_its = |peer: &PeerId| is_of(peer, life.node);
                let alive =
                    |(peer, unit): (&PeerId, &(u32, State))| is_its(peer) && unit.1 == State::Alive;
                must!(
                    !self.units.iter().any(alive),
                    "{life} went before its units"
                );
                self.units.retain(|peer, _| !is_its(peer));
            }
            Action::Unit {
                peer,
                incarnation,
                state: State::Alive,
                identity,
            } => {
                let node = NodeId::new(peer.node()).ok_or("no node")?;
                let known = self.members.get(&node);
                let life = known.map(|incarnation| NodeLife {
                    node,
                    incarnation: *incarnation,
                });
                let is_of_life = life.is_some_and(|l| l.incarnations().contains(incarnation));
                must!(is_of_life, "{peer:?} of another life of its node");
                let last = self.last_units.insert(*peer, *incarnation);
                must!(
                    last.is_none_or(|last| last < *incarnation),
                    "{peer:?} lives again"
                );
                let is_true = **identity == identity_of(*incarnation);
                must!(
                    is_true || self.liar == Some(node),
                    "{peer:?} is another one"
                );
                let before = self.units.insert(*peer, (*incarnation, State::Alive));
                let was_alive = before.is_some_and(|(_, state)| state == State::Alive);
                must!(!was_alive, "{peer:?} has two lives");
            }
            Action::Unit {
                peer,
                incarnation,
                state: State::Dead,
                ..
            } => {
                let before = self.units.insert(*peer, (*incarnation, State::Dead));
                let was = Some((*incarnation, State::Alive));
                must!(before == was, "{peer:?} was lost and was {before:?}");
            }
            Action::Unit { peer, .. } => {
                let before = self.units.remove(peer);
                let was_alive = before.is_some_and(|(_, state)| state == State::Alive);
                must!(!was_alive, "{peer:?} is free and was not lost");
            }
            Action::HeadLost { .. } => self.head_lost = true,
            Action::HeadBack => {
                must!(self.head_lost, "the head is back and was not away");
                self.head_lost = false;
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the living units of a node.
    pub(super) fn living(&self, node: NodeId) -> BTreeMap<u32, u32> {
        let alive = self
            .units
            .iter()
            .filter(|(peer, unit)| is_of(peer, node) && unit.1 == State::Alive);
        alive.map(|(peer, unit)| (peer.slot().0, unit.0)).collect()
    }
}
