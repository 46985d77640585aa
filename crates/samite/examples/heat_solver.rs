//! Heat on a plate that several units share, as in `heat.rs`, written to a stream: every 100
//! sweeps, each unit writes its block of the plate. `heat_picture.rs` reads the stream.
//! `heat.toml` starts both; it expects them where section 5 of `docs/tutorial.md` builds them. In
//! the clone, say where they are:
//!
//! ```sh
//! cargo build -p samite --examples
//! samite run crates/samite/examples/heat.toml \
//!     --set program.solver.command=$PWD/target/debug/examples/heat_solver \
//!     --set program.picture.command=$PWD/target/debug/examples/heat_picture
//! ```

use samite::ndarray::{ArrayView2, s};
use samite::pgas::Pgas;
use samite::pgas::array::{Array, Halo, Pattern};
use samite::stage::Stage;
use std::error::Error;

const ROWS: u64 = 120;
const COLS: u64 = 160;
const SWEEPS: u64 = 100; // from one step of the stream to the next
const STEPS: u64 = 5;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    let pgas = Pgas::of_program(&fabric)?; // without the units of the reader
    let world = pgas.world();

    let pattern = Pattern::block([ROWS, COLS], world.size())?.with_halo(Halo::new([1, 1]))?;
    let mut plate = Array::<f64, 2>::new(world, pattern)?.into_local()?;
    plate.fill_with(|[y, x]| initial(y, x))?;
    let [height, width] = plate.stored_extents().map(|extent| extent as usize);
    let first = plate
        .local_runs()
        .next()
        .ok_or("more units than cells")?
        .index;

    let stage = Stage::join(&fabric)?;
    let mut stream = stage.writer("heat")?;
    for number in 0..STEPS {
        if number > 0 {
            for _ in 0..SWEEPS {
                plate.exchange_halo()?;
                sweep(plate.as_mut_slice(), width);
            }
        }
        let block = ArrayView2::from_shape((height, width), plate.as_slice())?;
        let cells = block.slice(s![1..height - 1, 1..width - 1]); // no ghost cells
        let mut step = stream.step()?; // waits while the reader is too far behind
        step.put("temperature", [ROWS, COLS], first, cells)?;
        step.commit()?;
    }
    stream.close()?; // otherwise the stream ends as failed
    Ok(())
}

/// Returns the temperature of a cell at the beginning: a hot disc and a warm square.
fn initial(y: u64, x: u64) -> f64 {
    let from_centre = (y as f64 - 50.0).hypot(x as f64 - 60.0);
    if from_centre < 25.0 {
        100.0
    } else if (70..100).contains(&y) && (100..130).contains(&x) {
        60.0
    } else {
        0.0
    }
}

/// Lets heat flow between neighbours once. `cells` are rows of `width`, with the ring around them.
fn sweep(cells: &mut [f64], width: usize) {
    let old = cells.to_vec();
    for row in (width..old.len() - width).step_by(width) {
        for at in row + 1..row + width - 1 {
            let around = old[at - width] + old[at - 1] + old[at + 1] + old[at + width];
            cells[at] += 0.2 * (around - 4.0 * old[at]);
        }
    }
}
