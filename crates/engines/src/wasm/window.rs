//! Granted segments in the linear memory of a kernel.
//!
//! # Invariants
//! W1 `map` is given the memory of one wasmtime instance: its first byte, `own` accessible bytes
//!    that never move and never grow (its maximum is its minimum), and behind them 4 GiB of address
//!    space in all, which belong to it and are not accessible. It lives as long as its store; a
//!    [`Private`] and the windows are part of the data of that store.
//! W2 Windows lie behind the private part and below 4 GiB, and do not overlap (`plan`). So they are
//!    outside of the memory as WebAssembly knows it: its bulk operations (`memory.copy`,
//!    `memory.fill`), which are functions of the host, and its data segments do not reach them.
//!    Loads and stores do, because they are checked by the processor alone.
//! W3 No reference is made to any byte of the memory: the private part is copied to and from by
//!    pointer, while no kernel runs in that store (it is borrowed), and the windows are accessed by
//!    compiled code alone.
//! W4 A window is a second mapping of the pages of a segment. Only whole pages that are granted are
//!    mapped: a range of an arena that begins and ends at a page. A clone of its bytes, kept in the
//!    window, keeps the memory from being reused. A fork inherits the mapping, so that there is no
//!    hole which other memory could take, and runs no kernel in it (`Running::call`).
//! W5 If a window can neither be mapped nor closed again, its range may be open, or belong to
//!    somebody else by now. Then no kernel gets the memory, and it is never given back.

use super::{PAGE, WINDOWS_MAX};
use crate::{Grants, Rights};
use rustix::mm::{MapFlags, ProtFlags};
use samite_mem::SharedBytes;
use std::ffi::c_void;

/// A segment in the memory of a kernel.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) grant: u32,
    pub(super) at: u64,
    bytes: SharedBytes,
    rights: Rights,
}

/// Places the granted segments from `begin` on. Segments that cannot be mapped are left out.
pub(super) fn plan(grants: &Grants, begin: u64) -> Vec<Window> {
    let mut end = begin.next_multiple_of(PAGE);
    let mut windows = Vec::new();
    for (number, grant) in grants.iter() {
        let (address, len) = (grant.bytes.address(), grant.bytes.len());
        let page = rustix::param::page_size() as u64;
        let is_whole = address.is_multiple_of(page) && len.is_multiple_of(page) && len > 0;
        let fits = is_whole && grant.bytes.file().is_some();
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
    windows
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

/// Maps the windows behind the memory of a new instance (W1), of which the first `own` bytes are
/// its own. Windows that cannot be mapped are removed: their segments are reached by functions.
///
/// # Errors
/// W5: there is no address space.
pub(super) fn map(
    base: *mut u8,
    own: u64,
    windows: &mut Vec<Window>,
) -> Result<Private, rustix::io::Errno> {
    let mut failed = None;
    windows.retain(|window| {
        let len = window.bytes.len();
        assert!(own <= window.at && window.at + len <= WINDOWS_MAX, "W2");
        // SAFETY: W1, W2: the range belongs to the memory.
        let to: *mut c_void = unsafe { base.add(window.at as usize).cast() };
        let mapped = overlay(window, to, len as usize);
        if let Err(error) = mapped {
            // SAFETY: W1, W2; nobody accesses it. Whatever the failed call has left there, the
            // range is not accessible again, and still belongs to the memory.
            let closed = unsafe {
                let (access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::FIXED);
                rustix::mm::mmap_anonymous(to, len as usize, access, flags)
            };
            if closed.is_err() {
                failed = Some(error);
            }
        }
        mapped.is_ok()
    });
    failed.map_or(Ok(Private { base, len: own }), Err)
}

/// Maps the pages of a segment a second time, from their file: the emulator qemu-user refuses the
/// other way, `mremap` with a length of 0.
fn overlay(window: &Window, to: *mut c_void, len: usize) -> rustix::io::Result<()> {
    let Some((file, offset)) = window.bytes.file() else {
        return Err(rustix::io::Errno::NODEV);
    };
    let access = match window.rights {
        Rights::Read => ProtFlags::READ,
        Rights::Write => ProtFlags::READ | ProtFlags::WRITE,
    };
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: it replaces address space that nobody accesses (W1, W2). The file has these pages for
    // as long as the window keeps them (W4).
    unsafe { rustix::mm::mmap(to, len, access, flags, file, offset) }.map(|_| ())
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
