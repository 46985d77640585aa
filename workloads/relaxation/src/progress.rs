//! The progress of a run, for progress bars and summaries.

use std::time::Duration;

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
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

#[cfg(test)]
mod tests {
    use super::*;

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
