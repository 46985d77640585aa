//! B-trees whose nodes are spread over units.

use super::shards::{END, Forms, Seen, bytes_of, damaged, no_reply, self_bounded_limits, words_of};
use super::{Shards, Way};
use crate::mobile::{Mobile, Registered};
use crate::{Context, Error, Function, Result, Trap};

/// The name of the function.
const FUNCTION: &str = "samite.tree";
/// The most keys of a node: a node is read at once.
const FAN_OUT_MAX: u64 = 256;
/// The most nodes of a look-up: more levels than any tree has, and the next leaf.
const NODES_MAX: u32 = 65;

/// A B-tree in [`Shards`], of words as keys and values, that is read only.
///
/// ```text
/// node, of 2 F + 2 words at one unit, where F is the fan-out of the tree
/// 0           head: keys in use (bits 0..16, at least 1), level (16..32; leaves: 0), F (32..48)
/// 1           F keys, ascending; in inner nodes: the least key of each child
/// 1 + F       F values; in inner nodes: addresses of children
/// 1 + 2 F     in leaves: address of the next leaf, END at the last one
/// ```
///
/// A look-up visits one node per level. A node costs `2 L` by gets (all of it is read at once), and
/// `(1 - 1/S) L` by a function or moved code, where L is the one-way delay between S units; a call
/// costs `2 L`. So with one or two levels, gets are as fast.
#[derive(Debug)]
pub struct Tree {
    shards: Shards,
    root: u64,
    fan_out: u64,
    forms: Forms,
}

/// What is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Exactly,
    NotBelow,
}

impl Tree {
    /// Builds a tree of pairs of key and value whose keys ascend, from word `begin` of each unit
    /// on, and returns it. Nodes are spread over the units in turn. Other units open it by its
    /// [root](Tree::root), when this call has returned. One-sided: one put per unit. Completion:
    /// remote.
    ///
    /// # Errors
    /// [`Error::BadLayout`] if there are no pairs, or keys do not ascend, or the nodes do not fit,
    /// or the fan-out is not from 2 to 256; those of [`Shards::put`].
    pub fn build(shards: &Shards, begin: u64, fan_out: u64, pairs: &[(u64, u64)]) -> Result<Tree> {
        let bad = |text: String| Err(Error::BadLayout(text));
        let is_possible = (2..=FAN_OUT_MAX).contains(&fan_out) && begin < shards.words();
        if pairs.is_empty() || !is_possible {
            let count = pairs.len();
            return bad(format!(
                "a tree of {count} pairs with fan-out {fan_out} from word {begin} on"
            ));
        }
        if let Some(at) = pairs.windows(2).position(|pair| pair[0].0 >= pair[1].0) {
            return bad(format!(
                "the keys of a tree ascend, but pair {} does not",
                at + 1
            ));
        }
        let nodes = Nodes::of(shards, begin, fan_out);
        let mut all = nodes.leaves(pairs);
        // The least key and the number of each node of a level.
        let mut level: Vec<(u64, u64)> = pairs
            .chunks(fan_out as usize)
            .zip(0..)
            .map(|(chunk, number)| (chunk[0].0, number))
            .collect();
        for height in 1.. {
            if level.len() == 1 {
                break;
            }
            let first = all.len() as u64;
            for children in level.chunks(fan_out as usize) {
                let keys = children.iter().map(|(key, _)| *key);
                let values = children.iter().map(|(_, number)| nodes.address(*number));
                all.push(nodes.node(height, keys.zip(values), END));
            }
            let least = level.chunks(fan_out as usize).map(|children| children[0].0);
            level = least.zip(first..).collect();
        }
        nodes.write(shards, &all)?;
        Tree::open(shards, nodes.address(all.len() as u64 - 1))
    }

    /// Opens a tree by the address of its root. Each of the units calls [`Tree::serve`] for calls
    /// of the function. Reads the root.
    ///
    /// # Errors
    /// [`Error::BadAddress`]; [`Error::Damaged`] if this is no root; those of [`Mobile::register`].
    pub fn open(shards: &Shards, root: u64) -> Result<Tree> {
        let mut head = [0];
        shards.get(root, &mut head)?;
        let fan_out = Head::of(head[0]).fan_out;
        if !(2..=FAN_OUT_MAX).contains(&fan_out) {
            return Err(Error::Damaged(format!("word {root} is no root of a tree")));
        }
        Ok(Tree {
            forms: Forms::new(shards.mobile(), FUNCTION, include_str!("tree.wat"))?,
            shards: shards.clone(),
            root,
            fan_out,
        })
    }

    /// Makes the function known by which others may search nodes of this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(find));
    }

    /// Returns the address of the root.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Returns the value of a key; `None` if the key is not there. Completion: the result.
    ///
    /// # Errors
    /// [`Error::BadAddress`] and [`Error::Damaged`] if nodes are not what they should be and the
    /// caller reads by itself; by calls, this is [`Error::Failed`] (2 and 3, [`super`]), as is the
    /// loss of a unit. [`Error::Late`].
    pub fn get(&self, way: Way, key: u64) -> Result<Option<u64>> {
        let found = self.find(way, key, Wanted::Exactly)?;
        Ok(found.map(|(_, value)| value))
    }

    /// As [`Tree::get`], in the way that has been the cheapest so far.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn get_auto(&self, key: u64) -> Result<Option<u64>> {
        self.forms.run(1, |way| self.get(way, key))
    }

    /// Returns the pair with the least key that is not below this one; `None` if all keys are below
    /// it. Completion: the result.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn lower_bound(&self, way: Way, key: u64) -> Result<Option<(u64, u64)>> {
        self.find(way, key, Wanted::NotBelow)
    }

    /// As [`Tree::lower_bound`], in the way that has been the cheapest so far.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn lower_bound_auto(&self, key: u64) -> Result<Option<(u64, u64)>> {
        self.forms.run(1, |way| self.lower_bound(way, key))
    }

    /// Returns the way that `get_auto` prefers; `None` while it still tries them.
    pub fn best(&self) -> Option<Way> {
        self.forms.auto.best(1)
    }

    fn find(&self, way: Way, key: u64, wanted: Wanted) -> Result<Option<(u64, u64)>> {
        match self.forms.of(way) {
            None => self.by_gets(key, wanted),
            Some(code) => self.by_call(code, key, wanted),
        }
    }

    fn by_gets(&self, key: u64, wanted: Wanted) -> Result<Option<(u64, u64)>> {
        let mut node = vec![0; node_words(self.fan_out) as usize];
        let mut address = self.root;
        for _ in 0..NODES_MAX {
            self.shards.get(address, &mut node)?;
            let load = |index: u64| Ok::<_, Error>(node[index as usize]);
            let head = Head::of(node[0]);
            if !head.is_valid() || head.fan_out != self.fan_out {
                break;
            }
            match search(head, key, wanted, load)? {
                Step::Ended(found) => return Ok(found),
                Step::Node(next) => address = next,
            }
        }
        Err(Error::Damaged(format!(
            "word {address} is no node of a tree"
        )))
    }

    fn by_call(&self, code: &Registered, key: u64, wanted: Wanted) -> Result<Option<(u64, u64)>> {
        let unit = self.shards.unit_of(self.root)?;
        let mut payload = self.shards.payload(self.shards.words(), 24);
        let mode = u64::from(wanted == Wanted::NotBelow) | u64::from(NODES_MAX) << 32;
        for word in [key, self.root, mode] {
            payload.extend_from_slice(&word.to_le_bytes());
        }
        let mobile = self.shards.mobile();
        let call = mobile.call_entry(unit, code, 0, &payload, self_bounded_limits())?;
        let reply = call.wait()?;
        let mut words = words_of(&reply);
        match (reply.len(), words.next(), words.next()) {
            (0, None, None) => Ok(None),
            (16, Some(key), Some(value)) => Ok(Some((key, value))),
            _ => Err(no_reply(&reply)),
        }
    }
}

/// The first word of a node.
#[derive(Clone, Copy, Debug)]
struct Head {
    count: u64,
    level: u64,
    fan_out: u64,
}

impl Head {
    fn of(word: u64) -> Head {
        Head {
            count: word & 0xffff,
            level: word >> 16 & 0xffff,
            fan_out: word >> 32 & 0xffff,
        }
    }

    fn is_valid(&self) -> bool {
        (1..=self.fan_out).contains(&self.count)
    }
}

/// What the search of one node has found.
enum Step {
    Ended(Option<(u64, u64)>),
    Node(u64),
}

/// Searches a node, whose words `load` returns by their number.
fn search<E>(
    head: Head,
    key: u64,
    wanted: Wanted,
    load: impl Fn(u64) -> Result<u64, E>,
) -> Result<Step, E> {
    // How many keys are not above it.
    let (mut rank, mut end) = (0, head.count);
    while rank < end {
        let middle = (rank + end) / 2;
        match load(1 + middle)? <= key {
            true => rank = middle + 1,
            false => end = middle,
        }
    }
    if head.level > 0 {
        return match (rank, wanted) {
            (0, Wanted::Exactly) => Ok(Step::Ended(None)),
            _ => Ok(Step::Node(load(head.fan_out + rank.max(1))?)),
        };
    }
    let pair = |at: u64| {
        Ok(Step::Ended(Some((
            load(1 + at)?,
            load(1 + head.fan_out + at)?,
        ))))
    };
    if rank > 0 && load(rank)? == key {
        return pair(rank - 1);
    }
    match wanted {
        Wanted::Exactly => Ok(Step::Ended(None)),
        Wanted::NotBelow if rank < head.count => pair(rank),
        Wanted::NotBelow => match load(1 + 2 * head.fan_out)? {
            END => Ok(Step::Ended(None)),
            next => Ok(Step::Node(next)),
        },
    }
}

fn node_words(fan_out: u64) -> u64 {
    2 * fan_out + 2
}

/// Where the nodes of a new tree go: the n-th one to the unit n modulo their number.
struct Nodes {
    begin: u64,
    fan_out: u64,
    units: u64,
    words: u64,
}

impl Nodes {
    fn of(shards: &Shards, begin: u64, fan_out: u64) -> Nodes {
        Nodes {
            begin,
            fan_out,
            units: shards.count() as u64,
            words: shards.words(),
        }
    }

    fn address(&self, number: u64) -> u64 {
        let index = self.begin + number / self.units * node_words(self.fan_out);
        number % self.units * self.words + index
    }

    fn node(&self, level: u64, pairs: impl Iterator<Item = (u64, u64)>, next: u64) -> Vec<u64> {
        let mut node = vec![0; node_words(self.fan_out) as usize];
        let mut count = 0;
        for (key, value) in pairs {
            node[1 + count] = key;
            node[1 + self.fan_out as usize + count] = value;
            count += 1;
        }
        node[0] = count as u64 | level << 16 | self.fan_out << 32;
        node[1 + 2 * self.fan_out as usize] = next;
        node
    }

    fn leaves(&self, pairs: &[(u64, u64)]) -> Vec<Vec<u64>> {
        let count = pairs.len().div_ceil(self.fan_out as usize) as u64;
        let next = |number: u64| match number + 1 < count {
            true => self.address(number + 1),
            false => END,
        };
        let leaves = pairs.chunks(self.fan_out as usize).zip(0..);
        leaves
            .map(|(pairs, number)| self.node(0, pairs.iter().copied(), next(number)))
            .collect()
    }

    /// Writes all nodes: those of a unit lie one behind the other.
    fn write(&self, shards: &Shards, nodes: &[Vec<u64>]) -> Result<()> {
        let most = (nodes.len() as u64).div_ceil(self.units) * node_words(self.fan_out);
        if self
            .begin
            .checked_add(most)
            .is_none_or(|end| end > self.words)
        {
            return Err(Error::BadLayout(format!(
                "a tree of {} nodes needs words {}..{} of each unit, which has {}",
                nodes.len(),
                self.begin,
                self.begin.saturating_add(most),
                self.words
            )));
        }
        for shard in 0..self.units.min(nodes.len() as u64) {
            let of_unit = nodes
                .iter()
                .skip(shard as usize)
                .step_by(self.units as usize);
            let words: Vec<u64> = of_unit.flatten().copied().collect();
            shards.put(self.address(shard), &words)?;
        }
        Ok(())
    }
}

/// The function: what `tree.wat` does.
fn find(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let (seen, [key, mut address, mode]) = Seen::decode(payload)?;
    // Functions have no limit of time: whatever the caller says, a search ends.
    let mut left = ((mode >> 32) as u32).min(NODES_MAX);
    let wanted = match mode as u32 {
        0 => Wanted::Exactly,
        _ => Wanted::NotBelow,
    };
    loop {
        let Some(index) = seen.index(context.me(), address) else {
            let mode = mode & 0xffff_ffff | u64::from(left) << 32;
            let payload = Seen::payload(payload, &[key, address, mode]);
            return context.forward(seen.unit(address)?, 0, &payload);
        };
        let head = Head::of(seen.load(context, index)?);
        let fits = node_words(head.fan_out) <= seen.words - index;
        if left == 0 || !head.is_valid() || !fits {
            return Err(damaged());
        }
        left -= 1;
        match search(head, key, wanted, |at| seen.load(context, index + at))? {
            Step::Ended(None) => return context.reply(&[]),
            Step::Ended(Some((key, value))) => return context.reply(&bytes_of(&[key, value])),
            Step::Node(next) => address = next,
        }
    }
}
