//! NAS CG: the smallest eigenvalue of a large sparse matrix without structure.
//!
//! The units share the rows of the matrix and the same parts of all vectors. In every step each of
//! them needs a whole vector, so this is what global memory is asked for: gathering, and sums.
//!
//! # Files
//! `problem` (classes, what is published) · `matrix` (the random matrix and its product) · `solver`
//! (the method, for any way of asking others) · `members` (asking them over global memory)

pub mod matrix;
mod members;
pub mod problem;
pub mod solver;

pub use members::Members;
pub use problem::{EPSILON, Problem};
pub use solver::{Alone, Estimate, Others, Solver};
