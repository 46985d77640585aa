//! Keys into bins, a chunk at a time.
//!
//! A key is split into its upper [`BINS_LOG2`] bits, the bin, and the rest, which alone is stored:
//! two bytes. Keys of a bin are collected in one chunk; a full chunk is sent as a whole. So the
//! random writes stay in the L2 cache, each sent page is written sequentially, and a chunk can be
//! written directly into the memory of the unit that counts it.
//!
//! # A chunk
//! [`CHUNK`] words of 16 bits: the bin, the number of keys, the keys.

use std::ops::Range;

/// The number of bits that select a bin.
pub const BINS_LOG2: u32 = 8;

/// The number of bins: with their chunks they fit into an L2 cache, and the counters of one bin fit
/// into an L1 cache.
pub const BINS: usize = 1 << BINS_LOG2;

/// Words of a chunk: a page.
pub const CHUNK: usize = 2048;

const HEADER: usize = 2;

/// Maximum number of keys in a chunk.
pub const KEYS_PER_CHUNK: usize = CHUNK - HEADER;

/// The chunks that are being filled, one per bin.
#[derive(Clone, Debug)]
pub struct Partition {
    shift: u32,
    /// Words in use, by bin; at least the header's.
    used: [u16; BINS],
    chunks: Vec<[u16; CHUNK]>,
}

impl Partition {
    /// Returns an empty partition for keys of `key_bits` bits, at most 24.
    pub fn new(key_bits: u32) -> Partition {
        let chunk = |bin: usize| std::array::from_fn(|at| if at == 0 { bin as u16 } else { 0 });
        Partition {
            shift: shift(key_bits),
            used: [HEADER as u16; BINS],
            chunks: (0..BINS).map(chunk).collect(),
        }
    }

    /// Adds keys. Calls `send` with every full chunk and its bin; stops at its first error.
    pub fn add<E>(
        &mut self,
        keys: &[u32],
        mut send: impl FnMut(usize, &[u16]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (shift, mask) = (self.shift, low_mask(self.shift));
        // With this length, no index below needs a bounds check.
        let Ok(chunks) = <&mut [[u16; CHUNK]; BINS]>::try_from(&mut self.chunks[..]) else {
            unreachable!("there is a chunk for every bin");
        };
        for &key in keys {
            let bin = (key >> shift) as usize % BINS;
            let mut used = usize::from(self.used[bin]);
            // When the next key comes, not when the chunk becomes full: by then, the last stores
            // have reached the cache, and copying the chunk does not wait for them.
            if used == CHUNK {
                chunks[bin][1] = KEYS_PER_CHUNK as u16;
                send(bin, &chunks[bin])?;
                used = HEADER;
            }
            chunks[bin][used % CHUNK] = key as u16 & mask;
            self.used[bin] = used as u16 + 1;
        }
        Ok(())
    }

    /// Sends the rest; only the words in use. Afterwards all chunks are empty.
    pub fn finish<E>(
        &mut self,
        mut send: impl FnMut(usize, &[u16]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (bin, (chunk, used)) in self.chunks.iter_mut().zip(&mut self.used).enumerate() {
            let words = usize::from(std::mem::replace(used, HEADER as u16));
            if words > HEADER {
                chunk[1] = (words - HEADER) as u16;
                send(bin, &chunk[..words])?;
            }
        }
        Ok(())
    }
}

fn shift(key_bits: u32) -> u32 {
    assert!((BINS_LOG2..=BINS_LOG2 + 16).contains(&key_bits));
    key_bits - BINS_LOG2
}

fn low_mask(shift: u32) -> u16 {
    ((1u32 << shift) - 1) as u16
}

/// A chunk that [`Partition`] does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The ranks of the values of a range of bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks {
    /// The smallest value.
    first: u32,
    /// For each value from the smallest one on, how many of these keys are smaller; the last entry
    /// counts all keys.
    smaller: Vec<u32>,
}

impl Ranks {
    /// Ranks the keys of `chunks`, all of which are in `bins`.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if there is another bin, or a number of keys that no chunk can contain.
    pub fn of(chunks: &[u16], bins: Range<usize>, key_bits: u32) -> Result<Ranks, Malformed> {
        let shift = shift(key_bits);
        let mut smaller = vec![0; (bins.len() << shift) + 1];
        for chunk in by_bin(chunks) {
            let bin = usize::from(chunk[0]);
            if !bins.contains(&bin) {
                return Err(Malformed);
            }
            let counts = &mut smaller[(bin - bins.start) << shift..][..1 << shift];
            let keys = chunk[HEADER..].get(..usize::from(chunk[1]));
            count(keys.ok_or(Malformed)?, counts);
        }
        let mut sum = 0;
        for count in &mut smaller {
            sum += std::mem::replace(count, sum);
        }
        Ok(Ranks {
            first: (bins.start << shift) as u32,
            smaller,
        })
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> u64 {
        self.smaller.last().copied().unwrap_or(0).into()
    }

    /// Returns how many of these keys are smaller than `key`; `None` if its bin is not here.
    pub fn of_key(&self, key: u32) -> Option<u64> {
        let at = key.checked_sub(self.first)? as usize;
        let values = self.smaller.len() - 1;
        (at < values).then(|| self.smaller[at].into())
    }

    /// Returns all keys of `chunks`, which are those that were ranked, in the order of their ranks.
    pub fn sort(&self, chunks: &[u16], key_bits: u32) -> Vec<u32> {
        let (shift, mask) = (shift(key_bits), low_mask(shift(key_bits)));
        let mut next = self.smaller.clone();
        let mut sorted = vec![0; self.keys() as usize];
        for chunk in by_bin(chunks) {
            let upper = u32::from(chunk[0]) << shift;
            for &low in &chunk[HEADER..][..usize::from(chunk[1])] {
                let key = upper | u32::from(low & mask);
                let next = &mut next[(key - self.first) as usize];
                sorted[*next as usize] = key;
                *next += 1;
            }
        }
        sorted
    }
}

/// Orders the chunks by bin: then the counters of a bin, and the positions of its keys, stay in the
/// cache.
fn by_bin(chunks: &[u16]) -> Vec<&[u16]> {
    let mut by_bin: Vec<_> = chunks.chunks_exact(CHUNK).collect();
    by_bin.sort_unstable_by_key(|chunk| chunk[0]);
    by_bin
}

/// Adds the number of each value to its counter. The number of counters is a power of two above all
/// values.
fn count(values: &[u16], counts: &mut [u32]) {
    let mask = counts.len() - 1;
    for &value in values {
        counts[usize::from(value) & mask] += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn sure<T>(result: Result<T, Infallible>) -> T {
        let Ok(value) = result;
        value
    }

    /// Partitions keys; returns the chunks of `bins`, each with its full length.
    fn chunks(keys: &[u32], key_bits: u32, bins: &Range<usize>) -> Vec<u16> {
        let mut partition = Partition::new(key_bits);
        let mut sent = Vec::new();
        let mut send = |bin: usize, words: &[u16]| {
            assert_eq!(usize::from(words[0]), bin);
            if bins.contains(&bin) {
                sent.extend_from_slice(words);
                sent.resize(sent.len().next_multiple_of(CHUNK), u16::MAX);
            }
            Ok(())
        };
        sure(partition.add(keys, &mut send));
        sure(partition.finish(&mut send));
        sure(partition.finish(|_, _| unreachable!("nothing is left")));
        sent
    }

    fn assert_ranked(keys: &[u32], key_bits: u32, bins: Range<usize>) {
        let shift = key_bits - BINS_LOG2;
        let chunks = chunks(keys, key_bits, &bins);
        let mut mine = keys.to_vec();
        mine.retain(|key| bins.contains(&((key >> shift) as usize)));
        mine.sort_unstable();
        let ranks = Ranks::of(&chunks, bins.clone(), key_bits).unwrap();
        assert_eq!(ranks.keys(), mine.len() as u64);
        for key in keys {
            let here = bins.contains(&((key >> shift) as usize));
            let rank = mine.partition_point(|other| other < key) as u64;
            assert_eq!(ranks.of_key(*key), here.then_some(rank));
        }
        assert_eq!(ranks.sort(&chunks, key_bits), mine);
    }

    #[test]
    fn chunks_of_one_bin_fill_up() {
        for length in [
            0,
            1,
            KEYS_PER_CHUNK - 1,
            KEYS_PER_CHUNK,
            KEYS_PER_CHUNK + 1,
            7000,
        ] {
            let keys: Vec<_> = (0..length as u32).map(|at| 0x4200 + at % 256).collect();
            assert_ranked(&keys, 16, 0..BINS);
            assert_ranked(&keys, 16, 0x42..0x43);
            assert_ranked(&keys, 16, 0x43..0x43);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut chunks = chunks(&[0x1234, 0x1250], 16, &(0..BINS));
        assert_eq!(Ranks::of(&chunks, 0..0x12, 16), Err(Malformed));
        chunks[1] = CHUNK as u16 - 1;
        assert_eq!(Ranks::of(&chunks, 0..BINS, 16), Err(Malformed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_keys_are_ranked(
            key_bits in 8u32..=24, from in 0..BINS, bins in 0..BINS,
            seeds in prop::collection::vec(any::<u32>(), 0..5000),
        ) {
            let keys: Vec<_> = seeds.iter().map(|seed| seed % (1 << key_bits)).collect();
            assert_ranked(&keys, key_bits, from..(from + bins).min(BINS));
        }
    }
}
