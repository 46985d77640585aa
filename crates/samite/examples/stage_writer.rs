//! Writes a field, step by step, for a reader such as `stage_reader`. Build both with
//! `cargo build --release -p samite --examples` save this in the root of the clone, for
//! example as `field.toml`, and start it with `samite run field.toml`:
//!
//! ```toml
//! [[program]]
//! name = "writer"
//! command = "target/release/examples/stage_writer"
//! [[program]]
//! name = "reader"
//! command = "target/release/examples/stage_reader"
//! ```

use samite::{Fabric, ndarray::Array2, stage::Stage};
use std::error::Error;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    write(&samite::init()?)
}

/// The lines that are not marked as the program's own are what staging costs it.
pub(crate) fn write(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let stage = Stage::join(fabric)?;
    let mut field = stage.writer("field")?;
    for number in 0..10 {
        let u = Array2::from_shape_fn((200, 300), |(y, x)| (number * 60_000 + y * 300 + x) as f64); // own
        let mut step = field.step()?;
        step.put("u", [200, 300], [0, 0], u.view())?;
        step.commit()?;
    }
    field.close()?;
    Ok(())
}
