//! Decides whether the units of a job still need those that serve them.
//!
//! A unit that only serves says so to the other units of its job, by a note to their hosts, once it
//! has seen them. A unit whose host does not run drops the note; if it begins to serve later, it
//! says so itself, and is told again. So any two of them know of each other, and neither waits for
//! the other to leave.

use crate::rpc::{Life, ServiceId};
use crate::{Fabric, PeerInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a server waits for units of its job that it has never seen, when all others have left
/// and the agent does not say whether they may still come.
const MISSING: Duration = Duration::from_secs(10);

/// How long what was seen counts, unless a change of membership is known.
const LOOK: Duration = Duration::from_millis(100);

/// The other units of a job, as a server sees them.
#[derive(Debug)]
pub(super) struct Units {
    /// Their number.
    others: usize,
    /// Those that have been seen, by their numbers in the job, each with its last life: one that is
    /// started again is still the same unit.
    seen: BTreeMap<u32, Life>,
    /// The lives that only serve, and those that were told that this one does.
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
            seen: BTreeMap::new(),
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
        let awaited = || fabric.awaits_units().ok();
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
    fn tell(&mut self, fabric: &Fabric, there: &[(u32, Life)]) {
        for (_, unit) in there {
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
    /// still expects one, if it answers: only the agent knows of units that joined and left between
    /// two checks, or ended before they joined.
    fn need_servers(
        &mut self,
        mut there: impl FnMut() -> Vec<(u32, Life)>,
        awaited: impl FnOnce() -> Option<bool>,
    ) -> bool {
        let served = |units: &Units| units.others.saturating_sub(units.seen_serving());
        // The agent first: a unit that joins between the two checks is either awaited or joined.
        let awaited = if served(self) > 0 { awaited() } else { None };
        if self.are_there(there()) {
            return true;
        }
        if let Some(awaited) = awaited {
            return awaited;
        }
        match self.seen.len() - self.seen_serving() {
            0 => true,
            seen if seen >= served(self) => false,
            _ => self.alone_since.get_or_insert_with(Instant::now).elapsed() < MISSING,
        }
    }

    fn seen_serving(&self) -> usize {
        let lives = self.seen.values();
        lives.filter(|life| self.serving.contains(life)).count()
    }

    fn are_there(&mut self, there: Vec<(u32, Life)>) -> bool {
        let is_served = there.iter().any(|(_, life)| !self.serving.contains(life));
        self.seen.extend(there);
        if is_served {
            self.alone_since = None;
        }
        is_served
    }
}

/// Returns the other units of this unit's job, with their numbers in it.
fn others(fabric: &Fabric) -> Vec<(u32, Life)> {
    let own = fabric.identity();
    let is_other = |info: &&PeerInfo| info.identity.job == own.job && info.peer != fabric.me();
    let peers = fabric.peers();
    let others = peers.iter().filter(is_other);
    let lives = others.map(|info| {
        let life = Life {
            peer: info.peer,
            incarnation: info.incarnation,
        };
        (info.identity.unit, life)
    });
    lives.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerId;
    use std::cell::Cell;

    fn unit(number: u32) -> (u32, Life) {
        life(number, 1)
    }

    fn life(number: u32, incarnation: u32) -> (u32, Life) {
        let peer = PeerId(number);
        (number, Life { peer, incarnation })
    }

    #[test]
    fn who_joins_while_the_agent_is_asked_keeps_its_servers() {
        let joined = Cell::new(false);
        let there = || if joined.get() { vec![unit(3)] } else { vec![] };
        let mut units = Units::new(1);
        let awaited = || {
            joined.set(true);
            Some(false)
        };
        assert!(units.need_servers(there, awaited));
        joined.set(false);
        assert!(!units.need_servers(there, || Some(false)), "it has left");
    }

    #[test]
    fn who_never_comes_keeps_no_servers() {
        let mut units = Units::new(2);
        assert!(units.need_servers(Vec::new, || Some(true)), "they may come");
        assert!(!units.need_servers(Vec::new, || Some(false)));
    }

    #[test]
    fn who_may_still_come_keeps_servers() {
        let mut units = Units::new(2);
        assert!(units.need_servers(|| vec![unit(1)], || Some(true)));
        assert!(units.need_servers(Vec::new, || Some(true)));
        assert!(units.alone_since.is_none(), "however long that takes");
        assert!(units.need_servers(|| vec![unit(2)], || Some(false)));
        assert!(!units.need_servers(Vec::new, || Some(false)));
    }

    #[test]
    fn who_has_left_without_the_others_keeps_servers_for_a_while() {
        // The agent does not answer.
        let mut units = Units::new(2);
        assert!(units.need_servers(|| vec![unit(1)], || None));
        assert!(units.need_servers(Vec::new, || None));
        assert!(units.alone_since.is_some());
        assert!(units.need_servers(|| vec![unit(2)], || None));
        assert!(
            !units.need_servers(Vec::new, || None),
            "all have been there"
        );
    }

    #[test]
    fn who_is_started_again_counts_once() {
        // A unit that is served: the other one has not come.
        let mut units = Units::new(2);
        for incarnation in 1..=2 {
            let there = || vec![life(1, incarnation)];
            assert!(units.need_servers(there, || None));
        }
        assert!(units.need_servers(Vec::new, || None));
        assert!(units.need_servers(Vec::new, || Some(true)));
        // A server: the unit that is served has ended before it joined.
        let mut units = Units::new(2);
        for incarnation in 1..=2 {
            units.serves(life(1, incarnation).1);
            let there = || vec![life(1, incarnation)];
            assert!(units.need_servers(there, || Some(true)));
        }
        assert!(!units.need_servers(|| vec![life(1, 2)], || Some(false)));
    }

    #[test]
    fn who_only_serves_keeps_no_servers() {
        let mut units = Units::new(2);
        let there = || vec![unit(1), unit(2)];
        assert!(units.need_servers(there, || Some(false)));
        units.serves(unit(1).1);
        assert!(
            units.need_servers(there, || Some(false)),
            "one does not serve"
        );
        assert!(!units.need_servers(|| vec![unit(1)], || Some(false)));
        // Another life of the same unit has said nothing.
        assert!(units.need_servers(|| vec![life(1, 2)], || Some(false)));
        // While the unit that is served has not come, a server waits for it.
        let mut units = Units::new(2);
        units.serves(unit(1).1);
        assert!(units.need_servers(|| vec![unit(1)], || Some(true)));
        assert!(!units.need_servers(|| vec![unit(1)], || Some(false)));
    }

    #[test]
    fn who_begins_to_serve_is_told_again() {
        let mut units = Units::new(1);
        let (_, unit) = unit(1);
        units.told.insert(unit);
        units.serves(unit);
        assert!(!units.told.contains(&unit));
        units.told.insert(unit);
        units.serves(unit);
        assert!(units.told.contains(&unit), "they would never end");
    }
}
