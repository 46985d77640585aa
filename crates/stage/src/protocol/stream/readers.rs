//! The reader ranks: opening, taking steps, holding them, releasing, dying.

use super::groups::{Group, Hold, Place, Rank, Waiting};
use super::{Others, Stream};
use crate::protocol::queue::Queue;
use crate::protocol::{
    Answer, Fault, LONGEST_LEASE, Peer, Policy, Reader, ReaderId, Start, Step, Ticket,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most questions that a rank may have open, of which an honest one has one or two.
const MOST_WAITING: usize = 64;

/// Most steps that a rank may hold at a time, or hold one so many times; and what each of them, and each question that waits, costs,
/// in bytes. Some are paid with the rank.
const MOST_HOLDS: usize = 1 << 14;
const HOLD: u64 = 128;
const PAID: usize = 4;

/// Most answers that a stream gives in one event; the others follow in the next one, at once. A process may be many ranks, and each
/// of them may have asked.
const MOST_ANSWERS: usize = 1024;

impl Stream {
    /// A reader rank opens the stream, or comes back to it.
    ///
    /// # Errors
    /// Another size, a rank beyond it or taken, limits of zero, a step to start at that is gone. Taken may pass.
    pub fn open_reader(
        &mut self,
        from: Peer,
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
            None => self.new_group(reader, (from, cost))?,
        };
        let Some(group) = self.groups.groups.get_mut(&number) else {
            return Err(Fault::NotOpen);
        };
        let end = group.base + group.taken.len() as u64;
        let state = &mut group.ranks[rank as usize];
        match state.place {
            Place::Here(peer) => {
                return Err(Fault::RankTaken {
                    program: program(),
                    rank,
                    peer,
                });
            }
            Place::Away(_) => {}
            Place::Gone | Place::Closed => state.next = end,
        }
        state.place = Place::Here(from);
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
        })
    }

    fn new_group(&mut self, reader: &Reader, (from, cost): (Peer, u64)) -> Result<u64, Fault> {
        let limits = reader.limits.unwrap_or_else(|| self.default_limits());
        if limits.steps == 0
            || limits.bytes == 0 && reader.limits.is_some()
            || reader.policy == Policy::Every(0)
        {
            return Err(Fault::ZeroLimit {
                group: reader.group.clone(),
            });
        }
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
        for (step, bytes) in there {
            if self.touches(step, reader.only.as_ref()) {
                queue.offer(step, bytes);
            }
        }
        let lease = reader.lease.min(LONGEST_LEASE);
        // A process that is still starting is not one that died.
        let until = self.after(lease.max(self.config.linger));
        let rank = |_| Rank {
            place: Place::Away(until),
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
            total: (0, 0),
            taken: VecDeque::new(),
            base: 0,
            ranks: (0..reader.size).map(rank).collect(),
            until: None,
            _charge: Some(self.store.costs.charge(from, cost)),
        };
        self.wake_by(until);
        // The one that was expected has come: what it had is there for this one, if it wants it.
        let stands_for_it = |group: &Group| {
            group.is_expected() && group.name.as_ref().is_none_or(|name| *name == reader.group)
        };
        self.groups.groups.retain(|_, group| !stands_for_it(group));
        self.store.suspect_all();
        Ok(self.groups.insert(group))
    }

    fn gone(&self, step: Step) -> Fault {
        Fault::Gone {
            stream: self.name.clone(),
            step,
            oldest: self.store.steps.keys().next().copied(),
        }
    }

    /// The rank, if that process is it.
    fn reader(&mut self, reader: ReaderId, peer: Peer) -> Option<&mut Rank> {
        let group = self.groups.groups.get_mut(&reader.group)?;
        let rank = group.ranks.get_mut(reader.rank as usize)?;
        (rank.place == Place::Here(peer)).then_some(rank)
    }

    /// A rank asks for the next step of its group, or for step `at`.
    pub fn take(
        &mut self,
        from: Peer,
        reader: ReaderId,
        ticket: Ticket,
        at: Option<Step>,
        patience: u64,
    ) {
        let (since, until) = (self.now, self.after(patience));
        let Some(rank) = self.reader(reader, from) else {
            return self.fail(from, ticket, Fault::NotOpen);
        };
        // A ticket names what is held under it, so two steps under one would be released as one.
        let is_used = rank.holds.contains_key(&ticket)
            || rank.waiting.iter().any(|asked| asked.ticket == ticket);
        if is_used || rank.waiting.len() >= MOST_WAITING {
            return self.fail(from, ticket, Fault::Busy);
        }
        if rank.holds.len() >= MOST_HOLDS {
            let bytes = |holds: usize| holds as u64 * HOLD;
            let fault = Fault::TooMuchOpen {
                of: "this rank".to_owned(),
                bytes: bytes(rank.holds.len() + 1),
                most: bytes(MOST_HOLDS),
            };
            return self.fail(from, ticket, fault);
        }
        let asked = |charge| Waiting {
            ticket,
            until,
            since,
            at,
            _charge: charge,
        };
        if rank.holds.len() + rank.waiting.len() < PAID {
            rank.waiting.push_back(asked(None));
        } else {
            if let Err(fault) = self.store.costs.check(from, HOLD) {
                return self.fail(from, ticket, fault);
            }
            let charge = self.store.costs.charge(from, HOLD);
            if let Some(rank) = self.reader(reader, from) {
                rank.waiting.push_back(asked(Some(charge)));
            }
        }
        self.wake_by(until);
        self.settle();
    }

    /// Serves the questions that can be answered now.
    pub(super) fn serve(&mut self) {
        let numbers: Vec<u64> = self.groups.groups.keys().copied().collect();
        for number in numbers {
            let ranks = self.groups.groups[&number].ranks.len();
            for rank in 0..ranks {
                if self.out.len() >= MOST_ANSWERS {
                    return self.wake_by(self.now);
                }
                self.serve_rank(number, rank);
            }
        }
    }

    /// At most [`MOST_WAITING`] answers.
    fn serve_rank(&mut self, number: u64, rank: usize) {
        let mut at = 0;
        let mut sequence_waits = false;
        loop {
            let group = &self.groups.groups[&number];
            let state = &group.ranks[rank];
            let (Place::Here(peer), Some(waiting)) = (state.place, state.waiting.get(at)) else {
                return;
            };
            let (ticket, step) = (waiting.ticket, waiting.at);
            let answer = match step {
                Some(step) => self.answer_at(number, rank, ticket, step),
                // A later `Next` never overtakes an earlier one.
                None if sequence_waits => None,
                None => self.answer_next(number, rank, ticket),
            };
            match answer {
                None => {
                    sequence_waits |= step.is_none();
                    at += 1;
                }
                Some(answer) => {
                    if let Some(group) = self.groups.groups.get_mut(&number) {
                        group.ranks[rank].waiting.remove(at);
                    }
                    self.answer(peer, ticket, answer);
                }
            }
        }
    }

    fn answer_at(
        &mut self,
        number: u64,
        rank: usize,
        ticket: Ticket,
        step: Step,
    ) -> Option<Answer> {
        if self.store.steps.contains_key(&step) {
            return self
                .store
                .ready(step)
                .then(|| self.give(number, rank, ticket, step, false));
        }
        if step < self.store.committed {
            return Some(Answer::Failed(self.gone(step)));
        }
        self.end.map(Answer::End)
    }

    fn answer_next(&mut self, number: u64, rank: usize, ticket: Ticket) -> Option<Answer> {
        let group = self.groups.groups.get_mut(&number)?;
        let next = group.ranks[rank].next;
        let ahead = (next - group.base) as usize;
        let step = match group.taken.get(ahead) {
            Some(&step) => step,
            None => match group.queue.first() {
                Some(step) => step,
                None => return self.end.map(Answer::End),
            },
        };
        if !self.store.ready(step) {
            return None; // on its way to disk
        }
        if ahead == group.taken.len() {
            if group.is_drawn_out(&self.store, step) {
                return None;
            }
            group.queue.take();
            group.taken.push_back(step);
            let data = self.store.steps.get(&step).map_or(0, |stored| stored.data);
            group.total = (group.total.0 + 1, group.total.1.saturating_add(data));
        }
        group.ranks[rank].next += 1;
        let answer = self.give(number, rank, ticket, step, true);
        let done = self.groups.groups.get_mut(&number).map(Group::advance);
        done.into_iter()
            .flatten()
            .for_each(|step| self.store.suspect(step));
        Some(answer)
    }

    /// The step for a rank, which holds it from now on; or what is wrong with it.
    fn give(
        &mut self,
        number: u64,
        rank: usize,
        ticket: Ticket,
        step: Step,
        in_sequence: bool,
    ) -> Answer {
        let keepers = self.store.damage(step);
        if !keepers.is_empty() {
            return Answer::Failed(Fault::Damaged { step, keepers });
        }
        let told = self.groups.groups[&number].ranks[rank].told;
        let Some((record, hash)) = self.store.record(self.id, step, told) else {
            return Answer::Failed(self.gone(step));
        };
        if let Some(group) = self.groups.groups.get_mut(&number) {
            let state = &mut group.ranks[rank];
            state.told = Some(hash);
            let peer = match state.place {
                Place::Here(peer) if state.holds.len() >= PAID => Some(peer),
                _ => None,
            };
            let hold = Hold {
                step,
                in_sequence,
                _charge: peer.map(|peer| self.store.costs.charge(peer, HOLD)),
            };
            state.holds.insert(ticket, hold);
        }
        if let Some(stored) = self.store.steps.get_mut(&step) {
            stored.holds += 1;
        }
        Answer::Step(record)
    }

    /// A rank releases what it holds under that ticket.
    pub fn release(&mut self, from: Peer, reader: ReaderId, hold: Ticket) {
        let held = self
            .reader(reader, from)
            .and_then(|rank| rank.holds.remove(&hold));
        if let Some(Hold { step, .. }) = held {
            self.unhold(step);
            self.settle();
        }
    }

    /// Ends what a process holds under a ticket, in whichever group: the stream's name, and which step it was.
    pub(in crate::protocol) fn end_hold(
        &mut self,
        from: Peer,
        ticket: Ticket,
    ) -> Option<(String, Step)> {
        let groups = self.groups.groups.values_mut();
        let ranks = groups.flat_map(|group| &mut group.ranks);
        let mut its = ranks.filter(|rank| rank.place == Place::Here(from));
        let Hold { step, .. } = its.find_map(|rank| rank.holds.remove(&ticket))?;
        self.unhold(step);
        self.settle();
        Some((self.name.clone(), step))
    }

    pub(super) fn unhold(&mut self, step: Step) {
        if let Some(stored) = self.store.steps.get_mut(&step) {
            stored.holds -= 1;
        }
        self.store.suspect(step);
    }

    /// A rank reads no more.
    pub fn close_reader(&mut self, from: Peer, reader: ReaderId) {
        let Some(rank) = self.reader(reader, from) else {
            return;
        };
        let waiting: Vec<Waiting> = rank.waiting.drain(..).collect();
        for question in waiting {
            self.fail(from, question.ticket, Fault::NotOpen);
        }
        self.leave(reader.group, reader.rank as usize, Place::Closed);
        self.settle();
    }

    /// A rank is not here any more: its holds end; what it would still have to take is kept for it while it counts.
    fn leave(&mut self, number: u64, rank: usize, place: Place) {
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

    /// A process is gone: so are the reader ranks that it was.
    pub(super) fn reader_lost(&mut self, peer: Peer) {
        let groups = self.groups.groups.iter();
        let ranks = groups.flat_map(|(&number, group)| {
            let ranks = group.ranks.iter().enumerate();
            let lost = ranks.filter(|(_, rank)| rank.place == Place::Here(peer));
            lost.map(move |(rank, _)| (number, rank, group.lease))
        });
        let lost: Vec<(u64, usize, u64)> = ranks.collect();
        for (number, rank, lease) in lost {
            let until = self.after(lease);
            self.leave(number, rank, Place::Away(until));
            self.wake_by(until);
        }
    }

    /// The stream has ended: who has not come yet has so long to come.
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

    /// A step was committed: into the queues that want it.
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
        for (&number, group) in &mut self.groups.groups {
            for (at, rank) in group.ranks.iter_mut().enumerate() {
                if let Place::Away(until) = rank.place {
                    if until <= now {
                        over.push((number, at));
                    } else {
                        wake = wake.min(until);
                    }
                }
                let Place::Here(peer) = rank.place else {
                    continue;
                };
                let passed = rank.waiting.iter().filter(|waiting| waiting.until <= now);
                let asked = |waiting: &Waiting| (waiting.ticket, waiting.at, waiting.since);
                late.extend(passed.map(|waiting| (peer, number, at, asked(waiting))));
                rank.waiting.retain(|waiting| waiting.until > now);
                let next = rank.waiting.iter().map(|waiting| waiting.until).min();
                wake = wake.min(next.unwrap_or(u64::MAX));
            }
        }
        for (peer, group, rank, (ticket, step, since)) in late {
            let group = &self.groups.groups[&group];
            let spills = |keeper| others.has_worked(keeper, since);
            let (whom, is_alive) = self.whom_reader_waits_for(group, rank, step, spills);
            let fault = Fault::NoStep {
                stream: self.name.clone(),
                committed: self.store.committed,
                whom,
            };
            self.late(peer, ticket, fault, is_alive, others);
        }
        for (number, rank) in over {
            self.leave(number, rank, Place::Gone);
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
