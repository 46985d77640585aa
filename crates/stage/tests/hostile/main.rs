//! What a hostile peer or a damaged disk says to the staging layer: messages to the coordinator,
//! files, Zarr stores. Anything may be refused; nothing panics, and nothing takes memory that only
//! a number promised.
//!
//! `SAMITE_FUZZ_SEED=N` repeats a seed; `SAMITE_FUZZ_MINUTES=N` runs others for so long.

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::sync::{Mutex, PoisonError};

/// Counts what is allocated.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What is counted is counted for all threads.
static ALONE: Mutex<()> = Mutex::new(());

fn allocated(run: impl FnOnce()) -> usize {
    let before = HEAP.stats().bytes_allocated;
    run();
    HEAP.stats().bytes_allocated - before
}

/// What of it is still there afterwards.
fn retained(run: impl FnOnce()) -> usize {
    let live = || {
        let stats = HEAP.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    };
    let before = live();
    run();
    live().saturating_sub(before)
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

mod answers;
mod coordinator;
mod files;
mod gathered;
mod growth;
mod products;
mod schemer;
mod words;
#[cfg(feature = "zarr")]
mod zarr;
