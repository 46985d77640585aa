//! The synthetic workflow: any number of writers and readers, any shape, type, cut and access
//! pattern. Every element is checked, and the time is split.
//!
//! ```text
//!   writer units                     stream "synthetic"          reader units
//!   compute, fill, put their part ->  steps of `u`  ->            wait, get boxes, check every element
//!                                                                 share what they found; unit 0 shows it
//! ```
//!
//! A step has the variable `u` of the shape and type that the writers were started with; readers
//! learn both from the stream. Attributes are in `said`.
//!
//! # Objects
//!
//! | file | holds |
//! |---|---|
//! | [`value`] | what each element is: a function of step and place |
//! | [`cut`] | [`cut::Cut`]: who writes which part; [`cut::Pattern`]: who asks for which boxes |
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

/// Of which steps the elements are those of the step, and looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Checked {
    /// Of all.
    All,
    /// Of the first and the last: between them nothing but the stream takes time.
    Ends,
}

impl Checked {
    fn has(self, number: u64, steps: u64) -> bool {
        self == Checked::All || number == 0 || number + 1 >= steps
    }
}

/// Attributes of a step.
mod said {
    /// How many steps there are; an integer.
    pub(crate) const STEPS: &str = "steps";

    /// What a writer spent its time with before it committed the last step: reals, in seconds, in
    /// the order of [`crate::writer::PARTS`].
    pub(crate) fn times(rank: u32) -> String {
        format!("times {rank}")
    }
}
