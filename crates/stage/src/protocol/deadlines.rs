//! What is known at a deadline of those who wait, across all streams: who waits for memory that comes, and who for whom in a circle.

use super::steward::Steward;
use super::stream::{self, Stream, Stuck};
use super::{Peer, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most waits that an error names.
const LONGEST_CIRCLE: usize = 16;

impl Steward {
    /// Time has passed: ends the waits whose deadline is over, or lets them go on, as those live for whom they wait.
    pub(super) fn tick(&mut self) {
        let waiting: BTreeSet<Peer> = self.streams.values().flat_map(Stream::waiting).collect();
        let moving = self.whose_memory_moves(&waiting);
        let circles = self.circles(&waiting);
        let eased = self.eased(&waiting);
        for (id, stream) in &mut self.streams {
            stream.tick(&stream::Others {
                memory_moves: moving.contains(id),
                waiting: &waiting,
                circles: &circles,
                eased: &eased,
                worked: &self.worked,
            });
        }
    }

    /// The processes of which readers that live let steps go, in whichever stream; only looked for where one waits for that.
    fn eased(&self, waiting: &BTreeSet<Peer>) -> BTreeSet<Peer> {
        let streams = || self.streams.values();
        match streams().any(Stream::is_over_memory) {
            true => streams().flat_map(|stream| stream.eases(waiting)).collect(),
            false => BTreeSet::new(),
        }
    }

    /// The streams that wait for memory of processes which live and wait for nobody themselves: these will let go of it, however long
    /// they compute. Of the streams whose deadline may be over; each stream is looked at once for all of them.
    fn whose_memory_moves(&self, waiting: &BTreeSet<Peer>) -> BTreeSet<StreamId> {
        let due = self.streams.iter().filter(|(_, stream)| {
            let is_due = stream.wake_at().is_some_and(|wake| wake <= self.now);
            is_due && stream.wants_memory()
        });
        let mut due = due.peekable();
        if due.peek().is_none() {
            return BTreeSet::new();
        }
        let streams = self.streams.iter();
        let stuck = streams.filter(|(_, stream)| !stream.moves(false, waiting));
        let stuck: BTreeSet<StreamId> = stuck.map(|(&id, _)| id).collect();
        let half = self.governor.half_granted();
        let only = |set: &BTreeSet<StreamId>, id| set.iter().all(|other| *other == id);
        let moves = |&(&id, stream): &(&StreamId, &Stream)| {
            only(&half, id) && only(&stuck, id) && stream.moves(true, waiting)
        };
        due.filter(moves).map(|(&id, _)| id).collect()
    }

    /// The `waiting` that wait for each other, each with who waits for whom from it on; see [`stream`]'s `circles`. Only looked for
    /// where a deadline may be over.
    fn circles(&self, waiting: &BTreeSet<Peer>) -> BTreeMap<Peer, Arc<[String]>> {
        let is_due = |stream: &Stream| stream.wake_at().is_some_and(|wake| wake <= self.now);
        if waiting.is_empty() || !self.streams.values().any(is_due) {
            return BTreeMap::new();
        }
        let mut blocked = waiting.clone();
        for pending in &self.pending {
            blocked.remove(&pending.from);
        }
        let stuck = loop {
            let mut stuck: BTreeMap<Peer, (&Stream, Stuck)> = BTreeMap::new();
            let before = blocked.len();
            let mut free = BTreeSet::new();
            for stream in self.streams.values() {
                for (peer, question) in stream.questions(&blocked) {
                    match question {
                        Some(why) => {
                            stuck.entry(peer).or_insert((stream, why));
                        }
                        None => {
                            free.insert(peer);
                        }
                    }
                }
            }
            blocked.retain(|peer| stuck.contains_key(peer) && !free.contains(peer));
            if blocked.len() == before {
                break stuck;
            }
        };
        let from = |peer: &Peer| {
            let (mut waits, mut seen) = (Vec::new(), BTreeSet::new());
            let mut next = *peer;
            while seen.insert(next)
                && waits.len() < LONGEST_CIRCLE
                && let Some((stream, why)) = stuck.get(&next)
            {
                waits.push(stream.why_stuck(*why));
                next = why.peer;
            }
            (*peer, waits.into())
        };
        blocked.iter().map(from).collect()
    }
}
