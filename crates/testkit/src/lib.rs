//! What Samite's tests are made of: real processes, a simulated network, checkers, contract suites.
//!
//! # Core objects
//! * [`units`]: runs a closure of a test in several processes of a fresh domain, with its agent.
//!   The test binary executes itself again; the same test function then runs the closure instead.
//! * [`Cluster`]: those processes, for a test that stops or kills them at a named [`point`].
//! * [`Tracker`]: who has come and left, for a unit that serves the others.
//! * [`simulate`]: the same closure on the simulated network, once per seed.
//! * [`everywhere!`]: one body as several tests: mapped memory, messages only, two nodes,
//!   simulated.
//! * [`fuzz::rounds`]: a body per seed, with random and mutated bytes, for whatever decodes what
//!   others wrote.
//! * [`full_pipe`]: for the output of a process that nobody reads.
//! * [`hostile`]: a peer that sends frames which no honest one sends, and writes into every table
//!   it can reach.
//! * [`contract`](mod@contract): what every transport is held to, as cases that run on all of them.
//!
//! # Files
//! `units` (what to run) · `cluster` (the running processes, watchdog) · `child` (inside a process)
//! · `everywhere` (one body, several tests) · `tracker` (who has come and left) · `leftovers`
//! (nothing stays behind) · `simulated` · `outcome` (how a body fails) · `fuzz` (seeds, random
//! bytes) · `hostile/` (tampered frames, written tables) · `pattern` (bytes that know their place)
//! · `pipes` (one that is full) · `python` (programs of others) · `contract/` (cases by subject)
//!
//! # Rules
//! * No test sleeps to get a moment right: processes announce points, the test waits for them.
//! * No upper bound on time is asserted, except the watchdog's, which says what everybody was
//!   doing.
//! * Every test has its own domain: all of them run in parallel.

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
pub use cluster::{Cluster, Who};
pub use everywhere::full_name;
pub use outcome::{Failed, Outcome};
pub use pipes::full_pipe;
pub use python::run_python;
pub use simulated::{seeds, simulate, simulate_as, simulate_on, three_nodes, two_nodes};
pub use tracker::Tracker;
pub use units::{Units, maps_all, maps_host, require, units};

/// What units that share no memory must not use.
pub const MESSAGES_ONLY: samite_fabric::Mask = samite_fabric::Mask::MESSAGES_ONLY;

/// Units that stay on one node in every run of the tests: those of tests about what only a node
/// has.
pub const ONE_NODE: samite_fabric::Mask = samite_fabric::Mask {
    nodes: 1,
    ..TWO_NODES
};

/// Units that behave as if they were on two nodes, by turns.
pub const TWO_NODES: samite_fabric::Mask = samite_fabric::Mask {
    map: false,
    kernel_copy: false,
    cooperative: false,
    rma: false,
    nodes: 2,
};
