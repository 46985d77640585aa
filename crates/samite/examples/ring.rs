//! Messages between neighbours: each unit sends a number to the next unit, and adds the number that
//! the unit before it has sent. No unit waits for the others at the end: what it has sent arrives
//! after it has left.
//!
//! ```sh
//! cargo build --release -p samite --example ring
//! samite run -n 4 target/release/examples/ring
//! ```

use samite::Match;

const TAG: u64 = 7;

pub(crate) fn main() -> samite::Result<()> {
    let fabric = samite::init()?;
    let units = fabric.job()?; // the peers to send to, one per unit
    let (me, size) = (fabric.identity().unit as usize, units.len());
    let (next, before) = (units[(me + 1) % size], units[(me + size - 1) % size]);

    let mine = 10 * me as u64;
    fabric.send(next, TAG, &mine.to_le_bytes())?;
    let mut bytes = [0; 8];
    fabric.recv(Match::from(before, TAG), &mut bytes)?;
    let theirs = u64::from_le_bytes(bytes);

    println!("unit {me}: {mine} + {theirs} = {}", mine + theirs);
    Ok(())
}
