//! System calls that have no safe wrapper.
//!
//! # Invariants
//! S1 Every pointer passed to the kernel comes from a live slice or value of the caller with its
//!    own length.
//! S2 Addresses in *another* process are numbers: the kernel checks them, a wrong one is `EFAULT`.
//! S3 This process never writes to itself through the kernel, neither by its own id nor by that of
//!    one of its threads, which the kernel also accepts: that would bypass every borrow.
//! S4 A registered range ([`WipedInForks`]) is one live mapping of shared memory, from before the
//!    process can use it until after its last use. Only a fork replaces it, before `fork` returns
//!    in it (handlers for children that were registered before ours run earlier).
//! S5 An entry of the list of these ranges is complete before it is in the list, and never freed.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

// From <linux/membarrier.h>.
const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Number of forks that led to this process since the first [`OwnerProcess`] of its ancestors.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Returns that count.
pub(crate) fn forks() -> u64 {
    // ORDERING: Relaxed: it changes only in a child, before `fork` returns there.
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    crate::biased::forked();
    // ORDERING: Acquire pairs with the Release of the exchange in `WipedInForks::new`.
    let mut next = MAPPINGS.load(Ordering::Acquire).cast_const();
    // SAFETY: S5.
    while let Some(entry) = unsafe { next.as_ref() } {
        entry.wipe();
        next = entry.next;
    }
}

/// Runs [`forked`] in every fork of this process, from now on.
///
/// # Panics
/// The system has no memory to register the handler for forks.
pub(crate) fn watch_for_forks() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: S1: the only pointer is that of a function, which lives as long as the program.
        // In a child, it does only what is allowed there, even if it interrupted threads of the
        // parent: atomics and one system call (S4, S5).
        let result = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        assert_eq!(result, 0, "no memory is left to watch for forks");
    });
}

/// The mappings that are wiped in a fork: a list that only grows, because another thread may fork
/// at any time. Its entries are reused.
static MAPPINGS: AtomicPtr<Registered> = AtomicPtr::new(std::ptr::null_mut());

#[derive(Debug)]
struct Registered {
    /// Start of the mapping; [`FREE`], or [`TAKEN`] while the length is written.
    base: AtomicUsize,
    len: AtomicUsize,
    next: *const Registered,
}

const FREE: usize = 0;
/// No mapping begins at this address.
const TAKEN: usize = 1;

impl Registered {
    /// In a fork: replaces the mapping with private zeroes. Reads find no offered segment, and
    /// writes affect no other process.
    fn wipe(&self) {
        // ORDERING: Acquire pairs with the Release store in `WipedInForks::new`: the length is
        // visible.
        let base = self.base.load(Ordering::Acquire);
        if base == FREE || base == TAKEN {
            return;
        }
        let len = self.len.load(Ordering::Relaxed);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // Writable memory, unless the system does not overcommit (and counts pages that are never
        // touched).
        for access in [libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ] {
            // SAFETY: S4: the range is a mapping of the parent of which this process has a copy;
            // zeroes are as valid as any bytes there (M2 of the crate, and elements are `Pod`).
            let mapped = unsafe { libc::mmap(base as *mut _, len, access, flags, -1, 0) };
            if mapped != libc::MAP_FAILED {
                return;
            }
        }
        // SAFETY: it takes no pointer (S1) and may be called anywhere. A process in which S4 does
        // not hold, and which would write its parent's memory, must not go on.
        unsafe { libc::abort() }
    }
}

/// A mapping of shared memory that forks of this process do not have: they find private zeroes
/// there (as with `MADV_WIPEONFORK`, which the kernel offers for private memory only). So no access
/// by a fork through its copies of values reaches shared memory, and no access needs a test.
#[derive(Debug)]
pub(crate) struct WipedInForks(&'static Registered);

impl WipedInForks {
    /// Registers a mapping (S4).
    pub(crate) fn new(base: *mut u8, len: usize) -> WipedInForks {
        watch_for_forks();
        let entry = Self::entry();
        entry.len.store(len, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire load in `wipe`.
        entry.base.store(base as usize, Ordering::Release);
        WipedInForks(entry)
    }

    /// Returns an entry that is [`TAKEN`] for this caller.
    fn entry() -> &'static Registered {
        // ORDERING: Acquire, as in `forked`.
        let mut head = MAPPINGS.load(Ordering::Acquire);
        let mut next = head.cast_const();
        // SAFETY: S5.
        while let Some(entry) = unsafe { next.as_ref() } {
            // ORDERING: Relaxed: the values written to it next are published by a Release store.
            let (from, to) = (Ordering::Relaxed, Ordering::Relaxed);
            if entry.base.compare_exchange(FREE, TAKEN, from, to).is_ok() {
                return entry;
            }
            next = entry.next;
        }
        let new = Box::into_raw(Box::new(Registered {
            base: AtomicUsize::new(TAKEN),
            len: AtomicUsize::new(0),
            next: head,
        }));
        loop {
            // ORDERING: Release pairs with the Acquire loads of the head.
            match MAPPINGS.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: S5: it was created above, and is in the list.
                Ok(_) => return unsafe { &*new },
                Err(now) => head = now,
            }
            // SAFETY: it was created above, and is not in the list yet (S5): no other thread has
            // seen it.
            unsafe { (*new).next = head };
        }
    }

    /// Ends the registration, before the unmapping: the addresses may be reused at once.
    pub(crate) fn end(&self) {
        // ORDERING: Release: after every access to the mapping.
        self.0.base.store(FREE, Ordering::Release);
    }
}

/// The process in which a value was created. A fork has a copy of the value, but none of the memory
/// that it shared with others, so using the copy would have no effect on other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u64);

impl OwnerProcess {
    /// Returns this process.
    ///
    /// # Panics
    /// The system has no memory to register the handler for forks.
    pub fn current() -> OwnerProcess {
        watch_for_forks();
        OwnerProcess(FORKS.load(Ordering::Relaxed))
    }

    /// Returns true if this is the process in which the value was created, and not a fork of it.
    /// One load.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        // ORDERING: Relaxed: it changes only in a child, before `fork` returns there.
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

fn call_membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes three integers and touches no memory of ours (S1 is empty).
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process for expedited global memory barriers; from now on,
/// [`crate::sync::light_fence`] is free. Returns true if the kernel supports this; all processes
/// that share doorbells must get the same answer (the fabric compares it when a unit joins).
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
    // It worked at registration. If it fails now (a filter installed later), only a full fence on
    // the other side could help, and this process cannot force one: stop rather than lose a wake-up
    // silently.
    assert!(
        call_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED),
        "membarrier was taken away from this process after it had been granted"
    );
}

/// Returns true if [`membarrier_threads`] works. The first call registers this process, which takes
/// some milliseconds if the process has threads; forks inherit the registration.
pub(crate) fn membarrier_threads_registered() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        call_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && call_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    })
}

/// Aborts the process where no caller could handle an error.
pub(crate) fn abort(why: &str) -> ! {
    let text = format!("samite: aborting, {why}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    std::process::abort()
}

/// Makes every thread of this process pass a full fence.
pub(crate) fn membarrier_threads() {
    let is_done = call_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        // A fork on a kernel that does not pass the registration on.
        || call_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && call_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    if !is_done {
        // As in `membarrier`: stop rather than let two threads in. A panic would leave the lock
        // held forever.
        abort("membarrier was taken away from this process after it had been granted");
    }
}

/// Copies from `address` of process `pid` into `into`; returns the number of bytes copied.
pub(crate) fn read_process(pid: i32, address: u64, into: &mut [u8]) -> std::io::Result<usize> {
    // SAFETY: S1: a slice that is borrowed for writing.
    unsafe { read_process_raw(pid, address, into.as_mut_ptr(), into.len()) }
}

/// Copies `from` to `address` of process `pid`; returns the number of bytes copied.
pub(crate) fn write_process(pid: i32, address: u64, from: &[u8]) -> std::io::Result<usize> {
    // SAFETY: S1: a borrowed slice.
    unsafe { write_process_raw(pid, address, from.as_ptr(), from.len()) }
}

/// Copies like [`read_process`], into memory to which there must be no reference (shared bytes).
///
/// # Safety
/// S1: `into` points to `len` bytes that the caller may write.
pub(crate) unsafe fn read_process_raw(
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
    // SAFETY: S1 for `local`, as the caller promises; S2 for `remote`.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(n).map_err(|_| std::io::Error::last_os_error())
}

/// Copies like [`write_process`], from shared bytes.
///
/// # Safety
/// S1: `from` points to `len` bytes that the caller may read.
pub(crate) unsafe fn write_process_raw(
    pid: i32,
    address: u64,
    from: *const u8,
    len: usize,
) -> std::io::Result<usize> {
    let own = std::process::id() as i32;
    // SAFETY: three integers (S1 is empty). Signal 0 is not sent: the call only finds out whether
    // `pid` is a thread of this process.
    let is_own_thread = || unsafe { libc::syscall(libc::SYS_tgkill, own, pid, 0) } == 0;
    if pid == own || is_own_thread() {
        return Err(std::io::ErrorKind::PermissionDenied.into()); // S3
    }
    // SAFETY: S1, as the caller promises; another process (S3, above).
    unsafe { write_anywhere(pid, address, from, len) }
}

/// Writes to pages of this process that the caller owns, as if they were another process's; for
/// calibration.
pub(crate) fn write_own_pages(
    to: &crate::copy::calibrate::Target,
    offset: u64,
    from: &[u8],
) -> bool {
    let pid = std::process::id() as i32;
    let address = to.address(offset, from.len() as u64);
    // SAFETY: S1: a borrowed slice. S3: the target owns these pages, and hands out no reference to
    // them.
    let written = unsafe { write_anywhere(pid, address, from.as_ptr(), from.len()) };
    written.is_ok_and(|n| n == from.len())
}

/// The process that is connected to, or listens on, the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id, as this process sees it; 0 for a process of another PID namespace that has
    /// no id in this one.
    pub pid: i32,
    /// Its user id.
    pub uid: u32,
}

/// Returns the credentials of the process at the other end of a connected Unix socket
/// (`SO_PEERCRED`).
///
/// # Errors
/// Those of `getsockopt`.
pub fn peer_credentials(socket: impl AsFd) -> std::io::Result<PeerCredentials> {
    // By libc, because the process id may be 0, which the type of rustix excludes.
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: S1: the kernel writes at most `len` bytes into `found`, which is that long and takes
    // any bytes.
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

/// Writes to any process.
///
/// # Safety
/// S1: `from` points to `len` bytes that the caller may read. S3: if it is this process,
/// `address..address+len` are the caller's to write.
unsafe fn write_anywhere(
    pid: i32,
    address: u64,
    from: *const u8,
    len: usize,
) -> std::io::Result<usize> {
    let local = libc::iovec {
        iov_base: from as *mut libc::c_void,
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: S1 for `local`, which the call only reads, as the caller promises; S2 for `remote`,
    // and S3.
    let n = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(n).map_err(|_| std::io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_of_this_process_is_written_to() {
        let (give, take) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            give.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
        });
        let thread = take.recv().unwrap().as_raw_nonzero().get();
        let value = AtomicU64::new(7);
        for pid in [thread, std::process::id() as i32] {
            let written = write_process(pid, value.as_ptr() as u64, &[9; 8]);
            assert!(written.is_err(), "{pid}");
        }
        assert_eq!(value.load(Ordering::Relaxed), 7);
        drop(end);
        other.join().unwrap();
    }
}
