//! Which staging server gets which piece of a block.

use crate::placement::{Share, assign_group, pieces};
use crate::protocol::{BlockStoreInfo, Peer, Slot};
use crate::{Region, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// The staging servers, as one writer rank distributes its blocks over them.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    /// Each with its capacity as its weight; never empty.
    shares: Vec<Share>,
    /// The processes of the shares.
    servers: Vec<Peer>,
    replicas: usize,
    rank: u32,
    ranks: u32,
    /// Placements known already, so that a steady step computes nothing.
    known: Known,
}

/// The placement of the pieces of a block: their sizes, and their servers.
type Placed = (Vec<u64>, Arc<[Vec<u32>]>);

/// Recent placements, by variable and number of the block. A program may give its variables new
/// names in every step, so only the last [`LATELY`] used are kept.
#[derive(Clone, Debug, Default)]
struct Known {
    young: HashMap<(String, u64), Placed>,
    old: HashMap<(String, u64), Placed>,
}

/// More blocks than a rank has in one step.
const LATELY: usize = 1 << 13;

impl Known {
    fn find(&mut self, name: &(String, u64), sizes: &[u64]) -> Option<Arc<[Vec<u32>]>> {
        if let Some(placed) = self.old.remove(name) {
            self.insert(name.clone(), placed);
        }
        let placed = self.young.get(name);
        let placed = placed.filter(|(known, _)| known == sizes);
        placed.map(|(_, places)| places.clone())
    }

    fn insert(&mut self, name: (String, u64), placed: Placed) {
        if self.young.len() >= LATELY {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, placed);
    }
}

impl Spread {
    /// Distributes over these servers, for rank `rank` of `ranks`. `None` without any.
    pub(crate) fn over(
        servers: &[BlockStoreInfo],
        replicas: u32,
        (rank, ranks): (u32, u32),
    ) -> Option<Spread> {
        let share = |server: &BlockStoreInfo| Share {
            block_store: server.peer.id().0,
            weight: server.capacity.max(1),
        };
        let mut servers = servers.to_vec();
        servers.sort_by_key(|server| server.peer.id());
        (!servers.is_empty()).then(|| Spread {
            shares: servers.iter().map(share).collect(),
            servers: servers.iter().map(|server| server.peer).collect(),
            replicas: replicas.max(1) as usize,
            rank,
            ranks,
            known: Known::default(),
        })
    }

    /// Returns the servers of this rank's pieces of a block, as indices into `shares`.
    fn places(&mut self, (variable, number): (&str, u64), sizes: Vec<u64>) -> Arc<[Vec<u32>]> {
        let name = (variable.to_owned(), number);
        if let Some(places) = self.known.find(&name, &sizes) {
            return places;
        }
        let ranks = (u64::from(self.rank), u64::from(self.ranks));
        let block = (variable, number);
        let (group, places) = assign_group(block, &sizes, ranks, &self.shares, self.replicas);
        let begin = (ranks.0 - group.start) as usize * sizes.len();
        let places: Arc<[Vec<u32>]> = places[begin..begin + sizes.len()].into();
        self.known.insert(name, (sizes, places.clone()));
        places
    }

    /// Returns the pieces of block number `number` of a variable, each with its servers in
    /// ascending order. The same block has the same pieces in every step, so that the layout of a
    /// steady step does not change.
    ///
    /// # Errors
    /// A block whose bytes exceed 64 bits.
    pub(crate) fn cut(
        &mut self,
        variable: &str,
        number: u64,
        block: &Region,
        element: u64,
    ) -> Result<Vec<(Region, Slot<Peer>)>> {
        // Assumes that the other ranks have as much.
        let total = block.bytes(element)?.saturating_mul(u64::from(self.ranks));
        let regions = pieces(block, element, total, self.shares.len() as u64)?;
        let sizes = regions.iter().map(|region| Ok(region.bytes(element)?));
        let sizes = sizes.collect::<Result<Vec<u64>>>()?;
        let places = self.places((variable, number), sizes);
        let peers = |place: Vec<u32>| {
            let peers = place.iter().map(|&at| self.servers[at as usize]);
            let mut peers: Slot<Peer> = peers.collect();
            peers.sort();
            peers
        };
        Ok(regions
            .into_iter()
            .zip(places.iter().cloned().map(peers))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn servers(count: u32) -> Vec<BlockStoreInfo> {
        let server = |peer| BlockStoreInfo {
            peer: Peer::new(peer, 1),
            capacity: 1 << 30,
        };
        (1..=count).map(server).collect()
    }

    #[test]
    fn every_server_gets_its_share_of_a_large_block() {
        let block = Region::new(&[7, 0], &[519, 4096]).unwrap();
        for (count, replicas) in [(2, 1), (2, 2), (3, 2), (8, 1)] {
            let mut loads: BTreeMap<Peer, u64> = BTreeMap::new();
            for rank in 0..4 {
                let mut spread = Spread::over(&servers(count), replicas, (rank, 4)).unwrap();
                let pieces = spread.cut("u", 0, &block, 8).unwrap();
                for (region, places) in &pieces {
                    assert_eq!(places.len(), replicas as usize);
                    for place in places {
                        *loads.entry(*place).or_default() += region.bytes(8).unwrap();
                    }
                }
                assert_eq!(pieces, spread.cut("u", 0, &block, 8).unwrap());
            }
            let total: u64 = loads.values().sum();
            assert_eq!(total, 4 * u64::from(replicas) * block.bytes(8).unwrap());
            let mean = total / u64::from(count);
            assert!(
                loads.values().all(|load| *load <= mean + mean / 10),
                "{loads:?}"
            );
        }
    }

    #[test]
    fn ranks_with_few_pieces_are_even_together() {
        for (count, ranks) in [(4, 8), (16, 8), (3, 7), (16, 4)] {
            let mut loads: BTreeMap<Peer, u64> = BTreeMap::new();
            for rank in 0..ranks {
                let mut spread = Spread::over(&servers(count), 1, (rank, ranks)).unwrap();
                let block = Region::at(&[0, u64::from(rank), 0], &[5, 1, 64_000]).unwrap();
                for (region, places) in spread.cut("u", 0, &block, 8).unwrap() {
                    *loads.entry(places[0]).or_default() += region.bytes(8).unwrap();
                }
            }
            let mean = loads.values().sum::<u64>() as f64 / f64::from(count);
            let most = loads.values().max().copied().unwrap_or(0) as f64;
            assert!(most / mean <= 1.10, "{count} {ranks}: {loads:?}");
        }
    }

    /// Variables that are not used any more are forgotten; those of every step are not, however
    /// many others there are.
    #[test]
    fn places_of_what_is_not_written_any_more_are_forgotten() {
        let mut spread = Spread::over(&servers(3), 1, (0, 1)).unwrap();
        let block = Region::at(&[0], &[64]).unwrap();
        let steady = spread.cut("steady", 0, &block, 8).unwrap();
        let most = LATELY as u64;
        for step in 0..3 * most {
            spread.cut(&format!("u{step}"), 0, &block, 8).unwrap();
            if step % (most / 2) == 0 {
                assert_eq!(steady, spread.cut("steady", 0, &block, 8).unwrap());
            }
        }
        let known = &spread.known;
        let count = known.young.len() + known.old.len();
        assert!(count <= 2 * LATELY, "{count}");
        let name = ("steady".to_owned(), 0);
        assert!(known.young.contains_key(&name) || known.old.contains_key(&name));
    }

    #[test]
    fn without_servers_there_is_nothing_to_spread_over() {
        assert!(Spread::over(&[], 1, (0, 1)).is_none());
    }
}
