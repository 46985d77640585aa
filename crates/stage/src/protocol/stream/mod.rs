//! One stream: a pure state machine that turns the messages of its writers, readers and block
//! stores into answers and orders.
//!
//! # States
//! ```text
//!   step:    (open) ranks begin, reserve, commit --all parts--> (sealing) --all buffers sealed--> (committed)
//!            (committed) queued by groups, taken, held, retained --no reader can get it--> (freed)
//!                        in memory <--> being spilled --> on disk
//!   buffer:  requested -> written -> sealing -> read -> spilling -> on disk; freed once; or lost with its block store
//!   writer rank:  away (not opened yet, for as long as `linger`; or failed, for its lease) <-> here -> closed
//!   reader rank:  away (the same) <-> here -> closed; or gone (its lease has ended)
//!   stream:  running -> ended (well: every rank has closed it; failed: one is away beyond its lease) -> over (no group is left)
//! ```
//!
//! # Rules
//! * S1 One step is open at a time: a rank begins step k + 1 when step k is committed, by all
//!   ranks. So half-written steps never hold more than one step's memory, and no two of them can
//!   wait for each other.
//! * S2 A step is committed when the parts of all ranks have arrived and all buffers are sealed.
//!   Then it is one record, which the death of a writer does not change. Once all parts have
//!   arrived, no lease ends the stream before the buffers are sealed or lost.
//! * S3 A rank that gives up without closing is treated as one that died. What a failed rank had
//!   committed to the open step stays; the rest is freed at once. A part that is committed again is
//!   ignored if it is the same, and refused otherwise.
//! * S4 All ranks of a group take the same steps in the same order: the first rank to ask decides
//!   the next one. If the writer does not wait for the group, that rank waits for the last one when
//!   the steps between them are at the group's limit.
//! * S5 A step is freed when no group has it in its queue, no rank of a group has yet to take it,
//!   no rank holds it, and it is neither retained nor the precious first. Then each of its buffers
//!   is freed, once.
//! * S6 A dead reader rank's holds end at once. What it had not taken is kept for it until its
//!   lease ends; if it returns later, it continues with the step that the group takes next. A group
//!   without any remaining rank is forgotten.
//! * S7 Before the first group, a nameless placeholder stands for it: it has what the first one
//!   will find, under the default limits. If the writer names the expected groups, there is a
//!   placeholder for each until it opens the stream.
//! * S8 After the last committed step, readers get the end of the stream and its reason. Writers
//!   get an error. A stream ends well only if every rank has closed it.
//! * S9 A writer rank may hold the step that it committed last, until its next commit is accepted,
//!   or it closes, dies, or the stream ends. Its hold is like a reader's: the step is neither freed
//!   nor spilled. It is not part of any queue, so it makes no writer wait at a limit; admission
//!   control refuses at once any request of its rank that can never fit beside it. By S1 it is the
//!   newest step: there is at most one step more than those of the queues and the open one.
//! * S10 A rank that has closed has committed as many steps as any other ever will: a rank that is
//!   behind another one cannot close, and no rank commits a step that a closed rank has not. So no
//!   rank was told of the commit of a step that is never completed.
//!
//! # Not guaranteed
//! * A reader that died while it held a step does not get the step again. A program that must not
//!   miss one copies what it needs before the release, and restarts from its own copy.
//! * Steps that only a dead block store had are damaged: readers get an error that names the block
//!   store, and go on.
//! * A reader that holds steps forever makes `Block` writers wait until their deadlines.
//!
//! # Files
//! `mod` (the entry points of the machine, and what follows every event) · `writers` · `grants`
//! (their requests) · `commit` (their parts) · `late` (what they wait for at a deadline) · `ending`
//! (of writers and the stream) · `groups` (of readers) · `readers` · `taking` (their steps) ·
//! `store` (committed steps) · `buffers` · `spill` · `check` (whether the parts of the ranks fit
//! together) · `costs` (what they use of the coordinator's memory) · `matching` (what a step
//! contains of a box) · `watching` (subscriptions) · `waits` (which rank waits for which) ·
//! `circles` (whether they wait for each other)

mod buffers;
mod check;
mod circles;
mod commit;
mod costs;
mod ending;
mod grants;
mod groups;
mod late;
mod matching;
mod readers;
mod spill;
mod store;
mod taking;
mod waits;
mod watching;
mod writers;

use super::admission::{MemoryRequest, RequestId, Shortage};
use super::ledger::{Charge, Ledger};
use super::watch::Watches;
use super::{
    Answer, BufferId, EndOfStream, Fault, LONGEST_LEASE, Limits, Notice, Order, Peer, Policy,
    StreamConfig, StreamId, Ticket,
};
use crate::protocol::{Names, Room, Step};
pub(super) use circles::{Keeping, Member, Stuck};
use costs::Costs;
use groups::{Groups, ReaderState};
pub(super) use matching::Found;
use matching::Matcher;
use samite_fabric::Named;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::Store;
use writers::{WriterState, Writers};

/// An output of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send this.
    Send(Peer, Notice),
    /// Send a request to admission control.
    Request(MemoryRequest),
    /// Withdraw that request.
    Withdraw(RequestId),
    /// The memory of a buffer at a block store is free (after the order to free it, or the report
    /// of the spill).
    Freed(BufferId, Peer, u64),
    /// A block store should spill a buffer of that length: reserve the disk and order it, or report
    /// that it failed.
    Spill(BufferId, Peer, u64),
    /// The disk space of a buffer at a block store is free, if it had any.
    FreedDisk(BufferId),
    /// A spilled buffer was freed: all streams may spill again.
    RoomOnDisk,
    /// A step has a variable to which a process has subscribed, for the first time since then; or
    /// the first step that it looked at has not, but others (the step, and some of them).
    Looked {
        /// The name of the stream.
        stream: String,
        /// The name of the variable.
        variable: String,
        /// The others.
        there: Option<(Step, Vec<String>)>,
    },
    /// A block store makes progress: it has allocated a buffer or written it to disk, in whole or
    /// in part.
    HasWorked(Peer),
}

/// What a stream needs to know of the others to decide which requests wait for living processes.
#[derive(Debug)]
pub struct Others<'a> {
    /// Whether the memory that it waits for, if it does, belongs to living processes that do not
    /// wait themselves.
    pub memory_moves: bool,
    /// The processes that wait for an answer.
    pub waiting: &'a BTreeSet<Peer>,
    /// The processes that wait for each other, so that none of them is ever answered, each with the
    /// chain of waits that starts at it.
    pub circles: &'a BTreeMap<Peer, Arc<[String]>>,
    /// The processes whose use of the coordinator's memory will fall when living readers or ranks
    /// make progress.
    pub eased: &'a BTreeSet<Peer>,
    /// When each block store last made progress with a buffer.
    pub worked: &'a BTreeMap<Peer, u64>,
}

impl Others<'_> {
    /// Returns true if a block store has made progress with any buffer since then: a request that
    /// waits for one of its buffers waits for its turn.
    fn has_worked(&self, block_store: Peer, since: u64) -> bool {
        self.worked.get(&block_store).is_some_and(|at| *at >= since)
    }
}

/// A stream. See the module for its rules.
#[derive(Debug)]
pub struct Stream {
    id: StreamId,
    name: String,
    config: StreamConfig,
    /// Memory of all block stores; default limits are a quarter of it.
    budget: u64,
    writers: Writers,
    groups: Groups,
    store: Store,
    matcher: Matcher,
    watches: Watches,
    end: Option<EndOfStream>,
    /// Peers that currently get no more steps.
    slow: Arc<BTreeSet<Peer>>,
    /// The names of block stores, for the texts about waits.
    names: Arc<Names>,
    /// Its cost to the process that opened it, without its groups and subscriptions.
    _charge: Option<Charge>,
    /// When it was opened.
    since: u64,
    /// When the next deadline or lease may end; never too late.
    wake: Option<u64>,
    now: u64,
    out: Vec<Action>,
}

impl Stream {
    /// Returns a stream that no rank has opened yet, at time `now`; `budget` is the memory of all
    /// block stores.
    pub fn new(
        now: u64,
        id: StreamId,
        name: &str,
        program: &str,
        size: u32,
        mut config: StreamConfig,
        budget: u64,
    ) -> Self {
        // A stream that nobody opens any more must not stay forever.
        config.lease = config.lease.min(LONGEST_LEASE);
        config.linger = config.linger.min(LONGEST_LEASE);
        let until = now.saturating_add(config.lease.max(config.linger));
        let mut stream = Stream {
            id,
            name: name.to_owned(),
            writers: Writers::new(program, size, until),
            groups: Groups::default(),
            store: Store::new(&config),
            matcher: Matcher::default(),
            watches: Watches::default(),
            slow: Arc::default(),
            names: Arc::default(),
            _charge: None,
            since: now,
            config,
            budget,
            end: None,
            wake: Some(until),
            now,
            out: Vec::new(),
        };
        stream.expect();
        stream
    }

    /// Charges its contents to `ledger`, and its own cost to `peer`, which opened it first. `slow`:
    /// the peers that currently get no more steps.
    pub(super) fn opened_by(
        mut self,
        peer: Peer,
        cost: u64,
        ledger: &Ledger,
        slow: &Arc<BTreeSet<Peer>>,
    ) -> Self {
        self.slow = slow.clone();
        self.store.costs = Costs::new(ledger);
        self._charge = Some(ledger.charge(peer, cost));
        self
    }

    fn expect(&mut self) {
        let usual = self.default_limits();
        for expected in &self.config.expected {
            let limits = expected.limits.unwrap_or(usual);
            let name = Some(expected.group.clone());
            self.groups.expect(name, expected.policy, limits);
        }
        if self.groups.is_empty() && self.config.unread == super::Unread::Block {
            self.groups.expect(None, Policy::Block, usual);
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of committed steps.
    pub fn committed(&self) -> Step {
        self.store.committed
    }

    /// Returns why no more steps will follow, once it has ended.
    pub fn end(&self) -> Option<EndOfStream> {
        self.end
    }

    /// Returns true if nothing of it is left: the stream can be forgotten.
    pub fn is_over(&self) -> bool {
        self.end.is_some() && self.groups.is_empty()
    }

    /// Returns true if it has ended and no reader has ever opened it: another stream may take its
    /// name.
    pub fn is_abandoned(&self) -> bool {
        self.end.is_some() && self.groups.only_expected()
    }

    /// Returns the latest time for [`tick`](Self::tick); it may be early.
    pub fn wake_at(&self) -> Option<u64> {
        self.wake
    }

    /// Returns the actions since the last call, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.tell_watches();
        std::mem::take(&mut self.out)
    }

    /// Frees everything: no reader has ever opened the ended stream, and another one takes its
    /// name.
    pub fn abandon(&mut self) {
        assert!(self.is_abandoned(), "somebody still reads");
        self.groups.clear();
        self.settle();
    }

    /// Handles the loss of a process: as a writer, as a reader, as a block store.
    pub fn lost(&mut self, peer: Peer) {
        self.block_store_lost(peer);
        self.writer_lost(peer);
        self.reader_lost(peer);
        self.watches.lost(peer);
        self.settle();
    }

    /// Closes what `from` has opened by the request `ticket`, whose answer it does not know. Its
    /// rank may be opened again, as that of a process that has died.
    pub fn forget_opening(&mut self, from: Peer, ticket: Ticket) {
        let by = (from, ticket);
        let mut ranks = self.writers.ranks.iter();
        let opened = ranks.position(|rank| rank.place == WriterState::Here(from) && rank.by == by);
        if let Some(rank) = opened {
            self.leave_writer(from, rank as u32);
        }
        let is_it = |rank: &groups::Rank| rank.place == ReaderState::Here(from) && rank.by == by;
        let mut groups = self.groups.groups.values();
        let reads = groups.any(|group| group.ranks.iter().any(is_it));
        let watched = self.watches.forget_opening(from, ticket);
        // Any process may say this of anything, and as often as it likes.
        if opened.is_some() || reads || watched {
            self.readers_leave(is_it);
            self.settle();
        }
    }

    /// Sets the processes that currently get no more steps.
    pub(super) fn set_slow(&mut self, slow: &Arc<BTreeSet<Peer>>) {
        self.slow = slow.clone();
        self.settle();
    }

    /// Sets the names of block stores.
    pub(super) fn set_names(&mut self, names: &Arc<Names>) {
        self.names = names.clone();
    }

    /// Returns the name of a block store.
    fn named(&self, block_store: Peer) -> Named<Peer> {
        Named::new(block_store, self.names.get(&block_store).cloned())
    }

    /// Sets the time (ms, never less than before) until the next call.
    pub fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Sets the memory of all block stores.
    pub fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// Handles deadlines and leases.
    pub fn tick(&mut self, others: &Others<'_>) {
        if self.wake.is_none_or(|wake| wake > self.now) {
            return;
        }
        self.wake = None;
        self.writers_tick(others);
        self.readers_tick(others);
        self.watches_tick();
        self.settle();
    }

    /// Carries out what follows from any event: completes a step, serves readers, frees or spills
    /// steps, lets writers begin.
    pub(super) fn settle(&mut self) {
        self.complete();
        self.close_if_all_have();
        self.serve();
        self.sweep();
        self.spill_beyond();
        self.admit();
        if self.is_over() {
            self.store.let_go();
            self.sweep();
            debug_assert_eq!(self.store.stored(), 0, "an ended stream left steps behind");
        }
    }

    fn default_limits(&self) -> Limits {
        self.config.limits.unwrap_or(Limits {
            steps: 2,
            bytes: self.budget / 4,
        })
    }

    /// Returns how many more answers this event may have; the others follow at once in the next
    /// one.
    fn answers_left(&self) -> usize {
        self.store.costs.ledger.answers_left()
    }

    fn answer(&mut self, to: Peer, ticket: Ticket, answer: Answer) {
        // The caller counts a step by its length.
        if !matches!(answer, Answer::Step(_)) {
            self.store.costs.ledger.say(0);
        }
        self.out
            .push(Action::Send(to, Notice::Answer { ticket, answer }));
    }

    fn fail(&mut self, to: Peer, ticket: Ticket, fault: Fault) {
        self.answer(to, ticket, Answer::Failed(fault));
    }

    /// Answers a request for a step whose deadline has passed.
    fn late(
        &mut self,
        to: Peer,
        ticket: Ticket,
        fault: Fault,
        is_alive: bool,
        others: &Others<'_>,
    ) {
        let answer = match others.circles.get(&to) {
            Some(waits) if is_alive => Answer::Failed(Fault::Circle {
                waits: waits.clone(),
            }),
            _ if is_alive => Answer::Waiting(fault),
            _ => Answer::Failed(fault),
        };
        self.answer(to, ticket, answer);
    }

    fn order(&mut self, block_store: Peer, order: Order) {
        self.out
            .push(Action::Send(block_store, Notice::Order(order)));
    }

    /// Makes sure that the stream is woken at `at`.
    fn wake_by(&mut self, at: u64) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Returns the time `ms` from now.
    fn after(&self, ms: u64) -> u64 {
        self.now.saturating_add(ms)
    }

    fn no_memory(short: &Shortage, stream: &str) -> Fault {
        if let (true, Some(block_store)) = (short.counts_buffers, short.block_store) {
            return Fault::NoBuffer {
                used: short.used,
                limit: short.limit,
                block_store: block_store.into(),
            };
        }
        Fault::NoMemory {
            bytes: short.missing,
            used: short.used,
            limit: short.limit,
            at: match short.block_store {
                Some(block_store) => Room::BlockStore(block_store.into()),
                None => Room::Stream(stream.to_owned()),
            },
        }
    }
}
