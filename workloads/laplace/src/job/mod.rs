//! The programs of the job: [`solver`] and [`analysis`], any number of units each, with a stream of
//! steps between them; and [`mod@array`], the same problem on a distributed array, without an
//! observer.
//!
//! ```text
//!   solver units                       stream "laplace"                       analysis units
//!   each its rows of u, every step ->  steps in the node's memory    ->  each its rows of u, redistributed
//!   leave after the last commit                                          merge their results; unit 0 checks
//! ```
//!
//! It is the study's first workflow: a solver and its n-th moment analysis ("MTA"). The solver
//! computes each step from the last one, which it keeps in place: it has no field besides the
//! steps, and nothing is copied. The analysis reads the solver's blocks in place. Neither side
//! knows the number of units of the other.
//!
//! A step has the variable `u` (f64, the interior cells of the whole rectangle) and the attributes
//! of `attribute`, some of them by rank of the solver.
//!
//! # Promises
//! * **No step is lost, none is torn.** The stream gives every step, in order, and no process
//!   writes to a committed one.
//! * The last step is compared with a sequential run, bit by bit, and so is the largest change of
//!   each step; the figures of the steps are compared with those of the sequential run (`figures`
//!   says which).
//! * **A slow analysis slows the solver down.** The solver waits in `step()` as long as the
//!   analysis is alive, or until `stage.timeout`: then it ends with an error that names the readers
//!   and how far they are behind.
//! * **A lost unit is named.** If a solver unit is lost, the others end; the analysis reads what
//!   was committed, and then names the lost unit.
//!
//! # Files
//! `solver` · `borders` (a [`samite_relaxation::Halo`] over messages) · `analysis` · `figures` (the
//! figures of a step: computed, merged, shown and checked) · `plain` (moments by definition) ·
//! `check` (the sequential run) · `outcome` (the run as a table and as a report) · `array`

pub mod analysis;
pub mod array;
mod borders;
mod check;
mod figures;
mod outcome;
mod plain;
pub mod solver;

/// Name of the stream.
const STREAM: &str = "laplace";
/// The field.
const FIELD: &str = "u";

/// Attributes of a step.
mod attribute {
    /// Number of the last step; an integer.
    pub(super) const STEPS: &str = "steps";

    /// The over-relaxation factor; a real.
    pub(super) const OMEGA: &str = "omega";

    /// Largest change of a cell of a rank's part by this step; a real, from step 1 on.
    pub(super) fn change(rank: u32) -> String {
        format!("change {rank}")
    }

    /// The time that a rank has spent, at the last step: reals, seconds of computing (directly into
    /// the step), of exchanging borders, of waiting for the step to begin.
    pub(super) fn times(rank: u32) -> String {
        format!("times {rank}")
    }
}
