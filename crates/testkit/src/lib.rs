//! Building blocks of Samite's tests: real processes, a simulated network, checkers, contract
//! suites.
//!
//! # Core objects
//! * [`units`]: runs a closure of a test in several processes of a fresh domain, with its agent.
//!   The test binary executes itself again; the same test function then runs the closure instead.
//! * [`Cluster`]: those processes, for a test that stops or kills them at a named [`point`].
//! * [`Tracker`]: records which units have come and left, for a unit that serves the others.
//! * [`simulate`]: runs the same closure on the simulated network, once per seed.
//! * [`everywhere!`]: one body as several tests: mapped memory, messages only, two nodes,
//!   simulated.
//! * [`fuzz::rounds`]: runs a body per seed, with random and mutated bytes, for decoders of data
//!   from other processes.
//! * [`full_pipe`]: for a process whose output is not read.
//! * [`hostile`]: a peer that sends frames which no correct peer sends, and writes into every table
//!   that it can reach.
//! * [`contract`](mod@contract): the contract of every transport, as cases that run on all of them.
//!
//! # Files
//! `units` (what to run) · `cluster` (the running processes, watchdog) · `child` (inside a process)
//! · `everywhere` (one body, several tests) · `tracker` (units that have come and left) ·
//! `leftovers` (nothing is left behind) · `simulated` · `outcome` (how a body fails) · `fuzz`
//! (seeds, random bytes) · `hostile/` (altered frames, overwritten tables) · `pattern`
//! (position-dependent bytes) · `pipes` (a full one) · `python` (external programs) · `contract/`
//! (cases by subject)
//!
//! # Rules
//! * No test sleeps to get the timing right: processes announce points, and the test waits for
//!   them.
//! * No upper bound on time is asserted, except by the watchdog, which prints what every process
//!   was doing.
//! * Every test has its own domain, so all can run in parallel.

#![forbid(unsafe_code)]

mod child;
mod cluster;
pub mod contract;
mod everywhere;
pub mod fuzz;
pub mod hostile;
mod leftovers;
mod outcome;
pub mod pattern;
mod pipes;
mod python;
mod simulated;
mod tracker;
mod units;

pub use child::{Unit, die, life, live_once, pause, point, say};
pub use cluster::{Cluster, Who, of_first_node};
pub use everywhere::full_name;
pub use outcome::{Failed, Outcome};
pub use pipes::full_pipe;
pub use python::{python, run_python};
pub use simulated::{own_nodes, seeds, simulate, simulate_as, simulate_on, three_nodes, two_nodes};
pub use tracker::Tracker;
pub use units::{Units, maps_all, maps_host, programs, require, units};

/// Mask of units that share no memory.
pub const MESSAGES_ONLY: samite_fabric::Mask = samite_fabric::Mask::MESSAGES_ONLY;

/// Mask of units that stay on one node in every run of the tests, for tests of features that exist
/// only within a node.
pub const ONE_NODE: samite_fabric::Mask = samite_fabric::Mask {
    nodes: 1,
    ..TWO_NODES
};

/// Mask of units that behave as if they were on two nodes, alternately.
pub const TWO_NODES: samite_fabric::Mask = samite_fabric::Mask {
    map: false,
    kernel_copy: false,
    cooperative: false,
    rma: false,
    nodes: 2,
};
