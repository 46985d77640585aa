//! Signals as file descriptors: Ctrl-C for the job, SIGCHLD for its children.
//!
//! A handler writes a byte to a socket that the job polls. SIGCHLD needs one descriptor for all
//! children; with a pidfd for each, 32 units would not fit into 64 descriptors.

use crate::Error;
use crate::spawn::stop_with;
use nix::sys::signal::{SigSet, Signal};
use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::low_level::{pipe, unregister};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ctrl-C, SIGTERM, SIGHUP and Ctrl-Z, for which [`crate::run`] can wait.
///
/// The first of the first three asks the units to end, unless a failure has done so already.
/// Another one kills them, unless it comes so soon that it counts as the same request: `timeout`
/// and some terminals signal twice. Ctrl-Z stops the units and then the launcher; when the launcher
/// is continued, it continues the units. A signal that was ignored when this process started
/// (`nohup`) stays ignored. Dropping this value removes the handlers, but does not restore the
/// default effect of the signals: install it once, in the command.
#[derive(Debug)]
pub struct Interrupts {
    wake: UnixStream,
    end: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    /// Whether a signal has asked this process to end.
    asked: AtomicBool,
    ids: Vec<SigId>,
}

/// The signals since the last call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The last signal that asked the job to end.
    pub(crate) end: Option<i32>,
    /// Whether Ctrl-Z was among them.
    pub(crate) stop: bool,
}

impl Interrupts {
    /// Installs handlers for SIGINT, SIGTERM, SIGHUP and SIGTSTP in this process, except for those
    /// that it ignores.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no file descriptor left.
    pub fn install() -> Result<Self, Error> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let heard = |signals: &[i32]| -> Vec<i32> {
            let signals = signals.iter().copied();
            signals
                .filter(|signal| !is_ignored(&status, *signal))
                .collect()
        };
        Self::on(&heard(&[SIGINT, SIGTERM, SIGHUP]), &heard(&[SIGTSTP]))
            .map_err(|source| Error::system("watch for Ctrl-C", source))
    }

    fn on(end: &[i32], stop: &[i32]) -> io::Result<Self> {
        let (wake, hand) = wake_pair()?;
        let mut interrupts = Self {
            wake,
            end: Arc::default(),
            stop: Arc::default(),
            asked: AtomicBool::new(false),
            ids: Vec::new(),
        };
        // Actions run in this order: the number is stored before the byte is sent.
        for &signal in end {
            let (last, number) = (Arc::clone(&interrupts.end), signal.unsigned_abs() as usize);
            let id = signal_hook::flag::register_usize(signal, last, number)?;
            interrupts.ids.push(id);
        }
        for &signal in stop {
            let id = signal_hook::flag::register(signal, Arc::clone(&interrupts.stop))?;
            interrupts.ids.push(id);
        }
        for &signal in end.iter().chain(stop) {
            let id = pipe::register(signal, hand.try_clone()?)?;
            interrupts.ids.push(id);
        }
        Ok(interrupts)
    }

    /// For a wait outside of [`crate::run`]: returns the signal that has asked this process to end
    /// since the last call. On Ctrl-Z, stops this process until it is continued.
    pub fn ask_to_end(&self) -> Option<i32> {
        let heard = self.take();
        if heard.stop {
            stop_with(&[]);
        }
        heard.end
    }

    /// Returns true if a signal has asked this process to end since the handlers were installed.
    ///
    /// A run that had failed before the signal came reports its failure. A caller with more runs to
    /// start asks here.
    pub fn were_heard(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.end.load(Ordering::Relaxed) != 0
    }

    /// Returns what has arrived since the last call.
    pub(crate) fn take(&self) -> Heard {
        drain(&self.wake);
        let signal = i32::try_from(self.end.swap(0, Ordering::Relaxed));
        let end = signal.ok().filter(|signal| *signal != 0);
        if end.is_some() {
            self.asked.store(true, Ordering::Relaxed);
        }
        Heard {
            end,
            stop: self.stop.swap(false, Ordering::Relaxed),
        }
    }
}

/// Returns true if a process with this status ignores a signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
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

/// Becomes readable when a child of this process has ended.
#[derive(Debug)]
pub(crate) struct ChildWatch {
    wake: UnixStream,
    id: SigId,
}

impl ChildWatch {
    pub(crate) fn install() -> Result<Self, Error> {
        let register = || {
            let (wake, hand) = wake_pair()?;
            let watch = Self {
                wake,
                id: pipe::register(SIGCHLD, hand)?,
            };
            // The parent of this process may have blocked it, and a new process inherits that.
            SigSet::from(Signal::SIGCHLD).thread_unblock()?;
            Ok(watch)
        };
        register().map_err(|source: io::Error| Error::system("watch for ended children", source))
    }

    /// Clears the wake-ups so far. Returns true if there were any. Check the children after this,
    /// not before.
    pub(crate) fn clear(&self) -> bool {
        drain(&self.wake)
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

pub(crate) fn wake_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (wake, hand) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    hand.set_nonblocking(true)?;
    Ok((wake, hand))
}

/// Takes all wake-ups. Returns true if there were any.
pub(crate) fn drain(mut wake: &UnixStream) -> bool {
    let mut bytes = [0; 256];
    let mut any = false;
    while let Ok(1..) = wake.read(&mut bytes) {
        any = true;
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGUSR1, SIGUSR2};

    #[test]
    fn signals_are_heard_and_named() {
        let interrupts = Interrupts::on(&[SIGUSR1], &[SIGUSR2]).expect("handlers can be installed");
        let nothing = Heard {
            end: None,
            stop: false,
        };
        assert_eq!(interrupts.take(), nothing);
        assert!(!interrupts.were_heard());
        for signal in [SIGUSR1, SIGUSR2, SIGUSR1] {
            signal_hook::low_level::raise(signal).expect("a signal to oneself");
        }
        let both = Heard {
            end: Some(SIGUSR1),
            stop: true,
        };
        assert_eq!(interrupts.take(), both);
        assert_eq!(interrupts.take(), nothing);
        assert!(interrupts.were_heard());
    }

    #[test]
    fn ignored_signals_are_found() {
        let status = "Name:\tsamite\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        let ignored = [SIGHUP, SIGINT, SIGTERM, 13].map(|signal| is_ignored(status, signal));
        assert_eq!(ignored, [true, false, false, true]);
        assert!(!is_ignored("", SIGHUP));
    }
}
