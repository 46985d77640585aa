//! A distributed sort: the units create particles in some order, and sort all of them by energy.
//! Afterwards each unit has a part of the ordered list, and any unit can read any part.
//!
//! ```sh
//! cargo build --release -p samite --example sort
//! samite run -n 3 target/release/examples/sort
//! ```

use samite::pgas::Pgas;
use samite::pgas::array::{Array, Pattern};
use std::error::Error;

const PARTICLES: u64 = 10_007;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    let pgas = Pgas::new(&fabric)?;
    let world = pgas.world();

    // A particle is its energy and its number. Each unit creates those of its own part.
    let pattern = Pattern::block([PARTICLES], world.size())?;
    let mut particles = Array::<[f64; 2], 1>::new(world, pattern)?;
    particles.fill_with(|[number]| [energy(number), number as f64])?;
    particles.sort_by(|a, b| a[0].total_cmp(&b[0]))?; // numbers without NaN: `sort()`

    let mut own = Vec::new();
    particles.for_each(|_, particle| own.push(particle))?;
    assert!(own.is_sorted_by(|a, b| a[0] <= b[0]));
    let (first, last) = (own.first(), own.last());
    if let (Some([lowest, _]), Some([highest, _])) = (first, last) {
        println!(
            "unit {} has energies from {lowest:.4} to {highest:.4}",
            world.rank()
        );
    }
    if world.rank() == 0 {
        let mut three = [[0.0; 2]; 3];
        particles.get(PARTICLES / 2 - 1..PARTICLES / 2 + 2, &mut three)?; // from their owner
        println!(
            "in the middle of the list: particles {:?}",
            three.map(|particle| particle[1])
        );
    }
    Ok(particles.free()?)
}

/// Returns a different energy from 0 to 1 for each particle.
fn energy(number: u64) -> f64 {
    (number * 7919 % PARTICLES) as f64 / PARTICLES as f64
}
