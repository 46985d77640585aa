//! The first program: every unit finds the others, prints its number, and ends without waiting for
//! the others to do the same. `cargo build --release -p samite --example hello` and
//! `samite run -n 3 target/release/examples/hello`.

pub(crate) fn main() -> samite::Result<()> {
    let fabric = samite::init()?; // joins the job that started this process
    let units = fabric.job()?; // waits until all of its units have joined
    let me = fabric.identity().unit;
    println!("unit {me} of {}", units.len());
    Ok(())
}
