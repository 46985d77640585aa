//! The ring against the simplest thing that is right: a queue.

#![cfg(not(loom))]

use proptest::prelude::*;
use samite_mem::ring::{
    Body, CELLS, Consumer, INLINE_BYTES, Medium, Producer, RING_BYTES, SharedRing,
};
use samite_mem::{Arena, Span};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

const BULK: Span = Span {
    offset: 1 << 20,
    bytes: 16 << 10,
};
const BODY_MAX: usize = BULK.bytes as usize / 4;
/// The bulk reference takes 16 bytes of the cells.
const INLINE_MAX: usize = INLINE_BYTES - 16;

/// Both ends, each with a mapping of its own.
fn ends() -> (Producer<SharedRing>, Consumer<SharedRing>) {
    let ours = Arena::create(2 << 20).unwrap();
    let theirs = Arena::attach(ours.fd().try_clone_to_owned().unwrap()).unwrap();
    let ring = |arena: &Arena| SharedRing::new(arena.bytes(0, RING_BYTES).unwrap()).unwrap();
    let mut producer = Producer::new(ring(&ours));
    producer.medium.publish_bulk(BULK, ours.span(BULK).unwrap());
    producer.set_bulk_bytes(BULK.bytes);
    let mut consumer = Consumer::new(ring(&theirs));
    assert_eq!(
        consumer.medium.attach_bulk(&theirs, BULK.bytes),
        Ok(BULK.bytes)
    );
    consumer.set_bulk(BULK.bytes, BULK.bytes);
    (producer, consumer)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    kind: u8,
    arg: u64,
    inline: Vec<u8>,
    body: Vec<u8>,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len as u64)
        .map(|at| (mixed.wrapping_add(at * 7) >> 3) as u8)
        .collect()
}

fn message() -> impl Strategy<Value = Message> {
    let edge = prop_oneof![
        Just(0),
        Just(1),
        Just(47),
        Just(48),
        Just(49),
        Just(104),
        Just(105)
    ];
    let inline = prop_oneof![edge, 0..=INLINE_MAX];
    let body = prop_oneof![3 => Just(0), 1 => 1..200usize, 1 => (BODY_MAX - 70)..=BODY_MAX];
    (any::<u8>(), any::<u64>(), inline, body).prop_map(|(kind, arg, inline, body)| Message {
        kind,
        arg,
        inline: bytes(arg, inline),
        body: bytes(!arg, body),
    })
}

/// Publishes a message; `false` if there is no room.
fn push(producer: &mut Producer<SharedRing>, message: &Message, reserve: u64) -> bool {
    let Message {
        kind,
        arg,
        inline,
        body,
    } = message;
    if body.is_empty() {
        return producer.push(*kind, *arg, inline, reserve).is_ok();
    }
    let len = body.len() as u64;
    let Ok(start) = producer.reserve_bulk(inline.len(), len, reserve) else {
        return false;
    };
    producer.medium.write_body(start, &Body::Slice(body));
    producer.push_bulk(*kind, *arg, inline, start, len);
    true
}

fn pop(consumer: &mut Consumer<SharedRing>) -> Option<Message> {
    let message = {
        let (frame, medium) = consumer.peek_with_medium().unwrap()?;
        let body = frame
            .bulk
            .map(|(offset, len)| medium.body(offset, len).to_vec());
        let (kind, arg, inline) = (frame.kind, frame.arg, frame.inline.to_vec());
        Message {
            kind,
            arg,
            inline,
            body: body.unwrap_or_default(),
        }
    };
    consumer.advance();
    Some(message)
}

#[derive(Clone, Debug)]
enum Op {
    Push(Message),
    Pop,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![message().prop_map(Op::Push), Just(Op::Pop)];
    proptest::collection::vec(op, 1..400)
}

proptest! {
    /// Whatever is pushed and popped in whatever order: the ring is a queue, an empty one has room
    /// for anything, and what it refuses it does not change.
    #[test]
    fn is_a_queue(ops in ops()) {
        let (mut producer, mut consumer) = ends();
        let mut oracle = VecDeque::new();
        for op in ops {
            match op {
                Op::Push(message) => {
                    let taken = push(&mut producer, &message, 0);
                    prop_assert!(taken || !oracle.is_empty(), "an empty ring refused {:?}", message);
                    if taken {
                        oracle.push_back(message);
                    }
                }
                Op::Pop => prop_assert_eq!(pop(&mut consumer), oracle.pop_front()),
            }
        }
        while let Some(message) = oracle.pop_front() {
            prop_assert_eq!(pop(&mut consumer), Some(message));
        }
        prop_assert_eq!(pop(&mut consumer), None);
    }

    /// Requests fill the ring up to the reserve; then replies still find room, as many as it says.
    #[test]
    fn the_reserve_is_kept(inline in 0usize..=48, reserve in 1u64..CELLS) {
        let (mut producer, mut consumer) = ends();
        let small = Message { kind: 1, arg: 2, inline: bytes(3, inline), body: Vec::new() };
        let mut requests = 0;
        while push(&mut producer, &small, reserve) {
            requests += 1;
        }
        prop_assert_eq!(requests, CELLS - reserve);
        for _ in 0..reserve {
            prop_assert!(push(&mut producer, &small, 0));
        }
        prop_assert!(!push(&mut producer, &small, 0));
        for _ in 0..CELLS {
            let popped = pop(&mut consumer);
            prop_assert_eq!(popped.as_ref(), Some(&small));
        }
        prop_assert_eq!(pop(&mut consumer), None);
    }

    /// Any header that another process may write is a frame or an error; never a panic.
    #[test]
    fn nonsense_is_an_error(header in any::<u32>(), words in proptest::collection::vec(any::<u64>(), 7)) {
        let (mut producer, mut consumer) = ends();
        // The sequence of the first frame, with everything else replaced.
        producer.push(0, 0, &[], 0).unwrap();
        let first = producer.medium.header(0).load(Ordering::Relaxed);
        for (index, word) in words.iter().enumerate() {
            producer.medium.write(0, 8 + index * 8, &word.to_le_bytes());
        }
        let nonsense = first & !0xffff_ffff | header as u64;
        producer.medium.header(0).store(nonsense, Ordering::Release);
        if let Ok(frame) = consumer.peek_with_medium() {
            let (frame, medium) = frame.expect("this header is a frame's");
            if let Some((offset, len)) = frame.bulk {
                prop_assert_eq!(medium.body(offset, len).to_vec().len() as u64, len);
            }
            consumer.advance();
        }
        // And whatever the consumer says of its progress, the producer does not panic.
        producer.medium.head().store(words[0], Ordering::Release);
        producer.medium.bulk_head().store(words[1], Ordering::Release);
        for round in 0..600 {
            let body = if round % 2 == 0 { BODY_MAX } else { 0 };
            push(&mut producer, &Message { kind: 1, arg: 2, inline: Vec::new(), body: bytes(1, body) }, 0);
        }
    }
}

/// Two threads, many laps, bodies and none.
#[test]
fn two_threads_see_a_queue() {
    const COUNT: u64 = 60_000;
    let make = |number: u64| {
        let body = if number.is_multiple_of(5) {
            (number * 37) as usize % BODY_MAX
        } else {
            0
        };
        let inline = (number * 11) as usize % INLINE_MAX;
        Message {
            kind: number as u8,
            arg: number,
            inline: bytes(number, inline),
            body: bytes(!number, body),
        }
    };
    let (mut producer, mut consumer) = ends();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..COUNT {
                let message = make(number);
                while !push(&mut producer, &message, 0) {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..COUNT {
            let message = loop {
                match pop(&mut consumer) {
                    Some(message) => break message,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(message, make(number));
        }
    });
}
