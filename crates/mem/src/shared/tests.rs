//! Overlapping ranges, and numbers at the limits.

use super::*;
use crate::Arena;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Any number of empty blocks takes no time, and an index whose offset overflows is out of bounds.
#[test]
fn numbers_at_the_edge_of_64_bits() {
    let bytes = Arena::create(4096).unwrap().bytes(0, 256).unwrap();
    let none = Blocks {
        first: 0,
        count: u64::MAX,
        block: 0,
        stride: 1,
    };
    assert!(bytes.write_blocks(none, &[]) && bytes.read_blocks(none, &mut []));
    for index in [32, 1 << 61, u64::MAX] {
        let outside = || bytes.read_f64s(index, &mut [0.0]);
        assert!(catch_unwind(AssertUnwindSafe(outside)).is_err(), "{index}");
        let outside = || bytes.write_f64s(index, &[0.0]);
        assert!(catch_unwind(AssertUnwindSafe(outside)).is_err(), "{index}");
    }
}

/// A peer claims that its body lies where an exclusive slice of the receiver is: the bytes are
/// moved, as between any two overlapping ranges.
#[test]
fn a_slice_of_the_same_memory_may_be_copied_to() {
    let arena = Arena::create(4096).unwrap();
    let bytes = arena.bytes(0, 256).unwrap();
    let fresh = || (0..64).for_each(|at| bytes.u32(at * 4).store(at as u32, Relaxed));
    let word = |at: u64| bytes.u32(at * 4).load(Relaxed);
    let all = Blocks {
        first: 16,
        count: 3,
        block: 32,
        stride: 32,
    };
    // SAFETY: in the arena, which outlives the slice; nothing else is accessed while a slice lives.
    let slice =
        |at: usize, len| unsafe { std::slice::from_raw_parts_mut(bytes.pointer().add(at), len) };
    fresh();
    assert!(bytes.try_read(16, slice(0, 96)));
    assert_eq!((word(0), word(23), word(24)), (4, 27, 24));
    fresh();
    assert!(bytes.try_write(16, slice(0, 96)));
    assert_eq!((word(3), word(4), word(27)), (3, 0, 23));
    fresh();
    assert!(bytes.read_blocks(all, slice(0, 96)));
    assert_eq!((word(0), word(23), word(24)), (4, 27, 24));
}

/// Words have numbers from any one on, also from one so large that their origin wraps around.
#[test]
fn words_are_numbered_from_anywhere() {
    let arena = Arena::create(4096).unwrap();
    let bytes = arena.bytes(8, 64).unwrap();
    for first in [0, 1, 1 << 40, u64::MAX - 3] {
        let words = bytes.words(first, 4).unwrap();
        for at in 0..4 {
            let word = words.get(first.wrapping_add(at)).unwrap();
            word.store(first ^ at, Relaxed);
            assert_eq!(bytes.u64(8 * at).load(Relaxed), first ^ at);
        }
        assert!(words.get(first.wrapping_sub(1)).is_none());
        assert!(words.get(first.wrapping_add(4)).is_none());
    }
    assert!(bytes.words(0, 9).is_none(), "the range has 8 words");
    assert!(arena.bytes(4, 64).unwrap().words(0, 1).is_none());
}
