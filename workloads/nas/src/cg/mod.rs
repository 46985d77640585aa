//! NAS CG: the smallest eigenvalue of a large unstructured sparse matrix.
//!
//! The units share the rows of the matrix and the same parts of all vectors. In every step each of
//! them needs a whole vector, so the benchmark exercises gathering and sums.
//!
//! # Files
//! `problem` (classes, published results) · `matrix` (the random matrix and its product) · `solver`
//! (the method, independent of the communication) · `members` (communication over global memory)

pub mod matrix;
mod members;
pub mod problem;
pub mod solver;

pub use members::Members;
pub use problem::{EPSILON, Problem};
pub use solver::{Alone, Estimate, Others, Solver};
