//! The writer ranks: opening and beginning (back-pressure). `grants` contains their requests,
//! `commit` their commits, `ending` how they end.

use super::{Stream, costs};
use crate::protocol::admission::{RequestId, Shortage};
use crate::protocol::ledger::Charge;
use crate::protocol::{
    Answer, BlockStoreInfo, Failure, Fault, Layout, LayoutHash, Peer, Step, Ticket, Want, WriterId,
};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriterState {
    Here(Peer),
    /// Has not opened the stream yet, or has failed (died, or gave up); may (re)open it until then.
    Away(u64),
    Closed,
}

/// The progress of a request for a step or for buffers.
#[derive(Debug)]
pub(super) enum Stage {
    /// Its step cannot begin yet.
    Queued,
    /// At admission control; the shortage says why it waits, if it does.
    Asked(RequestId, Option<Shortage>),
    /// At the block stores; this many have not answered.
    Allocating(Vec<u64>, u32),
}

/// When a request was granted its buffers, and what had been short until then.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) at: u64,
    pub(super) short: Option<Shortage>,
}

/// A request of a rank that is not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) peer: Peer,
    pub(super) ticket: Ticket,
    pub(super) until: u64,
    pub(super) since: u64,
    /// Since it was granted its buffers. Boxed, because every rank has room for two requests.
    pub(super) granted: Option<Box<Grant>>,
    /// The step to begin, or `None` for more buffers of the open one.
    pub(super) begin: Option<Step>,
    pub(super) wants: Vec<Want>,
    /// Its process, or all of them, use too much of the coordinator's memory for one more step, and
    /// readers have yet to take some of it.
    pub(super) is_over: bool,
    pub(super) stage: Stage,
    /// Its cost while it waits.
    _charge: Charge,
}

impl PendingRequest {
    /// Returns the buffers that it has been granted.
    pub(super) fn buffers(&self) -> &[u64] {
        match &self.stage {
            Stage::Allocating(buffers, _) => buffers,
            Stage::Queued | Stage::Asked(..) => &[],
        }
    }
}

/// A layout, its hash, and its bytes in a message.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) hash: LayoutHash,
    pub(super) layout: Arc<Layout>,
    pub(super) length: u64,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) place: WriterState,
    /// The process that opened it last, and by which request.
    pub(super) by: (Peer, Ticket),
    /// Why it is away, while it is.
    pub(super) failure: Failure,
    /// First step that it has not committed.
    pub(super) next: Step,
    /// It has begun step `next`.
    pub(super) begun: bool,
    /// Its buffers that are not part of a commit.
    pub(super) buffers: Vec<u64>,
    pub(super) asking: Option<PendingRequest>,
    /// Its last request, if that was to be repeated: it keeps its place at admission control, and
    /// the buffers that it was granted, for the same request.
    pub(super) aside: Option<PendingRequest>,
    /// The layout that it committed last.
    pub(super) layout: Option<Known>,
    /// The step that it committed last, if it still reads it: the open one, or the newest.
    pub(super) kept: Option<Step>,
    /// Its waits end after a time-out of its own.
    pub(super) gives_up: bool,
    /// The cost of its last part at the coordinator, without its layout.
    pub(super) part_cost: u64,
}

/// The ranks of the writer program.
#[derive(Debug)]
pub(super) struct Writers {
    program: String,
    pub(super) ranks: Vec<Rank>,
    pub(super) next_ask: u64,
}

impl Writers {
    /// Returns ranks that have not opened the stream; each may until `until`.
    pub(super) fn new(program: &str, size: u32, until: u64) -> Self {
        let rank = |_| Rank {
            place: WriterState::Away(until),
            by: (Peer(0), Ticket(0)),
            failure: Failure::NeverCame,
            next: 0,
            begun: false,
            buffers: Vec::new(),
            asking: None,
            aside: None,
            layout: None,
            kept: None,
            gives_up: false,
            part_cost: 0,
        };
        Writers {
            program: program.to_owned(),
            ranks: (0..size).map(rank).collect(),
            next_ask: 0,
        }
    }

    pub(super) fn program(&self) -> &str {
        &self.program
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the buffers that are not part of a commit, of all ranks.
    pub(super) fn buffers(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranks.iter().flat_map(|rank| {
            let requests = rank.asking.iter().chain(&rank.aside);
            let allocating = requests.flat_map(PendingRequest::buffers);
            rank.buffers.iter().chain(allocating).copied()
        })
    }
}

impl Stream {
    /// Opens the stream for a writer rank: `by` are its process and its request. `block_stores` are
    /// the current ones.
    ///
    /// # Errors
    /// Another program's stream, another size, a rank beyond it or taken, a stream that is over.
    /// The last two may pass.
    pub fn open_writer(
        &mut self,
        by: (Peer, Ticket),
        program: &str,
        rank: u32,
        size: u32,
        block_stores: Vec<BlockStoreInfo>,
        gives_up: bool,
    ) -> Result<Answer, Fault> {
        let writers = &mut self.writers;
        if writers.program != program {
            return Err(Fault::TwoWriters {
                stream: self.name.clone(),
                there: writers.program.clone(),
                program: program.to_owned(),
            });
        }
        let there = writers.ranks.len() as u32;
        let program = program.to_owned();
        if size != there {
            return Err(Fault::SizeDiffers {
                program,
                rank,
                size,
                there,
            });
        }
        let Some(state) = writers.ranks.get_mut(rank as usize) else {
            return Err(Fault::RankBeyond {
                program,
                rank,
                size,
            });
        };
        if let Some(why) = self.end {
            let stream = self.name.clone();
            return Err(Fault::Over { stream, why });
        }
        if let WriterState::Here(peer) = state.place {
            return Err(Fault::RankTaken {
                program,
                rank,
                peer: peer.into(),
            });
        }
        (state.place, state.by) = (WriterState::Here(by.0), by);
        state.gives_up = gives_up;
        let next = state.next;
        if self.store.open.parts.is_empty() {
            self.store.start(there as usize);
        }
        Ok(Answer::Writing {
            writer: WriterId {
                stream: self.id,
                rank,
            },
            committed: self.store.committed,
            next,
            block_stores,
        })
    }

    /// Returns true if that process is that rank.
    pub(super) fn writer_is(&self, rank: u32, peer: Peer) -> bool {
        let rank = self.writers.ranks.get(rank as usize);
        rank.is_some_and(|rank| rank.place == WriterState::Here(peer))
    }

    /// Begins a step for a rank (`begin`), or requests more buffers for the one it has begun.
    #[allow(clippy::too_many_arguments, reason = "the fields of two requests")]
    pub fn begin(
        &mut self,
        from: Peer,
        rank: u32,
        ticket: Ticket,
        begin: Option<Step>,
        wants: Vec<Want>,
        timeout: u64,
    ) {
        let answer = match self.may_ask(from, rank, begin) {
            Err(fault) => Some(Answer::Failed(fault)),
            Ok(already) => already,
        };
        if let Some(answer) = answer {
            return self.answer(from, ticket, answer);
        }
        let aside = self.take_aside(rank as usize, begin, &wants);
        let cost = self.cost_to_begin(rank as usize, wants.len());
        let afforded = match begin {
            _ if aside.is_some() => Ok(()),
            Some(_) => self.afford(from, cost),
            None => self.afford_begun(from, cost),
        };
        let is_over = match afforded {
            Ok(()) => false,
            // The rank waits, as at a limit.
            Err(_) if begin.is_some() && self.store.costs.ledger.may_have(from, cost) => true,
            Err(fault) => return self.fail(from, ticket, fault),
        };
        let (stage, granted) = match aside {
            Some(aside) => (aside.stage, aside.granted),
            None => (Stage::Queued, None),
        };
        let until = self.after(timeout);
        let charge = (self.store.costs.ledger).charge(from, costs::of_wants(wants.len()));
        self.writers.ranks[rank as usize].asking = Some(PendingRequest {
            peer: from,
            ticket,
            until,
            since: self.now,
            granted,
            begin,
            wants,
            is_over,
            stage,
            _charge: charge,
        });
        self.wake_by(until);
        self.begin_if_allocated(rank as usize);
        self.settle();
    }

    /// Checks a request; returns the answer if it can be given at once.
    fn may_ask(&self, from: Peer, rank: u32, begin: Option<Step>) -> Result<Option<Answer>, Fault> {
        if !self.writer_is(rank, from) {
            return Err(Fault::NotOpen);
        }
        self.not_ended()?;
        let state = &self.writers.ranks[rank as usize];
        let next = state.next;
        if state.asking.is_some() {
            return Err(Fault::Busy);
        }
        match begin {
            None if !state.begun => Err(Fault::NotBegun { step: next }),
            Some(step) if step < next => Ok(Some(Answer::Already { next })),
            Some(step) if step > next || state.begun => Err(Fault::WrongStep { asked: step, next }),
            _ => Ok(None),
        }
    }

    pub(super) fn not_ended(&self) -> Result<(), Fault> {
        let Some(end) = self.end else {
            return Ok(());
        };
        let fault = end.fault(&self.name, Some(self.writers.program()));
        Err(fault.unwrap_or(Fault::NotOpen))
    }

    /// Lets waiting requests begin if possible. Called after every event.
    pub(super) fn admit(&mut self) {
        // The same for all ranks, so computed once.
        let mut is_open = None;
        // The process, and the least cost, that did not fit in this event: many of its ranks may
        // wait.
        let mut no_room: Option<(Peer, u64)> = None;
        for rank in 0..self.writers.ranks.len() {
            let Some(asking) = &self.writers.ranks[rank].asking else {
                continue;
            };
            if !matches!(asking.stage, Stage::Queued) {
                continue;
            }
            let (peer, ticket) = (asking.peer, asking.ticket);
            let (is_over, wants) = (asking.is_over, asking.wants.len());
            if let Some(step) = asking.begin {
                let refusal = self.not_ended().err().or_else(|| self.closed_without(step));
                if let Some(fault) = refusal {
                    self.take_asking(rank);
                    self.fail(peer, ticket, fault);
                    continue;
                }
                if step > self.store.committed || !*is_open.get_or_insert_with(|| self.open_step())
                {
                    continue;
                }
                let cost = self.cost_to_begin(rank, wants);
                let fits_not = |(whose, least)| whose == peer && least <= cost;
                if is_over && no_room.is_some_and(fits_not) {
                    continue;
                }
                if is_over && let Err(fault) = self.afford(peer, cost) {
                    if self.store.costs.ledger.may_have(peer, cost) {
                        self.store.costs.ledger.wait(self.id);
                        no_room = Some((peer, cost));
                    } else {
                        self.take_asking(rank);
                        self.fail(peer, ticket, fault);
                    }
                    continue;
                }
            }
            self.ask(rank);
        }
    }

    /// Returns an error if a rank has closed the stream and so never commits `step`.
    pub(super) fn closed_without(&self, step: Step) -> Option<Fault> {
        let ranks = self.writers.ranks.iter();
        let closed = ranks
            .enumerate()
            .find(|(_, rank)| rank.place == WriterState::Closed && rank.next <= step);
        closed.map(|(rank, state)| Fault::RankClosed {
            stream: self.name.clone(),
            program: self.writers.program().to_owned(),
            rank: rank as u32,
            step: state.next,
        })
    }

    /// Returns true if back-pressure lets the open step begin; then it does so for all ranks.
    fn open_step(&mut self) -> bool {
        if !self.store.open.admitted {
            let bytes = self.store.last_bytes;
            let full = self
                .groups
                .who_is_full(&self.store, self.store.committed, bytes);
            self.store.open.admitted = full.is_none();
        }
        self.store.open.admitted
    }

    /// Returns the buffers of a step that a rank has begun.
    pub fn abort(&mut self, from: Peer, rank: u32) {
        if !self.writer_is(rank, from) {
            return;
        }
        let step = self.writers.ranks[rank as usize].next;
        // A later grant would begin the step again.
        if let Some((peer, ticket)) = self.stop_asking(rank as usize) {
            self.fail(peer, ticket, Fault::NotBegun { step });
        }
        self.drop_uncommitted(rank as usize);
        self.settle();
    }

    pub(super) fn drop_uncommitted(&mut self, rank: usize) {
        let state = &mut self.writers.ranks[rank];
        state.begun = false;
        for number in std::mem::take(&mut state.buffers) {
            self.free_buffer(number);
        }
        self.drop_aside(rank);
    }

    /// Ends the hold of a rank on the step that it committed last.
    pub(super) fn let_go(&mut self, rank: usize) {
        let kept = self.writers.ranks[rank].kept.take();
        // A step that is still open has no holds yet.
        if let Some(step) = kept.filter(|&step| step < self.store.committed) {
            self.unhold(step);
        }
    }
}
