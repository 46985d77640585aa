//! The benchmarks as programs of a job: `nas-is` and `nas-cg`. Unit 0 prints the result; the
//! verification decides the exit status of the program.

pub mod cg;
pub mod is;

use crate::Error;

/// Returns an error at every unit if the result is wrong.
fn judge(right: bool, what: &str) -> Result<(), Error> {
    right.then_some(()).ok_or_else(|| Error::Wrong(what.into()))
}
