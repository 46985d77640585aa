//! Every policy and every error of a stream, one by one, said to a coordinator and answered without
//! a network between.

mod circles;
mod descriptions;
mod ends;
mod giving_way;
mod keeping;
mod lives;
mod parts;
mod queues;
mod slow_block_stores;
mod waits;
mod watching;

use samite_stage::protocol::{
    Action, Answer, Attribute, Block, BlockOffsets, BufferAt, BufferId, Coordinator, EndOfStream,
    Event, Failure, Fault, Handle, Interest, Layout, LayoutRef, Layouts, Limits, Notice, Order,
    Part, Peer, Policy, Reader, ReaderId, Report, Request, Retain, Slot, Start, Step, StepRecord,
    StreamConfig, StreamId, Ticket, Unread, Variable, Want, WriterId,
};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK_STORE: Peer = Peer(100);
const SECOND: Peer = Peer(101);

/// A coordinator, block stores that obey at once, and what was answered.
struct Stage {
    coordinator: Coordinator,
    now: u64,
    tickets: u64,
    answers: BTreeMap<Ticket, Answer>,
    buffers: BTreeSet<(Peer, BufferId)>,
    /// Orders that were not about allocating, sealing and freeing.
    spilled: Vec<u64>,
    obeys: bool,
    /// Block stores do not say that something is on disk, but what they would say is here.
    holds_spills: bool,
    held_spills: Vec<Report>,
    /// The last buffer that a block store was to allocate.
    asked: BufferId,
    /// Writers keep what they commit.
    keeps: bool,
}

impl Stage {
    fn new(memory: u64) -> Self {
        let mut stage = Stage {
            coordinator: Coordinator::new(),
            now: 0,
            tickets: 0,
            answers: BTreeMap::new(),
            buffers: BTreeSet::new(),
            spilled: Vec::new(),
            obeys: true,
            holds_spills: false,
            held_spills: Vec::new(),
            asked: BufferId {
                stream: StreamId(0),
                number: 0,
            },
            keeps: false,
        };
        let (buffers, disk) = (1000, 1024);
        let keep = Request::Keep {
            memory,
            buffers,
            disk,
        };
        stage.say(BLOCK_STORE, keep);
        stage
    }

    fn say(&mut self, from: Peer, request: Request) {
        self.feed(Event::Said(from, request));
    }

    fn feed(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for Action::Send(to, notice) in self.coordinator.on_event(self.now, event) {
                match notice {
                    Notice::Answer { ticket, answer } => {
                        assert!(self.answers.insert(ticket, answer).is_none(), "two answers");
                    }
                    Notice::Order(Order::Spill { buffer }) if self.holds_spills => {
                        self.held_spills.push(Report::Spilled { buffer });
                    }
                    Notice::Order(Order::Allocate { buffer, .. }) if !self.obeys => {
                        self.asked = buffer;
                    }
                    Notice::Order(order) if self.obeys => {
                        let report = self.obey(to, order);
                        events
                            .extend(report.map(|report| Event::Said(to, Request::Report(report))));
                    }
                    Notice::Order(_) => {}
                }
            }
        }
    }

    fn obey(&mut self, block_store: Peer, order: Order) -> Option<Report> {
        match order {
            Order::Allocate { buffer, .. } => {
                assert!(self.buffers.insert((block_store, buffer)));
                Some(Report::Allocated {
                    buffer,
                    handle: Handle::default(),
                })
            }
            Order::Seal { buffer } => Some(Report::Sealed { buffer }),
            Order::Spill { buffer } => {
                self.spilled.push(buffer.number);
                Some(Report::Spilled { buffer })
            }
            Order::Free { buffer } => {
                assert!(self.buffers.remove(&(block_store, buffer)), "freed twice");
                None
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.feed(Event::Tick);
    }

    fn ask(&mut self, from: Peer, request: impl FnOnce(Ticket) -> Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.say(from, request(ticket));
        ticket
    }

    fn answer(&mut self, ticket: Ticket) -> Answer {
        self.answers.remove(&ticket).expect("it was answered")
    }

    fn fault(&mut self, ticket: Ticket) -> Fault {
        match self.answer(ticket) {
            Answer::Failed(fault) => fault,
            other => panic!("no error: {other:?}"),
        }
    }

    /// What it waits for lives: at its deadline it is told to ask again.
    fn still_waits(&mut self, ticket: Ticket) -> Fault {
        match self.answer(ticket) {
            Answer::Waiting(fault) => fault,
            other => panic!("it does not wait: {other:?}"),
        }
    }

    fn waits(&self, ticket: Ticket) -> bool {
        !self.answers.contains_key(&ticket)
    }

    fn open_writer(
        &mut self,
        peer: u32,
        program: &str,
        rank: u32,
        size: u32,
        config: &StreamConfig,
    ) -> Ticket {
        let (program, config) = (program.to_owned(), config.clone());
        self.ask(Peer(peer.into()), |ticket| Request::OpenWriter {
            ticket,
            stream: "field".into(),
            program,
            rank,
            size,
            config: Box::new(config),
            timeout: 0,
            gives_up: false,
        })
    }

    /// The one rank of the writer of another stream.
    fn writer_of(&mut self, peer: u32, stream: &str) -> WriterId {
        self.rank_of(peer, stream, 0, 1)
    }

    fn rank_of(&mut self, peer: u32, stream: &str, rank: u32, size: u32) -> WriterId {
        let ticket = self.ask(Peer(peer.into()), |ticket| Request::OpenWriter {
            ticket,
            stream: stream.into(),
            program: stream.into(),
            rank,
            size,
            config: Box::new(config()),
            timeout: 0,
            gives_up: false,
        });
        match self.answer(ticket) {
            Answer::Writing { writer, .. } => writer,
            other => panic!("{other:?}"),
        }
    }

    /// Writer rank `rank` of `size` is peer `rank`.
    fn writer(&mut self, rank: u32, size: u32, config: &StreamConfig) -> WriterId {
        let ticket = self.open_writer(rank, "solver", rank, size, config);
        match self.answer(ticket) {
            Answer::Writing { writer, .. } => writer,
            other => panic!("{other:?}"),
        }
    }

    fn close(&mut self, writer: WriterId) {
        let from = Peer(writer.rank.into());
        let ticket = self.ask(from, |ticket| Request::CloseWriter { ticket, writer });
        assert_eq!(self.answer(ticket), Answer::Closed);
    }

    fn open_reader(&mut self, peer: u32, reader: Reader) -> Ticket {
        self.ask(Peer(peer.into()), |ticket| Request::OpenReader {
            ticket,
            stream: "field".into(),
            reader: Box::new(reader),
            timeout: 0,
            gives_up: false,
        })
    }

    fn reader(&mut self, peer: u32, reader: Reader) -> ReaderId {
        let ticket = self.open_reader(peer, reader);
        match self.answer(ticket) {
            Answer::Reading { reader, .. } => reader,
            other => panic!("{other:?}"),
        }
    }

    fn begin(&mut self, writer: WriterId, step: Step, bytes: u64) -> Ticket {
        self.begin_at(
            writer,
            step,
            vec![Want {
                block_store: BLOCK_STORE,
                bytes,
            }],
        )
    }

    fn begin_at(&mut self, writer: WriterId, step: Step, wants: Vec<Want>) -> Ticket {
        self.begin_as(writer.rank, writer, step, wants)
    }

    fn begin_as(&mut self, peer: u32, writer: WriterId, step: Step, wants: Vec<Want>) -> Ticket {
        self.ask(Peer(peer.into()), |ticket| Request::Begin {
            ticket,
            writer,
            step,
            wants,
            timeout: 1000,
        })
    }

    fn buffers(&mut self, ticket: Ticket) -> Vec<BufferAt> {
        match self.answer(ticket) {
            Answer::Begun { buffers } => buffers,
            other => panic!("{other:?}"),
        }
    }

    fn commit(
        &mut self,
        writer: WriterId,
        step: Step,
        layout: Layout,
        buffers: &[BufferAt],
    ) -> Ticket {
        let slots = buffers
            .iter()
            .map(|at| Slot::from_elem(at.buffer, 1))
            .collect();
        self.commit_slots(writer, step, LayoutRef::New(Arc::new(layout)), slots, 7)
    }

    fn commit_slots(
        &mut self,
        writer: WriterId,
        step: Step,
        layout: LayoutRef,
        slots: Vec<Slot<BufferId>>,
        checksum: u64,
    ) -> Ticket {
        let part = Part {
            step,
            layout,
            slots,
            places: BlockOffsets::Packed,
            attributes: vec![("time".into(), Attribute::Real(step as f64))],
            checksum,
        };
        let keep = self.keeps;
        self.ask(Peer(writer.rank.into()), |ticket| Request::Commit {
            ticket,
            writer,
            part,
            keep,
        })
    }

    /// A whole step of 128 bytes of a single rank.
    fn write(&mut self, writer: WriterId, step: Step) {
        let ticket = self.begin(writer, step, 128);
        let buffers = self.buffers(ticket);
        let ticket = self.commit(writer, step, line(&[(0, 16)]), &buffers);
        assert_eq!(self.answer(ticket), Answer::Committed);
    }

    fn next(&mut self, peer: u32, reader: ReaderId) -> Ticket {
        self.ask(Peer(peer.into()), |ticket| Request::Next {
            ticket,
            reader,
            timeout: 1000,
        })
    }

    fn at(&mut self, peer: u32, reader: ReaderId, step: Step) -> Ticket {
        self.ask(Peer(peer.into()), |ticket| Request::At {
            ticket,
            reader,
            step,
            timeout: 1000,
        })
    }

    fn record(&mut self, ticket: Ticket) -> StepRecord {
        match self.answer(ticket) {
            Answer::Step(record) => record,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, peer: u32, reader: ReaderId, hold: Ticket) {
        let read = 0;
        self.say(Peer(peer.into()), Request::Release { reader, hold, read });
    }

    /// Takes and releases until nothing comes at once; returns the steps.
    fn drain(&mut self, peer: u32, reader: ReaderId) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            let ticket = self.next(peer, reader);
            match self.answers.remove(&ticket) {
                Some(Answer::Step(record)) => {
                    steps.push(record.step);
                    self.release(peer, reader, ticket);
                }
                _ => return steps,
            }
        }
    }
}

/// The end of a stream of which this rank died.
fn failed(rank: u32) -> EndOfStream {
    EndOfStream::WriterFailed {
        rank,
        how: Failure::Died,
    }
}

/// A variable of 16 numbers of 8 bytes; this rank's blocks of it.
fn line(blocks: &[(u64, u64)]) -> Layout {
    let blocks = blocks.iter().map(|&(lower, upper)| Block {
        region: Region::new(&[lower], &[upper]).unwrap(),
        slot: 0,
    });
    Layout {
        variables: vec![Variable {
            name: "u".into(),
            dtype: Dtype::F64,
            shape: Dims::from_slice(&[16]),
            attributes: Vec::new(),
            blocks: blocks.collect(),
        }],
    }
}

fn group(name: &str, policy: Policy) -> Reader {
    Reader {
        group: name.into(),
        rank: 0,
        size: 1,
        start: Start::Earliest,
        policy,
        limits: Some(Limits {
            steps: 2,
            bytes: 1 << 20,
        }),
        lease: 500,
        only: None,
    }
}

fn config() -> StreamConfig {
    StreamConfig {
        lease: 500,
        linger: 100,
        ..StreamConfig::default()
    }
}
