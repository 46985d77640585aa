//! One sparse memfd, mapped as a whole by every process of a domain on this node.
//!
//! The file's size is the budget of the domain and is sealed: it can neither shrink (no `SIGBUS`)
//! nor grow (no allocation beyond the budget). Address space is reserved, memory is not: a page
//! exists from its allocation ([`Arena::populate`]) until [`Arena::release`].
//!
//! # Invariants
//! A1 `base..base+bytes` is one mapping of the memfd, readable and writable, until `Drop`.
//! A2 The memfd carries `F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL`; its size is `bytes`, a whole
//!    number of pages (checked on attach, because the descriptor may come from another process).
//! A3 Adopted memory is one vector that is not accessed any more, so that it neither moves nor is
//!    freed.
//! A4 A range keeps what it is used for: its block, its lease, its claim ([`crate::claims`]). They
//!    end with the last clone of it, in any thread.
//! A5 A fork has no part of the arena: its mapping is private zeroes (S4 of `sys`), and it gets no
//!    further ranges.

use crate::claims::{Claims, Use};
use crate::heap::{PAGE, Piece};
use crate::lease::Lease;
use crate::sys::{OwnerProcess, WipedInForks};
use crate::{Error, SharedBytes, Span};
use bytemuck::Pod;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags};
use std::any::Any;
use std::sync::Arc;

/// See the module documentation. Cloning is cheap and keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Arena {
    inner: Arc<Mapping>,
}

#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
    backing: Backing,
}

/// The origin of a mapping's bytes.
#[derive(Debug)]
pub(crate) enum Backing {
    /// A mapped memfd, and what this process uses of it.
    Memfd(OwnedFd, Claims, WipedInForks, OwnerProcess),
    /// A file mapped for reading; nothing else is needed.
    ReadOnly,
    /// Like [`Backing::ReadOnly`], but mapped for writing.
    Written(WipedInForks),
    /// Private memory of this process that was adopted; it is freed with the mapping.
    Adopted(
        #[expect(dead_code, reason = "kept alive: the pointer is into it")] Box<dyn Any + Send>,
    ),
    /// A part of another mapping, and what entitles this process to use it.
    Part {
        /// Dropped first, before the mapping may be.
        keeps: Keeps,
        /// Kept alive: the pointer is into it.
        of: Arc<Mapping>,
    },
}

/// What ends with the last range of a part (A4).
#[derive(Debug)]
pub(crate) enum Keeps {
    /// A block, which returns to its heap.
    Block(Piece),
    /// A lease.
    Lease(Lease),
    /// A raw range.
    Raw(#[expect(dead_code, reason = "released when it is dropped")] Raw),
}

/// The claim of a raw range.
#[derive(Debug)]
pub(crate) struct Raw(Arc<Mapping>, Span);

impl Drop for Raw {
    fn drop(&mut self) {
        match &self.0.backing {
            // In a fork, another thread of the parent may have been in the middle of a change.
            Backing::Memfd(_, claims, _, owner) if owner.is_current() => {
                claims.release(self.1, Use::Raw);
            }
            _ => {}
        }
    }
}

impl Mapping {
    /// Adopts private memory: from now on, it is accessed only by copies and atomics.
    pub(crate) fn adopt<T: Pod + Send>(mut elements: Vec<T>) -> Mapping {
        // A3: the buffer of a vector does not move while the vector is not accessed.
        Mapping {
            base: elements.as_mut_ptr().cast(),
            bytes: std::mem::size_of_val(elements.as_slice()),
            backing: Backing::Adopted(Box::new(elements)),
        }
    }

    /// Wraps a whole file that `published` has mapped.
    pub(crate) fn of_file(base: *mut u8, bytes: usize, is_written: bool) -> Mapping {
        let backing = match is_written {
            true => Backing::Written(WipedInForks::new(base, bytes)),
            false => Backing::ReadOnly,
        };
        Mapping {
            base,
            bytes,
            backing,
        }
    }

    /// Creates a mapping of the part `pointer..pointer + bytes` of another one.
    pub(crate) fn part(of: Arc<Mapping>, pointer: *mut u8, bytes: usize, keeps: Keeps) -> Mapping {
        Mapping {
            base: pointer,
            bytes,
            backing: Backing::Part { keeps, of },
        }
    }

    /// Returns the descriptor of the arena that it is, or is part of, and where that is mapped. A
    /// fork gets none.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'_>, *mut u8)> {
        match &self.backing {
            Backing::Memfd(fd, _, _, owner) if owner.is_current() => Some((fd.as_fd(), self.base)),
            Backing::Part { of, .. } => of.file(),
            _ => None,
        }
    }

    /// Returns the lease that its ranges keep, if any.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.backing {
            Backing::Part {
                keeps: Keeps::Lease(lease),
                ..
            } => Some(lease),
            _ => None,
        }
    }

    /// Makes sure that this process never reuses the memory: its block does not return to the heap,
    /// and private memory is not freed.
    pub(crate) fn abandon(self: &Arc<Self>) {
        match &self.backing {
            Backing::Part {
                keeps: Keeps::Block(piece),
                ..
            } => piece.abandon(),
            _ => std::mem::forget(self.clone()),
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: the mapping is plain memory, accessed only by copies and atomics (M2); the pointer is
// valid in every thread until `Drop` (A1), which runs when no clone is left.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to non-atomic shared bytes.
unsafe impl Sync for Mapping {}

const HUGE: u64 = 2 << 20;

/// The seals of the memfd (A2).
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl Arena {
    /// Creates a sparse arena of `bytes` (rounded up to 2 MiB) without a name.
    pub fn create(bytes: u64) -> Result<Arena, Error> {
        // A size that is too large is refused below.
        let rounded = bytes.max(1).checked_next_multiple_of(HUGE);
        let bytes = rounded.unwrap_or(u64::MAX);
        let fd =
            rustix::fs::memfd_create("samite", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(Error::system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(Error::system("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(Error::system("fcntl(F_ADD_SEALS)"))?;
        Self::map(fd, bytes)
    }

    /// Maps the arena behind a descriptor from another process; refuses one that could shrink.
    pub fn attach(fd: OwnedFd) -> Result<Arena, Error> {
        let seals =
            rustix::fs::fcntl_get_seals(&fd).map_err(Error::system("fcntl(F_GET_SEALS)"))?;
        let refused = |why| Error::System {
            call: "attaching an arena",
            source: std::io::Error::other(why),
        };
        if !seals.contains(SEALS) {
            return Err(refused("the descriptor is not sealed"));
        }
        let bytes = rustix::fs::fstat(&fd)
            .map_err(Error::system("fstat"))?
            .st_size as u64;
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return Err(refused("its size is not that of pages"));
        }
        Self::map(fd, bytes)
    }

    fn map(fd: OwnedFd, bytes: u64) -> Result<Arena, Error> {
        let len = usize::try_from(bytes).map_err(|_| Error::System {
            call: "mmap",
            source: std::io::Error::other("the arena is larger than the address space"),
        })?;
        let reserve = len + HUGE as usize;
        // SAFETY: A1 begins here: a fresh reservation at an address chosen by the kernel, which
        // nothing else knows.
        let hint = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserve,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(Error::system("mmap"))?;
        let start = (hint as usize).next_multiple_of(HUGE as usize);
        // SAFETY: A1: it replaces a part of the reservation above, which nothing uses; the file has
        // `len` bytes and cannot shrink (A2).
        let base = unsafe {
            rustix::mm::mmap(
                start as *mut _,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                &fd,
                0,
            )
        }
        .map_err(|errno| {
            // SAFETY: the reservation above, which nothing uses.
            let _ = unsafe { rustix::mm::munmap(hint, reserve) };
            Error::system("mmap")(errno)
        })?;
        // Unmap what the alignment left over on both sides; failure only costs address space.
        let (front, back) = (
            start - hint as usize,
            reserve - (start - hint as usize) - len,
        );
        // SAFETY: the two ranges belong to the reservation and lie outside the mapping of A1.
        unsafe {
            if front > 0 {
                let _ = rustix::mm::munmap(hint, front);
            }
            if back > 0 {
                let _ = rustix::mm::munmap((start + len) as *mut _, back);
            }
        }
        let base: *mut u8 = base.cast();
        let wiped = WipedInForks::new(base, len);
        let owner = OwnerProcess::current();
        Ok(Arena {
            inner: Arc::new(Mapping {
                base,
                bytes: len,
                backing: Backing::Memfd(fd, Claims::default(), wiped, owner),
            }),
        })
    }

    /// Returns the size of the arena in bytes, which is the budget of the domain.
    pub fn len(&self) -> u64 {
        self.inner.bytes as u64
    }

    /// Returns false: an arena has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the descriptor, to be sent to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.inner.backing {
            Backing::Memfd(fd, ..) => fd.as_fd(),
            _ => unreachable!("an arena is a memfd of its own"),
        }
    }

    /// Returns the range `offset..offset + bytes`, for copies and atomics: tables, and memory that
    /// other processes describe as theirs.
    ///
    /// # Errors
    /// The range is outside the arena, or this process has blocks in it or a lease on it (K1, K2 of
    /// `claims`); [`Error::Forked`].
    pub fn bytes(&self, offset: u64, bytes: u64) -> Result<SharedBytes, Error> {
        let span = Span { offset, bytes };
        let range = self.range(span)?;
        self.claims().claim(span, Use::Raw)?;
        let raw = Raw(self.inner.clone(), span);
        Ok(range.keeping(Keeps::Raw(raw)))
    }

    /// Returns a span, like [`Arena::bytes`].
    pub fn span(&self, span: Span) -> Result<SharedBytes, Error> {
        self.bytes(span.offset, span.bytes)
    }

    /// Returns a range without claiming it; the caller has claimed it.
    pub(crate) fn range(&self, span: Span) -> Result<SharedBytes, Error> {
        self.check_owner()?;
        let Span { offset, bytes } = span;
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len() => {}
            end => {
                return Err(Error::OutOfRange {
                    offset,
                    end: end.unwrap_or(u64::MAX),
                    bytes: self.len(),
                });
            }
        }
        // SAFETY: offset <= bytes of the mapping (checked above), A1.
        let pointer = unsafe { self.inner.base.add(offset as usize) };
        Ok(SharedBytes::new(
            self.inner.clone(),
            pointer,
            bytes as usize,
        ))
    }

    /// Fails in a fork, which has the descriptor but no part of the arena (A5).
    fn check_owner(&self) -> Result<(), Error> {
        match &self.inner.backing {
            Backing::Memfd(.., owner) if !owner.is_current() => Err(Error::Forked),
            _ => Ok(()),
        }
    }

    /// Returns what this process uses of the arena.
    pub(crate) fn claims(&self) -> &Claims {
        match &self.inner.backing {
            Backing::Memfd(_, claims, ..) => claims,
            _ => unreachable!("an arena is a memfd of its own"),
        }
    }

    /// Returns the offset of a range in this arena.
    pub(crate) fn offset_of(&self, bytes: &SharedBytes) -> u64 {
        bytes.address().wrapping_sub(self.inner.base as u64)
    }

    /// Allocates the pages of a span now, in the NUMA node of the caller (first touch by the
    /// owner). If the machine is out of memory, this fails now instead of raising a signal later.
    pub fn populate(&self, span: Span) -> Result<(), Error> {
        self.check_owner()?;
        let (mut done, mut part) = (0, span.bytes);
        while done < span.bytes {
            let length = part.min(span.bytes - done);
            let start = span.offset + done;
            match fallocate(self.fd(), FallocateFlags::empty(), start, length) {
                Ok(()) => done += length,
                // A signal makes the kernel give back what this call has allocated. A shorter call
                // can finish between two signals of a profiler.
                Err(Errno::INTR) => part = (length / 2).next_multiple_of(PAGE).max(PAGE),
                Err(error) => return Err(Error::system("fallocate")(error)),
            }
        }
        Ok(())
    }

    /// Asks the kernel to back a span with huge pages. `MADV_COLLAPSE` works for shared memory even
    /// if huge pages are off for it by default. Returns true on success. The bytes do not change,
    /// and others may use them meanwhile.
    pub fn collapse(&self, span: Span) -> bool {
        let first = span.offset.next_multiple_of(HUGE);
        let last = span.end() & !(HUGE - 1);
        if first >= last || span.end() > self.len() {
            return false;
        }
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        const MADV_COLLAPSE: libc::c_int = 25;
        let advise = |offset: u64, bytes: u64, advice: libc::c_int| {
            // SAFETY: the range lies in the mapping (checked above, A1); neither advice changes any
            // content.
            unsafe {
                let start = self.inner.base.add(offset as usize);
                libc::madvise(start.cast(), bytes as usize, advice) == 0
            }
        };
        // The kernel collapses only huge pages that have at least one mapped page.
        let touched = (first..last)
            .step_by(HUGE as usize)
            .all(|offset| advise(offset, PAGE, MADV_POPULATE_WRITE));
        touched && advise(first, last - first, MADV_COLLAPSE)
    }

    /// Gives the pages of a span back to the system; the bytes then read as zero.
    pub fn release(&self, span: Span) -> Result<(), Error> {
        self.check_owner()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry_on_intr(|| fallocate(self.fd(), flags, span.offset, span.bytes))
            .map_err(Error::system("fallocate(PUNCH_HOLE)"))
    }

    /// Returns the number of bytes that are backed by pages now.
    pub fn resident(&self) -> u64 {
        rustix::fs::fstat(self.fd()).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &self.backing {
            Backing::Memfd(_, _, wiped, _) | Backing::Written(wiped) => wiped.end(),
            Backing::ReadOnly => {}
            Backing::Adopted(_) | Backing::Part { .. } => return,
        }
        // SAFETY: A1 (P1 of `published`), and no clone is left, hence no pointer into the mapping.
        unsafe {
            let _ = rustix::mm::munmap(self.base.cast(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn a_range_outside_is_refused() {
        let arena = Arena::create(1).unwrap();
        assert_eq!(arena.len(), HUGE);
        assert!(arena.bytes(0, HUGE).is_ok());
        assert!(matches!(
            arena.bytes(1, HUGE),
            Err(Error::OutOfRange { .. })
        ));
        assert!(matches!(
            arena.bytes(u64::MAX, 2),
            Err(Error::OutOfRange { .. })
        ));
    }

    #[test]
    fn an_unsealed_descriptor_is_refused() {
        let fd = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(Arena::attach(fd).is_err());
    }

    #[test]
    fn a_descriptor_that_is_not_of_whole_pages_is_refused() {
        for (bytes, is_arena) in [(0, false), (4096, true), (4100, false)] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("x", flags).unwrap();
            rustix::fs::ftruncate(&fd, bytes).unwrap();
            rustix::fs::fcntl_add_seals(&fd, SEALS).unwrap();
            assert_eq!(Arena::attach(fd).is_ok(), is_arena, "{bytes}");
        }
    }

    #[test]
    fn two_mappings_of_one_memfd_see_the_same_bytes() {
        let one = Arena::create(1 << 21).unwrap();
        let two = Arena::attach(one.fd().try_clone_to_owned().unwrap()).unwrap();
        one.bytes(100, 3).unwrap().write(0, b"abc");
        let mut seen = [0; 3];
        two.bytes(100, 3).unwrap().read(0, &mut seen);
        assert_eq!(&seen, b"abc");
    }

    #[test]
    fn released_pages_leave_memory_and_read_as_zero() {
        let arena = Arena::create(8 << 20).unwrap();
        let span = Span {
            offset: 2 << 20,
            bytes: 4 << 20,
        };
        arena.populate(span).unwrap();
        assert!(arena.resident() >= span.bytes);
        arena.span(span).unwrap().write(7, &[9]);
        arena.release(span).unwrap();
        assert_eq!(arena.resident(), 0);
        let mut byte = [1];
        arena.span(span).unwrap().read(7, &mut byte);
        assert_eq!(byte, [0]);
    }

    /// The copy that a fork has of the mapping is wiped, and the fork gets nothing else.
    #[test]
    fn a_fork_reaches_nothing() {
        let arena = Arena::create(8 << 20).unwrap();
        let bytes = arena.bytes(4096, 4096).unwrap();
        bytes.fill(7);
        // Registered and ended earlier: its addresses may be unused now, or belong to this arena.
        drop(Arena::create(64 << 20).unwrap());
        // SAFETY: A5 is what is tested. The child does nothing that another thread of the parent
        // could have been in the middle of: no allocation.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let is_wiped = bytes.u64(8).load(Ordering::Relaxed) == 0;
            bytes.fill(9);
            bytes.u64(8).fetch_add(1, Ordering::Relaxed);
            let span = Span {
                offset: 0,
                bytes: 8 << 20,
            };
            let refused = [
                arena.bytes(0, 8).err(),
                arena.release(span).err(),
                arena.populate(span).err(),
            ];
            let forked = |error: &Option<Error>| matches!(error, Some(Error::Forked));
            let is_refused = refused.iter().all(forked);
            // SAFETY: the child ends here, without the destructors of the parent.
            unsafe { libc::_exit(if is_wiped && is_refused { 0 } else { 1 }) }
        }
        let mut status = -1;
        // SAFETY: the kernel writes one integer, which outlives the call.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        let mut found = [0; 4096];
        bytes.read(0, &mut found);
        assert_eq!(found, [7; 4096]);
    }
}
