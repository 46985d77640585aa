//! Two of the NAS Parallel Benchmarks over global memory: IS and CG.
//!
//! Both are written from the specification (Bailey et al., *The NAS Parallel Benchmarks*,
//! RNR-94-007, and the sizes of NPB 3). The numbers of the problem, the passes that are timed and
//! the verification are the published ones; how the units divide the work is not prescribed.
//!
//! # Objects
//!
//! | module | holds |
//! |---|---|
//! | [`random`] | the pseudorandom numbers of the benchmarks, with jumps |
//! | [`is`] | [`is::Ranking`]: keys are put into the memory of the unit that ranks them |
//! | [`cg`] | [`cg::Solver`]: rows of a matrix, gathered vectors, sums |
//! | [`job`] | the programs `nas-is` and `nas-cg` |
//!
//! # Rules
//!
//! * Code that needs no other unit is pure and tested alone; a sequential run gives the published
//!   results, too.
//! * Every unit makes the same collective calls in the same order, even after a wrong result.
//!
//! # Example
//!
//! ```
//! use samite::{Fabric, Identity};
//! use samite_nas::Class;
//! use samite_nas::job::is;
//!
//! let fabric = Fabric::alone(Identity::by_hand("nas"), Default::default())?;
//! let mut out = Vec::new();
//! is::run(&fabric, &is::Args { class: Class::S }, &mut out)?;
//! assert!(String::from_utf8_lossy(&out).contains("SUCCESSFUL"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod cg;
mod class;
mod error;
pub mod is;
pub mod job;
pub mod random;

pub use class::Class;
pub use error::Error;
