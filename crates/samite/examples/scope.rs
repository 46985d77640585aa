//! Messages without waiting, from and into buffers of the program: each unit exchanges a large row
//! with both of its neighbours. All four transfers are under way at once. The scope ends when the
//! last one has ended, so the buffers cannot be used too early.
//!
//! ```sh
//! cargo build --release -p samite --example scope
//! samite run -n 3 target/release/examples/scope
//! ```

use samite::Match;

const UP: u64 = 1; // the tag of rows that go to the unit above
const DOWN: u64 = 2;

pub(crate) fn main() -> samite::Result<()> {
    let fabric = samite::init()?;
    let units = fabric.job()?;
    let (me, size) = (fabric.identity().unit as usize, units.len());
    let (above, below) = (units[(me + 1) % size], units[(me + size - 1) % size]);

    let row = vec![me as u8; 4 << 20];
    let (mut from_above, mut from_below) = (vec![0; row.len()], vec![0; row.len()]);
    fabric.scope(|scope| -> samite::Result<()> {
        scope.irecv(Match::from(above, DOWN), &mut from_above)?;
        scope.irecv(Match::from(below, UP), &mut from_below)?;
        scope.isend(above, UP, &row)?;
        scope.isend(below, DOWN, &row)?;
        Ok(())
    })?;

    let (first, last) = (from_below[0], from_above[row.len() - 1]);
    println!("unit {me} is between {first} and {last}");
    Ok(())
}
