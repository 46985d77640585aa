//! What solver units and the analysis say to each other.

use std::time::Duration;

use samite::{Fabric, PeerId, SegmentKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Change, Error, Problem};

/// The programs, as the workflow calls them.
const SOLVER: &str = "solver";
const ANALYSIS: &str = "analysis";

/// Tags of messages.
pub(crate) mod tag {
    /// Solver to analysis, once: [`super::Hello`].
    pub(crate) const HELLO: u64 = 1;
    /// Solver to analysis, for each step: [`super::Announcement`].
    pub(crate) const STEP: u64 = 2;
    /// Solver to analysis, after the last step: [`super::Times`].
    pub(crate) const TIMES: u64 = 3;
    /// Analysis to solver, after the last step: [`super::GO`] or [`super::NOT_YET`].
    pub(crate) const END: u64 = 4;
    /// Solver to its neighbours, twice per step: a row.
    pub(crate) const BORDER: u64 = 5;
}

/// The signal from the analysis to a solver unit: one more step was read. Counted, so the n-th signal
/// releases step n.
pub(crate) const RELEASED: u64 = 1;

/// The analysis still reads the last step.
pub(crate) const NOT_YET: &[u8] = b"0";
/// The analysis needs the solver no more.
pub(crate) const GO: &[u8] = b"1";
/// How often the analysis says [`NOT_YET`]; far below any sensible deadline.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// How a solver unit introduces itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) steps: u64,
    /// What names its segment.
    pub(crate) segment: SegmentKey,
}

impl Hello {
    pub(crate) fn problem(&self) -> Result<Problem, Error> {
        Problem::new(self.rows, self.cols)
    }

    /// Whether two units work on the same thing.
    pub(crate) fn agrees_with(&self, other: &Hello) -> bool {
        (self.rows, self.cols, self.steps) == (other.rows, other.cols, other.steps)
    }
}

/// A step is complete in its buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Announcement {
    pub(crate) step: u64,
    /// Of the unit's own cells.
    pub(crate) change: Change,
}

impl Announcement {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.step.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.change.max.to_le_bytes());
        bytes[16..].copy_from_slice(&self.change.sum.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| std::array::from_fn(|byte| bytes[at + byte]);
        Self {
            step: u64::from_le_bytes(word(0)),
            change: Change {
                max: f64::from_le_bytes(word(8)),
                sum: f64::from_le_bytes(word(16)),
            },
        }
    }
}

/// What a solver unit spent its time with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) computing: Duration,
    /// Borders: copying them, and waiting for the neighbours to be as far.
    pub(crate) exchanging: Duration,
    /// For the analysis to release a step.
    pub(crate) waiting: Duration,
}

impl Times {
    /// The longest of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            computing: self.computing.max(other.computing),
            exchanging: self.exchanging.max(other.exchanging),
            waiting: self.waiting.max(other.waiting),
        }
    }
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|source| Error::Said { source })
}

pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|source| Error::Said { source })
}

/// Waits for all solver units; their numbers by rank.
pub(crate) fn solvers(fabric: &Fabric) -> Result<Vec<PeerId>, Error> {
    fabric.program(SOLVER).doing(|| {
        format!("looking for the program \"{SOLVER}\"; start both with `samite run workflows/laplace.toml`")
    })
}

/// Waits for the analysis.
pub(crate) fn analysis(fabric: &Fabric) -> Result<PeerId, Error> {
    let units = fabric.program(ANALYSIS).doing(|| {
        format!("looking for the program \"{ANALYSIS}\"; start both with `samite run workflows/laplace.toml`")
    })?;
    match units[..] {
        [analysis] => Ok(analysis),
        _ => Err(Error::Analyses { units: units.len() }),
    }
}

/// A solver unit, as `samite run` shows it.
pub(crate) fn solver_name(rank: usize) -> String {
    format!("{SOLVER}.{rank}")
}

/// Says what a failed operation was for.
pub(crate) trait Doing<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Doing<T> for samite::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Fabric {
            doing: doing(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_travel_bit_by_bit() {
        let change = Change {
            max: 0.1 + 0.2,
            sum: 1e-300,
        };
        let announcement = Announcement {
            step: u64::MAX - 1,
            change,
        };
        assert_eq!(
            Announcement::from_bytes(&announcement.to_bytes()),
            announcement
        );
    }
}
