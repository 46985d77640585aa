//! Which unit gets which bin.

use std::ops::Range;

use super::partition::{BINS, KEYS_PER_CHUNK};

/// The number of keys of a sample in each bin.
pub type Sample = [u64; BINS];

/// One of this many keys is sampled. A power of two would sample every key at the same position of
/// its cache line.
pub(super) const STRIDE: usize = 251;

/// Counts a sample of the keys by bins.
pub fn sample(keys: &[u32], shift: u32) -> Sample {
    let mut sample = [0; BINS];
    for key in keys.iter().step_by(STRIDE) {
        sample[(key >> shift) as usize] += 1;
    }
    sample
}

/// Contiguous ranges of bins, one per unit, with about equally many keys.
///
/// The borders follow from a sample, so that no pass over all keys is needed before they are sent;
/// with the same sample, every unit computes the same borders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// First bin of each unit, and the end.
    first: Vec<usize>,
    /// The unit of each bin.
    owner: [u32; BINS],
    chunks: u64,
}

impl Split {
    /// Splits `keys` keys, of which `sample` is a sample, over `units` units.
    pub fn new(sample: &Sample, keys: u64, units: u32) -> Split {
        let seen: u64 = sample.iter().sum::<u64>().max(1);
        // A bin goes to the unit that contains its middle.
        let mut owner = [0; BINS];
        let mut below = 0;
        for (owner, &count) in owner.iter_mut().zip(sample) {
            let middle = 2 * below + count;
            let unit = u128::from(middle) * u128::from(units) / u128::from(2 * seen);
            *owner = (unit as u32).min(units - 1);
            below += count;
        }
        let first: Vec<_> = (0..=units)
            .map(|unit| owner.partition_point(|&owner| owner < unit))
            .collect();
        let chunks = (first.windows(2))
            .map(|bins| {
                let share: u64 = sample[bins[0]..bins[1]].iter().sum();
                let keys = (u128::from(keys) * u128::from(share) / u128::from(seen)) as u64;
                // Allow for the error of the sample, and for one partly filled chunk per unit and
                // bin.
                let full = (keys + keys / 8) / KEYS_PER_CHUNK as u64;
                full + (bins[1] - bins[0]) as u64 * u64::from(units) + 64
            })
            .max()
            .unwrap_or(0);
        Split {
            first,
            owner,
            chunks,
        }
    }

    /// Returns the unit that gets the keys of a bin.
    pub fn owner(&self, bin: usize) -> u32 {
        self.owner[bin]
    }

    /// Returns the bins of a unit.
    pub fn bins(&self, unit: u32) -> Range<usize> {
        self.first[unit as usize]..self.first[unit as usize + 1]
    }

    /// Returns the number of chunks for which every unit needs memory.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;
    use crate::is::Problem;

    #[test]
    fn ranges_are_contiguous_and_cover_all_bins() {
        for units in [1, 2, 3, 7, 64, 300] {
            for sample in [
                [1; BINS],
                [0; BINS],
                std::array::from_fn(|bin| (bin == 9).into()),
            ] {
                let split = Split::new(&sample, 1000, units);
                let bins: Vec<_> = (0..units).flat_map(|unit| split.bins(unit)).collect();
                assert!(bins.into_iter().eq(0..BINS));
                for unit in 0..units {
                    assert!(split.bins(unit).all(|bin| split.owner(bin) == unit));
                }
            }
        }
    }

    #[test]
    fn the_keys_of_the_benchmark_are_spread_evenly() {
        let problem = Problem::new(Class::W);
        let keys = problem.generate(0..problem.keys());
        let shift = problem.values_log2() - 8;
        let sample = sample(&keys, shift);
        for units in [2, 3, 4, 8] {
            let split = Split::new(&sample, problem.keys(), units);
            let mut counts = vec![0u64; units as usize];
            for key in &keys {
                counts[split.owner((key >> shift) as usize) as usize] += 1;
            }
            let share = problem.keys() / u64::from(units);
            let chunks = split.chunks() * KEYS_PER_CHUNK as u64;
            for count in counts {
                assert!(count.abs_diff(share) < share / 8, "{count} of {share}");
                assert!(count < chunks);
            }
        }
    }
}
