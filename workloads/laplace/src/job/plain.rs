//! Moments by their definition, for the check: two passes over all values, without the formulas
//! that the analysis uses to merge.
//!
//! Values are added in [`LANES`] separate sums, so that no addition waits for the one before it.

/// Separate sums: several vectors of any processor.
const LANES: usize = 8;
type Lanes = [f64; LANES];

/// Maximum difference of moments of the same values, summed in another order, relative to the scale
/// of their rounding.
pub(super) const ROUNDING: f64 = 1e-12;

/// Count, mean and central moments of some values.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) count: u64,
    pub(super) mean: Close,
    /// The central moments of order 1, 2, ...
    pub(super) central: Vec<Close>,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// A number, and the maximum distance of another one that is considered equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Close {
    pub(super) value: f64,
    pub(super) slack: f64,
}

impl Close {
    /// Returns true if `other` is close enough. NaN never is.
    pub(super) fn is(self, other: f64) -> bool {
        (self.value - other).abs() <= self.slack
    }
}

impl Plain {
    /// Computes the moments of values, row by row, up to an order. Sums of rows are summed: that
    /// rounds less than one long sum.
    pub(super) fn of<'a>(rows: impl Iterator<Item = &'a [f64]> + Clone, order: usize) -> Plain {
        // First pass: the mean and the extremes.
        let (mut count, mut sum) = (0_u64, 0.0);
        let (mut least, mut most) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
        for row in rows.clone() {
            let mut sums = [0.0; LANES];
            let mut add = |lane: usize, value: f64| {
                sums[lane] += value;
                least[lane] = least[lane].min(value);
                most[lane] = most[lane].max(value);
            };
            let (whole, rest) = row.as_chunks::<LANES>();
            for values in whole {
                (0..LANES).for_each(|lane| add(lane, values[lane]));
            }
            let rest = rest.iter().enumerate();
            rest.for_each(|(lane, value)| add(lane, *value));
            count += row.len() as u64;
            sum += sums.iter().sum::<f64>();
        }
        let least = least.into_iter().fold(f64::INFINITY, f64::min);
        let most = most.into_iter().fold(f64::NEG_INFINITY, f64::max);
        let divisor = count.max(1) as f64;
        let mean = sum / divisor;
        let size = match count {
            0 => 0.0,
            _ => least.abs().max(most.abs()),
        };

        // Second pass: the powers of the distances from the mean, and of their sizes.
        let mut totals = vec![[0.0; 2]; order];
        let mut sums = vec![[[0.0; LANES]; 2]; order];
        for row in rows {
            let (whole, rest) = row.as_chunks::<LANES>();
            for values in whole {
                add_powers(values.map(|value| value - mean), &mut sums);
            }
            // Lanes without a value are at distance 0, whose powers are 0.
            let mut last = [0.0; LANES];
            let rest = last.iter_mut().zip(rest);
            rest.for_each(|(distance, value)| *distance = value - mean);
            add_powers(last, &mut sums);
            for (totals, sums) in totals.iter_mut().zip(&mut sums) {
                for (total, lanes) in totals.iter_mut().zip(sums) {
                    *total += std::mem::take(lanes).iter().sum::<f64>();
                }
            }
        }

        // An error e of the mean moves the central moment p by about p e times the mean of
        // |distance|^(p - 1), and by e^p where all values are equal.
        let mut before = 1.0;
        let central = (1..).zip(totals).map(|(power, [sum, sum_of_sizes])| {
            let (value, scale) = (sum / divisor, sum_of_sizes / divisor);
            let slack = ROUNDING * (scale + f64::from(power) * size * before);
            let slack = slack + (ROUNDING * size).powi(power);
            before = scale;
            Close { value, slack }
        });
        Plain {
            count,
            mean: Close {
                value: mean,
                slack: ROUNDING * size,
            },
            central: central.collect(),
            least,
            most,
        }
    }
}

/// Adds the powers 1, 2, ... of distances, and of their sizes, to the sums of each power.
fn add_powers(distances: Lanes, sums: &mut [[Lanes; 2]]) {
    let mut powers = [1.0; LANES];
    for [signed, sizes] in sums {
        for lane in 0..LANES {
            powers[lane] *= distances[lane];
            signed[lane] += powers[lane];
            sizes[lane] += powers[lane].abs();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_what_they_are_defined_as() {
        let rows = [&[1.0, 5.0][..], &[], &[9.0]];
        let plain = Plain::of(rows.into_iter(), 4);
        let central: Vec<f64> = plain.central.iter().map(|one| one.value).collect();
        assert_eq!((plain.count, plain.mean.value), (3, 5.0));
        assert_eq!(central, [0.0, 32.0 / 3.0, 0.0, 512.0 / 3.0]);
        assert_eq!((plain.least, plain.most), (1.0, 9.0));
    }

    #[test]
    fn slack_is_that_of_rounding() {
        // A few values far away from many others: high moments are small compared with the power of
        // the spread.
        let row: Vec<f64> = (0..1000)
            .map(|at| {
                if at < 2 {
                    100.0
                } else {
                    25.0 + f64::from(at) * 1e-3
                }
            })
            .collect();
        let plain = Plain::of(std::iter::once(&row[..]), 16);
        for one in &plain.central[1..] {
            assert!(one.slack < 1e-10 * one.value.abs(), "{one:?}");
            assert!(one.is(one.value) && !one.is(one.value * 1.000_001));
            assert!(!one.is(f64::NAN) && !one.is(f64::INFINITY));
        }
    }

    /// Rows of any length, with and without lanes that have no value.
    #[test]
    fn running_products_are_powers() {
        for length in [0_u32, 1, 7, 8, 9, 384, 1000] {
            let value = |at: u32| 25.0 + f64::from(at * 7919 % 1009) / 13.0;
            let values: Vec<f64> = (0..length).map(value).collect();
            let plain = Plain::of(values.chunks(100), 16);
            assert_eq!(plain.count, u64::from(length));
            assert_eq!(plain.central.len(), 16);
            let mean = |of: &dyn Fn(f64) -> f64| {
                let distances = values.iter().map(|value| value - plain.mean.value);
                distances.map(of).sum::<f64>() / f64::from(length.max(1))
            };
            for (power, one) in (1..).zip(&plain.central) {
                let value = mean(&|distance| distance.powi(power));
                let scale = mean(&|distance| distance.abs().powi(power));
                let is_close = (one.value - value).abs() <= 1e-13 * scale;
                assert!(is_close, "{length} values, power {power}");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_close_to_nothing() {
        let plain = Plain::of(std::iter::once(&[1.0, f64::NAN, 3.0][..]), 4);
        assert_eq!((plain.count, plain.least, plain.most), (3, 1.0, 3.0));
        assert!(!plain.mean.is(plain.mean.value) && !plain.mean.is(2.0));
        assert!(plain.central.iter().all(|one| !one.is(one.value)));
    }
}
