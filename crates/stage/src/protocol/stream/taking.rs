//! How reader ranks take, hold and release steps.

use super::Stream;
use super::groups::{Group, ReaderState, StepLease, Waiting};
use crate::protocol::{Answer, Fault, Peer, ReaderId, Step, Ticket};
use samite_fabric::Named;

/// Maximum number of open requests of a rank; an honest one has one or two.
const MOST_WAITING: usize = 64;

/// Maximum number of holds of a rank at a time, and the cost of each hold and of each waiting
/// request, in bytes. Some are paid with the rank.
const MOST_HOLDS: usize = 1 << 14;
const HOLD: u64 = 128;
const PAID: usize = 4;

impl Stream {
    /// Handles the request of a rank for the next step of its group, or for step `at`.
    pub fn take(
        &mut self,
        from: Peer,
        reader: ReaderId,
        ticket: Ticket,
        at: Option<Step>,
        timeout: u64,
    ) {
        let (since, until) = (self.now, self.after(timeout));
        let Some(rank) = self.reader(reader, from) else {
            return self.fail(from, ticket, Fault::NotOpen);
        };
        // A ticket names its hold, so two steps under one ticket would be released as one.
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
            if let Err(fault) = self.store.costs.ledger.check_beside_steps(from, HOLD) {
                return self.fail(from, ticket, fault);
            }
            let charge = self.store.costs.ledger.charge(from, HOLD);
            if let Some(rank) = self.reader(reader, from) {
                rank.waiting.push_back(asked(Some(charge)));
            }
        }
        self.wake_by(until);
        self.settle();
    }

    /// Answers the requests that can be answered now.
    pub(super) fn serve(&mut self) {
        let numbers: Vec<u64> = self.groups.groups.keys().copied().collect();
        for number in numbers {
            let ranks = self.groups.groups[&number].ranks.len();
            for rank in 0..ranks {
                if self.answers_left() == 0 {
                    return self.wake_by(self.now);
                }
                self.serve_rank(number, rank);
            }
        }
    }

    fn serve_rank(&mut self, number: u64, rank: usize) {
        let mut at = 0;
        let mut sequence_waits = false;
        while self.answers_left() > 0 {
            let group = &self.groups.groups[&number];
            let state = &group.ranks[rank];
            let (ReaderState::Here(peer), Some(waiting)) = (state.place, state.waiting.get(at))
            else {
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
                .can_give(number, rank, step)
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
        if !self.can_give(number, rank, step) {
            return None;
        }
        let group = self.groups.groups.get_mut(&number)?;
        // This rank is the first to take the step, which decides the group's sequence (S4).
        if ahead == group.taken.len() {
            if group.is_drawn_out(&self.store, Some(step)) {
                return None;
            }
            group.queue.take();
            group.taken.push_back(step);
            group.total.steps += 1;
        }
        group.ranks[rank].next += 1;
        let answer = self.give(number, rank, ticket, step, true);
        let done = self.groups.groups.get_mut(&number).map(Group::advance);
        done.into_iter()
            .flatten()
            .for_each(|step| self.store.suspect(step));
        Some(answer)
    }

    /// Returns true if a rank can be given a stored step: it is not being spilled, and the rank's
    /// process takes it.
    fn can_give(&self, number: u64, rank: usize, step: Step) -> bool {
        let place = self.groups.groups[&number].ranks[rank].place;
        self.store.ready(step) && !self.is_slow(place)
    }

    /// Returns true if a rank's process currently takes no more steps.
    pub(super) fn is_slow(&self, place: ReaderState) -> bool {
        matches!(place, ReaderState::Here(peer) if self.slow.contains(&peer))
    }

    /// Returns the step for a rank, which holds it from now on, or an error if it is damaged or
    /// gone.
    fn give(
        &mut self,
        number: u64,
        rank: usize,
        ticket: Ticket,
        step: Step,
        in_sequence: bool,
    ) -> Answer {
        let block_stores = self.store.damage(step);
        if !block_stores.is_empty() {
            let block_stores = block_stores.into_iter().map(Named::from).collect();
            return Answer::Failed(Fault::Damaged { step, block_stores });
        }
        let told = self.groups.groups[&number].ranks[rank].told;
        let Some((record, hash)) = self.store.record(self.id, step, told) else {
            return Answer::Failed(self.gone(step));
        };
        if let Some(group) = self.groups.groups.get_mut(&number) {
            let state = &mut group.ranks[rank];
            // The rank knows these layouts from now on, so later records need only their hash.
            state.told = Some(hash);
            let peer = match state.place {
                ReaderState::Here(peer) if state.holds.len() >= PAID => Some(peer),
                _ => None,
            };
            let hold = StepLease {
                step,
                in_sequence,
                _charge: peer.map(|peer| self.store.costs.ledger.charge(peer, HOLD)),
            };
            state.holds.insert(ticket, hold);
        }
        if let Some(stored) = self.store.steps.get_mut(&step) {
            stored.holds += 1;
            self.store.costs.ledger.say(stored.length);
        }
        Answer::Step(record)
    }

    /// Releases what a rank holds under that ticket, after it has `read` so many bytes of it.
    pub fn release(&mut self, from: Peer, reader: ReaderId, hold: Ticket, read: u64) {
        let held = self
            .reader(reader, from)
            .and_then(|rank| rank.holds.remove(&hold));
        if let Some(StepLease { step, .. }) = held {
            if let Some(group) = self.groups.groups.get_mut(&reader.group) {
                group.total.read = group.total.read.saturating_add(read);
            }
            self.unhold(step);
            self.settle();
        }
    }

    pub(super) fn unhold(&mut self, step: Step) {
        if let Some(stored) = self.store.steps.get_mut(&step) {
            stored.holds -= 1;
        }
        self.store.suspect(step);
    }
}
