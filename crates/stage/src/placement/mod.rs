//! Which block store has which block.
//!
//! The placement of a block never follows the geometry of the array: otherwise, readers and writers
//! that traverse the array in the same order would all meet at the same server at the same time
//! (N-to-1). Here a hash decides: *rendezvous* hashing (highest random weight; Thaler and
//! Ravishankar, 1998), so that adding or removing a block store moves little else, with *bounded
//! loads* (Mirrokni, Thorup and Zadimoghaddam, 2018), because the blocks of a step are few and a
//! plain hash distributes few items unevenly.
//!
//! * [`pieces`] splits large blocks, so that the loads can be even.
//! * [`assign`] gives every piece its block stores. It is a pure function of integers: every
//!   process that knows the same pieces and block stores computes the same placement, on every
//!   machine.
//! * [`assign_group`] is for a rank that knows only its own blocks: it assumes that the others have
//!   the same ones, and places theirs with its own. Alone, the few pieces of a rank would be
//!   uneven, and so would the sum of many such ranks.
//! * [`figures`] predicts how even the distribution of a layout is.
//!
//! It does not know which block store has free memory: admission control does.

pub mod figures;

use crate::{Region, SpaceError};
use std::ops::Range;

/// A block store, and its weight in the distribution of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number, which is input of the hash.
    pub block_store: u32,
    /// Its weight, 1 or more (for example, its capacity in bytes).
    pub weight: u64,
}

/// A block, or a part of one, that is placed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Input of the hash: see [`key`].
    pub key: u64,
    /// Its size.
    pub bytes: u64,
}

/// Blocks are not split below this: a request would cost more than its bytes. Steps so small that
/// loads stay uneven because of it are no significant load.
pub const SMALLEST: u64 = 64 << 10;

/// Blocks are split above this, however large the step: a piece is one request.
pub const LARGEST: u64 = 16 << 20;

/// A block store gets at most its share plus one part in this many of it, if the pieces allow it:
/// [`pieces`] ensures that.
const SLACK: u64 = 16;

/// Returns the key of piece number `piece` of `variable`. Another `salt` gives another placement: 0
/// for one that stays from step to step, so that layouts do; the step number for one that changes.
pub fn key(variable: &str, piece: u64, salt: u64) -> u64 {
    let name = xxhash_rust::xxh3::xxh3_64_with_seed(variable.as_bytes(), salt);
    mix(name ^ mix(piece))
}

/// Splits blocks so that `block_stores` block stores can have even loads: into boxes of at most a
/// sixteenth of a block store's mean load and at most [`LARGEST`] bytes, but not below
/// [`SMALLEST`].
///
/// `total` is the number of bytes of the step, of all ranks if that is known. A block is cut along
/// its slowest dimension that is longer than one, so a piece is contiguous in the writer's array,
/// and along the next one if single rows are still too large. The pieces of a block are in
/// row-major order.
///
/// # Errors
/// A block whose bytes exceed 64 bits.
pub fn pieces(
    block: &Region,
    element: u64,
    total: u64,
    block_stores: u64,
) -> Result<Vec<Region>, SpaceError> {
    block.bytes(element)?;
    let even = total / block_stores.max(1) / SLACK;
    let most = if block_stores <= 1 {
        LARGEST
    } else {
        even.clamp(SMALLEST, LARGEST)
    };
    let mut pieces = Vec::new();
    split(block.clone(), element, most, &mut pieces)?;
    Ok(pieces)
}

fn split(block: Region, element: u64, most: u64, into: &mut Vec<Region>) -> Result<(), SpaceError> {
    let bytes = block.bytes(element)?;
    let Some(dim) = (0..block.dims()).find(|&dim| block.extent(dim) > 1) else {
        into.push(block);
        return Ok(());
    };
    if bytes <= most {
        into.push(block);
        return Ok(());
    }
    let rows = block.extent(dim);
    let parts = bytes.div_ceil(most).min(rows);
    let mut rest = block;
    for part in 0..parts {
        let border = rest.lower()[dim] + (rest.extent(dim)).div_ceil(parts - part);
        let (piece, after) = rest.cut(dim, border);
        rest = after;
        split(piece, element, most, into)?;
    }
    Ok(())
}

/// Returns the block stores of every piece, as indices into `shares`: `replicas` different ones
/// (all, if there are fewer). Readers ask the first one first.
///
/// Larger pieces are placed first. Each goes to the block stores with the highest hashes whose load
/// stays below their bound, a sixteenth above their share of the bytes; if there is none, to the
/// least loaded.
///
/// # Panics
/// If there is no block store, or a weight is 0: bugs of the caller.
pub fn assign(pieces: &[Piece], shares: &[Share], replicas: usize) -> Vec<Vec<u32>> {
    assert!(
        !shares.is_empty() && replicas > 0,
        "no block store, or no copy"
    );
    assert!(shares.iter().all(|share| share.weight > 0));
    let replicas = replicas.min(shares.len());
    let mut loads = Loads::new(pieces, shares, replicas);
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_unstable_by_key(|&at| {
        let piece = pieces[at];
        (std::cmp::Reverse(piece.bytes), piece.key, at)
    });
    let mut places = vec![Vec::new(); pieces.len()];
    for at in order {
        for _ in 0..replicas {
            let block_store = loads.choose(pieces[at], &places[at]);
            loads.used[block_store as usize] += u128::from(pieces[at].bytes);
            places[at].push(block_store);
        }
    }
    places
}

/// Places one block of `variable`, the `number`th of its rank, in pieces of `sizes` bytes, together
/// with those of a group of ranks. The group has enough pieces for even loads if each of `ranks`
/// ranks has the same ones; `rank` is in it.
///
/// Returns the ranks of the group, and the block stores of their pieces, rank by rank.
///
/// # Panics
/// As [`assign`].
pub fn assign_group(
    (variable, number): (&str, u64),
    sizes: &[u64],
    (rank, ranks): (u64, u64),
    shares: &[Share],
    replicas: usize,
) -> (Range<u64>, Vec<Vec<u32>>) {
    let pieces = ranks.saturating_mul(sizes.len() as u64);
    let groups = (pieces / (SLACK * shares.len().max(1) as u64)).clamp(1, ranks);
    let group = rank * groups / ranks;
    let begin = |group: u64| (group * ranks).div_ceil(groups);
    let range = begin(group)..begin(group + 1);
    let of = |rank: u64| {
        let sizes = (0..).zip(sizes);
        sizes.map(move |(piece, &bytes)| Piece {
            key: key(variable, (rank << 40) | (number << 20) | piece, 0),
            bytes,
        })
    };
    let pieces: Vec<Piece> = range.clone().flat_map(of).collect();
    let places = assign(&pieces, shares, replicas);
    (range, places)
}

/// The current and the maximum load of each block store.
struct Loads {
    used: Vec<u128>,
    bound: Vec<u128>,
    weight: Vec<u64>,
    /// Hash inputs of each block store, of which the highest hash counts. Their number is its
    /// weight, in sixteenths of the largest weight.
    names: Vec<Vec<u64>>,
}

impl Loads {
    fn new(pieces: &[Piece], shares: &[Share], replicas: usize) -> Self {
        let total: u128 = pieces.iter().map(|piece| u128::from(piece.bytes)).sum();
        let total = total * replicas as u128;
        let weights: u128 = shares.iter().map(|share| u128::from(share.weight)).sum();
        let largest = shares.iter().map(|share| share.weight).max().unwrap_or(1);
        let even = shares.iter().all(|share| share.weight == largest);
        let bound = shares.iter().map(|share| {
            let mean = total / weights * u128::from(share.weight)
                + total % weights * u128::from(share.weight) / weights;
            mean + mean.div_ceil(u128::from(SLACK))
        });
        let names = shares.iter().map(|share| {
            let sixteenths = u128::from(share.weight) * 16 / u128::from(largest);
            let names = if even { 1 } else { (sixteenths as u64).max(1) };
            let names = 0..names;
            names
                .map(|name| mix(u64::from(share.block_store) << 8 | name))
                .collect()
        });
        Loads {
            used: vec![0; shares.len()],
            bound: bound.collect(),
            weight: shares.iter().map(|share| share.weight).collect(),
            names: names.collect(),
        }
    }

    fn choose(&self, piece: Piece, taken: &[u32]) -> u32 {
        let free = || (0..self.used.len()).filter(|&at| !taken.contains(&(at as u32)));
        let after = |at: usize| self.used[at] + u128::from(piece.bytes);
        let rank = |at: usize| {
            self.names[at]
                .iter()
                .map(|&name| mix(name ^ piece.key))
                .max()
        };
        let roomy = free().filter(|&at| after(at) <= self.bound[at]);
        let chosen = roomy.max_by_key(|&at| (rank(at), at)).or_else(|| {
            // Compares load over weight without a division.
            free().min_by(|&one, &other| {
                let left = after(one).saturating_mul(u128::from(self.weight[other]));
                let right = after(other).saturating_mul(u128::from(self.weight[one]));
                left.cmp(&right).then(rank(other).cmp(&rank(one)))
            })
        });
        chosen.expect("there are as many block stores as replicas") as u32
    }
}

/// splitmix64's finisher: every input bit affects every output bit.
fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Grid, first_hole, first_overlap};

    fn equal(block_stores: u32) -> Vec<Share> {
        let block_stores = 0..block_stores;
        block_stores
            .map(|block_store| Share {
                block_store: block_store * 3 + 1,
                weight: 1 << 30,
            })
            .collect()
    }

    fn loads(pieces: &[Piece], places: &[Vec<u32>], block_stores: usize) -> Vec<u64> {
        let mut loads = vec![0; block_stores];
        for (piece, place) in pieces.iter().zip(places) {
            for &block_store in place {
                loads[block_store as usize] += piece.bytes;
            }
        }
        loads
    }

    fn some(count: u64, bytes: impl Fn(u64) -> u64) -> Vec<Piece> {
        let pieces = 0..count;
        pieces
            .map(|piece| Piece {
                key: key("u", piece, 0),
                bytes: bytes(piece),
            })
            .collect()
    }

    #[test]
    fn pieces_tile_their_block_in_order() {
        for (shape, total) in [
            (vec![5, 1, 512_000], 20 << 20),
            (vec![5, 512, 1000], 1 << 30),
            (vec![1, 1, 9_000_000], 1 << 33),
            (vec![3], 24),
        ] {
            for block_stores in [1, 2, 7, 16] {
                let lower = vec![7; shape.len()];
                let block = Region::at(&lower, &shape).unwrap();
                let parts = pieces(&block, 8, total, block_stores).unwrap();
                assert_eq!(first_hole(&block, &parts), None);
                assert_eq!(first_overlap(&parts), None);
                assert!(parts.is_sorted_by_key(|part| part.lower().to_vec()));
                for part in &parts {
                    let most = (total / block_stores / SLACK).clamp(SMALLEST, LARGEST);
                    let bytes = part.bytes(8).unwrap();
                    assert!(
                        bytes <= most || block_stores == 1 && bytes <= LARGEST,
                        "{part}"
                    );
                }
            }
        }
        assert!(pieces(&Region::whole(&[1 << 40, 1 << 40]).unwrap(), 8, 1, 2).is_err());
    }

    #[test]
    fn a_block_of_three_gibibytes_is_split() {
        let block = Region::whole(&[3, 1 << 27]).unwrap();
        let parts = pieces(&block, 8, 3 << 30, 1).unwrap();
        assert_eq!(parts.len(), 192);
        assert!(parts.iter().all(|part| part.bytes(8).unwrap() == LARGEST));
    }

    #[test]
    fn replicas_lie_on_different_block_stores() {
        let pieces = some(500, |piece| 1000 + piece);
        for block_stores in 1..6 {
            for replicas in 1..4 {
                let shares = equal(block_stores);
                let places = assign(&pieces, &shares, replicas);
                for place in &places {
                    let mut distinct = place.clone();
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert_eq!(distinct.len(), replicas.min(block_stores as usize));
                    assert_eq!(distinct.len(), place.len());
                }
                let loads = loads(&pieces, &places, block_stores as usize);
                let mean = loads.iter().sum::<u64>() as f64 / loads.len() as f64;
                let most = *loads.iter().max().unwrap() as f64;
                assert!(most / mean <= 1.10, "{loads:?}");
            }
        }
    }

    #[test]
    fn block_stores_get_what_they_weigh() {
        let shares: Vec<Share> = [1, 2, 5, 8]
            .into_iter()
            .enumerate()
            .map(|(at, weight)| Share {
                block_store: at as u32,
                weight: weight << 30,
            })
            .collect();
        let pieces = some(2000, |_| 1 << 20);
        let loads = loads(&pieces, &assign(&pieces, &shares, 1), 4);
        for (load, share) in loads.iter().zip(&shares) {
            let fair = (2000u64 << 20) as f64 * (share.weight >> 30) as f64 / 16.0;
            let ratio = *load as f64 / fair;
            assert!((0.7..=1.07).contains(&ratio), "{loads:?}");
        }
    }

    #[test]
    fn everybody_computes_the_same_and_salt_moves_it() {
        let pieces = some(300, |piece| piece * 11 % 97 + 1);
        let shares = equal(7);
        assert_eq!(assign(&pieces, &shares, 2), assign(&pieces, &shares, 2));
        let salted: Vec<Piece> = (0..300)
            .map(|piece| Piece {
                key: key("u", piece, 1),
                bytes: pieces[piece as usize].bytes,
            })
            .collect();
        let (here, there) = (assign(&pieces, &shares, 1), assign(&salted, &shares, 1));
        let same = here.iter().zip(&there).filter(|(a, b)| a == b).count();
        assert!(same < 100, "{same} of 300 did not move");
        // Pinned: a new version must find what an old one has placed.
        assert_eq!(key("temperature", 3, 9), 13_370_799_871_007_981_596);
    }

    #[test]
    fn a_block_store_that_leaves_moves_little_else() {
        let pieces = some(4000, |_| 1 << 20);
        let before = assign(&pieces, &equal(8), 1);
        let after = assign(&pieces, &equal(7), 1);
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        // 500 were on the block store that was removed.
        assert!((500..1000).contains(&moved), "{moved} of 4000 moved");
    }

    #[test]
    fn ranks_are_in_one_group_each() {
        for (ranks, pieces, block_stores) in [(1, 1, 9), (8, 3, 1), (64, 10, 4), (1000, 7, 5)] {
            let (shares, sizes) = (equal(block_stores), vec![100; pieces]);
            let mut next = 0;
            for rank in 0..ranks {
                let (group, places) = assign_group(("u", 2), &sizes, (rank, ranks), &shares, 1);
                assert!(group.contains(&rank), "{group:?} {rank}");
                assert!(group.start == next || group.contains(&(next - 1)));
                next = group.end;
                let count = (group.end - group.start) as usize;
                assert_eq!(places.len(), count * pieces);
                let all = ranks as usize * pieces < 16 * block_stores as usize;
                assert!(!all || group == (0..ranks), "{group:?} of {ranks}");
            }
            assert_eq!(next, ranks);
        }
    }

    #[test]
    #[should_panic(expected = "no block store")]
    fn a_group_without_block_stores_is_a_bug() {
        assign_group(("u", 0), &[1], (0, 1), &[], 1);
    }

    /// There are at most as many copies as block stores.
    #[test]
    fn the_table_has_the_copies_that_there_are() {
        let grid = Grid::new(&[64], &[4]).unwrap();
        let table = |replicas| figures::of(&grid, &grid, 8, &equal(2), replicas);
        let (one, two, more) = (table(1), table(2), table(5));
        assert_eq!(
            two.as_ref().unwrap().table_bytes,
            2 * one.unwrap().table_bytes
        );
        assert_eq!(more, two);
    }

    #[test]
    fn columns_and_rows_are_spread_alike() {
        for servers in 2..=16u32 {
            for writers in [1u64, 2, 3, 7, 8, 13, 16, 64] {
                for shape in [[5, writers, 512_000], [5, 512, 1000 * writers]] {
                    let cut = if shape[1] == 512 { 2 } else { 1 };
                    let grid = Grid::along(&shape, cut, writers).unwrap();
                    let spread = figures::of(&grid, &grid, 8, &equal(servers), 1).unwrap();
                    assert!(
                        spread.max_over_mean <= 1.10,
                        "{shape:?} {servers}: {spread:?}"
                    );
                }
            }
        }
    }
}
