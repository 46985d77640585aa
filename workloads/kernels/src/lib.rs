//! Small programs with irregular access to global memory, each with a verified result.
//!
//! # Objects
//!
//! | program | does |
//! |---|---|
//! | [`job::gups`] | random atomic updates of a large table (RandomAccess of HPC Challenge) |
//! | [`job::histogram`] | random counts in a small table (bale) |
//! | [`job::index_gather`] | random reads of a table (bale) |
//! | [`job::sort`] | sorts the lines or the words of a file |
//!
//! # Files
//! `sequence` (the updates of GUPS) · `spread` (blocks of a table) · `random` · [`sort`] (records,
//! parts of a file) · [`job`] (the programs)
//!
//! # Rules
//!
//! * Every result is compared with that of a single unit, or read again and checked; a wrong one is
//!   the program's error.
//! * A program that accesses single elements does so in two ways: each by an operation of its own,
//!   and aggregated per unit.
//!
//! # Example
//!
//! ```
//! use clap::Parser;
//! use samite::{Fabric, Identity};
//! use samite_kernels::job::gups;
//!
//! let fabric = Fabric::alone(Identity::by_hand("gups"), Default::default())?;
//! let mut out = Vec::new();
//! gups::run(&fabric, &gups::Args::parse_from(["gups", "--words-log2", "10"]), &mut out)?;
//! assert!(String::from_utf8_lossy(&out).contains("SUCCESSFUL"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
pub mod job;
mod random;
pub mod sequence;
pub mod sort;
pub mod spread;

pub use error::Error;
use random::random_places;
