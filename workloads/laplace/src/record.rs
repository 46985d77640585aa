//! The figures of a step, for tables, reports and progress bars.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Distance, Moments};

/// One step as the analysis saw it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step; 0 is the field before the first sweep.
    pub step: u64,
    /// The moments of all interior cells.
    pub moments: Moments,
    /// The distance to the analytic solution, at the samples.
    pub distance: Distance,
    /// The largest change of a cell by this step, if the solver reported it.
    pub max_change: Option<f64>,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Completed steps.
    pub step: u64,
    /// Steps of the whole run.
    pub of: u64,
    /// Cells of the whole rectangle.
    pub cells: u64,
    /// Time since the first step began.
    pub elapsed: Duration,
}

impl Progress {
    /// Returns the cells relaxed per second since the first step began; 0 before any time has
    /// passed.
    pub fn cells_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.step as f64 * self.cells as f64 / seconds
        } else {
            0.0
        }
    }

    /// Returns the time of one cell in one step, over all units together.
    pub fn ns_per_cell(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / (self.step as f64 * self.cells as f64).max(1.0)
    }
}

/// Returns at most `shown` of `length` indices (at least 4): the first three, then evenly spaced
/// ones including the last.
pub fn representative(length: usize, shown: usize) -> Vec<usize> {
    let shown = shown.max(4);
    if length <= shown {
        return (0..length).collect();
    }
    // From the third index to the last one in equal strides, rounded.
    let (first, last) = (2, length - 1);
    let strides = shown - 3;
    let spaced = (0..=strides).map(|at| first + (at * (last - first) + strides / 2) / strides);
    [0, 1].into_iter().chain(spaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_places_represent_many() {
        assert_eq!(representative(0, 8), [0usize; 0]);
        assert_eq!(representative(5, 8), [0, 1, 2, 3, 4]);
        assert_eq!(representative(1001, 7), [0, 1, 2, 252, 501, 751, 1000]);
        for length in 0..200 {
            for shown in 0..30 {
                let places = representative(length, shown);
                assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
                assert_eq!(places.len(), length.min(shown.max(4)));
                assert_eq!(places.last().copied(), length.checked_sub(1));
            }
        }
    }

    #[test]
    fn speed_is_cells_over_time() {
        let progress = Progress {
            step: 10,
            of: 20,
            cells: 1000,
            elapsed: Duration::from_millis(5),
        };
        assert!((progress.cells_per_second() - 2e6).abs() < 1e-3);
        assert!((progress.ns_per_cell() - 500.0).abs() < 1e-6);
        let before = Progress {
            step: 0,
            elapsed: Duration::ZERO,
            ..progress
        };
        assert_eq!(
            [before.cells_per_second(), before.ns_per_cell()],
            [0.0, 0.0]
        );
    }
}
