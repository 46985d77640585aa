//! The deadlines and leases of writer ranks: whether those live for whom a question waits, and what
//! it has waited for.

use super::buffers::{Buffer, State};
use super::writers::{PendingRequest, Stage, WriterState};
use super::{Others, Stream};
use crate::protocol::admission::Shortage;
use crate::protocol::{EndOfStream, Fault, Peer};
use std::cell::OnceCell;

/// The groups that do not let the open step begin.
struct Full {
    /// The first one: its name, and how many steps it is behind.
    first: Option<(Option<String>, u64)>,
    are_alive: bool,
}

impl Stream {
    fn who_is_full(&self) -> Full {
        let (step, bytes) = (self.store.committed, self.store.last_bytes);
        Full {
            first: self.groups.who_is_full(&self.store, step, bytes),
            are_alive: self.groups.full_are_alive(&self.store, step, bytes),
        }
    }

    /// Ends the questions of writer ranks whose deadline is over, or has them asked again; and the
    /// stream when a lease is.
    pub(super) fn writers_tick(&mut self, others: &Others<'_>) {
        // Found out once for all ranks: it is the same for each, and takes a look at all that
        // readers hold.
        let full = OnceCell::new();
        for rank in 0..self.writers.ranks.len() {
            let state = &self.writers.ranks[rank];
            if let Some(asking) = &state.asking {
                let until = asking.until;
                if until <= self.now && self.answers_left() > 0 {
                    let full = || full.get_or_init(|| self.who_is_full());
                    let fault = self.why_late(rank, full);
                    let is_alive = self.waits_for_living(rank, others, full);
                    let grows = matches!(&asking.stage, Stage::Allocating(buffers, _) if self.grow(buffers));
                    let stopped = match is_alive && grows {
                        true => self.set_aside(rank),
                        false => self.stop_asking(rank),
                    };
                    if let Some((peer, ticket)) = stopped {
                        self.late(peer, ticket, fault, is_alive, others);
                    }
                } else {
                    self.wake_by(until.max(self.now));
                }
            }
            if let WriterState::Away(until) = self.writers.ranks[rank].place
                && self.end.is_none()
            {
                if until > self.now {
                    self.wake_by(until);
                } else if !self.is_sealing() {
                    let how = self.writers.ranks[rank].failure;
                    let rank = rank as u32;
                    self.end_stream(EndOfStream::WriterFailed { rank, how });
                }
            }
        }
    }

    /// Whether the question of a rank waits for living writers or readers alone. Memory is waited
    /// for beyond the deadline only where it moves: who has it may wait for this rank.
    fn waits_for_living<'f>(
        &self,
        rank: usize,
        others: &Others<'_>,
        full: impl FnOnce() -> &'f Full,
    ) -> bool {
        let Some(asking) = &self.writers.ranks[rank].asking else {
            return false;
        };
        let step = self.store.committed;
        match &asking.stage {
            Stage::Queued if asking.begin > Some(step) => self.next_is_alive(),
            Stage::Queued if self.too_much(rank).is_some() => self.is_eased(rank, asking, others),
            Stage::Queued => full().are_alive,
            Stage::Asked(..) => others.memory_moves,
            Stage::Allocating(buffers, _) => {
                let waits = |peer| others.waiting.contains(&peer);
                let goes_on = |buffer: &Buffer| match buffer.is_full {
                    true => !buffer.had_by.is_some_and(waits),
                    false => others.has_worked(buffer.block_store, asking.since),
                };
                self.unallocated(buffers).all(goes_on)
            }
        }
    }

    /// Whether those live who have steps of its process still to take or to let go of, or steps of
    /// all processes: whichever it has too many of.
    fn is_eased(&self, rank: usize, asking: &PendingRequest, others: &Others<'_>) -> bool {
        let ledger = &self.store.costs.ledger;
        let cost = self.cost_to_begin(rank, asking.wants.len());
        let own = ledger.check_own(asking.peer, cost).is_ok();
        let all = ledger.check_all(cost).is_ok();
        (own || others.eased.contains(&asking.peer)) && (all || !others.eased.is_empty())
    }

    /// The processes and the costs of the steps that wait for less to be in use of the
    /// coordinator's memory.
    pub(in crate::protocol) fn over_memory(&self) -> impl Iterator<Item = (Peer, u64)> {
        let ranks = self.writers.ranks.iter().enumerate();
        let over = ranks.filter_map(|(rank, state)| Some((rank, state.asking.as_ref()?)));
        over.filter(|(rank, _)| self.too_much(*rank).is_some())
            .map(|(rank, asking)| (asking.peer, self.cost_to_begin(rank, asking.wants.len())))
    }

    /// Whether steps are there that nobody but living readers has still to take, or holds; or a
    /// part of one without which living ranks have not committed it yet.
    pub(in crate::protocol) fn eases(&self) -> bool {
        let is_read = self.groups.has_unread() && self.groups.unread_are_alive();
        let is_begun = self.store.open.parts.iter().any(Option::is_some);
        is_read || is_begun && self.end.is_none() && self.next_is_alive()
    }

    /// Why a step that could begin has to wait for what others have still to take, if that is what
    /// it waits for.
    pub(super) fn too_much(&self, rank: usize) -> Option<Fault> {
        let asking = self.writers.ranks[rank].asking.as_ref();
        let waits = |asking: &&PendingRequest| {
            let is_next = asking.begin <= Some(self.store.committed);
            asking.is_over && is_next && matches!(asking.stage, Stage::Queued)
        };
        let asking = asking.filter(|_| self.store.open.admitted).filter(waits)?;
        let cost = self.cost_to_begin(rank, asking.wants.len());
        self.store.costs.ledger.check(asking.peer, cost).err()
    }

    /// Those of the buffers that their block stores have not given yet.
    pub(super) fn unallocated<'a>(
        &'a self,
        buffers: &'a [u64],
    ) -> impl Iterator<Item = &'a Buffer> {
        let buffers = buffers.iter().map(|number| &self.store.buffers[number]);
        buffers.filter(|buffer| buffer.state == State::Asked)
    }

    /// Whether their block stores make those that are not there yet, and none has to wait for
    /// memory that is in use.
    pub(super) fn grow(&self, buffers: &[u64]) -> bool {
        self.unallocated(buffers).all(|buffer| !buffer.is_full)
    }

    /// What a question that comes to its deadline has waited for.
    fn why_late<'f>(&self, rank: usize, full: impl FnOnce() -> &'f Full) -> Fault {
        let Some(asking) = &self.writers.ranks[rank].asking else {
            return Fault::Busy;
        };
        let stream = self.name.clone();
        let bytes = asking
            .wants
            .iter()
            .fold(0u64, |sum, want| sum.saturating_add(want.bytes));
        match &asking.stage {
            Stage::Allocating(buffers, _) => {
                let mut waits = self.unallocated(buffers);
                // One that says nothing is the worse news.
                let first = self.unallocated(buffers).find(|buffer| !buffer.is_full);
                let first = first.or_else(|| waits.next());
                let block_store = first.map_or(Peer(0), |buffer| buffer.block_store);
                match first.is_some_and(|buffer| buffer.is_full) {
                    true => Fault::StillInUse { block_store, bytes },
                    false => Fault::BlockStoreSilent { block_store, bytes },
                }
            }
            Stage::Asked(_, short) => {
                if let Some(steps) = self.groups.unread_steps().filter(|&steps| steps > 0) {
                    return Fault::NobodyReads { stream, steps };
                }
                let none = Shortage {
                    missing: bytes,
                    used: 0,
                    limit: 0,
                    block_store: None,
                    counts_buffers: false,
                };
                Stream::no_memory(short.as_ref().unwrap_or(&none), &self.name)
            }
            Stage::Queued => {
                let step = self.store.committed;
                if asking.begin > Some(step) {
                    let behind = self.writers.ranks.iter().position(|rank| rank.next == step);
                    return match behind {
                        Some(rank) => Fault::WriterBehind {
                            stream,
                            rank: rank as u32,
                            step,
                        },
                        None => Fault::BlockStoreSilent {
                            block_store: self.unsealed(),
                            bytes: self.store.last_bytes,
                        },
                    };
                }
                if let Some(fault) = self.too_much(rank) {
                    return fault;
                }
                match &full().first {
                    Some((Some(group), steps)) => Fault::ReadersBehind {
                        stream,
                        group: group.clone(),
                        steps: *steps,
                    },
                    &Some((None, steps)) => Fault::NobodyReads { stream, steps },
                    None => Fault::WriterBehind {
                        stream,
                        rank: rank as u32,
                        step,
                    },
                }
            }
        }
    }

    /// A block store that has a buffer of the open step still to seal.
    pub(super) fn unsealed(&self) -> Peer {
        let sealing = self
            .store
            .buffers
            .values()
            .filter(|buffer| buffer.state == State::Sealing);
        sealing
            .map(|buffer| buffer.block_store)
            .min()
            .unwrap_or(Peer(0))
    }
}
