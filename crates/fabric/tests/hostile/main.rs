//! A hostile peer among honest ones: frames that no honest peer sends, in any state, and tables that it writes.
//!
//! `SAMITE_FUZZ_SEED=N` repeats a seed; `SAMITE_FUZZ_MINUTES=N` runs others for so long.
//!
//! # Files
//! `tables` (words in tables and rings)

mod tables;
