//! The synthetic workflow: any number of writers and readers, any shape, type, cut and access pattern. Every element
//! is checked, and the time is split.
//!
//! ```text
//!   writer units                     stream "synthetic"          reader units
//!   compute, fill, put their part ->  steps of `u`  ->            wait, get boxes, check every element
//!                                                                 share what they found; unit 0 shows it
//! ```
//!
//! A step has the variable `u` of the shape and type that the writers were started with; readers learn both from the
//! stream. Attributes are in `said`.
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

/// Attributes of a step.
mod said {
    /// How many steps there are; an integer.
    pub(crate) const STEPS: &str = "steps";

    /// What a writer spent its time with before it committed the last step: reals, in seconds, in the order of
    /// [`crate::writer::PARTS`].
    pub(crate) fn times(rank: u32) -> String {
        format!("times {rank}")
    }
}

/// Does something for the Rust type of a [`samite::stage::Dtype`]: `for_dtype!(dtype, T => f::<T>(..))`.
macro_rules! for_dtype {
    ($dtype:expr, $T:ident => $do:expr) => {
        for_dtype!(@ $dtype, $T, $do, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
    (@ $dtype:expr, $T:ident, $do:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(samite::stage::Dtype::$name => {
                type $T = $type;
                $do
            })*
        }
    };
}
pub(crate) use for_dtype;
