//! The figures of a step: computed by each unit from its own rows, then merged.
//!
//! | kind | of a step | checked against the sequential run |
//! |---|---|---|
//! | moments | [`Moments`] up to the fourth, vector instructions | every step |
//! | orders | also [`Orders`] up to any order, general formulas | the steps of the table |
//!
//! They are compared with those of the sequential run by their definition ([`Plain`]), up to the
//! rounding of these values: no formula is checked against itself. The distance to the analytic
//! solution is checked on the same steps.

use ndarray::ArrayView2;
use samite_report::{Table, figure, representative};
use serde::{Deserialize, Serialize};

use super::plain::{Close, Plain, ROUNDING};
use crate::Error;
use samite_relaxation::{Distance, Moments, Orders, Samples, Sequential};

/// Steps in the table on the terminal, and those that are checked if not all are.
pub(super) const TABLE_STEPS: usize = 14;

/// The kind of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Moments,
    Orders(usize),
}

/// Figures of some rows of a step, or of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) moments: Moments,
    pub(super) distance: Distance,
    /// Only of the kind that has them.
    orders: Option<Orders>,
}

/// Figures of a step, and the solver's largest change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) step: u64,
    pub(super) change: Option<f64>,
    pub(super) figures: Figures,
}

impl Kind {
    /// Returns the figures of no rows.
    pub(super) fn nothing(self) -> Figures {
        Figures {
            moments: Moments::EMPTY,
            distance: Distance::default(),
            orders: match self {
                Kind::Moments => None,
                Kind::Orders(order) => Some(Orders::empty(order)),
            },
        }
    }

    /// Returns which of the steps that were found are checked.
    pub(super) fn checked(self, found: &[Found]) -> Vec<u64> {
        let shown = match self {
            Kind::Moments => (0..found.len()).collect(),
            Kind::Orders(_) => representative(found.len(), TABLE_STEPS),
        };
        shown.into_iter().map(|at| found[at].step).collect()
    }

    /// Returns what all units together should have found.
    pub(super) fn expected(self, sequential: &Sequential, samples: &Samples) -> Expected {
        let rows = sequential.rows();
        let distances = rows.clone().enumerate();
        let distances = distances.map(|(at, row)| samples.compare_row(at, row));
        let order = match self {
            Kind::Orders(order) => order.max(2),
            Kind::Moments => 4,
        };
        Expected {
            kind: self,
            distance: distances.fold(Distance::default(), Distance::merge),
            all: Plain::of(rows, order),
        }
    }
}

/// The expected figures of a step.
#[derive(Debug)]
pub(super) struct Expected {
    kind: Kind,
    distance: Distance,
    all: Plain,
}

impl Figures {
    /// Adds rows, of which the first is row `first` of the rectangle.
    pub(super) fn add(&mut self, first: usize, rows: ArrayView2<'_, f64>, samples: &Samples) {
        for (at, row) in (first..).zip(rows.rows()) {
            let row = row.as_slice().unwrap_or_default();
            self.moments.add(row);
            self.distance = self.distance.merge(samples.compare_row(at, row));
        }
        if let Some(orders) = &mut self.orders {
            rows.iter().for_each(|value| orders.add(*value));
        }
    }

    /// Merges the figures of the rows of both, the upper ones first.
    pub(super) fn merge(self, lower: Self) -> Self {
        let orders = match (self.orders, lower.orders) {
            (Some(one), Some(other)) => Some(one.merge(&other)),
            // All units of a job are started with the same arguments; otherwise the check reports
            // it.
            (one, other) => one.or(other),
        };
        Figures {
            moments: self.moments.merge(lower.moments),
            distance: self.distance.merge(lower.distance),
            orders,
        }
    }

    /// Returns count, mean, and central moments from the second on.
    fn series(&self) -> Vec<f64> {
        let moments = &self.moments;
        let head = [moments.count() as f64, moments.mean()];
        match &self.orders {
            Some(all) => {
                let central = (2..=all.order()).filter_map(|order| all.central(order));
                head.into_iter().chain(central).collect()
            }
            None => {
                let central = [moments.variance(), moments.third(), moments.fourth()];
                head.into_iter().chain(central).collect()
            }
        }
    }

    /// Returns the texts of the moments and of the distance, for a table.
    fn moments_and_distance(&self) -> [String; 7] {
        let moments = &self.moments;
        [
            format!("{:.6}", moments.mean()),
            figure(moments.variance()),
            figure(moments.third()),
            figure(moments.fourth()),
            format!("{:.5}", moments.skewness()),
            format!("{:.5}", moments.kurtosis()),
            figure(self.distance.rms()),
        ]
    }

    /// Compares with the expected figures.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn check(&self, step: u64, expected: &Expected) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Figures { step, what });
        let is_of = match (&self.orders, expected.kind) {
            (None, Kind::Moments) => true,
            (Some(all), Kind::Orders(order)) => all.order() == order.max(2),
            _ => false,
        };
        if !is_of {
            return wrong("units of the analysis were started with different arguments".into());
        }
        let (all, moments) = (&expected.all, &self.moments);
        let (ours, theirs) = (self.distance, expected.distance);
        // Exact: no rounding is involved.
        for (what, ours, theirs) in [
            ("count", moments.count() as f64, all.count as f64),
            ("least value", moments.min(), all.least),
            ("largest value", moments.max(), all.most),
            ("number of samples", ours.cells as f64, theirs.cells as f64),
            (
                "largest distance to the analytic solution",
                ours.max,
                theirs.max,
            ),
        ] {
            if ours != theirs {
                return wrong(differs(what, ours, theirs));
            }
        }
        let [ours, theirs] = [ours, theirs].map(|distance| distance.sum_of_squares);
        // Sums of positive numbers, in another order.
        let slack = ROUNDING * theirs;
        let theirs = Close {
            value: theirs,
            slack,
        };
        if !theirs.is(ours) {
            let what = "sum of the squares of distances to the analytic solution";
            return wrong(differs(what, ours, theirs.value));
        }
        let series = self.series();
        let central = all.central.iter().skip(1);
        for (order, (ours, theirs)) in (1..).zip(
            series[1..]
                .iter()
                .zip([&all.mean].into_iter().chain(central)),
        ) {
            if !theirs.is(*ours) {
                let what = match order {
                    1 => "mean".to_owned(),
                    order => format!("central moment of order {order}"),
                };
                return wrong(differs(&what, *ours, theirs.value));
            }
        }
        Ok(())
    }
}

fn differs(what: &str, ours: f64, theirs: f64) -> String {
    format!("the {what} is {ours}, and that of the sequential solver {theirs}")
}

/// Returns a table of the figures of all steps.
pub(super) fn table(found: &[Found], kind: Kind) -> Table {
    let mut table = Table::new(header(kind));
    for Found { step, figures, .. } in found {
        let texts: Vec<String> = match kind {
            Kind::Moments => figures.moments_and_distance().into(),
            Kind::Orders(_) => {
                let values = figures.series().split_off(1);
                values.into_iter().map(figure).collect()
            }
        };
        table.add(std::iter::once(step.to_string()).chain(texts));
    }
    table
}

fn header(kind: Kind) -> Vec<String> {
    let step = std::iter::once("step".to_owned());
    match kind {
        Kind::Moments => {
            let moments = [
                "mean",
                "2nd (variance)",
                "3rd",
                "4th",
                "skewness",
                "kurtosis",
            ];
            let names = moments.into_iter().chain(["to series (rms)"]);
            step.chain(names.map(str::to_owned)).collect()
        }
        Kind::Orders(most) => {
            let orders = (2..=most.max(2)).map(|order| format!("order {order}"));
            step.chain(["mean".to_owned()]).chain(orders).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_relaxation::Problem;

    const COLS: usize = 7;
    /// Where the rows of two units begin and end.
    const CUTS: [usize; 3] = [0, 4, 9];

    fn field(steps: u32) -> (Problem, Sequential) {
        let problem = Problem::new(9, COLS).unwrap();
        let mut sequential = Sequential::new(problem);
        for _ in 0..steps {
            sequential.step();
        }
        (problem, sequential)
    }

    fn samples(problem: &Problem) -> Samples {
        Samples::new(problem, 4)
    }

    /// Returns the figures of units that read these rows.
    fn found(kind: Kind, problem: &Problem, sequential: &Sequential, cuts: &[usize]) -> Figures {
        let samples = samples(problem);
        let parts = cuts.windows(2).map(|cut| {
            let rows = (cut[0]..cut[1]).flat_map(|row| sequential.row(row));
            let rows: Vec<f64> = rows.copied().collect();
            let mut figures = kind.nothing();
            let shape = (cut[1] - cut[0], problem.cols());
            figures.add(
                cut[0],
                ArrayView2::from_shape(shape, &rows).unwrap(),
                &samples,
            );
            figures
        });
        parts.reduce(Figures::merge).unwrap()
    }

    /// Returns the figures of two units for the field after this many steps.
    fn of(kind: Kind, steps: u32) -> Figures {
        let (problem, sequential) = field(steps);
        found(kind, &problem, &sequential, &CUTS)
    }

    fn expected(kind: Kind, steps: u32) -> Expected {
        let (problem, sequential) = field(steps);
        kind.expected(&sequential, &samples(&problem))
    }

    #[test]
    fn another_field_has_other_figures() {
        for kind in [Kind::Moments, Kind::Orders(6)] {
            let ours = of(kind, 5);
            ours.check(5, &expected(kind, 5)).unwrap();
            let wrong = ours.check(5, &expected(kind, 6));
            assert!(
                matches!(wrong, Err(Error::Figures { step: 5, .. })),
                "{wrong:?}"
            );
        }
        let mixed = of(Kind::Moments, 5).check(5, &expected(Kind::Orders(4), 5));
        assert!(matches!(mixed, Err(Error::Figures { .. })));
        let mixed = of(Kind::Orders(5), 5).check(5, &expected(Kind::Orders(4), 5));
        assert!(matches!(mixed, Err(Error::Figures { .. })));
    }

    #[test]
    fn any_units_find_what_the_definition_says() {
        let problem = Problem::new(150, 130).unwrap();
        let mut sequential = Sequential::new(problem);
        for steps in [0, 1, 1, 20, 100] {
            (0..steps).for_each(|_| _ = sequential.step());
            for cuts in [&[0, 150][..], &[0, 1, 149, 150], &[0, 40, 41, 90, 150]] {
                for kind in [Kind::Moments, Kind::Orders(5), Kind::Orders(16)] {
                    let ours = found(kind, &problem, &sequential, cuts);
                    let expected = kind.expected(&sequential, &samples(&problem));
                    ours.check(1, &expected).unwrap();
                }
            }
        }
    }

    #[test]
    fn wrong_figures_of_any_kind_are_found() {
        let (problem, sequential) = field(3);
        let right = |kind| found(kind, &problem, &sequential, &CUTS);
        // One value instead of another: everything else is unchanged.
        let mut moved = sequential.row(0).to_vec();
        moved[2] += 1e-6;
        let (mut before, mut after) = (Moments::of(sequential.row(0)), Moments::of(&moved));
        for row in 1..9 {
            before.add(sequential.row(row));
            after.add(sequential.row(row));
        }
        let with = |moments| Figures {
            moments,
            ..right(Kind::Moments)
        };
        let checked = |figures: Figures, kind: Kind| {
            figures.check(3, &kind.expected(&sequential, &samples(&problem)))
        };
        assert!(checked(with(before), Kind::Moments).is_ok());
        assert!(checked(with(after), Kind::Moments).is_err());
        // A distance that lacks a sample, that is of another sample, or whose sum is wrong.
        let right_one = right(Kind::Moments).distance;
        let wrong = [
            Distance {
                cells: right_one.cells - 1,
                ..right_one
            },
            Distance {
                max: right_one.max.next_down(),
                ..right_one
            },
            Distance {
                sum_of_squares: right_one.sum_of_squares * (1.0 + 1e-9),
                ..right_one
            },
            Distance {
                sum_of_squares: f64::NAN,
                ..right_one
            },
        ];
        for distance in wrong {
            let figures = Figures {
                distance,
                ..right(Kind::Moments)
            };
            let text = checked(figures, Kind::Moments).unwrap_err().to_string();
            assert!(
                text.contains("analytic") || text.contains("samples"),
                "{text}"
            );
        }
        // NaN is equal to nothing.
        let nothing = Moments::of(&[f64::NAN; 63]);
        assert!(checked(with(nothing), Kind::Moments).is_err());
        // Only the highest order is wrong: only the general formulas compute it.
        let mut orders = Orders::empty(16);
        (0..9).for_each(|row| {
            sequential
                .row(row)
                .iter()
                .for_each(|value| orders.add(value * (1.0 + 1e-9)))
        });
        let figures = Figures {
            orders: Some(orders),
            ..right(Kind::Moments)
        };
        assert!(checked(figures, Kind::Orders(16)).is_err());
    }

    #[test]
    fn tables_have_as_many_columns_as_figures() {
        for (kind, columns) in [(Kind::Moments, 8), (Kind::Orders(6), 7)] {
            let found = [0, 1].map(|step| Found {
                step,
                change: None,
                figures: of(kind, step as u32),
            });
            let text = table(&found, kind).text(TABLE_STEPS);
            let rows = text.lines().filter(|line| line.contains(char::is_numeric));
            let rows: Vec<&str> = rows.collect();
            // The header of orders has numbers, too.
            let [.., first, last] = &rows[..] else {
                panic!("{text}")
            };
            for row in [first, last] {
                assert_eq!(row.split_whitespace().count(), columns, "{text}");
            }
        }
    }
}
