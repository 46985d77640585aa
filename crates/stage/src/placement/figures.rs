//! How evenly a layout is distributed, and what it costs every process, computed before a run.

use super::{Share, assign_group, pieces};
use crate::index::Index;
use crate::space::Grid;
use crate::{Region, SpaceError};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

/// The figures of a layout of writers, readers and servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Pieces of the array.
    pub pieces: u64,
    /// Bytes at the most loaded server over the mean of all; for servers of equal weight, 1 is
    /// perfectly even.
    pub max_over_mean: f64,
    /// Bytes of the index of the writers' blocks, at each reader.
    pub index_bytes: u64,
    /// Bytes of the table that says which server has which piece, at each reader.
    pub table_bytes: u64,
    /// Maximum number of servers to which one writer connects.
    pub connections_per_writer: u64,
    /// Maximum number of servers to which one reader connects.
    pub connections_per_reader: u64,
    /// Maximum number of writers and readers that connect to one server.
    pub connections_per_server: u64,
}

/// Ranks, and the servers of their pieces.
type Group = (Range<u64>, Vec<Vec<u32>>);

/// Computes the figures of one variable with `element` bytes per element, written by the ranks of
/// one grid over its shape, read by those of the other, stored by `shares`, with `replicas`. Uses
/// the code that places the blocks of a run.
///
/// # Errors
/// An array whose size exceeds 64 bits.
pub fn of(
    writers: &Grid,
    readers: &Grid,
    element: u64,
    shares: &[Share],
    replicas: usize,
) -> Result<Figures, SpaceError> {
    let blocks: Vec<Region> = (0..writers.parts())
        .map(|rank| writers.part(rank))
        .collect();
    let (mut parts, mut first) = (Vec::new(), vec![0]);
    let (mut sizes, mut places) = (Vec::new(), Vec::new());
    // Ranks with equal blocks compute the same placement: once is enough.
    let mut known: HashMap<Vec<u64>, Rc<Group>> = HashMap::new();
    let ranks = writers.parts();
    for (rank, block) in (0..).zip(&blocks) {
        // A rank knows only its own block.
        let total = block.bytes(element)?.saturating_mul(ranks);
        let own = pieces(block, element, total, shares.len() as u64)?;
        let bytes = own.iter().map(|part| part.bytes(element));
        let bytes: Vec<u64> = bytes.collect::<Result<_, _>>()?;
        let group = known
            .get(&bytes)
            .filter(|known| known.0.contains(&rank))
            .cloned();
        let group = group.unwrap_or_else(|| {
            let block = ("figures", 0);
            Rc::new(assign_group(block, &bytes, (rank, ranks), shares, replicas))
        });
        let begin = (rank - group.0.start) as usize * bytes.len();
        places.extend_from_slice(&group.1[begin..begin + bytes.len()]);
        known.insert(bytes.clone(), group);
        sizes.extend(bytes);
        parts.extend(own);
        first.push(parts.len());
    }
    let index = Index::new(&blocks)?;
    let mut talk = Talk::new(shares.len());
    for rank in 0..blocks.len() {
        talk.writer(
            places[first[rank]..first[rank + 1]]
                .iter()
                .flatten()
                .copied(),
        );
    }
    for rank in 0..readers.parts() {
        let asked = readers.part(rank);
        let hit = index
            .query(&asked)
            .flat_map(|(block, _)| first[block as usize]..first[block as usize + 1]);
        let hit = hit.filter(|&piece| parts[piece].intersects(&asked));
        talk.reader(hit.map(|piece| places[piece][0]));
    }
    Ok(Figures {
        pieces: parts.len() as u64,
        max_over_mean: max_over_mean(&sizes, &places, shares.len()),
        index_bytes: index.bytes(),
        table_bytes: 4 * places.iter().map(|of| of.len() as u64).sum::<u64>(),
        connections_per_writer: talk.per_writer,
        connections_per_reader: talk.per_reader,
        connections_per_server: talk.per_server.into_iter().max().unwrap_or(0),
    })
}

fn max_over_mean(sizes: &[u64], places: &[Vec<u32>], servers: usize) -> f64 {
    let mut loads = vec![0u64; servers];
    for (bytes, place) in sizes.iter().zip(places) {
        for &server in place {
            loads[server as usize] += bytes;
        }
    }
    let mean = loads.iter().sum::<u64>() as f64 / servers as f64;
    let most = loads.into_iter().max().unwrap_or(0) as f64;
    if mean == 0.0 { 1.0 } else { most / mean }
}

/// Counts the connections of each process.
struct Talk {
    per_writer: u64,
    per_reader: u64,
    per_server: Vec<u64>,
}

impl Talk {
    fn new(servers: usize) -> Self {
        Talk {
            per_writer: 0,
            per_reader: 0,
            per_server: vec![0; servers],
        }
    }

    fn count(&mut self, servers: impl Iterator<Item = u32>) -> u64 {
        let distinct: HashSet<u32> = servers.collect();
        for &server in &distinct {
            self.per_server[server as usize] += 1;
        }
        distinct.len() as u64
    }

    fn writer(&mut self, servers: impl Iterator<Item = u32>) {
        self.per_writer = self.count(servers).max(self.per_writer);
    }

    fn reader(&mut self, servers: impl Iterator<Item = u32>) {
        self.per_reader = self.count(servers).max(self.per_reader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest run of the study, placed by the code that a run uses.
    #[test]
    fn eight_thousand_writers_four_thousand_readers_a_thousand_servers() {
        let servers: Vec<Share> = (0..1024)
            .map(|block_store| Share {
                block_store,
                weight: 1,
            })
            .collect();
        for shape in [[5, 8192, 512_000], [5, 512, 8_192_000]] {
            let cut = if shape[1] == 512 { 2 } else { 1 };
            let writers = Grid::along(&shape, cut, 8192).unwrap();
            let readers = Grid::along(&shape, cut, 4096).unwrap();
            let figures = of(&writers, &readers, 8, &servers, 1).unwrap();
            println!("{shape:?}: {figures:?}");
            assert!(figures.max_over_mean <= 1.10, "{figures:?}");
            assert!(figures.index_bytes <= 96 * 8192, "{figures:?}");
            assert!(figures.connections_per_writer <= 8, "{figures:?}");
            assert!(figures.connections_per_reader <= 16, "{figures:?}");
            assert!(figures.connections_per_server <= 128, "{figures:?}");
        }
    }
}
