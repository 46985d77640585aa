//! What the coordinator knows at a deadline across all streams: whether the memory that a request
//! waits for will be freed, and which processes wait for each other in a circle.

use super::coordinator::Coordinator;
use super::stream::{self, Keeping, Member, Stream, Stuck};
use super::{Peer, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of waits that an error names.
const LONGEST_CIRCLE: usize = 16;

impl Coordinator {
    /// Ends the waits whose deadline has passed, or extends them if the processes that they wait
    /// for are alive.
    pub(super) fn tick(&mut self) {
        // A process that waits does nothing else, unless it has other threads.
        let waiting = self.streams.values().flat_map(Stream::waiting);
        let waiting = waiting.filter(|peer| !self.threaded.contains(peer));
        let waiting: BTreeSet<Peer> = waiting.collect();
        let moving = self.whose_memory_moves(&waiting);
        let circles = self.circles(&waiting);
        let eased = self.eased();
        // Begins where the last tick ran out of answers.
        let first = self.first_due.take().unwrap_or(StreamId(0));
        let left = self.left.iter().filter(|(_, left)| left.has_answers());
        let left = left.map(|(&id, _)| id);
        let ids: BTreeSet<StreamId> = self.streams.keys().copied().chain(left).collect();
        let (before, after) = (ids.range(..first), ids.range(first..));
        let ids: Vec<StreamId> = after.chain(before).copied().collect();
        for id in ids {
            if self.ledger.answers_left() == 0 {
                self.first_due = Some(id);
                return;
            }
            let Some(stream) = self.streams.get_mut(&id) else {
                self.tell_left(id);
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

    /// Returns the processes whose use of the coordinator's memory will fall when living readers,
    /// or ranks that have yet to commit, make progress in any stream. Computed only if a request
    /// waits for that.
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

    /// Returns the streams that wait for memory of processes which are alive and do not wait
    /// themselves: these will free it, however long they compute. Considers only streams whose
    /// deadline may have passed, and looks at each stream once.
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
        let half = self.streams.iter();
        let half = half.filter(|(_, stream)| stream.is_half_granted());
        let half: BTreeSet<StreamId> = half.map(|(&id, _)| id).collect();
        // A stream without memory where a request waits can free none there.
        let frees = |user: StreamId, id: StreamId, stream: &Stream| match user == id {
            true => stream.moves(true, waiting),
            false => !half.contains(&user) && !stuck.contains(&user),
        };
        let moves = |&(&id, stream): &(&StreamId, &Stream)| {
            stream.short_at().into_iter().all(|at| {
                let users = at.map_or_else(|| vec![id], |at| self.admission.users_of(at));
                users.into_iter().all(|user| frees(user, id, stream))
            })
        };
        due.filter(moves).map(|(&id, _)| id).collect()
    }

    /// Returns the processes of `waiting` that wait for each other, each with the chain of waits
    /// that starts at it; see [`stream`]'s `circles`. Computed only if a deadline may have passed.
    fn circles(&self, waiting: &BTreeSet<Peer>) -> BTreeMap<Peer, Arc<[String]>> {
        let is_due = |stream: &Stream| stream.wake_at().is_some_and(|wake| wake <= self.now);
        if waiting.is_empty() || !self.streams.values().any(is_due) {
            return BTreeMap::new();
        }
        // A process that waits to open a stream may be let in, so it is not blocked.
        let mut blocked = waiting.clone();
        for pending in &self.pending {
            blocked.remove(&pending.from);
        }
        // Removes processes that wait for an unblocked one until only circles remain.
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
        // Follows the waits from a process until they close the circle.
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

    /// For each process that has too much of the coordinator's memory, and with `None` for all of
    /// them together: returns a reader of `blocked` that keeps steps there, unless another reader,
    /// which is not blocked, may release them.
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
                // Naming another process is more useful than naming the one that waits.
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

    /// Describes a blocked request to the user.
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
                format!("{who} waits for capacity in {own} until {whom} reads{what}")
            }
            ((_, Member::Reader(..)), Member::Reader(..)) => {
                format!("{who} waits for {whom} to read {name} as far")
            }
        }
    }
}
