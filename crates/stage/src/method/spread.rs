//! Which staging server gets which piece of a block.

use crate::placement::{Piece, Share, assign, key, pieces};
use crate::protocol::{KeeperInfo, Peer, Slot};
use crate::{Region, Result};

/// The staging servers, as one writer rank spreads its blocks over them.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    /// Each with its capacity as its weight; never empty.
    shares: Vec<Share>,
    replicas: usize,
    rank: u32,
    ranks: u32,
}

impl Spread {
    /// Over these servers, for rank `rank` of `ranks`. `None` without any.
    pub(crate) fn over(
        servers: &[KeeperInfo],
        replicas: u32,
        (rank, ranks): (u32, u32),
    ) -> Option<Spread> {
        let share = |server: &KeeperInfo| Share {
            keeper: server.peer.0,
            weight: server.capacity.max(1),
        };
        let mut shares: Vec<Share> = servers.iter().map(share).collect();
        shares.sort_by_key(|share| share.keeper);
        (!shares.is_empty()).then_some(Spread {
            shares,
            replicas: replicas.max(1) as usize,
            rank,
            ranks,
        })
    }

    /// The pieces of block number `number` of a variable, each with its servers in ascending order. The same block has the same
    /// pieces in every step, so that the layout of a steady step is known already.
    ///
    /// # Errors
    /// A block whose bytes 64 bits do not count.
    pub(crate) fn cut(
        &self,
        variable: &str,
        number: u64,
        block: &Region,
        element: u64,
    ) -> Result<Vec<(Region, Slot<Peer>)>> {
        // The other ranks are taken to have as much.
        let total = block.bytes(element)?.saturating_mul(u64::from(self.ranks));
        let regions = pieces(block, element, total, self.shares.len() as u64)?;
        let first = (u64::from(self.rank) << 40) | (number << 20);
        let named = (first..).zip(&regions).map(|(piece, region)| {
            Ok(Piece {
                key: key(variable, piece, 0),
                bytes: region.bytes(element)?,
            })
        });
        let named = named.collect::<Result<Vec<_>>>()?;
        let places = assign(&named, &self.shares, self.replicas);
        let peers = |place: Vec<u32>| {
            let peers = place
                .iter()
                .map(|&at| Peer(self.shares[at as usize].keeper));
            let mut peers: Slot<Peer> = peers.collect();
            peers.sort();
            peers
        };
        Ok(regions
            .into_iter()
            .zip(places.into_iter().map(peers))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn servers(count: u32) -> Vec<KeeperInfo> {
        let server = |peer| KeeperInfo {
            peer: Peer(peer),
            capacity: 1 << 30,
        };
        (1..=count).map(server).collect()
    }

    #[test]
    fn every_server_gets_its_share_of_a_large_block() {
        let block = Region::new(&[7, 0], &[519, 4096]).unwrap();
        for (count, replicas) in [(2, 1), (2, 2), (3, 2), (8, 1)] {
            let spread = Spread::over(&servers(count), replicas, (3, 4)).unwrap();
            let pieces = spread.cut("u", 0, &block, 8).unwrap();
            let mut loads: BTreeMap<Peer, u64> = BTreeMap::new();
            for (region, places) in &pieces {
                assert_eq!(places.len(), replicas as usize);
                for place in places {
                    *loads.entry(*place).or_default() += region.bytes(8).unwrap();
                }
            }
            let total: u64 = loads.values().sum();
            assert_eq!(total, u64::from(replicas) * block.bytes(8).unwrap());
            let mean = total / u64::from(count);
            assert!(
                loads.values().all(|load| *load <= mean + mean / 10),
                "{loads:?}"
            );
            assert_eq!(pieces, spread.cut("u", 0, &block, 8).unwrap());
        }
    }

    #[test]
    fn without_servers_there_is_nothing_to_spread_over() {
        assert!(Spread::over(&[], 1, (0, 1)).is_none());
    }
}
