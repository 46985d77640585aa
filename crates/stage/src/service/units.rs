//! Whether the units of a job still need their staging servers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a staging server waits for units of its job that it has never seen, when all others
/// have left.
const MISSING: Duration = Duration::from_secs(10);

/// The units of a job that are no servers, as a server sees them.
#[derive(Debug)]
pub(super) struct Units {
    /// How many there are.
    expected: usize,
    /// Those that were there at some time.
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

    /// Whether any is there or may still come. `there` says which are joined, `awaited` whether the
    /// agent still expects one; who came and went between two looks, or ended before it could come,
    /// only the agent knows.
    pub(super) fn need_servers(
        &mut self,
        mut there: impl FnMut() -> Vec<u32>,
        awaited: impl FnOnce() -> bool,
    ) -> bool {
        if self.are_there(there()) {
            return true;
        }
        // The agent first: a unit that joins between the two questions is awaited, or there.
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
