//! The reader ranks: opening, closing, dying, and their deadlines. `taking` contains how they take
//! steps.

use super::groups::{Group, Rank, ReaderState, Total, Waiting};
use super::{Others, Stream};
use crate::protocol::queue::Queue;
use crate::protocol::settings::check_limits;
use crate::protocol::{Answer, Fault, LONGEST_LEASE, Peer, Reader, ReaderId, Start, Step, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

impl Stream {
    /// Opens the stream for a reader rank, or reopens it: `by` are its process and its request.
    ///
    /// # Errors
    /// Another size, a rank beyond it or taken, limits of zero, a start step that is gone. A taken
    /// rank may become free.
    pub fn open_reader(
        &mut self,
        by: (Peer, Ticket),
        reader: &Reader,
        cost: u64,
        gives_up: bool,
    ) -> Result<Answer, Fault> {
        let Reader { rank, size, .. } = *reader;
        let program = || reader.group.clone();
        if rank >= size {
            return Err(Fault::RankBeyond {
                program: program(),
                rank,
                size,
            });
        }
        let mut groups = self.groups.groups.iter();
        let known = groups
            .find(|(_, group)| !group.is_expected() && group.name.as_ref() == Some(&reader.group));
        let number = match known {
            Some((&number, group)) => {
                let there = group.ranks.len() as u32;
                if there != size {
                    return Err(Fault::SizeDiffers {
                        program: program(),
                        rank,
                        size,
                        there,
                    });
                }
                number
            }
            None => self.new_group(reader, (by.0, cost))?,
        };
        let Some(group) = self.groups.groups.get_mut(&number) else {
            return Err(Fault::NotOpen);
        };
        // A rank that returns within its lease continues where it was; a later one continues with
        // the step that the group takes next (S6).
        let end = group.base + group.taken.len() as u64;
        let state = &mut group.ranks[rank as usize];
        match state.place {
            ReaderState::Here(peer) => {
                return Err(Fault::RankTaken {
                    program: program(),
                    rank,
                    peer: peer.into(),
                });
            }
            ReaderState::Away(_) => {}
            ReaderState::Gone | ReaderState::Closed => state.next = end,
        }
        (state.place, state.by) = (ReaderState::Here(by.0), by);
        (state.told, state.gives_up) = (None, gives_up);
        let taken = state.next;
        self.settle();
        Ok(Answer::Reading {
            taken,
            reader: ReaderId {
                stream: self.id,
                group: number,
                rank,
            },
            program: self.writers.program().to_owned(),
        })
    }

    fn new_group(&mut self, reader: &Reader, (from, cost): (Peer, u64)) -> Result<u64, Fault> {
        let limits = reader.limits.unwrap_or_else(|| self.default_limits());
        check_limits(reader.policy, reader.limits, || {
            format!("the reader group {}", reader.group)
        })?;
        let unbroken = self.store.unbroken_from();
        let begin = match reader.start {
            Start::Earliest => unbroken,
            Start::Latest => unbroken.max(self.store.committed.saturating_sub(1)),
            Start::Step(step) if step < unbroken => return Err(self.gone(step)),
            Start::Step(step) => step,
        };
        let mut before = BTreeSet::new();
        if reader.start == Start::Earliest {
            before = self.groups.kept_for(&reader.group);
            if self.config.precious_first {
                before.insert(0);
            }
        }
        let first = before.first().map_or(begin, |first| begin.min(*first));
        let mut queue = Queue::new(reader.policy, limits, first);
        let there = self.store.steps.iter();
        let there = there.filter(|(step, _)| **step >= begin || before.contains(step));
        let there: Vec<(Step, u64)> = there.map(|(&step, stored)| (step, stored.bytes)).collect();
        let queue_cost = Queue::cost(limits, there.len() as u64);
        self.store
            .costs
            .ledger
            .check_beside_steps(from, queue_cost)?;
        let cost = cost + queue_cost;
        for (step, bytes) in there {
            if self.touches(step, reader.only.as_ref()) {
                queue.offer(step, bytes);
            }
        }
        let lease = reader.lease.min(LONGEST_LEASE);
        // A process that is still starting gets more time than one that died.
        let until = self.after(lease.max(self.config.linger));
        let rank = |_| Rank {
            place: ReaderState::Away(until),
            by: (Peer(0), Ticket(0)),
            next: 0,
            holds: BTreeMap::new(),
            waiting: VecDeque::new(),
            told: None,
            gives_up: false,
        };
        let group = Group {
            name: Some(reader.group.clone()),
            lease,
            queue,
            only: reader.only.clone(),
            total: Total::default(),
            taken: VecDeque::new(),
            base: 0,
            drawn_out: Mutex::default(),
            ranks: (0..reader.size).map(rank).collect(),
            until: None,
            _charge: Some(self.store.costs.ledger.charge(from, cost)),
        };
        self.wake_by(until);
        // Moves what was kept for the expected group to this one, as far as it wants it.
        let stands_for_it = |group: &Group| {
            group.is_expected() && group.name.as_ref().is_none_or(|name| *name == reader.group)
        };
        self.groups.groups.retain(|_, group| !stands_for_it(group));
        self.store.suspect_all();
        Ok(self.groups.insert(group))
    }

    pub(super) fn gone(&self, step: Step) -> Fault {
        Fault::Gone {
            stream: self.name.clone(),
            step,
            oldest: self.store.steps.keys().next().copied(),
        }
    }

    /// Returns the rank, if that process is it.
    pub(super) fn reader(&mut self, reader: ReaderId, peer: Peer) -> Option<&mut Rank> {
        let group = self.groups.groups.get_mut(&reader.group)?;
        let rank = group.ranks.get_mut(reader.rank as usize)?;
        (rank.place == ReaderState::Here(peer)).then_some(rank)
    }

    /// Closes a rank.
    pub fn close_reader(&mut self, from: Peer, reader: ReaderId) {
        let Some(rank) = self.reader(reader, from) else {
            return;
        };
        let waiting: Vec<Waiting> = rank.waiting.drain(..).collect();
        for question in waiting {
            self.fail(from, question.ticket, Fault::NotOpen);
        }
        self.leave(reader.group, reader.rank as usize, ReaderState::Closed);
        self.settle();
    }

    /// Ends the holds of a rank that has left. What it has yet to take is kept for it while it
    /// counts.
    fn leave(&mut self, number: u64, rank: usize, place: ReaderState) {
        let Some(group) = self.groups.groups.get_mut(&number) else {
            return;
        };
        let state = &mut group.ranks[rank];
        state.place = place;
        state.waiting.clear();
        state.told = None;
        let holds = std::mem::take(&mut state.holds);
        let done = group.advance();
        if !group.is_left() {
            self.groups.groups.remove(&number);
            self.store.suspect_all();
        }
        let holds = holds.into_values();
        holds.for_each(|hold| self.unhold(hold.step));
        done.into_iter().for_each(|step| self.store.suspect(step));
    }

    /// Handles the loss of a process that may be a reader rank.
    pub(super) fn reader_lost(&mut self, peer: Peer) {
        self.readers_leave(|rank| rank.place == ReaderState::Here(peer));
    }

    /// Handles ranks that are gone without having closed: each may return until its lease ends.
    pub(super) fn readers_leave(&mut self, is_gone: impl Fn(&Rank) -> bool) {
        let groups = self.groups.groups.iter();
        let ranks = groups.flat_map(|(&number, group)| {
            let ranks = group.ranks.iter().enumerate();
            let lost = ranks.filter(|(_, rank)| is_gone(rank));
            lost.map(move |(rank, _)| (number, rank, group.lease))
        });
        let lost: Vec<(u64, usize, u64)> = ranks.collect();
        for (number, rank, lease) in lost {
            let until = self.after(lease);
            self.leave(number, rank, ReaderState::Away(until));
            self.wake_by(until);
        }
    }

    /// After the end of the stream: limits how long expected groups may take to open it.
    pub(super) fn linger(&mut self) {
        let until = self.after(self.config.linger);
        for group in self
            .groups
            .groups
            .values_mut()
            .filter(|group| group.is_expected())
        {
            group.until = Some(until);
        }
        self.wake_by(until);
    }

    /// Puts a committed step into the queues that want it.
    pub(super) fn offer(&mut self, step: Step, bytes: u64) {
        let mut groups = std::mem::take(&mut self.groups.groups);
        for group in groups.values_mut() {
            if !self.touches(step, group.only.as_ref()) {
                continue;
            }
            for dropped in group.queue.offer(step, bytes) {
                self.store.suspect(dropped);
            }
        }
        self.groups.groups = groups;
    }

    pub(super) fn readers_tick(&mut self, others: &Others<'_>) {
        let now = self.now;
        let mut over = Vec::new();
        let (mut late, mut wake) = (Vec::new(), u64::MAX);
        let most = self.answers_left();
        // First collect what is due, then act: answers change the groups.
        for (&number, group) in &mut self.groups.groups {
            for (at, rank) in group.ranks.iter_mut().enumerate() {
                if let ReaderState::Away(until) = rank.place {
                    if until <= now {
                        over.push((number, at));
                    } else {
                        wake = wake.min(until);
                    }
                }
                let ReaderState::Here(peer) = rank.place else {
                    continue;
                };
                rank.waiting.retain(|waiting| {
                    let stays = waiting.until > now || late.len() >= most;
                    if !stays {
                        let asked = (waiting.ticket, waiting.at, waiting.since);
                        late.push((peer, number, at, asked));
                    }
                    stays
                });
                let next = rank.waiting.iter().map(|waiting| waiting.until.max(now));
                wake = wake.min(next.min().unwrap_or(u64::MAX));
            }
        }
        for (peer, group, rank, (ticket, step, since)) in late {
            let group = &self.groups.groups[&group];
            let spills = |block_store| others.has_worked(block_store, since);
            let (whom, is_alive) = self.whom_reader_waits_for(group, rank, step, spills);
            let fault = Fault::NoStep {
                stream: self.name.clone(),
                committed: self.store.committed,
                whom: whom.text,
            };
            self.late(peer, ticket, fault, is_alive, others);
        }
        for (number, rank) in over {
            self.leave(number, rank, ReaderState::Gone);
        }
        self.forget_expected(now, &mut wake);
        if wake < u64::MAX {
            self.wake_by(wake);
        }
    }

    fn forget_expected(&mut self, now: u64, wake: &mut u64) {
        let before = self.groups.groups.len();
        self.groups
            .groups
            .retain(|_, group| group.until.is_none_or(|until| until > now));
        if self.groups.groups.len() != before {
            self.store.suspect_all();
        }
        let next = self
            .groups
            .groups
            .values()
            .filter_map(|group| group.until)
            .min();
        *wake = (*wake).min(next.unwrap_or(u64::MAX));
    }
}
