//! Floor 5: the part of the Python package that is written in Rust, `samite._samite`. The folder
//! `python/samite` is the rest of it, and what programs import.
//!
//! # Files
//! `fabric` (joining, barriers, messages) · `units` (which process each unit is now) · `segment`
//! (shared memory, as arrays) · `mobile` (moved code) · `waiting` (the interpreter runs on during a
//! wait, and Ctrl-C ends it) · `error` · `argument` (bytes and times of Python)
//!
//! # Rules
//! * Nothing waits, or frees what peers may use, while it keeps the interpreter from running other
//!   threads ([`waiting`]).
//! * An array keeps the bytes that it shows ([`segment::View`]): they stay mapped until the last
//!   array over them is gone, whatever became of the segment.
//! * Arrays are the memory itself. What other processes write meanwhile is seen at any time, in
//!   parts: programs order their accesses by barriers and messages, as they do for shared memory in
//!   any language.
//! * Each class stands for one type of the crate `samite`, and further layers come as further
//!   files.
#![forbid(unsafe_code)]

mod argument;
mod error;
mod fabric;
mod mobile;
mod segment;
mod units;
mod waiting;

/// The module.
#[pyo3::pymodule]
mod _samite {
    #[pymodule_export]
    use crate::error::Error;
    #[pymodule_export]
    use crate::fabric::{Fabric, Identity, alone, init, join};
    #[pymodule_export]
    use crate::mobile::{Call, Capsule, Code, Mobile};
    #[pymodule_export]
    use crate::segment::{Remote, Segment, View};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn start(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // What errors of other layers do not have.
        let error = module.getattr("Error")?;
        error.setattr("code", 0)?;
        error.setattr("name", "")?;
        error.setattr("cause", module.py().None())?;
        error.setattr("path", ())
    }
}
