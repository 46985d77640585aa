//! Private memory in whole pages, as a program would allocate large buffers.

use crate::Error;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Zeroed private pages; a slice of bytes.
///
/// # Invariants
/// Z1 `base..base+bytes` is a private anonymous mapping of this value alone, until `Drop`.
#[derive(Debug)]
pub struct Pages {
    base: *mut u8,
    bytes: usize,
    mapped: (usize, usize),
}

// SAFETY: plain private memory with one owner (Z1).
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` only reads.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `bytes` of fresh, untouched memory. `huge` aligns it to 2 MiB and requests huge
    /// pages.
    pub fn new(bytes: u64, huge: bool) -> Result<Pages, Error> {
        const HUGE: usize = 2 << 20;
        // So much that all sums below stay in range, and no slice is longer.
        let most = isize::MAX as usize - 2 * HUGE;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= most);
        let bytes = bytes.ok_or(Error::system("mmap")(rustix::io::Errno::NOMEM))?;
        let len = bytes.max(1).next_multiple_of(4096);
        let mapped = if huge {
            len.next_multiple_of(HUGE) + HUGE
        } else {
            len
        };
        // SAFETY: Z1 begins here: a fresh private mapping at an address chosen by the kernel.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(Error::system("mmap"))? as usize;
        let base = if huge {
            start.next_multiple_of(HUGE)
        } else {
            start
        };
        if huge {
            let len = len.next_multiple_of(HUGE);
            // SAFETY: inside the mapping made above (Z1); the advice changes no content. A kernel
            // without huge pages refuses it.
            let _ = unsafe { rustix::mm::madvise(base as *mut _, len, Advice::LinuxHugepage) };
        }
        Ok(Pages {
            base: base as *mut u8,
            bytes,
            mapped: (start, mapped),
        })
    }
}

impl std::ops::Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: Z1; `bytes` is not longer than the mapping, which is zeroed or written through
        // this value.
        unsafe { std::slice::from_raw_parts(self.base, self.bytes) }
    }
}

impl std::ops::DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of Z1, to which no reference is left.
        unsafe {
            let _ = rustix::mm::munmap(self.mapped.0 as *mut _, self.mapped.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_address_space_is_refused() {
        for bytes in [u64::MAX, u64::MAX - 4096, u64::MAX / 2] {
            for huge in [false, true] {
                assert!(Pages::new(bytes, huge).is_err(), "{bytes}, {huge}");
            }
        }
    }
}
