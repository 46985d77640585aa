//! Operations of moved code on data of several ranks, and the same by a function or by gets:
//! [`crate::mobile`].

use super::mobile::settle;
use crate::control::Command;
use anyhow::{Result, bail, ensure};
use samite::mobile::operation::{END, Gather, Graph, Lists, Shards, Tree, Way};
use samite::mobile::{Mobile, Rights};
use samite::{Fabric, Match, PeerId, Segment, SegmentKey};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

/// The tag of keys.
const KEY: u64 = 18;
/// Words of each segment: 2 MiB, so that they are mapped into the memory of kernels.
const WORDS: u64 = 1 << 18;
/// The grants of lists and tree, of links, of marks.
const GRANTS: [usize; 3] = [3, 4, 5];
/// The address of the head of the list.
const HEAD: u64 = 0;
/// Nodes of the list.
const NODES: u64 = 1024;
/// Places for nodes in each segment, behind the head: 768 KiB, more than a core has near it.
const PLACES: u64 = 1 << 15;
/// The nodes of the tree follow those of the list.
const TREE_BEGIN: u64 = 1 + PLACES * Lists::NODE;
const FAN_OUT: u64 = 16;
/// Pairs of the tree: four levels.
const PAIRS: u64 = 1 << 16;
/// Vertices of the graph, and edges of each.
const VERTICES: u64 = 1 << 14;
const EDGES: u64 = 8;
/// Gathers of different addresses, by turns.
const GATHERS: u64 = 64;

/// The kinds of commands that need these data.
pub(super) const KINDS: [&str; 4] = ["gather", "list", "btree", "bfs"];

/// What the servers have of them.
pub(super) struct Parts(#[expect(dead_code, reason = "keeps the memory")] [Segment; 3]);

/// What rank 0 has.
pub(super) struct Operations {
    gather: Gather,
    lists: Lists,
    tree: Tree,
    graph: Graph,
    shards: Shards,
    /// Vertices that are reached from vertex 0.
    visited: u64,
    /// The operations in mapped memory that have settled ([`settle`]).
    settled: RefCell<BTreeSet<String>>,
}

/// Makes the functions known.
pub(super) fn define(mobile: &Mobile) {
    Gather::serve(mobile);
    Lists::serve(mobile);
    Tree::serve(mobile);
    Graph::serve(mobile);
}

/// Offers the memory of a server to rank 0, and makes its part of the graph.
pub(super) fn offer(mobile: &Mobile, members: &[PeerId], rank: usize) -> Result<Parts> {
    let fabric = mobile.fabric();
    let segments = GRANTS.map(|grant| -> Result<Segment> {
        let segment = fabric.allocate(WORDS * 8)?;
        mobile.grant(grant, segment.bytes(), Rights::Write);
        Ok(segment)
    });
    let [structures, links, marks] = segments;
    let segments = [structures?, links?, marks?];
    let servers = members.len() as u64 - 1;
    let part = Graph::part(VERTICES, servers, rank as u64 - 1, neighbours);
    let part: Vec<u8> = part.iter().flat_map(|word| word.to_le_bytes()).collect();
    segments[1].bytes().write(0, &part);
    for segment in &segments {
        fabric.send(members[0], KEY, &segment.key().to_bytes())?;
    }
    Ok(Parts(segments))
}

/// Returns numbers that look random.
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// Returns the address of a node: nodes are scattered over all places of all servers.
fn place(node: u64, servers: u64) -> u64 {
    // An odd factor: no two nodes have one place.
    let at = node.wrapping_mul(0x9e37_79b9_7f4a_7c15) % PLACES;
    mixed(node) % servers * WORDS + 1 + at * Lists::NODE
}

fn neighbours(vertex: u64) -> impl Iterator<Item = u64> {
    (0..EDGES).map(move |edge| mixed(vertex * EDGES + edge) % VERTICES)
}

fn visited() -> u64 {
    let mut seen = vec![false; VERTICES as usize];
    let mut waiting = vec![0];
    seen[0] = true;
    while let Some(vertex) = waiting.pop() {
        for neighbour in neighbours(vertex) {
            if !std::mem::replace(&mut seen[neighbour as usize], true) {
                waiting.push(neighbour);
            }
        }
    }
    seen.iter().filter(|seen| **seen).count() as u64
}

impl Operations {
    /// Takes what the servers offer, and builds list and tree.
    pub(super) fn new(mobile: &Mobile, members: &[PeerId]) -> Result<Operations> {
        let fabric: &Fabric = mobile.fabric();
        let mut keys = [const { Vec::new() }; 3];
        for server in &members[1..] {
            for keys in &mut keys {
                let mut key = [0; 24];
                fabric.recv(Match::from(*server, KEY), &mut key)?;
                keys.push(SegmentKey::from_bytes(&key));
            }
        }
        let shards = |at: usize| Shards::new(mobile, 1, GRANTS[at], WORDS, &keys[at]);
        let (structures, links, marks) = (shards(0)?, shards(1)?, shards(2)?);
        let servers = members.len() as u64 - 1;
        let place = |node: u64| match node < NODES {
            true => place(node, servers),
            false => END,
        };
        structures.put(HEAD, &[place(0)])?;
        for node in 0..NODES {
            structures.put(place(node), &[node, mixed(node), place(node + 1)])?;
        }
        let pairs: Vec<(u64, u64)> = (0..PAIRS).map(|key| (3 * key, mixed(key))).collect();
        Ok(Operations {
            gather: Gather::new(&structures)?,
            lists: Lists::new(&structures)?,
            tree: Tree::build(&structures, TREE_BEGIN, FAN_OUT, &pairs)?,
            graph: Graph::new(&links, &marks, VERTICES)?,
            shards: structures,
            visited: visited(),
            settled: RefCell::default(),
        })
    }

    /// Runs `mobile KIND DELAY SIZE ITERS WARMUP`.
    pub(super) fn ask(&self, way: Way, is_auto: bool, command: &Command) -> Result<f64> {
        let (size, iters) = (command.number(3)?, command.number(4)?);
        let kind = command.word(1);
        match kind {
            "btree" => ensure!(size == PAIRS, "the tree has {PAIRS} pairs"),
            "bfs" => ensure!(size == VERTICES, "the graph has {VERTICES} vertices"),
            _ => {}
        }
        let run = Run {
            way,
            is_auto,
            size,
            gathers: match kind {
                "gather" => (0..GATHERS).map(|at| self.addresses(size, at)).collect(),
                _ => Vec::new(),
            },
        };
        let is_mapped = command.number(2)? == 0;
        if is_mapped && self.settled.borrow_mut().insert(kind.to_owned()) {
            let mut number = 0;
            settle(|| {
                number += 1;
                self.once(&run, kind, number)
            })?;
        }
        // The first ones bring the code to all servers, and try all ways.
        let warmup = command.number(5)?.clamp(12, 100);
        for number in 0..warmup {
            let found = self.once(&run, kind, number)?;
            run.verify(number, found, self.visited)?;
        }
        let (begin, mut last) = (Instant::now(), None);
        for number in 0..iters {
            last = Some((number, self.once(&run, kind, number)?));
        }
        let took = begin.elapsed().as_secs_f64();
        if let Some((number, found)) = last {
            run.verify(number, found, self.visited)?;
        }
        Ok(took)
    }

    /// The addresses of a gather: those of nodes of the list, whose first words are their numbers.
    fn addresses(&self, size: u64, number: u64) -> Vec<u64> {
        let shards = self.shards.units().len() as u64;
        let nodes = (0..size).map(|at| gathered(at, number));
        nodes.map(|node| place(node, shards)).collect()
    }

    fn once(&self, run: &Run, kind: &str, number: u64) -> Result<Found> {
        let (way, is_auto) = (run.way, run.is_auto);
        Ok(match kind {
            "gather" => {
                let addresses = &run.gathers[(number % GATHERS) as usize];
                Found::Words(match is_auto {
                    true => self.gather.gather_auto(addresses)?,
                    false => self.gather.gather(way, addresses)?,
                })
            }
            "list" => Found::Node(match is_auto {
                true => self.lists.find_auto(HEAD, run.size - 1)?,
                false => self.lists.find(way, HEAD, run.size - 1)?,
            }),
            "btree" => Found::Pair(match is_auto {
                true => self.tree.get_auto(3 * asked(number))?,
                false => self.tree.get(way, 3 * asked(number))?,
            }),
            "bfs" => Found::Visited(match is_auto {
                true => self.graph.bfs_auto(0)?.visited,
                false => self.graph.bfs(way, 0)?.visited,
            }),
            other => bail!("there is no operation `{other}`"),
        })
    }
}

/// Returns the node that comes at this place of a gather.
fn gathered(at: u64, number: u64) -> u64 {
    (at + number) % NODES
}

/// Returns the pair whose key is looked up.
fn asked(number: u64) -> u64 {
    mixed(number) % PAIRS
}

/// What is made before the clock starts.
struct Run {
    way: Way,
    is_auto: bool,
    size: u64,
    gathers: Vec<Vec<u64>>,
}

/// What an operation has found, verified when the clock has stopped.
#[derive(Debug)]
enum Found {
    Words(Vec<u64>),
    Node(Option<u64>),
    Pair(Option<u64>),
    Visited(u64),
}

impl Run {
    fn verify(&self, number: u64, found: Found, visited: u64) -> Result<()> {
        let is_right = match &found {
            Found::Words(words) => {
                let right = (0..self.size).map(|at| gathered(at, number % GATHERS));
                words.iter().copied().eq(right)
            }
            Found::Node(value) => *value == Some(mixed(self.size - 1)),
            Found::Pair(value) => *value == Some(mixed(asked(number))),
            Found::Visited(count) => *count == visited,
        };
        ensure!(is_right, "a wrong result: {found:?}");
        Ok(())
    }
}
