//! The coordinator of all streams of a domain, pure: streams by name, one governor, who waits for a name to be there.
//!
//! [`Steward::on_event`] takes what happened and when, and returns what is to be said, in order. Nothing else goes in or out.
//! It lives in one process of the domain (the agent, beside its keeper); when that dies, the streams die with it.

use super::governor::{Governor, Verdict};
use super::stream::{self, Stream};
use super::{
    Answer, BufferId, EndOfStream, Fault, KeeperInfo, Notice, Order, Peer, Reader, Report, Request,
    StreamConfig, StreamId, Ticket,
};
use std::collections::{BTreeMap, HashMap};

/// What happens to the steward.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A peer says something.
    Said(Peer, Request),
    /// A peer is gone; nothing comes from that life of it after this.
    Lost(Peer),
    /// Time has passed.
    Tick,
}

/// What the steward wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Say this to that peer.
    Send(Peer, Notice),
}

/// How a stream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFigures {
    /// Its number.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// Who writes it.
    pub program: String,
    /// Number of committed steps.
    pub committed: u64,
    /// Number of steps that are still there.
    pub stored: u64,
    /// Bytes in memory; filled by [`Steward::figures`].
    pub bytes: u64,
    /// Why there will be no more steps.
    pub end: Option<EndOfStream>,
    /// Its reader groups.
    pub groups: Vec<GroupFigures>,
}

/// How a reader group stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFigures {
    /// Its name; `None` for the one that has not come yet.
    pub name: Option<String>,
    /// Steps in its queue.
    pub queued: u64,
    /// Bytes of these.
    pub queued_bytes: u64,
    /// Steps that it has taken and not yet released everywhere.
    pub in_use: u64,
    /// Ranks that are here.
    pub here: u32,
    /// Ranks that it should have.
    pub size: u32,
}

/// A stream is to be opened.
#[derive(Clone, Debug)]
enum Opening {
    Writer {
        program: String,
        rank: u32,
        size: u32,
        config: StreamConfig,
    },
    Reader(Reader),
}

/// Somebody waits for a name: for its stream to appear or to be over, or for its rank to be free.
#[derive(Clone, Debug)]
struct Pending {
    from: Peer,
    ticket: Ticket,
    until: u64,
    name: String,
    opening: Opening,
}

/// All streams of a domain.
#[derive(Debug, Default)]
pub struct Steward {
    now: u64,
    streams: BTreeMap<StreamId, Stream>,
    names: HashMap<String, StreamId>,
    next_stream: u32,
    governor: Governor,
    pending: Vec<Pending>,
    out: Vec<Action>,
}

impl Steward {
    /// No streams, no keepers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something happens at `now` (ms, never less than before).
    pub fn on_event(&mut self, now: u64, event: Event) -> Vec<Action> {
        assert!(now >= self.now, "time went back from {} to {now}", self.now);
        self.now = now;
        for stream in self.streams.values_mut() {
            stream.set_now(now);
        }
        match event {
            Event::Said(from, request) => self.said(from, request),
            Event::Lost(peer) => self.lost(peer),
            Event::Tick => self.streams.values_mut().for_each(Stream::tick),
        }
        self.settle();
        std::mem::take(&mut self.out)
    }

    /// When [`Event::Tick`] is due at the latest; it may be early. `None`: nothing waits.
    pub fn wake_at(&self) -> Option<u64> {
        let streams = self.streams.values().filter_map(Stream::wake_at);
        let pending = self.pending.iter().map(|pending| pending.until);
        streams.chain(pending).min()
    }

    /// How every stream stands, by the order of their opening.
    pub fn figures(&self) -> Vec<StreamFigures> {
        let streams = self.streams.iter();
        streams
            .map(|(&id, stream)| StreamFigures {
                bytes: self.governor.used_by(id),
                ..stream.figures()
            })
            .collect()
    }

    /// Who has how much memory.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    fn said(&mut self, from: Peer, request: Request) {
        match request {
            Request::Keep { memory, disk } => {
                self.governor.keeper(from, memory, disk);
                self.budget_changed();
            }
            Request::Report(report) => {
                let (Report::Held { buffer, .. }
                | Report::Refused { buffer }
                | Report::Sealed { buffer }
                | Report::Spilled { buffer }
                | Report::SpillFailed { buffer }) = report;
                if let Some(stream) = self.streams.get_mut(&buffer.stream) {
                    stream.report(from, report);
                }
            }
            Request::Keepers { ticket } => {
                let keepers = self.keepers();
                self.answer(from, ticket, Answer::Keepers { keepers });
            }
            Request::OpenWriter {
                ticket,
                stream,
                program,
                rank,
                size,
                config,
                patience,
            } => {
                let opening = Opening::Writer {
                    program,
                    rank,
                    size,
                    config,
                };
                self.open(from, ticket, stream, opening, patience);
            }
            Request::OpenReader {
                ticket,
                stream,
                reader,
                patience,
            } => {
                self.open(from, ticket, stream, Opening::Reader(reader), patience);
            }
            Request::Begin {
                ticket,
                writer,
                step,
                wants,
                patience,
            } => {
                self.ask(from, ticket, writer.stream, |stream| {
                    stream.begin(from, writer.rank, ticket, Some(step), wants, patience);
                });
            }
            Request::Reserve {
                ticket,
                writer,
                wants,
                patience,
            } => {
                self.ask(from, ticket, writer.stream, |stream| {
                    stream.begin(from, writer.rank, ticket, None, wants, patience);
                });
            }
            Request::Commit {
                ticket,
                writer,
                part,
            } => {
                self.ask(from, ticket, writer.stream, |stream| {
                    stream.commit(from, writer.rank, ticket, part)
                });
            }
            Request::Next {
                ticket,
                reader,
                patience,
            } => {
                self.ask(from, ticket, reader.stream, |stream| {
                    stream.take(from, reader, ticket, None, patience)
                });
            }
            Request::At {
                ticket,
                reader,
                step,
                patience,
            } => {
                self.ask(from, ticket, reader.stream, |stream| {
                    stream.take(from, reader, ticket, Some(step), patience)
                });
            }
            Request::Abort { writer } => {
                self.tell(writer.stream, |stream| stream.abort(from, writer.rank))
            }
            Request::CloseWriter { writer } => {
                self.tell(writer.stream, |stream| {
                    stream.close_writer(from, writer.rank)
                });
            }
            Request::Release { reader, hold } => {
                self.tell(reader.stream, |stream| stream.release(from, reader, hold));
            }
            Request::CloseReader { reader } => {
                self.tell(reader.stream, |stream| stream.close_reader(from, reader));
            }
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

    fn answer(&mut self, to: Peer, ticket: Ticket, answer: Answer) {
        self.out
            .push(Action::Send(to, Notice::Answer { ticket, answer }));
    }

    fn open(&mut self, from: Peer, ticket: Ticket, name: String, opening: Opening, patience: u64) {
        let until = self.now.saturating_add(patience);
        self.pending.push(Pending {
            from,
            ticket,
            until,
            name,
            opening,
        });
    }

    fn keepers(&self) -> Vec<KeeperInfo> {
        let keepers = self.governor.keepers();
        keepers
            .map(|(peer, capacity)| KeeperInfo { peer, capacity })
            .collect()
    }

    fn lost(&mut self, peer: Peer) {
        self.pending.retain(|pending| pending.from != peer);
        let refused = self.governor.keeper_lost(peer);
        for stream in self.streams.values_mut() {
            stream.lost(peer);
        }
        for verdict in refused {
            self.verdict(verdict);
        }
        self.budget_changed();
    }

    fn budget_changed(&mut self) {
        let memory = self.governor.memory();
        for stream in self.streams.values_mut() {
            stream.set_budget(memory);
        }
    }

    /// What follows from any event, until nothing follows.
    fn settle(&mut self) {
        loop {
            let mut news = self.carry_out();
            if news {
                for verdict in self.governor.pump() {
                    self.verdict(verdict);
                }
            }
            self.forget_over();
            news |= self.open_pending();
            if !news {
                return;
            }
        }
    }

    fn verdict(&mut self, verdict: Verdict) {
        let (Verdict::Granted(ask)
        | Verdict::Wait(ask, _)
        | Verdict::Spill(ask, _)
        | Verdict::Refused(ask, _)) = &verdict;
        if let Some(stream) = self.streams.get_mut(&ask.stream) {
            stream.verdict(verdict);
        }
    }

    /// Does what the streams want; says whether there was anything.
    fn carry_out(&mut self) -> bool {
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
            stream::Action::Ask(ask) => {
                if let Some(refused) = self.governor.ask(ask) {
                    self.verdict(refused);
                }
            }
            stream::Action::Withdraw(ask) => self.governor.withdraw(ask),
            stream::Action::Freed(buffer, keeper, bytes) => {
                self.governor.freed(buffer, keeper, bytes)
            }
            stream::Action::FreedDisk(buffer) => self.governor.free_disk(buffer),
            stream::Action::Spill(buffer, keeper, bytes) => self.spill(buffer, keeper, bytes),
        }
    }

    fn spill(&mut self, buffer: BufferId, keeper: Peer, bytes: u64) {
        if self.governor.take_disk(buffer, keeper, bytes) {
            let order = Notice::Order(Order::Spill { buffer });
            self.out.push(Action::Send(keeper, order));
        } else {
            self.tell(buffer.stream, |stream| stream.spill_refused(buffer));
        }
    }

    fn forget_over(&mut self) {
        let over: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.is_over())
            .map(|(&id, _)| id)
            .collect();
        for id in over {
            let actions = self
                .streams
                .get_mut(&id)
                .map(Stream::take_actions)
                .unwrap_or_default();
            actions.into_iter().for_each(|action| self.carry(action));
            if let Some(stream) = self.streams.remove(&id) {
                self.names
                    .retain(|name, named| *named != id || name != stream.name());
            }
            self.governor.stream_over(id);
        }
    }

    /// Lets those in who wait to open a stream and can, turns those away who cannot; says whether there were any.
    fn open_pending(&mut self) -> bool {
        let mut news = false;
        for pending in std::mem::take(&mut self.pending) {
            let answer = match self.try_open(&pending) {
                Ok(answer) => answer,
                Err(fault) if may_pass(&fault) && pending.until > self.now => {
                    self.pending.push(pending);
                    continue;
                }
                Err(fault) => Answer::Failed(fault),
            };
            news = true;
            self.answer(pending.from, pending.ticket, answer);
        }
        news
    }

    fn try_open(&mut self, pending: &Pending) -> Result<Answer, Fault> {
        let (program, size) = match &pending.opening {
            Opening::Writer { program, size, .. } => (program, *size),
            Opening::Reader(reader) => (&reader.group, reader.size),
        };
        if size > MOST_RANKS {
            return Err(Fault::TooManyRanks {
                program: program.clone(),
                size,
                most: MOST_RANKS,
            });
        }
        let known = self.names.get(&pending.name).copied();
        match &pending.opening {
            Opening::Reader(reader) => {
                let stream = known.and_then(|id| self.streams.get_mut(&id));
                let stream = stream.ok_or_else(|| Fault::NoStream {
                    stream: pending.name.clone(),
                })?;
                stream.open_reader(pending.from, reader)
            }
            Opening::Writer {
                program,
                rank,
                size,
                config,
            } => {
                let abandoned = known
                    .and_then(|id| self.streams.get_mut(&id))
                    .filter(|stream| stream.is_abandoned());
                if let Some(stream) = abandoned {
                    stream.abandon();
                    self.carry_out();
                    self.forget_over();
                }
                let id = match self.names.get(&pending.name) {
                    Some(&id) => id,
                    None if rank < size => self.new_stream(&pending.name, program, *size, config),
                    None => {
                        return Err(Fault::RankBeyond {
                            program: program.clone(),
                            rank: *rank,
                            size: *size,
                        });
                    }
                };
                let keepers = self.keepers();
                let stream = self.streams.get_mut(&id).ok_or(Fault::NotOpen)?;
                stream.open_writer(pending.from, program, *rank, *size, keepers)
            }
        }
    }

    fn new_stream(
        &mut self,
        name: &str,
        program: &str,
        size: u32,
        config: &StreamConfig,
    ) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.governor
            .stream(id, name, config.memory.unwrap_or(u64::MAX));
        let stream = Stream::new(
            self.now,
            id,
            name,
            program,
            size,
            config.clone(),
            self.governor.memory(),
        );
        self.streams.insert(id, stream);
        self.names.insert(name.to_owned(), id);
        id
    }
}

/// Most ranks that a program may have: a word of nonsense must not cost all memory.
const MOST_RANKS: u32 = 1 << 20;

/// Whether waiting may help.
fn may_pass(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::NoStream { .. } | Fault::RankTaken { .. } | Fault::Over { .. }
    )
}
