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
//!    UCX brought, and at most [`EARLY_MAX`] of lives that the agents have not reported yet.
//! U3 A process that leaves says so to each peer that it has sent anything, and how much that was;
//!    it waits until each of them has taken it, is lost, or [`LINGER`] is over. Without that, the
//!    end of a connection could overtake what was sent on it.
//! U4 The agents report who is lost. A loss is announced only when nothing has arrived from that
//!    peer for [`QUIET`] (T4): what it sent before it died may be later than the news of its death.
//!    A peer to which UCX finds no way is lost after [`UNREACHABLE`], if no agent says so before.

use super::shm::BODY_MAX;
use super::{Caps, Change, Class, Incoming, Outgoing, Push, Rma, Sink, Sleep, Transport};
use crate::node::{Far, NodeMember, State};
use crate::{Error, PeerId};
use samite_mem::OwnerProcess;
use samite_mem::ring::Body;
use samite_ucx::{EndpointId, LIMIT, Sent, Settings, Worker};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Bytes under way to a peer, after which it takes no requests.
const REQUESTS: u64 = LIMIT / 2;
/// Frames that are delivered in one poll.
const POLL_MAX: usize = 64;
/// Bytes of frames from lives that the agents have not reported yet.
const EARLY_MAX: usize = 16 << 20;
/// How long nothing has arrived from a peer whose loss is announced.
const QUIET: Duration = Duration::from_millis(20);
/// How long a process that leaves waits until others have what it sent.
const LINGER: Duration = Duration::from_secs(5);
/// How long a peer may be unreachable.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// The head of a frame. The classes are those of frames, and [`CONTROL`].
///
/// ```text
/// 0 domain   8 peer   12 its incarnation   16 that of the receiver   20 kind   21 class   24 word
/// ```
const HEAD: usize = 32;
/// The class of what the transport itself says.
const CONTROL: u8 = 2;
/// The sender leaves; the word is how many frames it has sent.
const BYE: u8 = 0;
/// All frames have arrived of the receiver of this, which leaves.
const HEARD: u8 = 1;

/// The transport; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Ucx {
    worker: Worker,
    ends: Ends,
    start: Instant,
}

/// All but the worker.
#[derive(Debug)]
struct Ends {
    domain: u64,
    me: PeerId,
    node: NodeMember,
    owner: OwnerProcess,
    known: HashMap<PeerId, Known, foldhash::fast::RandomState>,
    early: VecDeque<Early>,
    early_bytes: usize,
    /// The epoch of which everything has been announced.
    epoch_seen: Option<u64>,
    /// Peers whose loss is announced when nothing more arrives.
    leaving: Vec<PeerId>,
    /// Peers that leave, and wait for an answer.
    waiting: Vec<PeerId>,
    /// Frames that were not for this life, or of nobody.
    refused: u64,
}

/// A peer that was announced.
#[derive(Debug)]
struct Known {
    incarnation: u32,
    way: Option<EndpointId>,
    /// Frames to and from it.
    sent: u64,
    arrived: u64,
    /// How many it had sent when it said that it leaves.
    leaves_after: Option<u64>,
    /// Whether it has all that was sent to it: this process leaves.
    has_all: bool,
    is_lost: bool,
    /// Since when it is lost, or cannot be reached, and whether the agents say so.
    leaving: Option<(Instant, bool)>,
    /// When something arrived while it was leaving.
    heard: Option<Instant>,
}

/// A frame of a life that the agents have not reported yet.
#[derive(Debug)]
struct Early {
    header: Vec<u8>,
    body: Vec<u8>,
}

/// What the head of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    domain: u64,
    from: PeerId,
    incarnation: u32,
    to: u32,
    kind: u8,
    class: u8,
    arg: u64,
}

impl Head {
    fn encode(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.domain.to_le_bytes());
        head[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        head[12..16].copy_from_slice(&self.incarnation.to_le_bytes());
        head[16..20].copy_from_slice(&self.to.to_le_bytes());
        (head[20], head[21]) = (self.kind, self.class);
        head[24..].copy_from_slice(&self.arg.to_le_bytes());
        head
    }

    fn decode(header: &[u8]) -> Option<(Head, &[u8])> {
        let (head, inline) = header.split_first_chunk::<HEAD>()?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let head = Head {
            domain: long(0),
            from: PeerId(word(8)),
            incarnation: word(12),
            to: word(16),
            kind: head[20],
            class: head[21],
            arg: long(24),
        };
        Some((head, inline))
    }
}

/// Returns whether UCX can be loaded here.
pub fn has_ucx() -> bool {
    samite_ucx::is_here()
}

/// Creates the worker of a process that is about to join, and returns it with its address.
pub(crate) fn prepare(far: &Far) -> Result<(Worker, Vec<u8>), Error> {
    let settings = Settings {
        transports: far.transport.transports.clone(),
        devices: far.transport.devices.clone(),
    };
    let worker = Worker::new(&settings);
    let worker = worker.map_err(|error| Error::Memory(error.to_string()))?;
    let address = worker.address().to_vec();
    Ok((worker, address))
}

impl Ucx {
    /// Creates the transport of a process that has become a member of its node.
    pub(crate) fn new(worker: Worker, far: &Far, node: &NodeMember) -> Ucx {
        let ends = Ends {
            domain: far.domain,
            me: node.peer(),
            owner: node.heap.owner(),
            node: node.clone(),
            known: HashMap::default(),
            early: VecDeque::new(),
            early_bytes: 0,
            epoch_seen: None,
            leaving: Vec::new(),
            waiting: Vec::new(),
            refused: 0,
        };
        Ucx {
            worker,
            ends,
            start: Instant::now(),
        }
    }

    /// Returns a descriptor that becomes readable when something may have arrived, after
    /// [`Ucx::arm`].
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Error> {
        let fd = self.worker.descriptor();
        fd.map_err(|error| Error::Memory(error.to_string()))
    }

    /// Prepares that descriptor for a sleep; returns false if there is something to do before.
    pub(crate) fn arm(&mut self) -> bool {
        let is_old = |epoch: u64| !self.ends.node.layout.peers.is_at(epoch);
        !self.ends.epoch_seen.is_none_or(is_old) && self.worker.arm()
    }

    /// Returns after how long a loss is due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        (!self.ends.leaving.is_empty()).then_some(QUIET)
    }

    /// Opens the way to a peer.
    fn connect(&mut self, to: PeerId) -> Option<EndpointId> {
        let known = self.ends.known.get(&to)?;
        let (incarnation, address) = self.ends.node.others.address(to)?;
        if incarnation != known.incarnation || address.is_empty() {
            return None;
        }
        match self.worker.connect(&address) {
            Ok(way) => {
                self.ends.known.get_mut(&to)?.way = Some(way);
                Some(way)
            }
            Err(error) => {
                let name = self.ends.node.name_of(to, Some(incarnation));
                let name = name.unwrap_or_else(|| to.to_string().into());
                tracing::error!(%error, peer = %name, "a unit of another node cannot be reached");
                self.ends.cannot_reach(to);
                None
            }
        }
    }
}

impl Ends {
    fn cannot_reach(&mut self, peer: PeerId) {
        if let Some(known) = self.known.get_mut(&peer)
            && known.leaving.is_none()
        {
            known.leaving = Some((Instant::now(), false));
            self.leaving.push(peer);
        }
    }

    /// Announces the life of a peer that the agents reported last.
    fn announce(&mut self, peer: PeerId, sink: &mut dyn Sink) {
        let Some(info) = self.node.others.info(peer) else {
            return;
        };
        let known = Known {
            incarnation: info.incarnation,
            way: None,
            sent: 0,
            arrived: 0,
            leaves_after: None,
            has_all: false,
            is_lost: false,
            leaving: None,
            heard: None,
        };
        self.known.insert(peer, known);
        sink.change(Change::Joined(info, CAPS));
    }

    /// Announces the present state of a peer. Returns false if its loss comes later.
    fn look_at(&mut self, peer: PeerId, sink: &mut dyn Sink) -> bool {
        let Some((state, incarnation)) = self.node.others.state(peer) else {
            return true;
        };
        let is_alive = state == State::Alive;
        if let Some(known) = self.known.get_mut(&peer)
            && !known.is_lost
            && !(is_alive && known.incarnation == incarnation)
        {
            match &mut known.leaving {
                Some((_, is_told)) => *is_told = true,
                leaving => {
                    *leaving = Some((Instant::now(), true));
                    self.leaving.push(peer);
                }
            }
            return false;
        }
        let known = self.known.get(&peer);
        if is_alive && known.is_none_or(|known| known.incarnation != incarnation) {
            self.announce(peer, sink);
        }
        true
    }

    /// Announces changes of the peers that were announced.
    fn membership(&mut self, sink: &mut dyn Sink) {
        let epoch = self.node.layout.peers.epoch();
        if self.epoch_seen == Some(epoch) {
            return;
        }
        let all: Vec<PeerId> = self.known.keys().copied().collect();
        for peer in all {
            self.look_at(peer, sink);
        }
        self.epoch_seen = Some(epoch);
    }

    /// Delivers a frame, and announces its sender first. Returns false if the agents have not
    /// reported that life yet.
    fn frame(&mut self, header: &[u8], body: &[u8], sink: &mut dyn Sink) -> bool {
        let own = self.node.incarnation;
        let decoded = Head::decode(header);
        let is_right = |head: &Head, inline: &[u8]| {
            head.domain == self.domain
                && head.to == own
                && head.from.node() != self.me.node()
                && inline.len() as u64 <= CAPS.inline_max + super::ordered::PREFIX as u64
                && body.len() as u64 <= BODY_MAX
        };
        let Some((head, inline)) = decoded.filter(|(head, inline)| is_right(head, inline)) else {
            self.refused += 1;
            tracing::debug!(
                refused = self.refused,
                "a frame that is not for this process"
            );
            return true;
        };
        let (peer, incarnation) = (head.from, head.incarnation);
        let is_known = |known: &Known| !known.is_lost && known.incarnation == incarnation;
        if !self.known.get(&peer).is_some_and(is_known) {
            self.look_at(peer, sink);
            let told = self.node.others.state(peer);
            let told = told.map_or(0, |(_, incarnation)| incarnation);
            match self.known.get(&peer) {
                Some(known) if is_known(known) => {}
                // The frame is from an earlier life.
                Some(known) if known.incarnation >= incarnation => return true,
                _ if told > incarnation => return true,
                Some(Known { is_lost: false, .. }) => return false,
                _ if told < incarnation => return false,
                // The peer joined, sent and left: its loss is announced after its last frame.
                _ => {
                    self.announce(peer, sink);
                    self.epoch_seen = None;
                    if !self.known.get(&peer).is_some_and(is_known) {
                        return true; // Nobody knows any more who it was.
                    }
                }
            }
        }
        if let Some(known) = self.known.get_mut(&peer) {
            if known.leaving.is_some() {
                known.heard = Some(Instant::now());
            }
            match (head.class, head.kind) {
                (CONTROL, BYE) => known.leaves_after = Some(head.arg),
                (CONTROL, _) => known.has_all = true,
                _ => known.arrived += 1,
            }
            if known.leaves_after.is_some_and(|sent| sent <= known.arrived) {
                known.leaves_after = None;
                self.waiting.push(peer);
            }
        }
        if head.class == CONTROL {
            return true;
        }
        sink.frame(Incoming {
            from: peer,
            kind: head.kind,
            arg: head.arg,
            inline,
            body: Body::Slice(body),
        });
        true
    }
}

/// The capabilities between units of different nodes.
const CAPS: Caps = Caps {
    inline_max: samite_mem::ring::INLINE_BYTES as u64,
    body_max: BODY_MAX,
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
        if !self.ends.owner.is_current() {
            return Push::Gone;
        }
        let Some(known) = self.ends.known.get(&to).filter(|known| !known.is_lost) else {
            return Push::Gone;
        };
        if let Some((_, is_told)) = known.leaving {
            return if is_told { Push::Gone } else { Push::Full };
        }
        // T3: replies find room where requests do not.
        let (class, limit) = match frame.class {
            Class::Request => (0, REQUESTS),
            Class::Reply => (1, LIMIT),
        };
        let push = self.send(to, (class, frame.kind, frame.arg), limit, frame);
        if push == Push::Done
            && let Some(known) = self.ends.known.get_mut(&to)
        {
            known.sent += 1;
        }
        push
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if !self.ends.owner.is_current() {
            return 0;
        }
        let Ucx { worker, ends, .. } = &mut *self;
        ends.membership(sink);
        let mut delivered = 0;
        for _ in 0..ends.early.len() {
            let Some(early) = ends.early.pop_front() else {
                break;
            };
            if ends.frame(&early.header, &early.body, sink) {
                ends.early_bytes -= early.header.len() + early.body.len();
                delivered += 1;
            } else {
                ends.early.push_back(early);
            }
        }
        loop {
            while delivered < POLL_MAX && !sink.satisfied() {
                let next = worker.next(|header, body| {
                    if ends.frame(header, body, sink) {
                        return;
                    }
                    let bytes = header.len() + body.len();
                    if ends.early_bytes + bytes > EARLY_MAX {
                        ends.refused += 1;
                        tracing::error!("frames of a unit that no agent has reported are dropped");
                        return;
                    }
                    ends.early_bytes += bytes;
                    let (header, body) = (header.to_vec(), body.to_vec());
                    ends.early.push_back(Early { header, body });
                });
                if next.is_none() {
                    break;
                }
                delivered += 1;
            }
            // U2
            if worker.waiting() > 0 || delivered >= POLL_MAX || sink.satisfied() {
                break;
            }
            if !worker.progress() {
                break;
            }
        }
        for peer in std::mem::take(&mut self.ends.waiting) {
            if self.control(peer, HEARD, 0) == Push::Full {
                self.ends.waiting.push(peer);
            }
        }
        if !self.ends.leaving.is_empty() {
            delivered += self.part(sink);
        }
        delivered
    }

    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        if !self.ends.owner.is_current() {
            return;
        }
        self.ends.look_at(peer, sink);
        if self.ends.known.contains_key(&peer) {
            return;
        }
        // The peer is gone: a later poll announces its loss, after its last frames.
        self.ends.announce(peer, sink);
        self.ends.epoch_seen = None;
    }

    fn announce_sleep(&mut self, _: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        None // `spanning` sleeps for both transports.
    }

    fn leave(&mut self) {
        self.say_goodbye();
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
    fn frame(&mut self, _: Incoming<'_>) {}
    fn change(&mut self, _: Change) {}
}

impl Ucx {
    /// U3
    fn say_goodbye(&mut self) {
        if !self.ends.owner.is_current() {
            return;
        }
        let peers: Vec<PeerId> = self.ends.known.keys().copied().collect();
        let mut told = Vec::new();
        let until = Instant::now() + LINGER;
        loop {
            let is_open = |known: &Known| {
                known.sent > 0 && !known.has_all && !known.is_lost && known.leaving.is_none()
            };
            let open = |ucx: &Ucx, peer: &PeerId| ucx.ends.known.get(peer).is_some_and(is_open);
            for peer in &peers {
                let sent = self.ends.known.get(peer).map_or(0, |known| known.sent);
                if open(self, peer)
                    && !told.contains(peer)
                    && self.control(*peer, BYE, sent) == Push::Done
                {
                    told.push(*peer);
                }
            }
            if !peers.iter().any(|peer| open(self, peer)) || Instant::now() > until {
                break;
            }
            if self.poll(&mut Nobody) == 0 {
                std::thread::yield_now();
            }
        }
        // Those that leave, too, wait for an answer.
        let until = Instant::now() + QUIET;
        while !self.ends.waiting.is_empty() && Instant::now() < until {
            self.poll(&mut Nobody);
        }
    }
}

impl Ucx {
    /// Says something to a peer that is no frame.
    fn control(&mut self, to: PeerId, kind: u8, arg: u64) -> Push {
        let nothing = Outgoing {
            class: Class::Reply,
            kind,
            arg,
            inline: &[],
            body: Body::Slice(&[]),
        };
        let known = self.ends.known.get(&to).filter(|known| !known.is_lost);
        match known.is_some() {
            true => self.send(to, (CONTROL, kind, arg), LIMIT, &nothing),
            false => Push::Gone,
        }
    }

    fn send(
        &mut self,
        to: PeerId,
        (class, kind, arg): (u8, u8, u64),
        limit: u64,
        frame: &Outgoing<'_>,
    ) -> Push {
        let Some(known) = self.ends.known.get(&to) else {
            return Push::Gone;
        };
        let (incarnation, way) = (known.incarnation, known.way);
        let Some(way) = way.or_else(|| self.connect(to)) else {
            return Push::Full;
        };
        let head = Head {
            domain: self.ends.domain,
            from: self.ends.me,
            incarnation: self.ends.node.incarnation,
            to: incarnation,
            kind,
            class,
            arg,
        };
        let (head, body) = (head.encode(), &frame.body);
        let write = |to: &mut [u8]| body.copy_to(0, to);
        let sent = self.worker.send(
            way,
            limit,
            &[&head, frame.inline],
            body.len() as usize,
            write,
        );
        match sent {
            Sent::Done => Push::Done,
            Sent::Full => Push::Full,
            Sent::Broken => {
                self.ends.cannot_reach(to);
                Push::Full
            }
        }
    }

    /// Announces the losses that are due (U4).
    fn part(&mut self, sink: &mut dyn Sink) -> usize {
        let now = Instant::now();
        let ends = &mut self.ends;
        let leaving = std::mem::take(&mut ends.leaving);
        let mut lost = 0;
        for peer in leaving {
            let Some(known) = ends.known.get_mut(&peer) else {
                continue;
            };
            let Some((since, is_told)) = known.leaving else {
                continue;
            };
            let last = known.heard.map_or(since, |heard| heard.max(since));
            let is_due = match is_told {
                true => now - last >= QUIET,
                false => now - since >= UNREACHABLE,
            };
            if !is_due {
                ends.leaving.push(peer);
                continue;
            }
            known.is_lost = true;
            known.leaving = None;
            let incarnation = known.incarnation;
            if let Some(way) = known.way.take() {
                self.worker.close(way);
            }
            sink.change(Change::Lost { peer, incarnation });
            lost += 1;
            // Another process may have its number meanwhile.
            ends.epoch_seen = None;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_what_was_encoded() {
        let head = Head {
            domain: 0x0123_4567_89ab_cdef,
            from: PeerId::new(3, 5),
            incarnation: 7,
            to: 9,
            kind: 11,
            class: 1,
            arg: u64::MAX - 1,
        };
        let mut bytes = head.encode().to_vec();
        bytes.extend_from_slice(b"inline");
        assert_eq!(Head::decode(&bytes), Some((head, &b"inline"[..])));
        assert_eq!(Head::decode(&bytes[..HEAD - 1]), None);
    }
}
