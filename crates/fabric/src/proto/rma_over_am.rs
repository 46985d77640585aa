//! Put, get and atomics over messages, where the memory of the other side is not mapped: private
//! memory that was registered, units on another node, or a mapping switched off by configuration.
//!
//! The owner's progress does the work. A put is remotely complete when its last ANSWER is here; an
//! atomic is one operation at the owner and atomic against every other one on the same segment that
//! goes this way; on mapped segments the owner uses the processor's atomics, so that both ways mix.

use crate::engine::{Access, Engine};
use crate::ops::{Key, Outcome, Work};
use crate::transport::{Class, Incoming};
use crate::wire::{Place, Words, kind};
use crate::{Error, PeerId};
use samite_mem::SharedBytes;
use samite_mem::lend::WriteBuf;
use samite_mem::ring::Body;
use samite_mem::sync::Ordering;

/// Operations on a word; the old value comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after what they do")]
pub enum Atomic {
    Load,
    Add,
    And,
    Or,
    Xor,
    Swap,
    Min,
    Max,
    CompareExchange,
}

const ATOMICS: [Atomic; 9] = [
    Atomic::Load,
    Atomic::Add,
    Atomic::And,
    Atomic::Or,
    Atomic::Xor,
    Atomic::Swap,
    Atomic::Min,
    Atomic::Max,
    Atomic::CompareExchange,
];

/// Width of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after what they are")]
pub enum Width {
    W32,
    W64,
}

/// What an owner's progress did for others: frames of puts that it carried out, and requests of gets.
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

impl Width {
    /// In bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Width::W32 => 4,
            Width::W64 => 8,
        }
    }
}

impl Atomic {
    /// Applies it to a word of mapped bytes; the old value, or `None` outside of them and at misaligned
    /// offsets.
    #[inline(always)]
    pub fn try_apply(
        self,
        bytes: &SharedBytes,
        offset: u64,
        width: Width,
        (a, b): (u64, u64),
    ) -> Option<u64> {
        let fits = bytes.contains(offset, width.bytes()) && offset.is_multiple_of(width.bytes());
        fits.then(|| apply(bytes, offset, self, width, a, b))
    }
}

/// Applies an atomic to mapped bytes; `offset` is in range and aligned. The old value.
#[inline(always)]
pub(crate) fn apply(
    bytes: &SharedBytes,
    offset: u64,
    op: Atomic,
    width: Width,
    a: u64,
    b: u64,
) -> u64 {
    // ORDERING: SeqCst throughout: one order of all atomics, which also orders the puts around them. On
    // x86-64 it costs what Release and Acquire cost.
    const O: Ordering = Ordering::SeqCst;
    macro_rules! on {
        ($word:expr, $int:ty) => {{
            let word = $word;
            let (a, b) = (a as $int, b as $int);
            (match op {
                Atomic::Load => word.load(O),
                Atomic::Add => word.fetch_add(a, O),
                Atomic::And => word.fetch_and(a, O),
                Atomic::Or => word.fetch_or(a, O),
                Atomic::Xor => word.fetch_xor(a, O),
                Atomic::Swap => word.swap(a, O),
                Atomic::Min => word.fetch_min(a, O),
                Atomic::Max => word.fetch_max(a, O),
                Atomic::CompareExchange => {
                    word.compare_exchange(a, b, O, O).unwrap_or_else(|old| old)
                }
            }) as u64
        }};
    }
    match width {
        Width::W32 => on!(bytes.u32(offset), u32),
        Width::W64 => on!(bytes.u64(offset), u64),
    }
}

pub(super) const OK: u64 = 0;
pub(super) const NO_SEGMENT: u64 = 1;
pub(super) const OUT_OF_RANGE: u64 = 2;
pub(super) const NOT_NOW: u64 = 3;

/// An operation as one word of a frame.
pub(super) fn atomic_code(op: Atomic, width: Width) -> u64 {
    let op = ATOMICS.iter().position(|known| *known == op).unwrap_or(0) as u64;
    op | width.bytes() << 8
}

pub(super) fn atomic_of(code: u64) -> Option<(Atomic, Width)> {
    let width = if code >> 8 == 4 {
        Width::W32
    } else {
        Width::W64
    };
    Some((*ATOMICS.get((code & 0xff) as usize)?, width))
}

impl Engine {
    /// Puts `bytes` by messages; the operation ends when they are all in place.
    pub(crate) fn put_over_am(&mut self, to: PeerId, place: Place, bytes: &[u8]) -> Key {
        let limit = self.caps.body_max.max(1) as usize;
        let left = bytes.len().div_ceil(limit).max(1) as u64;
        let key = self.ops.add(Some(to), "put", Work::Answer { left });
        self.peer(to).unanswered += 1;
        let mut offset = place.offset;
        for part in bytes.chunks(limit) {
            let [a, b] = Place { offset, ..place }.words();
            self.post_body(
                to,
                Class::Request,
                kind::PUT,
                key,
                &Words([a, b]).bytes(),
                part.to_vec(),
            );
            offset += part.len() as u64;
        }
        if bytes.is_empty() {
            let [a, b] = place.words();
            self.post(to, Class::Request, kind::PUT, key, &Words([a, b]).bytes());
        }
        key
    }

    /// Gets bytes by messages.
    pub(crate) fn get_over_am(&mut self, to: PeerId, place: Place, buf: WriteBuf) -> Key {
        let len = buf.len();
        let key = self.ops.add(Some(to), "get", Work::Get { buf, got: 0 });
        self.peer(to).unanswered += 1;
        let [a, b] = place.words();
        self.post(
            to,
            Class::Request,
            kind::GET,
            key,
            &Words([a, b, len]).bytes(),
        );
        key
    }

    /// One atomic by a message.
    pub(crate) fn atomic_over_am(
        &mut self,
        to: PeerId,
        place: Place,
        (op, width): (Atomic, Width),
        (a, b): (u64, u64),
    ) -> Key {
        let key = self.ops.add(Some(to), "atomic", Work::Answer { left: 1 });
        self.peer(to).unanswered += 1;
        let [place, offset] = place.words();
        let words = Words([place, offset, atomic_code(op, width), a, b]);
        self.post(to, Class::Request, kind::ATOMIC, key, &words.bytes());
        key
    }

    /// Owner: the bytes of a place that somebody names, to be written.
    pub(super) fn offered_bytes(&self, place: Place, len: u64) -> Result<&SharedBytes, u64> {
        match self.offered_access(place, len)? {
            Access::Shared(bytes) => Ok(bytes),
            Access::Reading(_) | Access::Withdrawn(_) => Err(NOT_NOW),
        }
    }

    pub(super) fn offered_access(&self, place: Place, len: u64) -> Result<&Access, u64> {
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

    pub(super) fn answer(&mut self, to: PeerId, request: u64, status: u64, word: u64) {
        self.post(
            to,
            Class::Reply,
            kind::ANSWER,
            request,
            &Words([status, word]).bytes(),
        );
    }

    pub(crate) fn put_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words(words) = Words::<2>::read(frame.inline).ok_or("a put")?;
        let place = Place::of(&words);
        let status = match self.offered_bytes(place, frame.body.len()) {
            Ok(bytes) => {
                frame.body.copy_to_shared(bytes, place.offset);
                self.served.put(frame.body.len());
                OK
            }
            Err(status) => status,
        };
        self.answer(frame.from, frame.arg, status, place.segment as u64);
        Ok(())
    }

    pub(crate) fn get_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([a, b, len]) = Words::<3>::read(frame.inline).ok_or("a get")?;
        let place = Place::of(&[a, b]);
        let bytes = match self.offered_access(place, len) {
            Ok(Access::Shared(bytes)) => Ok(Access::Shared(bytes.clone())),
            Ok(Access::Reading(bytes)) => Ok(Access::Reading(bytes.clone())),
            Ok(Access::Withdrawn(_)) => Err(NOT_NOW),
            Err(status) => Err(status),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(status) => {
                self.answer(frame.from, frame.arg, status, place.segment as u64);
                return Ok(());
            }
        };
        self.served.got(len);
        let limit = self.caps.body_max.max(1);
        let mut offset = 0;
        loop {
            let part = limit.min(len - offset);
            let at = place.offset + offset;
            let body = match &bytes {
                Access::Shared(bytes) => {
                    let (offset, len) = (at, part);
                    Body::Shared { bytes, offset, len }.to_vec()
                }
                Access::Reading(bytes) => {
                    bytes.as_slice::<u8>()[at as usize..(at + part) as usize].to_vec()
                }
                Access::Withdrawn(_) => Vec::new(),
            };
            let words = Words([offset]).bytes();
            self.post_body(frame.from, Class::Reply, kind::GOT, frame.arg, &words, body);
            offset += part;
            if offset >= len {
                return Ok(());
            }
        }
    }

    pub(crate) fn got_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([offset]) = Words::<1>::read(frame.inline).ok_or("the bytes of a get")?;
        let from = frame.from;
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
            let Work::Get { buf, .. } = std::mem::replace(&mut op.work, Work::None) else {
                return Ok(());
            };
            self.answered(from);
            self.ops.finish(
                frame.arg,
                Ok(Outcome::Bytes(buf.into_owned().unwrap_or_default())),
            );
        }
        Ok(())
    }

    pub(crate) fn atomic_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([place, offset, op, a, b]) = Words::<5>::read(frame.inline).ok_or("an atomic")?;
        let place = Place::of(&[place, offset]);
        let (op, width) = atomic_of(op).ok_or("the operation of an atomic")?;
        let aligned = place.offset.is_multiple_of(width.bytes());
        let (status, word) = match self.offered_bytes(place, width.bytes()) {
            Ok(bytes) if aligned => (OK, apply(bytes, place.offset, op, width, a, b)),
            Ok(_) => (OUT_OF_RANGE, 0),
            Err(status) => (status, place.segment as u64),
        };
        self.answer(frame.from, frame.arg, status, word);
        Ok(())
    }

    pub(crate) fn answer_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([status, word]) = Words::<2>::read(frame.inline).ok_or("an answer")?;
        let from = frame.from;
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(());
        };
        match &mut op.work {
            Work::Answer { left } if status == OK && *left > 1 => {
                *left -= 1;
                return Ok(());
            }
            Work::Answer { .. } | Work::Get { .. } => {}
            _ => return Ok(()),
        }
        self.answered(from);
        let result = match status {
            OK => Ok(Outcome::Word(word)),
            NOT_NOW => Err(Error::WrongPhase {
                peer: from,
                segment: word as u32,
            }),
            // The range was checked against the key: one that does not fit names another segment.
            _ => Err(Error::NoSuchSegment {
                peer: from,
                segment: word as u32,
            }),
        };
        self.ops.finish(frame.arg, result);
        Ok(())
    }
}
