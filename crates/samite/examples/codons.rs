//! A distributed map: the units count the triplets of a sequence in one hash table that they share.
//! Any unit reads and changes any entry at any time, without the help of the unit that stores it.
//!
//! ```sh
//! cargo build --release -p samite --example codons
//! samite run -n 3 target/release/examples/codons
//! ```

use samite::pgas::Pgas;
use samite::pgas::array::Map;
use std::error::Error;

const SEQUENCE: &[u8] = b"ATGGCCATTGTAATGGGCCGCTGAAAGGGTGCCCGATAGATGGCCATTGTA";

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    let pgas = Pgas::new(&fabric)?;
    let world = pgas.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);

    // Keys and values are plain data of any size. Each unit stores up to 64 entries.
    let counts = Map::<[u8; 3], u64>::new(world, 64)?;
    for triplet in SEQUENCE.as_chunks().0.iter().skip(rank).step_by(size) {
        // Reads and replaces the entry; no other unit changes it in between.
        counts.update(*triplet, |count| count.unwrap_or(0) + 1)?;
    }
    let different = counts.total_len()?; // collective, so all units have counted when it returns

    if rank == 0 {
        println!("{size} units found {different} different triplets");
        for triplet in [b"ATG", b"GCC", b"TTT"] {
            let name = String::from_utf8_lossy(triplet);
            println!("{name}: {}", counts.get(triplet)?.unwrap_or(0));
        }
    }
    let mut own = 0;
    counts.for_each_local(|_, count| own += count)?;
    println!("unit {rank} stores the counts of {own} triplets");
    Ok(counts.free()?)
}
