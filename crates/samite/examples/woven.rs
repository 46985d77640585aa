//! Two units, one memory: one allocates 4 KiB, and the other writes into them.
//!
//! ```sh
//! cargo build --release -p samite --example woven
//! samite run -n 2 target/release/examples/woven
//! ```

use samite::{Match, SegmentKey};

pub(crate) fn main() -> samite::Result<()> {
    let fabric = samite::init()?; // joins the job that started this process
    let units = fabric.job()?; // waits until all of its units are there
    let mut bytes = [0; 24];
    if fabric.me() == units[0] {
        let segment = fabric.allocate(4096)?; // shared memory, zeroed
        fabric.send(units[1], 1, &segment.key().to_bytes())?;
        fabric.await_signal(units[1], 2)?;
        segment.bytes().read(0, &mut bytes[..5]);
        println!("{}", String::from_utf8_lossy(&bytes[..5]));
    } else {
        fabric.recv(Match::from(units[0], 1), &mut bytes)?;
        fabric
            .attach(SegmentKey::from_bytes(&bytes))?
            .put(0, b"woven")?;
        fabric.signal(units[0], 2)?;
    }
    Ok(())
}
