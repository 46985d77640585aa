//! Active messages: a registered handler runs at the receiver, inside its progress.
//!
//! A handler gets the sender and the bytes, may return a reply, and can do nothing else: it has no way
//! to wait, so that it can never be the reason why nobody makes progress. Requests that will be
//! answered are bounded per peer ([`CREDITS`]); replies have their own room in the ring.
//!
//! Short ones travel in one frame. Long ones are offered and fetched like any large message.

use crate::engine::Engine;
use crate::ops::{Outcome, Status, Then, Work};
use crate::transport::{Class, Incoming};
use crate::wire::{Offer, Words, kind};
use crate::{Error, PeerId, SegmentKey};
use samite_mem::lend::{ReadBuf, WriteBuf};
use samite_mem::ring::Body;

/// Unanswered requests to one peer; more wait here, not there.
pub(crate) const CREDITS: u32 = 256;

const OK: u64 = 0;
const NO_HANDLER: u64 = 1;

/// The handler that every process has: it tells the key of a segment ([`crate::Fabric::look_up`]).
pub(crate) const LOOK_UP: u16 = u16::MAX;

impl Engine {
    /// Sends an active message; the operation of its reply, if one is wanted.
    pub(crate) fn send_active(
        &mut self,
        to: PeerId,
        handler: u16,
        bytes: &[u8],
        reply: bool,
    ) -> u64 {
        let request = if reply {
            self.ops.add(Some(to), "active message", Work::Reply)
        } else {
            0
        };
        if reply {
            self.peer(to).unanswered += 1;
        }
        if bytes.len() as u64 <= self.caps.body_max {
            let words = Words([handler as u64]).bytes();
            self.post_body(
                to,
                Class::Request,
                kind::ACTIVE,
                request,
                &words,
                bytes.to_vec(),
            );
            return request;
        }
        let buf = ReadBuf::owned(bytes.to_vec());
        let (address, len) = (buf.address(), buf.len());
        let word = if self.caps.map {
            self.words.take(&self.node.heap)
        } else {
            None
        };
        let send = self.ops.add(
            Some(to),
            "long active message",
            Work::Send { tag: 0, buf, word },
        );
        self.ops.detach(send);
        let claim = word.map_or(0, |word| self.words.offset(word) + 1);
        let Words([a, b, c, _, e]) = Offer {
            send,
            len,
            address,
            place: 0,
            claim,
        }
        .words();
        // The place is never used (the bytes are private): its word carries the handler.
        let words = Words([a, b, c, handler as u64, e]).bytes();
        self.post(to, Class::Request, kind::ACTIVE_OFFER, request, &words);
        request
    }

    pub(crate) fn active_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([handler]) = Words::<1>::read(frame.inline).ok_or("an active message")?;
        self.handle(
            frame.from,
            handler as u16,
            frame.arg,
            &super::eager::payload(frame, 8),
        );
        Ok(())
    }

    pub(crate) fn active_offer_arrived(
        &mut self,
        frame: &Incoming<'_>,
    ) -> Result<(), &'static str> {
        let offer = Offer::read(frame.inline).ok_or("a long active message")?;
        let then = Then::Handle {
            handler: offer.place as u16,
            request: frame.arg,
        };
        let offer = Offer { place: 0, ..offer };
        let status = Status {
            from: frame.from,
            tag: 0,
            len: offer.len,
        };
        let bytes =
            super::rendezvous::zeroed(offer.len).ok_or("the length of a long active message")?;
        let key = self
            .ops
            .add(Some(frame.from), "long active message", Work::None);
        self.ops.detach(key);
        self.fetch(key, WriteBuf::owned(bytes), status, offer, then);
        Ok(())
    }

    /// The key of a segment of this process that a peer asks for by its number; no bytes for none.
    fn key_of(&self, number: &[u8]) -> Option<Vec<u8>> {
        let segment = u32::from_le_bytes(*number.first_chunk()?);
        let offered = self.offered.get(&segment)?;
        let key = SegmentKey {
            peer: self.me,
            segment,
            incarnation: self.node.incarnation,
            generation: offered.generation,
            bytes: offered.bytes.len(),
        };
        Some(key.to_bytes().to_vec())
    }

    /// Runs a handler and queues its reply.
    pub(crate) fn handle(&mut self, from: PeerId, handler: u16, request: u64, body: &Body<'_>) {
        let reply = match (self.handlers.get_mut(&handler), body) {
            _ if handler == LOOK_UP => Ok(self.key_of(&body.to_vec())),
            (Some(run), Body::Slice(bytes)) => Ok(run(from, bytes)),
            (Some(run), body) => Ok(run(from, &body.to_vec())),
            (None, _) => Err(()),
        };
        if request == 0 {
            if reply.is_err() {
                tracing::warn!(%from, handler, "an active message for a handler that is not registered");
            }
            return;
        }
        let status = if reply.is_ok() {
            OK
        } else {
            NO_HANDLER | (handler as u64) << 16
        };
        let bytes = reply.ok().flatten().unwrap_or_default();
        let limit = self.caps.body_max as usize;
        let (total, mut parts) = (bytes.len(), bytes.chunks(limit.max(1)));
        let mut sent = 0;
        // One frame for what fits into one, else several in order; the last one is known by the total.
        loop {
            let part = parts.next().unwrap_or_default();
            sent += part.len();
            let words = Words([status, total as u64]).bytes();
            self.post_body(
                from,
                Class::Reply,
                kind::REPLY,
                request,
                &words,
                part.to_vec(),
            );
            if sent >= total {
                return;
            }
        }
    }

    pub(crate) fn reply_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([status, total]) = Words::<2>::read(frame.inline).ok_or("a reply")?;
        let from = frame.from;
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(());
        };
        let body = super::eager::payload(frame, 16);
        let mut bytes = match std::mem::replace(&mut op.work, Work::None) {
            Work::Reply => Vec::new(),
            Work::ReplyParts { bytes } => bytes,
            other => {
                op.work = other;
                return Ok(());
            }
        };
        bytes.extend_from_slice(&body.to_vec());
        if (bytes.len() as u64) < total && status == OK {
            op.work = Work::ReplyParts { bytes };
            return Ok(());
        }
        let result = match status & 0xffff {
            OK => Ok(Outcome::Bytes(bytes)),
            _ => Err(Error::NoHandler {
                peer: from,
                handler: (status >> 16) as u16,
            }),
        };
        self.answered(from);
        self.ops.finish(frame.arg, result);
        Ok(())
    }

    pub(crate) fn answered(&mut self, from: PeerId) {
        let peer = self.peer(from);
        peer.unanswered = peer.unanswered.saturating_sub(1);
    }
}
