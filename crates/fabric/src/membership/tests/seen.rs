//! What one agent was told by its machine. Each action is checked against what came before.

use super::super::{Action, NodeId, NodeLife, Peer, SlotState};
use std::collections::BTreeMap;

/// The roster that the actions write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) domain: u64,
    /// Members, without the own node.
    pub(super) members: BTreeMap<NodeId, u32>,
    pub(super) units: BTreeMap<Peer, (u32, SlotState)>,
    pub(super) head_lost: bool,
    /// What it says need not be true.
    pub(super) liar: Option<NodeId>,
    /// The highest incarnations so far.
    last_nodes: BTreeMap<NodeId, u32>,
    last_units: BTreeMap<Peer, u32>,
}

/// Fails with a sentence.
macro_rules! must {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(super) use must;

impl Seen {
    /// Takes the actions of one event.
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
                        Action::UnitLost { peer, .. } if peer.node == life.node => Some(peer.slot),
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
                let is_its = |peer: &Peer| peer.node == life.node;
                let alive = |(peer, unit): (&Peer, &(u32, SlotState))| {
                    is_its(peer) && unit.1 == SlotState::Alive
                };
                must!(
                    !self.units.iter().any(alive),
                    "{life} went before its units"
                );
                self.units.retain(|peer, _| !is_its(peer));
            }
            Action::UnitJoined {
                peer,
                incarnation,
                identity,
            } => {
                let node = self.members.get(&peer.node);
                let life = node.map(|incarnation| NodeLife {
                    node: peer.node,
                    incarnation: *incarnation,
                });
                let is_of_life = life.is_some_and(|l| l.incarnations().contains(incarnation));
                must!(is_of_life, "{peer:?} of another life of its node");
                let last = self.last_units.insert(*peer, *incarnation);
                must!(
                    last.is_none_or(|last| last < *incarnation),
                    "{peer:?} lives again"
                );
                let is_true = **identity == incarnation.to_le_bytes();
                must!(
                    is_true || self.liar == Some(peer.node),
                    "{peer:?} is another one"
                );
                let before = self.units.insert(*peer, (*incarnation, SlotState::Alive));
                let was_alive = before.is_some_and(|(_, state)| state == SlotState::Alive);
                must!(!was_alive, "{peer:?} has two lives");
            }
            Action::UnitLost { peer, incarnation } => {
                let before = self.units.insert(*peer, (*incarnation, SlotState::Dead));
                let was = Some((*incarnation, SlotState::Alive));
                must!(before == was, "{peer:?} was lost and was {before:?}");
            }
            Action::UnitFreed { peer, .. } => {
                let before = self.units.remove(peer);
                let was_alive = before.is_some_and(|(_, state)| state == SlotState::Alive);
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

    /// The living units of a node.
    pub(super) fn living(&self, node: NodeId) -> BTreeMap<u32, u32> {
        let alive = self
            .units
            .iter()
            .filter(|(peer, unit)| peer.node == node && unit.1 == SlotState::Alive);
        alive
            .map(|(peer, unit)| (peer.slot.index(), unit.0))
            .collect()
    }
}
