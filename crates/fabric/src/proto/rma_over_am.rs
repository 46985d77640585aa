//! Put, get and atomics over messages, for memory of a peer that is not mapped: registered private
//! memory, units on another node, or a mapping switched off by configuration.
//!
//! The owner's progress does the work. A put is remotely complete when its last ANSWER has arrived.
//! An atomic is one operation at the owner, atomic with respect to every other one on the segment
//! that goes this way; on mapped segments the owner uses the processor's atomics, so both ways mix.
//!
//! Requests do not buffer bytes: a put is queued at its sender in frames, as the credits allow; a
//! get is answered piece by piece, from the segment straight into the ring as there is room. Each
//! piece is checked again, since the segment may be withdrawn meanwhile. A get may therefore see a
//! put that was started after it: requests that were not waited for are unordered.
//!
//! A place names its owner's incarnation: a segment of another process with the same number and
//! generation is another segment.

use crate::atomic::{Atomic, Width, apply, atomic_code, atomic_of};
use crate::engine::{Access, Budget, Engine};
use crate::ops::{Key, Outcome, Work};
use crate::transport::{AnyTransport, Incoming, Push, Transport};
use crate::wire::{RemoteAddress, Words, frame, kind};
use crate::{Error, PeerId};
use samite_mem::SharedBytes;
use samite_mem::ring::Body;

/// What an owner's progress did for others: frames of puts carried out, and gets requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Frames of puts, and of many updates of words.
    pub puts: u64,
    /// Their bytes.
    pub put_bytes: u64,
    /// Gets, and gathers of many elements.
    pub gets: u64,
    /// Their bytes.
    pub get_bytes: u64,
}

impl Served {
    pub(super) fn put(&mut self, bytes: u64) {
        self.puts += 1;
        self.put_bytes += bytes;
    }

    pub(super) fn got(&mut self, bytes: u64) {
        self.gets += 1;
        self.get_bytes += bytes;
    }
}

pub(super) const OK: u64 = 0;
pub(super) const NO_SEGMENT: u64 = 1;
pub(super) const OUT_OF_RANGE: u64 = 2;
pub(super) const NOT_NOW: u64 = 3;
const WRONG_LIFE: u64 = 4;

/// A get that is being answered.
#[derive(Debug)]
pub(crate) struct Serve {
    request: u64,
    place: RemoteAddress,
    len: u64,
    /// Where its bytes go in the request's buffer.
    at: u64,
    /// Bytes that were sent.
    done: u64,
}

impl Engine {
    /// Requests a put of a part; each request gets one answer.
    pub(crate) fn post_put(&mut self, to: PeerId, request: Key, place: RemoteAddress, part: &[u8]) {
        let inline = Words(place.words()).bytes();
        self.post_request(to, kind::PUT, request, &inline, Some(part.to_vec()));
    }

    /// Requests `len` bytes, which go at `at` in the request's buffer.
    pub(crate) fn post_get(
        &mut self,
        to: PeerId,
        request: Key,
        place: RemoteAddress,
        len: u64,
        at: u64,
    ) {
        let [a, b, c] = place.words();
        let inline = Words([a, b, c, len, at]).bytes();
        self.post_request(to, kind::GET, request, &inline, None);
    }

    /// Requests an atomic.
    pub(crate) fn post_atomic(
        &mut self,
        to: PeerId,
        request: Key,
        place: RemoteAddress,
        (op, width): (Atomic, Width),
        (x, y): (u64, u64),
    ) {
        let [a, b, c] = place.words();
        let inline = Words([a, b, c, atomic_code(op, width), x, y]).bytes();
        self.post_request(to, kind::ATOMIC, request, &inline, None);
    }

    /// Owner: returns the bytes of a place that a peer names, to be written.
    pub(super) fn offered_bytes(
        &self,
        place: RemoteAddress,
        len: u64,
    ) -> Result<&SharedBytes, u64> {
        match self.offered_access(place, len)? {
            Access::Shared(bytes) => Ok(bytes),
            Access::Reading(_) | Access::Withdrawn(_) => Err(NOT_NOW),
        }
    }

    /// Owner: returns the word of a place that a peer names. Registered memory may begin at any
    /// address, so the address must be aligned, and not only the offset.
    pub(super) fn offered_word(
        &self,
        place: RemoteAddress,
        width: Width,
    ) -> Result<&SharedBytes, u64> {
        let bytes = self.offered_bytes(place, width.bytes())?;
        let address = bytes.address().wrapping_add(place.offset);
        match address.is_multiple_of(width.bytes()) {
            true => Ok(bytes),
            false => Err(OUT_OF_RANGE),
        }
    }

    pub(super) fn offered_access(&self, place: RemoteAddress, len: u64) -> Result<&Access, u64> {
        if place.incarnation != self.node.incarnation {
            return Err(WRONG_LIFE);
        }
        let offered = self
            .offered
            .get(&place.segment)
            .filter(|o| o.generation == place.generation);
        let access = &offered.ok_or(NO_SEGMENT)?.bytes;
        let end = place.offset.checked_add(len);
        match end {
            Some(end) if end <= access.len() => Ok(access),
            _ => Err(OUT_OF_RANGE),
        }
    }

    /// Refuses a request. The answer says which segment, and for another incarnation, which one.
    pub(super) fn refuse(&mut self, to: PeerId, request: u64, status: u64, place: RemoteAddress) {
        let word = match status {
            WRONG_LIFE => place.incarnation,
            _ => place.segment,
        };
        self.answer(to, request, status, word.into());
    }

    pub(super) fn answer(&mut self, to: PeerId, request: u64, status: u64, word: u64) {
        self.post(to, kind::ANSWER, request, &Words([status, word]).bytes());
    }

    pub(crate) fn put_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let (place, []) = RemoteAddress::read(frame.inline).ok_or("a put")?;
        self.may_ask(frame.from)?;
        match self.offered_bytes(place, frame.body.len()) {
            Ok(bytes) => {
                frame.body.copy_to_shared(bytes, place.offset);
                self.served.put(frame.body.len());
                self.answer(frame.from, frame.arg, OK, 0);
            }
            Err(status) => self.refuse(frame.from, frame.arg, status, place),
        }
        Ok(())
    }

    pub(crate) fn get_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let (place, [len, at]) = RemoteAddress::read(frame.inline).ok_or("a get")?;
        at.checked_add(len).ok_or("the place of a get")?;
        self.may_ask(frame.from)?;
        match self.offered_access(place, len) {
            Ok(Access::Withdrawn(_)) => self.refuse(frame.from, frame.arg, NOT_NOW, place),
            Ok(_) => {
                self.served.got(len);
                let get = Serve {
                    request: frame.arg,
                    place,
                    len,
                    at,
                    done: 0,
                };
                self.queue_get(frame.from, get);
            }
            Err(status) => self.refuse(frame.from, frame.arg, status, place),
        }
        Ok(())
    }

    /// Owner: sends as much of a get as room and budget allow; returns whether it was the end of
    /// it.
    pub(crate) fn serve(
        &mut self,
        to: PeerId,
        get: &mut Serve,
        transport: &mut AnyTransport,
        (sent, budget): (&mut usize, &mut Budget),
    ) -> bool {
        let body_max = self.route(to).caps.body_max;
        loop {
            if budget.is_spent() {
                return false;
            }
            let len = (get.len - get.done).min(body_max.max(1));
            let offset = get.place.offset + get.done;
            let place = RemoteAddress {
                offset,
                ..get.place
            };
            // Checked for each piece: the segment may have been withdrawn meanwhile.
            let body = match self.offered_access(place, len) {
                Ok(Access::Shared(bytes)) => Ok(Body::Shared { bytes, offset, len }),
                Ok(Access::Reading(bytes)) => {
                    let range = offset as usize..(offset + len) as usize;
                    Ok(Body::Slice(&bytes.as_slice::<u8>()[range]))
                }
                Ok(Access::Withdrawn(_)) => Err(NOT_NOW),
                Err(status) => Err(status),
            };
            let body = match body {
                Ok(body) => body,
                Err(status) => {
                    self.refuse(to, get.request, status, place);
                    return true;
                }
            };
            let left = get.len - get.done - len;
            let inline = Words([get.at + get.done, left]).bytes();
            let frame = frame(kind::GET_REPLY, get.request, &inline, body);
            match transport.push(to, &frame) {
                Push::Done => {
                    budget.spend(len);
                    *sent += 1;
                }
                Push::Full => return false,
                Push::Gone => return true,
            }
            get.done += len;
            if left == 0 {
                return true;
            }
        }
    }

    pub(crate) fn got_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([offset, left]) = Words::<2>::read(frame.inline).ok_or("the bytes of a get")?;
        let from = frame.from;
        if left == 0 {
            self.answered(from);
        }
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(());
        };
        let Work::Get { buf, got } = &mut op.work else {
            return Ok(());
        };
        let len = frame.body.len();
        if offset != *got || len > buf.len() - offset {
            return Err("the place of the bytes of a get");
        }
        buf.fill(offset, &frame.body);
        *got += len;
        if *got == buf.len() {
            self.end_get(frame.arg);
        }
        Ok(())
    }

    /// Completes a get whose bytes have all arrived.
    pub(super) fn end_get(&mut self, key: Key) {
        let Some(op) = self.ops.get(key) else { return };
        if let Work::Get { buf, .. } = std::mem::replace(&mut op.work, Work::None) {
            let bytes = buf.into_owned().unwrap_or_default();
            self.ops.finish(key, Ok(Outcome::Bytes(bytes)));
        }
    }

    pub(crate) fn atomic_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let (place, [op, a, b]) = RemoteAddress::read(frame.inline).ok_or("an atomic")?;
        let (op, width) = atomic_of(op).ok_or("the operation of an atomic")?;
        self.may_ask(frame.from)?;
        match self.offered_word(place, width) {
            Ok(bytes) => {
                let old = apply(bytes, place.offset, op, width, a, b);
                self.answer(frame.from, frame.arg, OK, old);
            }
            Err(status) => self.refuse(frame.from, frame.arg, status, place),
        }
        Ok(())
    }

    pub(crate) fn answer_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([status, word]) = Words::<2>::read(frame.inline).ok_or("an answer")?;
        let from = frame.from;
        self.answered(from);
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(());
        };
        match &mut op.work {
            Work::Answer { left } if status == OK && *left > 1 => {
                *left -= 1;
                return Ok(());
            }
            Work::Get { .. } if status == OK => return Err("an answer without bytes to a get"),
            Work::Answer { .. } | Work::Get { .. } => {}
            _ => return Ok(()),
        }
        let result = match status {
            OK => Ok(Outcome::Word(word)),
            NOT_NOW => Err(Error::WrongPhase {
                peer: from.into(),
                segment: word as u32,
            }),
            WRONG_LIFE => Err(Error::PeerLost {
                peer: from.into(),
                incarnation: word as u32,
            }),
            // The range was checked against the key: if it does not fit, the segment is another
            // one.
            NO_SEGMENT | OUT_OF_RANGE => Err(Error::NoSuchSegment {
                peer: from.into(),
                segment: word as u32,
            }),
            _ => return Err("the status of an answer"),
        };
        self.ops.finish(frame.arg, result);
        Ok(())
    }
}
