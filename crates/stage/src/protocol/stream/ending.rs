//! How writer ranks close, fail or are lost, and how the stream ends.

use super::Stream;
use super::late::MOMENT;
use super::writers::{Known, WriterState};
use crate::protocol::{Answer, EndOfStream, Failure, Fault, Peer, Ticket};

impl Stream {
    /// Returns why a rank cannot close (S10): another rank was told that a step is committed which
    /// this one has not committed.
    fn closes_early(&self, rank: usize) -> Option<Fault> {
        let step = self.writers.ranks[rank].next;
        let mut others = self.writers.ranks.iter();
        let other = others.position(|other| other.next > step)?;
        Some(Fault::ClosesEarly {
            stream: self.name.clone(),
            program: self.writers.program().to_owned(),
            rank: rank as u32,
            step,
            other: other as u32,
        })
    }

    /// Closes a rank that has written everything. Fails if the stream has failed in the meantime,
    /// or cannot end well if this rank closes.
    pub fn close_writer(&mut self, from: Peer, rank: u32, ticket: Ticket) {
        if !self.writer_is(rank, from) {
            return self.fail(from, ticket, Fault::NotOpen);
        }
        let answer = match self.not_ended() {
            Ok(()) => match self.closes_early(rank as usize) {
                Some(fault) => return self.fail(from, ticket, fault),
                None => Answer::Closed,
            },
            Err(fault) => Answer::Failed(fault),
        };
        self.answer(from, ticket, answer);
        if let Some((peer, ticket)) = self.stop_asking(rank as usize) {
            self.fail(peer, ticket, Fault::NotOpen);
        }
        self.drop_uncommitted(rank as usize);
        self.let_go(rank as usize);
        self.writers.ranks[rank as usize].place = WriterState::Closed;
        self.settle();
    }

    /// Handles a rank that gives up, after an error or a panic.
    pub fn leave_writer(&mut self, from: Peer, rank: u32) {
        if !self.writer_is(rank, from) {
            return;
        }
        if let Some((peer, ticket)) = self.stop_asking(rank as usize) {
            self.fail(peer, ticket, Fault::NotOpen);
        }
        self.rank_failed(rank as usize, Failure::GaveUp);
        self.settle();
    }

    /// Ends the stream once all ranks have closed and everything that can be completed is.
    pub(super) fn close_if_all_have(&mut self) {
        let all = self
            .writers
            .ranks
            .iter()
            .all(|rank| rank.place == WriterState::Closed);
        if all && !self.is_sealing() && self.end.is_none() {
            self.end_stream(EndOfStream::Closed);
        }
    }

    /// Returns true if every rank was told that the open step is committed; it will be as soon as
    /// its block stores have sealed it.
    pub(super) fn is_sealing(&self) -> bool {
        let open = &self.store.open;
        open.missing == 0 && open.sealing > 0
    }

    /// Returns true if the last rank committed the open step only a moment ago: its block stores
    /// have had no time to seal it.
    pub(super) fn has_just_been_written(&self) -> bool {
        self.is_sealing() && self.now < self.store.open.last_part_at.saturating_add(MOMENT)
    }

    /// Wakes the stream for the leases of the ranks that are away.
    pub(super) fn wake_for_leases(&mut self) {
        let ranks = self.writers.ranks.iter();
        let leases = ranks.filter_map(|rank| match rank.place {
            WriterState::Away(until) => Some(until),
            _ => None,
        });
        if let Some(until) = leases.min() {
            self.wake_by(until);
        }
    }

    pub(super) fn end_stream(&mut self, why: EndOfStream) {
        self.end = Some(why);
        for rank in 0..self.writers.ranks.len() {
            if let Some((peer, ticket)) = self.stop_asking(rank)
                && let Err(fault) = self.not_ended()
            {
                self.fail(peer, ticket, fault);
            }
            self.drop_uncommitted(rank);
            self.let_go(rank);
        }
        self.drop_open();
        self.end_watches(why);
        self.linger();
    }

    /// Handles the loss of a process that may be a writer rank.
    pub(super) fn writer_lost(&mut self, peer: Peer) {
        for rank in 0..self.writers.ranks.len() {
            if self.writers.ranks[rank].place == WriterState::Here(peer) {
                self.rank_failed(rank, Failure::Died);
            }
        }
    }

    /// Handles a rank that is gone without having closed: what it had not committed is lost. It may
    /// return until its lease ends.
    pub(super) fn rank_failed(&mut self, rank: usize, how: Failure) {
        self.stop_asking(rank);
        self.drop_uncommitted(rank);
        self.let_go(rank);
        let until = self.after(self.config.lease);
        let state = &mut self.writers.ranks[rank];
        (state.place, state.failure) = (WriterState::Away(until), how);
        // A rank that returns does not know the previous layout.
        if let Some(Known { layout, .. }) = state.layout.take() {
            self.store.costs.let_go(&layout);
        }
        self.wake_by(until);
    }
}
