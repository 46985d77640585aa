//! Ghost cells with corners, and around the edges: Conway's game of life on a distributed board
//! whose opposite sides touch. A cell has eight neighbours, four of them at its corners. A glider
//! moves by one cell down and to the right every four generations, over the borders of the units.
//!
//! ```sh
//! cargo build --release -p samite --example life
//! samite run -n 4 target/release/examples/life
//! ```

use samite::pgas::Pgas;
use samite::pgas::array::{Array, Halo, Pattern};
use std::error::Error;

const SIZE: u64 = 12;
const GENERATIONS: u64 = 4 * 11;
const GLIDER: [[u64; 2]; 5] = [[0, 1], [1, 2], [2, 0], [2, 1], [2, 2]];

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    let pgas = Pgas::new(&fabric)?;
    let world = pgas.world();
    let halo = Halo::new([1, 1]).periodic([true, true]).with_corners();
    let pattern = Pattern::block([SIZE, SIZE], world.size())?.with_halo(halo)?;
    let mut board = Array::<u8, 2>::new(world, pattern)?.into_local()?;
    board.fill_with(|index| u8::from(GLIDER.contains(&index)))?;
    let width = board.stored_extents()[1] as usize;

    for _ in 0..GENERATIONS {
        board.exchange_halo()?;
        generation(board.as_mut_slice(), width);
    }

    let living = board.count(|cell| cell == 1)?;
    let board = board.into_shared()?; // from here on, any unit may read any cell
    if world.rank() == 0 {
        println!("{living} cells live after {GENERATIONS} generations");
        for y in 0..SIZE {
            let mut row = [0; SIZE as usize];
            board.get([y..y + 1, 0..SIZE], &mut row)?;
            let row = row.map(|cell| if cell == 1 { '#' } else { '.' });
            println!("{}", String::from_iter(row));
        }
    }
    Ok(())
}

/// Replaces the cells of a block, which are rows of `width` with a ring of ghost cells, by those of
/// the next generation.
fn generation(cells: &mut [u8], width: usize) {
    let old = cells.to_vec();
    for row in (width..old.len() - width).step_by(width) {
        for at in row + 1..row + width - 1 {
            let rows = [at - width, at, at + width];
            let nine = rows.map(|at| old[at - 1..=at + 1].iter().sum::<u8>());
            let around = nine.iter().sum::<u8>() - old[at];
            cells[at] = u8::from(around == 3 || around == 2 && old[at] == 1);
        }
    }
}
