//! A link with latency, jitter and rate between processes that share no memory, for machines whose
//! kernel cannot delay packets: how the layers above behave over a network can then be measured and
//! tested with the processes of one machine.
//!
//! ```text
//!   push(to)                                    poll()
//!     the last byte departs: max(now, link        the inner transport takes a frame early
//!     free) + bytes / rate                        queued: departure + delay + part of the jitter
//!     that time, 8 bytes, before the inline -->   due, and all before it delivered: to the engine
//! ```
//!
//! It wraps another transport. The two processes of a pair decide alike whether the link lies
//! between them ([`Ends::is_linked`]): both are units of one job, and they map nothing of each
//! other, by their nodes, [`Mask::nodes`] or [`Mask::map`]. They then treat each other as on
//! different nodes, and have frames only: no mapping, no kernel copy, no RMA. Frames of other
//! pairs, such as those to the agent's services, pass unchanged and at once.
//!
//! # What it promises
//! L1 No frame is delivered before its delay is over, and the frames of a pair stay in order.
//! L2 What is queued is bounded: the sender refuses frames while too many bytes are under way to
//!    the receiver ([`line`]). The receiver takes nothing while a frame is due; where frames fall
//!    due while it takes others, it delivers some for each. A peer that sends more is shut out.
//! L3 A waiting process does not sleep in the last [`EARLY`] before a frame is due, and never past
//!    that time (T5). If processes outnumber processors, it yields meanwhile.
//! L4 The loss of a peer is reported after its last frame, which has its full delay (T4). Only if
//!    its number is given to another process meanwhile, both come at once, before that process is
//!    announced.
//! L5 A handler that panics in a frame loses no other frame, no loss and no announcement: what
//!    was not delivered comes with the next polls.
//!
//! There is no upper bound on time: a frame is late if its receiver does not run, or does not call
//! the fabric.
//!
//! # Figures
//! 8 bytes to and fro between two processes on two idle cores, median: 2.5 us over a delay of 1 us,
//! 10.5 us over 5 us, 40.7 us over 20 us, 6.01 ms over 3 ms. A token among nine processes on these
//! two cores: 204 to 215 us a hop over 200 us. `tests/suite/link.rs` prints them.

mod line;
#[cfg(test)]
mod tests;

use super::{
    AnyTransport, Caps, Change, Clock, Completed, Incoming, NotStarted, Outgoing, Push, RawFrame,
    Registration, RemoteKey, Rma, RmaVerb, Sink, Sleep, Transport,
};
use crate::node::{NodeMember, agent};
use crate::peer::PeerMap;
use crate::{Config, Identity, Link, Mask, PeerId, PeerInfo};
use line::{Arrivals, Departures};
use samite_mem::{Corrupt, OwnerProcess, SharedBytes};
use smallvec::SmallVec;
use std::time::Duration;

/// The bit of a frame's kind that says that the time of its departure precedes its inline part.
pub(crate) const STAMPED: u8 = 0x80;
/// The length of that time.
const STAMP: usize = 8;
/// A process does not go to sleep if a frame is due so soon: waking up takes about as long.
const EARLY: Duration = Duration::from_micros(100);
/// Frames of one peer that are delivered before the next peer gets its turn, and of all in a poll.
const TURN: usize = 32;
const POLL_MAX: usize = 256;

/// A transport behind a link; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Delayed {
    inner: Box<AnyTransport>,
    owner: OwnerProcess,
    ends: Ends,
}

/// This process's ends of its links to all peers.
#[derive(Debug)]
struct Ends {
    link: Link,
    clock: Clock,
    me: PeerId,
    unit: u32,
    job: String,
    mask: Mask,
    /// Peers without a link have none.
    peers: PeerMap<Option<Box<End>>>,
    /// Peers with frames in the queue; each once.
    waiting: Vec<PeerId>,
    /// Index in `waiting` of the peer whose frames come first next time.
    turn: usize,
    /// When the next frame is due, or before that.
    next: Option<Duration>,
    /// For the jitter.
    random: fastrand::Rng,
}

/// This process's end of the link to one incarnation of a peer.
#[derive(Debug, Default)]
struct End {
    departures: Departures,
    arrivals: Arrivals,
    /// The incarnation, if it is lost and frames of it are still queued.
    lost: Option<u32>,
    /// The process that has its number meanwhile: announced after its last frame and its loss.
    next: Option<Box<(PeerInfo, Caps)>>,
    /// Whether it broke the rules: nothing more is accepted from it.
    is_shut: bool,
}

impl End {
    /// Returns when the next frame or change is due: a loss after the last frame, and everything
    /// that is left of a peer whose number another process has, at once.
    fn next_due(&self) -> Option<Duration> {
        let next = self.arrivals.next_due().filter(|_| self.next.is_none());
        let has_changes = self.lost.is_some() || self.next.is_some();
        next.or(has_changes.then_some(Duration::ZERO))
    }
}

impl Delayed {
    /// Puts the link of the configuration, if it has one, before the transport of this process.
    pub(crate) fn put_before(
        inner: AnyTransport,
        node: &NodeMember,
        identity: &Identity,
        config: &Config,
    ) -> AnyTransport {
        let link = config.link.filter(|_| !agent::is_agent(identity));
        let Some(link) = link else {
            return inner;
        };
        let me = node.peer();
        let ends = Ends {
            link,
            clock: inner.clock(),
            me,
            unit: node.unit,
            job: identity.job.clone(),
            mask: config.mask,
            peers: PeerMap::new(node.number),
            waiting: Vec::new(),
            turn: 0,
            next: None,
            random: fastrand::Rng::with_seed(u64::from(node.unit)),
        };
        AnyTransport::Delayed(Box::new(Delayed {
            inner: Box::new(inner),
            owner: node.heap.owner(),
            ends,
        }))
    }

    fn receiving<'a>(
        &'a mut self,
        sink: &'a mut dyn Sink,
    ) -> (&'a mut AnyTransport, Receiving<'a>) {
        let (ends, delivered) = (&mut self.ends, 0);
        let receiving = Receiving {
            sink,
            ends,
            delivered,
        };
        (&mut self.inner, receiving)
    }
}

impl Transport for Delayed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn clock(&self) -> Clock {
        self.ends.clock.clone()
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        let ends = &mut self.ends;
        let Some(Some(end)) = ends.peers.get_mut(to) else {
            return self.inner.push(to, frame);
        };
        if end.lost.is_some() || end.next.is_some() {
            // Another process may have the number by now.
            return Push::Gone;
        }
        let bytes = frame.inline.len() as u64 + frame.body.len();
        let now = ends.clock.now();
        let Some(departs) = end.departures.next(&ends.link, now, (frame.class, bytes)) else {
            return Push::Full;
        };
        let stamp = departs.as_nanos() as u64;
        let mut inline: SmallVec<[u8; 512]> = SmallVec::from_slice(&stamp.to_le_bytes());
        inline.extend_from_slice(frame.inline);
        let stamped = Outgoing {
            kind: frame.kind | STAMPED,
            inline: &inline,
            ..*frame
        };
        let push = self.inner.push(to, &stamped);
        if push == Push::Done {
            end.departures.sent(&ends.link, departs, bytes);
        }
        push
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if !self.owner.is_current() {
            // What is queued belongs to the process that joined.
            return self.inner.poll(sink);
        }
        let now = match self.ends.next {
            Some(_) => self.ends.clock.now(),
            None => Duration::ZERO,
        };
        let delivered = self.ends.deliver(now, sink);
        // L2: nothing is taken while something is due.
        if self.ends.is_due(now) || sink.satisfied() {
            return delivered;
        }
        let (inner, mut receiving) = self.receiving(sink);
        inner.poll(&mut receiving);
        delivered + receiving.delivered
    }

    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        self.ends.deliver_former(peer, sink);
        let (inner, mut receiving) = self.receiving(sink);
        inner.announce(peer, &mut receiving);
    }

    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        let next = self.ends.next.filter(|_| self.owner.is_current());
        let Some(next) = next else {
            return self.inner.announce_sleep(there);
        };
        let left = next.saturating_sub(self.ends.clock.now());
        if left <= EARLY {
            if self.inner.oversubscribed() {
                self.inner.yield_now();
            }
            return None;
        }
        let sleep = self.inner.announce_sleep(there)?;
        Some(Sleep::Until(Box::new(sleep), left - EARLY))
    }

    fn waker(&self, peer: PeerId) -> Option<super::sim::Waker> {
        self.inner.waker(peer)
    }

    fn leave(&mut self) {
        self.inner.leave();
    }

    fn yield_now(&mut self) {
        self.inner.yield_now();
    }

    fn oversubscribed(&self) -> bool {
        self.inner.oversubscribed()
    }

    fn register(&mut self, bytes: &SharedBytes) -> Option<(Registration, RemoteKey)> {
        self.inner.register(bytes)
    }

    fn deregister(&mut self, registration: Registration) {
        self.inner.deregister(registration);
    }

    fn start(&mut self, to: PeerId, id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        self.inner.start(to, id, verb)
    }
}

impl Ends {
    /// Returns whether the link lies between this process and a peer: the peer decides alike.
    fn is_linked(&self, info: &PeerInfo, caps: &Caps) -> bool {
        let is_of_job = info.identity.job == self.job && !agent::is_agent(&info.identity);
        let shares_memory = caps.map
            && !self.mask.map
            && self.mask.node_of(info.identity.unit) == self.mask.node_of(self.unit);
        info.peer != self.me && is_of_job && !shares_memory
    }

    fn end(&mut self, peer: PeerId) -> Option<&mut End> {
        self.peers.get_mut(peer)?.as_deref_mut()
    }

    /// Returns whether a frame is due.
    fn is_due(&self, now: Duration) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Delivers frames that are due, of all peers in turn; returns their number, with the losses.
    fn deliver(&mut self, now: Duration, sink: &mut dyn Sink) -> usize {
        if !self.is_due(now) {
            return 0;
        }
        let mut delivered = 0;
        for _ in 0..self.waiting.len() {
            if self.turn >= self.waiting.len() {
                self.turn = 0;
            }
            let Some(peer) = self.waiting.get(self.turn).copied() else {
                break;
            };
            delivered += self.deliver_of(peer, now, TURN, sink);
            match self.next_due(peer) {
                Some(_) => self.turn += 1,
                None => {
                    self.waiting.swap_remove(self.turn);
                }
            }
            if delivered >= POLL_MAX || sink.satisfied() {
                break;
            }
        }
        let due = self.waiting.iter().filter_map(|peer| self.next_due(*peer));
        self.next = due.min();
        delivered
    }

    fn next_due(&self, peer: PeerId) -> Option<Duration> {
        self.peers.get(peer)?.as_deref()?.next_due()
    }

    /// Delivers frames of a peer that are due, at most so many and until the sink has what it
    /// waited for; after the last one, its loss, and the process that has its number. A frame or
    /// a change counts as delivered even if a handler panics in it (L5).
    fn deliver_of(
        &mut self,
        peer: PeerId,
        now: Duration,
        most: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let is_replaced = self.end(peer).is_some_and(|end| end.next.is_some());
        let now = if is_replaced { Duration::MAX } else { now };
        let mut delivered = 0;
        while delivered < most
            && let Some(end) = self.end(peer)
            && let Some(frame) = end.arrivals.take(now)
        {
            delivered += 1;
            sink.frame(frame.incoming(peer));
            if sink.satisfied() {
                break;
            }
        }
        let Some(end) = self.end(peer) else {
            return delivered;
        };
        if end.arrivals.next_due().is_some() {
            return delivered;
        }
        if let Some(incarnation) = end.lost.take() {
            if end.next.is_none() {
                *self.peers.entry(peer) = None;
            }
            delivered += 1;
            sink.change(Change::Lost { peer, incarnation });
        }
        if let Some(next) = self.end(peer).and_then(|end| end.next.take()) {
            let (info, caps) = *next;
            delivered += 1;
            self.join(info, caps, sink);
        }
        delivered
    }

    /// Delivers all that is left of a lost peer whose number another process has, and announces
    /// that one.
    fn deliver_former(&mut self, peer: PeerId, sink: &mut dyn Sink) -> usize {
        let mut delivered = 0;
        while self.end(peer).is_some_and(|end| end.next.is_some()) {
            delivered += self.deliver_of(peer, Duration::ZERO, usize::MAX, sink);
        }
        delivered
    }

    /// Announces a process, and begins its link if it has one.
    fn join(&mut self, info: PeerInfo, caps: Caps, sink: &mut dyn Sink) {
        let is_linked = self.is_linked(&info, &caps);
        *self.peers.entry(info.peer) = is_linked.then(Box::default);
        let caps = match is_linked {
            false => caps,
            true => Caps {
                inline_max: caps.inline_max.saturating_sub(STAMP as u64),
                map: false,
                kernel_copy: false,
                rma: Rma::None,
                atomics: false,
                ..caps
            },
        };
        sink.change(Change::Joined(info, caps));
    }

    /// Queues a frame until it is due.
    fn enqueue(&mut self, due: Duration, frame: &Incoming<'_>) -> Result<(), Corrupt> {
        let peer = frame.from;
        if let Some(end) = self.end(peer) {
            end.arrivals.enqueue(due, RawFrame::arrived(frame))?;
        }
        if !self.waiting.contains(&peer) {
            self.waiting.push(peer);
        }
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
        Ok(())
    }
}

/// A sink that queues frames until they are due.
struct Receiving<'a> {
    sink: &'a mut dyn Sink,
    ends: &'a mut Ends,
    /// Frames and changes that were delivered.
    delivered: usize,
}

impl Receiving<'_> {
    /// Delivers a frame of a linked peer, or queues it.
    fn linked(&mut self, frame: Incoming<'_>) -> Result<(), Corrupt> {
        let peer = frame.from;
        let stamp = frame.inline.first_chunk::<STAMP>();
        let (Some(stamp), true) = (stamp, frame.kind & STAMPED != 0) else {
            return Err(Corrupt {
                what: "a frame without the time of its departure; set fabric.link alike in both",
                value: frame.kind.into(),
            });
        };
        let departs = Duration::from_nanos(u64::from_le_bytes(*stamp));
        let frame = Incoming {
            kind: frame.kind & !STAMPED,
            inline: &frame.inline[STAMP..],
            ..frame
        };
        let bytes = frame.inline.len() as u64 + frame.body.len();
        // The time is read anew: the peer may have sent it after the poll began (L2).
        let ends = &mut *self.ends;
        let (now, link, part) = (ends.clock.now(), ends.link, ends.random.f64());
        let Some(end) = ends.end(peer) else {
            return Ok(());
        };
        let due = end.arrivals.due(&link, now, (departs, bytes), part);
        if due <= now && end.next_due().is_none() {
            self.delivered += 1;
            self.sink.frame(frame);
            return Ok(());
        }
        // It is queued before a handler of another one can panic (L5).
        ends.enqueue(due, &frame)?;
        self.delivered += ends.deliver_of(peer, now, TURN, self.sink);
        Ok(())
    }

    fn joined(&mut self, info: PeerInfo, caps: Caps) {
        let (peer, ends) = (info.peer, &mut *self.ends);
        let Some(end) = ends.end(peer).filter(|end| end.lost.is_some()) else {
            self.delivered += 1;
            return ends.join(info, caps, self.sink);
        };
        // L4: first the last frames and the loss of the process that had this number. If a handler
        // panics meanwhile, the next polls go on with them before they take anything.
        end.next = Some(Box::new((info, caps)));
        ends.next = Some(Duration::ZERO);
        self.delivered += ends.deliver_former(peer, self.sink);
    }
}

impl Sink for Receiving<'_> {
    fn frame(&mut self, frame: Incoming<'_>) {
        let peer = frame.from;
        match self.ends.end(peer) {
            None => {
                self.delivered += 1;
                self.sink.frame(frame);
            }
            Some(end) if end.is_shut => {}
            Some(_) => {
                if let Err(what) = self.linked(frame) {
                    self.change(Change::Corrupt { peer, what });
                }
            }
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Joined(info, caps) => return self.joined(info, caps),
            Change::Lost { peer, incarnation } => {
                if self.ends.next_due(peer).is_some()
                    && let Some(end) = self.ends.end(peer)
                {
                    end.lost = Some(incarnation);
                    return;
                }
                if self.ends.end(peer).is_some() {
                    *self.ends.peers.entry(peer) = None;
                }
            }
            Change::Corrupt { peer, .. } => {
                if let Some(end) = self.ends.end(peer) {
                    *end = End {
                        is_shut: true,
                        ..End::default()
                    };
                }
            }
            Change::Forked => self.ends.peers.values_mut().for_each(|end| *end = None),
            Change::AgentLost => {}
        }
        self.delivered += 1;
        self.sink.change(change);
    }

    fn completed(&mut self, completed: Completed) {
        self.delivered += 1;
        self.sink.completed(completed);
    }

    fn satisfied(&self) -> bool {
        self.sink.satisfied()
    }
}
