//! The keys of a class, and their changes from pass to pass.

use std::ops::Range;

use crate::Class;
use crate::random::{BITS, Random};

/// Timed ranking passes; an untimed one precedes them.
pub const PASSES: u64 = 10;

/// The number and the size of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The published size.
    pub class: Class,
    keys_log2: u32,
    values_log2: u32,
}

impl Problem {
    /// Returns the problem of a class (NPB 3: `npbparams.h`, `is.c`).
    pub fn new(class: Class) -> Problem {
        let (keys_log2, values_log2) = match class {
            Class::S => (16, 11),
            Class::W => (20, 16),
            Class::A => (23, 19),
            Class::B => (25, 21),
            Class::C => (27, 23),
        };
        Problem {
            class,
            keys_log2,
            values_log2,
        }
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> u64 {
        1 << self.keys_log2
    }

    /// Returns the bound below which all keys are.
    pub fn values(&self) -> u32 {
        1 << self.values_log2
    }

    /// Returns the number of bits of a key.
    pub fn values_log2(&self) -> u32 {
        self.values_log2
    }

    /// Returns the keys with these numbers: each is the sum of four random numbers times a quarter
    /// of [`Problem::values`], without its fraction.
    pub fn generate(&self, numbers: Range<u64>) -> Vec<u32> {
        let mut random = Random::after(4 * numbers.start);
        let mut key = || {
            let sum: u64 = (0..4).map(|_| random.integer()).sum();
            (sum >> (BITS + 2 - self.values_log2)) as u32
        };
        numbers.map(|_| key()).collect()
    }

    /// Returns the two keys that pass `pass` sets before it ranks, as (number, key).
    pub fn marks(&self, pass: u64) -> [(u64, u32); 2] {
        [
            (pass, pass as u32),
            (pass + PASSES, self.values() - pass as u32),
        ]
    }

    /// Returns the numbers of the keys with which unit `rank` of `units` begins: a contiguous part,
    /// as equal as possible.
    pub fn part(&self, rank: u32, units: u32) -> Range<u64> {
        let first = |rank: u32| self.keys() * u64::from(rank) / u64::from(units);
        first(rank)..first(rank + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_real_arithmetic() {
        for class in Class::ALL {
            let problem = Problem::new(class);
            let mut random = Random::new();
            for key in problem.generate(0..5000) {
                let sum: f64 = (0..4).map(|_| random.real()).sum();
                let quarter = f64::from(problem.values() / 4);
                assert_eq!(key, (quarter * sum) as u32);
                assert!(key < problem.values());
            }
        }
    }

    #[test]
    fn parts_are_the_whole() {
        let problem = Problem::new(Class::S);
        let whole = problem.generate(0..problem.keys());
        for units in [1, 2, 3, 7, 64] {
            let parts = (0..units).flat_map(|rank| problem.generate(problem.part(rank, units)));
            assert!(parts.eq(whole.iter().copied()), "{units} units");
        }
    }

    #[test]
    fn marks_are_valid_keys() {
        for pass in 1..=PASSES {
            let problem = Problem::new(Class::S);
            for (number, key) in problem.marks(pass) {
                assert!(number < problem.keys() && key < problem.values());
            }
        }
    }
}
