//! A gather: the words at a list of addresses.

use super::shards::{Forms, Seen, no_reply, self_bounded_limits, start_at, words_of};
use super::{Shards, Way};
use crate::mobile::{Mobile, Registered};
use crate::{Call, Context, Function, Result, Trap};
use std::collections::VecDeque;

/// The most calls in flight. Their replies, of at most 64 KiB, are an eighth of what a process may
/// leave waiting.
const CALLS: usize = 128;
/// The name of the function.
const FUNCTION: &str = "samite.gather";
/// So many addresses are under way at once: at most 512 KiB of payloads to one unit.
const AT_ONCE: usize = 1 << 16;

/// Reads words of [`Shards`] at any addresses.
///
/// All ways take `2 L`, where L is the one-way delay between units: all units are asked at once.
/// By gets, units that are not mapped here get one request of the fabric each, with all offsets, so
/// calls are not faster. In mapped memory, gets are loads.
#[derive(Debug)]
pub struct Gather {
    shards: Shards,
    forms: Forms,
}

impl Gather {
    /// Prepares it. Each of the units calls [`Gather::serve`] for calls of the function. Local.
    ///
    /// # Errors
    /// Those of [`Mobile::register`].
    pub fn new(shards: &Shards) -> Result<Gather> {
        Ok(Gather {
            forms: Forms::new(shards.mobile(), FUNCTION, include_str!("gather.wat"))?,
            shards: shards.clone(),
        })
    }

    /// Makes the function known by which others may gather words of this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(gather));
    }

    /// Returns the words at these addresses, in their order. An address may occur several times.
    /// Words that are written meanwhile are old or new, each for itself. Completion: the result.
    ///
    /// # Errors
    /// [`Error::BadAddress`](crate::Error::BadAddress), before anything is sent;
    /// [`Error::Failed`](crate::Error::Failed), [`Error::Late`](crate::Error::Late), those of gets.
    pub fn gather(&self, way: Way, addresses: &[u64]) -> Result<Vec<u64>> {
        for address in addresses {
            self.shards.place(*address, 1)?;
        }
        let mut found = Vec::with_capacity(addresses.len());
        for some in addresses.chunks(AT_ONCE) {
            match self.forms.of(way) {
                None => found.extend(self.shards.fetch(1, some)?),
                Some(code) => found.extend(self.by_calls(code, some)?),
            }
        }
        Ok(found)
    }

    /// As [`Gather::gather`], in the way that has been the cheapest for lists of this length.
    ///
    /// # Errors
    /// As [`Gather::gather`].
    pub fn gather_auto(&self, addresses: &[u64]) -> Result<Vec<u64>> {
        let size = addresses.len() as u64;
        self.forms.run(size, |way| self.gather(way, addresses))
    }

    /// Returns the way that `gather_auto` prefers for lists of this length; `None` while it still
    /// tries them.
    pub fn best(&self, addresses: u64) -> Option<Way> {
        self.forms.auto.best(addresses)
    }

    /// Sends each unit its addresses, in as many calls as they need.
    fn by_calls(&self, code: &Registered, addresses: &[u64]) -> Result<Vec<u64>> {
        // By shard: the positions in the list, and the indices there.
        let mut wanted = vec![(Vec::new(), Vec::new()); self.shards.count()];
        for (at, address) in addresses.iter().enumerate() {
            let (shard, index) = self.shards.place(*address, 1)?;
            wanted[shard].0.push(at);
            wanted[shard].1.push(index);
        }
        let mut found = vec![0; addresses.len()];
        let mut take = |(positions, call): (&[usize], Call)| {
            let reply = call.wait()?;
            if reply.len() != positions.len() * 8 {
                return Err(no_reply(&reply));
            }
            for (at, word) in positions.iter().zip(words_of(&reply)) {
                found[*at] = word;
            }
            Ok(())
        };
        let mut calls = VecDeque::new();
        for (shard, (positions, indices)) in wanted.iter().enumerate() {
            if indices.is_empty() {
                continue;
            }
            let most = self.shards.words_of_payload(shard, Seen::BYTES)?;
            for (positions, indices) in positions.chunks(most).zip(indices.chunks(most)) {
                let mut payload = self.shards.payload(self.shards.words(), indices.len() * 8);
                for index in indices {
                    payload.extend_from_slice(&index.to_le_bytes());
                }
                if calls.len() >= CALLS
                    && let Some(first) = calls.pop_front()
                {
                    take(first)?;
                }
                let call = start_at(&self.shards, shard, code, &payload, self_bounded_limits())?;
                calls.push_back((positions, call));
            }
        }
        calls.into_iter().try_for_each(&mut take)?;
        Ok(found)
    }
}

/// The function: what `gather.wat` does.
fn gather(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let (seen, []) = Seen::decode(payload)?;
    let mut found = Vec::with_capacity(payload.len());
    for index in words_of(&payload[Seen::BYTES..]) {
        found.extend_from_slice(&seen.load(context, index)?.to_le_bytes());
    }
    context.reply(&found)
}
