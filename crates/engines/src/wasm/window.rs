//! Granted segments in the linear memory of a kernel.
//!
//! # Invariants
//! W1 `map` is given the memory of one wasmtime instance: `size` accessible bytes at `base`, which
//!    never move and never grow (its maximum is its minimum), and which live as long as its store.
//!    A [`Private`] and the windows are part of the data of that store.
//! W2 Windows lie inside `size`, behind the private part, and do not overlap (`plan`).
//! W3 No reference is made to any byte of the memory: the private part is copied to and from by
//!    pointer, while no kernel runs in that store (it is borrowed), and the windows are accessed by
//!    compiled code alone.
//! W4 A window is a second mapping of the pages of a segment. Only pages that belong to this
//!    segment alone are mapped: the segment begins at a page, and what follows its last byte up to
//!    the end of a page is its own because segments of [`MAPPED_MIN`] bytes have extents of their
//!    own. A clone of the segment's bytes, kept in the window, keeps its memory from being reused.
#![allow(unsafe_code)]

use super::{PAGE, WINDOWS_MAX};
use crate::{Grants, Rights};
use samite_mem::SharedBytes;
use std::ffi::c_void;

/// The shortest segment that is mapped.
const MAPPED_MIN: u64 = 2 << 20;
/// A page of the processor.
const NATIVE: u64 = 4096;

/// A segment in the memory of a kernel.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) grant: u32,
    pub(super) at: u64,
    bytes: SharedBytes,
    rights: Rights,
}

/// Places the granted segments from `begin` on; returns them and the end of the memory. Segments
/// that cannot be mapped are left out.
pub(super) fn plan(grants: &Grants, begin: u64) -> (Vec<Window>, u64) {
    let mut end = begin.next_multiple_of(PAGE);
    let mut windows = Vec::new();
    for (number, grant) in grants.iter() {
        let (address, len) = (grant.bytes.address(), grant.bytes.len());
        let fits = len >= MAPPED_MIN && address.is_multiple_of(NATIVE);
        let Some(next) = end.checked_add(len).map(|next| next.next_multiple_of(PAGE)) else {
            continue;
        };
        if !fits || next > WINDOWS_MAX {
            continue;
        }
        windows.push(Window {
            grant: number as u32,
            at: end,
            bytes: grant.bytes.clone(),
            rights: grant.rights,
        });
        end = next;
    }
    (windows, end)
}

/// The part of a kernel's memory that is its own.
#[derive(Debug)]
pub(super) struct Private {
    base: *mut u8,
    len: u64,
}

// SAFETY: W1: the memory may be used from the thread that has the store.
unsafe impl Send for Private {}
// SAFETY: W3: it is accessed only through the data of a store, which is borrowed for that.
unsafe impl Sync for Private {}

/// Maps the windows into the memory of a new instance (W1), of which the first `own` bytes are its
/// own.
pub(super) fn map(
    base: *mut u8,
    size: u64,
    own: u64,
    windows: &[Window],
) -> Result<Private, wasmtime::Error> {
    assert!(own <= size, "the private part lies inside of the memory");
    for window in windows {
        let len = window.bytes.len().next_multiple_of(NATIVE);
        assert!(own <= window.at && window.at + len <= size, "W2");
        let from = window.bytes.address() as *mut c_void;
        // SAFETY: `from` is the start of a shared mapping that the window keeps (W4). With a
        // length of 0 the mapping is not moved but mapped again, over pages of the memory that
        // nobody has accessed yet (W1, W2).
        let mapped = unsafe {
            let to = base.add(window.at as usize).cast();
            let flags = rustix::mm::MremapFlags::MAYMOVE;
            rustix::mm::mremap_fixed(from, 0, len as usize, flags, to)
        };
        let failed = |what: &str, error: rustix::io::Errno| {
            let grant = window.grant;
            wasmtime::Error::msg(format!("segment {grant} cannot be mapped: {what}: {error}"))
        };
        let mapped = mapped.map_err(|error| failed("mremap", error))?;
        if window.rights == Rights::Read {
            // SAFETY: the mapping was made above, and no reference into it exists.
            unsafe { rustix::mm::mprotect(mapped, len as usize, rustix::mm::MprotectFlags::READ) }
                .map_err(|error| failed("mprotect", error))?;
        }
    }
    Ok(Private { base, len: own })
}

impl Private {
    fn contains(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Copies bytes in; returns false if they lie outside.
    #[inline]
    pub(super) fn write(&self, at: u64, from: &[u8]) -> bool {
        let is_inside = self.contains(at, from.len() as u64);
        if is_inside {
            // SAFETY: W1, W3, and the check above.
            unsafe {
                let to = self.base.add(at as usize);
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            }
        }
        is_inside
    }

    /// Appends bytes to `into`; returns false if they lie outside.
    #[inline]
    pub(super) fn read(&self, at: u64, len: u64, into: &mut Vec<u8>) -> bool {
        let is_inside = self.contains(at, len);
        if is_inside {
            into.reserve(len as usize);
            // SAFETY: W1, W3, and the check above; the vector has room for the bytes, which are
            // initialised by the copy.
            unsafe {
                let to = into.as_mut_ptr().add(into.len());
                std::ptr::copy_nonoverlapping(self.base.add(at as usize), to, len as usize);
                into.set_len(into.len() + len as usize);
            }
        }
        is_inside
    }
}
