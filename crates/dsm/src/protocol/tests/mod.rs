//! The directory and the caches of a chunk together.

mod exhaustive;
mod machine;
mod replicas;
mod server;
mod simulation;
mod world;

pub(super) use world::process;
