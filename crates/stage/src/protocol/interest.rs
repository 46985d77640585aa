//! A box that a process subscribes to or reads, and the news that a subscriber gets.

use super::Step;
use crate::space::Dims;
use crate::{Dtype, Region};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A box of a variable in which a process is interested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interest {
    /// Name of the variable. It need not exist yet.
    pub variable: String,
    /// The box; `None` for the whole variable, whatever its shape.
    pub region: Option<Region>,
}

impl Interest {
    /// Bytes of one news item about it, without the shape of the array.
    pub(crate) fn cost(&self) -> u64 {
        let dims = self.region.as_ref().map_or(0, Region::dims);
        self.variable.len() as u64 + 64 * dims as u64
    }
}

impl fmt::Display for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.region {
            Some(region) => write!(f, "{} {region}", self.variable),
            None => write!(f, "{}", self.variable),
        }
    }
}

/// A committed step wrote into the box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The step.
    pub step: Step,
    /// The variable.
    pub variable: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the whole array in this step.
    pub shape: Dims,
    /// The smallest box around the part of the box that was written.
    pub region: Region,
    /// Number of elements written: all of `region`, or fewer if the blocks leave gaps.
    pub elements: u64,
}

/// What a subscriber is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// The box was written.
    Written(Written),
    /// No news follows about the steps from `first` to `last` (both included): they were gone when
    /// the subscription began, or more news items waited than the subscription keeps.
    Missed {
        /// The first of these steps.
        first: Step,
        /// The last of these steps.
        last: Step,
    },
}

impl News {
    /// Returns the first step that this and all earlier news items do not cover. A later
    /// subscription continues there.
    pub fn next_step(&self) -> Step {
        match self {
            News::Written(written) => written.step + 1,
            News::Missed { last, .. } => last + 1,
        }
    }
}
