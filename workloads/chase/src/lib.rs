//! The pointer chase: a chain of addresses that leads through the memory of several units, each
//! step of which depends on the one before. It is the benchmark of the BitCODE paper (Lu et al.,
//! arXiv 2208.01154): a client reads step by step, calls a function that the servers have, or sends
//! code that moves along the chain.
//!
//! # Objects
//! `cycle` ([`Cycle`]: the addresses, one random cycle through all words) · `job` (the program
//! `chase`: unit 0 asks, the others have the words; its table and report)
//!
//! # Rules
//! * Every result is compared with that of a chase through the whole cycle in the client's memory;
//!   a wrong one is the program's error.
//! * The ways alternate, chase by chase, so that they see the same machine. A figure is a median.

#![forbid(unsafe_code)]

mod cycle;
mod error;
pub mod job;

pub use cycle::Cycle;
pub use error::Error;
