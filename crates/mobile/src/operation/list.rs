//! Linked lists whose nodes are spread over units.

use super::shards::{
    END, Forms, Seen, bytes_of, damaged, failed, no_reply, self_bounded_limits, words_of,
};
use super::{Shards, Way};
use crate::mobile::{Mobile, Registered};
use crate::{Context, Error, Function, Result, Trap};

/// The name of the function.
const FUNCTION: &str = "samite.list";
/// The entries: one begins at a head, one goes on at a node.
const FIND: u32 = 0;
const FOLLOW: u32 = 1;
/// After so many nodes at one unit, others get their turn: about 3 ms, if none is in a cache.
const TURN: u32 = 1 << 14;

/// Linked lists in [`Shards`], such as the buckets of a hash table. The program builds them.
///
/// ```text
/// head      a word that has the address of the first node
/// node      0 key   1 value   2 address of the next node (words; all at one unit)
/// address   END: there is none
/// ```
///
/// A node costs `2 L` by gets, and `(1 - 1/S) L` by a function or moved code, if nodes are spread
/// over S units at random and L is the one-way delay between units. The head costs as much as a
/// node, a call `2 L`. A look-up visits at most as many nodes as fit in the shards, so it ends also
/// if the list does not.
#[derive(Debug)]
pub struct Lists {
    shards: Shards,
    forms: Forms,
}

impl Lists {
    /// Words of a node.
    pub const NODE: u64 = 3;

    /// Prepares look-ups. Each of the units calls [`Lists::serve`] for calls of the function.
    /// Local.
    ///
    /// # Errors
    /// Those of [`Mobile::register`].
    pub fn new(shards: &Shards) -> Result<Lists> {
        Ok(Lists {
            forms: Forms::new(shards.mobile(), FUNCTION, include_str!("list.wat"))?,
            shards: shards.clone(),
        })
    }

    /// Makes the function known by which others may follow lists through this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(find).and(follow));
    }

    /// Returns the value of the first node with this key in the list whose head is the word at
    /// `head`; `None` if there is no such node. Nodes that are changed meanwhile are seen as they
    /// are, word by word. Completion: the result.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the head is outside of the shards, or also a node, if the caller
    /// reads by itself; [`Error::Damaged`] then says that a list does not end. Found by calls, both
    /// are [`Error::Failed`] (2 and 3, [`super`]), as is the loss of a unit. [`Error::Late`].
    pub fn find(&self, way: Way, head: u64, key: u64) -> Result<Option<u64>> {
        match self.forms.of(way) {
            None => self.by_gets(head, key),
            Some(code) => self.by_calls(code, head, key),
        }
    }

    /// As [`Lists::find`], in the way that has been the cheapest so far, for all lists.
    ///
    /// # Errors
    /// As [`Lists::find`].
    pub fn find_auto(&self, head: u64, key: u64) -> Result<Option<u64>> {
        self.forms.run(1, |way| self.find(way, head, key))
    }

    /// Returns the way that `find_auto` prefers; `None` while it still tries them.
    pub fn best(&self) -> Option<Way> {
        self.forms.auto.best(1)
    }

    /// Returns the most nodes that there can be.
    fn nodes_max(&self) -> u64 {
        self.shards.len() / Self::NODE
    }

    fn by_gets(&self, head: u64, key: u64) -> Result<Option<u64>> {
        let mut first = [0];
        self.shards.get(head, &mut first)?;
        let [mut address] = first;
        for _ in 0..=self.nodes_max() {
            if address == END {
                return Ok(None);
            }
            let mut node = [0; Self::NODE as usize];
            self.shards.get(address, &mut node)?;
            if node[0] == key {
                return Ok(Some(node[1]));
            }
            address = node[2];
        }
        Err(Error::Damaged("a list does not end".into()))
    }

    /// By one call, or by several if it moves more often than a call may.
    fn by_calls(&self, code: &Registered, head: u64, key: u64) -> Result<Option<u64>> {
        let (mut entry, mut address, mut left) = (FIND, head, self.nodes_max());
        loop {
            let unit = self.shards.unit_of(address)?;
            let mut payload = self.shards.payload(self.shards.words(), 24);
            for word in [key, address, left] {
                payload.extend_from_slice(&word.to_le_bytes());
            }
            let mobile = self.shards.mobile();
            let call =
                mobile.call_entry(unit, code, entry as u8, &payload, self_bounded_limits())?;
            let reply = call.wait()?;
            let mut words = words_of(&reply);
            match (reply.len(), words.next(), words.next()) {
                (0, ..) => return Ok(None),
                (8, Some(value), _) => return Ok(Some(value)),
                // Each call visits a node at least.
                (16, Some(node), Some(rest)) if rest < left => {
                    (entry, address, left) = (FOLLOW, node, rest);
                }
                _ => return Err(no_reply(&reply)),
            }
        }
    }
}

/// The function: what the entry `find` of `list.wat` does.
fn find(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let (seen, [_, head, _]) = Seen::decode(payload)?;
    let index = seen.index(context.me(), head);
    let index = index.ok_or_else(|| failed(2, "an address outside of the shards"))?;
    let node = seen.load(context, index)?;
    walk(context, payload, node)
}

/// What the entry `follow` does.
fn follow(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let (_, [_, node]) = Seen::decode(payload)?;
    walk(context, payload, node)
}

fn walk(context: &mut Context, payload: &[u8], mut node: u64) -> Result<(), Trap> {
    let (seen, [key, _, mut left]) = Seen::decode(payload)?;
    let mut turns = 0;
    loop {
        if node == END {
            return context.reply(&[]);
        }
        let here = seen.index(context.me(), node);
        let Some(index) = here.filter(|_| turns < TURN) else {
            if context.limits().hops == 0 {
                return context.reply(&bytes_of(&[node, left]));
            }
            let payload = Seen::payload(payload, &[key, node, left]);
            return context.forward(seen.unit(node)?, FOLLOW, &payload);
        };
        if left == 0 || seen.words - index < Lists::NODE {
            return Err(damaged());
        }
        left -= 1;
        turns += 1;
        if seen.load(context, index)? == key {
            let value = seen.load(context, index + 1)?;
            return context.reply(&value.to_le_bytes());
        }
        node = seen.load(context, index + 2)?;
    }
}
