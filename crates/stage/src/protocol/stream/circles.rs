//! Finds processes that wait for each other in a circle, so that none of them can ever continue.
//!
//! A process that waits does nothing else until it is answered. (Those of which several threads
//! make requests do not count as waiting: which thread would act is not known.) So a request is
//! *stuck*, for a set of waiting processes, if it cannot be answered while none of them acts,
//! whatever all others do.
//! [`Coordinator`](crate::protocol::Coordinator) starts with all waiting processes and repeatedly
//! removes those that have a request which is not stuck. The remaining processes wait for each
//! other.
//!
//! Waits that end by themselves do not count as stuck: for memory and for block stores, which have
//! deadlines; for ranks that are away, which have leases; and those of processes that give up after
//! a time-out of their own and may then do something else. Neither do waits that only steps of
//! another size could end, while the writer computes: its next step may be smaller.

use super::Stream;
use super::groups::{Group, Rank, ReaderState};
use super::writers::{Stage, WriterState};
use crate::protocol::{Peer, Policy, Step, StreamId, unit};
use std::collections::{BTreeMap, BTreeSet};

/// A rank of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocol) enum Member {
    Writer(usize),
    Reader(u64, usize),
}

/// The rank of a stream, and its process, that prevents an answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Keeping {
    pub(in crate::protocol) stream: StreamId,
    pub(in crate::protocol) member: Member,
    pub(in crate::protocol) peer: Peer,
}

/// A request that cannot be answered while another process waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Stuck {
    pub(in crate::protocol) who: (StreamId, Member),
    pub(in crate::protocol) whom: Keeping,
}

impl Stream {
    /// Returns every waiting request with its process, and why it is stuck while all of `blocked`
    /// wait, if it is. `over`: the readers that keep what a process, or all of them (`None`), have
    /// too much of at the coordinator.
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
            // Waits for the coordinator's own memory.
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
                        // The step will come, or the wait has a deadline.
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

    /// Returns an entry for each rank that has steps to take or to release: the rank, if it is one
    /// of `blocked`, and `None` for the others, which may continue. The same for a rank without
    /// which the open step cannot be completed, if completing it would make room.
    pub(in crate::protocol) fn who_keeps(
        &self,
        blocked: &BTreeSet<Peer>,
    ) -> impl Iterator<Item = Option<Keeping>> {
        // Groups that have not opened the stream yet keep the steps in their queue.
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

    /// Returns a writer rank of `blocked` without which the open step cannot be completed. `None`
    /// if a rank is away: its lease ends the wait.
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

    /// Returns true if completing the open step frees memory at the coordinator: that of its parts,
    /// or of steps that it replaces.
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

    /// Returns a reader rank of `blocked` without which the open step cannot begin.
    fn kept_full(&self, blocked: &BTreeSet<Peer>) -> Option<Member> {
        let (step, bytes) = (self.store.committed, self.store.last_bytes);
        self.groups.groups.iter().find_map(|(&number, group)| {
            let rank = group.kept_full_by(&self.store, step, bytes, blocked)?;
            Some(Member::Reader(number, rank))
        })
    }

    /// Returns the last reader rank of a group, if it is one of `blocked` and keeps the others from
    /// the first step of the queue. `stays`: no other step is committed in the meantime.
    fn kept_from_next(
        &self,
        (number, group): (u64, &Group),
        step: Step,
        blocked: &BTreeSet<Peer>,
        stays: bool,
    ) -> Option<Member> {
        // A step that is dropped for another one may be followed by a smaller one. The newest is
        // never dropped when memory is short.
        let is_newest = step + 1 == self.store.committed;
        let stays = group.queue.policy() == Policy::Spill || stays && is_newest;
        let is_drawn_out = group.is_drawn_out(&self.store, stays.then_some(step));
        let last = group
            .last_of(blocked)
            .filter(|_| is_drawn_out && self.store.ready(step))?;
        Some(Member::Reader(number, last))
    }

    /// Returns the name of a rank for messages.
    pub(in crate::protocol) fn name_of(&self, member: Member) -> String {
        match member {
            Member::Writer(rank) => unit(self.writers.program(), rank),
            Member::Reader(group, rank) => {
                let group = self.groups.groups.get(&group);
                let name = group.and_then(|group| group.name.as_deref());
                unit(name.unwrap_or("?"), rank)
            }
        }
    }
}

impl Group {
    /// Returns a rank of `blocked` that keeps the group too full for step `step` of about `bytes`
    /// bytes, whatever the other ranks read: what it has yet to take, or holds, stays. `None` if a
    /// rank is away: its lease ends that.
    fn kept_full_by(
        &self,
        store: &super::store::Store,
        step: Step,
        bytes: u64,
        blocked: &BTreeSet<Peer>,
    ) -> Option<usize> {
        let is_away = |place| matches!(place, ReaderState::Away(_));
        // A step that can be spilled may begin as soon as any process frees disk space.
        let spills = self.queue.policy() == Policy::Spill && store.disk_full;
        if spills || self.ranks.iter().any(|rank| is_away(rank.place)) {
            return None;
        }
        let blocked =
            |rank: &Rank| matches!(rank.place, ReaderState::Here(peer) if blocked.contains(&peer));
        let ranks = || self.ranks.iter().filter(|rank| blocked(rank));
        // What a rank has yet to take is the tail of what the group has taken.
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

    /// Returns the first rank of `blocked` that has taken the fewest steps, so that the others wait
    /// for it. `None` if a rank is away.
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
