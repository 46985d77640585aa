//! The first real job of Samite: a Laplace solver, and a program that watches it.
//!
//! The units of the solver share a rectangle by bands of rows and exchange the rows at their
//! borders twice per step. An analysis program reads every step directly from their memory,
//! computes its central moments, and compares the result with a sequential run. A third program
//! solves the same problem on a distributed array.
//!
//! [`job`] has the programs: their messages, and what they promise. What they compute is the crate
//! `samite_relaxation`, and the page that shows it is `samite_report`.

#![forbid(unsafe_code)]

mod error;
pub mod job;

pub use error::Error;
