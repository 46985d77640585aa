//! Reads a box of every step that `stage_writer` writes, and prints its largest value.
//! `stage_writer` describes how to run both.

use samite::{Fabric, ndarray::Array2, stage::Stage};
use std::error::Error;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    read(&samite::init()?)
}

/// The lines that are not marked as the program's own are what staging costs it.
pub(crate) fn read(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let stage = Stage::join(fabric)?;
    for step in stage.reader("field")? {
        let part: Array2<f64> = step?.get("u", [10..110, 20..70])?;
        println!("{}", part.iter().copied().fold(0.0, f64::max)); // own
    }
    Ok(())
}
