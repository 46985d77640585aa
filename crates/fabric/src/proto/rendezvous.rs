//! Rendezvous: a large message is offered, matched, and then moved by the cheapest engine.
//!
//! ```text
//!   sender                               receiver
//!     RTS {send, len, address, place, claim}    -->  matched (or kept, 48 bytes, until it is)
//!                                              place leased:  copy from the segment (direct)
//!                                              kernel:        process_vm_readv      (pull)
//!     <-- HELP    both copy, divided by the claim word                              (cooperative)
//!     <-- STREAM  DATA DATA DATA -->           two copies via the ring, pipelined   (ring)
//!     <-- ATS     the buffer is the sender's again
//!     <-- REFUSED the receive was given up halfway; so is the send
//!     WITHDRAW --> (deadline of the sender)
//! ```
//!
//! An offer is consumed at once, so that it never blocks the messages behind it. `pull` is the
//! receiver that copies.
//!
//! # Invariants
//! V1 Only the side that claimed a piece in the claim word moves it. A possible revocation is
//!    checked *after* the last piece, so that bytes of a buffer that its owner already reuses are
//!    never delivered.
//! V2 A claim word is reused only after ATS or REFUSED, or after its receiver died.
//! V3 If the kernel refuses, the message restarts as a stream: per message, with the same result.

use crate::engine::{Arrived, Engine, Pace, weight};
use crate::node::ClaimWord;
use crate::ops::{Key, Outcome, Pull, Source, Status, Then, Viewed, Work};
use crate::proto::cost::Choice;
use crate::rpc::ServiceId;
use crate::transport::{AnyTransport, Incoming, Push, Transport};
use crate::wire::{Help, Offer, frame, kind, segment_of_word, segment_word};
use crate::{Error, Named, PeerId};
use samite_mem::copy::cooperative::Claim;
use samite_mem::lease::Shared;
use samite_mem::lend::{ReadBuf, WriteBuf};
use samite_mem::ring::Body;
use std::sync::OnceLock;

impl Engine {
    /// Sends a message eagerly, or offers it. `Full` leaves everything as it was.
    pub(crate) fn push_send(&mut self, key: Key, to: PeerId, transport: &mut AnyTransport) -> Push {
        let crate::engine::Peer { route, pace, .. } = self.peer(to);
        let pace = *pace;
        let (eager_max, inline_max, map) = (route.eager_max, route.caps.inline_max, route.caps.map);
        let Some(op) = self.ops.get(key) else {
            return Push::Done;
        };
        let Work::Send { tag, buf, word } = &mut op.work else {
            return Push::Done;
        };
        let (tag, len) = (*tag, buf.len());
        // A message in a segment is offered: the receiver reads it in place.
        let offer_in_place =
            map && matches!(buf.body(0, len), Body::Shared { .. }) && len > inline_max;
        let at_once = len <= eager_max && !offer_in_place && pace == Pace::Go;
        let weight = weight(if at_once { len } else { 0 });
        if pace == Pace::Stop || self.unpolled < weight {
            return Push::Full;
        }
        if at_once {
            let push = push_eager(transport, to, tag, &buf.body(0, len), inline_max);
            if push == Push::Done {
                self.unpolled -= weight;
                let Work::Send { buf, .. } = std::mem::replace(&mut op.work, Work::None) else {
                    return push;
                };
                self.ops.finish(key, Ok(Outcome::Sent(buf.into_owned())));
            }
            return push;
        }
        // A message that is offered only for want of room is short: it is streamed, and needs no
        // word.
        if word.is_none() && map && (len > eager_max || offer_in_place) {
            *word = self.words.take(&self.node.heap);
        }
        let place = match buf.body(0, len) {
            Body::Shared { bytes, .. } if map => bytes.origin(),
            _ => None,
        };
        let offer = Offer {
            send: key,
            len,
            address: buf.address(),
            place: place.map_or(0, |place| segment_word(place.segment, place.generation)),
            claim: word.map_or(0, |word| self.words.offset(word) + 1),
            offset: place.map_or(0, |place| place.offset),
        };
        let inline = offer.words().bytes();
        let body = Body::Slice(&[]);
        let push = transport.push(to, &frame(kind::RTS, tag, &inline, body));
        if push == Push::Done {
            self.unpolled -= weight;
        }
        push
    }

    pub(crate) fn offer_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let offer = Offer::read(frame.inline).ok_or("an offer")?;
        match self.matcher.take_posted(frame.from, frame.arg) {
            Some(key) => self.accept(key, frame.from, frame.arg, offer),
            None => self.keep(frame.from, frame.arg, Arrived::Offer(offer))?,
        }
        Ok(())
    }

    /// Handles an offered message that has matched: chooses who copies.
    pub(crate) fn accept(&mut self, key: Key, from: PeerId, tag: u64, offer: Offer) {
        let status = Status {
            from,
            incarnation: self.incarnation(from),
            tag,
            len: offer.len,
        };
        let Some(op) = self.ops.get(key) else { return };
        op.peer = Some(from);
        let is_view = matches!(op.work, Work::ReceiveAny { view: true });
        let place = match is_view {
            true => self
                .claim_word(from, &offer)
                .and_then(|word| Some((self.lease(from, &offer)?, word)))
                // A withdrawn offer ends like one that is copied.
                .filter(|(_, word)| !Claim::new(word, 0).revoked()),
            false => None,
        };
        let Some(op) = self.ops.get(key) else { return };
        let buf = match std::mem::replace(&mut op.work, Work::None) {
            Work::Receive { buf } if buf.len() < offer.len => {
                let error = Error::Truncated {
                    from: from.into(),
                    tag,
                    message: offer.len,
                    buffer: buf.len(),
                };
                drop(buf);
                self.post(from, kind::ATS, offer.send, &[]);
                self.ops.finish(key, Err(error));
                return;
            }
            Work::Receive { buf } => buf,
            Work::ReceiveAny { .. } if let Some((bytes, word)) = place => {
                let view = self.views.begin(from, offer.send, word);
                let viewed = Viewed::InPlace { bytes, view };
                self.ops.finish(key, Ok(Outcome::Viewed(status, viewed)));
                return;
            }
            Work::ReceiveAny { .. } => match zeroed(offer.len) {
                Some(bytes) => WriteBuf::owned(bytes),
                None => {
                    self.post(from, kind::ATS, offer.send, &[]);
                    let from = Named::new(from, self.name_of(from, None));
                    let why = format!("no memory for a message of {} bytes from {from}", offer.len);
                    self.ops.finish(key, Err(Error::Memory(why)));
                    return;
                }
            },
            other => {
                op.work = other;
                return;
            }
        };
        self.fetch(key, buf, status, offer, Then::Complete);
    }

    /// Returns the bytes of an offered message in place, with a lease on their segment, if they can
    /// be read there.
    fn lease(&self, from: PeerId, offer: &Offer) -> Option<samite_mem::SharedBytes> {
        let (id, generation) = segment_of_word(offer.place)?;
        let (slot, segment) = crate::node::segment_of(id);
        let owner = slot.of(from.node());
        if !self.route(from).caps.map || offer.claim == 0 || self.gone(owner).is_some() {
            return None;
        }
        let entry = self.node.layout.entry(slot, segment)?;
        let shared = self.node.holder.share(&entry, generation, id).ok()??;
        match shared {
            Shared::Mapped(bytes) if bytes.contains(offer.offset, offer.len) => {
                Some(bytes.slice(offer.offset, offer.len))
            }
            _ => None,
        }
    }

    /// Returns the sender's claim word of an offered message; `None` if the offer names an invalid
    /// one.
    fn claim_word(&self, from: PeerId, offer: &Offer) -> Option<ClaimWord> {
        let offset = offer
            .claim
            .checked_sub(1)
            .filter(|_| self.route(from).caps.map)?;
        match from == self.me {
            true => self.words.at(offset),
            false => self.node.layout.claim_word(offset),
        }
    }

    /// Moves an offered message into `buf`.
    pub(crate) fn fetch(
        &mut self,
        key: Key,
        mut buf: WriteBuf,
        status: Status,
        offer: Offer,
        then: Then,
    ) {
        let from = status.from;
        let claim = self.claim_word(from, &offer);
        let place = self.lease(status.from, &offer).filter(|_| claim.is_some());
        let kernel = claim.is_some() && self.kernel_works(from);
        let choice = match &place {
            Some(_) => Choice::Kernel,
            None => self
                .costs
                .choose(offer.len, kernel, kernel && !self.mask.cooperative),
        };
        let Some(claim) = claim.filter(|_| place.is_some() || choice != Choice::Ring) else {
            return self.collect(key, buf, status, offer.send, then);
        };
        let (piece, source) = match place {
            Some(place) => (self.costs.direct_piece(offer.len), Source::Mapped(place)),
            None => {
                let source = Source::Process {
                    pid: self.peers.pid(from),
                    address: offer.address,
                };
                (self.costs.piece(offer.len, choice), source)
            }
        };
        if choice == Choice::Cooperative {
            let help = Help {
                address: buf.address(),
                len: offer.len,
                piece,
            };
            self.post(from, kind::HELP, offer.send, &help.words().bytes());
        }
        let pull = Pull {
            buf,
            status,
            send: offer.send,
            source,
            claim,
            claim_at: offer.claim - 1, // Not 0: the offer has a claim word.
            piece,
            then,
            helped: choice == Choice::Cooperative,
            ending: None,
        };
        let Some(op) = self.ops.get(key) else { return };
        op.work = Work::Pull(Box::new(pull));
        // Tell the sender before copying, so that it can help meanwhile.
        self.active.push_back(key);
    }

    /// Completes a message that has arrived whole.
    pub(crate) fn complete(&mut self, key: Key) {
        let Some(op) = self.ops.get(key) else { return };
        let (buf, status, then) = match std::mem::replace(&mut op.work, Work::None) {
            Work::Pull(pull) => (pull.buf, pull.status, pull.then),
            Work::Collect(collect) => (collect.buf, collect.status, collect.then),
            other => {
                op.work = other;
                return;
            }
        };
        match then {
            Then::Complete => {
                self.ops
                    .finish(key, Ok(Outcome::Received(status, buf.into_owned())));
            }
            Then::Handle { handler, request } => {
                self.ops.finish(key, Ok(Outcome::Sent(None)));
                let bytes = buf.into_owned().unwrap_or_default();
                match ServiceId::is(handler) {
                    true => self.asked(status.from, handler, request, bytes),
                    false => self.handle(status.from, handler, request, &Body::Slice(&bytes)),
                }
            }
        }
    }

    /// Sender: its buffer is free, because the message was taken, or because its receiver gave it
    /// up before it was whole.
    pub(crate) fn taken(&mut self, frame: &Incoming<'_>, whole: bool) -> Result<(), &'static str> {
        let from = frame.from;
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            self.let_go(from, frame.arg);
            return Ok(());
        };
        let (buf, word): (Option<ReadBuf>, _) = match std::mem::replace(&mut op.work, Work::None) {
            Work::Send { buf, word, .. } => (Some(buf), word),
            Work::Assist { buf, word, .. } => (Some(buf), Some(word)),
            Work::Stream { buf, .. } if !whole => (Some(buf), None),
            other => {
                // It has ended here, perhaps because it was given up; its result was not fetched
                // yet.
                op.work = other;
                self.let_go(from, frame.arg);
                return Ok(());
            }
        };
        if let Some(word) = word {
            self.words.give_back(word);
        }
        let result = match whole {
            true => Ok(Outcome::Sent(buf.and_then(ReadBuf::into_owned))),
            false => Err(Error::NotReceived(from.into())),
        };
        self.ops.finish(frame.arg, result);
        Ok(())
    }

    /// Ends the use of a claim word by the receiver of a withdrawn send (V2).
    fn let_go(&mut self, from: PeerId, send: Key) {
        self.withdrawal_answered(from);
        let ours = |work: &Work| matches!(work, Work::Withdrawn { send: s, .. } if *s == send);
        for key in self
            .ops
            .pending(|op| op.peer == Some(from) && ours(&op.work))
        {
            if let Some(Work::Withdrawn { word, .. }) = self.ops.get(key).map(|op| &op.work) {
                self.words.give_back(*word);
            }
            self.ops.finish(key, Err(Error::Cancelled));
        }
    }

    /// Handles a withdrawn offer: forgets it if nothing was copied yet, and lets go of the claim.
    pub(crate) fn withdrawn(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let send = frame.arg;
        self.drop_unexpected(
            frame.from,
            |arrived| matches!(arrived, Arrived::Offer(offer) if offer.send == send),
        );
        let from = frame.from;
        let ours = self.ops.pending(|op| {
            let theirs = match &op.work {
                Work::Collect(collect) => collect.send,
                Work::Pull(pull) => pull.send,
                _ => return false,
            };
            op.peer == Some(from) && theirs == send
        });
        let mut copying = false;
        for key in ours {
            copying |= matches!(self.ops.get(key).map(|op| &op.work), Some(Work::Pull(_)));
            self.fail(key, Error::Cancelled, true);
        }
        // If it is being copied, it is let go when both sides are quiet; if it is viewed, with the
        // view (W1).
        if !copying && !self.views.shows(from, send) {
            self.post_unasked(from, kind::ATS, send)?;
        }
        Ok(())
    }
}

/// Allocates as many bytes as a peer says, if possible: the peer is not trusted. What exceeds this
/// machine's memory cannot be received here, whatever the kernel would promise.
pub(crate) fn zeroed(len: u64) -> Option<Vec<u8>> {
    static MOST: OnceLock<u64> = OnceLock::new();
    let most = *MOST.get_or_init(|| match samite_mem::host::Host::read().memory_total {
        0 => u64::MAX, // The total is unknown here.
        total => total,
    });
    let len = usize::try_from(len).ok().filter(|_| len <= most)?;
    bytemuck::allocation::try_zeroed_vec(len).ok()
}

/// Pushes a message in one frame.
#[inline(always)]
pub(crate) fn push_eager(
    transport: &mut AnyTransport,
    to: PeerId,
    tag: u64,
    body: &Body<'_>,
    inline_max: u64,
) -> Push {
    let (inline, body): (&[u8], _) = match *body {
        Body::Slice(slice) if slice.len() as u64 <= inline_max => (slice, Body::Slice(&[])),
        body => (&[], body),
    };
    transport.push(to, &frame(kind::EAGER, tag, inline, body))
}
