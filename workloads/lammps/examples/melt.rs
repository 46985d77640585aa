//! The melt and its mean square displacement, in one process:
//! `cargo run --example melt -- 20 20 20`.

use samite_lammps::{Lammps, Melt, Origin};
use std::ops::ControlFlow;
use std::time::Instant;

fn main() -> anyhow::Result<()> {
    let words: Vec<u64> = std::env::args()
        .skip(1)
        .map(|word| word.parse())
        .collect::<Result<_, _>>()?;
    let cells = words.try_into().unwrap_or([10, 10, 10]);
    let mut lammps = Lammps::open(&[])?;
    println!(
        "LAMMPS {}, {} atoms",
        lammps.version(),
        Melt::new(cells).atoms()
    );
    lammps.commands(Melt::new(cells).commands())?;
    let (mut origin, mut failure) = (None, None);
    let start = Instant::now();
    lammps.each_step(10, 100, |atoms| {
        let moved = match &origin {
            None => Origin::new(atoms.ids, atoms.unwrapped()).map(|new| {
                origin = Some(new);
                0.0
            }),
            Some(origin) => origin
                .displacement(atoms.ids, atoms.unwrapped())
                .map(|moved| moved.mean().total),
        };
        match moved {
            Ok(moved) => {
                println!("step {:4}  {moved:.6}", atoms.step);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    println!("{:.3} s", start.elapsed().as_secs_f64());
    Ok(failure.map_or(Ok(()), Err)?)
}
