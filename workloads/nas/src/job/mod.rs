//! The benchmarks as programs of a job: `nas-is` and `nas-cg`. One result, printed by unit 0; the
//! verification decides how the program ends.

pub mod cg;
pub mod is;

use crate::Error;

/// A wrong result is an error at every unit.
fn judge(right: bool, what: &str) -> Result<(), Error> {
    right.then_some(()).ok_or_else(|| Error::Wrong(what.into()))
}
