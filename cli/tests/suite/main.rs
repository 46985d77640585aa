//! The tests of the `samite` command, as its users start it. `domain` has what they share.

mod agent;
mod bench;
mod by_hand;
mod capsule;
mod cause;
mod command;
mod doctor;
mod domain;
mod edges;
mod errors;
mod examples;
mod graph;
mod join;
mod methods;
mod mobile;
mod programs;
mod run;
mod staging;
mod starting;
mod top;
mod trace;
mod video;
mod zarr;
