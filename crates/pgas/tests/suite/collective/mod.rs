//! Collectives in real processes, with and without shared memory, and on the simulated network.
//!
//! Files: `results` (every collective against a loop) · `pending` (non-blocking ones) · `teams`
//! (several at once, many over time) · `groups` (of some units of the job) · `faults` (other
//! arguments, deaths) · `late`, `mismatch`, `panics`

mod faults;
mod groups;
mod late;
mod mismatch;
mod panics;
mod pending;
mod results;
mod teams;
