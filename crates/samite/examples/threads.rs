//! One fabric, many threads: the threads of each unit fill cells of the next unit, and each of them
//! notifies the thread with its number there when its cells are complete.
//! `cargo build --release -p samite --example threads` and
//! `samite run -n 2 target/release/examples/threads`.

use samite::Match;
use samite::pgas::{Pgas, Sum};
use std::error::Error;

const THREADS: u64 = 4;
const CELLS: u64 = 1000; // of each thread

/// Fills the next unit's cells, and adds up those that the previous unit has filled here.
pub fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let fabric = samite::init()?;
    let members = fabric.job()?;
    let pgas = Pgas::new(&fabric)?;
    let world = pgas.world();
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let cells = world.allocate::<u64>(THREADS * CELLS)?;

    // Threads borrow the fabric and the segment: any thread may use them, and a put takes no lock.
    let work = |thread: u64| -> Result<u64, Box<dyn Error + Send + Sync>> {
        let mine = thread * CELLS..(thread + 1) * CELLS;
        for cell in mine.clone() {
            cells.put_value(next, cell, cell)?;
        }
        // A message that is sent after a put arrives after it. The tag is the thread's number.
        fabric.send(members[next as usize], thread, b"filled")?;
        fabric.recv(Match::from(members[before as usize], thread), &mut [0; 6])?;
        mine.map(|cell| Ok(cells.get_value(me, cell)?)).sum()
    };
    let sums: Result<Vec<u64>, _> = std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || work(thread));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        ends.collect()
    });

    // Only one thread at a time may call collectives of a team: here, the main thread.
    let (mine, mut all) = (sums?.iter().sum::<u64>(), [0]);
    world.all_reduce(&[mine], &mut all, Sum)?;
    println!(
        "unit {me}: {THREADS} threads found {mine} here; all units together {}",
        all[0]
    );
    Ok(cells.free()?)
}
