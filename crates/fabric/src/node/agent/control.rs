//! The protocol between processes and the agent: one request, one answer, over a sequenced-packet
//! Unix socket. The process's side is in `client`, the agent's in `server`.
//!
//! The socket is in the abstract namespace (`samite/<uid>/<domain>`): it has no file, so nothing is
//! left behind after `kill -9`. Before the first byte, both sides ask the kernel for the other's
//! identity (`SO_PEERCRED`) and refuse other users. A member's request is carried out only for the
//! process that joined. A connection lasts for one request (two while a process joins): 32 units
//! then cost the agent 32 pidfds and no sockets.

use super::jobs::{Roster, Wanted};
use super::nodes::{Far, NodeFacts};
use crate::node::{Cpus, Slot};
use crate::waited::Left;
use crate::{Error, Identity, PeerId, PeerInfo, Whom};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Why there is no answer, or no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error(
        "no agent listens under this name for this user; start one with \
         `samite agent --domain NAME` or let `samite run` do it"
    )]
    NoAgent,
    #[error("the connection was closed")]
    Closed,
    #[error("no answer in time; is the agent stopped?")]
    NoAnswer,
    #[error(
        "this process was too slow to send its request each time, or too many others were joining"
    )]
    TooSlow,
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub(crate) fn of(errno: Errno) -> Failure {
        match errno {
            Errno::CONNREFUSED => Failure::NoAgent,
            Errno::CONNRESET | Errno::PIPE => Failure::Closed,
            // The queue of callers was full, or nothing came, until the time-out.
            Errno::AGAIN => Failure::NoAnswer,
            other => Failure::Other(other.to_string()),
        }
    }

    /// Returns the error of a process that wants to join a domain, or asks about it.
    pub(crate) fn of_joining(self, domain: &str) -> Error {
        Error::Join {
            domain: domain.to_owned(),
            why: self.to_string(),
        }
    }

    /// Returns the error of a member of a domain, which waited for so long.
    pub(crate) fn of_member(self, domain: &str, after: Duration) -> Error {
        match self {
            Failure::NoAgent | Failure::Closed => Error::AgentLost(domain.to_owned()),
            Failure::NoAnswer => Error::timeout("a request to the agent", Whom::Agent, after),
            Failure::TooSlow | Failure::Other(_) => Error::Request {
                domain: domain.to_owned(),
                why: self.to_string(),
            },
        }
    }
}

/// A request of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// To become a peer. Answered by `Joined` with the descriptors of the arena, of the table of
    /// peers and, in a domain of several nodes, of the table of other nodes' units; then the
    /// process sends `Confirm` on the same connection, and is a member when `Done` arrives.
    Join { identity: Identity, cpus: Cpus },
    /// The answer to `Join` has arrived, and the arena is mapped. In a domain of several nodes,
    /// units of other nodes reach this one by `address`.
    Confirm { address: Vec<u8> },
    /// An extent of at least so many bytes.
    Extent {
        peer: Slot,
        incarnation: u32,
        bytes: u64,
    },
    /// An extent is no longer needed.
    GiveBack {
        peer: Slot,
        incarnation: u32,
        offset: u64,
        bytes: u64,
    },
    /// Leaves the domain; from now on it counts as gone.
    Leave { peer: Slot, incarnation: u32 },
    /// To end a member that took a piece of a message which it helps to copy, and has not finished
    /// it long after the receiver gave the message up: only the end of its process frees the
    /// receiver's buffer. It is then lost to all.
    Evict {
        peer: Slot,
        incarnation: u32,
        /// The member and its incarnation.
        holder: (Slot, u32),
        /// Offset of the claim word in the arena.
        claim: u64,
    },
    /// To learn whether all of them have joined.
    Roster { asker: Identity, wanted: Wanted },
    /// The process of a unit has ended, according to the process that started it.
    Ended {
        job: String,
        unit: u32,
        name: String,
        how: String,
    },
    /// To learn the peers and the memory in use; of the peers, those with higher numbers.
    Facts { after: Option<PeerId> },
}

/// An answer of the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Joined {
        peer: Slot,
        incarnation: u32,
        /// In a domain of several nodes; the table of other nodes' units is the third descriptor.
        far: Option<Far>,
    },
    Granted {
        offset: u64,
        bytes: u64,
    },
    OverBudget {
        asked: u64,
        used: u64,
        budget: u64,
    },
    Done,
    Roster(Roster),
    /// The facts, and whether there are more peers.
    Facts(DomainFacts, bool),
    /// The request did not arrive in time, or too many processes are joining. It was not read: ask
    /// again.
    Again,
    Refused(String),
}

/// State of a domain, for `samite info`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DomainFacts {
    /// Its name.
    pub domain: String,
    /// Process id of the agent.
    pub agent_pid: i32,
    /// Budget of shared memory, in bytes.
    pub budget: u64,
    /// Bytes in extents.
    pub used: u64,
    /// Bytes that are resident in memory.
    pub resident: u64,
    /// The number of dead peers whose memory is kept, because not every survivor has seen their
    /// death yet.
    pub reclaiming: usize,
    /// The living peers of this node.
    pub peers: Vec<PeerInfo>,
    /// The nodes of a domain of several, this one first; otherwise none.
    pub nodes: Vec<NodeFacts>,
}

/// The longest request or answer; longer ones are refused.
const PACKET_MAX: usize = 256 << 10;
/// Peers in one answer: with the longest names they take a quarter of that, which every socket
/// accepts at once.
pub(super) const PEERS_OF_ANSWER: usize = 64;

/// The most descriptors of a request or answer.
const FDS_MAX: usize = 3;

/// Returns the domains of this user on this node, by name: those whose agents accept requests.
pub fn domains() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let start = format!("@{}", socket_name(""));
    let names = text.lines().filter_map(|line| line.split(' ').next_back());
    let names = names.filter_map(|name| name.strip_prefix(&start));
    // A connection has the name of its listener.
    let names: std::collections::BTreeSet<&str> = names.collect();
    names.into_iter().map(str::to_owned).collect()
}

fn socket_name(domain: &str) -> String {
    let uid = rustix::process::getuid().as_raw();
    format!("samite/{uid}/{domain}")
}

pub(crate) fn address(domain: &str) -> Result<SocketAddrUnix, String> {
    SocketAddrUnix::new_abstract_name(socket_name(domain).as_bytes())
        .map_err(|_| "the name is too long; keep it below 90 bytes".into())
}

pub(crate) fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Creates the socket on which the agent of a domain accepts callers, with a queue of `backlog`.
pub(crate) fn bind(domain: &str, backlog: i32) -> Result<OwnedFd, Error> {
    let fail = |errno: Errno| Error::Join {
        domain: domain.to_owned(),
        why: match errno {
            Errno::ADDRINUSE => {
                "an agent with this name is already running; join it or choose another name".into()
            }
            errno => errno.to_string(),
        },
    };
    let listener = socket().map_err(fail)?;
    let address = address(domain).map_err(|why| Failure::Other(why).of_joining(domain))?;
    rustix::net::bind(&listener, &address).map_err(fail)?;
    rustix::net::listen(&listener, backlog).map_err(fail)?;
    Ok(listener)
}

pub(crate) fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    value: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Failure> {
    let text = serde_json::to_vec(value).map_err(|e| Failure::Other(e.to_string()))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL;
    // With a timeout set, the kernel does not restart the call after a signal.
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, flags))
        .map(|_| ())
        .map_err(Failure::of)
}

/// Sends a final answer to a caller whose connection is closed next. What the caller sends
/// meanwhile is dropped, and it cannot send anything later: closing a connection with unread data
/// would lose the answer, too.
pub(super) fn turn_away(socket: BorrowedFd<'_>, word: &Answer) {
    let _ = send(socket, word, &[]);
    let _ = rustix::net::shutdown(socket, Shutdown::Read);
    let now = RecvFlags::DONTWAIT;
    while let Ok((1.., _)) = rustix::net::recv(socket, &mut [0; 1], now) {}
}

/// Waits until something can be [received](receive), at most for the given time.
pub(crate) fn has_come(socket: BorrowedFd<'_>, at_most: Duration) -> bool {
    has_come_by(socket, &mut Left::new(at_most))
}

/// As [`has_come`], as long as time is left. After a signal the kernel would wait as long again,
/// and after a stop of this process not at all: so it waits in pieces.
pub(super) fn has_come_by(socket: BorrowedFd<'_>, left: &mut Left) -> bool {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        let piece = left.piece();
        let time = rustix::event::Timespec::try_from(piece).ok();
        match rustix::event::poll(&mut fds, time.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(0) if !left.get().is_zero() => {}
            count => return count.is_ok_and(|count| count > 0),
        }
    }
}

/// Receives a request or an answer. It should [have come](has_come): this wait has no deadline of
/// its own.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
    socket: BorrowedFd<'_>,
) -> Result<(T, Vec<OwnedFd>), Failure> {
    // A packet is received whole or cut off, so the buffer has the maximum size.
    let mut bytes = vec![0; PACKET_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = retry_on_intr(|| rustix::net::recvmsg(socket, slices, &mut ancillary, flags))
        .map_err(Failure::of)?;
    if got.bytes == 0 {
        return Err(Failure::Closed);
    }
    // Missing descriptors must be an error here: a message may be meaningless without them.
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Failure::Other(
            "the kernel cut descriptors off: this process has no more of them (ulimit -n), or too many were sent"
                .to_owned(),
        ));
    }
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            fds.extend(sent);
        }
    }
    let value = serde_json::from_slice(&bytes[..got.bytes]);
    let value = value.map_err(|e| Failure::Other(e.to_string()))?;
    Ok((value, fds))
}

/// Checks that the other end of a socket runs as the same user and is visible here; returns its
/// process id.
pub(crate) fn check_credentials(socket: BorrowedFd<'_>) -> Result<i32, String> {
    let theirs = samite_mem::peer_credentials(socket).map_err(|e| e.to_string())?;
    let ours = rustix::process::getuid().as_raw();
    if theirs.uid != ours {
        return Err(format!(
            "the other side runs as user {}, this one as user {ours}; only the same user may join",
            theirs.uid
        ));
    }
    if theirs.pid <= 0 {
        return Err(
            "the process and the agent are in different pid namespaces (containers), where neither can watch \
             the other; start both in the same one"
                .to_owned(),
        );
    }
    Ok(theirs.pid)
}

pub(crate) fn set_timeout(socket: BorrowedFd<'_>, time: Duration) -> Result<(), String> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, which, Some(time)).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn what_was_not_said_has_not_come() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (here, there) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        assert!(!has_come(here.as_fd(), Duration::from_millis(1)));
        send(there.as_fd(), &Request::Facts { after: None }, &[]).unwrap();
        assert!(has_come(here.as_fd(), LONG));
    }
}
