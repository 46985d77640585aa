//! The real LAMMPS inside a unit, and the mean square displacement of its atoms.
//!
//! LAMMPS is loaded at run time, through its C library: it is not needed to build, and this crate
//! contains nothing of it. A simulation has one process: each unit runs a simulation of its own, or
//! one unit runs the only one. Simulations that are distributed over several units are not
//! supported.
//!
//! # Objects
//!
//! | file | holds |
//! |---|---|
//! | [`library`] | where LAMMPS is searched for, and what to do if it is missing |
//! | `ffi` | [`Lammps`]: one simulation; the only unsafe code |
//! | [`snapshot`] | [`Snapshot`]: the atoms of a step, in LAMMPS' memory; [`Cell`]: unwrapping |
//! | [`melt`] | [`Melt`]: the Lennard-Jones melt of LAMMPS' own benchmarks |
//! | [`displacement`] | [`Origin`], [`Displacement`]: the analysis; needs no LAMMPS |
//! | [`job`] | the programs `lammps-melt` and `lammps-msd`, with a stream between them |
//!
//! # Rules
//!
//! * Positions are matched by the id of the atom, never by their index: LAMMPS reorders its atoms.
//! * Distances are those of unwrapped positions: an atom that leaves the periodic box on one side
//!   enters it on the other, and has not moved by the length of the box.
//! * A process has one simulation at a time, on one thread.
//!
//! # Example
//!
//! ```no_run
//! use samite_lammps::{Lammps, Melt, Origin};
//! use std::ops::ControlFlow;
//!
//! let mut lammps = Lammps::open(&[])?;
//! lammps.commands(Melt::new([20, 20, 20]).commands())?;
//! let mut origin = None;
//! lammps.each_step(10, 100, |atoms| {
//!     let now = || atoms.unwrapped();
//!     let start = origin.get_or_insert_with(|| Origin::new(atoms.ids, now()).expect("numbered from 1"));
//!     let moved = start.displacement(atoms.ids, now()).expect("the same atoms");
//!     println!("{:6} {:.6}", atoms.step, moved.mean().total);
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), samite_lammps::Error>(())
//! ```

#![deny(unsafe_code)]

pub mod displacement;
mod error;
#[allow(
    unsafe_code,
    reason = "a C library; what makes it sound is written there"
)]
mod ffi;
pub mod job;
pub mod library;
pub mod melt;
pub mod snapshot;

pub use displacement::{Displacement, MeanSquare, Origin};
pub use error::Error;
pub use ffi::Lammps;
pub use melt::Melt;
pub use snapshot::{Cell, Snapshot};
