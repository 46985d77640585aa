//! A filter and a reduction over words: only the result travels.

use super::shards::{Forms, Seen, WORD, no_reply, self_bounded_limits, start_at, words_of};
use super::{Shards, Way};
use crate::mobile::{Mobile, Registered};
use crate::{Call, Context, Function, Result, Trap};
use samite_fabric::Remote;
use std::collections::VecDeque;
use std::ops::{AddAssign, Range};

/// The name of the function.
const FUNCTION: &str = "samite.below";
/// What a function copies at once.
const PIECE: u64 = 64 << 10;
/// What a get copies, and how many of them are under way.
const GET: u64 = 256 << 10;
const GETS: usize = 4;
/// Words that a call scans, about 1 ms, so that others get their turn. How many calls are in flight
/// to one unit: while it answers one, it has the next. At how many units: a process may have twice
/// as many calls.
const SCAN: u64 = 1 << 20;
const CALLS: usize = 4;
const UNITS: usize = 1 << 13;

/// The sum and the number of the 32-bit words in [`Shards`] that are below a bound.
///
/// By a function or moved code, all units scan their parts at once, 1 Mi words of 8 bytes by each
/// call, and 16 bytes of each call come back after `2 L` and the scan. By gets, all bytes come.
#[derive(Debug)]
pub struct Below {
    shards: Shards,
    forms: Forms,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The sum of the words.
    pub sum: u64,
    /// Their number.
    pub count: u64,
}

impl AddAssign for Found {
    fn add_assign(&mut self, other: Found) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.count = self.count.wrapping_add(other.count);
    }
}

impl Found {
    /// Adds the words of these bytes that are below a bound.
    #[inline]
    fn add(&mut self, bytes: &[u8], bound: u32) {
        let (words, _) = bytes.as_chunks::<4>();
        for word in words {
            let word = u32::from_le_bytes(*word);
            let is_below = word < bound;
            let sum = if is_below { u64::from(word) } else { 0 };
            self.sum = self.sum.wrapping_add(sum);
            self.count += u64::from(is_below);
        }
    }
}

impl Below {
    /// Prepares the operation. Each of the units calls [`Below::serve`] for calls of the function.
    /// Local.
    ///
    /// # Errors
    /// Those of [`Mobile::register`].
    pub fn new(shards: &Shards) -> Result<Below> {
        Ok(Below {
            forms: Forms::new(shards.mobile(), FUNCTION, include_str!("reduce.wat"))?,
            shards: shards.clone(),
        })
    }

    /// Makes the function known by which others may reduce words of this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(below));
    }

    /// Finds the 32-bit words below `bound` in the words of 8 bytes at these addresses: two in
    /// each, little-endian. A sum that does not fit wraps. Completion: the result.
    ///
    /// # Errors
    /// [`Error::BadAddress`](crate::Error::BadAddress); [`Error::Failed`](crate::Error::Failed),
    /// [`Error::Late`](crate::Error::Late), those of gets.
    pub fn find(&self, way: Way, addresses: Range<u64>, bound: u32) -> Result<Found> {
        let mut parts: Vec<Part> = Vec::new();
        let mut begin = addresses.start;
        while begin < addresses.end {
            let (shard, index) = self.shards.place(begin, 1)?;
            let words = (addresses.end - begin).min(self.shards.words() - index);
            let indices = index..index + words;
            parts.push(Part { shard, indices });
            begin += words;
        }
        let mut found = Found::default();
        match self.forms.of(way) {
            None => {
                for Part { shard, indices } in parts {
                    let bytes = indices.start * WORD..indices.end * WORD;
                    found += by_gets(self.shards.remote(shard), bytes, bound)?;
                }
            }
            Some(code) => {
                for parts in parts.chunks_mut(UNITS) {
                    found += self.by_calls(code, parts, bound)?;
                }
            }
        }
        Ok(found)
    }

    /// As [`Below::find`], in the way that has been the cheapest for ranges of this length.
    ///
    /// # Errors
    /// As [`Below::find`].
    pub fn find_auto(&self, addresses: Range<u64>, bound: u32) -> Result<Found> {
        let words = addresses.end.saturating_sub(addresses.start);
        let find = |way| self.find(way, addresses.clone(), bound);
        self.forms.run(words, find)
    }

    /// Returns the way that `find_auto` prefers for ranges of so many words; `None` while it still
    /// tries them.
    pub fn best(&self, words: u64) -> Option<Way> {
        self.forms.auto.best(words)
    }

    /// Scans the parts of all units, each by [`CALLS`] calls at a time. What is left of them is
    /// empty then.
    fn by_calls(&self, code: &Registered, parts: &mut [Part], bound: u32) -> Result<Found> {
        let mut under_way = VecDeque::new();
        for _ in 0..CALLS {
            for (at, part) in parts.iter_mut().enumerate() {
                under_way.extend(self.start(code, part, bound)?.map(|call| (at, call)));
            }
        }
        let mut found = Found::default();
        while let Some((at, call)) = under_way.pop_front() {
            let reply = call.wait()?;
            let next = self.start(code, &mut parts[at], bound)?;
            under_way.extend(next.map(|call| (at, call)));
            let mut words = words_of(&reply);
            let (Some(sum), Some(count)) = (words.next(), words.next()) else {
                return Err(no_reply(&reply));
            };
            found += Found { sum, count };
        }
        Ok(found)
    }

    /// Calls a unit for the first words of its part, and removes them from it; returns `None` if
    /// there are none.
    fn start(&self, code: &Registered, part: &mut Part, bound: u32) -> Result<Option<Call>> {
        let begin = part.indices.start;
        let words = (part.indices.end - begin).min(SCAN);
        if words == 0 {
            return Ok(None);
        }
        part.indices.start += words;
        let mut payload = self.shards.payload(self.shards.words(), 24);
        for word in [u64::from(bound), begin, words] {
            payload.extend_from_slice(&word.to_le_bytes());
        }
        let limits = self_bounded_limits();
        start_at(&self.shards, part.shard, code, &payload, limits).map(Some)
    }
}

/// The words of one unit that are still to be scanned.
struct Part {
    shard: usize,
    indices: Range<u64>,
}

/// Reads all bytes, with several gets under way.
fn by_gets(remote: &Remote, bytes: Range<u64>, bound: u32) -> Result<Found> {
    let mut found = Found::default();
    let mut under_way = VecDeque::new();
    let mut at = bytes.start;
    while at < bytes.end || !under_way.is_empty() {
        if at < bytes.end && under_way.len() < GETS {
            let len = GET.min(bytes.end - at);
            under_way.push_back(remote.get_nb(at, len)?);
            at += len;
        } else if let Some(got) = under_way.pop_front() {
            found.add(&got.wait()?, bound);
        }
    }
    Ok(found)
}

/// The function: what `reduce.wat` does, by copies of pieces.
fn below(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let (seen, [bound, index, words]) = Seen::decode(payload)?;
    let mut found = Found::default();
    // Functions have no limit of time: whatever the caller says, a scan ends.
    let (begin, len) = (index.saturating_mul(WORD), words.min(SCAN) * WORD);
    let mut piece = vec![0; PIECE.min(len) as usize];
    let mut at = 0;
    while at < len {
        let now = (len - at).min(PIECE);
        let piece = &mut piece[..now as usize];
        context.read(seen.grant, begin.saturating_add(at), piece)?;
        found.add(piece, bound as u32);
        at += now;
    }
    let reply = [found.sum.to_le_bytes(), found.count.to_le_bytes()];
    context.reply(reply.as_flattened())
}
