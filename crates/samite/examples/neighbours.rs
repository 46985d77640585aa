//! Global memory in twenty lines, the program of the README: each unit owns a part, and every unit
//! can access every part.
//!
//! ```sh
//! cargo build --release -p samite --example neighbours
//! samite run -n 4 target/release/examples/neighbours
//! ```

use samite::pgas::{Pgas, Sum};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = samite::init()?;
    let pgas = Pgas::new(&fabric)?; //                 collective over the units of the job
    let world = pgas.world();
    let (rank, size) = (world.rank(), world.size());
    let mut cells = world.allocate::<f64>(1000)?.into_local()?; // 1000 doubles at each unit
    cells.as_mut_slice().fill(f64::from(rank)); //     a plain slice: only the owner has access
    let cells = cells.into_shared()?; //               now every unit can access every part
    let right = cells.get_value((rank + 1) % size, 0)?; // one load from the neighbour's memory
    let mut sum = [0.0];
    world.all_reduce(&[right], &mut sum, Sum)?;
    if rank == 0 {
        println!("{size} units; their neighbours' cells add up to {}", sum[0]);
    }
    Ok(cells.free()?)
}
