//! Prints what the kernels of a capsule do on each engine that this processor has: a line with
//! engine, call and outcome for each. A test compares the lines of two processors.
//!
//! ```sh
//! cargo run -p samite-mobile --example answers -- kernels.capsule
//! ```
#![forbid(unsafe_code)]

mod answers;

use samite_mobile::Capsule;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(file) = std::env::args_os().nth(1) else {
        return Err("name a capsule: answers FILE".into());
    };
    let capsule = Capsule::decode(&std::fs::read(file)?)?;
    let of_engines = answers::answers(&capsule);
    for answer in of_engines.iter().chain(&answers::called(&capsule)) {
        println!("{answer}");
    }
    Ok(())
}
