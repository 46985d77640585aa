//! Signals as file descriptors: Ctrl-C for the job, SIGCHLD for its children.
//!
//! A handler writes a byte into a socket that the job polls. SIGCHLD needs one descriptor for all
//! children, where a pidfd for each would not fit 32 units into 64 descriptors.

use crate::Error;
use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ctrl-C, SIGTERM and SIGHUP, to be waited for by [`crate::run`].
///
/// The first one asks the units to end, the second one kills them. The handlers go with this value,
/// but the default effect of the signals does not come back: install it once, in the command.
#[derive(Debug)]
pub struct Interrupts {
    wake: UnixStream,
    last: Arc<AtomicUsize>,
    ids: Vec<SigId>,
}

impl Interrupts {
    /// Installs handlers for SIGINT, SIGTERM and SIGHUP in this process.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor left.
    pub fn install() -> Result<Self, Error> {
        Self::on(&[SIGINT, SIGTERM, SIGHUP])
            .map_err(|source| Error::system("watch for Ctrl-C", source))
    }

    fn on(signals: &[i32]) -> io::Result<Self> {
        let (wake, hand) = wake_pair()?;
        let mut interrupts = Self {
            wake,
            last: Arc::default(),
            ids: Vec::new(),
        };
        for &signal in signals {
            // Actions run in this order: the number is there when the byte is.
            let last = Arc::clone(&interrupts.last);
            interrupts.ids.push(signal_hook::flag::register_usize(
                signal,
                last,
                signal.unsigned_abs() as usize,
            )?);
            interrupts
                .ids
                .push(pipe::register(signal, hand.try_clone()?)?);
        }
        Ok(interrupts)
    }

    /// How many signals came since the last call, and which was the last.
    pub(crate) fn take(&self) -> Option<(usize, i32)> {
        let count = drain(&self.wake);
        let signal = i32::try_from(self.last.load(Ordering::Relaxed)).unwrap_or(SIGTERM);
        (count > 0).then_some((count, signal))
    }
}

impl AsFd for Interrupts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            unregister(id);
        }
    }
}

/// Becomes readable when a child of this process ended.
#[derive(Debug)]
pub(crate) struct ChildWatch {
    wake: UnixStream,
    id: SigId,
}

impl ChildWatch {
    pub(crate) fn install() -> Result<Self, Error> {
        let register = || {
            let (wake, hand) = wake_pair()?;
            Ok(Self {
                wake,
                id: pipe::register(SIGCHLD, hand)?,
            })
        };
        register().map_err(|source: io::Error| Error::system("watch for ended children", source))
    }

    /// Forgets the wake-ups so far; look at the children after this, not before.
    pub(crate) fn clear(&self) {
        drain(&self.wake);
    }
}

impl AsFd for ChildWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for ChildWatch {
    fn drop(&mut self) {
        unregister(self.id);
    }
}

fn wake_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (wake, hand) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    Ok((wake, hand))
}

fn drain(mut wake: &UnixStream) -> usize {
    let mut bytes = [0; 256];
    let mut count = 0;
    while let Ok(more @ 1..) = wake.read(&mut bytes) {
        count += more;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGUSR1;

    #[test]
    fn signals_are_counted_and_named() {
        let interrupts = Interrupts::on(&[SIGUSR1]).expect("handlers can be installed");
        assert_eq!(interrupts.take(), None);
        signal_hook::low_level::raise(SIGUSR1).expect("a signal to oneself");
        signal_hook::low_level::raise(SIGUSR1).expect("a signal to oneself");
        assert_eq!(interrupts.take(), Some((2, SIGUSR1)));
        assert_eq!(interrupts.take(), None);
    }
}
