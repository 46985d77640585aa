//! What is computed of a step: by each unit of its own rows, then merged.
//!
//! | kind | of a step | merged | checked against the sequential run |
//! |---|---|---|---|
//! | moments | [`Moments`] up to the fourth, vector instructions | yes | every step, up to rounding |
//! | orders | [`Orders`] up to any order, general formulas | yes | the steps of the table, up to rounding |
//! | study | [`study::moments`] of each unit's block | no | the steps of the table, bit by bit |

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
pub(super) enum Figures {
    Moments(Moments, Distance),
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
    /// Of rows whose first is row `first` of the rectangle.
    pub(super) fn of(self, first: usize, rows: ArrayView2<'_, f64>, samples: &Samples) -> Figures {
        match self {
            Kind::Moments => {
                let (mut moments, mut distance) = (Moments::EMPTY, Distance::default());
                for (at, row) in (first..).zip(rows.rows()) {
                    let row = row.as_slice().unwrap_or_default();
                    moments.add(row);
                    distance = distance.merge(samples.compare_row(at, row));
                }
                Figures::Moments(moments, distance)
            }
            Kind::Orders(order) => {
                let mut orders = Orders::empty(order);
                rows.iter().for_each(|value| orders.add(*value));
                Figures::Orders(orders)
            }
            Kind::Study => {
                let block = rows.as_slice().unwrap_or_default();
                Figures::Study(vec![study::moments(block)])
            }
        }
    }

    /// The steps that are checked, of `steps` and the one before them.
    pub(super) fn checked(self, steps: u64) -> Vec<u64> {
        let shown = representative(steps as usize + 1, TABLE_STEPS);
        match self {
            Kind::Moments => (0..=steps).collect(),
            _ => shown.iter().map(|step| *step as u64).collect(),
        }
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
            let rows = (cut[0]..cut[1]).flat_map(|row| sequential.row(row).iter().copied());
            let rows: Vec<f64> = rows.collect();
            let rows = ArrayView2::from_shape((cut[1] - cut[0], cols), &rows).ok()?;
            Some(self.of(cut[0], rows, samples))
        });
        parts.reduce(|all, part| Some(all?.merge(part?)))?
    }
}

impl Figures {
    /// Of the rows of both, the upper ones first.
    pub(super) fn merge(self, lower: Self) -> Self {
        match (self, lower) {
            (Figures::Moments(one, near), Figures::Moments(other, far)) => {
                Figures::Moments(one.merge(other), near.merge(far))
            }
            (Figures::Orders(one), Figures::Orders(other)) => Figures::Orders(one.merge(&other)),
            (Figures::Study(mut blocks), Figures::Study(others)) => {
                blocks.extend(others);
                Figures::Study(blocks)
            }
            // Units of one job are started with the same arguments; else the check says so.
            (one, _) => one,
        }
    }

    /// # Errors
    /// What differs from what it should be.
    pub(super) fn check(&self, step: u64, expected: &Self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Figures { step, what });
        let moments = |figures: &Self| match figures {
            Figures::Moments(all, _) => {
                vec![
                    all.count() as f64,
                    all.mean(),
                    all.variance(),
                    all.third(),
                    all.fourth(),
                ]
            }
            Figures::Orders(all) => {
                let central = (2..=all.order()).filter_map(|order| all.central(order));
                [all.count() as f64, all.mean()]
                    .into_iter()
                    .chain(central)
                    .collect()
            }
            Figures::Study(_) => Vec::new(),
        };
        match (self, expected) {
            (Figures::Study(ours), Figures::Study(theirs)) if ours == theirs => return Ok(()),
            (Figures::Study(_), _) => {
                return wrong("a block has other moments than the sequential solver's".into());
            }
            _ => {}
        }
        let (ours, theirs) = (moments(self), moments(expected));
        if ours.len() != theirs.len() {
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
        Ok(())
    }
}

/// The figures per step, a few steps of many.
pub(super) fn table(found: &[Found], kind: Kind) -> Table {
    if kind == Kind::Moments {
        let records: Vec<StepRecord> = found.iter().filter_map(record).collect();
        return moments_table(&records, TABLE_STEPS);
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.style_mut().row_separator = LineStyle::none();
    table.set_header(header(kind));
    for at in representative(found.len(), TABLE_STEPS) {
        let Found { step, figures, .. } = &found[at];
        let values: Vec<f64> = match figures {
            Figures::Moments(..) => Vec::new(),
            Figures::Orders(orders) => {
                let central = (2..=orders.order()).filter_map(|order| orders.central(order));
                std::iter::once(orders.mean()).chain(central).collect()
            }
            Figures::Study(blocks) => blocks.iter().take(1).flatten().flatten().copied().collect(),
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

fn record(found: &Found) -> Option<StepRecord> {
    match &found.figures {
        Figures::Moments(moments, distance) => Some(StepRecord {
            step: found.step,
            moments: *moments,
            distance: *distance,
            max_change: found.change,
        }),
        _ => None,
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
