//! A listening socket in the loop of the agent.

use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::{SocketFlags, accept_with};
use std::time::{Duration, Instant};

/// The pause after a connection could not be accepted, as when no descriptors are left: the
/// listener stays ready, and polling it would return at once, again and again.
const PAUSE: Duration = Duration::from_millis(50);

/// A listening socket that is not polled for a while after an error.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    pause_until: Option<Instant>,
}

impl Listener {
    pub(super) fn new(socket: OwnedFd) -> Listener {
        Listener {
            socket,
            pause_until: None,
        }
    }

    /// Returns what has to be polled.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let listens = match self.resumes_in() {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        PollFd::new(&self.socket, listens)
    }

    /// Returns after how long it is to be polled again, if it is not polled now.
    pub(super) fn resumes_in(&self) -> Option<Duration> {
        let until = self.pause_until?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Accepts a connection, if one waits. A blocking listener has to be ready.
    pub(super) fn accept(&mut self) -> Option<OwnedFd> {
        let accepted = accept_with(&self.socket, SocketFlags::CLOEXEC);
        self.take(accepted)
    }

    fn take(&mut self, accepted: io::Result<OwnedFd>) -> Option<OwnedFd> {
        match accepted {
            Ok(socket) => Some(socket),
            Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) => None,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                self.pause_until = Some(Instant::now() + PAUSE);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::agent::control;

    /// Without descriptors, the agent does not ask the kernel again and again.
    #[test]
    fn a_listener_pauses_after_an_error() {
        let mut listener = Listener::new(control::socket().unwrap());
        assert!(listener.take(Err(Errno::AGAIN)).is_none());
        assert_eq!(listener.resumes_in(), None);
        assert!(listener.take(Err(Errno::MFILE)).is_none());
        let left = listener.resumes_in().expect("it pauses");
        assert!(left <= PAUSE);
        std::thread::sleep(PAUSE);
        assert_eq!(listener.resumes_in(), None);
    }
}
