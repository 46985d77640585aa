//! Who has been in a domain, for a unit that serves the others until all have left.

use samite_fabric::Fabric;
use std::collections::BTreeSet;

/// The other units of a test, as one that serves them sees them come and go.
///
/// One may leave before another one comes: what counts is who has been there, not how many are
/// there at once.
#[derive(Clone, Debug)]
pub struct Tracker {
    expected: usize,
    seen: BTreeSet<u32>,
}

impl Tracker {
    /// So many units, none of them the one that asks.
    pub fn expect(expected: u32) -> Tracker {
        Tracker {
            expected: expected as usize,
            seen: BTreeSet::new(),
        }
    }

    /// Whether some are there, or have not come yet.
    pub fn remain(&mut self, fabric: &Fabric) -> bool {
        let peers = fabric.peers();
        let others = peers.iter().filter(|info| info.peer != fabric.me());
        let there: Vec<u32> = others.map(|info| info.identity.unit).collect();
        self.seen.extend(&there);
        !there.is_empty() || self.seen.len() < self.expected
    }
}
