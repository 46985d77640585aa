//! A hostile peer among honest ones: frames that no honest peer sends, in any state, and tables
//! that it writes.
//!
//! `SAMITE_FUZZ_SEED=N` repeats a seed; `SAMITE_FUZZ_MINUTES=N` runs others for so long.
//!
//! # Files
//! `program` (what the units do with each other) · `engine` (frames straight into an engine: many)
//! · `frames` (on the simulated network) · `tables` (words in tables and rings). Real processes,
//! with all layers, are in the crate `samite`.

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts what is allocated. Only one thread of a simulated network runs at a time.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What is counted is counted for all threads: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

mod engine;
mod frames;
mod program;
mod tables;
