//! Active messages: a registered handler runs at the receiver, inside its progress.
//!
//! A handler gets the sender and the bytes, may return a reply, and can do nothing else. It cannot
//! wait, so it never stalls progress. Requests that will be answered are bounded per peer
//! ([`CREDITS`]); replies have their own room in the ring. A credit is returned by the answer, even
//! when nobody waits for it any more. A handler that panics is answered, too.
//!
//! Short active messages travel in one frame. Long ones are offered and fetched like any large
//! message, at most [`LONG_MAX`] bytes each. What is in flight to a peer is bounded on both sides
//! ([`LONG_BYTES`]): the sender waits, and a receiver allocates no memory for a sender that does
//! not. Replies have the same maximum.

use crate::engine::{Budget, Engine, Handler, Queued};
use crate::ops::{Key, Op, Outcome, Status, Then, Work};
use crate::rpc::{Inbound, Inbox, LOOK_UP, Life, ServiceId};
use crate::transport::{AnyTransport, Incoming, Push, Transport};
use crate::wire::{Offer, Words, frame, kind};
use crate::{Error, Named, PeerId, SegmentKey};
use samite_mem::lend::{ReadBuf, WriteBuf};
use samite_mem::ring::Body;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The most unanswered requests to one peer; more wait here, not at the peer.
pub(crate) const CREDITS: u32 = 256;

/// Bytes of long active messages to one peer that may wait to be fetched, not counting the last.
const LONG_BYTES: u64 = 16 << 20;

/// Longest active message, and longest reply, in bytes. Use a message or a segment for more.
pub(crate) const LONG_MAX: u64 = 64 << 20;

const OK: u64 = 0;
const NO_HANDLER: u64 = 1;
/// The reply was longer than [`LONG_MAX`].
const TOO_LONG: u64 = 2;
/// The handler panicked.
const PANICKED: u64 = 3;
/// The service's inbox is full.
const BUSY: u64 = 4;
/// The receiver had no memory for the request.
const NO_MEMORY: u64 = 5;
/// A flag besides one of these: the answer of a service, whose requests take no credit.
const OF_SERVICE: u64 = 1 << 15;

/// A reply being sent, in as many frames as it takes.
#[derive(Debug)]
pub(crate) struct Reply {
    request: u64,
    status: u64,
    bytes: Vec<u8>,
    sent: usize,
}

impl Reply {
    pub(crate) fn is_of_service(&self) -> bool {
        self.status & OF_SERVICE != 0
    }

    /// Sends as much as room and budget allow; returns [`Push::Done`] when all of it has been sent.
    pub(crate) fn push(
        &mut self,
        to: PeerId,
        body_max: u64,
        transport: &mut AnyTransport,
        budget: &mut Budget,
    ) -> Push {
        loop {
            if budget.is_spent() {
                return Push::Full;
            }
            let rest = &self.bytes[self.sent..];
            let (part, tail) = rest.split_at(rest.len().min(body_max.max(1) as usize));
            let inline = Words([self.status, tail.len() as u64]).bytes();
            let frame = frame(kind::REPLY, self.request, &inline, Body::Slice(part));
            match transport.push(to, &frame) {
                Push::Done if tail.is_empty() => return Push::Done,
                Push::Done => {
                    budget.spend(part.len() as u64);
                    self.sent += part.len();
                }
                refused => return refused,
            }
        }
    }
}

/// Returns whether an operation is a long active message that was not fetched yet, here or at its
/// sender.
fn is_long(op: &Op) -> bool {
    op.what == LONG
}
const LONG: &str = "long active message";

/// The handler to which a long response of a service is sent.
const RESPONSE: u16 = u16::MAX - 1;

impl Engine {
    /// Sends an active message; returns the operation of its reply, if one is wanted.
    pub(crate) fn send_active(
        &mut self,
        to: PeerId,
        handler: u16,
        bytes: &[u8],
        reply: bool,
    ) -> u64 {
        let request = if reply {
            self.peer(to).unanswered += 1;
            self.ops.add(Some(to), "active message", Work::Reply)
        } else {
            0
        };
        self.post_active(to, handler, bytes, request);
        request
    }

    /// Sends an active message whose reply ends the operation `request`, if there is one.
    pub(crate) fn post_active(&mut self, to: PeerId, handler: u16, bytes: &[u8], request: Key) {
        let caps = self.route(to).caps;
        if bytes.len() as u64 <= caps.body_max {
            let words = Words([handler as u64]).bytes();
            self.post_body(to, kind::ACTIVE, request, &words, bytes.to_vec());
            return;
        }
        let buf = ReadBuf::owned(bytes.to_vec());
        let (address, len) = (buf.address(), buf.len());
        let word = if caps.map {
            self.words.take(&self.node.heap)
        } else {
            None
        };
        let send = self
            .ops
            .add(Some(to), LONG, Work::Send { tag: 0, buf, word });
        self.ops.detach(send);
        let claim = word.map_or(0, |word| self.words.offset(word) + 1);
        let Words([a, b, c, _, e, f]) = Offer {
            send,
            len,
            address,
            place: 0,
            claim,
            offset: 0,
        }
        .words();
        // The place is unused (the bytes are private), so one of its words carries the handler.
        let words = Words([a, b, c, handler as u64, e, f]).bytes();
        self.post(to, kind::ACTIVE_RTS, request, &words);
    }

    pub(crate) fn active_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([handler]) = Words::<1>::read(frame.inline).ok_or("an active message")?;
        let handler = u16::try_from(handler).map_err(|_| "the number of a handler")?;
        self.may_send_active(frame.from, handler, frame.arg)?;
        let body = super::eager::payload(frame, 8);
        self.handle(frame.from, handler, frame.arg, &body);
        Ok(())
    }

    pub(crate) fn active_offer_arrived(
        &mut self,
        frame: &Incoming<'_>,
    ) -> Result<(), &'static str> {
        let offer = Offer::read(frame.inline).ok_or("a long active message")?;
        let handler = u16::try_from(offer.place).map_err(|_| "the number of a handler")?;
        let request = frame.arg;
        self.may_send_active(frame.from, handler, request)?;
        // The limits come first: the sender may be hostile, and memory is allocated below.
        let fetching = |work: &Work| matches!(work, Work::Pull(_) | Work::Collect(_));
        let (coming, bytes) = self.long_messages(frame.from, fetching);
        if coming >= CREDITS as usize || bytes >= LONG_BYTES {
            return Err("more long active messages than there are credits");
        }
        if offer.len > LONG_MAX {
            return Err("the length of a long active message");
        }
        let is_wanted = self.is_wanted(frame.from, handler, request);
        let memory = is_wanted.then(|| super::rendezvous::zeroed(offer.len));
        let Some(Some(bytes)) = memory else {
            // Not fetched, so the sender's buffer is free already.
            self.post_unasked(frame.from, kind::ATS, offer.send)?;
            match is_wanted {
                true => self.has_no_memory(frame.from, handler, request, offer.len),
                false => self.handle(frame.from, handler, request, &Body::Slice(&[])),
            }
            return Ok(());
        };
        let then = Then::Handle { handler, request };
        // The place carried the handler, and names no segment.
        let offer = Offer { place: 0, ..offer };
        let status = Status {
            from: frame.from,
            incarnation: self.incarnation(frame.from),
            tag: 0,
            len: offer.len,
        };
        let key = self.ops.add(Some(frame.from), LONG, Work::None);
        self.ops.detach(key);
        self.fetch(key, WriteBuf::owned(bytes), status, offer, then);
        Ok(())
    }

    /// Tells the sender that there is no memory here for its long active message, which is not its
    /// fault. A request to a service is repeated, as if the service were busy.
    fn has_no_memory(&mut self, from: PeerId, handler: u16, request: Key, bytes: u64) {
        let named = Named::new(from, self.name_of(from, None));
        match handler {
            RESPONSE => {
                let why = format!("no memory for a response of {bytes} bytes from {named}");
                self.ops.finish(request, Err(Error::Memory(why)));
            }
            _ if ServiceId::is(handler) => self.turn_down(from, handler, request, BUSY),
            _ if request == 0 => {
                tracing::warn!(from = %named, handler, bytes, "no memory for an active message, which is dropped");
            }
            _ => self.reply(from, request, NO_MEMORY | bytes << 16, Vec::new()),
        }
    }

    /// Returns the key of a segment of this process, which a peer asks for by number; empty if
    /// there is none.
    fn key_of(&self, number: &[u8]) -> Option<Vec<u8>> {
        let segment = u32::from_le_bytes(*number.first_chunk()?);
        // A key of generation 0 is a number that is reserved for a future segment.
        let offered = self
            .offered
            .get(&segment)
            .filter(|offered| offered.generation != 0)?;
        let key = SegmentKey {
            peer: self.me,
            segment,
            incarnation: self.node.incarnation,
            generation: offered.generation,
            bytes: offered.bytes.len(),
        };
        Some(key.to_bytes().to_vec())
    }

    /// Puts a request into a service's inbox. A request that is not accepted is refused; an empty
    /// one only asks whether the service exists.
    pub(crate) fn asked(&mut self, from: PeerId, service: u16, request: Key, bytes: Vec<u8>) {
        if service == RESPONSE {
            if self.awaited(from, request).is_some() {
                self.ops.finish(request, Ok(Outcome::Bytes(bytes)));
            }
            return;
        }
        let life = Life {
            peer: from,
            incarnation: self.incarnation(from),
        };
        let asked = Inbound {
            from: life,
            id: (request != 0).then_some(request),
            bytes,
        };
        let refused = match self.services.get(&service) {
            None => NO_HANDLER,
            Some(_) if request != 0 && asked.bytes.is_empty() => OK,
            Some(inbox) if Inbox::push(inbox, asked) => return,
            Some(_) => BUSY,
        };
        self.turn_down(from, service, request, refused);
    }

    /// Refuses a request to a service. The sender is told, provided that it reads its frames.
    fn turn_down(&mut self, from: PeerId, service: u16, request: Key, why: u64) {
        if request == 0 {
            tracing::warn!(%from, service, why, "a note that the service did not take");
        } else if self.peer(from).outbox.may_refuse() {
            let status = why | OF_SERVICE | (service as u64) << 16;
            self.reply(from, request, status, Vec::new());
        }
    }

    /// Returns whether there is room for one more note from this process to a service of its own.
    pub(crate) fn takes_own_note(&self, service: u16) -> bool {
        let inbox = self.services.get(&service);
        inbox.is_none_or(|inbox| Inbox::has_capacity_for_note(inbox, self.me))
    }

    /// Returns whether this process takes the active message.
    fn is_wanted(&mut self, from: PeerId, handler: u16, request: Key) -> bool {
        match handler {
            RESPONSE => self.awaited(from, request).is_some(),
            _ if ServiceId::is(handler) => self.services.contains_key(&handler),
            _ => self.handlers.contains_key(&handler),
        }
    }

    /// Returns the operation of a request that this peer may answer.
    fn awaited(&mut self, from: PeerId, request: Key) -> Option<&mut Op> {
        let op = self.ops.get(request);
        op.filter(|op| op.peer == Some(from) && matches!(op.work, Work::Reply))
    }

    /// Returns whether a response of so many bytes may be queued for a peer.
    ///
    /// # Errors
    /// [`Error::TooLong`] if it is longer than ever allowed.
    pub(crate) fn may_respond(&mut self, to: PeerId, bytes: u64) -> Result<bool, Error> {
        Ok(self.has_credit_for(to, bytes)? && self.peer(to).outbox.may_respond())
    }

    /// Sends the response of a service; the receiver fetches a long one, like a long request.
    pub(crate) fn respond(&mut self, to: PeerId, request: Key, bytes: &[u8]) {
        if bytes.len() as u64 > self.route(to).caps.body_max {
            return self.post_active(to, RESPONSE, bytes, request);
        }
        self.reply(to, request, OK | OF_SERVICE, bytes.to_vec());
    }

    fn reply(&mut self, to: PeerId, request: Key, status: u64, bytes: Vec<u8>) {
        let reply = Reply {
            request,
            status,
            bytes,
            sent: 0,
        };
        self.queue(to, Queued::Reply(reply));
    }

    /// Runs a handler and queues its reply.
    pub(crate) fn handle(&mut self, from: PeerId, handler: u16, request: u64, body: &Body<'_>) {
        if ServiceId::is(handler) {
            return self.asked(from, handler, request, body.to_vec());
        }
        let attempt = |run: &mut Handler, bytes: &[u8]| {
            // The requester is told before the program is.
            catch_unwind(AssertUnwindSafe(|| run(from, bytes)))
        };
        let ran = match (self.handlers.get_mut(&handler), body) {
            _ if handler == LOOK_UP => Some(Ok(self.key_of(&body.to_vec()))),
            (Some(run), Body::Slice(bytes)) => Some(attempt(run, bytes)),
            (Some(run), body) => Some(attempt(run, &body.to_vec())),
            (None, _) => None,
        };
        if ran.is_none() && request == 0 {
            tracing::warn!(%from, handler, "an active message for a handler that is not registered");
        }
        let named = |status: u64| (status | (handler as u64) << 16, Vec::new());
        let mut panic = None;
        let (status, bytes) = match ran.map(|ran| ran.map(Option::unwrap_or_default)) {
            Some(Ok(bytes)) if bytes.len() as u64 > LONG_MAX => {
                (TOO_LONG | (bytes.len() as u64) << 16, Vec::new())
            }
            Some(Ok(bytes)) => (OK, bytes),
            Some(Err(payload)) => {
                panic = Some(payload);
                named(PANICKED)
            }
            None => named(NO_HANDLER),
        };
        if request != 0 {
            self.reply(from, request, status, bytes);
        }
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    pub(crate) fn reply_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([status, left]) = Words::<2>::read(frame.inline).ok_or("a reply")?;
        let body = super::eager::payload(frame, 16);
        let here = body.len();
        let whole = here.checked_add(left).ok_or("the length of a reply")?;
        let is_of_service = status & OF_SERVICE != 0;
        let code = status & 0xffff & !OF_SERVICE;
        match code {
            OK if whole > LONG_MAX => return Err("the length of a reply"),
            OK if left == 0 || here > 0 => {}
            NO_HANDLER | TOO_LONG | PANICKED | BUSY | NO_MEMORY if whole == 0 => {}
            _ => return Err("the status of a reply"),
        }
        let from = frame.from;
        if left == 0 && !is_of_service {
            self.answered(from);
        }
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(());
        };
        let mut bytes = match &mut op.work {
            Work::Reply => Vec::new(),
            Work::ReplyParts { bytes, left } if *left == whole => std::mem::take(bytes),
            Work::ReplyParts { .. } => return Err("the length of a part of a reply"),
            _ => return Ok(()),
        };
        // Reserves for what is here, and as much again: what the peer announces is only believed
        // when it arrives.
        if bytes.try_reserve(here as usize).is_err() {
            let from = Named::new(from, self.name_of(from, None));
            let why = format!("no memory for a reply of {whole} bytes from {from}");
            self.ops.finish(frame.arg, Err(Error::Memory(why)));
            return Ok(());
        }
        let start = bytes.len();
        bytes.resize(start + here as usize, 0);
        body.copy_to(0, &mut bytes[start..]);
        if left > 0 {
            op.work = Work::ReplyParts { bytes, left };
            return Ok(());
        }
        if is_of_service && code != OK {
            let is_busy = code == BUSY;
            op.work = Work::Refused { is_busy };
            return Ok(());
        }
        let result = match code {
            OK => Ok(Outcome::Bytes(bytes)),
            TOO_LONG => Err(Error::TooLong {
                what: "a reply",
                bytes: status >> 16,
                most: LONG_MAX,
            }),
            NO_MEMORY => Err(Error::Memory(format!(
                "{} has no memory for an active message of {} bytes",
                Named::new(from, self.name_of(from, None)),
                status >> 16
            ))),
            PANICKED => Err(Error::HandlerPanicked {
                peer: from.into(),
                handler: (status >> 16) as u16,
            }),
            _ => Err(Error::NoHandler {
                peer: from.into(),
                handler: (status >> 16) as u16,
            }),
        };
        self.ops.finish(frame.arg, result);
        Ok(())
    }

    /// Returns a credit: a request of this process was answered.
    pub(crate) fn answered(&mut self, from: PeerId) {
        let peer = self.peer(from);
        peer.unanswered = peer.unanswered.saturating_sub(1);
    }

    /// Checks that a peer keeps to its credits. Otherwise its answers would pile up here without
    /// limit.
    pub(crate) fn may_ask(&mut self, from: PeerId) -> Result<(), &'static str> {
        match self.peer(from).outbox.may_be_asked() {
            true => Ok(()),
            false => Err("more requests than there are credits"),
        }
    }

    /// Checks the same for an active message. Those that want no reply, and those of services, take
    /// no credit; other limits apply to them.
    fn may_send_active(
        &mut self,
        from: PeerId,
        handler: u16,
        request: Key,
    ) -> Result<(), &'static str> {
        match request == 0 || ServiceId::is(handler) {
            true => Ok(()),
            false => self.may_ask(from),
        }
    }

    /// Returns the number and bytes of the long active messages to or from a peer whose work
    /// `which` selects.
    fn long_messages(&self, peer: PeerId, which: impl Fn(&Work) -> bool) -> (usize, u64) {
        let ours = |op: &&Op| op.peer == Some(peer) && is_long(op) && which(&op.work);
        let bytes = |op: &Op| match &op.work {
            Work::Send { buf, .. } | Work::Stream { buf, .. } | Work::Assist { buf, .. } => {
                buf.len()
            }
            Work::Pull(pull) => pull.status.len,
            Work::Collect(collect) => collect.status.len,
            _ => 0,
        };
        let all = self.ops.running().filter(ours);
        all.fold((0, 0), |(count, sum), op| (count + 1, sum + bytes(op)))
    }

    /// Returns whether an active message of so many bytes may wait for a peer to fetch it, if it is
    /// long.
    ///
    /// # Errors
    /// [`Error::TooLong`] if it is longer than ever allowed.
    pub(crate) fn has_credit_for(&self, to: PeerId, bytes: u64) -> Result<bool, Error> {
        if bytes <= self.route(to).caps.body_max {
            return Ok(true);
        }
        if bytes > LONG_MAX {
            return Err(Error::TooLong {
                what: "an active message",
                bytes,
                most: LONG_MAX,
            });
        }
        let sending = |work: &Work| {
            matches!(
                work,
                Work::Send { .. } | Work::Stream { .. } | Work::Assist { .. }
            )
        };
        let (count, bytes) = self.long_messages(to, sending);
        Ok(count < CREDITS as usize && bytes < LONG_BYTES)
    }
}
