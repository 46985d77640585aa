//! The pseudorandom numbers of the NAS benchmarks.
//!
//! A linear congruential generator modulo 2^46 (Bailey et al., *The NAS Parallel Benchmarks*, 1994,
//! section 2.3). The publication splits every product into halves that fit into a double; 64-bit
//! integers give the same numbers: 2^46 divides 2^64, so a product that wraps is still correct.

/// Numbers are below 2 to this power.
pub const BITS: u32 = 46;

/// The multiplier, 5^13.
const FACTOR: u64 = 1_220_703_125;

/// The seed of IS and CG.
const SEED: u64 = 314_159_265;

const MASK: u64 = (1 << BITS) - 1;

/// The sequence; its state is its last number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// Returns the sequence from its beginning.
    pub fn new() -> Random {
        Random(SEED)
    }

    /// Returns the sequence after its first `count` numbers, in O(log `count`).
    pub fn after(count: u64) -> Random {
        let (mut state, mut factor, mut left) = (SEED, FACTOR, count);
        while left > 0 {
            if left % 2 == 1 {
                state = product(state, factor);
            }
            factor = product(factor, factor);
            left /= 2;
        }
        Random(state)
    }

    /// Returns the next number, in 0..2^46.
    pub fn integer(&mut self) -> u64 {
        self.0 = product(self.0, FACTOR);
        self.0
    }

    /// Returns the next number, in 0..1. Exact: a double holds 46 bits.
    pub fn real(&mut self) -> f64 {
        self.integer() as f64 / (1u64 << BITS) as f64
    }
}

impl Default for Random {
    fn default() -> Random {
        Random::new()
    }
}

fn product(a: u64, b: u64) -> u64 {
    a.wrapping_mul(b) & MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_long_arithmetic() {
        let (mut random, mut expected) = (Random::new(), u128::from(SEED));
        for _ in 0..10_000 {
            expected = expected * u128::from(FACTOR) % (1 << BITS);
            assert_eq!(u128::from(random.integer()), expected);
        }
    }

    #[test]
    fn a_jump_arrives_where_steps_do() {
        let mut random = Random::new();
        for count in 0..1000 {
            assert_eq!(random, Random::after(count));
            random.integer();
        }
        let mut far = Random::after((1 << 40) - 5);
        (0..5).for_each(|_| _ = far.integer());
        assert_eq!(far, Random::after(1 << 40));
    }

    #[test]
    fn reals_are_the_integers_scaled() {
        let (mut integers, mut reals) = (Random::new(), Random::new());
        for _ in 0..1000 {
            let (integer, real) = (integers.integer(), reals.real());
            assert!((0.0..1.0).contains(&real));
            assert_eq!((real * 2f64.powi(46)) as u64, integer);
        }
    }
}
