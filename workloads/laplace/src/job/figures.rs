//! What is computed of a step: by each unit of its own rows, then merged.
//!
//! | kind | of a step | merged | checked against the sequential run |
//! |---|---|---|---|
//! | moments | [`Moments`] up to the fourth, vector instructions | yes | every step, up to rounding |
//! | orders | [`Orders`] up to any order, general formulas | yes | the steps of the table, up to rounding |
//! | study | beside the moments [`study::moments`] of each unit's block | no | the steps of the table, bit by bit |

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, LineStyle, Table};
use ndarray::ArrayView2;
use serde::{Deserialize, Serialize};

use crate::orders::Orders;
use crate::orders::study;
use crate::record::representative;
use crate::table::{figure, moments_table};
use crate::{Distance, Error, Moments, Samples, Sequential, StepRecord};

/// Steps in the table on the terminal.
pub(super) const TABLE_STEPS: usize = 14;

/// How far central moments of the same values, summed in another order, may be apart, over the power of [`SPREAD`]
/// that they are of.
const ROUNDING: f64 = 1e-12;
/// No value is farther than this from the mean.
const SPREAD: f64 = 100.0;

/// Which figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Moments,
    Orders(usize),
    Study,
}

/// Figures of some rows of a step, or of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) moments: Moments,
    pub(super) distance: Distance,
    more: More,
}

/// What a kind has beside the moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum More {
    Nothing,
    Orders(Orders),
    /// Of each block.
    Study(Vec<[[f64; 2]; study::ORDERS]>),
}

/// Figures of a step, and by how much the solver said that it changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) step: u64,
    pub(super) change: Option<f64>,
    pub(super) figures: Figures,
}

impl Kind {
    /// Of no rows.
    pub(super) fn nothing(self) -> Figures {
        Figures {
            moments: Moments::EMPTY,
            distance: Distance::default(),
            more: match self {
                Kind::Moments => More::Nothing,
                Kind::Orders(order) => More::Orders(Orders::empty(order)),
                Kind::Study => More::Study(Vec::new()),
            },
        }
    }

    /// The steps that are checked, of those that were found.
    pub(super) fn checked(self, found: &[Found]) -> Vec<u64> {
        let shown = match self {
            Kind::Moments => (0..found.len()).collect(),
            _ => representative(found.len(), TABLE_STEPS),
        };
        shown.into_iter().map(|at| found[at].step).collect()
    }

    /// What the units, whose rows begin at `cuts` (and end at the last of them), should have found.
    pub(super) fn expected(
        self,
        sequential: &Sequential,
        cuts: &[usize],
        cols: usize,
        samples: &Samples,
    ) -> Option<Figures> {
        let parts = cuts.windows(2).map(|cut| {
            let mut figures = self.nothing();
            // The study takes a block as a whole.
            let height = if self == Kind::Study {
                cut[1] - cut[0]
            } else {
                1
            };
            let mut some = Vec::new();
            for first in (cut[0]..cut[1]).step_by(height) {
                some.clear();
                (first..first + height).for_each(|row| some.extend_from_slice(sequential.row(row)));
                let rows = ArrayView2::from_shape((height, cols), &some).ok()?;
                figures.add(first, rows, samples);
            }
            Some(figures)
        });
        parts.reduce(|all, part| Some(all?.merge(part?)))?
    }
}

impl Figures {
    /// Adds rows, of which the first is row `first` of the rectangle. For the study they are a block.
    pub(super) fn add(&mut self, first: usize, rows: ArrayView2<'_, f64>, samples: &Samples) {
        for (at, row) in (first..).zip(rows.rows()) {
            let row = row.as_slice().unwrap_or_default();
            self.moments.add(row);
            self.distance = self.distance.merge(samples.compare_row(at, row));
        }
        match &mut self.more {
            More::Nothing => {}
            More::Orders(orders) => rows.iter().for_each(|value| orders.add(*value)),
            More::Study(blocks) => {
                blocks.push(study::moments(rows.as_slice().unwrap_or_default()));
            }
        }
    }

    /// Of the rows of both, the upper ones first.
    pub(super) fn merge(self, lower: Self) -> Self {
        let more = match (self.more, lower.more) {
            (More::Orders(one), More::Orders(other)) => More::Orders(one.merge(&other)),
            (More::Study(mut blocks), More::Study(others)) => {
                blocks.extend(others);
                More::Study(blocks)
            }
            // Units of one job are started with the same arguments; else the check says so.
            (one, _) => one,
        };
        Figures {
            moments: self.moments.merge(lower.moments),
            distance: self.distance.merge(lower.distance),
            more,
        }
    }

    /// Count, mean, and central moments from the second on.
    fn series(&self) -> Vec<f64> {
        let moments = &self.moments;
        let head = [moments.count() as f64, moments.mean()];
        match &self.more {
            More::Orders(all) => {
                let central = (2..=all.order()).filter_map(|order| all.central(order));
                head.into_iter().chain(central).collect()
            }
            More::Nothing | More::Study(_) => {
                let central = [moments.variance(), moments.third(), moments.fourth()];
                head.into_iter().chain(central).collect()
            }
        }
    }

    /// # Errors
    /// What differs from what it should be.
    pub(super) fn check(&self, step: u64, expected: &Self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Figures { step, what });
        let (ours, theirs) = (self.series(), expected.series());
        if std::mem::discriminant(&self.more) != std::mem::discriminant(&expected.more)
            || ours.len() != theirs.len()
        {
            return wrong("units of the analysis were started with different arguments".into());
        }
        for (power, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let most = ROUNDING * SPREAD.powi(power as i32);
            if (ours - theirs).abs() > most {
                let what = match power {
                    0 => "the count".to_owned(),
                    1 => "the mean".to_owned(),
                    order => format!("the central moment of order {order}"),
                };
                return wrong(format!(
                    "{what} is {ours}, and that of the sequential solver {theirs}"
                ));
            }
        }
        match (&self.more, &expected.more) {
            (More::Study(ours), More::Study(theirs)) if ours != theirs => {
                wrong("a block has other moments than the sequential solver's".into())
            }
            _ => Ok(()),
        }
    }
}

impl Found {
    /// As tables and reports have it.
    pub(super) fn record(&self) -> StepRecord {
        StepRecord {
            step: self.step,
            moments: self.figures.moments,
            distance: self.figures.distance,
            max_change: self.change,
        }
    }
}

/// The figures per step, a few steps of many.
pub(super) fn table(found: &[Found], kind: Kind) -> Table {
    if kind == Kind::Moments {
        let records: Vec<StepRecord> = found.iter().map(Found::record).collect();
        return moments_table(&records, TABLE_STEPS);
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.style_mut().row_separator = LineStyle::none();
    table.set_header(header(kind));
    for at in representative(found.len(), TABLE_STEPS) {
        let Found { step, figures, .. } = &found[at];
        let values: Vec<f64> = match &figures.more {
            More::Study(blocks) => blocks.iter().take(1).flatten().flatten().copied().collect(),
            _ => figures.series().split_off(1),
        };
        table.add_row(std::iter::once(step.to_string()).chain(values.into_iter().map(figure)));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn header(kind: Kind) -> Vec<String> {
    let step = std::iter::once("step".to_owned());
    match kind {
        Kind::Moments => Vec::new(),
        Kind::Orders(most) => {
            let orders = (2..=most.max(2)).map(|order| format!("order {order}"));
            step.chain(["mean".to_owned()]).chain(orders).collect()
        }
        Kind::Study => {
            let both = |order| ["even", "odd"].map(|place| format!("order {order}, {place}"));
            step.chain((1..=study::ORDERS).flat_map(both)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Problem;

    /// What two units find of the field after so many steps.
    fn of(kind: Kind, steps: u32) -> Figures {
        let problem = Problem::new(9, 7).unwrap();
        let mut sequential = Sequential::new(problem);
        for _ in 0..steps {
            sequential.step();
        }
        let samples = Samples::new(&problem, 4);
        kind.expected(&sequential, &[0, 4, 9], 7, &samples).unwrap()
    }

    #[test]
    fn another_field_has_other_figures() {
        for kind in [Kind::Moments, Kind::Orders(6), Kind::Study] {
            let (ours, other) = (of(kind, 5), of(kind, 6));
            assert!(ours.check(5, &ours).is_ok());
            let wrong = ours.check(5, &other);
            assert!(
                matches!(wrong, Err(Error::Figures { step: 5, .. })),
                "{wrong:?}"
            );
        }
        let mixed = of(Kind::Study, 5).check(5, &of(Kind::Orders(4), 5));
        assert!(matches!(mixed, Err(Error::Figures { .. })));
        let mixed = of(Kind::Orders(5), 5).check(5, &of(Kind::Orders(4), 5));
        assert!(matches!(mixed, Err(Error::Figures { .. })));
    }

    #[test]
    fn units_together_find_what_one_finds() {
        let problem = Problem::new(9, 7).unwrap();
        let mut sequential = Sequential::new(problem);
        sequential.step();
        let samples = Samples::new(&problem, 4);
        for kind in [Kind::Moments, Kind::Orders(6)] {
            let alone = kind.expected(&sequential, &[0, 9], 7, &samples).unwrap();
            of(kind, 1).check(1, &alone).unwrap();
        }
    }

    #[test]
    fn tables_have_as_many_columns_as_figures() {
        for (kind, columns) in [(Kind::Moments, 8), (Kind::Orders(6), 7), (Kind::Study, 9)] {
            let found = [0, 1].map(|step| Found {
                step,
                change: None,
                figures: of(kind, step as u32),
            });
            let mut table = table(&found, kind);
            assert_eq!(
                (table.column_count(), table.row_iter().count()),
                (columns, 2)
            );
        }
    }
}
