//! Records which units have been in a domain, for a unit that serves the others until all have
//! left.

use samite_fabric::Fabric;
use std::collections::BTreeSet;

/// The other units of a test, as seen by a unit that serves them.
///
/// One may leave before another one comes, so the tracker records which have been present, not how
/// many are at the same time.
#[derive(Clone, Debug)]
pub struct Tracker {
    expected: usize,
    seen: BTreeSet<u32>,
}

impl Tracker {
    /// Expects this many units, not counting the caller.
    pub fn expect(expected: u32) -> Tracker {
        Tracker {
            expected: expected as usize,
            seen: BTreeSet::new(),
        }
    }

    /// Returns true if some are present, or have not come yet.
    pub fn remain(&mut self, fabric: &Fabric) -> bool {
        let peers = fabric.peers();
        let others = peers.iter().filter(|info| info.peer != fabric.me());
        let there: Vec<u32> = others.map(|info| info.identity.unit).collect();
        self.seen.extend(&there);
        !there.is_empty() || self.seen.len() < self.expected
    }
}
