//! A pointer chase: a chain of loads, each of which says where the next one is.

use super::{Auto, Way};
use crate::capsule::Capsule;
use crate::mobile::{Mobile, Registered};
use crate::{Context, Error, Function, Limits, Result, Trap};
use samite_fabric::{Remote, SegmentKey};

/// The name of the function that a chase calls.
const FUNCTION: &str = "samite.chase";
/// Words of one unit, at most: their number has 40 bits.
const WORDS_MAX: u64 = (1 << 40) - 1;

/// A table of words that is spread over units: each has the same number of words, granted under
/// the same number. The address of word `i` of the `n`-th unit is `n * words + i`.
#[derive(Debug)]
pub struct Table {
    mobile: Mobile,
    grant: u8,
    first: u16,
    words: u64,
    shards: Vec<Remote>,
    moved: Registered,
    function: Registered,
    auto: Auto,
}

impl Table {
    /// Describes the table of the units from `first` on: `keys` are those of their segments, each
    /// of `words` words, which the units grant under `grant`. Each of these units has to call
    /// [`Table::serve`]. Local.
    ///
    /// # Errors
    /// [`Error::BadCapsule`] if the segments are shorter than that, or the numbers are too large;
    /// those of [`samite_fabric::Fabric::attach`].
    pub fn new(
        mobile: &Mobile,
        first: u32,
        grant: usize,
        words: u64,
        keys: &[SegmentKey],
    ) -> Result<Table> {
        let fits =
            keys.iter().all(|key| key.bytes / 8 >= words) && (1..=WORDS_MAX).contains(&words);
        let (Ok(first), Ok(grant), true) = (u16::try_from(first), u8::try_from(grant), fits) else {
            let text = format!("no table of {words} words in each of these segments");
            return Err(Error::BadCapsule(text));
        };
        let shards = keys.iter().map(|key| mobile.fabric().attach(*key));
        let code = Capsule::from_wat(include_str!("chase.wat"))?;
        Ok(Table {
            shards: shards.collect::<Result<_, _>>()?,
            moved: mobile.register(code)?,
            function: mobile.register(Capsule::of_function(FUNCTION, ["chase"])?)?,
            mobile: mobile.clone(),
            grant,
            first,
            words,
            auto: Auto::default(),
        })
    }

    /// Makes the function known by which others may chase through a table of this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(chase));
    }

    /// Returns the code that moves.
    pub fn code(&self) -> &Registered {
        &self.moved
    }

    /// Returns the number of words of the whole table.
    pub fn len(&self) -> u64 {
        self.words * self.shards.len() as u64
    }

    /// Returns whether it has no words.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Follows `depth` addresses from `address` on, and returns the last one. Completion: the
    /// result.
    ///
    /// # Errors
    /// [`Error::Failed`] if an address lies outside of the table, or a unit is lost;
    /// [`Error::Late`].
    pub fn chase(&self, way: Way, depth: u64, address: u64) -> Result<u64> {
        match way {
            Way::Gets => self.by_gets(depth, address),
            Way::Function => self.by_call(&self.function, depth, address),
            Way::Moved => self.by_call(&self.moved, depth, address),
        }
    }

    /// As [`Table::chase`], in the way that has been the cheapest so far.
    ///
    /// # Errors
    /// As [`Table::chase`].
    pub fn chase_auto(&self, depth: u64, address: u64) -> Result<u64> {
        self.auto.run(depth, |way| self.chase(way, depth, address))
    }

    /// Returns the way that [`Table::chase_auto`] prefers for this depth.
    pub fn best(&self, depth: u64) -> Way {
        self.auto.best(depth)
    }

    fn place(&self, address: u64) -> Result<(usize, u64)> {
        let shard = (address / self.words) as usize;
        match shard < self.shards.len() {
            true => Ok((shard, address % self.words)),
            false => Err(Error::NoUnit {
                unit: (self.first as u32).saturating_add(shard as u32),
                units: self.mobile.units(),
            }),
        }
    }

    fn by_gets(&self, depth: u64, mut address: u64) -> Result<u64> {
        let mut word = [0; 8];
        for _ in 0..depth {
            let (shard, at) = self.place(address)?;
            self.shards[shard].get(at * 8, &mut word)?;
            address = u64::from_le_bytes(word);
        }
        Ok(address)
    }

    fn by_call(&self, code: &Registered, depth: u64, address: u64) -> Result<u64> {
        let (shard, _) = self.place(address)?;
        let call = self.start(code, shard as u32, depth, address)?;
        let reply = call.wait()?;
        let reply = reply.first_chunk().copied().unwrap_or_default();
        Ok(u64::from_le_bytes(reply))
    }

    /// Starts one of several chases that are under way at once.
    ///
    /// # Errors
    /// Those of [`Mobile::call`].
    pub fn start(
        &self,
        code: &Registered,
        shard: u32,
        depth: u64,
        address: u64,
    ) -> Result<crate::Call> {
        let mut payload = [0; 24];
        let last = self.words | (self.first as u64) << 40 | (self.grant as u64) << 56;
        payload[..8].copy_from_slice(&depth.to_le_bytes());
        payload[8..16].copy_from_slice(&address.to_le_bytes());
        payload[16..].copy_from_slice(&last.to_le_bytes());
        let unit = self.first as u32 + shard;
        self.mobile
            .call_entry(unit, code, 0, &payload, Limits::default())
    }
}

/// The function: what `chase.wat` does.
fn chase(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let Some(payload) = payload.first_chunk::<24>() else {
        return Err(Trap::Other("a payload that is not one of a chase".into()));
    };
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&payload[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let (mut depth, mut address, last) = (word(0), word(8), word(16));
    let (words, first, grant) = (last & WORDS_MAX, (last >> 40) as u16, (last >> 56) as u32);
    let begin = words.wrapping_mul(u64::from(context.me().wrapping_sub(first as u32)));
    while depth > 0 {
        let here = address.wrapping_sub(begin);
        if here >= words {
            let shard = address.checked_div(words).unwrap_or(0);
            let mut payload = *payload;
            payload[..8].copy_from_slice(&depth.to_le_bytes());
            payload[8..16].copy_from_slice(&address.to_le_bytes());
            return context.forward((first as u32).wrapping_add(shard as u32), 0, &payload);
        }
        address = context.load(grant, here * 8)?;
        depth -= 1;
    }
    context.reply(&address.to_le_bytes())
}
