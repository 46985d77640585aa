//! Frames to units of other nodes, by UCX.
//!
//! ```text
//!   push(to): the first one connects               poll()
//!     32 bytes of head, inline | body  ------->      the worker's inbox, one message after another
//!     at most `REQUESTS` bytes under way               the head: for this life? from whom?
//! ```
//!
//! A frame is an active message of UCX. Who may send one is known from the agents: its number, its
//! incarnation, and the number of the domain, which only agents that know the secret get. What UCX
//! does not promise, order, comes from [`ordered`](super::ordered).
//!
//! # Invariants
//! U1 A connection belongs to one pair of incarnations, and is opened at the first frame: a process
//!    that talks to no other node has none.
//! U2 Nothing is read from the network while frames wait here, so what waits is what one call of
//!    UCX brought, and at most so many bytes of lives that the agents have not reported yet.
//! U3 A process that leaves says so to each peer that it has sent anything, and how much that was;
//!    it waits until each of them has taken it, is lost, or [`LINGER`] is over. Without that, the
//!    end of a connection could overtake what was sent on it.
//! U4 The agents report who is lost. A loss is announced only when nothing has arrived from that
//!    peer for [`QUIET`], and all that had is delivered (T4): what it sent before it died may be
//!    later than the news of its death. A peer to which no way leads is given up after some
//!    seconds, if no agent says before that it is lost, and is told so as soon as a way leads
//!    there: then each of both is lost to the other.
//!
//! # Files
//! `mod` (the transport) · `head` (the bytes before a frame) · `peers` (who is there, and lost)

mod head;
mod peers;
#[cfg(test)]
mod tests;

use super::{Caps, Class, Outgoing, Push, Rma, Sink, Sleep, Transport};
use crate::PeerId;
use crate::node::{Far, NodeMember};
use head::{Control, Head, Kind};
use peers::{AGAIN, Peers, QUIET};
use rustix::event::{PollFd, PollFlags};
use samite_mem::OwnerProcess;
use samite_mem::ring::Body;
use samite_ucx::{EndpointId, Error, LIMIT, Sent, Settings, Worker};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest body of a frame. Over TCP, UCX sends at most 64 KiB at once, its own heads included; of
/// what is longer, the receiver would put the parts together in memory of its own.
const BODY_MAX: u64 = 60 << 10;
/// Bytes under way to a peer, after which it takes no requests.
const REQUESTS: u64 = LIMIT / 2;
/// Frames that are delivered in one poll.
const POLL_MAX: usize = 64;
/// How long a process that leaves waits until others have what it sent.
const LINGER: Duration = Duration::from_secs(5);

/// The transport; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Ucx {
    worker: Worker,
    descriptor: Arc<OwnedFd>,
    owner: OwnerProcess,
    peers: Peers,
    start: Instant,
}

/// What a process has of UCX before it joins.
#[derive(Debug)]
pub(crate) struct Opened {
    worker: Worker,
    descriptor: OwnedFd,
}

/// Returns whether UCX can be loaded here.
pub fn has_ucx() -> bool {
    samite_ucx::is_here()
}

impl Opened {
    /// Creates the worker of a process that is about to join.
    pub(crate) fn new(far: &Far) -> Result<Opened, Error> {
        let worker = Worker::new(&Settings {
            transports: far.transport.transports.clone(),
            devices: far.transport.devices.clone(),
        })?;
        let descriptor = worker.descriptor()?;
        Ok(Opened { worker, descriptor })
    }

    /// Returns the address by which others connect.
    pub(crate) fn address(&self) -> &[u8] {
        self.worker.address()
    }
}

impl Ucx {
    /// Creates the transport of a process that has become a member of its node.
    pub(crate) fn new(opened: Opened, domain: u64, node: &NodeMember) -> Ucx {
        Ucx {
            worker: opened.worker,
            descriptor: Arc::new(opened.descriptor),
            owner: node.heap.owner(),
            peers: Peers::new(domain, node),
            start: Instant::now(),
        }
    }

    /// Returns a descriptor that becomes readable when something may have arrived, after
    /// [`Ucx::arm`].
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        self.descriptor.clone()
    }

    /// Prepares that descriptor for a sleep; returns false if there is something to do before.
    pub(crate) fn arm(&mut self) -> bool {
        if !self.owner.is_current() {
            return true;
        }
        let is_old = |epoch: u64| !self.peers.node.layout.peers.is_at(epoch);
        !self.peers.epoch_seen.is_none_or(is_old) && (self.peers.is_full() || self.worker.arm())
    }

    /// Returns after how long a poll is due although nothing arrives.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.peers.next_due()
    }

    /// Opens the way to a peer.
    fn connect(&mut self, to: PeerId) -> Option<EndpointId> {
        let known = self.peers.known.get(&to)?;
        let (incarnation, is_lost) = (known.incarnation, known.is_lost);
        let (told, address) = self.peers.node.others.address(to)?;
        if told != incarnation {
            return None; // The next poll learns it.
        }
        let way = match address.is_empty() {
            true => Err("it has no address of UCX".into()),
            false => (self.worker.connect(&address)).map_err(|error| error.to_string()),
        };
        match way {
            Ok(way) => {
                self.peers.known.get_mut(&to)?.way = Some(way);
                Some(way)
            }
            Err(why) => {
                if !is_lost {
                    let name = self.peers.node.name_of(to, Some(incarnation));
                    let name = name.unwrap_or_else(|| to.to_string().into());
                    tracing::error!(why, peer = %name, "a unit of another node cannot be reached");
                    self.peers.cannot_reach(to);
                }
                None
            }
        }
    }
}

/// The capabilities between units of different nodes.
const CAPS: Caps = Caps {
    inline_max: samite_mem::ring::INLINE_BYTES as u64,
    body_max: BODY_MAX,
    fragment: BODY_MAX, // Each is a system call.
    map: false,
    kernel_copy: false,
    sleeps: true,
    rma: Rma::None,
    atomics: false,
    is_ordered: false,
    reports_loss: true,
};

impl Transport for Ucx {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        if !self.owner.is_current() {
            return Push::Gone;
        }
        let known = self.peers.known.get(&to);
        let Some(known) = known.filter(|known| !known.is_over()) else {
            return Push::Gone;
        };
        if known.is_leaving() {
            return Push::Full;
        }
        // T3: replies find room where requests do not.
        let limit = match frame.class {
            Class::Request => REQUESTS,
            Class::Reply => LIMIT,
        };
        let push = self.send(to, Kind::Frame(frame.class, frame.kind), limit, frame);
        if push == Push::Done
            && let Some(known) = self.peers.known.get_mut(&to)
        {
            known.sent += 1;
        }
        push
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if !self.owner.is_current() {
            return 0;
        }
        let Ucx {
            worker,
            peers,
            owner,
            ..
        } = &mut *self;
        (peers.network.is_empty, peers.network.is_full) = (false, peers.is_full());
        let mut delivered = peers.membership(sink);
        loop {
            while delivered < POLL_MAX && !sink.satisfied() {
                let next = worker.next(|header, body| peers.frame(header, body, sink));
                if next.is_none() {
                    break;
                }
                delivered += 1;
            }
            // U2. What was delivered may have answers, which leave before the network is looked at
            // again.
            if worker.waiting() > 0 || delivered > 0 || sink.satisfied() || peers.is_full() {
                break;
            }
            peers.network.count += 1;
            let mut take = |header: &[u8], body: &[u8]| {
                peers.frame(header, body, sink);
                if !owner.is_current() {
                    // A handler has forked: the child would go on inside of UCX, and read from the
                    // connections of its parent.
                    eprintln!("samite: a process that was forked in a handler of messages ends");
                    std::process::abort();
                }
                delivered += 1;
                delivered < POLL_MAX && !sink.satisfied()
            };
            if !worker.progress_into(&mut take) && worker.waiting() == 0 {
                peers.network.is_empty = true;
                break;
            }
        }
        (peers.network.taken, peers.network.waiting) = (worker.taken(), worker.waiting() as u64);
        while let Some(way) = worker.next_broken() {
            peers.breaks(way);
        }
        if peers.next_due().is_some() {
            delivered += self.what_is_due(sink);
        }
        for way in std::mem::take(&mut self.peers.unused) {
            self.worker.close(way);
        }
        delivered
    }

    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        if !self.owner.is_current() {
            return;
        }
        self.peers.look_at(peer, sink);
        if self.peers.known.contains_key(&peer) {
            return;
        }
        // The peer is gone: a later poll announces its loss, after its last frames.
        self.peers.announce(peer, sink);
        self.peers.epoch_seen = None;
    }

    fn announce_sleep(&mut self, _: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        None // `spanning` sleeps for both transports.
    }

    fn leave(&mut self) {
        if self.owner.is_current() {
            self.say_goodbye();
        }
    }

    fn yield_now(&mut self) {
        std::thread::yield_now();
    }

    fn oversubscribed(&self) -> bool {
        false
    }
}

/// Takes nothing: this process leaves.
struct Nobody;

impl Sink for Nobody {
    fn frame(&mut self, _: super::Incoming<'_>) {}
    fn change(&mut self, _: super::Change) {}
}

impl Ucx {
    /// U3
    fn say_goodbye(&mut self) {
        let until = Instant::now() + LINGER;
        loop {
            let is_open = |known: &peers::Known| {
                known.sent > 0 && !known.has_all && !known.is_lost && !known.is_leaving()
            };
            let all = self.peers.known.iter().filter(|(_, known)| is_open(known));
            let open: Vec<(PeerId, u32, u64, bool)> = all
                .map(|(peer, known)| (*peer, known.incarnation, known.sent, known.knows_end))
                .collect();
            if open.is_empty() || Instant::now() > until {
                break;
            }
            for (peer, incarnation, sent, knows) in open {
                if !knows
                    && self.control((peer, incarnation), Control::Bye, sent) == Push::Done
                    && let Some(known) = self.peers.known.get_mut(&peer)
                {
                    known.knows_end = true;
                }
            }
            self.poll_or_sleep();
        }
        // Those that leave, too, wait for an answer.
        let until = Instant::now() + QUIET;
        while !self.peers.answers.is_empty() && Instant::now() < until {
            self.poll_or_sleep();
        }
    }

    /// Polls, and sleeps a little if nothing has arrived.
    fn poll_or_sleep(&mut self) {
        /// Not everything makes the descriptor readable.
        const AT_MOST: rustix::event::Timespec = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        };
        if self.poll(&mut Nobody) == 0 && self.worker.arm() {
            let mut fds = [PollFd::new(&*self.descriptor, PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&AT_MOST));
        }
    }

    /// Does what is due besides the frames that have arrived. Returns how many changes it reported.
    fn what_is_due(&mut self, sink: &mut dyn Sink) -> usize {
        for (peer, incarnation, what) in std::mem::take(&mut self.peers.answers) {
            let is_wanted = self.control((peer, incarnation), what, 0) == Push::Full
                && self.peers.is_alive(peer, incarnation)
                && self.peers.has_way(peer);
            if is_wanted {
                self.peers.answers.push((peer, incarnation, what));
            }
        }
        let now = Instant::now();
        self.peers.expire(now);
        for (peer, incarnation, due) in std::mem::take(&mut self.peers.given_up) {
            if !self.peers.is_alive(peer, incarnation) {
                continue;
            }
            let mut next = due;
            if now >= due {
                self.control((peer, incarnation), Control::GivenUp, 0);
                next = now + AGAIN;
            }
            self.peers.given_up.push((peer, incarnation, next));
        }
        self.peers.part(now, sink)
    }

    /// Says something to a life of a peer that is no frame.
    fn control(&mut self, (to, incarnation): (PeerId, u32), what: Control, arg: u64) -> Push {
        let nothing = Outgoing {
            class: Class::Reply,
            kind: 0,
            arg,
            inline: &[],
            body: Body::Slice(&[]),
        };
        let is_for_the_lost = matches!(what, Control::GivenUp | Control::Noted);
        let known = self.peers.known.get(&to);
        let is_there = known.is_some_and(|known| {
            known.incarnation == incarnation && (!known.is_lost || is_for_the_lost)
        });
        match is_there {
            true => self.send(to, Kind::Control(what), LIMIT, &nothing),
            false => Push::Gone,
        }
    }

    fn send(&mut self, to: PeerId, kind: Kind, limit: u64, frame: &Outgoing<'_>) -> Push {
        let Some(known) = self.peers.known.get(&to) else {
            return Push::Gone;
        };
        let (incarnation, way) = (known.incarnation, known.way);
        let Some(way) = way.or_else(|| self.connect(to)) else {
            return Push::Full;
        };
        let head = Head {
            domain: self.peers.domain,
            from: self.peers.me,
            incarnation: self.peers.node.incarnation,
            to: incarnation,
            kind,
            arg: frame.arg,
        };
        let (head, body) = (head.encode(), &frame.body);
        let parts: [&[u8]; 2] = [&head, frame.inline];
        let write = |to: &mut [u8]| body.copy_to(0, to);
        match (self.worker).send(way, limit, &parts, body.len() as usize, write) {
            Sent::Done => Push::Done,
            Sent::Full => Push::Full,
            Sent::Broken => {
                self.peers.breaks(way);
                Push::Full
            }
        }
    }
}
