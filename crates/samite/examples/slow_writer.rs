//! A writer that computes for longer than the deadline between two steps. The deadline
//! (`fabric.deadline`) is for processes that do not answer. A reader waits for the next step as
//! long as its writer lives, and the writer need not call anything while it computes.
//!
//! ```sh
//! cargo build --release -p samite --example slow_writer
//! samite run -n 2 --config fabric.deadline=1s target/release/examples/slow_writer
//! ```

use samite::Fabric;
use samite::ndarray::{Array1, arr1};
use samite::stage::Stage;
use std::error::Error;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    match fabric.identity().rank {
        0 => write(&fabric),
        _ => read(&fabric),
    }
}

fn write(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let stage = Stage::join(fabric)?;
    let mut results = stage.write("results").as_rank("writer", 0, 1).open()?;
    for number in 0..3 {
        std::thread::sleep(2 * fabric.deadline()); // stands for a long computation
        let mut step = results.step()?;
        step.put(
            "squares",
            [1],
            [0],
            arr1(&[f64::from(number * number)]).view(),
        )?;
        step.commit()?;
    }
    Ok(results.close()?)
}

fn read(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let stage = Stage::join(fabric)?;
    for step in stage.read("results").as_rank("reader", 0, 1).open()? {
        let step = step?;
        let squares: Array1<f64> = step.get("squares", ..)?;
        println!("step {}: {}", step.number(), squares[0]);
    }
    Ok(())
}
