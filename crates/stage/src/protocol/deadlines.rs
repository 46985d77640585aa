//! What is known at a deadline of those who wait, across all streams: who waits for memory that
//! comes, and who for whom in a circle.

use super::coordinator::Coordinator;
use super::stream::{self, Keeping, Member, Stream, Stuck};
use super::{Peer, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most waits that an error names.
const LONGEST_CIRCLE: usize = 16;

impl Coordinator {
    /// Time has passed: ends the waits whose deadline is over, or lets them go on, as those live
    /// for whom they wait.
    pub(super) fn tick(&mut self) {
        let waiting: BTreeSet<Peer> = self.streams.values().flat_map(Stream::waiting).collect();
        let moving = self.whose_memory_moves(&waiting);
        let circles = self.circles(&waiting);
        let eased = self.eased();
        // Where there were no answers left the last time.
        let first = self.first_due.take().unwrap_or(StreamId(0));
        let (before, after) = (self.streams.range(..first), self.streams.range(first..));
        let ids: Vec<StreamId> = after.chain(before).map(|(&id, _)| id).collect();
        for id in ids {
            if self.ledger.answers_left() == 0 {
                self.first_due = Some(id);
                return;
            }
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.tick(&stream::Others {
                memory_moves: moving.contains(&id),
                waiting: &waiting,
                circles: &circles,
                eased: &eased,
                worked: &self.worked,
            });
        }
    }

    /// The processes that have less here when living readers, or ranks that have still to commit,
    /// get on, in whichever stream. Only looked for where one waits for that.
    fn eased(&self) -> BTreeSet<Peer> {
        let streams = || self.streams.iter();
        let mut over = streams().flat_map(|(_, stream)| stream.over_memory());
        if over.next().is_none() {
            return BTreeSet::new();
        }
        let easing = streams().filter(|(_, stream)| stream.eases());
        easing
            .flat_map(|(&id, _)| self.ledger.writers_of(id))
            .collect()
    }

    /// The streams that wait for memory of processes which live and wait for nobody themselves:
    /// these will let go of it, however long they compute. Of the streams whose deadline may be
    /// over; each stream is looked at once for all of them.
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
        let half = self.admission.half_granted();
        let only = |set: &BTreeSet<StreamId>, id| set.iter().all(|other| *other == id);
        let moves = |&(&id, stream): &(&StreamId, &Stream)| {
            only(&half, id) && only(&stuck, id) && stream.moves(true, waiting)
        };
        due.filter(moves).map(|(&id, _)| id).collect()
    }

    /// The `waiting` that wait for each other, each with who waits for whom from it on; see
    /// [`stream`]'s `circles`. Only looked for where a deadline may be over.
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
            let mut stuck: BTreeMap<Peer, Stuck> = BTreeMap::new();
            let before = blocked.len();
            let mut free = BTreeSet::new();
            let over = self.kept_over(&blocked);
            for stream in self.streams.values() {
                for (peer, question) in stream.questions(&blocked, &over) {
                    match question {
                        Some(why) => {
                            stuck.entry(peer).or_insert(why);
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
                && let Some(why) = stuck.get(&next)
            {
                waits.push(self.why_stuck(why));
                next = why.whom.peer;
            }
            (*peer, waits.into())
        };
        blocked.iter().map(from).collect()
    }

    /// For each process in whose way is what it has at the coordinator, and with `None` for all of
    /// them together: a reader of the `blocked` that keeps it, unless somebody else does, who may
    /// let go.
    fn kept_over(&self, blocked: &BTreeSet<Peer>) -> BTreeMap<Option<Peer>, Keeping> {
        let over = self.streams.values().flat_map(Stream::over_memory);
        let whose = over.map(|(peer, more)| match self.ledger.check_own(peer, more) {
            Err(_) => Some(peer),
            Ok(()) => None,
        });
        let whose: BTreeSet<Option<Peer>> = whose.collect();
        let keeping = |whose: &Option<Peer>| {
            let streams = match whose {
                Some(peer) => self.ledger.streams_of(*peer),
                None => self.streams.keys().copied().collect(),
            };
            let streams = streams.iter().filter_map(|id| self.streams.get(id));
            let mut keeping: Option<Keeping> = None;
            for keeps in streams.flat_map(|stream| stream.who_keeps(blocked)) {
                let keeps = keeps?;
                // Another process says more than the one that waits.
                if keeping.is_none_or(|keeping| Some(keeping.peer) == *whose) {
                    keeping = Some(keeps);
                }
            }
            keeping
        };
        whose
            .into_iter()
            .filter_map(|whose| Some((whose, keeping(&whose)?)))
            .collect()
    }

    /// A stuck question, for a person.
    fn why_stuck(&self, stuck: &Stuck) -> String {
        let ((own, who), keeping) = (stuck.who, stuck.whom);
        let (other_id, member) = (keeping.stream, keeping.member);
        let (Some(own), Some(other)) = (self.streams.get(&own), self.streams.get(&other_id)) else {
            return String::new();
        };
        let (who, whom) = (own.name_of(who), other.name_of(member));
        let (name, step) = (other.name(), other.committed());
        match (stuck.who, member) {
            (_, Member::Writer(_)) => {
                format!("{who} waits for {whom} to commit step {step} of {name}")
            }
            ((stream, Member::Writer(_)), Member::Reader(..)) => {
                let own = own.name();
                let what = match stream == other_id {
                    true => String::new(),
                    false => format!(" {name}"),
                };
                format!("{who} waits for room in {own} until {whom} reads{what}")
            }
            ((_, Member::Reader(..)), Member::Reader(..)) => {
                format!("{who} waits for {whom} to read {name} as far")
            }
        }
    }
}
