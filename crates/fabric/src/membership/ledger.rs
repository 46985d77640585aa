//! A table that reports its changes in order, without keeping what is no longer true.
//!
//! Each change gets the next number. Only the newest change of a key is kept, so the ledger grows
//! with the number of keys and never with time. A follower that knows everything up to number n
//! needs just the keys that changed after n: a delta if it is close behind, the whole table if it
//! is new. There is no log that a slow follower could fall behind.

use super::message::{Nonsense, PIECE_MAX, encode};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ledger<K, V> {
    values: BTreeMap<K, (u64, V)>,
    /// Maps the number of each key's newest change to the key.
    order: BTreeMap<u64, K>,
    last: u64,
}

impl<K: Ord + Copy, V> Ledger<K, V> {
    pub(super) fn new() -> Self {
        Ledger {
            values: BTreeMap::new(),
            order: BTreeMap::new(),
            last: 0,
        }
    }

    /// Changes a key and returns the number of the change.
    pub(super) fn set(&mut self, key: K, value: V) -> u64 {
        self.last += 1;
        if let Some((before, _)) = self.values.insert(key, (self.last, value)) {
            self.order.remove(&before);
        }
        self.order.insert(self.last, key);
        self.last
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        self.values.get(&key).map(|(_, value)| value)
    }

    /// Returns the number of the last change of a key.
    pub(super) fn changed(&self, key: K) -> Option<u64> {
        self.values.get(&key).map(|(changed, _)| *changed)
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    #[cfg(test)]
    pub(super) fn is_compact(&self) -> bool {
        self.order.len() == self.values.len()
    }

    /// Returns the number of the last change, 0 before the first one.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Iterates over the keys that changed after a number, oldest change first.
    pub(super) fn after(&self, number: u64) -> impl Iterator<Item = (u64, K, &V)> {
        let newer = self.order.range(number.saturating_add(1)..);
        newer.filter_map(|(changed, key)| Some((*changed, *key, self.get(*key)?)))
    }
}

/// How far one follower has been informed. One piece at a time is in flight, so a slow follower
/// costs these two words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Feed {
    seen: u64,
    told: u64,
}

impl Feed {
    /// Creates a feed for a follower that knows everything up to a number.
    pub(super) fn after<K: Ord + Copy, V>(
        seen: u64,
        ledger: &Ledger<K, V>,
    ) -> Result<Feed, Nonsense> {
        if seen > ledger.last() {
            return Err(Nonsense("a follower that knows what has not happened"));
        }
        Ok(Feed { seen, told: seen })
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns the next piece for the follower, and the number after which it begins. Returns
    /// `None` while a piece is in flight and when there is nothing new.
    pub(super) fn next<'l, K: Ord + Copy, V, T: Serialize>(
        &mut self,
        ledger: &'l Ledger<K, V>,
        entry: impl Fn(u64, K, &'l V) -> T,
    ) -> Option<(u64, Vec<u8>)> {
        if self.told != self.seen || ledger.last() == self.seen {
            return None;
        }
        let mut piece = Vec::new();
        for (number, key, value) in ledger.after(self.seen) {
            let encoded = encode(&entry(number, key, value));
            if piece.len() + encoded.len() > PIECE_MAX {
                break;
            }
            piece.extend_from_slice(&encoded);
            self.told = number;
        }
        Some((self.seen, piece))
    }

    /// Records that the follower has applied the piece that was in flight.
    pub(super) fn acknowledge(&mut self, number: u64) -> Result<(), Nonsense> {
        if number != self.told || self.told == self.seen {
            return Err(Nonsense("an answer to what was not sent"));
        }
        self.seen = number;
        Ok(())
    }
}
