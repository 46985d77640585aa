//! Operations on data that are spread over units: all ways have the result of a computation in
//! local memory, wrong addresses and lost units are typed errors.

mod bulk;
mod faults;
mod graphs;
mod pointers;

use crate::{failure, runs};
use samite_fabric::{Fabric, Match, Segment, SegmentKey};
use samite_mobile::operation::{Below, END, Gather, Graph, Lists, Shards, Table, Tree, Way};
use samite_mobile::{Cause, Error, Mobile, Result, Rights};
use samite_testkit::{Outcome, check, same};

/// Words of each unit that are mapped into the memory of kernels, and those that are not.
const MAPPED: u64 = 1 << 18;
const SMALL: u64 = 3001;
/// The tag of keys.
const KEY: u64 = 3;

/// Gives each unit words under a number. At unit 0, returns what it knows of those of all units.
fn spread(mobile: &Mobile, grant: usize, words: u64) -> Outcome<(Segment, Option<Shards>)> {
    let fabric = mobile.fabric();
    let members = fabric.job()?;
    let segment = fabric.allocate(words * 8)?;
    mobile.grant(grant, segment.bytes(), Rights::Write);
    fabric.send(members[0], KEY, &segment.key().to_bytes())?;
    if fabric.identity().unit > 0 {
        return Ok((segment, None));
    }
    let keys = members.iter().map(|member| {
        let mut key = [0; 24];
        fabric.recv(Match::from(*member, KEY), &mut key)?;
        Ok(SegmentKey::from_bytes(&key))
    });
    let keys = keys.collect::<Outcome<Vec<_>>>()?;
    let shards = Shards::new(mobile, 0, grant, words, &keys)?;
    Ok((segment, Some(shards)))
}

fn serve(mobile: &Mobile) {
    Table::serve(mobile);
    Gather::serve(mobile);
    Lists::serve(mobile);
    Tree::serve(mobile);
    Graph::serve(mobile);
    Below::serve(mobile);
}

/// Runs `ask` at unit 0, with shards whose words are mapped into the memory of kernels, and with
/// shards that are not. The others serve.
fn at_unit_0(fabric: &Fabric, ask: impl Fn(&Shards) -> Outcome) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    serve(&mobile);
    let (_mapped, one) = spread(&mobile, 0, MAPPED)?;
    let (_small, two) = spread(&mobile, 1, SMALL)?;
    fabric.barrier(&members)?;
    for shards in [one, two].iter().flatten() {
        ask(shards)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

/// A word that depends on its address.
fn content(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Fills all words with what `of` returns for their addresses.
fn fill(shards: &Shards, of: impl Fn(u64) -> u64) -> Outcome {
    for unit in shards.units() {
        let begin = u64::from(unit) * shards.words();
        let words: Vec<u64> = (begin..begin + shards.words()).map(&of).collect();
        shards.put(begin, &words)?;
    }
    Ok(())
}

/// Checks that a kernel has failed on purpose, with a text.
fn fails<T>(ended: Result<T>, text: &str) -> Outcome {
    let failure = failure(ended.map(|_| Vec::new()))?;
    same!(failure.cause, Cause::Failed);
    check!(failure.to_string().contains(text), "{failure}");
    Ok(())
}

fn is_bad_address<T>(ended: Result<T>) -> bool {
    matches!(ended, Err(Error::BadAddress { .. }))
}

/// Shards that do not exist.
fn wrong_shards(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let segment = fabric.allocate(800)?;
    let key = segment.key();
    let new = |first: u32, grant: usize, words: u64, keys: &[SegmentKey]| {
        Shards::new(&mobile, first, grant, words, keys)
    };
    let is_bad = |made: Result<Shards>| matches!(made, Err(Error::BadLayout(_)));
    check!(new(unit, 0, 100, &[key]).is_ok());
    check!(is_bad(new(unit, 0, 101, &[key])));
    check!(is_bad(new(unit, 0, 0, &[key])));
    check!(is_bad(new(unit, 0, 100, &[])));
    check!(is_bad(new(unit, 16, 100, &[key])));
    check!(is_bad(new(1 - unit, 0, 100, &[key])));
    check!(matches!(new(2, 0, 100, &[key]), Err(Error::NoUnit { .. })));
    check!(matches!(
        new(u32::MAX, 0, 1, &[key]),
        Err(Error::NoUnit { .. })
    ));
    fabric.barrier(&fabric.job()?)?;
    Ok(())
}

on_processes!(wrong_shards_are_refused, runs(2, wrong_shards));

/// Each operation goes the way that it is told: gets call nothing, functions have nothing compiled,
/// and code that moves is compiled where the words are.
fn ways(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    serve(&mobile);
    let (_words, shards) = spread(&mobile, 0, SMALL)?;
    let (_marks, marks) = spread(&mobile, 1, SMALL)?;
    let asks = match (&shards, &marks) {
        (Some(shards), Some(marks)) => Some(Asks::new(shards, marks)?),
        _ => None,
    };
    for of in 0..Asks::KINDS {
        for way in Way::ALL {
            fabric.barrier(&members)?;
            let before = mobile.counters();
            fabric.barrier(&members)?;
            if let Some(asks) = &asks {
                asks.ask(way, of)?;
            }
            fabric.barrier(&members)?;
            let after = mobile.counters();
            let has_run = after.calls > before.calls;
            let compiled = after.compiled - before.compiled;
            if unit == 1 {
                let is_moved = u64::from(way == Way::Moved);
                check!(has_run == (way != Way::Gets), "{of} by {way:?}");
                check!(compiled == is_moved, "{of} by {way:?}: {compiled}");
            } else {
                check!(!has_run || way != Way::Gets, "{of} by {way:?}");
                check!(compiled == 0 || way == Way::Moved, "{of} by {way:?}");
            }
        }
    }
    fabric.barrier(&members)?;
    Ok(())
}

/// One operation of each kind, which needs words of unit 1.
struct Asks {
    at: u64,
    table: Table,
    gather: Gather,
    lists: Lists,
    tree: Tree,
    below: Below,
    graph: Graph,
}

impl Asks {
    const KINDS: usize = 6;

    fn new(shards: &Shards, marks: &Shards) -> Outcome<Asks> {
        let at = shards.words() + 1000;
        // A cycle of two words, and the head of a list of one node.
        shards.put(at, &[at + 1, at])?;
        shards.put(at + 10, &[at + 11, 7, 8, END])?;
        let vertices = 50;
        // The vertex 20 is at unit 1. Its row of edges is empty, like all others.
        Ok(Asks {
            at,
            table: Table::new(shards)?,
            gather: Gather::new(shards)?,
            lists: Lists::new(shards)?,
            tree: Tree::build(shards, 2000, 2, &[(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)])?,
            below: Below::new(shards)?,
            graph: Graph::new(shards, marks, vertices)?,
        })
    }

    fn ask(&self, way: Way, of: usize) -> Outcome {
        let at = self.at;
        match of {
            0 => same!(self.table.chase(way, 3, at)?, at + 1),
            1 => same!(self.gather.gather(way, &[at, at + 1])?, [at + 1, at]),
            2 => same!(self.lists.find(way, at + 10, 7)?, Some(8)),
            3 => {
                for key in [1, 3, 5, 7, 9] {
                    same!(self.tree.get(way, key)?, Some(key + 1));
                }
            }
            4 => same!(self.below.find(way, at..at + 2, 1 << 30)?.count, 4),
            _ => same!(self.graph.bfs(way, 20)?.visited, 1),
        }
        Ok(())
    }
}

on_processes!(operations_go_their_way, runs(3, ways));
