//! A case: what is measured, on which cores, and the bar it has to meet.

use serde::Serialize;

use crate::measure::{Better, Measure};
use crate::placement::Placement;

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) ranks: u32,
    pub(crate) placement: Placement,
    pub(crate) measure: Measure,
    pub(crate) bar: Bar,
    /// Set if it is not a row of its own, but a point of the overhead model.
    pub(crate) point: Option<Point>,
    /// The ratio that a model predicts.
    pub(crate) model: Option<f64>,
    /// A program that Samite needs for it and may be missing, and how to install it.
    pub(crate) needs: Option<(&'static str, &'static str)>,
}

/// A size of an operation whose overhead is modelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) operation: &'static str,
    pub(crate) bytes: u64,
}

impl Case {
    /// Returns a case of two pinned ranks, named after its measure, without a bar.
    pub(crate) fn of(measure: Measure) -> Self {
        Case {
            name: measure.name.clone(),
            ranks: 2,
            placement: Placement::Apart,
            measure,
            bar: Bar::default(),
            point: None,
            model: None,
            needs: None,
        }
    }

    pub(crate) fn bar(self, bar: Bar) -> Self {
        Case { bar, ..self }
    }

    /// Returns the same case with another placement, without a bar.
    pub(crate) fn placed(&self, placement: Placement) -> Self {
        Case {
            name: format!("{}/{}", placement.name(), self.name),
            placement,
            bar: Bar::default(),
            ..self.clone()
        }
    }
}

/// The expectation of our figure; a bar without conditions is only reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bar {
    /// At least this many times better than the best peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// A multiple of the limit of the same run: at most if less is better, at least if more is
    /// better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_limit: Option<f64>,
    /// At most this much above the limit of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above_limit: Option<f64>,
    /// At most this, whatever the peers' figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// At least this, whatever the peers' figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
}

impl Bar {
    pub(crate) fn ratio(ratio: f64) -> Self {
        Bar {
            ratio: Some(ratio),
            ..Bar::default()
        }
    }

    pub(crate) fn at_most(figure: f64) -> Self {
        Bar {
            at_most: Some(figure),
            ..Bar::default()
        }
    }

    pub(crate) fn at_least(figure: f64) -> Self {
        Bar {
            at_least: Some(figure),
            ..Bar::default()
        }
    }

    pub(crate) fn of_limit(factor: f64) -> Self {
        Bar::default().and_of_limit(factor)
    }

    pub(crate) fn and_of_limit(self, factor: f64) -> Self {
        Bar {
            of_limit: Some(factor),
            ..self
        }
    }

    pub(crate) fn and_above_limit(self, more: f64) -> Self {
        Bar {
            above_limit: Some(more),
            ..self
        }
    }

    /// Returns true if the bar is met; `None` if it has no conditions, or if a figure to compare
    /// with was not measured.
    pub(crate) fn met(
        &self,
        better: Better,
        ours: Option<f64>,
        ratio: Option<f64>,
        limit: Option<f64>,
    ) -> Option<bool> {
        let ours = ours?;
        let mut decision = None;
        let mut hold = |condition: bool| decision = Some(decision.unwrap_or(true) && condition);
        if let Some(bar) = self.ratio {
            hold(ratio? >= bar);
        }
        if let Some(factor) = self.of_limit {
            let bar = limit? * factor;
            hold(match better {
                Better::Lower => ours <= bar,
                Better::Higher => ours >= bar,
            });
        }
        if let Some(more) = self.above_limit {
            hold(ours <= limit? + more);
        }
        if let Some(bar) = self.at_most {
            // A difference below zero is noise, and no figure.
            hold((0.0..=bar).contains(&ours));
        }
        if let Some(bar) = self.at_least {
            hold(ours >= bar);
        }
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_only_when_all_its_conditions_are() {
        let bar = Bar::ratio(1.0).and_of_limit(1.5);
        let met = |ours, ratio, limit| bar.met(Better::Lower, Some(ours), ratio, limit);
        assert_eq!(met(0.14, Some(1.2), Some(0.1)), Some(true));
        assert_eq!(met(0.16, Some(1.2), Some(0.1)), Some(false));
        assert_eq!(met(0.14, Some(0.9), Some(0.1)), Some(false));
        assert_eq!(met(0.14, None, Some(0.1)), None);
        let alone = |bar: Bar| bar.met(Better::Lower, Some(0.3), Some(2.0), None);
        assert_eq!(alone(Bar::default()), None);
        assert_eq!(alone(Bar::at_most(1.0)), Some(true));
        assert_eq!(alone(Bar::at_most(0.2)), Some(false));
        assert_eq!(alone(Bar::at_least(0.2)), Some(true));
        assert_eq!(alone(Bar::at_least(0.4)), Some(false));
    }

    #[test]
    fn a_part_of_the_limit_is_at_least_for_bandwidths() {
        let met = |ours| Bar::of_limit(0.98).met(Better::Higher, Some(ours), None, Some(50.0));
        assert_eq!(met(49.5), Some(true));
        assert_eq!(met(48.5), Some(false));
    }

    #[test]
    fn a_little_above_the_limit_is_a_sum() {
        let bar = Bar::ratio(4.0).and_above_limit(5.0);
        let met = |ours| bar.met(Better::Lower, Some(ours), Some(4.5), Some(1.0));
        assert_eq!(met(5.9), Some(true));
        assert_eq!(met(6.1), Some(false));
    }
}
