//! The rules that hold in a [`World`]: after each step, at rest, and while hosts are cut off.

use super::super::message::{MESSAGE_MAX, PIECE_MAX};
use super::super::{Action, NodeId, NodeLife};
use super::seen::must;
use super::world::{Item, Order, Process, World};

impl World {
    /// Two agents never apply different changes with the same epoch. The head skips no change, so
    /// its changes are complete.
    pub(super) fn note_orders(&mut self, id: u64, actions: &[Action]) -> Result<(), String> {
        let process = &self.processes[&id];
        let domain = process.seen.domain;
        if self.liar.is_some() && self.liar == self.on_host(0) {
            return Ok(());
        }
        for action in actions {
            let (epoch, order) = match action {
                Action::NodeJoined { epoch, life, .. } if *epoch > 0 => {
                    (epoch, Order::Joined(*life))
                }
                Action::NodeGone { epoch, life, .. } => (epoch, Order::Gone(*life)),
                _ => continue,
            };
            if process.host == 0 {
                let before = self.orders.insert((domain, *epoch), order);
                must!(before.is_none(), "two orders of epoch {epoch}");
                continue;
            }
            let ordered = self.orders.get(&(domain, *epoch));
            let agrees = match (ordered, order) {
                (Some(ordered), order) if *ordered == order => true,
                // A skipped end, implied by the later join or end of the node.
                (Some(Order::Joined(later) | Order::Gone(later)), Order::Gone(life)) => {
                    later.node == life.node && later.incarnation > life.incarnation
                }
                // The head does not report its own end.
                (None, Order::Gone(life)) => life.node == NodeId::HEAD,
                _ => false,
            };
            must!(
                agrees,
                "at epoch {epoch} {order:?}, and at the head {ordered:?}"
            );
        }
        Ok(())
    }

    /// Checks everything that can grow against its bound.
    pub(super) fn check_bounds(&self) -> Result<(), String> {
        for connection in self.connections.values() {
            for end in &connection.ends {
                let size = |item: &Item| match item {
                    Item::Message(bytes) => bytes.len(),
                    _ => 0,
                };
                let longest = end.items.iter().map(size).max().unwrap_or(0);
                must!(longest <= MESSAGE_MAX, "a message of {longest} bytes");
                let all: usize = end.items.iter().map(size).sum();
                // One piece of each table, and the other messages of one `silence`.
                must!(all <= 2 * PIECE_MAX + 4096, "{all} bytes are under way");
            }
        }
        for (id, process) in &self.processes {
            let (machine, hosts) = (&process.machine, 16);
            must!(
                machine.nodes.len() <= hosts,
                "process {id} knows too many nodes"
            );
            must!(
                machine.links.len() <= 4 * hosts,
                "process {id} has too many connections"
            );
            must!(
                machine.slots.is_compact(),
                "process {id} keeps old changes of slots"
            );
            let head = machine.head.as_ref();
            must!(
                head.is_none_or(|h| h.orders().is_compact()),
                "the head keeps old orders"
            );
        }
        Ok(())
    }

    /// After [`World::settle`], with hosts that cannot reach each other: no two of them are members
    /// according to the head, and a node that the head does not reach knows it.
    pub(super) fn check_cut(&self) -> Result<(), String> {
        let head = self.head();
        let of_head = |process: &Process| {
            let life = process.machine.life()?;
            let head = head.filter(|head| head.seen.domain == process.seen.domain)?;
            (head.machine.is_member(life) || process.host == 0).then_some(life)
        };
        for (a, b) in &self.cut {
            let ids = [*a, *b].map(|host| self.on_host(host));
            let [Some(a), Some(b)] = ids.map(|id| id.and_then(|id| self.processes.get(&id))) else {
                continue;
            };
            let both = (of_head(a), of_head(b));
            must!(
                !matches!(both, (Some(_), Some(_))),
                "{both:?} are cut off from each other"
            );
            let lonely = [(a, b), (b, a)].into_iter().find(|(one, _)| one.host == 0);
            must!(
                lonely.is_none_or(|(_, other)| other.seen.head_lost),
                "a cut was not noticed"
            );
        }
        Ok(())
    }

    /// Returns everything that must not change any more at rest.
    pub(super) fn at_rest(&self) -> (Vec<u64>, usize, Option<u64>, Vec<u64>) {
        (
            self.processes.keys().copied().collect(),
            self.ended.len(),
            self.head().map(|head| head.machine.epoch),
            self.connections(),
        )
    }

    /// After [`World::settle`]: the living agents agree with the head and with the owners of the
    /// slots.
    pub(super) fn check_rest(&self, counts: impl Fn(u64) -> bool) -> Result<(), String> {
        let head = self.head();
        let living = || self.processes.iter().filter(|(id, _)| counts(**id));
        for (id, process) in living().filter(|(_, process)| process.host != 0) {
            let seen = &process.seen;
            let Some(head) = head.filter(|head| head.machine.life.is_some()) else {
                must!(
                    seen.head_lost,
                    "process {id} was not told that the head is gone"
                );
                continue;
            };
            must!(!process.is_leaving, "process {id} has not left");
            let Some(life) = process.machine.life() else {
                return Err(format!("process {id} has not joined"));
            };
            if seen.domain != head.seen.domain {
                must!(
                    seen.head_lost,
                    "process {id} was not told of the new domain"
                );
                continue;
            }
            must!(!seen.head_lost, "process {id} does not hear the head");
            must!(head.machine.is_member(life), "process {id} is not fenced");
            let mut members = head.seen.members.clone();
            members.remove(&life.node);
            members.insert(NodeId::HEAD, NodeLife::HEAD.incarnation);
            must!(
                members == seen.members,
                "process {id} sees other members: {seen:?}"
            );
        }
        for (one, a) in living() {
            for (other, b) in living().filter(|(other, _)| *other != one) {
                let (Some(to), Some(from)) = (a.machine.life(), b.machine.life()) else {
                    continue;
                };
                // Without a head, some agents know of an end and others do not.
                let knows = a.machine.is_member(from) && b.machine.is_member(to);
                if a.seen.domain != b.seen.domain || !knows {
                    continue;
                }
                let (has, sees) = (b.living(), a.seen.living(from.node));
                // No agent reaches a head that is gone.
                must!(
                    has == sees,
                    "process {other} has {has:?}, process {one} sees {sees:?}"
                );
            }
        }
        Ok(())
    }
}
