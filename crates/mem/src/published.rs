//! Memory that one process writes and all others can only read.
//!
//! A memfd of its own. Its creator maps it for writing and then seals it against everybody else's
//! writing (`F_SEAL_FUTURE_WRITE`, Linux 5.1): a process that gets the descriptor can map it to
//! read, and cannot map it to write, make such a mapping writable, write to the file, or punch a
//! hole into it. What is found there was written by the creator, whatever the other processes of
//! the domain do.
//!
//! # Invariants
//! P1 `bytes` is the whole file, one mapping of it; writable in a [`Publisher`] and in what it
//!    [publishes](Publisher::published) in its own process, read-only elsewhere.
//! P2 The file carries `F_SEAL_SHRINK`, `F_SEAL_GROW` and `F_SEAL_FUTURE_WRITE` before its
//!    descriptor leaves the creator (a reader looks, since the descriptor comes from another
//!    process): no page of a mapping can vanish.
//! P3 Memory that may be mapped read-only is loaded by copies and by relaxed loads of at most 8
//!    bytes, which are no writes on any processor (`std::sync::atomic`, "Atomic accesses to
//!    read-only memory"); a fence behind them orders them ([`Published::acquire`]).

use crate::arena::Mapping;
use crate::sync::{Ordering, fence};
use crate::{Error, SharedBytes};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::Arc;

/// The end that writes.
#[derive(Debug)]
pub struct Publisher {
    fd: OwnedFd,
    bytes: SharedBytes,
}

/// The end that reads. Cloning is cheap and keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Published {
    bytes: SharedBytes,
}

impl Publisher {
    /// `bytes` of zeroes that only this process can write; its forks find zeroes of their own
    /// there.
    ///
    /// # Errors
    /// [`Error::System`]: the kernel has no memory, or is older than 5.1.
    pub fn create(bytes: u64) -> Result<Publisher, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("samite-published", flags)
            .map_err(Error::system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(Error::system("ftruncate"))?;
        let mapped = map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SEALS | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::system("fcntl(F_ADD_SEALS)"))?;
        Ok(Publisher { fd, bytes: mapped })
    }

    /// The descriptor, to be sent to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The bytes, to be written.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// The same bytes as this process reads them.
    pub fn published(&self) -> Published {
        Published {
            bytes: self.bytes.clone(),
        }
    }
}

impl Published {
    /// Maps what another process publishes.
    ///
    /// # Errors
    /// [`Error::System`]: the file could shrink, or others than its creator could write it.
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

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The 8 aligned bytes at `offset`. Ordered by [`Published::acquire`] only.
    ///
    /// # Panics
    /// There are no such bytes here.
    #[inline(always)]
    pub fn u64(&self, offset: u64) -> u64 {
        // ORDERING: Relaxed (P3).
        self.bytes.u64(offset).load(Ordering::Relaxed)
    }

    /// The 4 aligned bytes at `offset`, like [`Published::u64`].
    #[inline(always)]
    pub fn u32(&self, offset: u64) -> u32 {
        // ORDERING: Relaxed (P3).
        self.bytes.u32(offset).load(Ordering::Relaxed)
    }

    /// Copies `into.len()` bytes out; while the creator writes them they are unspecified.
    ///
    /// # Panics
    /// There are no such bytes here.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.bytes.read(offset, into);
    }

    /// What is read after this was written no earlier than what was read before it: pairs with a
    /// Release store of the word that was read last.
    #[inline(always)]
    pub fn acquire(&self) {
        // ORDERING: Acquire: with the relaxed loads before it, the partner of the creator's Release
        // stores (P3).
        fence(Ordering::Acquire);
    }
}

/// What the file is protected by.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);

fn map(fd: &OwnedFd, bytes: u64, access: ProtFlags) -> Result<SharedBytes, Error> {
    let len = usize::try_from(bytes).map_err(|_| Error::System {
        call: "mmap",
        source: std::io::Error::other("the file is larger than the address space"),
    })?;
    // SAFETY: P1 begins here: at an address of the kernel's choice, so that it replaces nothing;
    // the file has `len` bytes, of which none can vanish (P2).
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
    use rustix::fs::FallocateFlags;
    use rustix::io::Errno;
    use rustix::mm::MprotectFlags;

    const BYTES: u64 = 8192;

    fn publisher() -> Publisher {
        let publisher = Publisher::create(BYTES).unwrap();
        publisher.bytes().u64(64).store(7, Ordering::Relaxed);
        publisher
    }

    /// Whoever has the descriptor tries all there is.
    #[test]
    fn nobody_else_can_write() {
        let publisher = publisher();
        let fd = publisher.fd();
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let attempt = |access, flags| {
            // SAFETY: a mapping beside that of P1, at an address of the kernel's choice, of as many
            // bytes as the file has.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES as usize, access, flags, fd, 0) }
        };
        let refused = Err(Errno::PERM);
        assert_eq!(attempt(read_write, MapFlags::SHARED), refused);
        assert_eq!(attempt(ProtFlags::WRITE, MapFlags::SHARED), refused);
        let reader = Published::attach(fd.try_clone_to_owned().unwrap()).unwrap();
        let base = reader.bytes.pointer();
        // SAFETY: the whole of a mapping (P1) that this test made; a permission more takes nothing
        // from anybody.
        let more =
            unsafe { rustix::mm::mprotect(base.cast(), BYTES as usize, MprotectFlags::WRITE) };
        assert_eq!(more, Err(Errno::ACCESS));
        assert_eq!(rustix::io::pwrite(fd, &[1; 8], 64), Err(Errno::PERM));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(fd, punch, 0, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        // Opened anew, it is the same file.
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let flags = rustix::fs::OFlags::RDWR;
        let opened = rustix::fs::open(link, flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(rustix::io::pwrite(&opened, &[1; 8], 64), Err(Errno::PERM));
        assert!(map(&opened, BYTES, read_write).is_err());
        // A private copy is the copier's own affair.
        assert!(attempt(read_write, MapFlags::PRIVATE).is_ok());
        assert_eq!(reader.u64(64), 7);
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
