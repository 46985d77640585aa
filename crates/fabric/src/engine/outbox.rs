//! Frames that wait to be sent, per peer: replies first, then requests in order, and separately
//! what is served piece by piece.
//!
//! # What bounds it
//! Requests wait at the requester: after [`REQUESTS_MAX`] bytes or [`CREDITS`] frames,
//! [`Engine::has_credit`] returns false. A request is answered by one reply, and a peer has at most
//! [`CREDITS`] unanswered requests; a peer that sends more is broken. The bytes of a get never wait
//! here: they go from the segment into the ring as there is room. All other answers to a peer
//! either belong to receives of this process, or are [unasked](Engine::post_unasked) and bounded by
//! [`UNASKED_MAX`].
//!
//! A flush sends a bounded part of what waits for a peer ([`FLUSH_BYTES`], [`FLUSH_FRAMES`]),
//! however fast the peer reads, so that other peers and the deadlines of this process get their
//! turn.

use super::Engine;
use crate::PeerId;
use crate::ops::Key;
use crate::proto::CREDITS;
use crate::proto::active::Reply;
use crate::proto::rma::PeerRma;
use crate::proto::rma_over_am::Serve;
use crate::transport::{AnyTransport, Class, Push, Transport};
use crate::wire::{RemoteAddress, frame, kind};
use samite_mem::ring::Body;
use std::collections::VecDeque;

/// Bytes of requests to one peer that may wait here, not counting the last request.
const REQUESTS_MAX: u64 = 1 << 20;
/// Replies of all kinds that may wait for one peer. A peer that reads its replies never has more.
const REPLIES_MAX: usize = 1 << 20;
/// Responses and refusals of services, one frame each, that may wait for one peer; beyond that, a
/// service responds later.
const RESPONSES_MAX: usize = 16;
/// Replies to what nobody here asked for (withdrawn offers, long active messages) that may wait for
/// one peer. A peer that reads its frames never has as many.
const UNASKED_MAX: usize = 1 << 12;
/// Withdrawals sent to one peer that it has not answered: fewer than it may have queued as
/// [unasked](UNASKED_MAX) answers, so that a process that cancels much is not taken for one that
/// reads nothing. This is not a strict bound: an answer that crossed its withdrawal counts, too,
/// and a receiver that had collected a part of the message answers twice (REFUSED, ATS). Later
/// withdrawals wait aside: a message that the peer shows in a view is answered only when its
/// program drops the view, so nothing may wait behind them.
const WITHDRAWALS_MAX: u32 = 1 << 10;
/// Bytes of bodies that one flush sends to a peer, not counting the last one.
const FLUSH_BYTES: u64 = 1 << 20;
/// Frames that one flush sends to a peer; after that many, the process polls before it continues.
const FLUSH_FRAMES: u64 = 1 << 10;

/// What remains of the budget of one flush of one queue.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: u64,
    frames: u64,
}

impl Budget {
    pub(crate) fn new() -> Budget {
        Budget {
            bytes: FLUSH_BYTES,
            frames: FLUSH_FRAMES,
        }
    }

    /// Counts a frame that was sent.
    pub(crate) fn spend(&mut self, body: u64) {
        self.bytes = self.bytes.saturating_sub(body);
        self.frames = self.frames.saturating_sub(1);
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.frames == 0
    }
}

/// An entry of a queue.
#[derive(Debug)]
pub(crate) enum Queued {
    Frame {
        kind: u8,
        arg: u64,
        inline: Vec<u8>,
        body: Option<Vec<u8>>,
    },
    /// A small frame that answers something that nobody here asked for.
    Unasked { kind: u8, arg: u64 },
    /// A send, eager or as an offer.
    Send(Key),
    /// The reply to an active message, in as many frames as needed.
    Reply(Reply),
    /// The remote key of a segment, for the requester.
    RemoteKey { request: u64, place: RemoteAddress },
    /// A fence: what follows is sent once this RMA put, and those before it, are visible.
    Fence(u64),
}

impl Queued {
    pub(super) fn frame(kind: u8, arg: u64, inline: &[u8], body: Option<Vec<u8>>) -> Queued {
        Queued::Frame {
            kind,
            arg,
            inline: inline.to_vec(),
            body,
        }
    }

    fn body_bytes(&self) -> u64 {
        match self {
            Queued::Frame {
                body: Some(body), ..
            } => body.len() as u64,
            _ => 0,
        }
    }

    fn class(&self) -> Class {
        match self {
            Queued::Frame { kind, .. } | Queued::Unasked { kind, .. } => kind::class(*kind),
            Queued::Send(_) | Queued::Fence(_) => Class::Request,
            Queued::Reply(_) | Queued::RemoteKey { .. } => Class::Reply,
        }
    }

    fn due(&self) -> Due {
        match self {
            Queued::Frame { kind, .. } if kind::is_answer(*kind) => Due::Request,
            Queued::Reply(reply) if reply.is_of_service() => Due::Service,
            Queued::Reply(_) | Queued::RemoteKey { .. } => Due::Request,
            Queued::Unasked { .. } => Due::Nothing,
            Queued::Frame { .. } | Queued::Send(_) | Queued::Fence(_) => Due::Receive,
        }
    }
}

/// What a reply answers. Each kind has its own bound.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// A receive of this process.
    Receive,
    /// A request that took a credit.
    Request,
    /// A request to a service, which took no credit.
    Service,
    /// Nothing that this process asked for.
    Nothing,
}

/// The queues of one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    replies: VecDeque<Queued>,
    /// The number of replies of each kind ([`Due`]).
    due: [usize; 4],
    /// Gets by the peer, served in order.
    gets: VecDeque<Serve>,
    requests: VecDeque<Queued>,
    /// Bytes of the bodies of the requests.
    request_bytes: u64,
    /// The pace to tell the peer, ahead of all replies: the last word wins.
    pace: Option<u64>,
    /// Withdrawals that were sent and not answered.
    withdrawals: u32,
    /// Withdrawals beyond [`WITHDRAWALS_MAX`], sent as earlier ones are answered. Later requests
    /// may overtake them: a withdrawal only names a send.
    deferred_withdrawals: VecDeque<Key>,
    /// Whether requests go before gets next time: the bodies of both share one area of the ring.
    requests_first: bool,
    dirty: bool,
    /// Whether earlier puts by RMA are not visible yet.
    pub(crate) is_behind: bool,
    /// The put that the last fence waits for.
    fenced: u64,
    pub(crate) rma: PeerRma,
}

impl Outbox {
    /// Returns whether one more request may be queued.
    pub(crate) fn has_capacity(&self) -> bool {
        self.requests.len() < CREDITS as usize && self.request_bytes < REQUESTS_MAX
    }

    /// Returns whether a service may respond: few one-frame responses wait, and few offers of long
    /// ones.
    pub(crate) fn may_respond(&self) -> bool {
        self.due(Due::Service) < RESPONSES_MAX && self.has_capacity()
    }

    /// Returns whether a request to a service may be refused: the peer reads its frames.
    pub(crate) fn may_refuse(&self) -> bool {
        self.due(Due::Service) < UNASKED_MAX
    }

    /// Returns whether the peer may send a request that will be answered.
    pub(crate) fn may_be_asked(&self) -> bool {
        self.due(Due::Request) + self.gets.len() < CREDITS as usize
            && self.replies.len() < REPLIES_MAX
    }

    /// Returns whether a request may be sent now without overtaking others.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && !self.is_behind
    }

    /// Returns whether a signal with this key waits here.
    pub(crate) fn has_signal(&self, key: u64) -> bool {
        let is_it = |queued: &Queued| matches!(queued, Queued::Frame { kind: kind::SIGNAL, arg, .. } if *arg == key);
        self.requests.iter().any(is_it)
    }

    /// Returns whether nothing can be sent, however much room there is.
    fn has_nothing(&self) -> bool {
        let may_leave = match self.requests.front() {
            Some(Queued::Fence(put)) => self.rma.has_flushed(*put),
            first => first.is_some(),
        };
        let has_replies = self.pace.is_some() || !self.replies.is_empty();
        !has_replies && self.gets.is_empty() && !may_leave && self.rma.is_idle()
    }

    /// Queues a fence: everything queued from now on follows the puts so far.
    fn fence(&mut self) {
        let put = self.rma.last_put();
        if self.is_behind && self.fenced != put {
            self.fenced = put;
            self.requests.push_back(Queued::Fence(put));
        }
    }

    fn due(&self, to: Due) -> usize {
        self.due[to as usize]
    }

    /// Adds an entry at the end; or at the front, if it was taken from there.
    fn add(&mut self, queued: Queued, is_first: bool) {
        let queue = match queued.class() {
            Class::Reply => {
                self.due[queued.due() as usize] += 1;
                &mut self.replies
            }
            Class::Request => {
                self.request_bytes += queued.body_bytes();
                &mut self.requests
            }
        };
        match is_first {
            true => queue.push_front(queued),
            false => queue.push_back(queued),
        }
    }

    fn take(&mut self, class: Class) -> Option<Queued> {
        match class {
            Class::Reply => {
                let queued = self.replies.pop_front()?;
                self.due[queued.due() as usize] -= 1;
                Some(queued)
            }
            Class::Request => {
                let queued = self.requests.pop_front()?;
                self.request_bytes -= queued.body_bytes();
                Some(queued)
            }
        }
    }
}

impl Engine {
    pub(crate) fn queue(&mut self, to: PeerId, queued: Queued) {
        let peer = self.peer(to);
        if !peer.is_reachable() {
            return;
        }
        if queued.class() == Class::Request {
            peer.outbox.fence();
        }
        peer.outbox.add(queued, false);
        self.mark_dirty(to);
    }

    /// Queues a reply to something that nobody here asked for.
    ///
    /// # Errors
    /// The peer does not read them: it is broken, and they would use up all memory.
    pub(crate) fn post_unasked(
        &mut self,
        to: PeerId,
        kind: u8,
        arg: u64,
    ) -> Result<(), &'static str> {
        if self.peer(to).outbox.due(Due::Nothing) >= UNASKED_MAX {
            return Err("more offers and withdrawals than it reads answers to");
        }
        self.queue(to, Queued::Unasked { kind, arg });
        Ok(())
    }

    /// Tells a peer how it may send messages.
    pub(crate) fn post_pace(&mut self, to: PeerId, pace: u64) {
        let peer = self.peer(to);
        if peer.is_reachable() {
            peer.outbox.pace = Some(pace);
            self.mark_dirty(to);
        }
    }

    /// Takes back a send that waits here; returns false if it has left.
    pub(crate) fn take_back(&mut self, to: PeerId, send: Key) -> bool {
        let requests = &mut self.peer(to).outbox.requests;
        let is_it = |queued: &Queued| matches!(queued, Queued::Send(key) if *key == send);
        // All sends of a scope are given up oldest first; a single one is usually the last.
        let waits = match requests.front().is_some_and(is_it) {
            true => Some(0),
            false => requests.iter().rposition(is_it),
        };
        waits.and_then(|index| requests.remove(index)).is_some()
    }

    /// Counts the answer to a withdrawal, and queues the next one that waits for it.
    pub(crate) fn withdrawal_answered(&mut self, by: PeerId) {
        let outbox = &mut self.peer(by).outbox;
        outbox.withdrawals = outbox.withdrawals.saturating_sub(1);
        if let Some(send) = outbox.deferred_withdrawals.pop_front() {
            self.post(by, kind::WITHDRAW, send, &[]);
        }
    }

    /// Queues a get of a peer, to be answered piece by piece.
    pub(crate) fn queue_get(&mut self, to: PeerId, get: Serve) {
        self.peer(to).outbox.gets.push_back(get);
        self.mark_dirty(to);
    }

    pub(crate) fn mark_dirty(&mut self, to: PeerId) {
        if !std::mem::replace(&mut self.peer(to).outbox.dirty, true) {
            self.dirty.push(to);
        }
    }

    /// Sends what is queued, as far as there is room; returns how many frames were sent.
    pub(crate) fn flush(&mut self, transport: &mut AnyTransport) -> usize {
        let mut sent = 0;
        let mut index = 0;
        if self.dirty.len() > 1 {
            // Rotate, so that the same peer does not always take the shared room first.
            self.dirty.rotate_left(1);
        }
        while index < self.dirty.len() {
            let to = self.dirty[index];
            sent += self.flush_class(to, Class::Reply, transport);
            if !self.peer(to).outbox.rma.is_idle() {
                sent += self.flush_rma(to, transport);
            }
            let outbox = &mut self.peer(to).outbox;
            outbox.requests_first = !outbox.requests_first;
            if outbox.requests_first {
                sent += self.flush_class(to, Class::Request, transport);
                sent += self.flush_gets(to, transport);
            } else {
                sent += self.flush_gets(to, transport);
                sent += self.flush_class(to, Class::Request, transport);
            }
            let outbox = &mut self.peer(to).outbox;
            if outbox.has_nothing() {
                outbox.dirty = false;
                self.dirty.swap_remove(index);
            } else {
                index += 1;
            }
        }
        sent
    }

    fn flush_gets(&mut self, to: PeerId, transport: &mut AnyTransport) -> usize {
        let (mut sent, mut budget) = (0, Budget::new());
        while let Some(mut get) = self.peer(to).outbox.gets.pop_front() {
            let is_over = self.serve(to, &mut get, transport, (&mut sent, &mut budget));
            if !is_over {
                self.peer(to).outbox.gets.push_front(get);
                return sent;
            }
        }
        sent
    }

    fn flush_class(&mut self, to: PeerId, class: Class, transport: &mut AnyTransport) -> usize {
        let (mut sent, mut budget) = (0, Budget::new());
        if class == Class::Reply
            && let Some(pace) = self.peer(to).outbox.pace
        {
            let frame = frame(kind::PACE, pace, &[], Body::Slice(&[]));
            if matches!(transport.push(to, &frame), Push::Full) {
                return 0;
            }
            self.peer(to).outbox.pace = None;
            sent += 1;
        }
        while !budget.is_spent() {
            let Some(mut queued) = self.peer(to).outbox.take(class) else {
                break;
            };
            let bytes = queued.body_bytes();
            let push = match &mut queued {
                Queued::Frame {
                    kind: kind::WITHDRAW,
                    arg,
                    ..
                } if self.peer(to).outbox.withdrawals >= WITHDRAWALS_MAX => {
                    self.peer(to).outbox.deferred_withdrawals.push_back(*arg);
                    continue;
                }
                Queued::Frame {
                    kind,
                    arg,
                    inline,
                    body,
                } => {
                    let body = Body::Slice(body.as_deref().unwrap_or_default());
                    let push = transport.push(to, &frame(*kind, *arg, inline, body));
                    let is_withdrawal = *kind == kind::WITHDRAW && matches!(push, Push::Done);
                    self.peer(to).outbox.withdrawals += u32::from(is_withdrawal);
                    push
                }
                Queued::Unasked { kind, arg } => {
                    transport.push(to, &frame(*kind, *arg, &[], Body::Slice(&[])))
                }
                Queued::Send(key) => self.push_send(*key, to, transport),
                Queued::RemoteKey { request, place } => {
                    self.push_remote_key(to, (*request, *place), transport)
                }
                Queued::Fence(put) if self.peer(to).outbox.rma.has_flushed(*put) => continue,
                Queued::Fence(_) => Push::Full,
                Queued::Reply(reply) => {
                    reply.push(to, self.route(to).caps.body_max, transport, &mut budget)
                }
            };
            match push {
                Push::Done => {
                    budget.spend(bytes);
                    sent += 1;
                }
                Push::Gone => {} // The loss of the peer ends the operation; the frame is dropped.
                Push::Full => {
                    self.peer(to).outbox.add(queued, true);
                    return sent;
                }
            }
        }
        sent
    }
}
