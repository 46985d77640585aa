//! Granted segments in the linear memory of a kernel.
//!
//! # Invariants
//! W1 wasmtime makes the memory of a kernel: [`SPACE`] bytes of address space, with guards, that
//!    belong to it until its store is dropped. The engine is configured so (`memory_reservation`,
//!    `memory_may_move`), and compiled code relies on it, too: it does not check addresses. The
//!    first bytes are accessible, and never move and never grow: the maximum is the minimum. The
//!    rest is not accessible, but for windows. `map` is given the store, and a [`Private`] and the
//!    windows are part of its data. A test looks at the mappings of the process.
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
//! W5 A window that could not be mapped may have left a hole in the address space, which another
//!    thread may have filled by now. So nobody touches that range again: no kernel gets the memory,
//!    and it is never given back.

use super::{PAGE, WINDOWS_MAX};
use crate::{Grants, Rights};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use samite_mem::SharedBytes;
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use wasmtime::{Memory, Store};

/// The most bytes of windows that are mapped page by page ahead of the first access.
pub(super) const POPULATED_MAX: u64 = 2 << 20;
/// How many memories an engine may leave behind for windows that could not be mapped (W5): each
/// keeps its address space for ever.
const LEFT_BEHIND_MAX: u32 = 256;

/// Counts the memories that an engine has left behind.
#[derive(Debug, Default)]
pub(super) struct LeftBehind(AtomicU32);

impl LeftBehind {
    /// Returns whether windows may be mapped: not any more after that failed too often.
    pub(super) fn may_map(&self) -> bool {
        // ORDERING: Relaxed: a count; a thread that misses the last one leaves one more behind.
        self.0.load(Relaxed) < LEFT_BEHIND_MAX
    }
}

/// The address space of a memory: all that an address of 32 bits can name.
pub(super) const SPACE: usize = 1 << 32;

/// A segment in the memory of a kernel.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) grant: u32,
    pub(super) at: u64,
    bytes: SharedBytes,
    rights: Rights,
}

/// Has pages mapped for these accesses. If the system does not, each access has its own mapped.
///
/// # Safety
/// The range is mapped by this process.
unsafe fn populate(base: *mut c_void, len: u64, rights: Rights) {
    let advice = match rights {
        Rights::Read => Advice::LinuxPopulateRead,
        Rights::Write => Advice::LinuxPopulateWrite,
    };
    // SAFETY: the caller's promise. The advice changes no contents.
    let _ = unsafe { rustix::mm::madvise(base, len as usize, advice) };
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
/// its own. The memory belongs to the store, which is returned.
///
/// # Errors
/// A window cannot be mapped. The store is not dropped then (W5).
pub(super) fn map<T: 'static>(
    store: Store<T>,
    memory: Memory,
    own: u64,
    windows: &[Window],
    left_behind: &LeftBehind,
) -> Result<(Store<T>, Private), rustix::io::Errno> {
    let base = memory.data_ptr(&store);
    for window in windows {
        let len = window.bytes.len();
        assert!(own <= window.at && window.at + len <= WINDOWS_MAX, "W2");
        // SAFETY: W1, W2: the range belongs to the memory.
        let to: *mut c_void = unsafe { base.add(window.at as usize).cast() };
        if let Err(error) = overlay(window, to, len as usize) {
            left_behind.0.fetch_add(1, Relaxed); // ORDERING: Relaxed: as in `may_map`.
            std::mem::forget(store); // W5
            return Err(error);
        }
    }
    Ok((store, Private { base, len: own }))
}

/// Maps the pages of a segment a second time, from their file: the emulator qemu-user refuses the
/// other way, `mremap` with a length of 0.
fn overlay(window: &Window, to: *mut c_void, len: usize) -> rustix::io::Result<()> {
    let Some((file, offset)) = window.bytes.file() else {
        return Err(rustix::io::Errno::NODEV); // It was there in `plan`: this is a fork by now.
    };
    let access = match window.rights {
        Rights::Read => ProtFlags::READ,
        Rights::Write => ProtFlags::READ | ProtFlags::WRITE,
    };
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: it replaces address space that nobody accesses (W1, W2). The file has these pages for
    // as long as the window keeps them (W4). If it fails, W5.
    unsafe { rustix::mm::mmap(to, len, access, flags, file, offset) }.map(|_| ())
}

impl Private {
    /// Has the first `most` bytes of a window behind this memory mapped page by page: otherwise
    /// each first access takes some microseconds. Returns how many that are.
    pub(super) fn populate_window(&self, window: &Window, most: u64) -> u64 {
        let len = window.bytes.len().min(most);
        // SAFETY: W1, W4: `map` has mapped the range, which keeps its contents.
        unsafe {
            let base = self.base.add(window.at as usize);
            populate(base.cast(), len, window.rights);
        }
        len
    }

    /// Has the first `len` bytes mapped page by page, as [`Private::populate_window`].
    pub(super) fn populate(&self, len: u64) {
        let len = len.min(self.len).min(POPULATED_MAX);
        // SAFETY: W1, W3: the range is mapped, and keeps its contents.
        unsafe { populate(self.base.cast(), len, Rights::Write) };
    }

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

#[cfg(test)]
mod tests {
    use super::super::Wasm;
    use super::*;
    use samite_mem::Arena;
    use std::sync::Arc;
    use wasmtime::MemoryType;

    fn memory<T: 'static>(data: T) -> (Store<T>, Memory) {
        let mut store = Store::new(&Wasm::new().unwrap().engine, data);
        let memory = Memory::new(&mut store, MemoryType::new(1, Some(1))).unwrap();
        (store, memory)
    }

    fn window(bytes: SharedBytes) -> Window {
        Window {
            grant: 0,
            at: PAGE,
            bytes,
            rights: Rights::Read,
        }
    }

    /// The system refuses a range of a file that does not begin at a page. The store, which would
    /// give the memory back, is not dropped then (W5), and so its data is not, either.
    #[test]
    fn a_memory_whose_window_cannot_be_mapped_is_not_used() {
        let arena = Arena::create(2 << 20).unwrap();
        let left = LeftBehind::default();
        let data = Arc::new(());
        let (store, memory) = memory(data.clone());
        let windows = [window(arena.bytes(8, PAGE).unwrap())];
        let failed = map(store, memory, PAGE, &windows, &left).map(|_| ());
        assert_eq!(failed, Err(rustix::io::Errno::INVAL));
        assert_eq!(Arc::strong_count(&data), 2);
        let (store, memory) = self::memory(data.clone());
        let windows = [window(arena.bytes(4096, PAGE).unwrap())];
        let (store, _) = map(store, memory, PAGE, &windows, &left).unwrap();
        assert_eq!(Arc::strong_count(&data), 3);
        drop(store);
        assert_eq!(Arc::strong_count(&data), 2);
        assert_eq!(left.0.load(Relaxed), 1);
    }

    /// An engine that cannot map windows leaves a few memories behind, and no more however many
    /// instances are asked for.
    #[test]
    fn few_memories_are_left_behind() {
        let arena = Arena::create(2 << 20).unwrap();
        let left = LeftBehind::default();
        let mut tries = 0;
        while left.may_map() {
            tries += 1;
            let (store, memory) = memory(());
            let windows = [window(arena.bytes(8, PAGE).unwrap())];
            assert!(map(store, memory, PAGE, &windows, &left).is_err());
        }
        assert_eq!(tries, LEFT_BEHIND_MAX);
    }

    /// Returns the parts of a range of addresses that are mapped, and whether each is accessible.
    fn mappings(begin: usize, end: usize) -> Vec<(usize, usize, bool)> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapping = |line: &str| {
            let (range, rest) = line.split_once(' ').unwrap();
            let (first, last) = range.split_once('-').unwrap();
            let of = |text| usize::from_str_radix(text, 16).unwrap();
            let (first, last) = (of(first).max(begin), of(last).min(end));
            (first < last).then(|| (first, last, !rest.starts_with("---")))
        };
        maps.lines().filter_map(mapping).collect()
    }

    /// W1: all of it, and a guard behind it, is address space of the process that is not
    /// accessible, but for its own page. It is given back with the store. A process of its own
    /// looks: in this one, another thread may get the same addresses.
    #[test]
    #[cfg_attr(
        not(target_arch = "x86_64"),
        ignore = "an emulator starts no processes that it emulates"
    )]
    fn a_memory_has_all_of_its_address_space() {
        const CHILD: &str = "SAMITE_TEST_ADDRESS_SPACE";
        if std::env::var_os(CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let name = "wasm::window::tests::a_memory_has_all_of_its_address_space";
            let child = child.args(["--exact", name]).env(CHILD, "1");
            let ended = child.output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success(), "{said}");
            return assert!(said.contains("1 passed"), "{said}");
        }
        let (store, memory) = memory(());
        let begin = memory.data_ptr(&store).addr();
        let own = begin + PAGE as usize;
        let end = begin + SPACE + PAGE as usize; // With a part of the guard.
        let mut at = begin;
        for (first, last, is_accessible) in mappings(begin, end) {
            assert_eq!(first, at, "a hole");
            assert_eq!(is_accessible, first < own, "{first:#x} to {last:#x}");
            assert!(!is_accessible || last <= own, "{last:#x}");
            at = last;
        }
        assert_eq!(at, end);
        drop(store);
        let left = mappings(begin, end);
        let left: usize = left.iter().map(|(first, last, _)| last - first).sum();
        assert!(left < SPACE / 2, "{left} bytes are still mapped");
    }
}
