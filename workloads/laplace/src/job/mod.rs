//! The two programs of the job, on a fabric: [`solver`] (any number of units) and [`analysis`] (one).
//! Beside them [`mod@array`]: the same problem on a distributed array, with nobody who watches; and [`mta`]: the
//! same two programs with a stream of steps between them, for any number of units on both sides.
//!
//! Each solver unit has one segment: its field twice, and beside each of the two buffers a stamp that
//! says which step is in it (`field`). It tells the analysis the segment's key once. From then on
//! only notices travel, never cells:
//!
//! ```text
//!   solver unit                                            analysis
//!   HELLO(problem, steps, key)  ------------------------->  attaches the segment
//!   step 0 -> buffer 0, STEP(0) ------------------------->  reads buffer 0 row by row, where it lies
//!   step 1 -> buffer 1, STEP(1) ----------+
//!   waits: buffer 0 holds step 0   <------|--- released --  (a counted signal for each step)
//!   step 2 -> buffer 0 ...                +-------------->  reads buffer 1 ...
//!   TIMES, waits                <---- END(not yet) -------  checks (a word every second)
//!   leaves                      <---- END(go) ------------  done with the segment
//! ```
//!
//! # Promises
//!
//! * **No step is lost.** The analysis takes the announcements of a unit in order and refuses a gap.
//! * **No step is torn.** A buffer is not written before the analysis released the step in it. That
//!   this holds is checked, not trusted: the stamps around the cells are compared before and after
//!   each reading, and a difference ends the job ([`crate::Error::Torn`]).
//! * **A slow analysis slows the solver down, for a bounded time.** The solver is at most one step
//!   ahead. It waits no longer than the fabric's deadline (`fabric.deadline`); then it ends with an
//!   error that names the analysis and the step.
//! * **A lost unit ends the job**, with an error that names the unit and what it was waited for.
//!
//! Where the analysis cannot map the solver's memory (another node, or `fabric.mask` has `map`) it
//! gets the same rows by messages, and says so in the report. The numbers are the same.
//!
//! # Files
//!
//! `protocol` (what is said) · `field` (what lies where in a segment) · `borders` (a [`crate::Halo`]
//! over messages) · `source` (a solver unit as the analysis sees it) · `outcome` (the run as a report)

pub mod analysis;
pub mod array;
mod borders;
mod field;
pub mod mta;
mod outcome;
mod protocol;
pub mod solver;
mod source;
