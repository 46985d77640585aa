//! Memory that one process writes and all others can only read.
//!
//! It has a memfd of its own. Its creator maps it for writing and then seals it against writing by
//! others (`F_SEAL_FUTURE_WRITE`, Linux 5.1). A process that gets the descriptor can map it for
//! reading. It cannot map it for writing, make such a mapping writable, write to the file, or punch
//! a hole into it. Its content was written by the creator, whatever the other processes of the
//! domain do.
//!
//! # Invariants
//! P1 `bytes` is one mapping of the whole file; writable in a [`Publisher`] and in what it
//!    [publishes](Publisher::published) in its own process, read-only elsewhere.
//! P2 The file carries `F_SEAL_SHRINK`, `F_SEAL_GROW` and `F_SEAL_FUTURE_WRITE` before its
//!    descriptor leaves the creator (a reader checks, because the descriptor comes from another
//!    process): no page of a mapping can vanish.
//! P3 Memory that may be mapped read-only is loaded by copies and by relaxed loads of at most 8
//!    bytes, which are not writes on any processor (`std::sync::atomic`, "Atomic accesses to
//!    read-only memory"); a fence after them orders them ([`Published::acquire`]).

use crate::arena::Mapping;
use crate::sync::{Ordering, fence};
use crate::{Error, SharedBytes};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::Arc;

/// The writing end.
#[derive(Debug)]
pub struct Publisher {
    fd: OwnedFd,
    bytes: SharedBytes,
}

/// The reading end. Cloning is cheap and keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Published {
    bytes: SharedBytes,
}

impl Publisher {
    /// Creates `bytes` of zeroes that only this process can write; its forks have private zeroes
    /// instead.
    ///
    /// # Errors
    /// [`Error::System`]: the kernel has no memory, or is older than 5.1.
    pub fn create(bytes: u64) -> Result<Publisher, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("samite-published", flags)
            .map_err(Error::system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(Error::system("ftruncate"))?;
        // M3: no write finds that the machine has no memory left for its page.
        retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), 0, bytes))
            .map_err(Error::system("fallocate"))?;
        let mapped = map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SEALS | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::system("fcntl(F_ADD_SEALS)"))?;
        Ok(Publisher { fd, bytes: mapped })
    }

    /// Returns the descriptor, to be sent to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the bytes for writing.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns the same bytes as a reader in this process.
    pub fn published(&self) -> Published {
        Published {
            bytes: self.bytes.clone(),
        }
    }
}

impl Published {
    /// Maps memory that another process publishes.
    ///
    /// # Errors
    /// [`Error::System`]: the file could shrink, or processes other than its creator could write
    /// it.
    pub fn attach(fd: OwnedFd) -> Result<Published, Error> {
        let seals =
            rustix::fs::fcntl_get_seals(&fd).map_err(Error::system("fcntl(F_GET_SEALS)"))?;
        if !seals.contains(SEALS) {
            return Err(Error::System {
                call: "attaching published memory",
                source: std::io::Error::other("the descriptor is not sealed"),
            });
        }
        let stat = rustix::fs::fstat(&fd).map_err(Error::system("fstat"))?;
        let bytes = map(&fd, stat.st_size as u64, ProtFlags::READ)?;
        Ok(Published { bytes })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Loads the 8 aligned bytes at `offset`. Only [`Published::acquire`] orders the load.
    ///
    /// # Panics
    /// The bytes are out of range or misaligned.
    #[inline(always)]
    pub fn u64(&self, offset: u64) -> u64 {
        // ORDERING: Relaxed (P3).
        self.bytes.u64(offset).load(Ordering::Relaxed)
    }

    /// Loads the 4 aligned bytes at `offset`, like [`Published::u64`].
    #[inline(always)]
    pub fn u32(&self, offset: u64) -> u32 {
        // ORDERING: Relaxed (P3).
        self.bytes.u32(offset).load(Ordering::Relaxed)
    }

    /// Copies `into.len()` bytes out; they are unspecified while the creator writes them.
    ///
    /// # Panics
    /// The bytes are out of range.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.bytes.read(offset, into);
    }

    /// Orders all later reads after all earlier ones. Pairs with a Release store of the word that
    /// was read last.
    #[inline(always)]
    pub fn acquire(&self) {
        // ORDERING: Acquire: with the relaxed loads before it, the partner of the creator's Release
        // stores (P3).
        fence(Ordering::Acquire);
    }
}

/// The seals of the file.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);

fn map(fd: &OwnedFd, bytes: u64, access: ProtFlags) -> Result<SharedBytes, Error> {
    let len = usize::try_from(bytes).map_err(|_| Error::System {
        call: "mmap",
        source: std::io::Error::other("the file is larger than the address space"),
    })?;
    // SAFETY: P1 begins here, at an address chosen by the kernel, so that it replaces nothing; the
    // file has `len` bytes, none of which can vanish (P2).
    let base =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }
            .map_err(Error::system("mmap"))?;
    let is_written = access.contains(ProtFlags::WRITE);
    let mapping = Arc::new(Mapping::of_file(base.cast(), len, is_written));
    Ok(SharedBytes::new(mapping, base.cast(), len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::mm::MprotectFlags;

    const BYTES: u64 = 8192;

    fn publisher() -> Publisher {
        let publisher = Publisher::create(BYTES).unwrap();
        publisher.bytes().u64(64).store(7, Ordering::Relaxed);
        publisher
    }

    /// A process with the descriptor tries every way to write.
    #[test]
    fn nobody_else_can_write() {
        let publisher = publisher();
        let fd = publisher.fd();
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let attempt = |access, flags| {
            // SAFETY: a mapping beside that of P1, at an address chosen by the kernel, as long as
            // the file.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES as usize, access, flags, fd, 0) }
        };
        let refused = Err(Errno::PERM);
        assert_eq!(attempt(read_write, MapFlags::SHARED), refused);
        assert_eq!(attempt(ProtFlags::WRITE, MapFlags::SHARED), refused);
        let reader = Published::attach(fd.try_clone_to_owned().unwrap()).unwrap();
        let base = reader.bytes.pointer();
        // SAFETY: the whole of a mapping (P1) that this test made; an additional permission harms
        // nothing.
        let more =
            unsafe { rustix::mm::mprotect(base.cast(), BYTES as usize, MprotectFlags::WRITE) };
        assert_eq!(more, Err(Errno::ACCESS));
        assert_eq!(rustix::io::pwrite(fd, &[1; 8], 64), Err(Errno::PERM));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(fd, punch, 0, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        // Reopened, it is the same file.
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let flags = rustix::fs::OFlags::RDWR;
        let opened = rustix::fs::open(link, flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(rustix::io::pwrite(&opened, &[1; 8], 64), Err(Errno::PERM));
        assert!(map(&opened, BYTES, read_write).is_err());
        // A private copy affects only its own process.
        assert!(attempt(read_write, MapFlags::PRIVATE).is_ok());
        assert_eq!(reader.u64(64), 7);
    }

    #[test]
    fn all_pages_are_there_before_they_are_written() {
        let publisher = Publisher::create(BYTES).unwrap();
        let stat = rustix::fs::fstat(publisher.fd()).unwrap();
        assert!(stat.st_blocks as u64 * 512 >= BYTES);
    }

    #[test]
    fn what_is_written_is_read_elsewhere() {
        let publisher = publisher();
        let reader = Published::attach(publisher.fd().try_clone_to_owned().unwrap()).unwrap();
        let own = publisher.published();
        drop(own.clone());
        publisher.bytes().write(100, b"woven");
        publisher.bytes().u32(64).store(9, Ordering::Release);
        drop(publisher);
        for reader in [reader, own] {
            assert_eq!((reader.u32(64), reader.len()), (9, BYTES));
            reader.acquire();
            let mut found = [0; 5];
            reader.read(100, &mut found);
            assert_eq!(&found, b"woven");
        }
    }

    #[test]
    fn a_descriptor_that_others_can_write_is_refused() {
        let arena = crate::Arena::create(1).unwrap();
        assert!(Published::attach(arena.fd().try_clone_to_owned().unwrap()).is_err());
    }
}
