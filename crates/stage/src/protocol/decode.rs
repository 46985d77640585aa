//! Decoding of messages from processes that may say anything.
//!
//! The elements of a list take a byte or two each in a message, and up to 200 bytes in memory, and
//! a message is in memory before it can be checked. So the elements of all lists of a message have
//! a limit, which is above what any process may use at the coordinator ([`ledger`](super::ledger)).

use super::Slot;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use smallvec::{Array, SmallVec};
use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Maximum bytes of the elements of all lists of a request.
const MOST: usize = 256 << 20;

thread_local! {
    /// What the message that this thread decodes may still have of them. Messages of the
    /// coordinator, and files, have no limit but their length.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Decodes a received message; `None` if it is malformed.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// As [`decode`], for a message of a process that the receiver does not trust: also `None` if it
/// would use too much memory.
pub fn decode_request<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    LEFT.set(MOST);
    let message = decode(bytes);
    LEFT.set(usize::MAX);
    message
}

/// Decodes a list whose elements count.
pub(super) fn list<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    from.deserialize_seq(List(PhantomData))
}

/// Decodes a shared list whose elements count.
pub(super) fn shared<'de, D, T>(from: D) -> Result<Arc<[T]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    list(from).map(Arc::from)
}

/// Decodes a list with room for a few elements in place. Once it has more than these, all of them
/// count.
pub(crate) fn few<'de, D, A>(from: D) -> Result<SmallVec<A>, D::Error>
where
    D: Deserializer<'de>,
    A: Array,
    A::Item: Deserialize<'de>,
{
    from.deserialize_seq(Few(PhantomData))
}

/// Decodes a list of slots, whose elements count, too.
pub(super) fn slots<'de, D, T>(from: D) -> Result<Vec<Slot<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(serde::Deserialize)]
    #[serde(bound = "T: Deserialize<'de>")]
    struct One<T>(#[serde(deserialize_with = "few")] Slot<T>);
    let slots: Vec<One<T>> = list(from)?;
    Ok(slots.into_iter().map(|One(slot)| slot).collect())
}

/// Counts the bytes of more elements of the message that this thread decodes.
fn count<E: Error>(bytes: usize) -> Result<(), E> {
    let left = LEFT.get().checked_sub(bytes);
    LEFT.set(left.ok_or_else(|| E::custom("too many elements"))?);
    Ok(())
}

struct List<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        // Nothing is allocated for elements that are only promised.
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            count(size_of::<T>())?;
            list.push(element);
        }
        Ok(list)
    }
}

struct Few<A>(PhantomData<A>);

impl<'de, A: Array> Visitor<'de> for Few<A>
where
    A::Item: Deserialize<'de>,
{
    type Value = SmallVec<A>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut elements: S) -> Result<SmallVec<A>, S::Error> {
        let mut list = SmallVec::new();
        while let Some(element) = elements.next_element()? {
            let more = match list.len().cmp(&list.inline_size()) {
                Ordering::Less => 0,
                // All of them move to the heap.
                Ordering::Equal => list.len() + 1,
                Ordering::Greater => 1,
            };
            count(more * size_of::<A::Item>())?;
            list.push(element);
        }
        Ok(list)
    }
}
