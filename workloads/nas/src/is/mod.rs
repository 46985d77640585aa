//! NAS IS: ranks many integers of few bits.
//!
//! Each key is the sum of four random numbers, so the middle values are frequent. A pass sets two
//! keys and computes for every value how many keys are smaller; ten passes are timed. The units
//! share the keys, first by number, then by value.
//!
//! # Files
//! `problem` (classes, keys) · `partition` (keys into bins, ranks of bins) · `split` (bins to
//! units) · `ranking` (a pass over global memory) · `run` (all passes, timed) · `verify` (the
//! published results) · `sequential` (one unit, for comparison)

pub mod partition;
pub mod problem;
mod ranking;
mod run;
pub mod sequential;
pub mod split;
pub mod verify;

pub use problem::{PASSES, Problem};
pub use ranking::Ranking;
pub use run::{Outcome, run};
pub use sequential::Sequential;
