//! A distributed sort: the units create particles in some order, and sort all of them by energy.
//! Afterwards each unit has a part of the ordered list, and any unit can read any part.
//!
//! ```sh
//! cargo build --release -p samite --example sort
//! samite run -n 3 target/release/examples/sort
//! ```

use samite::pgas::array::{Array, Pattern};
use samite::pgas::{Pgas, Pod, Zeroable};
use std::error::Error;

const PARTICLES: u64 = 10_007;

/// An element of an array can be any structure without padding of which every bit pattern is a
/// value. The derives check that, and need to know where `bytemuck` is.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
#[bytemuck(crate = "samite::bytemuck")]
struct Particle {
    energy: f64,
    number: u64,
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    let pgas = Pgas::new(&fabric)?;
    let world = pgas.world();

    // Each unit creates the particles of its own part.
    let pattern = Pattern::block([PARTICLES], world.size())?;
    let mut particles = Array::<Particle, 1>::new(world, pattern)?;
    particles.fill_with(|[number]| Particle {
        energy: energy(number),
        number,
    })?;
    particles.sort_by(|a, b| a.energy.total_cmp(&b.energy))?; // numbers alone: `sort()`

    let mut own = Vec::new();
    particles.for_each(|_, particle| own.push(particle.energy))?;
    assert!(own.is_sorted());
    if let (Some(lowest), Some(highest)) = (own.first(), own.last()) {
        println!(
            "unit {} has energies from {lowest:.4} to {highest:.4}",
            world.rank()
        );
    }
    if world.rank() == 0 {
        let mut three = [Particle::zeroed(); 3];
        particles.get(PARTICLES / 2 - 1..PARTICLES / 2 + 2, &mut three)?; // from their owner
        println!(
            "in the middle of the list: particles {:?}",
            three.map(|particle| particle.number)
        );
    }
    Ok(particles.free()?)
}

/// Returns a different energy from 0 to 1 for each particle.
fn energy(number: u64) -> f64 {
    (number * 7919 % PARTICLES) as f64 / PARTICLES as f64
}
