//! What a put, a get and an update of 8 bytes cost on mapped memory, beside a store to private
//! memory; and how much more two threads do at once than one.

use samite_fabric::{Config, Fabric, Identity};
use samite_pgas::Pgas;
use std::hint::black_box;
use std::sync::{Barrier, Mutex};
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
    // Each thread has lines of its own.
    let place = |thread: u64, at: u64| 512 * thread + at % 256;
    together("put", |thread, at| {
        segment.put(0, place(thread, at), &[at]).expect("put")
    });
    together("pgas.put", |thread, at| {
        let pointer = segment.pointer(0, place(thread, at)).expect("there");
        pgas.put(pointer, &[at]).expect("put")
    });
    together("fetch_add", |thread, at| {
        black_box(segment.fetch_add(0, place(thread, at), 1).expect("add"));
    });
    Ok(())
}

/// Prints how many times more calls two threads make in the time of one, in the best round of each.
fn together(name: &str, call: impl Fn(u64, u64) + Sync) {
    const CALLS: u64 = 100_000;
    let best = |threads: u64| {
        let (begin, rounds) = (Barrier::new(threads as usize), Mutex::new([0.0f64; 200]));
        let thread = &|thread: u64| {
            for round in 0..200 {
                begin.wait();
                let start = Instant::now();
                (0..CALLS).for_each(|at| call(thread, black_box(at)));
                let took = start.elapsed().as_secs_f64();
                let slowest = &mut rounds.lock().expect("no panic")[round];
                *slowest = slowest.max(took);
            }
        };
        std::thread::scope(|scope| {
            (0..threads).for_each(|index| drop(scope.spawn(move || thread(index))));
        });
        let rounds = rounds.into_inner().expect("no panic");
        rounds.into_iter().fold(f64::MAX, f64::min)
    };
    println!(
        "{name:10} {:6.2} x with two threads",
        2.0 * best(1) / best(2)
    );
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
