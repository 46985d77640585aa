//! A hash table over a team.
//!
//! Every member keeps the same number of *slots*. The hash of a key determines which member stores
//! it and at which slot, its *home*, the search begins. Slots are tried one after the other (linear
//! probing) up to an empty one, which ends the *chain*. The calling unit does all the work, by
//! atomics on the words of the slots and by puts and gets of the entries. The owner does nothing,
//! or, over messages, only makes progress.
//!
//! # Protocol
//! * The entry of a busy slot belongs to the unit that made it busy. Taking a free slot, or a full
//!   one to change it, is one compare-and-swap; giving it back is one addition.
//! * A reader reads the word, gets the entry and reads the word again. If the word is full and
//!   unchanged, the entry is consistent (a sequence lock; Boehm, Can Seqlocks Get Along With
//!   Programming Language Memory Models?, MSPC 2012).
//! * A key is added only by the unit that holds the chain of its home, after it has searched the
//!   whole chain. So a key never occurs twice, although slots of removed entries are reused.
//!   Holding is a bit of the word of the home slot, so in the common case (the home is empty)
//!   taking the slot also takes the chain.
//! * A slot never becomes empty again, so a search cannot end before a key that exists.
//!
//! # What it does not guarantee
//! * If a unit dies while a slot is busy, the slot stays busy: units that need it time out.
//! * A unit whose call ends at its deadline, or by a panic of a handler that runs while it waits,
//!   gives the slot back once, behind what it has sent, in the order in which the owner applies
//!   both. What it could not send, or has no answer to yet (`late`), it gives back when it makes
//!   progress. A key that was being added is then absent, unless only the last answer was missing.
//!   A value that was being changed is the old one or the new one; if it is longer than one
//!   message, half of it may have arrived, and then the key is removed.
//! * Slots of removed entries make searches for absent keys longer until they are reused.

mod late;
mod slot;
#[cfg(test)]
mod tests;

use super::ArrayError;
use crate::unfinished::in_destructor;
use crate::waited::Attempts;
use crate::whole_words::{Words, from_words, to_words};
use crate::{Elem, Error, Result, Segment, Team, Update, bytes_of};
use samite_fabric::Whom;
use slot::{EMPTY_OUT, FILL, Kind, RELEASE, State};
use smallvec::smallvec;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};
use xxhash_rust::xxh3::xxh3_128;

/// Keys and values, distributed over a team by the hash of the key. Two keys are equal if their
/// bytes are (0.0 and -0.0 differ). All operations are one-sided and atomic unless they say
/// otherwise: if two units change an entry at the same time, one comes first.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::array::Map;
/// let counts = Map::<[u8; 3], u64>::new(world, 100)?; // up to 100 entries at each unit
/// for word in [*b"ATG", *b"GCC", *b"ATG"] {
///     counts.update(word, |count| count.unwrap_or(0) + 1)?; // atomic, at any unit
/// }
/// assert_eq!(counts.get(b"ATG")?, Some(2));
/// assert_eq!(counts.total_len()?, 2); // collective
/// counts.free()?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
pub struct Map<K, V> {
    /// Per slot: the word, the key and the value, each in whole words.
    words: Segment<u64>,
    slots: u64,
    kind: PhantomData<fn(K) -> V>,
}

/// A key, and where its search begins.
struct Search {
    key: Words,
    rank: u32,
    home: u64,
    tag: u32,
}

/// The slot in which a key was found, and what it held.
struct Found {
    slot: u64,
    state: State,
    entry: Words,
}

impl<K: Elem, V: Elem> Map<K, V> {
    /// Creates a map with `slots` slots at every member; the number is fixed. Searches are short
    /// while at most two thirds are taken. Collective, with the same number.
    ///
    /// # Errors
    /// The budget is used up; [`Error::Mismatch`].
    pub fn new(team: &Team, slots: u64) -> Result<Map<K, V>> {
        let _turn = team.0.long_turn()?;
        let count = u64::from(Self::STRIDE).checked_mul(slots);
        let count = count.ok_or_else(|| {
            team.0.refuse_next(Error::TooLarge {
                count: slots,
                size: 8 * u64::from(Self::STRIDE),
            })
        })?;
        super::agree(team, "the size of the entries of a map", &Self::ENTRY)?;
        Ok(Map {
            words: team.allocate(count)?,
            slots,
            kind: PhantomData,
        })
    }

    /// Words of a key.
    const KEY: usize = size_of::<K>().div_ceil(8);
    const ENTRY: usize = Self::KEY + size_of::<V>().div_ceil(8);
    /// Words from slot to slot, chosen so that small slots do not straddle cache lines.
    const STRIDE: u32 = match Self::ENTRY as u32 + 1 {
        words @ ..=8 => words.next_power_of_two(),
        words => words.next_multiple_of(8),
    };

    /// Returns the team of the map.
    pub fn team(&self) -> &Team {
        self.words.team()
    }

    /// Returns the number of slots of every member.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns the rank that stores, or would store, the entry of a key. Local.
    pub fn owner(&self, key: &K) -> u32 {
        self.search(key).rank
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let search = self.search(key);
        let found = self.find(&search, &mut Attempts::default())?;
        Ok(found.map(|found| Self::value(&found.entry)))
    }

    /// Sets the value of a key. Returns its previous value.
    ///
    /// # Errors
    /// [`ArrayError::MapFull`]: the key is new and its owner has no slot left.
    pub fn insert(&self, key: K, value: V) -> Result<Option<V>> {
        self.alter(&key, |_| value)
    }

    /// Replaces the value of a key by `of(value)` if it has one; otherwise adds `of(None)`. Returns
    /// the new value. No other unit changes the entry in between. `of` is called once and must not
    /// use the map. If it panics, the entry stays as it was.
    ///
    /// # Errors
    /// As for [`Map::insert`].
    pub fn update(&self, key: K, mut of: impl FnMut(Option<V>) -> V) -> Result<V> {
        let mut new = V::zeroed();
        self.alter(&key, |old| {
            new = of(old);
            new
        })?;
        Ok(new)
    }

    /// Removes a key. Returns the value that it had.
    pub fn remove(&self, key: &K) -> Result<Option<V>> {
        let search = self.search(key);
        let mut attempts = Attempts::default();
        loop {
            let Some(found) = self.find(&search, &mut attempts)? else {
                return Ok(None);
            };
            if self.change(&search, &found, |_| None)? {
                return Ok(Some(Self::value(&found.entry)));
            }
            self.rest(&mut attempts)?;
        }
    }

    /// Calls `see` for the entries that this unit stores. Local. Other units may use the map
    /// meanwhile: an entry that is present throughout is seen once, with one of its values.
    pub fn for_each_local(&self, mut see: impl FnMut(K, V)) -> Result<()> {
        let rank = self.team().rank();
        for slot in 0..self.slots {
            let mut attempts = Attempts::default();
            loop {
                let state = self.state(rank, slot)?;
                match state.kind() {
                    Kind::Empty | Kind::Gone => break,
                    Kind::Busy => self.rest(&mut attempts)?,
                    Kind::Full => {
                        let Some(entry) = self.read(rank, slot, state)? else {
                            self.rest(&mut attempts)?;
                            continue;
                        };
                        see(from_words(&entry[..Self::KEY]), Self::value(&entry));
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of entries that this unit stores. Local.
    pub fn local_len(&self) -> Result<u64> {
        let mut count = 0;
        self.for_each_local(|_, _| count += 1)?;
        Ok(count)
    }

    /// Returns the total number of entries. Collective: it sees what any member did before that
    /// member called it.
    pub fn total_len(&self) -> Result<u64> {
        let _turn = self.team().0.long_turn()?;
        self.team().barrier()?;
        let mut all = vec![0; self.team().size() as usize];
        let own = self.local_len();
        let own = own.map_err(|error| self.team().0.refuse_next(error))?;
        self.team().all_gather(&[own], &mut all)?;
        Ok(all.into_iter().fold(0, u64::saturating_add))
    }

    /// Frees the map. Collective: when it returns, no member uses the map any more.
    pub fn free(self) -> Result<()> {
        self.words.free()
    }

    fn search(&self, key: &K) -> Search {
        let hash = xxh3_128(bytes_of(std::slice::from_ref(key)));
        let (high, low) = ((hash >> 64) as u64, hash as u64);
        // A multiplication maps a hash to a range as evenly as a modulo does, and is cheaper.
        let below = |hash: u64, n: u64| ((u128::from(hash) * u128::from(n)) >> 64) as u64;
        Search {
            key: to_words(key),
            rank: below(high, u64::from(self.team().size())) as u32,
            home: below(low, self.slots),
            tag: high as u32,
        }
    }

    fn value(entry: &Words) -> V {
        from_words(&entry[Self::KEY..])
    }

    /// Adds a key, or changes its value. Returns the old value. `of` is called once.
    fn alter(&self, key: &K, mut of: impl FnMut(Option<V>) -> V) -> Result<Option<V>> {
        let search = self.search(key);
        let mut attempts = Attempts::default();
        loop {
            if let Some(found) = self.find(&search, &mut attempts)? {
                if self.change(&search, &found, |old| Some(of(Some(old))))? {
                    return Ok(Some(Self::value(&found.entry)));
                }
                self.rest(&mut attempts)?;
            } else if self.add(&search, || of(None), &mut attempts)? {
                return Ok(None);
            }
        }
    }

    /// Searches for a key.
    fn find(&self, search: &Search, attempts: &mut Attempts) -> Result<Option<Found>> {
        for slot in self.chain(search) {
            loop {
                let state = self.state(search.rank, slot)?;
                match state.kind() {
                    Kind::Empty => return Ok(None),
                    Kind::Gone => break,
                    _ if !state.has_tag(search.tag) => break,
                    Kind::Busy => self.rest(attempts)?,
                    Kind::Full => {
                        let Some(entry) = self.read(search.rank, slot, state)? else {
                            self.rest(attempts)?;
                            continue;
                        };
                        if entry[..Self::KEY] == search.key[..] {
                            return Ok(Some(Found { slot, state, entry }));
                        }
                        break;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Changes an entry that was found, unless it has changed since. Returns true if it was
    /// changed. `of` is called only then.
    fn change(
        &self,
        search: &Search,
        found: &Found,
        of: impl FnOnce(V) -> Option<V>,
    ) -> Result<bool> {
        let (rank, slot) = (search.rank, found.slot);
        // Until the put begins, giving the slot back restores the old entry.
        let Some(mut busy) = self.take((rank, slot), found.state, found.state.busy(), FILL)? else {
            return Ok(false);
        };
        match of(Self::value(&found.entry)) {
            Some(value) => {
                let (place, value) = (self.place(slot) + 1, to_words(&value));
                if !self.arrives_whole(rank, &value) {
                    // Giving it back before all of the value has arrived removes the key.
                    busy.change = EMPTY_OUT;
                }
                self.words.put(rank, place + Self::KEY as u64, &value)?;
                busy.change = FILL;
            }
            None => busy.change = EMPTY_OUT,
        }
        busy.give_back().map(|()| true)
    }

    /// Adds a key that was not found, unless another unit holds its chain or has added the key.
    /// Returns true if the key was added. `of` is called only then.
    fn add(
        &self,
        search: &Search,
        of: impl FnOnce() -> V,
        attempts: &mut Attempts,
    ) -> Result<bool> {
        let rank = search.rank;
        if self.slots == 0 {
            return Err(self.full(rank));
        }
        let home = self.state(rank, search.home)?;
        if home.is_held() {
            self.rest(attempts)?;
            return Ok(false);
        }
        // If the home is empty, so is the rest of the chain, and the slot is taken with the chain.
        let is_first = home.kind() == Kind::Empty;
        let (wanted, undo) = match is_first {
            true => (
                home.taken(search.tag).held(),
                EMPTY_OUT.wrapping_add(RELEASE),
            ),
            false => (home.held(), RELEASE),
        };
        let Some(home) = self.take((rank, search.home), home, wanted, undo)? else {
            self.rest(attempts)?;
            return Ok(false);
        };
        let (mut busy, chain) = if is_first {
            (home, None)
        } else {
            // Another unit may have added the key before this one took the chain.
            if self.find(search, attempts)?.is_some() {
                return home.give_back().map(|()| false);
            }
            let free = self.take_free(search, attempts)?;
            (free.ok_or_else(|| self.full(rank))?, Some(home))
        };
        let mut entry = search.key.clone();
        entry.extend(to_words(&of()));
        self.words.put(rank, self.place(busy.slot) + 1, &entry)?;
        busy.change = match &chain {
            Some(_) => FILL,
            None => FILL.wrapping_add(RELEASE),
        };
        busy.give_back()?;
        chain.map_or(Ok(()), SlotGuard::give_back)?;
        Ok(true)
    }

    /// Takes the first free slot of a chain that is held.
    fn take_free(
        &self,
        search: &Search,
        attempts: &mut Attempts,
    ) -> Result<Option<SlotGuard<'_, K, V>>> {
        for slot in self.chain(search) {
            let mut state = self.state(search.rank, slot)?;
            while matches!(state.kind(), Kind::Empty | Kind::Gone) {
                let wanted = state.taken(search.tag);
                let taken = self.take((search.rank, slot), state, wanted, EMPTY_OUT)?;
                if taken.is_some() {
                    return Ok(taken);
                }
                self.rest(attempts)?;
                state = self.state(search.rank, slot)?;
            }
        }
        Ok(None)
    }

    /// Iterates over the slots that a key may be in, in the order of the search.
    fn chain(&self, search: &Search) -> impl Iterator<Item = u64> + use<K, V> {
        (search.home..self.slots).chain(0..search.home)
    }

    /// Returns the first word of a slot.
    fn place(&self, slot: u64) -> u64 {
        slot * u64::from(Self::STRIDE)
    }

    fn state(&self, rank: u32, slot: u64) -> Result<State> {
        Ok(State(self.words.load(rank, self.place(slot))?))
    }

    /// Gets the entry of a slot that was full; `None` if the slot has changed meanwhile.
    fn read(&self, rank: u32, slot: u64, state: State) -> Result<Option<Words>> {
        let mut entry: Words = smallvec![0; Self::ENTRY];
        self.words
            .get_racing(rank, self.place(slot) + 1, &mut entry)?;
        // ORDERING: Acquire: the second read of the word comes after the copy. Pairs with the
        // Release in `take`: bytes of a later writer are seen together with its busy word.
        fence(Ordering::Acquire);
        let later = self.state(rank, slot)?;
        Ok(state.is_unchanged(later).then_some(entry))
    }

    /// Lets other units make progress if one has the slot, or changes it all the time: usually for
    /// a few operations. Errors: the deadline.
    #[cold]
    fn rest(&self, attempts: &mut Attempts) -> Result<()> {
        let fabric = self.team().fabric();
        fabric.progress();
        // The slot may be one that this unit has yet to give back.
        self.team().0.job.unfinished.step(fabric);
        attempts.again(fabric, "a busy slot of a map", || Whom::Any)
    }

    /// Changes the word of a slot if it is still `from`; this unit then has the slot, or its chain.
    /// `undo` gives it back unless the operation for which it was taken completes, even if the
    /// answer comes after an error or a panic.
    fn take(
        &self,
        (rank, slot): (u32, u64),
        from: State,
        to: State,
        undo: u64,
    ) -> Result<Option<SlotGuard<'_, K, V>>> {
        let place = self.place(slot);
        let found = match self.words.is_near(rank) {
            true => self.words.compare_swap(rank, place, from.0, to.0)?,
            false => self.take_far((rank, place), from, to, undo)?,
        };
        // ORDERING: Release: the busy word is visible before the bytes that follow. Pairs with the
        // Acquire in `read`.
        fence(Ordering::Release);
        Ok((found == from.0).then(|| SlotGuard {
            map: self,
            rank,
            slot,
            change: undo,
        }))
    }

    /// Adds to the word of a slot. The new word is visible after the put to the entry, because the
    /// update releases and the put is complete.
    fn give_back(&self, rank: u32, slot: u64, change: u64) -> Result<()> {
        let place = self.place(slot);
        match self.words.is_near(rank) {
            true => self
                .words
                .fetch_op(rank, place, Update::Sum, change)
                .map(drop),
            false => self.give_back_far((rank, place), change),
        }
    }

    /// Returns true if a put of this value cannot end with only a part of it written.
    fn arrives_whole(&self, rank: u32, value: &Words) -> bool {
        let most = || {
            let team = self.team();
            let peer = team.0.peers.get(rank as usize)?;
            Some(team.fabric().caps_to(*peer).body_max)
        };
        let bytes = bytes_of(value).len() as u64;
        self.words.is_near(rank) || most().is_some_and(|most| bytes <= most)
    }

    #[cold]
    fn full(&self, rank: u32) -> Error {
        match self.team().unit(rank) {
            Ok(unit) => ArrayError::MapFull {
                unit: self.team().0.job.named(unit),
                slots: self.slots,
            }
            .into(),
            Err(error) => error,
        }
    }
}

/// A slot, or a chain, that this unit has. It is given back once in all cases: by `give_back`, or
/// when it is dropped after an error or a panic.
struct SlotGuard<'m, K: Elem, V: Elem> {
    map: &'m Map<K, V>,
    rank: u32,
    slot: u64,
    /// Added to the word to give it back.
    change: u64,
}

impl<K: Elem, V: Elem> SlotGuard<'_, K, V> {
    fn give_back(self) -> Result<()> {
        let (map, rank, slot, change) = (self.map, self.rank, self.slot, self.change);
        // From here on the callee is responsible: if it ends before the change is sent, it sends it
        // later.
        std::mem::forget(self);
        map.give_back(rank, slot, change)
    }
}

impl<K: Elem, V: Elem> Drop for SlotGuard<'_, K, V> {
    #[cold]
    fn drop(&mut self) {
        in_destructor(self.map.team().fabric(), || {
            if let Err(error) = self.map.give_back(self.rank, self.slot, self.change) {
                tracing::warn!(%error, "a slot of a map could not be given back");
            }
        });
    }
}
