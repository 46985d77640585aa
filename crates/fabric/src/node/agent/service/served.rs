//! Decides whether the units of a job still need those that serve them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a server waits for units of its job that it has never seen, when all others
/// have left.
const MISSING: Duration = Duration::from_secs(10);

/// The units of a job other than servers, as a server sees them.
#[derive(Debug)]
pub(super) struct Units {
    /// The number of such units.
    expected: usize,
    /// Those that have been seen.
    seen: BTreeSet<u32>,
    alone_since: Option<Instant>,
}

impl Units {
    pub(super) fn new(expected: usize) -> Units {
        Units {
            expected,
            seen: BTreeSet::new(),
            alone_since: None,
        }
    }

    /// Returns true if any unit has joined or may still join. `there` returns those that are
    /// joined, `awaited` whether the agent still expects one: only the agent knows of units that
    /// joined and left between two checks, or ended before they joined.
    pub(super) fn need_servers(
        &mut self,
        mut there: impl FnMut() -> Vec<u32>,
        awaited: impl FnOnce() -> bool,
    ) -> bool {
        if self.are_there(there()) {
            return true;
        }
        // The agent first: a unit that joins between the two checks is either awaited or joined.
        let is_over = self.expected > 0 && !awaited();
        if self.are_there(there()) {
            return true;
        }
        match self.seen.len() {
            _ if is_over => false,
            0 => true,
            seen if seen >= self.expected => false,
            _ => self.alone_since.get_or_insert_with(Instant::now).elapsed() < MISSING,
        }
    }

    fn are_there(&mut self, there: Vec<u32>) -> bool {
        self.seen.extend(&there);
        if there.is_empty() {
            return false;
        }
        self.alone_since = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_joins_while_the_agent_is_asked_keeps_its_servers() {
        let joined = Cell::new(false);
        let there = || if joined.get() { vec![3] } else { vec![] };
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
        assert!(units.need_servers(|| vec![1], || true));
        assert!(units.need_servers(Vec::new, || true));
        assert!(units.alone_since.is_some());
        assert!(units.need_servers(|| vec![2], || true));
        assert!(
            !units.need_servers(Vec::new, || true),
            "all have been there"
        );
    }
}
