//! Half round trips through two rings between two pinned threads, by size: the floor under the
//! fabric's latency, for tuning. `cargo run --release -p samite-mem --example ring_latency`
use samite_mem::ring::{
    Body, Consumer, INLINE_BYTES, Producer, RING_BYTES, SharedRing, bulk_bytes,
};
use samite_mem::{Arena, Span};
use std::time::Instant;

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn pair(arena: &Arena, at: u64) -> (Producer<SharedRing>, Consumer<SharedRing>) {
    let ring = || SharedRing::new(arena.bytes(at, RING_BYTES).unwrap()).unwrap();
    let span = Span {
        offset: at + (1 << 20),
        bytes: bulk_bytes(64 << 10),
    };
    let (mut producer, mut consumer) = (Producer::new(ring()), Consumer::new(ring()));
    producer
        .medium
        .publish_bulk(span, arena.span(span).unwrap());
    producer.set_bulk_bytes(span.bytes);
    let bytes = consumer.medium.attach_bulk(arena, span.bytes).unwrap();
    consumer.set_bulk(bytes, bytes);
    (producer, consumer)
}

fn send(producer: &mut Producer<SharedRing>, bytes: &[u8]) {
    if bytes.len() <= INLINE_BYTES {
        while producer.push(1, 7, bytes, 0).is_err() {}
    } else {
        let len = bytes.len() as u64;
        let at = loop {
            if let Ok(at) = producer.reserve_bulk(0, len, 0) {
                break at;
            }
        };
        producer.medium.write_body(at, &Body::Slice(bytes));
        producer.push_bulk(1, 7, &[], at, len);
        if let Some(next) = producer.next_bulk(len) {
            producer.medium.prefetch_next(next, len);
        }
    }
    producer.warm(false);
}

fn receive(consumer: &mut Consumer<SharedRing>, into: &mut [u8]) {
    loop {
        if !consumer.ready() {
            std::hint::spin_loop();
            continue;
        }
        let Some((frame, medium)) = consumer.peek_with_medium().unwrap() else {
            continue;
        };
        match frame.bulk {
            None => into.copy_from_slice(frame.inline),
            Some((at, len)) => {
                medium.body(at, len).copy_to(0, into);
            }
        }
        consumer.advance();
        return;
    }
}

fn main() {
    let arena = Arena::create(8 << 20).unwrap();
    arena
        .populate(Span {
            offset: 0,
            bytes: 8 << 20,
        })
        .unwrap();
    let (mut there, mut there_end) = pair(&arena, 0);
    let (mut back, mut back_end) = pair(&arena, 4 << 20);
    const ROUNDS: u32 = 3_000;
    const REPEATS: u32 = 15;
    let sizes = [
        8usize, 48, 64, 104, 160, 256, 272, 512, 1024, 2048, 4096, 8192, 16384,
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for size in sizes {
                let (out, mut into) = (vec![1; size], vec![0; size]);
                for _ in 0..ROUNDS * REPEATS {
                    receive(&mut there_end, &mut into);
                    send(&mut back, &out);
                }
            }
        });
        pin(0);
        for size in sizes {
            let (out, mut into) = (vec![1; size], vec![0; size]);
            // The best of several: other work on the machine only ever adds.
            let best = (0..REPEATS).map(|_| {
                let start = Instant::now();
                for _ in 0..ROUNDS {
                    send(&mut there, &out);
                    receive(&mut back_end, &mut into);
                }
                start.elapsed().as_nanos() as f64 / ROUNDS as f64 / 2.0
            });
            println!("{size:6} B  {:7.1} ns", best.fold(f64::INFINITY, f64::min));
        }
    });
}
