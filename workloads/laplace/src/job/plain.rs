//! Moments by their definition, for the check: two passes over all values, without the formulas
//! that the analysis uses to merge.

/// Maximum difference of moments of the same values, summed in another order, relative to the scale
/// of their rounding.
const ROUNDING: f64 = 1e-12;

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
        let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
            rows.clone()
                .map(|row| row.iter().map(|value| of(*value)).sum::<f64>())
                .sum()
        };
        let values = || rows.clone().flatten();
        let (count, divisor) = (values().count() as u64, values().count().max(1) as f64);
        let mean = sum(&|value| value) / divisor;
        let size = values().fold(0.0f64, |size, value| size.max(value.abs()));
        // An error e of the mean moves the central moment p by about p e times the mean of
        // |distance|^(p - 1), and by e^p where all values are equal.
        let mut before = 1.0;
        let central = (1..=order as i32).map(|power| {
            let value = sum(&|value| (value - mean).powi(power)) / divisor;
            let scale = sum(&|value| (value - mean).abs().powi(power)) / divisor;
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
            least: values().copied().fold(f64::INFINITY, f64::min),
            most: values().copied().fold(f64::NEG_INFINITY, f64::max),
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
}
