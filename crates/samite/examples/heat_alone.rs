//! Heat on a plate, computed by one process: an ordinary Rust program, with which `heat.rs` is
//! compared.
//!
//! ```sh
//! cargo run --release -p samite --example heat_alone
//! ```

const ROWS: u64 = 120;
const COLS: u64 = 160;
const SWEEPS: u64 = 400;

pub(crate) fn main() {
    // The cells of the plate, with a ring of cells around them that stay at 0 degrees.
    let (height, width) = (ROWS as usize + 2, COLS as usize + 2);
    let mut cells = vec![0.0; height * width];
    for y in 0..ROWS {
        for x in 0..COLS {
            cells[(y as usize + 1) * width + x as usize + 1] = initial(y, x);
        }
    }
    for _ in 0..SWEEPS {
        sweep(&mut cells, width);
    }
    let total: f64 = cells.iter().sum();
    let hottest = cells.iter().copied().fold(0.0, f64::max);
    println!("after {SWEEPS} sweeps: total {total:.3}, hottest {hottest:.3}");
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
