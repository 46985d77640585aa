//! Words that are spread over units: where operations find their data, and what their calls share.
//!
//! # Payload
//! Each call of an operation begins with the same 16 bytes, little-endian. The kernel finds in them
//! what the caller knows of the shards; `shards.wat` has what kernels do with it.
//!
//! ```text
//! 0 u64 words of each unit   8 u32 first unit   12 u24 number of units   15 u8 grant
//! ```

use super::{Auto, Way};
use crate::capsule::Capsule;
use crate::frame::TIME_MAX;
use crate::mobile::{Mobile, Registered};
use crate::runtime::Payload;
use crate::{Call, Cause, Context, Error, GRANTS_MAX, Limits, Result, Trap};
use samite_fabric::{Remote, SegmentKey};
use samite_mem::SharedWords;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// The address of nothing: the end of a list, and of the leaves of a tree.
pub const END: u64 = u64::MAX;

/// Bytes of a word.
pub(super) const WORD: u64 = 8;
/// The most units: their number has 24 bits.
const UNITS_MAX: usize = (1 << 24) - 1;

/// Words of 8 bytes that are spread over consecutive units: each has the same number of words in a
/// segment, which it grants to kernels under the same number. Word `i` of the `n`-th of these units
/// has the address `n * words + i`. Clones share it. Thread: any.
///
/// It is a lease on the segments that are mapped here, until all clones, and the operations that
/// have one, are dropped.
#[derive(Clone, Debug)]
pub struct Shards(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mobile: Mobile,
    first: u32,
    grant: u8,
    words: u64,
    /// The logarithm of `words`, if that is a whole number: a division would delay each first load.
    shift: Option<u32>,
    remotes: Vec<Remote>,
}

impl Shards {
    /// Describes the words of the units from `first` on, one for each of `keys`: those of their
    /// segments, of at least `words` words, which the units grant under the number `grant`. Local,
    /// except that the owner of a segment may be asked for it.
    ///
    /// # Errors
    /// [`Error::BadLayout`] if a segment is too short or belongs to another unit, or a number is
    /// too large; [`Error::NoUnit`]; those of [`samite_fabric::Fabric::attach`].
    pub fn new(
        mobile: &Mobile,
        first: u32,
        grant: usize,
        words: u64,
        keys: &[SegmentKey],
    ) -> Result<Shards> {
        let bad = |text: String| Err(Error::BadLayout(text));
        if words == 0 || keys.is_empty() || keys.len() > UNITS_MAX {
            return bad(format!("{words} words at each of {} units", keys.len()));
        }
        let all = words.checked_mul(keys.len() as u64);
        if all.and_then(|all| all.checked_mul(WORD)).is_none() {
            return bad(format!("{words} words at each unit are too many"));
        }
        let Some(grant) = u8::try_from(grant).ok().filter(|_| grant < GRANTS_MAX) else {
            return bad(format!(
                "grants have numbers below {GRANTS_MAX}, not {grant}"
            ));
        };
        for (unit, key) in (u64::from(first)..).zip(keys) {
            let unit = u32::try_from(unit).unwrap_or(u32::MAX);
            if mobile.peer_of(unit)? != key.peer {
                return bad(format!(
                    "a segment of {} is not one of unit {unit}",
                    key.peer
                ));
            }
            if key.bytes / WORD < words {
                let bytes = key.bytes;
                return bad(format!("unit {unit} has {bytes} bytes, not {words} words"));
            }
        }
        let remotes = keys.iter().map(|key| mobile.fabric().attach(*key));
        let remotes: Vec<Remote> = remotes.collect::<Result<_, _>>()?;
        Ok(Shards(Arc::new(Inner {
            remotes,
            mobile: mobile.clone(),
            first,
            grant,
            words,
            shift: words.is_power_of_two().then(|| words.trailing_zeros()),
        })))
    }

    /// Returns the handle by which operations call.
    pub fn mobile(&self) -> &Mobile {
        &self.0.mobile
    }

    /// Returns the number of words of each unit.
    pub fn words(&self) -> u64 {
        self.0.words
    }

    /// Returns the units that have them.
    pub fn units(&self) -> Range<u32> {
        self.0.first..self.0.first + self.count() as u32
    }

    /// Returns the number of words of all units.
    pub fn len(&self) -> u64 {
        self.0.words * self.count() as u64
    }

    /// Returns whether there are none. Never, as [`Shards::new`] refuses that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the unit that has the word at an address.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub fn unit_of(&self, address: u64) -> Result<u32> {
        let (shard, _) = self.place(address, 1)?;
        Ok(self.unit(shard))
    }

    /// Copies words out of one unit. One-sided. Completion: the words have arrived.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if they are not all at one unit; those of [`Remote::get`].
    #[inline]
    pub fn get(&self, address: u64, into: &mut [u64]) -> Result<()> {
        let (shard, index) = self.place(address, into.len() as u64)?;
        let remote = &self.0.remotes[shard];
        if let [word] = into {
            let mut bytes = [0; WORD as usize];
            remote.get(index * WORD, &mut bytes)?;
            *word = u64::from_le_bytes(bytes);
            return Ok(());
        }
        let mut bytes = Payload::from_elem(0, into.len() * WORD as usize);
        remote.get(index * WORD, &mut bytes)?;
        into.iter_mut()
            .zip(words_of(&bytes))
            .for_each(|(into, word)| *into = word);
        Ok(())
    }

    /// Returns the shard of an address, if its words are mapped here, for loads of many of them.
    #[inline]
    pub(super) fn loads(&self, address: u64) -> Result<Option<Loads<'_>>> {
        let (shard, index) = self.place(address, 1)?;
        let remote = &self.0.remotes[shard];
        let bytes = remote.mapped();
        let words = bytes.and_then(|bytes| bytes.words(address - index, self.0.words));
        Ok(words.map(|words| Loads { remote, words }))
    }

    /// Copies words to one unit. One-sided. Completion: remote.
    ///
    /// # Errors
    /// As [`Shards::get`].
    pub fn put(&self, address: u64, words: &[u64]) -> Result<()> {
        let (shard, index) = self.place(address, words.len() as u64)?;
        self.0.remotes[shard].put(index * WORD, &bytes_of(words))?;
        Ok(())
    }

    /// Copies `each` words from every address, in the order of the addresses. What is not mapped
    /// here is requested from all units at once, and sent together.
    pub(super) fn fetch(&self, each: u64, addresses: &[u64]) -> Result<Vec<u64>> {
        let mut found = vec![0; addresses.len() * each as usize];
        // By shard: the positions in the list, and the offsets there.
        let mut far = vec![(Vec::new(), Vec::new()); self.count()];
        for (at, address) in addresses.iter().enumerate() {
            let (shard, index) = self.place(*address, each)?;
            match self.is_near(shard) {
                true => {
                    let at = at * each as usize;
                    self.get(*address, &mut found[at..at + each as usize])?;
                }
                false => {
                    far[shard].0.push(at);
                    far[shard].1.push(index * WORD);
                }
            }
        }
        let wanted = far.into_iter().enumerate();
        let wanted = wanted.filter(|(_, (positions, _))| !positions.is_empty());
        let started = wanted.map(|(shard, (positions, offsets))| {
            let batch = self.0.remotes[shard].get_batch(each * WORD, &offsets)?;
            Ok((positions, batch))
        });
        for (positions, batch) in started.collect::<Result<Vec<_>>>()? {
            let bytes = batch.wait()?;
            let groups = bytes.chunks_exact((each * WORD) as usize);
            for (at, group) in positions.into_iter().zip(groups) {
                let into = &mut found[at * each as usize..];
                into.iter_mut()
                    .zip(words_of(group))
                    .for_each(|(into, word)| *into = word);
            }
        }
        Ok(found)
    }

    /// Returns the shard of a range of words that lies in one, and the index of its first word.
    #[inline]
    pub(super) fn place(&self, address: u64, count: u64) -> Result<(usize, u64)> {
        let words = self.0.words;
        let (shard, index) = match self.0.shift {
            Some(shift) => (address >> shift, address & (words - 1)),
            None => (address / words, address % words),
        };
        match shard < self.count() as u64 && count <= words - index {
            true => Ok((shard as usize, index)),
            false => Err(Error::BadAddress {
                address,
                count,
                words,
                units: self.count() as u64,
            }),
        }
    }

    /// Returns the number of shards.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.0.remotes.len()
    }

    #[inline]
    pub(super) fn grant(&self) -> u8 {
        self.0.grant
    }

    pub(super) fn unit(&self, shard: usize) -> u32 {
        self.0.first + shard as u32
    }

    pub(super) fn remote(&self, shard: usize) -> &Remote {
        &self.0.remotes[shard]
    }

    /// Returns whether a get from a shard is a load.
    #[inline]
    pub(super) fn is_near(&self, shard: usize) -> bool {
        let remote = &self.0.remotes[shard];
        remote.mapped().is_some() || remote.readable().is_some()
    }

    /// Returns how many words fit behind `bytes` in a payload to a shard, or in its reply.
    pub(super) fn words_of_payload(&self, shard: usize, bytes: usize) -> Result<usize> {
        let most = self.0.mobile.payload_max(self.unit(shard))?;
        Ok((most.saturating_sub(bytes as u64) / WORD).max(1) as usize)
    }

    /// Returns a payload that begins with the description of the shards, with room for more.
    #[inline]
    pub(super) fn payload(&self, words: u64, more: usize) -> Payload {
        let mut payload = Payload::with_capacity(Seen::BYTES + more);
        let count = self.count() as u32 | u32::from(self.0.grant) << 24;
        payload.extend_from_slice(&words.to_le_bytes());
        payload.extend_from_slice(&self.0.first.to_le_bytes());
        payload.extend_from_slice(&count.to_le_bytes());
        payload
    }
}

/// The mapped words of one shard.
pub(super) struct Loads<'s> {
    remote: &'s Remote,
    /// Their numbers are their addresses.
    words: SharedWords<'s>,
}

impl Loads<'_> {
    /// Loads a word; `None` if it is not one of this shard.
    #[inline]
    pub(super) fn load(&self, address: u64) -> Option<u64> {
        let word = self.words.get(address)?;
        // ORDERING: Acquire, as a get: pairs with a remote store or atomic of that word.
        Some(u64::from_le(word.load(Acquire)))
    }

    /// Checks that the words that were loaded are still those of the segment.
    ///
    /// # Errors
    /// As [`Shards::get`].
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        if !self.remote.is_offered() {
            self.remote.get(0, &mut [0; WORD as usize])?;
        }
        Ok(())
    }
}

/// The code of an operation, as function and as moved code, and what the ways have cost.
#[derive(Debug)]
pub(super) struct Forms {
    pub(super) moved: Registered,
    pub(super) function: Registered,
    pub(super) auto: Auto,
}

impl Forms {
    /// Registers the kernels of this text, which follow `shards.wat` in a module, and the function
    /// of this name. Entries have the same order in both.
    pub(super) fn new(mobile: &Mobile, name: &str, text: &str) -> Result<Forms> {
        let module = format!("(module {} {text})", include_str!("shards.wat"));
        let capsule = Capsule::from_wat(&module)?;
        let function = Capsule::of_function(name, capsule.entries().to_vec())?;
        Ok(Forms {
            moved: mobile.register(capsule)?,
            function: mobile.register(function)?,
            auto: Auto::default(),
        })
    }

    /// Runs an operation of this size in the way that has been the cheapest, or tries another one.
    /// If a unit does not run the code of that way, runs it in the best other way.
    #[inline]
    pub(super) fn run<T>(&self, size: u64, run: impl Fn(Way) -> Result<T>) -> Result<T> {
        match self.auto.untimed(size) {
            // No unit runs anything. What is returned is not looked at, and so not copied: a copy
            // would wait for loads that overlap with those of the next operation.
            Some(Way::Gets) => run(Way::Gets),
            Some(way) => self.or_else(size, way, run(way), run),
            None => {
                let mut tried = Way::Gets;
                let done = self.auto.run_timed(size, |way| {
                    tried = way;
                    run(way)
                });
                self.or_else(size, tried, done, run)
            }
        }
    }

    /// If a unit does not run the code of this way, runs the operation in the best other way.
    fn or_else<T>(
        &self,
        size: u64,
        tried: Way,
        done: Result<T>,
        run: impl Fn(Way) -> Result<T>,
    ) -> Result<T> {
        match done {
            Err(Error::Failed(failure))
                if matches!(failure.cause, Cause::Refused | Cause::NoCode) =>
            {
                self.auto.fails(size, tried);
                run(self.auto.other(size, tried))
            }
            done => done,
        }
    }

    /// Returns the code of a way; `None` for gets.
    #[inline]
    pub(super) fn of(&self, way: Way) -> Option<&Registered> {
        match way {
            Way::Gets => None,
            Way::Function => Some(&self.function),
            Way::Moved => Some(&self.moved),
        }
    }
}

/// Limits for kernels that bound their own work to some milliseconds. 1 s, because the clock also
/// counts time in which other processes have the processor; and all the time on its way that a call
/// may have, as reading step by step has no limit, either.
pub(super) fn self_bounded_limits() -> Limits {
    Limits {
        run: Duration::from_secs(1),
        time: TIME_MAX,
        ..Limits::default()
    }
}

/// Starts a call that stays at its shard, so that only the loss of this unit ends it.
pub(super) fn start_at(
    shards: &Shards,
    shard: usize,
    code: &Registered,
    payload: &[u8],
    limits: Limits,
) -> Result<Call> {
    let limits = Limits { hops: 0, ..limits };
    (shards.mobile()).call_entry(shards.unit(shard), code, 0, payload, limits)
}

/// What a function knows of the shards: the first bytes of its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) words: u64,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) grant: u32,
}

impl Seen {
    /// Their length in the payload.
    pub(super) const BYTES: usize = 16;

    /// Reads the head of a payload and the `WORDS` words behind it; returns both.
    pub(super) fn decode<const WORDS: usize>(payload: &[u8]) -> Result<(Seen, [u64; WORDS]), Trap> {
        let wrong = || failed(1, "a payload of another operation");
        let mut all = words_of(payload);
        let mut next = || all.next().ok_or_else(wrong);
        let (words, place) = (next()?, next()?);
        let mut rest = [0; WORDS];
        for word in &mut rest {
            *word = next()?;
        }
        let seen = Seen {
            words,
            first: place as u32,
            count: (place >> 32) as u32 & UNITS_MAX as u32,
            grant: (place >> 56) as u32,
        };
        match seen.words {
            0 => Err(wrong()),
            _ => Ok((seen, rest)),
        }
    }

    /// Returns the head of a payload that was decoded, with other words behind it.
    pub(super) fn payload(payload: &[u8], words: &[u64]) -> Payload {
        let mut next = Payload::from_slice(&payload[..Seen::BYTES]);
        (words.iter()).for_each(|word| next.extend_from_slice(&word.to_le_bytes()));
        next
    }

    /// Returns the index of a word of this unit; `None` if another one has it.
    #[inline]
    pub(super) fn index(&self, me: u32, address: u64) -> Option<u64> {
        let begin = (self.words).wrapping_mul(u64::from(me.wrapping_sub(self.first)));
        let index = address.wrapping_sub(begin);
        (index < self.words).then_some(index)
    }

    /// Returns the unit that has the word at an address.
    pub(super) fn unit(&self, address: u64) -> Result<u32, Trap> {
        let shard = address / self.words;
        match shard < u64::from(self.count) {
            true => Ok(self.first.wrapping_add(shard as u32)),
            false => Err(failed(2, "an address outside of the shards")),
        }
    }

    /// Loads a word of this unit.
    #[inline]
    pub(super) fn load(&self, context: &Context, index: u64) -> Result<u64, Trap> {
        context.load(self.grant, index.saturating_mul(WORD))
    }
}

/// The failure of a kernel; see the module's documentation.
#[cold]
pub(super) fn failed(code: i32, text: &str) -> Trap {
    let text = text.to_owned();
    Trap::Failed { code, text }
}

/// The failure of a kernel that has found something else than a structure of its operation.
#[cold]
pub(super) fn damaged() -> Trap {
    failed(3, "a damaged structure")
}

/// Returns the words of these bytes; what is left at the end is ignored.
pub(super) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// Returns the bytes of words.
pub(super) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The error for a reply that is none of this operation.
#[cold]
pub(super) fn no_reply(reply: &[u8]) -> Error {
    Error::Damaged(format!("a unit replied with {} bytes", reply.len()))
}
