//! The system calls for which there is no safe wrapper.
//!
//! # Invariants
//! S1 Every pointer passed to the kernel comes from a live slice or value of the caller with its own length.
//! S2 Addresses in *another* process are numbers: the kernel checks them, a wrong one is `EFAULT`.
//! S3 The own process is never written through the kernel: that would be a way around every borrow.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

// From <linux/membarrier.h>.
const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// How often the processes that led to this one have forked since the first [`OwnerProcess`] of them.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which a value was made. A fork of it has a copy of the value and shares what lies in the arena, and must
/// not use it: two processes with the same end of a ring overwrite each other's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u64);

impl OwnerProcess {
    /// This process.
    ///
    /// # Panics
    /// There is no memory to register what runs in a fork.
    pub fn current() -> OwnerProcess {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: no pointer but that of a function which lives as long as the program, and which does in a child
            // only what is allowed there, even between the threads of the parent: it adds to an atomic.
            let result = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            assert_eq!(result, 0, "no memory is left to watch for forks");
        });
        OwnerProcess(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is the one in which the value was made, and no fork of it. One load.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        // ORDERING: Relaxed: it changes only in `fork`, before any code of the child runs.
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

fn call_membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes three integers and touches no memory of ours (S1 is empty).
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process for expedited global memory barriers and from now on lets
/// [`crate::sync::light_fence`] be free. Returns whether the kernel can; all processes that share
/// doorbells must get the same answer (the fabric compares it when a unit joins).
pub fn enable_asymmetric_fences() -> bool {
    let able = call_membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
        && call_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    // ORDERING: Release pairs with the Relaxed load in `asymmetric`, which only needs the flag.
    ASYMMETRIC.store(able, Ordering::Release);
    able
}

#[inline(always)]
pub(crate) fn asymmetric() -> bool {
    ASYMMETRIC.load(Ordering::Relaxed)
}

pub(crate) fn membarrier() {
    // It worked at registration; if it fails now (a filter installed later) only a full fence on the
    // other side could help, which we cannot force: stop rather than lose a wake-up silently.
    assert!(
        call_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED),
        "membarrier was taken away from this process after it had been granted"
    );
}

/// Copies from `address` of process `pid` into `into`; returns the bytes copied.
pub(crate) fn read_process(pid: i32, address: u64, into: &mut [u8]) -> std::io::Result<usize> {
    read_process_raw(pid, address, into.as_mut_ptr(), into.len())
}

/// Copies `from` to `address` of process `pid`; returns the bytes copied.
pub(crate) fn write_process(pid: i32, address: u64, from: &[u8]) -> std::io::Result<usize> {
    write_process_raw(pid, address, from.as_ptr(), from.len())
}

/// As [`read_process`], into memory that only its pointer may stand for (shared bytes). A pointer
/// that is not writable for `len` bytes is `EFAULT` or overwrites what the caller vouched for (S1).
pub(crate) fn read_process_raw(
    pid: i32,
    address: u64,
    into: *mut u8,
    len: usize,
) -> std::io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.cast(),
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: S1 for `local`: both callers derive it from a live range of `len` bytes; S2 for `remote`.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(n).map_err(|_| std::io::Error::last_os_error())
}

/// As [`write_process`], from shared bytes.
pub(crate) fn write_process_raw(
    pid: i32,
    address: u64,
    from: *const u8,
    len: usize,
) -> std::io::Result<usize> {
    if pid == std::process::id() as i32 {
        return Err(std::io::ErrorKind::PermissionDenied.into()); // S3
    }
    write_anywhere(pid, address, from, len)
}

/// Writes to pages of this process that the caller owns, as if they were another's: calibration.
pub(crate) fn write_own_pages(
    to: &crate::copy::calibrate::Target,
    offset: u64,
    from: &[u8],
) -> bool {
    let pid = std::process::id() as i32;
    let address = to.address(offset, from.len() as u64);
    write_anywhere(pid, address, from.as_ptr(), from.len()).is_ok_and(|n| n == from.len())
}

/// Who connected to, or listens on, the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id, as this process sees it; 0 for a process of another pid namespace that has none here.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

/// The credentials of the process at the other end of a connected Unix socket (`SO_PEERCRED`).
///
/// # Errors
/// Those of `getsockopt`.
pub fn peer_credentials(socket: impl AsFd) -> std::io::Result<PeerCredentials> {
    // Of libc, because the process id may be 0: rustix says that it never is.
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: S1: the kernel writes at most `len` bytes into `found`, which is as long and takes any bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut len,
        )
    };
    if result != 0 || len as usize != size_of::<libc::ucred>() {
        return Err(std::io::Error::last_os_error());
    }
    Ok(PeerCredentials {
        pid: found.pid,
        uid: found.uid,
    })
}

fn write_anywhere(pid: i32, address: u64, from: *const u8, len: usize) -> std::io::Result<usize> {
    let local = libc::iovec {
        iov_base: from as *mut libc::c_void,
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: S1 for `local`, which the call only reads; S2 for `remote`.
    let n = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(n).map_err(|_| std::io::Error::last_os_error())
}
