//! The tests of the fabric on all its transports, in one program.
//!
//! `contract`: what every transport promises · `faults`: what dies, stops or lies · `simulated`:
//! nodes of a simulated network · `threads`: units with several threads · `serving`: units that
//! only serve · `link`: latency and rate between units. Two more programs count what they allocate,
//! or are large: `hostile` and `scale`.

mod contract;
mod faults;
mod link;
mod serving;
mod simulated;
mod threads;
