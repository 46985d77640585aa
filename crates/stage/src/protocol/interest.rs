//! A box that somebody subscribes to or reads, and what a subscriber is told of it.

use super::Step;
use crate::space::Dims;
use crate::{Dtype, Region};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A box of a variable, of which somebody wants to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interest {
    /// Name of the variable. It need not be there yet.
    pub variable: String,
    /// The box; `None` for all of the variable, whatever its shape.
    pub region: Option<Region>,
}

impl Interest {
    /// Bytes of what is told of it once, beside the shape of the array.
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

/// A step was committed that wrote into the box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Which step.
    pub step: Step,
    /// Which variable.
    pub variable: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the whole array in this step.
    pub shape: Dims,
    /// The smallest box around what was written of the box.
    pub region: Region,
    /// How many elements of it were written: all of `region`, or less where the blocks leave holes.
    pub elements: u64,
}

/// What a subscriber is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// The box was written.
    Written(Written),
    /// Of the steps from `first` to `last` (both included) nothing more is told: they were gone
    /// when the subscription began, or more news waited than the subscription keeps.
    Missed {
        /// The first of them.
        first: Step,
        /// The last of them.
        last: Step,
    },
}

impl News {
    /// The step from which on nothing has been told when this has been: where a later subscription
    /// goes on.
    pub fn next_step(&self) -> Step {
        match self {
            News::Written(written) => written.step + 1,
            News::Missed { last, .. } => last + 1,
        }
    }
}
