//! The study's first workflow: the solver and its n-th moment analysis ("MTA"), with a stream between them.
//!
//! ```text
//!   solver units                       stream "laplace"                       analysis units
//!   each its rows of u, every step ->  steps in the keeper's memory  ->  each its rows of u, cut anew
//!   leave after the last commit                                          share what they found; unit 0 checks
//! ```
//!
//! [`solver`] lets each row go to the memory of the step while the row is in the cache, so nothing is copied
//! afterwards. [`analysis`] reads a box inside one block where it lies, and gets others. Any number of units on both
//! sides: neither side knows the other's number.
//!
//! A step has the variable `u` (f64, the interior cells of the whole rectangle) and, by rank of the solver, the
//! attributes of `said`.
//!
//! # Promises
//! * The last step is compared with a sequential run, bit by bit; the figures of the others with those of the
//!   sequential run (`figures` says which).
//! * A solver whose analysis is slow waits in `step()`, for a bounded time; whoever is lost is named.
//!
//! # Files
//! `solver` · `analysis` · `figures` (what is computed of a step, merged, shown and checked)

pub mod analysis;
mod figures;
pub mod solver;

/// Name of the stream.
const STREAM: &str = "laplace";
/// The field.
const FIELD: &str = "u";

/// Attributes of a step.
mod said {
    /// Number of the last step; an integer.
    pub(super) const STEPS: &str = "steps";

    /// Largest change of a cell of a rank's part by this step; a real, from step 1 on.
    pub(super) fn change(rank: u32) -> String {
        format!("change {rank}")
    }

    /// What a rank spent its time with, at the last step: reals, seconds of computing (with the rows' way into the
    /// step), of exchanging borders, of waiting for the step to begin.
    pub(super) fn times(rank: u32) -> String {
        format!("times {rank}")
    }
}
