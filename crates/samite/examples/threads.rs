//! One fabric, many threads. The threads of each unit fill cells of the next unit, and each thread
//! notifies the thread with its number there when its cells are complete. Then each thread adds up
//! its cells over all units, with a team of its own.
//!
//! ```sh
//! cargo build --release -p samite --example threads
//! samite run -n 2 target/release/examples/threads
//! ```

use samite::Match;
use samite::pgas::{Pgas, Sum, Team};
use std::error::Error;

const THREADS: u64 = 4;
const CELLS: u64 = 1000; // of each thread

pub(crate) fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let fabric = samite::init()?;
    let members = fabric.job()?;
    let pgas = Pgas::new(&fabric)?;
    let world = pgas.world();
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let cells = world.allocate::<u64>(THREADS * CELLS)?;

    // A team's collectives are called by one thread at a time, so each thread has a team. They are
    // made here, in the same order at every unit.
    let teams: Result<Vec<Team>, _> = (0..THREADS).map(|_| world.duplicate()).collect();
    let teams = teams?;

    // Threads borrow the fabric and the segment: any thread may use them, and a put takes no lock.
    let work = |thread: u64, team: &Team| -> Result<u64, Box<dyn Error + Send + Sync>> {
        let mine = thread * CELLS..(thread + 1) * CELLS;
        for cell in mine.clone() {
            cells.put_value(next, cell, cell)?;
        }
        // A message that is sent after a put arrives after it. The tag is the thread's number.
        fabric.send(members[next as usize], thread, b"filled")?;
        fabric.recv(Match::from(members[before as usize], thread), &mut [0; 6])?;
        let found: Result<Vec<u64>, _> = mine.map(|cell| cells.get_value(me, cell)).collect();
        let mut all = [0];
        team.all_reduce(&[found?.iter().sum()], &mut all, Sum)?;
        Ok(all[0])
    };
    let sums: Result<Vec<u64>, _> = std::thread::scope(|scope| {
        let start = |(thread, team)| scope.spawn(move || work(thread, team));
        let threads: Vec<_> = (0..).zip(&teams).map(start).collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        ends.collect()
    });
    let (sum, expected) = (sums?.iter().sum::<u64>(), (0..THREADS * CELLS).sum::<u64>());
    assert_eq!(sum, u64::from(size) * expected);
    println!("unit {me}: {THREADS} threads of {size} units filled cells that add up to {sum}");
    Ok(cells.free()?)
}
