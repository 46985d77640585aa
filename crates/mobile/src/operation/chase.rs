//! A pointer chase: a chain of loads, each of which says where the next one is.

use super::shards::{Forms, Loads, Seen, bytes_of, no_reply, self_bounded_limits, words_of};
use super::{Shards, Way};
use crate::mobile::{Mobile, Registered};
use crate::{Call, Context, Function, Result, Trap};
use std::collections::VecDeque;

/// The name of the function that a chase calls.
const FUNCTION: &str = "samite.chase";
/// A call ends after so many steps at one unit, so that others get their turn: about 7 ms, if no
/// word is in a cache.
const TURN: u64 = 1 << 16;
/// Calls that are under way at once. A process may have more.
const CALLS: usize = 1 << 14;
/// So many loads take less time than any call, wherever the memory is.
const SHORT: u64 = 8;

/// A table of addresses in [`Shards`]: each word is the address of the next one.
///
/// A step costs `2 L` by gets, and `(1 - 1/S) L` by a function or moved code, plus the time of a
/// kernel, about 0.1 us, where L is the one-way delay between units and S the number of units.
/// A call costs `2 L`.
#[derive(Debug)]
pub struct Table {
    shards: Shards,
    forms: Forms,
}

impl Table {
    /// Prepares chases. Each of the units calls [`Table::serve`] for calls of the function. Local.
    ///
    /// # Errors
    /// Those of [`Mobile::register`].
    pub fn new(shards: &Shards) -> Result<Table> {
        Ok(Table {
            forms: Forms::new(shards.mobile(), FUNCTION, include_str!("chase.wat"))?,
            shards: shards.clone(),
        })
    }

    /// Makes the function known by which others may chase through words of this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(chase));
    }

    /// Returns the code that moves.
    pub fn code(&self) -> &Registered {
        &self.forms.moved
    }

    /// Returns the number of words of the whole table.
    pub fn len(&self) -> u64 {
        self.shards.len()
    }

    /// Returns whether it has no words.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Follows `depth` addresses from `address` on, and returns the last one. Completion: the
    /// result.
    ///
    /// # Errors
    /// [`Error::BadAddress`](crate::Error::BadAddress) if the chase begins outside of the table;
    /// this, or [`Error::Failed`](crate::Error::Failed), if it leads there or a unit is lost;
    /// [`Error::Late`](crate::Error::Late).
    pub fn chase(&self, way: Way, depth: u64, address: u64) -> Result<u64> {
        let Some(code) = self.forms.of(way) else {
            return self.by_gets(depth, address);
        };
        let mut chase = Chase { depth, address };
        loop {
            chase = chase.after(&self.start(code, chase)?.wait()?)?;
            if chase.depth == 0 {
                return Ok(chase.address);
            }
        }
    }

    /// Follows `depth` addresses from each of these on, and returns the last address of each, in
    /// their order. By calls, at most 16,384 chases are in flight. By gets, each step is one
    /// request to each unit for all chases together, however many there are. Completion: the
    /// results.
    ///
    /// # Errors
    /// As [`Table::chase`].
    pub fn chase_all(&self, way: Way, depth: u64, addresses: &[u64]) -> Result<Vec<u64>> {
        for address in addresses {
            self.shards.unit_of(*address)?;
        }
        let Some(code) = self.forms.of(way) else {
            let mut addresses = addresses.to_vec();
            for _ in 0..depth {
                addresses = self.shards.fetch(1, &addresses)?;
            }
            return Ok(addresses);
        };
        let mut ends = Vec::with_capacity(addresses.len());
        for starts in addresses.chunks(CALLS) {
            ends.extend(self.by_calls(code, depth, starts)?);
        }
        Ok(ends)
    }

    /// As [`Table::chase`], in the way that has been the cheapest so far.
    ///
    /// # Errors
    /// As [`Table::chase`].
    #[inline]
    pub fn chase_auto(&self, mut depth: u64, mut address: u64) -> Result<u64> {
        if depth <= SHORT {
            (depth, address) = self.walk_mapped(depth, address)?;
            if depth == 0 {
                return Ok(address);
            }
        }
        self.forms.run(depth, |way| self.chase(way, depth, address))
    }

    /// Returns the way that `chase_auto` prefers for this depth; `None` while it still tries them.
    pub fn best(&self, depth: u64) -> Option<Way> {
        self.forms.auto.best(depth)
    }

    fn by_gets(&self, mut depth: u64, mut address: u64) -> Result<u64> {
        let all = depth;
        loop {
            (depth, address) = self.walk_mapped(depth, address)?;
            if depth == 0 {
                return Ok(address);
            }
            // The chases before may all have been loads.
            self.forms.auto.time_next(all);
            let mut word = [0];
            self.shards.get(address, &mut word)?;
            (depth, address) = (depth - 1, word[0]);
            if depth == 0 {
                return Ok(address);
            }
        }
    }

    /// Follows addresses while the words are mapped here. Returns how many are still to be
    /// followed, and the last one. The first address is checked in any case.
    #[inline]
    fn walk_mapped(&self, mut depth: u64, mut address: u64) -> Result<(u64, u64)> {
        while let Some(loads) = self.shards.loads(address)? {
            (depth, address) = loads.chase(depth, address)?;
            if depth == 0 {
                break;
            }
        }
        Ok((depth, address))
    }

    /// Follows `depth` addresses from each of these on. All chases are in flight at once: one whose
    /// call has ended before it is started again where it goes on, before others are waited for.
    fn by_calls(&self, code: &Registered, depth: u64, starts: &[u64]) -> Result<Vec<u64>> {
        let mut ends = vec![0; starts.len()];
        let start = |(at, address): (usize, &u64)| {
            let address = *address;
            let chase = Chase { depth, address };
            Ok((at, chase, self.start(code, chase)?))
        };
        let started = starts.iter().enumerate().map(start);
        let mut under_way = started.collect::<Result<VecDeque<_>>>()?;
        while let Some((at, chase, call)) = under_way.pop_front() {
            let chase = chase.after(&call.wait()?)?;
            match chase.depth {
                0 => ends[at] = chase.address,
                _ => under_way.push_back((at, chase, self.start(code, chase)?)),
            }
        }
        Ok(ends)
    }

    fn start(&self, code: &Registered, chase: Chase) -> Result<Call> {
        let Chase { depth, address } = chase;
        let unit = self.shards.unit_of(address)?;
        let mut payload = self.shards.payload(self.shards.words(), 16);
        payload.extend_from_slice(&depth.to_le_bytes());
        payload.extend_from_slice(&address.to_le_bytes());
        (self.shards.mobile()).call_entry(unit, code, 0, &payload, self_bounded_limits())
    }
}

/// How many addresses are still to be followed, from which one on.
#[derive(Clone, Copy, Debug)]
struct Chase {
    depth: u64,
    address: u64,
}

impl Chase {
    /// Returns what is left after the reply of a call. A call also ends after [`TURN`] steps at one
    /// unit, and if it has moved as often as a call may: then it says where to go on.
    fn after(self, reply: &[u8]) -> Result<Chase> {
        let mut words = words_of(reply);
        let address = words.next().ok_or_else(|| no_reply(reply))?;
        match words.next() {
            None => Ok(Chase { depth: 0, address }),
            // Each call takes a step at least.
            Some(depth) if (1..self.depth).contains(&depth) => Ok(Chase { depth, address }),
            Some(_) => Err(no_reply(reply)),
        }
    }
}

impl Loads<'_> {
    /// Follows addresses from one of this shard on, until one lies elsewhere. Returns how many are
    /// still to be followed, and the last one.
    fn chase(&self, mut depth: u64, mut address: u64) -> Result<(u64, u64)> {
        while depth > 0
            && let Some(word) = self.load(address)
        {
            (depth, address) = (depth - 1, word);
        }
        self.check()?;
        Ok((depth, address))
    }
}

/// The function: what `chase.wat` does.
fn chase(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let (seen, [mut depth, mut address]) = Seen::decode(payload)?;
    let (me, end) = (context.me(), depth.saturating_sub(TURN));
    while depth > end {
        let Some(here) = seen.index(me, address) else {
            if context.limits().hops == 0 {
                break;
            }
            let payload = Seen::payload(payload, &[depth, address]);
            return context.forward(seen.unit(address)?, 0, &payload);
        };
        address = seen.load(context, here)?;
        depth -= 1;
    }
    match depth {
        0 => context.reply(&address.to_le_bytes()),
        _ => context.reply(&bytes_of(&[address, depth])),
    }
}
