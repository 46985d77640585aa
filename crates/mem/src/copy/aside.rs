//! A copy that bypasses the caches.
//!
//! A caller that passes a large block on does not read it again. Through the caches, such a copy
//! reads each line of the target before it overwrites it, and evicts the working set of the
//! program. Here, whole lines are stored past the caches.
//!
//! | 16 MiB | memory read | memory written | lines evicted from the caches |
//! |---|---|---|---|
//! | through the caches | source and target | target | all that arrive: 32 MiB |
//! | aside | source | target | 16 MiB |
//!
//! Below [`LARGE`], the copy goes through the caches, where the next reader still finds it.
//!
//! # Invariants
//! N1 Source and target are two slices of one length, and one of them is borrowed for writing: they
//!    do not overlap.
//! N2 The target of stores past the caches begins at a line, and both have whole blocks of pages
//!    from there on.

/// At this size and above, a copy does not stay in the second-level cache of current processors
/// anyway.
pub const LARGE: usize = 2 << 20;

/// Copies all of `from` into `to`.
///
/// # Panics
/// The lengths differ.
pub fn copy_aside(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "two blocks of one length");
    if from.len() < LARGE {
        return to.copy_from_slice(from);
    }
    lines(to, from);
}

#[cfg(not(target_arch = "x86_64"))]
fn lines(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
fn lines(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    /// Number of concurrent streams of lines, a page apart: more memory banks work than with one.
    const PAGES: usize = 4;
    const PAGE: usize = 4096;

    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let (to_head, to) = to.split_at_mut(head);
    let (from_head, from) = from.split_at(head);
    to_head.copy_from_slice(from_head);
    let body = to.len() / (PAGES * PAGE) * (PAGES * PAGE);
    let (to, to_tail) = to.split_at_mut(body);
    let (from, from_tail) = from.split_at(body);
    for (to, from) in to
        .chunks_exact_mut(PAGES * PAGE)
        .zip(from.chunks_exact(PAGES * PAGE))
    {
        for line in (0..PAGE).step_by(LINE) {
            for page in 0..PAGES {
                let at = page * PAGE + line;
                for part in (at..at + LINE).step_by(size_of::<__m128i>()) {
                    // SAFETY: N2: `part + 16` is at most the length of both chunks, and the target
                    // is aligned to a line, so to 16 bytes; they do not overlap (N1).
                    unsafe {
                        let bytes = _mm_loadu_si128(from.as_ptr().add(part).cast());
                        _mm_stream_si128(to.as_mut_ptr().add(part).cast(), bytes);
                    }
                }
            }
        }
    }
    // SAFETY: part of every x86-64 processor, and it accesses no memory (N1 holds after it, too).
    // Stores past the caches are not ordered with later ones: a thread that is notified of the copy
    // afterwards must see it.
    unsafe { _mm_sfence() };
    to_tail.copy_from_slice(from_tail);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_none_beside_them() {
        let bytes =
            |count: usize| -> Vec<u8> { (0..count).map(|at| (at * 31 % 251) as u8).collect() };
        for (first, length) in [
            (0, LARGE),
            (1, LARGE + 1),
            (63, LARGE + 4095),
            (16, LARGE + 3 * 4096 + 17),
            (5, LARGE - 1),
            (3, 0),
        ] {
            for shift in [0, 1, 8] {
                let from = bytes(length + shift);
                let mut to = vec![0xEE; first + length + 70];
                copy_aside(&mut to[first..first + length], &from[shift..]);
                assert!(
                    to[first..first + length] == from[shift..],
                    "{first} {length} {shift}"
                );
                let beside = to[..first].iter().chain(&to[first + length..]);
                assert!(beside.into_iter().all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    #[should_panic(expected = "one length")]
    fn lengths_that_differ_are_refused() {
        copy_aside(&mut [0; 3], &[0; 4]);
    }
}
