//! The writer ranks: opening, beginning (back-pressure), buffers, closing, dying. What they commit is in `commit`.

use super::store::State;
use super::{Action, Stream};
use crate::protocol::governor::{Ask, AskId, Shortage, Verdict};
use crate::protocol::{
    Answer, BufferAt, EndOfStream, Fault, KeeperInfo, Layout, LayoutHash, Peer, Step, Ticket, Want,
    WriterId,
};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Here(Peer),
    /// Dead, or has not come yet; may come (back) until then.
    Away(u64),
    Closed,
}

/// How far a question for a step or for buffers has come.
#[derive(Debug)]
enum Stage {
    /// Its step cannot begin yet.
    Queued,
    /// At the governor; why it waits there, if it does.
    Asked(AskId, Option<Shortage>),
    /// At the keepers; so many have not answered.
    Allocating(Vec<u64>, u32),
}

/// What a rank has asked and not been answered.
#[derive(Debug)]
pub(super) struct Asking {
    peer: Peer,
    ticket: Ticket,
    until: u64,
    /// The step to begin, or `None` for more buffers of the open one.
    begin: Option<Step>,
    wants: Vec<Want>,
    stage: Stage,
}

#[derive(Debug)]
pub(super) struct Rank {
    place: Place,
    /// First step that it has not committed.
    pub(super) next: Step,
    /// It has begun step `next`.
    pub(super) begun: bool,
    /// Its buffers that are not part of a commit.
    pub(super) buffers: Vec<u64>,
    pub(super) asking: Option<Asking>,
    /// The layout that it committed last.
    pub(super) layout: Option<(LayoutHash, Arc<Layout>)>,
}

/// The ranks of the writer program.
#[derive(Debug)]
pub(super) struct Writers {
    program: String,
    pub(super) ranks: Vec<Rank>,
    next_ask: u64,
}

impl Writers {
    /// No rank has come; each may until `until`.
    pub(super) fn new(program: &str, size: u32, until: u64) -> Self {
        let rank = |_| Rank {
            place: Place::Away(until),
            next: 0,
            begun: false,
            buffers: Vec::new(),
            asking: None,
            layout: None,
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

    /// Buffers that are not part of a commit, of all ranks.
    pub(super) fn buffers(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranks.iter().flat_map(|rank| {
            let allocating = match rank.asking.as_ref().map(|asking| &asking.stage) {
                Some(Stage::Allocating(buffers, _)) => buffers.as_slice(),
                _ => &[],
            };
            rank.buffers.iter().chain(allocating).copied()
        })
    }
}

impl Stream {
    /// A writer rank opens the stream. `keepers` are those there are.
    ///
    /// # Errors
    /// Another program's stream, another size, a rank beyond it or taken, a stream that is over. Taken and over may pass.
    pub fn open_writer(
        &mut self,
        from: Peer,
        program: &str,
        rank: u32,
        size: u32,
        keepers: Vec<KeeperInfo>,
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
        if let Place::Here(peer) = state.place {
            return Err(Fault::RankTaken {
                program,
                rank,
                peer,
            });
        }
        state.place = Place::Here(from);
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
            keepers,
        })
    }

    /// Whether that process is that rank.
    pub(super) fn writer_is(&self, rank: u32, peer: Peer) -> bool {
        let rank = self.writers.ranks.get(rank as usize);
        rank.is_some_and(|rank| rank.place == Place::Here(peer))
    }

    /// A rank begins a step (`begin`), or wants more buffers for the one it has begun.
    #[allow(clippy::too_many_arguments, reason = "the fields of two requests")]
    pub fn begin(
        &mut self,
        from: Peer,
        rank: u32,
        ticket: Ticket,
        begin: Option<Step>,
        wants: Vec<Want>,
        patience: u64,
    ) {
        let answer = match self.may_ask(from, rank, begin) {
            Err(fault) => Some(Answer::Failed(fault)),
            Ok(already) => already,
        };
        if let Some(answer) = answer {
            return self.answer(from, ticket, answer);
        }
        let until = self.after(patience);
        self.writers.ranks[rank as usize].asking = Some(Asking {
            peer: from,
            ticket,
            until,
            begin,
            wants,
            stage: Stage::Queued,
        });
        self.wake_by(until);
        self.settle();
    }

    /// Checks a question; says what is answered at once.
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
        match self.end {
            Some(EndOfStream::WriterLost { rank }) => Err(Fault::WriterLost {
                stream: self.name.clone(),
                rank,
            }),
            Some(EndOfStream::Closed) => Err(Fault::NotOpen),
            None => Ok(()),
        }
    }

    /// Lets in what waits to begin and may. Called after every event.
    pub(super) fn admit(&mut self) {
        for rank in 0..self.writers.ranks.len() {
            let Some(asking) = &self.writers.ranks[rank].asking else {
                continue;
            };
            if !matches!(asking.stage, Stage::Queued) {
                continue;
            }
            let (peer, ticket) = (asking.peer, asking.ticket);
            if let Some(step) = asking.begin {
                let refusal = self.not_ended().err().or_else(|| self.closed_without(step));
                if let Some(fault) = refusal {
                    self.writers.ranks[rank].asking = None;
                    self.fail(peer, ticket, fault);
                    continue;
                }
                if step > self.store.committed || !self.open_step() {
                    continue;
                }
            }
            self.ask(rank);
        }
    }

    /// The rank that has closed the stream and so never commits `step`.
    fn closed_without(&self, step: Step) -> Option<Fault> {
        let ranks = self.writers.ranks.iter();
        let closed = ranks
            .enumerate()
            .find(|(_, rank)| rank.place == Place::Closed && rank.next <= step);
        closed.map(|(rank, state)| Fault::RankClosed {
            stream: self.name.clone(),
            rank: rank as u32,
            step: state.next,
        })
    }

    /// Whether back-pressure lets the open step in; once it has, it has for all ranks.
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

    /// Asks the governor for what a rank wants; nothing is granted at once.
    fn ask(&mut self, rank: usize) {
        let has = self.open_bytes();
        let number = self.writers.next_ask;
        let Some(asking) = &mut self.writers.ranks[rank].asking else {
            return;
        };
        if asking.wants.is_empty() {
            return self.begun(rank, Vec::new());
        }
        let ask = AskId {
            stream: self.id,
            number,
        };
        asking.stage = Stage::Asked(ask, None);
        let wants = asking.wants.clone();
        self.writers.next_ask += 1;
        // Whether there is something to yield is found out when it is needed.
        self.out.push(Action::Ask(Ask {
            ask,
            wants,
            has,
            yields: true,
        }));
    }

    /// The governor has decided.
    pub fn verdict(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Granted(ask) => self.granted(ask),
            Verdict::Wait(ask, short) => self.short(ask, short),
            Verdict::Spill(ask, short) => {
                let missing = short.missing;
                self.short(ask, short);
                self.make_room(missing);
            }
            Verdict::Refused(ask, fault) => {
                if let Some(rank) = self.rank_of(ask)
                    && let Some(asking) = self.writers.ranks[rank].asking.take()
                {
                    self.fail(asking.peer, asking.ticket, fault);
                }
            }
        }
        self.settle();
    }

    fn rank_of(&self, ask: AskId) -> Option<usize> {
        let asked = |rank: &Rank| {
            let stage = rank.asking.as_ref().map(|asking| &asking.stage);
            matches!(stage, Some(Stage::Asked(asked, _)) if *asked == ask)
        };
        self.writers.ranks.iter().position(asked)
    }

    fn short(&mut self, ask: AskId, short: Shortage) {
        let rank = self.rank_of(ask);
        let asking = rank.and_then(|rank| self.writers.ranks[rank].asking.as_mut());
        if let Some(asking) = asking {
            asking.stage = Stage::Asked(ask, Some(short));
        }
    }

    fn granted(&mut self, ask: AskId) {
        let rank = self.rank_of(ask);
        // A withdrawn ask is out of the governor's books before it can be granted.
        let rank = rank.expect("a grant belongs to an ask");
        let Some(asking) = &self.writers.ranks[rank].asking else {
            return;
        };
        let (peer, wants) = (asking.peer, asking.wants.clone());
        let buffers = wants
            .iter()
            .map(|want| self.allocate(want.keeper, want.bytes, peer));
        let buffers: Vec<u64> = buffers.collect();
        if let Some(asking) = &mut self.writers.ranks[rank].asking {
            asking.stage = Stage::Allocating(buffers, wants.len() as u32);
        }
    }

    /// The rank whose question waits for that buffer.
    fn rank_allocating(&self, number: u64) -> Option<usize> {
        self.writers.ranks.iter().position(|rank| {
            let stage = rank.asking.as_ref().map(|asking| &asking.stage);
            matches!(stage, Some(Stage::Allocating(buffers, _)) if buffers.contains(&number))
        })
    }

    pub(super) fn buffer_held(&mut self, number: u64) {
        let Some(rank) = self.rank_allocating(number) else {
            return;
        };
        let Some(Asking {
            stage: Stage::Allocating(buffers, missing),
            ..
        }) = &mut self.writers.ranks[rank].asking
        else {
            return;
        };
        *missing -= 1;
        if *missing == 0 {
            let buffers = std::mem::take(buffers);
            self.begun(rank, buffers);
        }
    }

    /// A question for a step or buffers has got everything.
    fn begun(&mut self, rank: usize, buffers: Vec<u64>) {
        let state = &mut self.writers.ranks[rank];
        let Some(asking) = state.asking.take() else {
            return;
        };
        state.begun = true;
        state.buffers.extend(&buffers);
        let at = |&number: &u64| {
            let buffer = &self.store.buffers[&number];
            BufferAt {
                buffer: self.buffer_id(number),
                keeper: buffer.keeper,
                handle: buffer.handle,
                bytes: buffer.bytes,
                on_disk: false,
            }
        };
        let buffers = buffers.iter().map(at).collect();
        self.answer(asking.peer, asking.ticket, Answer::Begun { buffers });
    }

    pub(super) fn buffer_refused(&mut self, number: u64) {
        let Some(buffer) = self.store.buffers.remove(&number) else {
            return;
        };
        self.out.push(Action::Freed(
            self.buffer_id(number),
            buffer.keeper,
            buffer.bytes,
        ));
        let keeper = buffer.keeper;
        self.allocation_failed(number, Fault::KeeperFull { keeper });
    }

    pub(super) fn asked_buffer_lost(&mut self, number: u64, keeper: Peer) {
        self.allocation_failed(number, Fault::NoKeeper { keeper });
    }

    fn allocation_failed(&mut self, number: u64, fault: Fault) {
        if let Some(rank) = self.rank_allocating(number)
            && let Some((peer, ticket)) = self.stop_asking(rank)
        {
            self.fail(peer, ticket, fault);
        }
    }

    /// Takes back what a rank has asked; returns whom to answer.
    fn stop_asking(&mut self, rank: usize) -> Option<(Peer, Ticket)> {
        let asking = self.writers.ranks[rank].asking.take()?;
        match asking.stage {
            Stage::Queued => {}
            Stage::Asked(ask, _) => self.out.push(Action::Withdraw(ask)),
            Stage::Allocating(buffers, _) => buffers
                .into_iter()
                .for_each(|number| self.free_buffer(number)),
        }
        Some((asking.peer, asking.ticket))
    }

    /// A rank gives back what it has begun.
    pub fn abort(&mut self, from: Peer, rank: u32) {
        if self.writer_is(rank, from) {
            self.drop_uncommitted(rank as usize);
            self.settle();
        }
    }

    fn drop_uncommitted(&mut self, rank: usize) {
        let state = &mut self.writers.ranks[rank];
        state.begun = false;
        for number in std::mem::take(&mut state.buffers) {
            self.free_buffer(number);
        }
    }

    /// A rank writes no more.
    pub fn close_writer(&mut self, from: Peer, rank: u32) {
        if !self.writer_is(rank, from) {
            return;
        }
        if let Some((peer, ticket)) = self.stop_asking(rank as usize) {
            self.fail(peer, ticket, Fault::NotOpen);
        }
        self.drop_uncommitted(rank as usize);
        self.writers.ranks[rank as usize].place = Place::Closed;
        self.settle();
    }

    /// All ranks have closed, and what can be whole is: the end.
    pub(super) fn close_if_all_have(&mut self) {
        let all = self
            .writers
            .ranks
            .iter()
            .all(|rank| rank.place == Place::Closed);
        let open = &self.store.open;
        let sealing = open.missing == 0 && open.sealing > 0;
        if all && !sealing && self.end.is_none() {
            self.end_stream(EndOfStream::Closed);
        }
    }

    fn end_stream(&mut self, why: EndOfStream) {
        self.end = Some(why);
        for rank in 0..self.writers.ranks.len() {
            if let Some((peer, ticket)) = self.stop_asking(rank)
                && let Err(fault) = self.not_ended()
            {
                self.fail(peer, ticket, fault);
            }
            self.drop_uncommitted(rank);
        }
        self.drop_open();
        self.linger();
    }

    /// A process is gone: so is a writer rank, if it was one.
    pub(super) fn writer_lost(&mut self, peer: Peer) {
        for rank in 0..self.writers.ranks.len() {
            if self.writers.ranks[rank].place != Place::Here(peer) {
                continue;
            }
            self.stop_asking(rank);
            self.drop_uncommitted(rank);
            let until = self.after(self.config.lease);
            let state = &mut self.writers.ranks[rank];
            state.place = Place::Away(until);
            state.layout = None; // who comes back does not know what was told
            self.wake_by(until);
        }
    }

    pub(super) fn writers_tick(&mut self) {
        for rank in 0..self.writers.ranks.len() {
            let state = &self.writers.ranks[rank];
            if let Some(asking) = &state.asking {
                let until = asking.until;
                if until <= self.now {
                    let fault = self.why_late(rank);
                    if let Some((peer, ticket)) = self.stop_asking(rank) {
                        self.fail(peer, ticket, fault);
                    }
                } else {
                    self.wake_by(until);
                }
            }
            if let Place::Away(until) = self.writers.ranks[rank].place
                && self.end.is_none()
            {
                if until <= self.now {
                    self.end_stream(EndOfStream::WriterLost { rank: rank as u32 });
                } else {
                    self.wake_by(until);
                }
            }
        }
    }

    /// What a question that comes to its deadline has waited for.
    fn why_late(&self, rank: usize) -> Fault {
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
                let silent = buffers.iter().map(|number| &self.store.buffers[number]);
                let silent = silent.filter(|buffer| buffer.state == State::Asked);
                let keeper = silent.map(|buffer| buffer.keeper).next().unwrap_or(Peer(0));
                Fault::KeeperSilent { keeper, bytes }
            }
            Stage::Asked(_, short) => {
                if let Some(steps) = self.groups.unread_steps().filter(|&steps| steps > 0) {
                    return Fault::NobodyReads { stream, steps };
                }
                let none = Shortage {
                    missing: bytes,
                    used: 0,
                    limit: 0,
                    keeper: None,
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
                        None => Fault::KeeperSilent {
                            keeper: self.unsealed(),
                            bytes: self.store.last_bytes,
                        },
                    };
                }
                match self
                    .groups
                    .who_is_full(&self.store, step, self.store.last_bytes)
                {
                    Some((Some(group), steps)) => Fault::ReadersBehind {
                        stream,
                        group,
                        steps,
                    },
                    Some((None, steps)) => Fault::NobodyReads { stream, steps },
                    None => Fault::WriterBehind {
                        stream,
                        rank: rank as u32,
                        step,
                    },
                }
            }
        }
    }

    /// A keeper that has a buffer of the open step still to seal.
    fn unsealed(&self) -> Peer {
        let sealing = self
            .store
            .buffers
            .values()
            .filter(|buffer| buffer.state == State::Sealing);
        sealing.map(|buffer| buffer.keeper).min().unwrap_or(Peer(0))
    }
}
