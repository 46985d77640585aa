//! Whether those for whom somebody waits wait themselves, so that nobody ever goes on: processes in
//! a circle.
//!
//! A process that waits does nothing else until it is answered. So a question is *stuck*, for a set
//! of processes that wait, when no answer to it is possible as long as none of them does anything,
//! whatever all others do. [`Coordinator`](crate::protocol::Coordinator) begins with all processes
//! that wait, and takes those out of the set that have a question which is not stuck, until none of
//! those is left: the others wait for each other.
//!
//! Not counted as stuck are waits that end by themselves: for memory and for block stores, which
//! have deadlines; for ranks that are away, which have leases; and those of processes that give up
//! after a time-out of their own, and may go on with something else. Nor those that only steps of
//! another size could end, where the writer computes: what it writes next may be smaller.

use super::Stream;
use super::groups::{Group, Rank, ReaderState};
use super::writers::{Stage, WriterState};
use crate::protocol::{Peer, Policy, Step, StreamId};
use std::collections::{BTreeMap, BTreeSet};

/// Which rank of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocol) enum Member {
    Writer(usize),
    Reader(u64, usize),
}

/// Who keeps a question from its answer: a rank of that stream, and its process.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Keeping {
    pub(in crate::protocol) stream: StreamId,
    pub(in crate::protocol) member: Member,
    pub(in crate::protocol) peer: Peer,
}

/// A question that nobody can answer as long as another process waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Stuck {
    pub(in crate::protocol) who: (StreamId, Member),
    pub(in crate::protocol) whom: Keeping,
}

impl Stream {
    /// Every question that waits, with the process that asks; and whether it is stuck as long as
    /// all of the `blocked` wait. `over`: who keeps what a process has too much of at the
    /// coordinator, or what all of them have.
    pub(in crate::protocol) fn questions(
        &self,
        blocked: &BTreeSet<Peer>,
        over: &BTreeMap<Option<Peer>, Keeping>,
    ) -> Vec<(Peer, Option<Stuck>)> {
        let commits = self.kept_from_commit(blocked);
        let mut reads = None;
        let mut questions = Vec::new();
        for (rank, state) in self.writers.ranks.iter().enumerate() {
            let Some(asking) = &state.asking else {
                continue;
            };
            if self.too_much(rank).is_some() {
                let cost = self.cost_to_begin(rank, asking.wants.len());
                let own = self
                    .store
                    .costs
                    .ledger
                    .check_own(asking.peer, cost)
                    .is_err();
                let whom = over.get(&own.then_some(asking.peer)).copied();
                let who = (self.id, Member::Writer(rank));
                let stuck = whom.map(|whom| Stuck { who, whom });
                questions.push((asking.peer, stuck.filter(|_| !state.gives_up)));
                continue;
            }
            let whom = match asking.stage {
                Stage::Queued if asking.begin > Some(self.store.committed) => commits,
                Stage::Queued => *reads.get_or_insert_with(|| self.kept_full(blocked)),
                Stage::Asked(..) | Stage::Allocating(..) => None,
            };
            let whom = whom.filter(|_| !state.gives_up);
            questions.push((asking.peer, self.stuck(Member::Writer(rank), whom)));
        }
        let stays = self.end.is_some() || commits.is_some();
        for (&number, group) in &self.groups.groups {
            let mut ahead = None;
            for (rank, state) in group.ranks.iter().enumerate() {
                let ReaderState::Here(peer) = state.place else {
                    continue;
                };
                for asked in &state.waiting {
                    let wanted = group.wanted(rank, asked.at);
                    let whom = match wanted.filter(|step| self.store.steps.contains_key(step)) {
                        None => commits,
                        Some(step) if asked.at.is_none() && group.queue.first() == Some(step) => {
                            let ahead = ahead.get_or_insert_with(|| {
                                self.kept_from_next((number, group), step, blocked, stays)
                            });
                            *ahead
                        }
                        // It comes, or has a deadline.
                        Some(_) => None,
                    };
                    let whom = whom.filter(|_| !state.gives_up);
                    questions.push((peer, self.stuck(Member::Reader(number, rank), whom)));
                }
            }
        }
        let watching = self.watches.watches.values();
        let watching = watching.filter(|watch| !watch.waiting.is_empty());
        questions.extend(watching.map(|watch| (watch.peer, None)));
        questions
    }

    fn stuck(&self, who: Member, whom: Option<Member>) -> Option<Stuck> {
        let whom = whom?;
        let peer = match whom {
            Member::Writer(rank) => match self.writers.ranks.get(rank)?.place {
                WriterState::Here(peer) => peer,
                WriterState::Away(_) | WriterState::Closed => return None,
            },
            Member::Reader(group, rank) => {
                match self.groups.groups.get(&group)?.ranks.get(rank)?.place {
                    ReaderState::Here(peer) => peer,
                    _ => return None,
                }
            }
        };
        let (stream, member) = (self.id, whom);
        Some(Stuck {
            who: (self.id, who),
            whom: Keeping {
                stream,
                member,
                peer,
            },
        })
    }

    /// For each rank that has steps still to take, or to let go of: who it is, if it is one of the
    /// `blocked`. The others may go on. The same of a rank without which the open step never
    /// becomes whole, where that would make room.
    pub(in crate::protocol) fn who_keeps(
        &self,
        blocked: &BTreeSet<Peer>,
    ) -> impl Iterator<Item = Option<Keeping>> {
        let expected = self
            .groups
            .groups
            .values()
            .filter(|group| group.is_expected());
        let expected = expected
            .filter(|group| group.queue.steps() > 0)
            .map(|_| None);
        let groups = self.groups.groups.iter();
        let ranks = groups.flat_map(move |(&number, group)| {
            let ranks = group.ranks.iter().enumerate();
            let having = ranks.filter(|(_, rank)| group.has(rank));
            having.map(move |(rank, state)| match state.place {
                ReaderState::Here(peer) if blocked.contains(&peer) => Some(Keeping {
                    stream: self.id,
                    member: Member::Reader(number, rank),
                    peer,
                }),
                _ => None,
            })
        });
        let commit = self.commit_makes_room().then(|| {
            let member = self.kept_from_commit(blocked)?;
            Some(self.stuck(member, Some(member))?.whom)
        });
        expected.chain(ranks).chain(commit)
    }

    /// A writer rank of the `blocked` without which the open step never becomes whole. None where
    /// one is away: its lease ends the wait.
    fn kept_from_commit(&self, blocked: &BTreeSet<Peer>) -> Option<Member> {
        if self.end.is_some() {
            return None;
        }
        let step = self.store.committed;
        let ranks = self.writers.ranks.iter().enumerate();
        let behind =
            ranks.filter(|(_, rank)| rank.next == step && rank.place != WriterState::Closed);
        let mut first = None;
        for (rank, state) in behind {
            match state.place {
                WriterState::Here(peer) if blocked.contains(&peer) => first = first.or(Some(rank)),
                WriterState::Here(_) | WriterState::Closed => {}
                WriterState::Away(_) => return None,
            }
        }
        first.map(Member::Writer)
    }

    /// Whether there is less at the coordinator when the open step is whole: of parts that are
    /// there already, or of steps that it takes the place of.
    fn commit_makes_room(&self) -> bool {
        let drops = |group: &Group| {
            let policy = group.queue.policy();
            matches!(policy, Policy::Latest | Policy::DropOldest) && group.queue.steps() > 0
        };
        let is_retained = self.store.retained_from < self.store.committed;
        let is_begun = self.store.open.parts.iter().any(Option::is_some);
        let groups = self.groups.groups.values();
        self.end.is_none() && (is_begun || is_retained || groups.into_iter().any(drops))
    }

    /// A reader rank of the `blocked` without which the open step is never let in.
    fn kept_full(&self, blocked: &BTreeSet<Peer>) -> Option<Member> {
        let (step, bytes) = (self.store.committed, self.store.last_bytes);
        self.groups.groups.iter().find_map(|(&number, group)| {
            let rank = group.kept_full_by(&self.store, step, bytes, blocked)?;
            Some(Member::Reader(number, rank))
        })
    }

    /// The last reader rank of a group, if it is one of the `blocked` and keeps the others from the
    /// first step of the queue. `stays`: no other step is committed meanwhile.
    fn kept_from_next(
        &self,
        (number, group): (u64, &Group),
        step: Step,
        blocked: &BTreeSet<Peer>,
        stays: bool,
    ) -> Option<Member> {
        // A step that gives way to another one may be followed by a smaller one. The newest never
        // gives way to memory.
        let is_newest = step + 1 == self.store.committed;
        let stays = group.queue.policy() == Policy::Spill || stays && is_newest;
        let is_drawn_out = group.is_drawn_out(&self.store, stays.then_some(step));
        let last = group
            .last_of(blocked)
            .filter(|_| is_drawn_out && self.store.ready(step))?;
        Some(Member::Reader(number, last))
    }

    /// A rank, for a person.
    pub(in crate::protocol) fn name_of(&self, member: Member) -> String {
        match member {
            Member::Writer(rank) => format!("rank {rank} of {}", self.writers.program()),
            Member::Reader(group, rank) => {
                let group = self.groups.groups.get(&group);
                let name = group.and_then(|group| group.name.as_deref());
                format!("rank {rank} of {}", name.unwrap_or("?"))
            }
        }
    }
}

impl Group {
    /// A rank of the `blocked` that keeps the group too full for step `step` of about `bytes`
    /// bytes, whatever the other ranks read: what it has still to take, or holds, stays. None where
    /// a rank is away: its lease ends that.
    fn kept_full_by(
        &self,
        store: &super::store::Store,
        step: Step,
        bytes: u64,
        blocked: &BTreeSet<Peer>,
    ) -> Option<usize> {
        let is_away = |place| matches!(place, ReaderState::Away(_));
        // What spills is let in as soon as there is room on the disk, by whomever.
        let spills = self.queue.policy() == Policy::Spill && store.disk_full;
        if spills || self.ranks.iter().any(|rank| is_away(rank.place)) {
            return None;
        }
        let blocked =
            |rank: &Rank| matches!(rank.place, ReaderState::Here(peer) if blocked.contains(&peer));
        let ranks = || self.ranks.iter().filter(|rank| blocked(rank));
        // What one of them has still to take is the end of what the group has taken.
        let least = ranks().map(|rank| rank.next).min()?;
        let left = least.saturating_sub(self.base) as usize;
        let to_take = self.taken.iter().skip(left).copied();
        let kept: BTreeSet<Step> = to_take.chain(ranks().flat_map(Rank::held)).collect();
        let stored = kept.iter().filter_map(|step| store.steps.get(step));
        let bytes_kept = stored.fold(0u64, |sum, stored| sum.saturating_add(stored.bytes));
        let disk = !store.disk_full;
        if self
            .queue
            .admits(step, kept.len() as u64, bytes_kept, bytes, disk)
        {
            return None;
        }
        let end = self.base + self.taken.len() as u64;
        let keeps = |rank: &Rank| {
            let has = rank.next < end || rank.held().next().is_some();
            blocked(rank) && (has || self.queue.steps() > 0)
        };
        self.ranks.iter().position(keeps)
    }

    /// A rank of the `blocked` that has taken the least of all, so that the first ranks wait for
    /// it; none where one is away.
    fn last_of(&self, blocked: &BTreeSet<Peer>) -> Option<usize> {
        let mut last = None;
        for (number, rank) in self.ranks.iter().enumerate() {
            match rank.place {
                ReaderState::Away(_) => return None,
                ReaderState::Here(peer) if rank.next == self.base && blocked.contains(&peer) => {
                    last = last.or(Some(number));
                }
                _ => {}
            }
        }
        last
    }
}
