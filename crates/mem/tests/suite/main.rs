//! The tests of shared memory between threads and processes. Two more programs: `loom` needs a
//! build of its own, and `biased_fork` forks.

mod biased;
mod doorbell;
mod ring;
