//! Memory regions of Lamellar, whose operations are all `unsafe`: the library does not see who else
//! uses the bytes.
//!
//! R1: one rank at a time works on a region, and the ranks meet in a barrier before another does.
//! R2: on the shared-memory backend an operation has ended when the call returns, "unmanaged" ones,
//! too.

use lamellar::memregion::prelude::*;

/// A region of every rank, as bytes and as words, and private memory to copy from and to.
pub struct Regions {
    bytes: SharedMemoryRegion<u8>,
    words: SharedMemoryRegion<u64>,
    origin: OneSidedMemoryRegion<u8>,
    rank: usize,
}

impl Regions {
    /// Collective.
    pub fn new(world: &LamellarWorld, bytes: usize) -> Regions {
        Regions {
            bytes: world.alloc_shared_mem_region(bytes).block(),
            words: world.alloc_shared_mem_region(1).block(),
            origin: world.alloc_one_sided_mem_region(bytes),
            rank: world.my_pe(),
        }
    }

    /// This rank's part.
    pub fn own(&self, read: impl FnOnce(&mut [u8])) {
        // SAFETY: R1.
        read(unsafe { self.bytes.as_mut_slice() });
    }

    pub fn origin(&self, read: impl FnOnce(&mut [u8])) {
        // SAFETY: nobody else knows the region.
        read(unsafe { self.origin.as_mut_slice() });
    }

    /// `n` times the same `bytes` to the part of `to`.
    pub fn put(&self, to: usize, bytes: usize, n: u64) {
        let from = self.origin.sub_region(0..bytes);
        for _ in 0..n {
            // SAFETY: R1, R2.
            unsafe { self.bytes.put_buffer_unmanaged(to, 0, &from) };
        }
    }

    /// `n` times the same `bytes` of the part of `from`.
    pub fn get(&self, from: usize, bytes: usize, n: u64) {
        for _ in 0..n {
            let into = self.origin.sub_region(0..bytes);
            // SAFETY: R1, R2.
            unsafe {
                let into = LamellarBuffer::from_one_sided_memory_region(into);
                self.bytes.get_into_buffer_unmanaged(from, 0, into);
            }
        }
    }

    /// Blocks of `bytes`, which lie together, to every second block.
    pub fn put_strided(&self, to: usize, blocks: usize, bytes: usize, n: u64) {
        let parts: Vec<_> = (0..blocks)
            .map(|block| (2 * block * bytes, block * bytes))
            .map(|(to, from)| (to, self.origin.sub_region(from..from + bytes)))
            .collect();
        for _ in 0..n {
            for (at, from) in &parts {
                // SAFETY: R1, R2.
                unsafe { self.bytes.put_buffer_unmanaged(to, *at, from) };
            }
        }
    }

    pub fn put_words(&self, to: usize, n: u64) {
        for value in 0..n {
            // SAFETY: R1.
            unsafe { self.words.put_blocking(to, 0, value) };
        }
    }

    pub fn put_words_nb(&self, to: usize, n: u64) {
        for value in 0..n {
            // SAFETY: R1.
            unsafe { self.words.put(to, 0, value) }.block();
        }
    }

    pub fn get_words(&self, from: usize, n: u64) -> u64 {
        // SAFETY: R1.
        (0..n).fold(0, |sum, _| sum ^ unsafe { self.words.get(from, 0) }.block())
    }

    /// This rank's word.
    pub fn word(&self) -> u64 {
        // SAFETY: R1.
        unsafe { self.words.get(self.rank, 0) }.block()
    }
}
