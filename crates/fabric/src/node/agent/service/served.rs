//! Decides whether the units of a job still need those that serve them.
//!
//! A unit that only serves says so to the other units of its job, by a note to their hosts, once it
//! has seen them. A unit whose host does not run drops the note; if it begins to serve later, it
//! says so itself, and is told again. So any two of them know of each other, and neither waits for
//! the other to leave.

use crate::rpc::{Life, ServiceId};
use crate::{Fabric, PeerInfo};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a server waits for units of its job that it has never seen, when all others
/// have left.
const MISSING: Duration = Duration::from_secs(10);

/// How long what was seen counts, unless a change of membership is known.
const LOOK: Duration = Duration::from_millis(100);

/// The other units of a job, as a server sees them.
#[derive(Debug)]
pub(super) struct Units {
    /// Their number.
    others: usize,
    /// Those that have been seen; those of them that only serve; and those that were told that this
    /// one does.
    seen: BTreeSet<Life>,
    serving: BTreeSet<Life>,
    told: BTreeSet<Life>,
    alone_since: Option<Instant>,
    /// When a unit was there that is served, and the number of changes of membership then.
    looked: Option<(Instant, u64)>,
}

impl Units {
    pub(super) fn new(others: usize) -> Units {
        Units {
            others,
            seen: BTreeSet::new(),
            serving: BTreeSet::new(),
            told: BTreeSet::new(),
            alone_since: None,
            looked: None,
        }
    }

    /// Returns true if the units of the job need this one. Called after every event.
    pub(super) fn go_on(&mut self, fabric: &Fabric) -> bool {
        let changes = fabric.changes();
        let is_new = |(at, of): &(Instant, u64)| *of == changes && at.elapsed() < LOOK;
        if self.looked.as_ref().is_some_and(is_new) {
            return true;
        }
        let there = others(fabric);
        self.tell(fabric, &there);
        self.looked = self.are_there(there).then(|| (Instant::now(), changes));
        let there = || others(fabric);
        let awaited = || fabric.awaits_units().unwrap_or(true);
        self.looked.is_some() || self.need_servers(there, awaited)
    }

    /// Another unit says that it only serves. It may not have heard that this one does.
    pub(super) fn serves(&mut self, unit: Life) {
        if self.serving.insert(unit) {
            self.told.remove(&unit);
            self.looked = None;
        }
    }

    /// Tells units that this one only serves. One that has no room for the note is told later.
    fn tell(&mut self, fabric: &Fabric, there: &[Life]) {
        for unit in there {
            if self.told.contains(unit) {
                continue;
            }
            let told = fabric.note(ServiceId::HOST, *unit, Duration::ZERO, &[]);
            if !matches!(told, Err(crate::Error::Timeout { .. })) {
                self.told.insert(*unit);
            }
        }
    }

    /// Returns true if any unit that does not only serve has joined or may still join; none was
    /// there a moment ago. `there` returns the others that are joined, `awaited` whether the agent
    /// still expects one: only the agent knows of units that joined and left between two checks, or
    /// ended before they joined.
    fn need_servers(
        &mut self,
        mut there: impl FnMut() -> Vec<Life>,
        awaited: impl FnOnce() -> bool,
    ) -> bool {
        let served = |units: &Units| units.others.saturating_sub(units.seen_serving());
        // The agent first: a unit that joins between the two checks is either awaited or joined.
        let is_over = served(self) > 0 && !awaited();
        if self.are_there(there()) {
            return true;
        }
        match self.seen.len() - self.seen_serving() {
            _ if is_over => false,
            0 => true,
            seen if seen >= served(self) => false,
            _ => self.alone_since.get_or_insert_with(Instant::now).elapsed() < MISSING,
        }
    }

    fn seen_serving(&self) -> usize {
        self.seen.intersection(&self.serving).count()
    }

    fn are_there(&mut self, there: Vec<Life>) -> bool {
        self.seen.extend(&there);
        if there.iter().all(|unit| self.serving.contains(unit)) {
            return false;
        }
        self.alone_since = None;
        true
    }
}

/// Returns the other units of this unit's job.
fn others(fabric: &Fabric) -> Vec<Life> {
    let own = fabric.identity();
    let is_other = |info: &&PeerInfo| info.identity.job == own.job && info.peer != fabric.me();
    let peers = fabric.peers();
    let others = peers.iter().filter(is_other);
    let lives = others.map(|info| Life {
        peer: info.peer,
        incarnation: info.incarnation,
    });
    lives.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerId;
    use std::cell::Cell;

    fn unit(number: u32) -> Life {
        Life {
            peer: PeerId(number),
            incarnation: 1,
        }
    }

    #[test]
    fn who_joins_while_the_agent_is_asked_keeps_its_servers() {
        let joined = Cell::new(false);
        let there = || if joined.get() { vec![unit(3)] } else { vec![] };
        let mut units = Units::new(1);
        let awaited = || {
            joined.set(true);
            false
        };
        assert!(units.need_servers(there, awaited));
        joined.set(false);
        assert!(!units.need_servers(there, || false), "it has left");
    }

    #[test]
    fn who_never_comes_keeps_no_servers() {
        let mut units = Units::new(2);
        assert!(units.need_servers(Vec::new, || true), "they may come");
        assert!(!units.need_servers(Vec::new, || false));
    }

    #[test]
    fn who_has_left_without_the_others_keeps_servers_for_a_while() {
        let mut units = Units::new(2);
        assert!(units.need_servers(|| vec![unit(1)], || true));
        assert!(units.need_servers(Vec::new, || true));
        assert!(units.alone_since.is_some());
        assert!(units.need_servers(|| vec![unit(2)], || true));
        assert!(
            !units.need_servers(Vec::new, || true),
            "all have been there"
        );
    }

    #[test]
    fn who_only_serves_keeps_no_servers() {
        let mut units = Units::new(2);
        let there = || vec![unit(1), unit(2)];
        assert!(units.need_servers(there, || false));
        units.serves(unit(1));
        assert!(units.need_servers(there, || false), "one does not serve");
        assert!(!units.need_servers(|| vec![unit(1)], || false));
        // Another life of the same unit has said nothing.
        let again = Life {
            incarnation: 2,
            ..unit(1)
        };
        assert!(units.need_servers(|| vec![again], || false));
        // While the unit that is served has not come, a server waits for it.
        let mut units = Units::new(2);
        units.serves(unit(1));
        assert!(units.need_servers(|| vec![unit(1)], || true));
        assert!(!units.need_servers(|| vec![unit(1)], || false));
    }

    #[test]
    fn who_begins_to_serve_is_told_again() {
        let mut units = Units::new(1);
        units.told.insert(unit(1));
        units.serves(unit(1));
        assert!(!units.told.contains(&unit(1)));
        units.told.insert(unit(1));
        units.serves(unit(1));
        assert!(units.told.contains(&unit(1)), "they would never end");
    }
}
