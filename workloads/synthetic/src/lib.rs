//! The synthetic workflow: any number of writers and readers, any shape, type, partition and access
//! pattern. Every element is checked, and the time is broken down.
//!
//! ```text
//!   writer units                     stream "synthetic"          reader units
//!   compute, fill, put their part ->  steps of `u`  ->            wait, get boxes, check every element
//!                                                                 merge their results; unit 0 prints them
//! ```
//!
//! A step has the variable `u` of the shape and type with which the writers were started; readers
//! learn both from the stream. Attributes are in `said`.
//!
//! # Objects
//!
//! | file | holds |
//! |---|---|
//! | [`value`] | the value of each element: a function of step and index |
//! | [`cut`] | [`cut::Cut`]: which writer writes which part; [`cut::Pattern`]: which boxes a reader requests |
//! | [`writer`], [`reader`] | the programs `synthetic-writer` and `synthetic-reader` |

#![forbid(unsafe_code)]

pub mod cut;
mod error;
pub mod reader;
pub mod value;
pub mod writer;

pub use error::Error;

/// Name of the stream.
const STREAM: &str = "synthetic";
/// The variable.
const VARIABLE: &str = "u";

/// The steps whose elements are filled by the writers, and checked by the readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Checked {
    /// All steps.
    All,
    /// The first and the last: between them, only the stream takes time.
    Ends,
}

impl Checked {
    fn has(self, number: u64, steps: u64) -> bool {
        self == Checked::All || number == 0 || number + 1 >= steps
    }
}

/// Attributes of a step.
mod said {
    /// Number of steps; an integer.
    pub(crate) const STEPS: &str = "steps";

    /// The time that a writer has spent before it committed the last step: reals, in seconds, in
    /// the order of [`crate::writer::PARTS`].
    pub(crate) fn times(rank: u32) -> String {
        format!("times {rank}")
    }
}
