//! A breadth-first search through a graph whose vertices are spread over units.
//!
//! # A step
//! The caller sends each unit *candidates* of a level: vertices of that unit that have an edge from
//! the level before. The unit gives those that have no mark of this run their mark, and replies
//! with the candidates of the next level: neighbours at other units, and its own that have no mark.
//! So that it names these once, it marks them as *announced*. A reply has at most 64 KiB, and a
//! call looks at 16,384 edges; then it replies with where it has stopped, and the caller sends the
//! rest once more. Candidates of all units, in pieces, are under way at once.
//!
//! # Invariants
//! G1 A vertex gets its mark from the first candidate of it, and its edges are followed from that
//!    candidate on, perhaps by several calls. Levels are sent one after the other, so the mark has
//!    the least level.
//! G2 An announced vertex is among the candidates of the next level, unless its run has failed.
//! G3 Runs have numbers that rise (the first word of the first unit's marks). A mark of an older
//!    run is as good as none. A kernel that finds a mark of a newer run fails.

use super::shards::{
    Forms, Seen, bytes_of, failed, no_reply, self_bounded_limits, start_at, words_of,
};
use super::{Shards, Way};
use crate::mobile::{Mobile, Registered};
use crate::{Context, Error, Function, Result, Trap};

/// The name of the function.
const FUNCTION: &str = "samite.graph";
/// Bytes of a payload before its candidates.
const HEAD: usize = 40;
/// Words of a reply before its candidates.
const REPLY_HEAD: usize = 3;
/// Candidates of a call: what a call does not get through is sent again.
const PIECE: usize = 1024;
/// The most calls in flight: to one unit, and in all. Their replies, of at most 64 KiB, are a
/// quarter of what a process may leave waiting.
const CALLS: usize = 64;
const CALLS_MAX: usize = 1 << 8;
/// Edges and candidates at which a call looks: about 2 ms, if none is in a cache.
const BUDGET: u32 = 1 << 14;
/// Duplicates are removed when the next level has twice this many candidates.
const NEXT: usize = 1 << 20;
/// In a mark: the vertex has been named as a candidate, and not visited.
const ANNOUNCED: u64 = 1 << 31;
/// Vertices that the caller works on at once, by gets.
const GETS: usize = 1 << 12;

/// A graph in [`Shards`], as compressed rows, and the marks of searches through it.
///
/// ```text
/// vertex v of n     at the unit v / each, where each = n / units, rounded up; index v % each
/// links of a unit   0 .. each      where the edges of each vertex begin, counted from `each + 1`
///                   each           where the last edges end
///                   each + 1 ..    the edges: numbers of vertices, anywhere
/// marks of a unit   0              in the first unit: the number of runs so far
///                   1 .. each + 1  run (bits 32..64), announced (31), level (0..31)
/// ```
///
/// Links are granted for reading, marks for writing. Marks begin as zeroes, and are never cleared.
/// [`Graph::part`] makes the links of a unit.
///
/// A level costs `2 L` by a function or moved code, where L is the one-way delay between units, and
/// the work is shared by all units. By gets it costs `6 L` (marks, beginnings of edges, edges), and
/// all of the graph that is reached goes through the caller.
#[derive(Debug)]
pub struct Graph {
    links: Shards,
    marks: Shards,
    vertices: u64,
    each: u64,
    forms: Forms,
}

/// What a search has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The number of the run.
    pub run: u32,
    /// How many vertices it has visited, with the source.
    pub visited: u64,
    /// How many levels they have, with that of the source.
    pub levels: u32,
}

/// Some candidates at one unit, and where the first one goes on.
#[derive(Debug)]
struct Piece {
    shard: usize,
    goes_on: u64,
    vertices: Vec<u64>,
}

impl Graph {
    /// Describes a graph of so many vertices by its links and its marks, at the same units. Each of
    /// the units calls [`Graph::serve`] for calls of the function. Local.
    ///
    /// # Errors
    /// [`Error::BadLayout`] if they are not at the same units, or too short; those of
    /// [`Mobile::register`].
    pub fn new(links: &Shards, marks: &Shards, vertices: u64) -> Result<Graph> {
        let each = vertices.div_ceil(links.count() as u64);
        let fits = links.words() > each && marks.words() > each && each > 0;
        if links.units() != marks.units() || !fits {
            return Err(Error::BadLayout(format!(
                "a graph of {vertices} vertices: units {:?} have {} words of links, units {:?} \
                 have {} of marks",
                links.units(),
                links.words(),
                marks.units(),
                marks.words()
            )));
        }
        Ok(Graph {
            forms: Forms::new(links.mobile(), FUNCTION, include_str!("graph.wat"))?,
            links: links.clone(),
            marks: marks.clone(),
            vertices,
            each,
        })
    }

    /// Makes the function known by which others may search through vertices of this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(step));
    }

    /// Returns the links of the `shard`-th of so many units, from the neighbours of each vertex of
    /// a graph. Local.
    pub fn part<N: IntoIterator<Item = u64>>(
        vertices: u64,
        units: u64,
        shard: u64,
        neighbours: impl Fn(u64) -> N,
    ) -> Vec<u64> {
        let each = vertices.div_ceil(units.max(1));
        let (mut begins, mut edges) = (vec![0], Vec::new());
        for vertex in shard * each..(shard + 1) * each {
            if vertex < vertices {
                edges.extend(neighbours(vertex));
            }
            begins.push(edges.len() as u64);
        }
        begins.extend(edges);
        begins
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u64 {
        self.vertices
    }

    /// Visits all vertices that can be reached from `source`, level by level, and marks them.
    /// Completion: the result; then all marks have been written.
    ///
    /// One search of a graph runs at a time: the program sees to it. If two run, the older one
    /// fails as soon as it finds a mark of the newer one, which may also have been marked over by
    /// then: it is to be repeated.
    ///
    /// After a failure, an unknown part of the vertices has marks of this run, and calls of it may
    /// still add some. No mark of it is taken for one of a later run, which is not disturbed: the
    /// search can be repeated at once. There is one exception: if a put of a search by gets was
    /// late, it may still replace a mark of a later run, whose result may then be wrong. After a
    /// timeout by gets, go on with new marks.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if there is no such vertex, or by gets, an edge leads to none;
    /// [`Error::Damaged`] if marks or links are no such; by calls, both are [`Error::Failed`] (2, 3
    /// and 4, [`super`]), as is the loss of a unit. [`Error::Late`].
    pub fn bfs(&self, way: Way, source: u64) -> Result<Reached> {
        let mut level = vec![self.vertex(source)?];
        let mut reached = Reached {
            run: self.begin_run()?,
            visited: 0,
            levels: 0,
        };
        // Each level finds a vertex at least.
        for number in 0..ANNOUNCED.min(self.vertices + 1) as u32 {
            let (found, next) = match self.forms.of(way) {
                None => self.by_gets(reached.run, number, &level)?,
                Some(code) => self.by_calls(code, reached.run, number, level)?,
            };
            if found > 0 {
                reached.visited = reached.visited.saturating_add(found);
                reached.levels = number + 1;
            }
            if next.is_empty() {
                return Ok(reached);
            }
            level = next;
        }
        Err(Error::Damaged("a graph with too many levels".into()))
    }

    /// As [`Graph::bfs`], in the way that has been the cheapest so far.
    ///
    /// # Errors
    /// As [`Graph::bfs`].
    pub fn bfs_auto(&self, source: u64) -> Result<Reached> {
        self.forms.run(1, |way| self.bfs(way, source))
    }

    /// Returns the way that `bfs_auto` prefers; `None` while it still tries them.
    pub fn best(&self) -> Option<Way> {
        self.forms.auto.best(1)
    }

    /// Returns the level of each vertex in a run; `None` if the run has not reached it. Reads all
    /// marks, so no newer run may have begun.
    ///
    /// # Errors
    /// Those of [`Shards::get`].
    pub fn levels(&self, reached: &Reached) -> Result<Vec<Option<u32>>> {
        let mut levels = Vec::new();
        let mut marks = vec![0; self.each as usize];
        for shard in 0..self.marks.count() as u64 {
            self.marks.get(shard * self.marks.words() + 1, &mut marks)?;
            let of_run = |mark: &u64| {
                let is_visited = *mark >> 32 == u64::from(reached.run) && mark & ANNOUNCED == 0;
                is_visited.then_some(*mark as u32)
            };
            levels.extend(marks.iter().map(of_run));
        }
        levels.truncate(self.vertices as usize);
        Ok(levels)
    }

    /// Returns a vertex, if there is one of this number.
    fn vertex(&self, vertex: u64) -> Result<u64> {
        match vertex < self.vertices {
            true => Ok(vertex),
            false => Err(Error::BadAddress {
                address: vertex,
                count: 1,
                words: self.each,
                units: self.links.count() as u64,
            }),
        }
    }

    /// Returns the number of a new run.
    fn begin_run(&self) -> Result<u32> {
        let before = self.marks.remote(0).fetch_add(0, 1)?;
        let run = u32::try_from(before)
            .ok()
            .and_then(|run| run.checked_add(1));
        run.ok_or_else(|| Error::Damaged(format!("{before} is no number of runs")))
    }

    /// Sends candidates to their units; returns how many vertices were found, and the candidates of
    /// the next level.
    fn by_calls(
        &self,
        code: &Registered,
        run: u32,
        level: u32,
        mut vertices: Vec<u64>,
    ) -> Result<(u64, Vec<u64>)> {
        vertices.sort_unstable();
        vertices.dedup();
        let mut waiting: Vec<Vec<Piece>> = Vec::new();
        waiting.resize_with(self.links.count(), Vec::new);
        for of_unit in vertices.chunk_by(|one, two| one / self.each == two / self.each) {
            let shard = (of_unit[0] / self.each) as usize;
            let most = self.links.words_of_payload(shard, HEAD)?.min(PIECE);
            waiting[shard].extend(of_unit.chunks(most).map(|vertices| Piece {
                shard,
                goes_on: 0,
                vertices: vertices.to_vec(),
            }));
        }
        let (mut found, mut next, mut most) = (0_u64, Vec::new(), 2 * NEXT);
        let mut first = 0;
        loop {
            let busy = waiting.iter().filter(|pieces| !pieces.is_empty()).count();
            if busy == 0 {
                break;
            }
            let mut calls = Vec::new();
            // All units have calls, or, if they are too many, take turns.
            let share = (CALLS_MAX / busy).clamp(1, CALLS);
            first = (first + CALLS_MAX) % waiting.len();
            let (before, from) = waiting.split_at_mut(first);
            for pieces in from.iter_mut().chain(before) {
                let room = share.min(CALLS_MAX - calls.len());
                for piece in pieces.split_off(pieces.len().saturating_sub(room)) {
                    let payload = self.payload(run, level, &piece)?;
                    let shard = piece.shard;
                    let call = start_at(&self.links, shard, code, &payload, self_bounded_limits())?;
                    calls.push((piece, call));
                }
            }
            for (piece, call) in calls {
                let reply = call.wait()?;
                let mut words = words_of(&reply);
                let head = (words.next(), words.next(), words.next());
                let (Some(done), Some(goes_on), Some(fresh)) = head else {
                    return Err(no_reply(&reply));
                };
                found = found.saturating_add(fresh);
                for vertex in words {
                    next.push(self.vertex(vertex)?);
                }
                if next.len() > most {
                    // The same vertex may have been named often.
                    next.sort_unstable();
                    next.dedup();
                    most = 2 * next.len().max(NEXT);
                }
                // A call gets through a candidate, or some of its edges.
                if done == 0 && goes_on <= piece.goes_on {
                    return Err(no_reply(&reply));
                }
                let rest = usize::try_from(done).ok();
                let rest = rest.and_then(|done| piece.vertices.get(done..));
                let vertices = rest.ok_or_else(|| no_reply(&reply))?.to_vec();
                if !vertices.is_empty() {
                    let shard = piece.shard;
                    waiting[shard].push(Piece {
                        shard,
                        goes_on,
                        vertices,
                    });
                }
            }
        }
        Ok((found, next))
    }

    fn payload(&self, run: u32, level: u32, piece: &Piece) -> Result<Vec<u8>> {
        let bytes = REPLY_HEAD * 8;
        let room = self.links.words_of_payload(piece.shard, bytes)? as u32;
        let mut payload = self.links.payload(self.each, 24 + piece.vertices.len() * 8);
        for half in [u32::from(self.marks.grant()), run, level, room] {
            payload.extend_from_slice(&half.to_le_bytes());
        }
        payload.extend_from_slice(&piece.goes_on.to_le_bytes());
        payload.extend_from_slice(&bytes_of(&piece.vertices));
        Ok(payload.into_vec())
    }

    /// Does what `by_calls` does, by gets and puts.
    fn by_gets(&self, run: u32, level: u32, vertices: &[u64]) -> Result<(u64, Vec<u64>)> {
        let (mut found, mut next) = (0, Vec::new());
        for some in vertices.chunks(GETS) {
            let marks: Vec<u64> = some.iter().map(|vertex| self.mark_of(*vertex)).collect();
            let seen = self.marks.fetch(1, &marks)?;
            let mut fresh = Vec::new();
            for (vertex, mark) in some.iter().zip(seen) {
                if mark >> 32 > u64::from(run) {
                    return Err(Error::Damaged("a newer run has begun".into()));
                }
                if mark >> 32 != u64::from(run) {
                    fresh.push(*vertex);
                }
            }
            let mark = u64::from(run) << 32 | u64::from(level);
            let puts = fresh.iter().map(|vertex| {
                let (shard, index) = self.marks.place(self.mark_of(*vertex), 1)?;
                Ok(self
                    .marks
                    .remote(shard)
                    .put_nb(index * 8, &mark.to_le_bytes())?)
            });
            let puts: Vec<Result<_>> = puts.collect();
            let neighbours = self.neighbours(&fresh);
            // All puts end before an error is returned: later ones would disturb the next run.
            let mut ended = Ok(());
            for put in puts {
                let waited = put.and_then(|put| Ok(put.wait()?));
                ended = ended.and(waited.map(drop));
            }
            ended?;
            next.extend(neighbours?);
            found += fresh.len() as u64;
        }
        next.sort_unstable();
        next.dedup();
        Ok((found, next))
    }

    /// Returns the address of the mark of a vertex.
    fn mark_of(&self, vertex: u64) -> u64 {
        vertex / self.each * self.marks.words() + 1 + vertex % self.each
    }

    /// Returns all neighbours of these vertices, by gets.
    fn neighbours(&self, vertices: &[u64]) -> Result<Vec<u64>> {
        let words = self.links.words();
        let row = |vertex: &u64| vertex / self.each * words + vertex % self.each;
        let rows: Vec<u64> = vertices.iter().map(row).collect();
        let ends = self.links.fetch(2, &rows)?;
        let (mut gets, mut left) = (Vec::new(), words * self.links.count() as u64);
        for (vertex, ends) in vertices.iter().zip(ends.chunks_exact(2)) {
            let count = ends[1].checked_sub(ends[0]);
            let count = count.filter(|_| ends[1] < words - self.each);
            // Rows that overlap would be more than there are.
            let rest = count.and_then(|count| Some((count, left.checked_sub(count)?)));
            let Some((count, rest)) = rest else {
                return Err(Error::Damaged(format!(
                    "vertex {vertex} has no row of edges"
                )));
            };
            left = rest;
            if count > 0 {
                let first = vertex / self.each * words + self.each + 1 + ends[0];
                let (shard, index) = self.links.place(first, count)?;
                gets.push(self.links.remote(shard).get_nb(index * 8, count * 8)?);
            }
        }
        let mut neighbours = Vec::new();
        for got in gets {
            for vertex in words_of(&got.wait()?) {
                neighbours.push(self.vertex(vertex)?);
            }
        }
        Ok(neighbours)
    }
}

/// The function: what `graph.wat` does.
fn step(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let (seen, [place, limits, mut goes_on]) = Seen::decode(payload)?;
    let (each, me) = (seen.words, context.me());
    let (marks, run) = (place as u32, place >> 32);
    let (level, room) = (limits & 0xffff_ffff, (limits >> 32) as usize);
    let mark = |context: &Context, index: u64| {
        let mark = context.load(marks, (index + 1).saturating_mul(8))?;
        match mark >> 32 > run {
            true => Err(failed(4, "a newer run has begun")),
            false => Ok(mark),
        }
    };
    let set_mark = |context: &Context, index: u64, mark: u64| {
        context.store(marks, (index + 1).saturating_mul(8), run << 32 | mark)
    };
    let outside = || failed(2, "an address outside of the shards");
    let mut reply = vec![0; REPLY_HEAD];
    let (mut done, mut found, mut budget) = (0, 0_u64, BUDGET);
    'full: for candidate in words_of(&payload[HEAD..]) {
        if budget == 0 {
            break;
        }
        budget -= 1;
        let index = seen.index(me, candidate).ok_or_else(outside)?;
        if goes_on == 0 {
            let mark = mark(context, index)?;
            if mark >> 32 == run && mark & ANNOUNCED == 0 {
                done += 1;
                continue;
            }
            set_mark(context, index, level)?;
            found += 1;
            goes_on = 1;
        }
        let mut edge = seen.load(context, index)?.saturating_add(goes_on - 1);
        let end = seen.load(context, index + 1)?;
        while edge < end {
            if reply.len() == REPLY_HEAD + room || budget == 0 {
                break 'full;
            }
            budget -= 1;
            let vertex = seen.load(context, each.saturating_add(1).saturating_add(edge))?;
            seen.unit(vertex)?;
            (edge, goes_on) = (edge + 1, goes_on + 1);
            // A neighbour at this unit is announced once.
            if let Some(index) = seen.index(me, vertex) {
                if mark(context, index)? >> 32 == run {
                    continue;
                }
                set_mark(context, index, ANNOUNCED | level)?;
            }
            reply.push(vertex);
        }
        goes_on = 0;
        done += 1;
    }
    (reply[0], reply[1], reply[2]) = (done, goes_on, found);
    context.reply(&bytes_of(&reply))
}
