//! Central moments of any order, in one pass, mergeable.
//!
//! [`crate::Moments`] has the orders up to 4, and is what a job should use: it is vectorised.
//! [`Orders`] is the same for any order, by the general formulas of P. Pébay, *Formulas for robust,
//! one-pass parallel computation of covariances and arbitrary-order statistical moments*, Sandia
//! SAND2008-6212, 2008 (its equations 2.1 and 2.9).

use serde::{Deserialize, Serialize};

/// Count, mean, and the sums of the powers 2 to n of the distance from the mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    count: u64,
    mean: f64,
    /// Of the power 2, 3, ...
    sums: Vec<f64>,
}

impl Orders {
    /// Returns the moments of no values; `order` is the highest one, at least 2.
    pub fn empty(order: usize) -> Self {
        let sums = vec![0.0; order.max(2) - 1];
        Orders {
            count: 0,
            mean: 0.0,
            sums,
        }
    }

    /// Returns the moments of some values, in one pass.
    pub fn of(values: &[f64], order: usize) -> Self {
        let mut all = Self::empty(order);
        values.iter().for_each(|value| all.add(*value));
        all
    }

    /// Adds one value: a merge with a single value, whose sums are 0.
    pub fn add(&mut self, value: f64) {
        let (a, n) = (self.count as f64, self.count as f64 + 1.0);
        let share = (value - self.mean) / n;
        for power in (2..=self.order()).rev() {
            let mut sum = self.sums[power - 2];
            let mut factor = 1.0;
            for k in 1..power - 1 {
                factor *= -share * (power - k + 1) as f64 / k as f64;
                sum += factor * self.sums[power - k - 2];
            }
            let odd = if power % 2 == 0 { a } else { -a };
            sum += share.powi(power as i32) * (a.powi(power as i32) + odd);
            self.sums[power - 2] = sum;
        }
        self.count += 1;
        self.mean += share;
    }

    /// Returns the moments of the values of both. Symmetric and associative up to rounding; the
    /// order is the lower one.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let order = self.order().min(other.order());
        let count = self.count + other.count;
        if count == 0 {
            return Self::empty(order);
        }
        let (a, b, n) = (self.count as f64, other.count as f64, count as f64);
        let apart = other.mean - self.mean;
        let (left, right) = (-b / n * apart, a / n * apart);
        let sum = |power: usize| {
            let (mut to_left, mut to_right) = (1.0, 1.0);
            let mut sum = self.sums[power - 2] + other.sums[power - 2];
            for k in 1..power - 1 {
                let choose = (power - k + 1) as f64 / k as f64;
                to_left *= left * choose;
                to_right *= right * choose;
                sum += to_left * self.sums[power - k - 2] + to_right * other.sums[power - k - 2];
            }
            // The contribution of the two means: each value of a part is shifted by `left` or
            // `right`.
            sum + a * left.powi(power as i32) + b * right.powi(power as i32)
        };
        Orders {
            count,
            mean: self.mean + b / n * apart,
            sums: (2..=order).map(sum).collect(),
        }
    }

    /// Returns the highest order.
    pub fn order(&self) -> usize {
        self.sums.len() + 1
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns their mean; 0 without values.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Returns the central moment of an order: the mean of that power of the distance from the
    /// mean. `None` above the highest order.
    pub fn central(&self, order: usize) -> Option<f64> {
        let count = self.count.max(1) as f64;
        match order {
            0 => Some(if self.count > 0 { 1.0 } else { 0.0 }),
            1 => Some(0.0),
            _ => self.sums.get(order - 2).map(|sum| sum / count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Moments;
    use proptest::prelude::*;
    use samite_testkit::run_python;

    /// Returns moments of integers, exactly: with S the sum, sum (n x - S)^p / n^(p + 1).
    fn exact(values: &[i64], power: u32) -> f64 {
        let n = values.len() as i128;
        let sum: i128 = values.iter().map(|value| i128::from(*value)).sum();
        let total: i128 = values
            .iter()
            .map(|value| (n * i128::from(*value) - sum).pow(power))
            .sum();
        // Keeps the first 53 bits of the quotient: integer part and remainder separately.
        let divisor = n.pow(power);
        ((total / divisor) as f64 + (total % divisor) as f64 / divisor as f64) / n as f64
    }

    fn assert_close(orders: &Orders, values: &[i64]) {
        let n = values.len() as i128;
        let mean = values.iter().sum::<i64>() as f64 / n as f64;
        assert!((orders.mean() - mean).abs() < 1e-13 * (1.0 + mean.abs()));
        assert_eq!(orders.count(), values.len() as u64);
        let spread = values
            .iter()
            .fold(1.0f64, |most, value| most.max((*value as f64 - mean).abs()));
        for power in 2..=orders.order() {
            let (ours, theirs) = (orders.central(power).unwrap(), exact(values, power as u32));
            // The scale of rounding: the sum if all values were as far away as the farthest one.
            let scale = spread.powi(power as i32);
            assert!(
                (ours - theirs).abs() <= 1e-12 * scale,
                "order {power}: {ours} is not {theirs}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_split_merges_to_the_exact_moments(
            values in prop::collection::vec(-50..50i64, 1..200), offset in -1000..1000i64,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5), order in 2..7usize,
        ) {
            let values: Vec<i64> = values.iter().map(|value| value + offset).collect();
            let reals: Vec<f64> = values.iter().map(|value| *value as f64).collect();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(values.len() + 1)).collect();
            cuts.extend([0, values.len()]);
            cuts.sort_unstable();
            let parts: Vec<_> =
                cuts.windows(2).map(|cut| Orders::of(&reals[cut[0]..cut[1]], order)).collect();
            let forwards = parts.iter().fold(Orders::empty(order), |all, part| all.merge(part));
            let backwards = parts.iter().fold(Orders::empty(order), |all, part| part.merge(&all));
            for orders in [Orders::of(&reals, order), forwards, backwards] {
                assert_close(&orders, &values);
            }
        }
    }

    #[test]
    fn the_general_formulas_agree_with_the_fast_ones() {
        let values: Vec<f64> = (0..5000)
            .map(|at| f64::from((at * 7919) % 1009) * 0.37)
            .collect();
        let (general, fast) = (Orders::of(&values, 4), Moments::of(&values));
        for (order, fast) in [(2, fast.variance()), (3, fast.third()), (4, fast.fourth())] {
            let general = general.central(order).unwrap();
            let scale = (0.37f64 * 505.0).powi(order as i32);
            assert!(
                (general - fast).abs() < 1e-12 * scale,
                "order {order}: {general} {fast}"
            );
        }
        assert_eq!(general.central(5), None);
    }

    #[test]
    fn no_values_have_no_moments() {
        let none = Orders::empty(5);
        assert_eq!(none.merge(&none), none);
        assert_eq!(
            [0, 1, 2, 5].map(|order| none.central(order)),
            [Some(0.0); 4]
        );
        let some = Orders::of(&[1.0, 5.0], 5);
        assert_eq!(
            (none.merge(&some), some.merge(&none)),
            (some.clone(), some.clone())
        );
        assert_eq!(some.central(2), Some(4.0));
    }

    #[test]
    fn numpy_says_the_same() {
        let test = "numpy_says_the_same";
        let script = r#"
import numpy
v = numpy.sin(numpy.arange(100_000, dtype=numpy.float64) ** 2 * 0.001) * 50 + 25
moment = lambda v, j: numpy.mean((v - v.mean()) ** j)
print(v.mean(), *(repr(float(moment(v, j))) for j in range(2, 7)))
print(*(repr(float(x)) for x in v[:1000]))
"#;
        let Some(said) = run_python(test, script, &[]) else {
            return;
        };
        let mut lines = said.lines().map(|line| {
            line.split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect::<Vec<f64>>()
        });
        let [global, head] = [(); 2].map(|()| lines.next().unwrap());
        let values: Vec<f64> = (0..100_000)
            .map(|at| (f64::from(at).powi(2) * 0.001).sin() * 50.0 + 25.0)
            .collect();
        // The sines of two libraries may differ in the last bit, and for large arguments in a few
        // more.
        assert!(
            values
                .iter()
                .zip(&head)
                .all(|(ours, theirs)| (ours - theirs).abs() < 1e-10)
        );
        let close = |ours: f64, theirs: f64, order: i32| {
            let scale = 50f64.powi(order);
            assert!(
                (ours - theirs).abs() < 1e-10 * scale,
                "order {order}: {ours} {theirs}"
            );
        };
        // In four parts, like four ranks.
        let parts = values.chunks(25_000).map(|part| Orders::of(part, 6));
        let all = parts.fold(Orders::empty(6), |all, part| all.merge(&part));
        close(all.mean(), global[0], 1);
        for order in 2..=6 {
            close(all.central(order).unwrap(), global[order - 1], order as i32);
        }
    }
}
