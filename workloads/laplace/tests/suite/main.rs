//! The tests of the Laplace workload.

mod array;
mod job;
