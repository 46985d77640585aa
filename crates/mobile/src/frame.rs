//! The frames of moved code: heads of fixed length, numbers little-endian.
//!
//! ```text
//!   word                 the id of the code: the first 8 bytes of its hash
//!   CALL      24 bytes   0 kind  1 entry  2 hops  4 milliseconds  6 grants  8 slot  12 origin
//!                        16 its incarnation  20 flags  22 milliseconds on one unit; then the place
//!                        of its input, if it has one; then the payload
//!   REPLY      8 bytes   0 kind  4 slot; then the reply; word 0
//!   FAIL      24 bytes   the head of the call that failed; then cause, part, path, text
//!   FETCH      8 bytes   0 kind  4 offset: the receiver sends the capsule from there on
//!   CODE      12 bytes   0 kind  4 offset  8 length of the whole (0: it has none); then a part
//!   PREFETCH  24 bytes   as CALL; then the units of the subtree of the receiver
//! ```
//! A warm call has 24 bytes and the word, so 32 beyond its payload; with a payload of 24 bytes its
//! frame is one cache line.

use crate::error::{Cause, Failure};
use samite_engines::Limits;
use samite_fabric::PeerId;
use samite_fabric::rpc::Life;
use std::time::Duration;

pub(crate) const CALL: u8 = 1;
pub(crate) const REPLY: u8 = 2;
pub(crate) const FAIL: u8 = 3;
pub(crate) const FETCH: u8 = 4;
pub(crate) const CODE: u8 = 5;
pub(crate) const PREFETCH: u8 = 6;

/// Where the flags of a head are.
pub(crate) const FLAGS: usize = 20;
/// Nobody waits for the result.
pub(crate) const ONE_WAY: u16 = 1;
const MAY_SPAWN: u16 = 2;
const MAY_DEFINE: u16 = 4;
/// The place of an input precedes the payload.
const HAS_INPUT: u16 = 8;

/// The most units of a path.
pub(crate) const PATH_MAX: usize = 16;
/// The longest time that travels.
pub(crate) const TIME_MAX: Duration = Duration::from_millis(u16::MAX as u64);
/// Longest text of a failure.
pub(crate) const TEXT_MAX: usize = 512;

/// The head of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) entry: u8,
    pub(crate) limits: Limits,
    pub(crate) slot: u32,
    pub(crate) origin: Life,
    pub(crate) one_way: bool,
    /// Whether it is applied to an input.
    pub(crate) has_input: bool,
}

impl Head {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn encode(&self, kind: u8) -> [u8; Head::BYTES] {
        let mut bytes = [0; Head::BYTES];
        let limits = &self.limits;
        let millis = |time: Duration| time.min(TIME_MAX).as_millis() as u16;
        let flag = |set: bool, flag: u16| if set { flag } else { 0 };
        let flags = flag(self.one_way, ONE_WAY)
            | flag(limits.may_spawn, MAY_SPAWN)
            | flag(limits.may_define, MAY_DEFINE)
            | flag(self.has_input, HAS_INPUT);
        (bytes[0], bytes[1]) = (kind, self.entry);
        bytes[2..4].copy_from_slice(&limits.hops.to_le_bytes());
        bytes[4..6].copy_from_slice(&millis(limits.time).to_le_bytes());
        bytes[6..8].copy_from_slice(&limits.grants.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.slot.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.origin.peer.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.origin.incarnation.to_le_bytes());
        bytes[20..22].copy_from_slice(&flags.to_le_bytes());
        bytes[22..24].copy_from_slice(&millis(limits.run).to_le_bytes());
        bytes
    }

    /// Decodes a head, and returns it with what follows.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Head, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<{ Head::BYTES }>()?;
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let flags = half(20);
        let head = Head {
            entry: head[1],
            limits: Limits {
                hops: half(2),
                run: Duration::from_millis(half(22) as u64),
                time: Duration::from_millis(half(4) as u64),
                grants: half(6),
                may_spawn: flags & MAY_SPAWN != 0,
                may_define: flags & MAY_DEFINE != 0,
            },
            slot: word(head, 8)?,
            origin: Life {
                peer: PeerId(word(head, 12)?),
                incarnation: word(head, 16)?,
            },
            one_way: flags & ONE_WAY != 0,
            has_input: flags & HAS_INPUT != 0,
        };
        Some((head, rest))
    }
}

/// Returns whether frames of this kind ask for something to run: calls and prefetches.
#[inline]
pub(crate) fn is_call(kind: u8) -> bool {
    matches!(kind, CALL | PREFETCH)
}

/// Returns whether a frame is a call, or a prefetch, for whose result somebody waits.
#[inline]
pub(crate) fn is_answered(head: &[u8]) -> bool {
    head.first().is_some_and(|kind| is_call(*kind)) && head.len() > FLAGS && !is_one_way(head)
}

/// Returns whether nobody waits for the result of the call that this head is of.
#[inline]
pub(crate) fn is_one_way(head: &[u8]) -> bool {
    head.get(FLAGS)
        .is_some_and(|flags| flags & ONE_WAY as u8 != 0)
}

/// Returns the 4 bytes at `at` as a number.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Returns a head of a kind with one or two words behind it.
pub(crate) fn short<const N: usize>(kind: u8, words: [u32; N]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    words
        .iter()
        .for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

impl Failure {
    pub(crate) fn new(cause: Cause, text: impl Into<String>) -> Failure {
        Failure {
            cause,
            text: text.into(),
            path: Vec::new(),
            is_part: false,
            names: Vec::new(),
        }
    }

    /// Adds the unit before those of the path.
    pub(crate) fn through(&mut self, unit: u32) {
        match self.path.len() < PATH_MAX {
            true => self.path.insert(0, unit),
            false => self.is_part = true,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.cause as u8, self.is_part as u8, self.path.len() as u8];
        self.path
            .iter()
            .for_each(|unit| bytes.extend(unit.to_le_bytes()));
        let end = self.text.floor_char_boundary(TEXT_MAX);
        bytes.extend_from_slice(&self.text.as_bytes()[..end]);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Failure> {
        let ([cause, is_part, units], rest) = bytes.split_first_chunk()?;
        let units = *units as usize;
        let path = (0..units)
            .map(|at| word(rest, at * 4))
            .collect::<Option<_>>()?;
        if units > PATH_MAX {
            return None;
        }
        let text = rest.get(units * 4..)?;
        let text = &text[..text.len().min(TEXT_MAX)];
        Some(Failure {
            path,
            is_part: *is_part != 0,
            ..Failure::new(Cause::of(*cause), String::from_utf8_lossy(text))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let head = Head {
            entry: 3,
            limits: Limits {
                hops: 7,
                run: Duration::from_millis(56),
                time: Duration::from_millis(1234),
                grants: 0x8001,
                may_spawn: true,
                may_define: false,
            },
            slot: 99,
            origin: Life {
                peer: PeerId(5),
                incarnation: 6,
            },
            one_way: true,
            has_input: true,
        };
        let mut bytes = head.encode(CALL).to_vec();
        bytes.extend(b"rest");
        assert_eq!(Head::decode(&bytes), Some((head, &b"rest"[..])));
        let mut failure = Failure::new(Cause::Grant, "no");
        (0..20).for_each(|unit| failure.through(unit));
        let decoded = Failure::decode(&failure.encode()).unwrap();
        assert_eq!((decoded.path.len(), decoded.is_part), (PATH_MAX, true));
        assert_eq!(decoded, failure);
    }

    #[test]
    fn random_bytes_are_decoded_or_refused() {
        samite_testkit::fuzz::rounds(
            "frame::tests::random_bytes_are_decoded_or_refused",
            2_000,
            |_, random| {
                let bytes: Vec<u8> = (0..random.usize(..80)).map(|_| random.u8(..)).collect();
                _ = (Head::decode(&bytes), Failure::decode(&bytes));
            },
        );
    }
}
