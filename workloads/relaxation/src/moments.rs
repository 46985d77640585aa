//! Count, mean and central moments of many values, in one pass over memory, mergeable.
//!
//! A block of values (small enough for the L1 cache) is summed twice while it is cached: once for
//! its mean, once for the powers of the distance from it. That avoids the cancellation of raw power
//! sums. Blocks are then merged by the pairwise update formulas:
//!
//! * T. Chan, G. Golub, R. LeVeque, *Updating formulae and a pairwise algorithm for computing
//!   sample variances*, Stanford STAN-CS-79-773, 1979 (order 2);
//! * P. Pébay, *Formulas for robust, one-pass parallel computation of covariances and
//!   arbitrary-order statistical moments*, Sandia SAND2008-6212, 2008 (orders 3 and 4).
//!
//! Merging the rows of a field in order gives the same bits, however the rows are divided among
//! units.

use pulp::Arch;
use serde::{Deserialize, Serialize};

use crate::kernel::PowerSums;

/// Values summed at a time: 16 KiB, half of a small L1 cache.
const BLOCK: usize = 2048;

/// Count, mean, the sums of the powers 2 to 4 of the distance from the mean, and the extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    count: u64,
    mean: f64,
    powers: [f64; 3],
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Moments {
    /// The moments of no values.
    pub const EMPTY: Self = Self {
        count: 0,
        mean: 0.0,
        powers: [0.0; 3],
        min: 0.0,
        max: 0.0,
    };

    /// Returns the moments of the values of one slice.
    pub fn of(values: &[f64]) -> Self {
        let arch = Arch::new();
        values.chunks(BLOCK).fold(Self::EMPTY, |moments, block| {
            let sums = PowerSums { block }.run(arch);
            moments.merge(Self {
                count: block.len() as u64,
                mean: sums.mean,
                powers: sums.powers,
                min: sums.min,
                max: sums.max,
            })
        })
    }

    /// Adds the values of one slice, such as a row of a field.
    pub fn add(&mut self, values: &[f64]) {
        *self = self.merge(Self::of(values));
    }

    /// Returns the moments of the values of both. Symmetric and associative up to rounding.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        if other.count == 0 {
            return self;
        }
        if self.count == 0 {
            return other;
        }
        let count = self.count + other.count;
        let (a, b, n) = (self.count as f64, other.count as f64, count as f64);
        let ([a2, a3, a4], [b2, b3, b4]) = (self.powers, other.powers);
        let apart = other.mean - self.mean;
        let share = apart / n;
        let between = apart * share * a * b;
        Self {
            count,
            mean: self.mean + share * b,
            powers: [
                a2 + b2 + between,
                a3 + b3 + between * share * (a - b) + 3.0 * share * (a * b2 - b * a2),
                a4 + b4
                    + between * share * share * (a * a - a * b + b * b)
                    + 6.0 * share * share * (a * a * b2 + b * b * a2)
                    + 4.0 * share * (a * b3 - b * a3),
            ],
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean, which is the first raw moment; 0 without values. The first central moment
    /// is 0.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Returns the second central moment: the mean square of the distance from the mean.
    pub fn variance(&self) -> f64 {
        self.central(0)
    }

    /// Returns the third central moment.
    pub fn third(&self) -> f64 {
        self.central(1)
    }

    /// Returns the fourth central moment.
    pub fn fourth(&self) -> f64 {
        self.central(2)
    }

    /// Returns the third central moment over the cube of the standard deviation; 0 if all values
    /// are equal.
    pub fn skewness(&self) -> f64 {
        self.standardised(self.third() / self.variance().powf(1.5))
    }

    /// Returns the fourth central moment over the square of the variance (3 for a normal
    /// distribution); 0 if all values are equal.
    pub fn kurtosis(&self) -> f64 {
        self.standardised(self.fourth() / self.variance().powi(2))
    }

    /// Returns the smallest value; 0 without values.
    pub fn min(&self) -> f64 {
        self.min
    }

    /// Returns the largest value; 0 without values.
    pub fn max(&self) -> f64 {
        self.max
    }

    fn central(&self, power: usize) -> f64 {
        self.powers[power] / self.count.max(1) as f64
    }

    fn standardised(&self, quotient: f64) -> f64 {
        // A spread this small is the rounding of the mean, and its shape is meaningless.
        let rounding = 1e-14 * self.min.abs().max(self.max.abs());
        if self.variance().sqrt() > rounding {
            quotient
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns mean and central moments by the definition, in two passes; and the scale of their
    /// rounding.
    fn two_pass(values: &[f64]) -> [(f64, f64); 4] {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let size = values
            .iter()
            .fold(0.0f64, |size, value| size.max(value.abs()));
        let spread = values
            .iter()
            .fold(0.0f64, |spread, value| spread.max((value - mean).abs()));
        let power = |p: i32| {
            values
                .iter()
                .map(|value| (value - mean).powi(p))
                .sum::<f64>()
                / n
        };
        // An error e of the mean moves the central moment p by about p e spread^(p - 1).
        let slack = |p: i32| spread.powi(p) + f64::from(p) * size * spread.powi(p - 1);
        [
            (mean, size),
            (power(2), slack(2)),
            (power(3), slack(3)),
            (power(4), slack(4)),
        ]
    }

    fn assert_close(moments: Moments, values: &[f64]) {
        let ours = [
            moments.mean(),
            moments.variance(),
            moments.third(),
            moments.fourth(),
        ];
        for (ours, (exact, scale)) in ours.into_iter().zip(two_pass(values)) {
            assert!(
                (ours - exact).abs() <= 1e-13 * scale,
                "{ours} is not {exact} (scale {scale})"
            );
        }
        assert_eq!(moments.count(), values.len() as u64);
        assert_eq!(
            moments.min(),
            values.iter().copied().fold(f64::INFINITY, f64::min)
        );
        assert_eq!(
            moments.max(),
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        );
    }

    fn values() -> impl Strategy<Value = Vec<f64>> {
        let (offset, spread) = (-1e6..1e6f64, prop_oneof![Just(1e-3), Just(1.0), Just(1e6)]);
        (offset, spread, prop::collection::vec(-1.0..1.0f64, 1..400)).prop_map(
            |(offset, spread, values)| {
                values
                    .into_iter()
                    .map(|value| offset + spread * value)
                    .collect()
            },
        )
    }

    proptest! {
        #[test]
        fn any_split_merges_to_the_two_pass_result(
            values in values(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(values.len() + 1)).collect();
            cuts.extend([0, values.len()]);
            cuts.sort_unstable();
            let parts: Vec<_> =
                cuts.windows(2).map(|cut| Moments::of(&values[cut[0]..cut[1]])).collect();
            let forwards = parts.iter().fold(Moments::EMPTY, |all, part| all.merge(*part));
            let backwards = parts.iter().fold(Moments::EMPTY, |all, part| part.merge(all));
            assert_close(Moments::of(&values), &values);
            assert_close(forwards, &values);
            assert_close(backwards, &values);
        }
    }

    #[test]
    fn long_slices_are_summed_in_blocks() {
        let values: Vec<_> = (0..3 * BLOCK + 5)
            .map(|at| ((at * 7919) % 1009) as f64)
            .collect();
        assert_close(Moments::of(&values), &values);
    }

    #[test]
    fn known_distributions_have_their_moments() {
        let two: Vec<_> = (0..1000)
            .map(|at| if at % 2 == 0 { -1.0 } else { 1.0 })
            .collect();
        let moments = Moments::of(&two);
        assert_eq!(
            [moments.mean(), moments.variance(), moments.skewness()],
            [0.0, 1.0, 0.0]
        );
        assert_eq!(moments.kurtosis(), 1.0);

        let even: Vec<_> = (0..100_001).map(f64::from).collect();
        let moments = Moments::of(&even);
        assert!(moments.skewness().abs() < 1e-12);
        assert!((moments.kurtosis() - 1.8).abs() < 1e-9);
    }

    #[test]
    fn equal_values_have_no_spread_and_no_values_no_moments() {
        let moments = Moments::of(&[25.0; 5000]);
        assert_eq!([moments.mean(), moments.variance()], [25.0, 0.0]);
        for equal in [moments, Moments::of(&[0.1; 4999])] {
            assert_eq!([equal.skewness(), equal.kurtosis()], [0.0, 0.0]);
        }
        assert_eq!(Moments::EMPTY.merge(moments), moments);
        assert_eq!(moments.merge(Moments::EMPTY), moments);
        assert_eq!(Moments::of(&[]), Moments::EMPTY);
        assert_eq!(
            [Moments::EMPTY.mean(), Moments::EMPTY.variance()],
            [0.0, 0.0]
        );
    }

    #[test]
    fn moments_travel_as_text() {
        for moments in [Moments::EMPTY, Moments::of(&[1.0, 0.1, -3.7])] {
            let text = serde_json::to_string(&moments).unwrap();
            assert_eq!(serde_json::from_str::<Moments>(&text).unwrap(), moments);
        }
    }
}
