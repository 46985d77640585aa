//! The coordinator of all streams of a domain, a pure state machine: streams by name, one admission
//! control, and the requests that wait for a name.
//!
//! [`Coordinator::on_event`] takes an event and its time, and returns the messages to send, in
//! order. It has no other input or output. The coordinator lives in one process of the domain (the
//! agent, beside its block store). If that process dies, the streams die with it.

use super::admission::{Admission, Decision, Shortage};
use super::figures::Lines;
use super::ledger::Ledger;
use super::opening::{Opening, Pending};
use super::stream::{self, Stream};
use super::watch::Watches;
use super::{
    Answer, BlockStoreInfo, BufferId, Fault, Figures, History, Names, Notice, Order, Peer, Request,
    StreamFigures, StreamId, Ticket, Wait,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// An input of the coordinator.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, and taken as soon as it is made"
)]
pub enum Event {
    /// A message from a peer.
    Said(Peer, Request),
    /// A peer is lost; nothing from this incarnation follows.
    Lost(Peer),
    /// These peers are alive but have not received what was sent to them: they are given no more
    /// steps until they have.
    Slow(BTreeSet<Peer>),
    /// The name of a block store, for errors.
    Named(Peer, Arc<str>),
    /// Time has passed.
    Tick,
}

/// An output of the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send this to that peer.
    Send(Peer, Notice),
}

/// All streams of a domain.
#[derive(Debug, Default)]
pub struct Coordinator {
    run: u64,
    pub(super) now: u64,
    pub(super) streams: BTreeMap<StreamId, Stream>,
    /// Subscriptions to streams that have ended, with the news not delivered yet.
    pub(super) left: BTreeMap<StreamId, Watches>,
    pub(super) names: HashMap<String, StreamId>,
    pub(super) next_stream: u64,
    pub(super) admission: Admission,
    pub(super) pending: Vec<Pending>,
    pub(super) ledger: Ledger,
    /// When each block store last made progress with a buffer: allocated memory for it or wrote it
    /// to its disk.
    pub(super) worked: BTreeMap<Peer, u64>,
    /// The stream with which the next [`Event::Tick`] begins, if the last one ran out of answers
    /// before it.
    pub(super) first_due: Option<StreamId>,
    /// Processes of which several threads make requests.
    pub(super) threaded: BTreeSet<Peer>,
    /// Peers that currently get no more steps.
    pub(super) slow: Arc<BTreeSet<Peer>>,
    /// What was opened since the beginning.
    pub(super) history: History,
    /// The names of block stores. Those of lost ones stay for the errors about them.
    pub(super) block_store_names: Arc<Names>,
    out: Vec<Action>,
}

impl Coordinator {
    /// Returns a coordinator without streams or block stores.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Coordinator::new`], with a number that no other coordinator has.
    pub fn of_run(run: u64) -> Self {
        Coordinator {
            run,
            ..Self::default()
        }
    }

    /// Handles an event at `now` (in ms, never less than before).
    pub fn on_event(&mut self, now: u64, event: Event) -> Vec<Action> {
        assert!(now >= self.now, "time went back from {} to {now}", self.now);
        self.now = now;
        self.ledger.begin_event();
        for stream in self.streams.values_mut() {
            stream.set_now(now);
        }
        match event {
            Event::Said(from, request) => self.said(from, request),
            Event::Lost(peer) => self.lost(peer),
            Event::Slow(peers) => self.slow(peers),
            Event::Named(peer, name) => self.name(peer, name),
            Event::Tick => self.tick(),
        }
        self.settle();
        let mut out = std::mem::take(&mut self.out);
        for Action::Send(_, notice) in &mut out {
            if let Notice::Answer {
                answer: Answer::Failed(fault) | Answer::Waiting(fault),
                ..
            } = notice
            {
                fault.name_block_stores(&self.block_store_names);
            }
        }
        out
    }

    /// Returns the latest time for [`Event::Tick`]; it may be early. `None` if nothing waits.
    pub fn wake_at(&self) -> Option<u64> {
        let streams = self.streams.values().filter_map(Stream::wake_at);
        let pending = self.pending.iter().map(|pending| pending.until);
        let mut left = self.left.values();
        let left = left.any(Watches::has_answers).then_some(self.now);
        streams.chain(pending).chain(left).min()
    }

    /// Returns the state of the streams, in the order of their opening, as many as fit.
    pub fn figures(&self) -> Vec<StreamFigures> {
        self.streams_listed(&mut Lines::new())
    }

    fn streams_listed(&self, lines: &mut Lines) -> Vec<StreamFigures> {
        let mut listed = Vec::new();
        for (&id, stream) in &self.streams {
            if lines.take() {
                listed.push(StreamFigures {
                    bytes: self.admission.used_by(id),
                    ..stream.figures(lines)
                });
            }
        }
        listed
    }

    /// Returns the number of streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the admission control.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns the number of subscriptions, including those to streams that have ended.
    pub fn subscriptions(&self) -> usize {
        let there = self.streams.values().map(Stream::watches);
        let left = self.left.values();
        there.chain(left).map(|watches| watches.watches.len()).sum()
    }

    /// Returns the state of everything.
    fn all_figures(&self) -> Figures {
        let mut lines = Lines::new();
        let streams = self.streams_listed(&mut lines);
        let opening = self.pending.iter().filter(|_| lines.take());
        let opening = opening.map(|pending| Wait {
            who: pending.opening.who(),
            peer: pending.from,
            whom: format!("the stream {}", pending.name),
            on: Vec::new(),
            ms: self.now - pending.since,
        });
        let opening = opening.collect();
        Figures {
            streams,
            block_stores: self.admission.figures(),
            opening,
            more: lines.more,
        }
    }

    fn said(&mut self, from: Peer, request: Request) {
        match request {
            Request::Keep {
                memory,
                buffers,
                disk,
            } => {
                self.admission.block_store(from, memory, buffers, disk);
                self.budget_changed();
                self.streams.values_mut().for_each(Stream::room_on_disk);
            }
            Request::Report(report) => {
                self.tell(report.buffer().stream, |stream| stream.report(from, report));
            }
            // Opening a stream.
            Request::BlockStores { ticket } => {
                let block_stores = self.block_stores();
                self.answer(from, ticket, Answer::BlockStores { block_stores });
            }
            Request::OpenWriter {
                ticket,
                stream,
                program,
                rank,
                size,
                config,
                timeout,
                gives_up,
            } => {
                let opening = Opening::Writer {
                    program,
                    rank,
                    size,
                    config,
                    gives_up,
                };
                self.open(from, ticket, stream, opening, timeout);
            }
            Request::OpenReader {
                ticket,
                stream,
                reader,
                timeout,
                gives_up,
            } => {
                let opening = Opening::Reader(reader, gives_up);
                self.open(from, ticket, stream, opening, timeout);
            }
            // Writing.
            Request::Begin {
                ticket,
                writer,
                step,
                wants,
                timeout,
            } => self.ask(from, ticket, writer.stream, |stream| {
                stream.begin(from, writer.rank, ticket, Some(step), wants, timeout);
            }),
            Request::Reserve {
                ticket,
                writer,
                wants,
                timeout,
            } => self.ask(from, ticket, writer.stream, |stream| {
                stream.begin(from, writer.rank, ticket, None, wants, timeout);
            }),
            Request::Commit {
                ticket,
                writer,
                part,
                keep,
            } => {
                self.ask(from, ticket, writer.stream, |stream| {
                    stream.commit(from, writer.rank, ticket, part, keep)
                });
            }
            // Reading.
            Request::Next {
                ticket,
                reader,
                timeout,
            } => {
                self.ask(from, ticket, reader.stream, |stream| {
                    stream.take(from, reader, ticket, None, timeout)
                });
            }
            Request::At {
                ticket,
                reader,
                step,
                timeout,
            } => {
                self.ask(from, ticket, reader.stream, |stream| {
                    stream.take(from, reader, ticket, Some(step), timeout)
                });
            }
            Request::Abort { writer } => {
                self.tell(writer.stream, |stream| stream.abort(from, writer.rank))
            }
            Request::CloseWriter { ticket, writer } => {
                self.ask(from, ticket, writer.stream, |stream| {
                    stream.close_writer(from, writer.rank, ticket)
                });
            }
            Request::LeaveWriter { writer } => {
                self.tell(writer.stream, |stream| {
                    stream.leave_writer(from, writer.rank)
                });
            }
            Request::Release { reader, hold, read } => {
                self.tell(reader.stream, |stream| {
                    stream.release(from, reader, hold, read);
                });
            }
            Request::CloseReader { reader } => {
                self.tell(reader.stream, |stream| stream.close_reader(from, reader));
            }
            // Watching. Subscriptions outlive their stream, so `left` is asked first.
            Request::OpenWatch {
                ticket,
                stream,
                interest,
                start,
                most,
                timeout,
            } => {
                let opening = Opening::Watch {
                    interest: *interest,
                    start,
                    most,
                };
                self.open(from, ticket, stream, opening, timeout);
            }
            Request::Watch {
                ticket,
                watch,
                timeout,
            } => {
                let left = self.left.get_mut(&watch.stream);
                let at = (self.now, self.now);
                if left.is_some_and(|left| left.ask(from, watch.number, ticket, at)) {
                    return self.tell_left(watch.stream);
                }
                self.ask(from, ticket, watch.stream, |stream| {
                    stream.ask_watch(from, watch.number, ticket, timeout);
                });
            }
            Request::CloseWatch { watch } => {
                if let Some(left) = self.left.get_mut(&watch.stream) {
                    left.close(from, watch.number);
                    self.tell_left(watch.stream);
                }
                self.tell(watch.stream, |stream| {
                    stream.close_watch(from, watch.number)
                });
            }
            Request::Forget { ticket } => self.forget_opening(from, ticket),
            Request::Figures { ticket } => {
                let figures = self.all_figures();
                self.answer(from, ticket, Answer::Figures(figures));
            }
            Request::History { ticket } => {
                let history = Box::new(self.history.clone());
                self.answer(from, ticket, Answer::History(history));
            }
            Request::Run { ticket } => {
                let run = self.run;
                self.answer(from, ticket, Answer::Run { run });
            }
            Request::Threads => {
                self.threaded.insert(from);
            }
        }
    }

    /// Tells subscriptions of a stream that has ended what is left, and forgets the stream when no
    /// subscription remains.
    pub(super) fn tell_left(&mut self, stream: StreamId) {
        let Some(left) = self.left.get_mut(&stream) else {
            return;
        };
        let told = left.take_answers(self.ledger.answers_left());
        if left.is_empty() {
            self.left.remove(&stream);
        }
        for (to, ticket, answer) in told {
            self.ledger.say(0);
            self.answer(to, ticket, answer);
        }
    }

    fn tell(&mut self, stream: StreamId, what: impl FnOnce(&mut Stream)) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            what(stream);
        }
    }

    fn ask(
        &mut self,
        from: Peer,
        ticket: Ticket,
        stream: StreamId,
        what: impl FnOnce(&mut Stream),
    ) {
        match self.streams.get_mut(&stream) {
            Some(stream) => what(stream),
            None => self.answer(from, ticket, Answer::Failed(Fault::NotOpen)),
        }
    }

    /// Records the name of a block store. There are few; a domain in which very many come and go
    /// forgets those that are lost.
    fn name(&mut self, peer: Peer, name: Arc<str>) {
        const MOST: usize = 1000;
        let names = Arc::make_mut(&mut self.block_store_names);
        if names.len() >= MOST {
            let admission = &self.admission;
            names.retain(|known, _| admission.block_stores().any(|(peer, _)| peer == *known));
        }
        names.insert(peer, name);
        for stream in self.streams.values_mut() {
            stream.set_names(&self.block_store_names);
        }
    }

    pub(super) fn answer(&mut self, to: Peer, ticket: Ticket, answer: Answer) {
        self.out
            .push(Action::Send(to, Notice::Answer { ticket, answer }));
    }

    pub(super) fn block_stores(&self) -> Vec<BlockStoreInfo> {
        let block_stores = self.admission.block_stores();
        block_stores
            .map(|(peer, capacity)| BlockStoreInfo { peer, capacity })
            .collect()
    }

    fn lost(&mut self, peer: Peer) {
        self.pending.retain(|pending| pending.from != peer);
        self.worked.remove(&peer);
        self.threaded.remove(&peer);
        let refused = self.admission.block_store_lost(peer);
        for stream in self.streams.values_mut() {
            stream.lost(peer);
        }
        self.left.retain(|_, left| {
            left.lost(peer);
            !left.is_empty()
        });
        self.decide(refused);
        self.budget_changed();
    }

    fn slow(&mut self, peers: BTreeSet<Peer>) {
        self.slow = Arc::new(peers);
        for stream in self.streams.values_mut() {
            stream.set_slow(&self.slow);
        }
    }

    fn budget_changed(&mut self) {
        let memory = self.admission.memory();
        for stream in self.streams.values_mut() {
            stream.set_budget(memory);
        }
    }

    /// Carries out what follows from an event, until nothing more follows.
    fn settle(&mut self) {
        // A step that was released or sealed may give way to a request now, although no action
        // says so.
        let mut is_asked = self.admission.waiting();
        loop {
            let mut news = self.carry_out() | std::mem::take(&mut is_asked);
            news |= self.admission.has_changed();
            if news {
                let decisions = self.admission.pump();
                self.decide(decisions);
            }
            news |= self.forget_over();
            news |= self.look_again();
            news |= self.open_pending();
            if !news && !self.admission.has_changed() {
                return;
            }
        }
    }

    /// Retries the streams in which a request waits for the coordinator's memory, if some was
    /// freed. Returns true if there were any.
    fn look_again(&mut self) -> bool {
        let streams = self.ledger.who_may_look_again();
        for id in &streams {
            self.tell(*id, Stream::settle);
        }
        !streams.is_empty()
    }

    /// Tells the streams what admission control has decided, and lets them make room.
    fn decide(&mut self, decisions: Vec<Decision>) {
        let mut changed = BTreeSet::new();
        for decision in decisions {
            let (Decision::Granted(request)
            | Decision::Wait(request, _)
            | Decision::Spill(request, _)
            | Decision::Refused(request, _)) = decision;
            match decision {
                Decision::Wait(..) => {}
                Decision::Spill(_, short) => self.make_room(request.stream, short),
                Decision::Granted(_) | Decision::Refused(..) => {
                    changed.insert(request.stream);
                }
            }
            self.tell(request.stream, |stream| stream.decision(decision));
        }
        for stream in changed {
            self.tell(stream, Stream::settle);
        }
    }

    /// Lets a stream whose request waits drop or spill steps, and then the other streams, if it
    /// waits for a block store at which they have memory.
    fn make_room(&mut self, own: StreamId, short: Shortage) {
        let (mut missing, at) = (short.missing, short.block_store);
        self.tell(own, |stream| missing = stream.make_room(missing, at));
        let Some(block_store) = at.filter(|_| missing > 0) else {
            return;
        };
        for other in self.admission.users_of(block_store) {
            if other != own && missing > 0 {
                self.tell(other, |stream| missing = stream.make_room(missing, at));
            }
        }
    }

    /// Carries out the streams' actions. Returns true if there were any.
    pub(super) fn carry_out(&mut self) -> bool {
        let mut news = false;
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            let actions = self
                .streams
                .get_mut(&id)
                .map(Stream::take_actions)
                .unwrap_or_default();
            news |= !actions.is_empty();
            for action in actions {
                self.carry(action);
            }
        }
        news
    }

    fn carry(&mut self, action: stream::Action) {
        match action {
            stream::Action::Send(to, notice) => self.out.push(Action::Send(to, notice)),
            stream::Action::Request(request) => {
                if let Some(refused) = self.admission.request(request) {
                    self.decide(vec![refused]);
                }
            }
            stream::Action::Withdraw(request) => self.admission.withdraw(request),
            stream::Action::Freed(buffer, block_store, bytes) => {
                self.admission.freed(buffer, block_store, bytes)
            }
            stream::Action::FreedDisk(buffer) => self.admission.free_disk(buffer),
            stream::Action::RoomOnDisk => self.streams.values_mut().for_each(Stream::room_on_disk),
            stream::Action::Looked {
                stream,
                variable,
                there,
            } => self.history.looked(&stream, &variable, there),
            stream::Action::HasWorked(block_store) => {
                self.worked.insert(block_store, self.now);
            }
            stream::Action::Spill(buffer, block_store, bytes) => {
                self.spill(buffer, block_store, bytes)
            }
        }
    }

    fn spill(&mut self, buffer: BufferId, block_store: Peer, bytes: u64) {
        if self.admission.take_disk(buffer, block_store, bytes) {
            let order = Notice::Order(Order::Spill { buffer });
            self.out.push(Action::Send(block_store, order));
        } else {
            self.tell(buffer.stream, |stream| stream.spill_refused(buffer));
        }
    }

    /// Forgets the streams that have ended. Returns true if there were any.
    pub(super) fn forget_over(&mut self) -> bool {
        let over: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.is_over())
            .map(|(&id, _)| id)
            .collect();
        for &id in &over {
            let actions = self
                .streams
                .get_mut(&id)
                .map(Stream::take_actions)
                .unwrap_or_default();
            actions.into_iter().for_each(|action| self.carry(action));
            if let Some(mut stream) = self.streams.remove(&id) {
                let left = stream.take_watches();
                if !left.is_empty() {
                    self.left.insert(id, left);
                }
                self.names
                    .retain(|name, named| *named != id || name != stream.name());
            }
            self.admission.stream_over(id);
        }
        !over.is_empty()
    }
}
