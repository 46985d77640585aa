//! The words of a range, under numbers that begin anywhere.
//!
//! # Invariants
//! N1 `origin + 8 * first` is the beginning of a range of `count` words that are aligned to 8
//!    bytes and live as long as the range they are from (B1). `origin` itself may lie outside of
//!    any memory: it is computed, never accessed.

use super::SharedBytes;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

/// The words of a [`SharedBytes`]: those of 64 bits, numbered from any number on.
///
/// In a chain of dependent loads, each of which gives the number of the next, the load is all that
/// one waits for: the bounds are checked beside it, and nothing is subtracted from the number.
#[derive(Clone, Copy, Debug)]
pub struct SharedWords<'b> {
    origin: *mut u64,
    first: u64,
    count: u64,
    from: PhantomData<&'b SharedBytes>,
}

impl SharedBytes {
    /// Returns `count` words from the beginning of this range on, the first of which has the number
    /// `first`; `None` if the range has fewer, or is not aligned to 8 bytes.
    #[inline]
    pub fn words(&self, first: u64, count: u64) -> Option<SharedWords<'_>> {
        let fits = count <= self.len as u64 / 8 && self.pointer.addr().is_multiple_of(8);
        fits.then(|| SharedWords {
            origin: self.pointer.cast::<u64>().wrapping_sub(first as usize),
            first,
            count,
            from: PhantomData,
        })
    }
}

impl<'b> SharedWords<'b> {
    /// Returns the word with this number as an atomic; `None` if it is not one of these.
    #[inline(always)]
    pub fn get(&self, number: u64) -> Option<&'b AtomicU64> {
        if number.wrapping_sub(self.first) >= self.count {
            return None;
        }
        let word = self.origin.wrapping_add(number as usize);
        // SAFETY: one of the words of N1, as was checked; shared only as an atomic (B2).
        Some(unsafe { AtomicU64::from_ptr(word) })
    }
}
