//! Words in tables and rings, read by the process that wrote them into its own arena: nobody else
//! is there, so a seed repeats.

use samite_fabric::{Config, Fabric, Identity, Match, PeerId, SegmentKey};
use samite_mem::ring::{Body, CELLS, Consumer, RING_BYTES, SharedRing};
use samite_mem::sync::Ordering;
use samite_mem::{Arena, LINE};
use samite_testkit::fuzz::{self, Rng, word};
use samite_testkit::hostile::{Reach, Scribbler};
use std::time::Duration;

/// Everything that reads the tables, and what is in them. How it ends is not asked: only that it
/// does, in order.
fn read(fabric: &Fabric, key: SegmentKey, random: &mut Rng) {
    let me = fabric.me();
    fabric.progress();
    let _ = fabric.peers();
    let _ = fabric.isend(me, 1, vec![7; random.usize(0..20_000)]);
    let _ = fabric.irecv(Match::any(1), vec![0; 20_000]);
    for segment in 0..4 {
        let _ = fabric.look_up(me, segment);
        let _ = fabric.look_up(PeerId(random.u32(..600)), segment);
    }
    if let Ok(remote) = fabric.attach(key) {
        let _ = remote.put(0, &[1; 100]);
        let _ = remote.get(0, &mut [0; 100]);
        let _ = remote.fetch_add(8, 1);
        let _ = remote.is_offered();
    }
    let _ = fabric.borrow(key);
    if let Ok(phased) = fabric.allocate_phased(random.u32(10..40), 4096) {
        let _ = phased.bytes();
        phased.shut();
        let _ = phased.own();
    }
    let _ = fabric.recv_vec(Match::any(1));
    let _ = fabric.is_oversubscribed();
    let _ = fabric.shared_bytes();
}

#[test]
fn words_in_tables_are_no_more_than_errors() {
    let _alone = crate::alone();
    let name = "tables::words_in_tables_are_no_more_than_errors";
    fuzz::rounds(name, 40, |seed, random| {
        let config = Config {
            budget: Some(16 << 20),
            deadline: Duration::from_micros(200),
            ..Config::default()
        };
        let fabric = Fabric::alone(Identity::by_hand("test"), config).expect("a domain of one");
        let mut segment = fabric.allocate(4096).ok();
        let registered = fabric.register(vec![0u8; 4096]).ok();
        let key = segment.as_ref().map(|segment| segment.key());
        let key = key.expect("a segment");
        read(&fabric, key, random);
        let mut scribbler = Scribbler::new(seed, &fabric, 2, Reach::All);
        for turn in 0..30 {
            scribbler.scribble(random.u32(1..20));
            read(&fabric, key, random);
            if turn == 15 {
                segment = None;
            }
        }
        drop((segment, registered));
    });
}

/// A consumer of a ring that holds anything: a frame within bounds, or a typed error.
#[test]
fn no_ring_breaks_its_consumer() {
    let _alone = crate::alone();
    let arena = Arena::create(RING_BYTES + (64 << 10)).expect("an arena");
    let bytes = arena.bytes(0, RING_BYTES).expect("a ring");
    fuzz::rounds(
        "tables::no_ring_breaks_its_consumer",
        20_000,
        |_, random| {
            let ring = SharedRing::new(bytes.clone()).expect("it is aligned");
            let mut consumer = Consumer::new(ring);
            // Where its bulk area is said to be.
            bytes.u64(128).store(RING_BYTES, Ordering::Relaxed);
            let bulk = if random.bool() {
                16 << 10
            } else {
                word(random)
            };
            bytes.u64(136).store(bulk, Ordering::Relaxed);
            for position in 0..8 {
                let cell = 256 + position % CELLS * LINE;
                for at in 1..8 {
                    bytes
                        .u64(cell + at * 8)
                        .store(word(random), Ordering::Relaxed);
                }
                let shape = random.u64(..7) | random.u64(..2) << 7;
                let len = match random.u32(..3) {
                    0 => random.u64(..0x1_0000),
                    1 => random.u64(..300),
                    _ => shape.wrapping_mul(50) % 272,
                };
                let header =
                    (position | 1 << 31) << 32 | random.u64(..20) << 24 | shape << 16 | len;
                bytes.u64(cell).store(header, Ordering::Relaxed);
            }
            for _ in 0..4 {
                if consumer.next_has_body() == Some(true) {
                    match consumer.medium.attach_bulk(&arena, arena.len()) {
                        Ok(bytes) => consumer.set_bulk(bytes, bytes),
                        Err(_) => return,
                    }
                }
                let area = consumer.bulk_bytes();
                let Ok(Some((frame, medium))) = consumer.peek_with_medium() else {
                    return;
                };
                assert!(frame.inline.len() <= samite_mem::ring::INLINE_BYTES);
                if let Some((start, len)) = frame.bulk {
                    assert!(
                        start.checked_add(len).is_some_and(|end| end <= area),
                        "{start} {len} of {area}"
                    );
                    let body = medium.body(start, len);
                    assert_eq!(body.to_vec().len() as u64, len);
                    assert!(matches!(body, Body::Shared { .. }) || len == 0);
                }
                consumer.advance();
            }
        },
    );
}
