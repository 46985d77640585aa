//! A range of bytes that other processes can write.
//!
//! # Invariants
//! B1 `pointer..pointer+len` lies in `mapping`, which lives as long as this value (M1).
//! B2 No reference to plain bytes ever leaves this module; atomics are handed out by reference
//!    because that is how they are shared (M2).
//! B3 Nothing here assumes that a range does not overlap the slice that it is copied from or to: a
//!    lease hands out slices of an arena, and a peer may claim that its data lies in the same
//!    place.

mod words;

use crate::arena::{Keeps, Mapping};
use crate::lease::Lease;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
pub use words::SharedWords;

/// Bytes in an [`crate::Arena`]: copied in and out, or accessed as atomics.
///
/// Methods panic if a range is out of bounds, unless they say that they return `false` or `None`.
/// Ranges from another process are checked first
/// ([`SharedBytes::contains`]).
///
/// ```
/// use samite_mem::Arena;
/// use std::sync::atomic::Ordering;
/// let bytes = Arena::create(1 << 20).unwrap().bytes(4096, 1024).unwrap();
/// bytes.write(0, b"woven");
/// bytes.write_f64s(1, &[0.5, 1.5]); // from byte 8 on
/// bytes.u64(64).fetch_add(1, Ordering::Relaxed);
/// let mut half = [0.0];
/// bytes.read_f64s(1, &mut half);
/// assert_eq!(half, [0.5]);
/// ```
#[derive(Clone, Debug)]
pub struct SharedBytes {
    mapping: Arc<Mapping>,
    pointer: *mut u8,
    len: usize,
}

/// The origin of a range that is accessed under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The holder's name for the segment.
    pub segment: u64,
    /// Generation of the segment's entry.
    pub generation: u32,
    /// Offset of the range in the segment.
    pub offset: u64,
}

/// Blocks of bytes at a constant stride.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Offset of the first one.
    pub first: u64,
    /// Number of blocks.
    pub count: u64,
    /// Bytes of each block.
    pub block: u64,
    /// Bytes from the start of one block to the start of the next.
    pub stride: u64,
}

/// Copies blocks, with a stride on each side. Blocks of common sizes are copied by loads and stores
/// instead of a call of memcpy for each.
///
/// # Safety
/// All blocks on both sides may be accessed.
unsafe fn copy_blocks(blocks: Blocks, from: (*const u8, u64), to: (*mut u8, u64)) {
    macro_rules! copy {
        ($len:expr) => {
            for at in 0..blocks.count {
                let from = from.0.wrapping_add((at * from.1) as usize);
                let to = to.0.wrapping_add((at * to.1) as usize);
                // SAFETY: the caller's promise: both are in range (B1); they may overlap (B3).
                unsafe { std::ptr::copy(from, to, $len) }
            }
        };
    }
    match blocks.block {
        // Empty blocks: any number of them is copied at once.
        0 => {}
        8 => copy!(8),
        16 => copy!(16),
        32 => copy!(32),
        64 => copy!(64),
        128 => copy!(128),
        len => copy!(len as usize),
    }
}

/// Copies anything out that is not an aligned word of 8 bytes; 1, 2 and 4 aligned bytes by one
/// load. It is not inlined, so that the inlined test for 8 bytes stays short.
///
/// # Safety
/// `from` points to as many bytes of an arena as `into` has; they may overlap (B3).
#[inline(never)]
unsafe fn read_narrow(from: *const u8, into: &mut [u8]) {
    let (from, to) = (from.cast_mut(), into.as_mut_ptr());
    // SAFETY: the caller's promise; each atomic is aligned, as tested. ORDERING: Relaxed, as in
    // `try_read`.
    unsafe {
        match into.len() {
            4 if from.addr().is_multiple_of(4) => to
                .cast::<u32>()
                .write_unaligned(AtomicU32::from_ptr(from.cast()).load(Relaxed)),
            2 if from.addr().is_multiple_of(2) => to
                .cast::<u16>()
                .write_unaligned(AtomicU16::from_ptr(from.cast()).load(Relaxed)),
            1 => *to = AtomicU8::from_ptr(from).load(Relaxed),
            len => std::ptr::copy(from, to, len),
        }
    }
}

/// Copies in the other direction, like [`read_narrow`].
///
/// # Safety
/// `to` points to as many bytes of an arena as `from` has; they may overlap (B3).
#[inline(never)]
unsafe fn write_narrow(from: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise; each atomic is aligned, as tested. ORDERING: Relaxed, as in
    // `try_write`.
    unsafe {
        match *from {
            [a, b, c, d] if to.addr().is_multiple_of(4) => {
                let value = u32::from_ne_bytes([a, b, c, d]);
                AtomicU32::from_ptr(to.cast()).store(value, Relaxed);
            }
            [a, b] if to.addr().is_multiple_of(2) => {
                AtomicU16::from_ptr(to.cast()).store(u16::from_ne_bytes([a, b]), Relaxed);
            }
            [byte] => AtomicU8::from_ptr(to).store(byte, Relaxed),
            _ => std::ptr::copy(from.as_ptr(), to, from.len()),
        }
    }
}

// SAFETY: B1 and B2; the mapping itself may be used from every thread.
unsafe impl Send for SharedBytes {}
// SAFETY: B1 and B2: a reference allows only copies and atomics.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    pub(crate) fn new(mapping: Arc<Mapping>, pointer: *mut u8, len: usize) -> Self {
        SharedBytes {
            mapping,
            pointer,
            len,
        }
    }

    /// Adopts private memory of this process that others will access through the kernel or by
    /// messages. From now on it is read and written by copies, and freed with the last clone.
    pub fn adopt<T: bytemuck::Pod + Send>(elements: Vec<T>) -> SharedBytes {
        let mapping = Arc::new(Mapping::adopt(elements));
        let (pointer, len) = (mapping.base(), mapping.bytes());
        SharedBytes {
            mapping,
            pointer,
            len,
        }
    }

    /// Returns the same range, which from now on keeps `keeps` alive, as do its clones and parts
    /// (A4 of `arena`).
    pub(crate) fn keeping(self, keeps: Keeps) -> SharedBytes {
        let mapping = Mapping::part(self.mapping, self.pointer, self.len, keeps);
        SharedBytes {
            mapping: Arc::new(mapping),
            ..self
        }
    }

    /// Makes sure that this process never reuses the memory.
    pub(crate) fn abandon(&self) {
        self.mapping.abandon();
    }

    /// Returns the lease under which the range is accessed; `None` for private memory and blocks of
    /// this process.
    pub fn origin(&self) -> Option<Origin> {
        let lease = self.lease()?;
        Some(Origin {
            segment: lease.id(),
            generation: lease.generation(),
            offset: self.pointer as u64 - self.mapping.base() as u64,
        })
    }

    /// Returns the lease under which the range is accessed, if there is one.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.mapping.lease()
    }

    /// Returns a pointer to the first byte, for references that a lease guards.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Returns the file of the arena that has these bytes, and their offset in it, to map them a
    /// second time; `None` if they are private memory of this process, or in a fork. The second
    /// mapping must not outlive this value: the memory is reused after it.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let (file, base) = self.mapping.file()?;
        Some((file, (self.pointer.addr() - base.addr()) as u64))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns true if the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if `offset..offset + bytes` lies inside.
    pub fn contains(&self, offset: u64, bytes: u64) -> bool {
        offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.len as u64)
    }

    #[inline(always)]
    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(
            self.contains(offset, bytes),
            "{}",
            self.outside(offset, bytes as usize)
        );
        // SAFETY: B1 and the check above.
        unsafe { self.pointer.add(offset as usize) }
    }

    /// Returns a part of this range.
    pub fn slice(&self, offset: u64, bytes: u64) -> SharedBytes {
        let pointer = self.at(offset, bytes);
        SharedBytes {
            mapping: self.mapping.clone(),
            pointer,
            len: bytes as usize,
        }
    }

    /// Copies `into.len()` bytes out. If another process writes at the same time, the bytes are
    /// unspecified (M2).
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let read = self.try_read(offset, into);
        assert!(read, "{}", self.outside(offset, into.len()));
    }

    /// Copies `from` in.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) {
        let written = self.try_write(offset, from);
        assert!(written, "{}", self.outside(offset, from.len()));
    }

    #[cold]
    fn outside(&self, offset: u64, bytes: usize) -> String {
        let len = self.len;
        format!("bytes {offset}+{bytes} lie outside a range of {len} bytes")
    }

    /// Reads like [`SharedBytes::read`], but returns `false` and does nothing if the range is out
    /// of bounds. Aligned 1, 2, 4 and 8 bytes are read at once, so the result never mixes two
    /// values.
    #[inline(always)]
    pub fn try_read(&self, offset: u64, into: &mut [u8]) -> bool {
        if !self.contains(offset, into.len() as u64) {
            return false;
        }
        // SAFETY: in range (B1).
        unsafe { read_from(self.pointer.add(offset as usize), into) }
        true
    }

    /// Writes like [`SharedBytes::write`], but returns `false` and does nothing if the range is out
    /// of bounds.
    #[inline(always)]
    pub fn try_write(&self, offset: u64, from: &[u8]) -> bool {
        if !self.contains(offset, from.len() as u64) {
            return false;
        }
        // SAFETY: in range (B1).
        unsafe { write_to(self.pointer.add(offset as usize), from) }
        true
    }

    /// Copies `from`, which is contiguous, to blocks at a constant stride. Returns `false` and does
    /// nothing if a block is out of bounds or `from` has another length.
    pub fn write_blocks(&self, blocks: Blocks, from: &[u8]) -> bool {
        if !self.has(blocks, from.len()) {
            return false;
        }
        let to = self.pointer.wrapping_add(blocks.first as usize);
        // SAFETY: `has`: each block is in range (B1) and `from` is as long as all together.
        unsafe { copy_blocks(blocks, (from.as_ptr(), blocks.block), (to, blocks.stride)) };
        true
    }

    /// Copies blocks at a constant stride to the contiguous `into`; otherwise like
    /// [`SharedBytes::write_blocks`].
    pub fn read_blocks(&self, blocks: Blocks, into: &mut [u8]) -> bool {
        if !self.has(blocks, into.len()) {
            return false;
        }
        let from = self.pointer.wrapping_add(blocks.first as usize);
        // SAFETY: as in `write_blocks`, the other way round.
        unsafe {
            copy_blocks(
                blocks,
                (from, blocks.stride),
                (into.as_mut_ptr(), blocks.block),
            )
        };
        true
    }

    /// Returns true if every block lies inside, and `bytes` is their total length.
    fn has(&self, blocks: Blocks, bytes: usize) -> bool {
        let together = blocks.count.checked_mul(blocks.block);
        let last = blocks.count.saturating_sub(1).checked_mul(blocks.stride);
        let start = last.and_then(|last| last.checked_add(blocks.first));
        let inside = start.is_some_and(|start| self.contains(start, blocks.block));
        together == Some(bytes as u64) && (bytes == 0 || inside)
    }

    /// Copies between two shared ranges, which may overlap.
    pub fn copy_from(&self, offset: u64, from: &SharedBytes, from_offset: u64, bytes: u64) {
        let to = self.at(offset, bytes);
        let source = from.at(from_offset, bytes);
        // SAFETY: both in range (B1); `copy` allows overlap. A word is copied by value, without a
        // call of `memmove`.
        unsafe {
            match bytes {
                8 => to.cast::<[u8; 8]>().write(source.cast::<[u8; 8]>().read()),
                _ => std::ptr::copy(source, to, bytes as usize),
            }
        }
    }

    /// Sets all bytes.
    pub fn fill(&self, value: u8) {
        // SAFETY: the whole range (B1).
        unsafe { std::ptr::write_bytes(self.pointer, value, self.len) }
    }

    /// Copies `into.len()` doubles out, starting at the double with this index.
    #[inline]
    pub fn read_f64s(&self, index: u64, into: &mut [f64]) {
        let from = self.at(index.saturating_mul(8), into.len() as u64 * 8);
        // SAFETY: in range (B1); every bit pattern is a double, and the bytes are copied as bytes;
        // they may overlap (B3).
        unsafe { std::ptr::copy(from, into.as_mut_ptr().cast(), into.len() * 8) }
    }

    /// Copies doubles in, starting at the double with this index.
    #[inline]
    pub fn write_f64s(&self, index: u64, from: &[f64]) {
        let to = self.at(index.saturating_mul(8), from.len() as u64 * 8);
        // SAFETY: in range (B1); they may overlap (B3).
        unsafe { std::ptr::copy(from.as_ptr().cast(), to, from.len() * 8) }
    }

    /// Returns the 8 aligned bytes at `offset` as an atomic.
    #[inline(always)]
    pub fn u64(&self, offset: u64) -> &AtomicU64 {
        let pointer = self.at(offset, 8);
        assert!(
            pointer.addr().is_multiple_of(8),
            "a 64-bit atomic at a misaligned offset {offset}"
        );
        // SAFETY: in range, aligned, alive as long as `self` (B1); shared only as an atomic (B2).
        unsafe { AtomicU64::from_ptr(pointer.cast()) }
    }

    /// Returns the 4 aligned bytes at `offset` as an atomic.
    #[inline(always)]
    pub fn u32(&self, offset: u64) -> &AtomicU32 {
        let pointer = self.at(offset, 4);
        assert!(
            pointer.addr().is_multiple_of(4),
            "a 32-bit atomic at a misaligned offset {offset}"
        );
        // SAFETY: as in `u64`.
        unsafe { AtomicU32::from_ptr(pointer.cast()) }
    }

    /// Copies from an address of another process into this range (kernel copy). Returns the number
    /// of bytes copied.
    pub fn read_from_process(
        &self,
        offset: u64,
        bytes: u64,
        pid: i32,
        address: u64,
    ) -> std::io::Result<u64> {
        let pointer = self.at(offset, bytes);
        // SAFETY: in range (B1), and there is no reference to these plain bytes (B2).
        let read = unsafe { crate::sys::read_process_raw(pid, address, pointer, bytes as usize) };
        read.map(|n| n as u64)
    }

    /// Copies from this range to an address of another process (kernel copy). Returns the number of
    /// bytes copied.
    pub(crate) fn write_to_process(
        &self,
        offset: u64,
        bytes: u64,
        pid: i32,
        address: u64,
    ) -> std::io::Result<u64> {
        let pointer = self.at(offset, bytes);
        // SAFETY: in range (B1), and only read.
        let written =
            unsafe { crate::sys::write_process_raw(pid, address, pointer, bytes as usize) };
        written.map(|n| n as u64)
    }

    /// Returns the address of the range in this process (for kernel copies, and for tests of what
    /// each process sees).
    pub fn address(&self) -> u64 {
        self.pointer as u64
    }

    /// Prefetches the line at `offset` for reading. Never faults.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64) {
        if offset < self.len as u64 {
            // SAFETY: in range (B1); a prefetch reads nothing and cannot fault.
            unsafe { prefetch::read(self.pointer.add(offset as usize)) }
        }
    }

    /// Prefetches all lines of a range for writing.
    #[inline(always)]
    pub fn prefetch_write_range(&self, offset: u64, bytes: u64) {
        let start = self.at(offset, bytes);
        for line in (0..bytes as usize).step_by(crate::LINE as usize) {
            // SAFETY: in range (B1, checked by `at`); a prefetch writes nothing and cannot fault.
            unsafe { prefetch::write(start.add(line)) }
        }
    }
}

/// Copies out of shared memory. An aligned word is one load, for which races are defined.
///
/// # Safety
/// `from` has as many bytes as `into`, in a live mapping (B1); they may overlap (B3).
#[inline(always)]
pub(crate) unsafe fn read_from(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's promise; the target is a live slice.
    unsafe {
        match into.as_chunks_mut::<8>() {
            ([word], []) if from.addr().is_multiple_of(8) => {
                // ORDERING: Relaxed: partner of the stores of `write_to`; they order nothing.
                let from = AtomicU64::from_ptr(from.cast_mut().cast());
                *word = from.load(Relaxed).to_ne_bytes();
            }
            // By value, so that a word whose length is known at compile time never leaves the
            // registers.
            ([word], []) => *word = from.cast::<[u8; 8]>().read(),
            _ => read_narrow(from, into),
        }
    }
}

/// Copies into shared memory. An aligned word is one store, for which races are defined.
///
/// # Safety
/// As for [`read_from`], the other way round.
#[inline(always)]
pub(crate) unsafe fn write_to(to: *mut u8, from: &[u8]) {
    // SAFETY: the caller's promise; the source is a live slice.
    unsafe {
        match from.as_chunks::<8>() {
            ([word], []) if to.addr().is_multiple_of(8) => {
                // ORDERING: Relaxed: partner of the loads of `read_from`; they order nothing.
                AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(*word), Relaxed);
            }
            ([word], []) => to.cast::<[u8; 8]>().write(*word),
            _ => write_narrow(from, to),
        }
    }
}

/// Prefetch hints; except on x86-64, the hardware prefetcher has to suffice.
mod prefetch {
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    /// # Safety
    /// The line is in a live mapping (B1).
    #[inline(always)]
    pub(super) unsafe fn read(line: *const u8) {
        // SAFETY: a hint; the caller's pointer is in range (B1).
        #[cfg(target_arch = "x86_64")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// # Safety
    /// The line is in a live mapping (B1).
    #[inline(always)]
    pub(super) unsafe fn write(line: *const u8) {
        // The intrinsic for this hint becomes a prefetch for reading if the compiler does not know
        // the processor. Every x86-64 processor of the last decade has the instruction; older ones
        // ignore it. SAFETY: as in `read`.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            std::arch::asm!("prefetchw [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
