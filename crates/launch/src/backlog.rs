//! Counts what the caller has taken and not shown yet, so that a slow reader slows the units down
//! but not the launcher.

use crate::Error;
use crate::signals::{drain, wake_pair};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// From here on, no more output is read from the units, which then wait for space in their pipes.
const FULL: usize = 4 << 20;

/// Bytes that the caller of [`crate::run`] has queued for a reader that may stop reading (a pager,
/// a terminal).
///
/// The caller adds what it queues and subtracts what it has shown, from any thread. While more than
/// 4 MiB are queued, the launcher reads no output, but it continues to receive signals and to end
/// units.
#[derive(Debug, Clone)]
pub struct Backlog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes: AtomicUsize,
    wake: UnixStream,
    hand: UnixStream,
}

impl Backlog {
    /// Creates an empty backlog.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no file descriptor left.
    pub fn new() -> Result<Self, Error> {
        let (wake, hand) =
            wake_pair().map_err(|source| Error::system("watch what is shown", source))?;
        let bytes = AtomicUsize::new(0);
        Ok(Self(Arc::new(Shared { bytes, wake, hand })))
    }

    /// Adds bytes that were queued.
    pub fn add(&self, bytes: usize) {
        // ORDERING: Relaxed, here and below: it is a count, and no other data depend on it.
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes that were shown.
    pub fn remove(&self, bytes: usize) {
        let before = self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before >= FULL && before.saturating_sub(bytes) < FULL {
            // If the socket is full of wake-ups, one more is not needed.
            let _ = (&self.0.hand).write(&[1]);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        drain(&self.0.wake);
        self.0.bytes.load(Ordering::Relaxed) >= FULL
    }
}

/// Readable when it is no longer full.
impl AsFd for Backlog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_wakes_when_there_is_room_again() {
        let backlog = Backlog::new().expect("a socket");
        let is_awake = || {
            let mut bytes = [0; 1];
            let wake = &backlog.0.wake;
            rustix::net::recv(wake, &mut bytes, rustix::net::RecvFlags::PEEK).is_ok()
        };
        backlog.add(FULL);
        assert!(backlog.is_full());
        backlog.add(1);
        backlog.remove(1);
        assert!(!is_awake());
        backlog.remove(1);
        assert!(is_awake());
        assert!(!backlog.is_full());
        assert!(!is_awake());
    }
}
