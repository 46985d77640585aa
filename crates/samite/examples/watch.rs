//! A subscription: one unit writes an array row by row, and the other is told when a row of
//! interest was written. A subscription reads no data, and a writer never waits for it.
//!
//! ```sh
//! cargo build --release -p samite --example watch
//! samite run -n 2 target/release/examples/watch
//! ```

use samite::Fabric;
use samite::ndarray::Array2;
use samite::stage::{News, Stage};
use std::error::Error;
use std::time::Duration;

const ROWS: u64 = 10;
const COLS: u64 = 100;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    match fabric.identity().rank {
        0 => write(&fabric),
        _ => watch(&fabric),
    }
}

/// Writes one row per step, once the other unit has subscribed.
fn write(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let stage = Stage::join(fabric)?;
    // One unit of this program writes. Nobody reads the data, so they need not be kept.
    let writer = stage.write("plate").as_rank("writer", 0, 1);
    let mut plate = writer.discard_unread().open()?;
    fabric.barrier(&fabric.job()?)?;
    for row in 0..ROWS {
        let temperatures = Array2::from_elem((1, COLS as usize), row as f64);
        let mut step = plate.step()?;
        step.put("temperature", [ROWS, COLS], [row, 0], temperatures.view())?;
        step.commit()?;
    }
    Ok(plate.close()?)
}

/// Subscribes to a box of three rows, and prints what is reported.
fn watch(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let stage = Stage::join(fabric)?;
    let watching = stage.watch("plate", "temperature").region([3..6, 20..40]);
    let mut news = watching.open()?; // waits until the stream exists
    fabric.barrier(&fabric.job()?)?;
    while let Some(news) = news.next(Duration::from_secs(10))? {
        match news {
            News::Written(box_of) => println!("step {}: {}", box_of.step, box_of.region),
            News::Missed { first, last } => println!("steps {first} to {last} were missed"),
        }
    }
    println!("the stream was closed"); // it ends with the stream
    Ok(())
}
