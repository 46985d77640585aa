//! A filter and a reduction over words: only the result travels.

use super::shards::{Forms, Seen, WORD, no_reply, start_at, words_of};
use super::{Shards, Way};
use crate::mobile::{Mobile, Registered};
use crate::{Context, Function, Limits, Result, Trap};
use samite_fabric::Remote;
use std::collections::VecDeque;
use std::ops::{AddAssign, Range};
use std::time::Duration;

/// The name of the function.
const FUNCTION: &str = "samite.below";
/// What a function copies at once.
const PIECE: u64 = 64 << 10;
/// What a get copies, and how many of them are under way.
const GET: u64 = 256 << 10;
const GETS: usize = 4;

/// The sum and the number of the 32-bit words in [`Shards`] that are below a bound.
///
/// By a function or moved code, all units scan their parts at once, and 16 bytes of each come back
/// after `2 L` and the scan. By gets, all bytes come.
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
    /// A scan of moved code may take as long as the policy of its unit allows, 1 s by default, and
    /// delays other kernels of that unit.
    ///
    /// # Errors
    /// [`Error::BadAddress`](crate::Error::BadAddress); [`Error::Failed`](crate::Error::Failed),
    /// [`Error::Late`](crate::Error::Late), those of gets.
    pub fn find(&self, way: Way, addresses: Range<u64>, bound: u32) -> Result<Found> {
        let mut parts = Vec::new();
        let mut begin = addresses.start;
        while begin < addresses.end {
            let (shard, index) = self.shards.place(begin, 1)?;
            let words = (addresses.end - begin).min(self.shards.words() - index);
            parts.push((shard, index, words));
            begin += words;
        }
        let mut found = Found::default();
        match self.forms.of(way) {
            None => {
                for (shard, index, words) in parts {
                    let bytes = index * WORD..(index + words) * WORD;
                    found += by_gets(self.shards.remote(shard), bytes, bound)?;
                }
            }
            Some(code) => self.by_calls(code, &parts, bound, &mut found)?,
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

    /// Returns the way that `find_auto` prefers for ranges of so many words.
    pub fn best(&self, words: u64) -> Way {
        self.forms.auto.best(words)
    }

    fn by_calls(
        &self,
        code: &Registered,
        parts: &[(usize, u64, u64)],
        bound: u32,
        found: &mut Found,
    ) -> Result<()> {
        // Long enough for a segment of any size.
        let limits = Limits {
            run: Duration::from_secs(60),
            time: Duration::from_secs(60),
            ..Limits::default()
        };
        let start = |(shard, index, words): &(usize, u64, u64)| {
            let mut payload = self.shards.payload(self.shards.words(), 24);
            for word in [u64::from(bound), *index, *words] {
                payload.extend_from_slice(&word.to_le_bytes());
            }
            start_at(&self.shards, *shard, code, &payload, limits)
        };
        let calls = parts.iter().map(start).collect::<Result<Vec<_>>>()?;
        for call in calls {
            let reply = call.wait()?;
            let mut words = words_of(&reply);
            let (Some(sum), Some(count)) = (words.next(), words.next()) else {
                return Err(no_reply(&reply));
            };
            *found += Found { sum, count };
        }
        Ok(())
    }
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
    let (begin, len) = (index.saturating_mul(WORD), words.saturating_mul(WORD));
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
