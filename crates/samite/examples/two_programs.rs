//! A workflow of two programs with a stream between them, each with global memory of its own. The
//! units of the solver let heat spread along a rod: each owns a part of it, and writes the ends of
//! its part into the memory of its neighbours. The units of the analysis share each step and add up
//! the heat that they found.
//!
//! Build it with `cargo build --release -p samite --example two_programs`, save this in the root of
//! the clone, for example as `rod.toml`, and start it with `samite run rod.toml`:
//!
//! ```toml
//! [[program]]
//! name = "solver"
//! command = "target/release/examples/two_programs"
//! units = 3
//!
//! [[program]]
//! name = "analysis"
//! command = "target/release/examples/two_programs"
//! units = 2
//! ```

use samite::ndarray::{ArrayView1, Ix1};
use samite::pgas::{Pgas, Sum};
use samite::{Fabric, stage::Stage};
use std::error::Error;

const CELLS: u64 = 100; // of each unit of the solver
const STEPS: u64 = 20;

/// Both programs; the workflow names them.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    match fabric.identity().program.as_str() {
        "solver" => solve(&fabric),
        _ => analyse(&fabric),
    }
}

fn solve(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let pgas = Pgas::of_program(fabric)?; // `Pgas::new` would wait for the analysis, too
    let world = pgas.world();
    let (rank, last) = (world.rank(), world.size() - 1);
    let mut field = Stage::join(fabric)?.writer("rod")?;
    let rod = world.allocate::<f64>(CELLS + 2)?; // with a cell of the neighbour at each end
    if rank == 0 {
        rod.put_value(rank, 1, 1000.0)?;
    }
    let mut cells = [0.0; CELLS as usize + 2];
    for _ in 0..STEPS {
        // Where the rod ends, its neighbour is as warm as itself.
        let (left, right) = (rod.get_value(rank, 1)?, rod.get_value(rank, CELLS)?);
        match rank {
            0 => rod.put_value(rank, 0, left)?,
            _ => rod.put_value(rank - 1, CELLS + 1, left)?,
        }
        match rank == last {
            true => rod.put_value(rank, CELLS + 1, right)?,
            false => rod.put_value(rank + 1, 0, right)?,
        }
        world.barrier()?; // the neighbours have written their ends
        rod.read_local(0, &mut cells)?;
        let spread = |three: &[f64]| (three[0] + 2.0 * three[1] + three[2]) / 4.0;
        let after: Vec<f64> = cells.windows(3).map(spread).collect();
        rod.write_local(1, &after)?;
        world.barrier()?; // everybody has read the ends, so they may be written again
        let mut step = field.step()?;
        let (shape, start) = ([CELLS * u64::from(last + 1)], [CELLS * u64::from(rank)]);
        step.put("heat", shape, start, ArrayView1::from(&after))?;
        step.commit()?;
    }
    field.close()?;
    Ok(rod.free()?)
}

fn analyse(fabric: &Fabric) -> Result<(), Box<dyn Error>> {
    let pgas = Pgas::of_program(fabric)?; // at the same time as that of the solver
    let world = pgas.world();
    let mut totals = Vec::new();
    for step in Stage::join(fabric)?.reader("rod")? {
        let part = step?.mine::<f64, Ix1>("heat")?.array; // each unit another part
        let mut total = [0.0];
        world.all_reduce(&[part.sum()], &mut total, Sum)?;
        totals.push(total[0]);
    }
    if world.rank() == 0 {
        let (steps, heat) = (totals.len(), totals.last().copied().unwrap_or_default());
        println!("{steps} steps; the heat of the last one is {heat:.6}");
    }
    Ok(())
}
