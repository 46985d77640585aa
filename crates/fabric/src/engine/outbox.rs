//! Frames that wait for their turn, per peer: replies first, then requests in order, and beside
//! them what is served piece by piece.
//!
//! # What bounds it
//! Requests wait at the one who asks: [`REQUESTS_MAX`] bytes, or [`CREDITS`] frames, then
//! [`Engine::has_credit`] says no. A request is answered by one reply, and a peer has at most
//! [`CREDITS`] requests unanswered; one that asks for more is broken. The bytes of a get never wait
//! here: they go from the segment into the ring, as there is room. What else answers a peer is due
//! to receives of this process, or [unasked](Engine::post_unasked) and bounded by [`UNASKED_MAX`].
//!
//! A flush sends a bounded part of what waits for a peer ([`FLUSH_BYTES`], [`FLUSH_FRAMES`]),
//! however fast that one reads: other peers, and the deadlines of this process, have their turn.

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

/// Bytes of requests to one peer that wait here, beside the last one.
const REQUESTS_MAX: u64 = 1 << 20;
/// Replies of all kinds that wait for one peer. More are not asked for by anybody who takes them.
const REPLIES_MAX: usize = 1 << 20;
/// Responses of services that wait for one peer, of one frame each.
const RESPONSES_MAX: usize = 16;
/// Replies to what nobody here asked for (offers that are withdrawn, long active messages) that
/// wait for one peer: one that reads what it is told never has so many.
const UNASKED_MAX: usize = 1 << 12;
/// What one flush sends to a peer, in bytes of bodies, beside the last one.
const FLUSH_BYTES: u64 = 1 << 20;
/// And in frames: whoever sends so many looks at what came before it goes on.
const FLUSH_FRAMES: u64 = 1 << 10;

/// What is left of one flush of one queue.
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

    /// A frame has left.
    pub(crate) fn spend(&mut self, body: u64) {
        self.bytes = self.bytes.saturating_sub(body);
        self.frames = self.frames.saturating_sub(1);
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.frames == 0
    }
}

/// What waits.
#[derive(Debug)]
pub(crate) enum Queued {
    Frame {
        kind: u8,
        arg: u64,
        inline: Vec<u8>,
        body: Option<Vec<u8>>,
    },
    /// A frame of few words that answers what nobody here asked for.
    Unasked { kind: u8, arg: u64 },
    /// A send, whole or as an offer.
    Send(Key),
    /// The reply to an active message, in as many frames as it takes.
    Reply(Reply),
    /// The remote key of a segment, for the one who asked.
    RemoteKey { request: u64, place: RemoteAddress },
    /// What follows leaves when this put by RMA, and those before it, are visible.
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

    fn is_answer(&self) -> bool {
        match self {
            Queued::Frame { kind, .. } => kind::is_answer(*kind),
            Queued::Send(_) | Queued::Unasked { .. } | Queued::Fence(_) => false,
            Queued::Reply(reply) => !reply.is_response(),
            Queued::RemoteKey { .. } => true,
        }
    }

    fn is_response(&self) -> bool {
        matches!(self, Queued::Reply(reply) if reply.is_response())
    }

    fn is_unasked(&self) -> bool {
        matches!(self, Queued::Unasked { .. })
    }
}

/// The queues of one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    replies: VecDeque<Queued>,
    /// How many of the replies are answers to requests.
    answers: usize,
    /// How many of them are responses of services.
    responses: usize,
    /// How many of them are answers to what nobody here asked for.
    unasked: usize,
    /// Gets of the peer, served in order.
    gets: VecDeque<Serve>,
    requests: VecDeque<Queued>,
    /// Bytes of the bodies of the requests.
    request_bytes: u64,
    /// Whether requests go before gets the next time: bodies of both lie in one area of the ring.
    requests_first: bool,
    dirty: bool,
    /// Puts by RMA are not visible yet.
    pub(crate) is_behind: bool,
    /// The put that the last fence waits for.
    fenced: u64,
    pub(crate) rma: PeerRma,
}

impl Outbox {
    /// Whether one more request may wait.
    pub(crate) fn has_capacity(&self) -> bool {
        self.requests.len() < CREDITS as usize && self.request_bytes < REQUESTS_MAX
    }

    /// Whether a service may respond: few responses wait, of one frame each, and few offers of long
    /// ones.
    pub(crate) fn may_respond(&self) -> bool {
        self.responses < RESPONSES_MAX && self.has_capacity()
    }

    /// Whether a request to a service may be refused: the peer reads what it is told, and what is
    /// left is enough for what it asks otherwise.
    pub(crate) fn may_refuse(&self) -> bool {
        self.answers + self.responses < CREDITS as usize / 2
    }

    /// Whether the peer may ask for something that will be answered.
    pub(crate) fn may_be_asked(&self) -> bool {
        self.answers + self.gets.len() < CREDITS as usize && self.replies.len() < REPLIES_MAX
    }

    /// Whether a request may leave now without passing others.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && !self.is_behind
    }

    /// Whether nothing can leave, however much room there is.
    fn has_nothing(&self) -> bool {
        let may_leave = match self.requests.front() {
            Some(Queued::Fence(put)) => self.rma.has_flushed(*put),
            first => first.is_some(),
        };
        self.replies.is_empty() && self.gets.is_empty() && !may_leave && self.rma.is_idle()
    }

    /// What is queued from now on comes after the puts so far.
    fn fence(&mut self) {
        let put = self.rma.last_put();
        if self.is_behind && self.fenced != put {
            self.fenced = put;
            self.requests.push_back(Queued::Fence(put));
        }
    }

    fn put_back(&mut self, queued: Queued) {
        match queued.class() {
            Class::Reply => {
                self.answers += queued.is_answer() as usize;
                self.responses += queued.is_response() as usize;
                self.unasked += queued.is_unasked() as usize;
                self.replies.push_front(queued);
            }
            Class::Request => {
                self.request_bytes += queued.body_bytes();
                self.requests.push_front(queued);
            }
        }
    }

    fn take(&mut self, class: Class) -> Option<Queued> {
        let queued = match class {
            Class::Reply => self.replies.pop_front()?,
            Class::Request => self.requests.pop_front()?,
        };
        match class {
            Class::Reply => {
                self.answers -= queued.is_answer() as usize;
                self.responses -= queued.is_response() as usize;
                self.unasked -= queued.is_unasked() as usize;
            }
            Class::Request => self.request_bytes -= queued.body_bytes(),
        }
        Some(queued)
    }
}

impl Engine {
    pub(crate) fn queue(&mut self, to: PeerId, queued: Queued) {
        let peer = self.peer(to);
        if !peer.is_reachable() {
            return;
        }
        match queued.class() {
            Class::Reply => {
                peer.outbox.answers += queued.is_answer() as usize;
                peer.outbox.responses += queued.is_response() as usize;
                peer.outbox.unasked += queued.is_unasked() as usize;
                peer.outbox.replies.push_back(queued);
            }
            Class::Request => {
                peer.outbox.fence();
                peer.outbox.request_bytes += queued.body_bytes();
                peer.outbox.requests.push_back(queued);
            }
        }
        self.mark_dirty(to);
    }

    /// Queues a reply to what nobody here asked for.
    ///
    /// # Errors
    /// The peer does not read them: it is broken, and they would be all memory in the end.
    pub(crate) fn post_unasked(
        &mut self,
        to: PeerId,
        kind: u8,
        arg: u64,
    ) -> Result<(), &'static str> {
        if self.peer(to).outbox.unasked >= UNASKED_MAX {
            return Err("more offers and withdrawals than it reads answers to");
        }
        self.queue(to, Queued::Unasked { kind, arg });
        Ok(())
    }

    /// Will answer a get of a peer piece by piece.
    pub(crate) fn queue_get(&mut self, to: PeerId, get: Serve) {
        self.peer(to).outbox.gets.push_back(get);
        self.mark_dirty(to);
    }

    pub(crate) fn mark_dirty(&mut self, to: PeerId) {
        if !std::mem::replace(&mut self.peer(to).outbox.dirty, true) {
            self.dirty.push(to);
        }
    }

    /// Sends what waits, as far as there is room; how many frames left.
    pub(crate) fn flush(&mut self, transport: &mut AnyTransport) -> usize {
        let mut sent = 0;
        let mut index = 0;
        if self.dirty.len() > 1 {
            self.dirty.rotate_left(1); // What all of them share is not always the same one's.
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
        while !budget.is_spent() {
            let Some(mut queued) = self.peer(to).outbox.take(class) else {
                break;
            };
            let bytes = queued.body_bytes();
            let push = match &mut queued {
                Queued::Frame {
                    kind,
                    arg,
                    inline,
                    body,
                } => {
                    let body = Body::Slice(body.as_deref().unwrap_or_default());
                    transport.push(to, &frame(*kind, *arg, inline, body))
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
                    reply.push(to, self.caps(to).body_max, transport, &mut budget)
                }
            };
            match push {
                Push::Done => {
                    budget.spend(bytes);
                    sent += 1;
                }
                Push::Gone => {} // Its loss ends the operation; the frame is of no use.
                Push::Full => {
                    self.peer(to).outbox.put_back(queued);
                    return sent;
                }
            }
        }
        sent
    }
}
