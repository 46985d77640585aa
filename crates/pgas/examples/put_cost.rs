//! What a put, a get and an update of 8 bytes cost on mapped memory, beside a store to private memory.

use samite_fabric::{Config, Fabric, Identity};
use samite_pgas::Pgas;
use std::hint::black_box;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::alone(Identity::by_hand("put_cost"), Config::default())?;
    let pgas = Pgas::new(&fabric)?;
    let segment = pgas.world().allocate::<u64>(1024)?;
    let pointer = segment.pointer(0, 5)?;
    let mut private = vec![0u64; 1024];
    best("store", |at| {
        private[(at % 1024) as usize] = at;
        black_box(&mut private);
    });
    best("put", |at| segment.put(0, at % 1024, &[at]).expect("put"));
    best("put_value", |at| {
        segment.put_value(0, at % 1024, at).expect("put")
    });
    best("get_value", |at| {
        black_box(segment.get_value(0, at % 1024).expect("get"));
    });
    best("put_nb", |at| {
        drop(black_box(segment.put_nb(0, at % 1024, &[at]).expect("put")))
    });
    best("pgas.put", |at| pgas.put(pointer, &[at]).expect("put"));
    best("fetch_add", |at| {
        black_box(segment.fetch_add(0, at % 1024, 1).expect("add"));
    });
    Ok(())
}

/// Prints the best of twenty rounds, in nanoseconds per call.
fn best(name: &str, mut call: impl FnMut(u64)) {
    const CALLS: u64 = 100_000;
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|at| call(black_box(at)));
        start.elapsed().as_secs_f64() * 1e9 / CALLS as f64
    };
    let times = (0..20).map(round);
    println!("{name:10} {:6.2} ns", times.fold(f64::MAX, f64::min));
}
