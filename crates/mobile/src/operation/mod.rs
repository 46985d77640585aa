//! Operations on remote data that are built on moved code: what one get or put cannot do.
//!
//! Each exists in three forms with the same result: *gets* (the caller reads step by step), a
//! *function* that every unit of the program has, and *moved* code. [`Auto`] chooses by measured
//! cost: on one node, where the caller maps the data, gets are loads and win; between nodes a
//! chain of gets waits for the network twice per step.
//!
//! * [`Table`]: words spread over units; [`Table::chase`]: a chain of dependent loads through it.
//! * [`Below`]: a filter and a reduction over a segment.
//!
//! # Cost of a chase
//! With a one-way delay `L`, `S` units and random addresses, a step costs `2 L` by gets, and
//! `(1 - 1/S) L` plus the time of a kernel, about 0.1 us, if the code moves.

mod auto;
mod chase;
mod reduce;

pub use auto::{Auto, Way};
pub use chase::Table;
pub use reduce::{Below, Found};
