//! The deadlines and leases of writer ranks: whether a late request waits for living processes, and
//! what it has waited for.

use super::buffers::{Buffer, State};
use super::writers::{PendingRequest, Stage, WriterState};
use super::{Others, Stream};
use crate::protocol::admission::Shortage;
use crate::protocol::{EndOfStream, Fault, Peer};
use std::cell::OnceCell;

/// The time in milliseconds that a block store has to allocate memory that was granted, and to seal
/// a step that is complete, even if the request had waited for others up to its deadline.
pub(super) const MOMENT: u64 = 1000;

impl PendingRequest {
    /// Returns what was short until a moment ago, if the request was granted its buffers then.
    fn just_granted(&self, now: u64) -> Option<Option<Shortage>> {
        let grant = self.granted.as_deref()?;
        (now < grant.at.saturating_add(MOMENT)).then_some(grant.short)
    }
}

/// The groups that do not let the open step begin.
struct Full {
    /// The first one: its name, and how many steps it is behind.
    first: Option<(Option<String>, u64)>,
    are_alive: bool,
}

impl Stream {
    fn who_is_full(&self) -> Full {
        let (step, bytes) = (self.store.committed, self.store.last_bytes);
        let first = self.groups.who_is_full(&self.store, step, bytes);
        Full {
            first: first.map(|(group, steps)| (group.name.clone(), steps)),
            are_alive: self.groups.full_are_alive(&self.store, step, bytes),
        }
    }

    /// Ends the requests of writer ranks whose deadline has passed, or answers that they may be
    /// repeated. Ends the stream when a lease has ended.
    pub(super) fn writers_tick(&mut self, others: &Others<'_>) {
        // Computed once for all ranks: the result is the same, and it looks at all steps that
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
                    let is_repeated = is_alive && !others.circles.contains_key(&asking.peer);
                    let stays = match &asking.stage {
                        Stage::Queued => false,
                        Stage::Asked(..) => true,
                        Stage::Allocating(buffers, _) => self.grow(buffers),
                    };
                    let stopped = match is_repeated && stays {
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

    /// Returns true if the request of a rank waits only for living writers or readers. A wait for
    /// memory outlasts its deadline only if that memory moves: its owner may wait for this rank.
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
                    false => {
                        asking.just_granted(self.now).is_some()
                            || others.has_worked(buffer.block_store, asking.since)
                    }
                };
                self.unallocated(buffers).all(goes_on)
            }
        }
    }

    /// Returns true if living readers or ranks will reduce what exceeds its limit: the memory use
    /// of its process, or of all processes.
    fn is_eased(&self, rank: usize, asking: &PendingRequest, others: &Others<'_>) -> bool {
        let ledger = &self.store.costs.ledger;
        let cost = self.cost_to_begin(rank, asking.wants.len());
        let own = ledger.check_own(asking.peer, cost).is_ok();
        let all = ledger.check_all(cost).is_ok();
        (own || others.eased.contains(&asking.peer)) && (all || !others.eased.is_empty())
    }

    /// Returns the processes and the costs of the steps that wait for the coordinator's own memory.
    pub(in crate::protocol) fn over_memory(&self) -> impl Iterator<Item = (Peer, u64)> {
        let ranks = self.writers.ranks.iter().enumerate();
        let over = ranks.filter_map(|(rank, state)| Some((rank, state.asking.as_ref()?)));
        over.filter(|(rank, _)| self.too_much(*rank).is_some())
            .map(|(rank, asking)| (asking.peer, self.cost_to_begin(rank, asking.wants.len())))
    }

    /// Returns true if stored steps wait only for living readers to take or release them, or if the
    /// open step has a part and waits only for living ranks.
    pub(in crate::protocol) fn eases(&self) -> bool {
        let is_read = self.groups.has_unread() && self.groups.unread_are_alive();
        let is_begun = self.store.open.parts.iter().any(Option::is_some);
        is_read || is_begun && self.end.is_none() && self.next_is_alive()
    }

    /// Returns why a step that could begin waits for the coordinator's own memory, if it does.
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

    /// Returns those of the buffers that their block stores have not allocated yet.
    pub(super) fn unallocated<'a>(
        &'a self,
        buffers: &'a [u64],
    ) -> impl Iterator<Item = &'a Buffer> {
        let buffers = buffers.iter().map(|number| &self.store.buffers[number]);
        buffers.filter(|buffer| buffer.state == State::Asked)
    }

    /// Returns true if the missing buffers are being allocated, and none has to wait for memory
    /// that is in use.
    pub(super) fn grow(&self, buffers: &[u64]) -> bool {
        self.unallocated(buffers).all(|buffer| !buffer.is_full)
    }

    /// Returns what a request whose deadline has passed has waited for.
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
                // Name a silent block store first: that is the worse problem.
                let first = self.unallocated(buffers).find(|buffer| !buffer.is_full);
                let first = first.or_else(|| waits.next());
                let block_store = first.map_or(Peer(0), |buffer| buffer.block_store).into();
                match first.is_some_and(|buffer| buffer.is_full) {
                    true => Fault::StillInUse { block_store, bytes },
                    // The block store had no time, so tell what the request had waited for.
                    false => match asking.just_granted(self.now).flatten() {
                        Some(short) => Stream::no_memory(&short, &self.name),
                        None => Fault::BlockStoreSilent { block_store, bytes },
                    },
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
                            program: self.writers.program().to_owned(),
                            rank: rank as u32,
                            step,
                        },
                        // Every rank has committed it, so its block stores have yet to seal it.
                        None => Fault::NoStep {
                            stream,
                            committed: step,
                            whom: self.whom_next_waits_for().text,
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
                        program: self.writers.program().to_owned(),
                        rank: rank as u32,
                        step,
                    },
                }
            }
        }
    }

    /// Returns a block store that has yet to seal a buffer of the open step.
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
