//! Every policy and every error of a stream, one by one, said to a steward and answered without a network between.

use samite_stage::protocol::{
    Action, Answer, Attribute, Block, BufferAt, EndOfStream, Event, Fault, Handle, Layout, Layouts,
    Limits, Notice, Order, Part, Peer, Places, Policy, Reader, ReaderId, Report, Request, Retain,
    Slot, Start, Step, StepRecord, Steward, StreamConfig, Ticket, Told, Unread, Variable, Want,
    WriterId,
};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const KEEPER: Peer = Peer(100);
const SECOND: Peer = Peer(101);

/// A steward, keepers that obey at once, and what was answered.
struct Stage {
    steward: Steward,
    now: u64,
    tickets: u64,
    answers: BTreeMap<Ticket, Answer>,
    buffers: BTreeSet<(Peer, u64)>,
    /// Orders that were not about allocating, sealing and freeing.
    spilled: Vec<u64>,
    obeys: bool,
}

impl Stage {
    fn new(memory: u64) -> Self {
        let mut stage = Stage {
            steward: Steward::new(),
            now: 0,
            tickets: 0,
            answers: BTreeMap::new(),
            buffers: BTreeSet::new(),
            spilled: Vec::new(),
            obeys: true,
        };
        stage.say(KEEPER, Request::Keep { memory, disk: 1024 });
        stage
    }

    fn say(&mut self, from: Peer, request: Request) {
        self.feed(Event::Said(from, request));
    }

    fn feed(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for Action::Send(to, notice) in self.steward.on_event(self.now, event) {
                match notice {
                    Notice::Answer { ticket, answer } => {
                        assert!(self.answers.insert(ticket, answer).is_none(), "two answers");
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

    fn obey(&mut self, keeper: Peer, order: Order) -> Option<Report> {
        match order {
            Order::Allocate { buffer, .. } => {
                assert!(self.buffers.insert((keeper, buffer.number)));
                Some(Report::Held {
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
                assert!(self.buffers.remove(&(keeper, buffer.number)), "freed twice");
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
        self.ask(Peer(peer), |ticket| Request::OpenWriter {
            ticket,
            stream: "field".into(),
            program,
            rank,
            size,
            config,
            patience: 0,
        })
    }

    /// Writer rank `rank` of `size` is peer `rank`.
    fn writer(&mut self, rank: u32, size: u32, config: &StreamConfig) -> WriterId {
        let ticket = self.open_writer(rank, "solver", rank, size, config);
        match self.answer(ticket) {
            Answer::Writing { writer, .. } => writer,
            other => panic!("{other:?}"),
        }
    }

    fn open_reader(&mut self, peer: u32, reader: Reader) -> Ticket {
        self.ask(Peer(peer), |ticket| Request::OpenReader {
            ticket,
            stream: "field".into(),
            reader,
            patience: 0,
        })
    }

    fn reader(&mut self, peer: u32, reader: Reader) -> ReaderId {
        let ticket = self.open_reader(peer, reader);
        match self.answer(ticket) {
            Answer::Reading { reader } => reader,
            other => panic!("{other:?}"),
        }
    }

    fn begin(&mut self, writer: WriterId, step: Step, bytes: u64) -> Ticket {
        self.begin_at(
            writer,
            step,
            vec![Want {
                keeper: KEEPER,
                bytes,
            }],
        )
    }

    fn begin_at(&mut self, writer: WriterId, step: Step, wants: Vec<Want>) -> Ticket {
        let from = Peer(writer.rank);
        self.ask(from, |ticket| Request::Begin {
            ticket,
            writer,
            step,
            wants,
            patience: 1000,
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
        self.commit_slots(writer, step, Told::New(Arc::new(layout)), slots, 7)
    }

    fn commit_slots(
        &mut self,
        writer: WriterId,
        step: Step,
        layout: Told,
        slots: Vec<Slot<samite_stage::protocol::BufferId>>,
        checksum: u64,
    ) -> Ticket {
        let part = Part {
            step,
            layout,
            slots,
            places: Places::Packed,
            attributes: vec![("time".into(), Attribute::Real(step as f64))],
            checksum,
        };
        self.ask(Peer(writer.rank), |ticket| Request::Commit {
            ticket,
            writer,
            part,
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
        self.ask(Peer(peer), |ticket| Request::Next {
            ticket,
            reader,
            patience: 1000,
        })
    }

    fn at(&mut self, peer: u32, reader: ReaderId, step: Step) -> Ticket {
        self.ask(Peer(peer), |ticket| Request::At {
            ticket,
            reader,
            step,
            patience: 1000,
        })
    }

    fn record(&mut self, ticket: Ticket) -> StepRecord {
        match self.answer(ticket) {
            Answer::Step(record) => record,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, peer: u32, reader: ReaderId, hold: Ticket) {
        self.say(Peer(peer), Request::Release { reader, hold });
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
    }
}

fn config() -> StreamConfig {
    StreamConfig {
        lease: 500,
        linger: 100,
        ..StreamConfig::default()
    }
}

#[test]
fn block_waits_at_the_limit_and_says_who_is_behind() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    stage.write(writer, 1);
    let third = stage.begin(writer, 2, 128);
    assert!(stage.waits(third));
    let hold = stage.next(10, reader);
    assert_eq!(stage.record(hold).step, 0);
    assert!(stage.waits(third), "held is not released");
    stage.release(10, reader, hold);
    assert_eq!(stage.buffers(third).len(), 1);
    stage.say(Peer(0), Request::Abort { writer });
    stage.pass(1);
    // Once more, to the deadline.
    let hold = stage.next(10, reader);
    stage.record(hold);
    stage.write(writer, 2);
    let fourth = stage.begin(writer, 3, 128);
    stage.pass(999);
    assert!(stage.waits(fourth));
    stage.pass(1);
    let behind = stage.fault(fourth);
    assert_eq!(
        behind.to_string(),
        "the readers viewer of the stream field are 2 steps behind, which is their limit: \
         wait longer, raise the limit, or choose another policy for them"
    );
}

#[test]
fn nobody_reads() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    stage.write(writer, 0);
    stage.write(writer, 1);
    let third = stage.begin(writer, 2, 128);
    stage.pass(1000);
    assert!(matches!(
        stage.fault(third),
        Fault::NobodyReads { steps: 2, .. }
    ));
    // Who comes then finds everything from the beginning.
    let reader = stage.reader(10, group("viewer", Policy::Block));
    assert_eq!(stage.drain(10, reader), [0, 1]);
    assert!(stage.buffers.is_empty());
}

#[test]
fn unread_steps_can_be_discarded() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(
        0,
        1,
        &StreamConfig {
            unread: Unread::Discard,
            ..config()
        },
    );
    for step in 0..5 {
        stage.write(writer, step);
        assert!(stage.buffers.is_empty());
    }
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 5);
    assert_eq!(stage.drain(10, reader), [5]);
}

#[test]
fn dropping_policies_never_wait() {
    for (policy, expected) in [
        (Policy::DropOldest, vec![4, 5]),
        (Policy::DropNewest, vec![0, 1]),
        (Policy::Latest, vec![5]),
    ] {
        let mut stage = Stage::new(1 << 20);
        let writer = stage.writer(0, 1, &config());
        let reader = stage.reader(10, group("viewer", policy));
        for step in 0..6 {
            stage.write(writer, step);
        }
        assert_eq!(
            stage.buffers.len(),
            expected.len(),
            "{policy:?} keeps what it promises, no more"
        );
        assert_eq!(stage.drain(10, reader), expected, "{policy:?}");
        assert!(stage.buffers.is_empty());
    }
}

#[test]
fn every_second_step() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Every(2)));
    for step in 0..4 {
        stage.write(writer, step);
    }
    let blocked = stage.begin(writer, 4, 128);
    assert!(stage.waits(blocked), "0 and 2 wait, 4 is wanted");
    assert_eq!(stage.drain(10, reader), [0, 2]);
    stage.buffers(blocked);
}

#[test]
fn spill_keeps_everything_in_little_memory() {
    let mut stage = Stage::new(3 * 128);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Spill));
    for step in 0..8 {
        stage.write(writer, step);
        assert!(stage.steward.governor().used_at(KEEPER) <= 3 * 128);
    }
    assert_eq!(stage.spilled.len(), 6, "two stay in memory");
    let hold = stage.next(10, reader);
    let record = stage.record(hold);
    assert!(!record.parts[0].slots[0][0].on_disk);
    stage.release(10, reader, hold);
    let rest = stage.at(10, reader, 7);
    assert!(stage.record(rest).parts[0].slots[0][0].on_disk);
    stage.release(10, reader, rest);
    assert_eq!(stage.drain(10, reader), [1, 2, 3, 4, 5, 6, 7]);
    assert!(stage.buffers.is_empty());
}

#[test]
fn a_full_disk_makes_spill_wait() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let _reader = stage.reader(10, group("viewer", Policy::Spill));
    for step in 0..11 {
        stage.write(writer, step); // 2 in memory, 8 on a disk of 1024 bytes, and one that found it full
    }
    assert_eq!(stage.spilled.len(), 8);
    let ticket = stage.begin(writer, 11, 128);
    assert!(stage.waits(ticket));
}

#[test]
fn dropping_groups_give_way_when_memory_is_short() {
    let mut stage = Stage::new(3 * 128);
    let writer = stage.writer(0, 1, &config());
    let wide = Reader {
        limits: Some(Limits {
            steps: 100,
            bytes: 1 << 20,
        }),
        ..group("viewer", Policy::DropOldest)
    };
    let reader = stage.reader(10, wide);
    for step in 0..9 {
        stage.write(writer, step);
    }
    assert_eq!(stage.drain(10, reader), [6, 7, 8]);
}

#[test]
fn memory_that_does_not_come() {
    let mut stage = Stage::new(3 * 128);
    let writer = stage.writer(0, 1, &config());
    let wide = Reader {
        limits: Some(Limits {
            steps: 100,
            bytes: 1 << 20,
        }),
        ..group("viewer", Policy::Block)
    };
    let _reader = stage.reader(10, wide);
    for step in 0..3 {
        stage.write(writer, step);
    }
    let ticket = stage.begin(writer, 3, 128);
    stage.pass(1000);
    assert_eq!(
        stage.fault(ticket).to_string(),
        "no memory for 128 bytes in time: 384 of 384 are in use at peer 100; let readers go faster, or give it more memory"
    );
    let ticket = stage.begin(writer, 3, 385);
    assert!(matches!(
        stage.fault(ticket),
        Fault::TooLarge {
            bytes: 385,
            limit: 384,
            ..
        }
    ));
    let ticket = stage.begin_at(
        writer,
        3,
        vec![Want {
            keeper: Peer(55),
            bytes: 1,
        }],
    );
    assert_eq!(stage.fault(ticket), Fault::NoKeeper { keeper: Peer(55) });
}

#[test]
fn a_silent_keeper_has_a_deadline_too() {
    let mut stage = Stage::new(1024);
    let writer = stage.writer(0, 1, &config());
    stage.obeys = false;
    let ticket = stage.begin(writer, 0, 100);
    stage.pass(1000);
    assert_eq!(
        stage.fault(ticket),
        Fault::KeeperSilent {
            keeper: KEEPER,
            bytes: 100
        }
    );
    assert_eq!(stage.steward.governor().used_at(KEEPER), 0);
}

#[test]
fn retained_and_precious_steps_are_there_by_number() {
    let mut stage = Stage::new(1 << 20);
    let retain = Retain { steps: 2, bytes: 0 };
    let writer = stage.writer(
        0,
        1,
        &StreamConfig {
            retain,
            precious_first: true,
            ..config()
        },
    );
    let reader = stage.reader(10, group("viewer", Policy::Latest));
    for step in 0..6 {
        stage.write(writer, step);
    }
    assert_eq!(stage.drain(10, reader), [5]);
    for step in [0, 4, 5] {
        let hold = stage.at(10, reader, step);
        assert_eq!(stage.record(hold).step, step);
        stage.release(10, reader, hold);
    }
    let gone = stage.at(10, reader, 3);
    assert!(matches!(
        stage.fault(gone),
        Fault::Gone {
            step: 3,
            oldest: Some(0),
            ..
        }
    ));
    let future = stage.at(10, reader, 6);
    assert!(stage.waits(future));
    stage.write(writer, 6);
    assert_eq!(stage.record(future).step, 6);
    let late = stage.reader(11, group("late", Policy::Block));
    assert_eq!(
        stage.drain(11, late),
        [0, 5, 6],
        "the precious one, then what is unbroken"
    );
    let never = Reader {
        start: Start::Step(2),
        ..group("never", Policy::Block)
    };
    let ticket = stage.open_reader(12, never);
    assert!(matches!(stage.fault(ticket), Fault::Gone { step: 2, .. }));
    let latest = stage.reader(
        13,
        Reader {
            start: Start::Latest,
            ..group("latest", Policy::Block)
        },
    );
    assert_eq!(stage.drain(13, latest), [6]);
}

#[test]
fn layouts_travel_once() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    let hold = stage.next(10, reader);
    let Layouts::New { hash, layouts } = stage.record(hold).layouts else {
        panic!("the first is whole");
    };
    assert_eq!(*layouts[0], line(&[(0, 16)]));
    let ticket = stage.begin(writer, 1, 128);
    let buffers = stage.buffers(ticket);
    let slots = vec![Slot::from_elem(buffers[0].buffer, 1)];
    let ticket = stage.commit_slots(writer, 1, Told::Same(layouts[0].hash()), slots.clone(), 7);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let second = stage.next(10, reader);
    let record = stage.record(second);
    assert_eq!(record.layouts, Layouts::Same(hash));
    assert_eq!(
        record.parts[0].attributes,
        [("time".to_owned(), Attribute::Real(1.0))]
    );
    stage.release(10, reader, hold);
    let ticket = stage.begin(writer, 2, 128);
    stage.buffers(ticket);
    let ticket = stage.commit_slots(
        writer,
        2,
        Told::Same(samite_stage::protocol::LayoutHash(1)),
        slots,
        7,
    );
    assert_eq!(stage.fault(ticket), Fault::UnknownLayout { rank: 0 });
}

/// Two ranks begin step 0 with a buffer each; rank 1 commits `layout` after rank 0 has committed the first half.
fn two_ranks(layout: Layout) -> Result<(), Box<Fault>> {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let tickets = [stage.begin(zero, 0, 128), stage.begin(one, 0, 256)];
    let [first, second] = tickets.map(|ticket| stage.buffers(ticket));
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &first);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let ticket = stage.commit(one, 0, layout, &second);
    let outcome = match stage.answer(ticket) {
        Answer::Committed => Ok(()),
        Answer::Failed(fault) => Err(Box::new(fault)),
        other => panic!("{other:?}"),
    };
    if outcome.is_err() {
        // The rank may do it right now.
        let ticket = stage.commit(one, 0, line(&[(8, 16)]), &second);
        assert_eq!(stage.answer(ticket), Answer::Committed);
    }
    assert_eq!(stage.steward.figures()[0].committed, 1);
    outcome
}

#[test]
fn parts_that_do_not_fit_together_are_refused_by_name() {
    assert_eq!(two_ranks(line(&[(8, 16)])), Ok(()));
    let overlap = two_ranks(line(&[(12, 16), (7, 9)])).unwrap_err();
    assert_eq!(
        overlap.to_string(),
        "blocks of u overlap: [0..8] of rank 0 and [7..9] of rank 1"
    );
    let mut dtype = line(&[(8, 16)]);
    dtype.variables[0].dtype = Dtype::I64;
    assert_eq!(
        two_ranks(dtype).unwrap_err().to_string(),
        "u is f64 at rank 0 and i64 at rank 1"
    );
    let mut shape = line(&[(8, 16)]);
    shape.variables[0].shape[0] = 17;
    assert_eq!(
        two_ranks(shape).unwrap_err().to_string(),
        "u has the shape [16] at rank 0 and [17] at rank 1"
    );
    assert!(matches!(
        *two_ranks(line(&[(8, 17)])).unwrap_err(),
        Fault::OutsideArray { rank: 1, .. }
    ));
    let mut slot = line(&[(8, 16)]);
    slot.variables[0].blocks[0].slot = u32::MAX;
    assert!(matches!(
        *two_ranks(slot).unwrap_err(),
        Fault::BadPlace {
            rank: 1,
            block: 0,
            ..
        }
    ));
    let mut large = line(&[(8, 16)]);
    large.variables[0].name = "v".into();
    large.variables[0].shape[0] = 99;
    large.variables[0].blocks[0].region = Region::new(&[0], &[33]).unwrap();
    assert!(
        matches!(*two_ranks(large).unwrap_err(), Fault::BadPlace { .. }),
        "33 numbers in 256 bytes"
    );
}

#[test]
fn the_order_of_a_rank_is_checked() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let ticket = stage.begin(writer, 1, 128);
    assert_eq!(stage.fault(ticket), Fault::WrongStep { asked: 1, next: 0 });
    let ticket = stage.commit(writer, 0, line(&[]), &[]);
    assert_eq!(stage.fault(ticket), Fault::NotBegun { step: 0 });
    let ticket = stage.ask(Peer(0), |ticket| Request::Reserve {
        ticket,
        writer,
        wants: vec![],
        patience: 0,
    });
    assert_eq!(stage.fault(ticket), Fault::NotBegun { step: 0 });
    let ticket = stage.begin(writer, 0, 128);
    let buffers = stage.buffers(ticket);
    let twice = vec![Slot::from_elem(buffers[0].buffer, 2)];
    let ticket = stage.commit_slots(writer, 0, Told::New(Arc::new(line(&[]))), twice, 7);
    assert_eq!(stage.fault(ticket), Fault::ForeignBuffer { rank: 0 });
    stage.say(Peer(0), Request::Abort { writer });
    assert!(stage.buffers.is_empty());
    let ticket = stage.commit(writer, 0, line(&[(0, 16)]), &buffers);
    assert_eq!(stage.fault(ticket), Fault::NotBegun { step: 0 });
    let stranger = stage.ask(Peer(77), |ticket| Request::Begin {
        ticket,
        writer,
        step: 0,
        wants: vec![],
        patience: 0,
    });
    assert_eq!(stage.fault(stranger), Fault::NotOpen);
}

#[test]
fn opening_is_checked() {
    let mut stage = Stage::new(1 << 20);
    let ticket = stage.open_reader(10, group("viewer", Policy::Block));
    assert!(matches!(stage.fault(ticket), Fault::NoStream { .. }));
    stage.writer(0, 2, &config());
    let ticket = stage.open_writer(5, "other", 0, 2, &config());
    assert!(matches!(stage.fault(ticket), Fault::TwoWriters { .. }));
    let ticket = stage.open_writer(5, "solver", 0, 2, &config());
    assert_eq!(
        stage.fault(ticket).to_string(),
        "rank 0 of solver is there already, as peer 0: two processes have the same rank"
    );
    let ticket = stage.open_writer(5, "solver", 1, 3, &config());
    assert!(matches!(
        stage.fault(ticket),
        Fault::SizeDiffers {
            size: 3,
            there: 2,
            ..
        }
    ));
    let ticket = stage.open_writer(5, "solver", 2, 2, &config());
    assert!(matches!(
        stage.fault(ticket),
        Fault::RankBeyond { rank: 2, .. }
    ));
    stage.reader(10, group("viewer", Policy::Block));
    let ticket = stage.open_reader(11, group("viewer", Policy::Block));
    assert!(matches!(
        stage.fault(ticket),
        Fault::RankTaken { peer: Peer(10), .. }
    ));
    let ticket = stage.open_reader(
        11,
        Reader {
            size: 2,
            rank: 1,
            ..group("viewer", Policy::Block)
        },
    );
    assert!(matches!(stage.fault(ticket), Fault::SizeDiffers { .. }));
    let ticket = stage.open_reader(
        11,
        Reader {
            rank: 1,
            ..group("third", Policy::Block)
        },
    );
    assert!(matches!(stage.fault(ticket), Fault::RankBeyond { .. }));
    let ticket = stage.open_reader(11, group("third", Policy::Every(0)));
    assert!(matches!(stage.fault(ticket), Fault::ZeroLimit { .. }));
    let huge = Reader {
        size: u32::MAX,
        ..group("third", Policy::Block)
    };
    let ticket = stage.open_reader(11, huge);
    assert!(matches!(stage.fault(ticket), Fault::TooManyRanks { .. }));
}

#[test]
fn a_reader_waits_for_the_stream_and_then_for_its_rank() {
    let mut stage = Stage::new(1 << 20);
    let open = |ticket| Request::OpenReader {
        ticket,
        stream: "field".into(),
        reader: group("viewer", Policy::Block),
        patience: 1000,
    };
    let first = stage.ask(Peer(10), open);
    let second = stage.ask(Peer(11), open);
    assert!(stage.waits(first));
    stage.writer(0, 1, &config());
    assert!(matches!(stage.answer(first), Answer::Reading { .. }));
    assert!(stage.waits(second), "the rank is taken");
    stage.feed(Event::Lost(Peer(10)));
    assert!(matches!(stage.answer(second), Answer::Reading { .. }));
}

#[test]
fn a_step_begins_when_the_one_before_is_whole() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let ticket = stage.begin(zero, 0, 128);
    let buffers = stage.buffers(ticket);
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    let ahead = stage.begin(zero, 1, 128);
    stage.pass(1000);
    assert!(matches!(
        stage.fault(ahead),
        Fault::WriterBehind {
            rank: 1,
            step: 0,
            ..
        }
    ));
    let ahead = stage.begin(zero, 1, 128);
    stage.say(Peer(1), Request::CloseWriter { writer: one });
    assert!(matches!(
        stage.fault(ahead),
        Fault::RankClosed {
            rank: 1,
            step: 0,
            ..
        }
    ));
    stage.say(Peer(0), Request::CloseWriter { writer: zero });
    assert!(stage.buffers.is_empty(), "half a step is no step");
}

#[test]
fn a_dead_writer_loses_only_what_it_had_not_committed() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    let ticket = stage.begin(writer, 1, 128);
    stage.buffers(ticket);
    stage.feed(Event::Lost(Peer(0)));
    assert_eq!(stage.buffers.len(), 1, "of step 0");
    // It comes back as another process, at the step that it lost.
    let ticket = stage.open_writer(1, "solver", 0, 1, &config());
    let Answer::Writing {
        committed: 1,
        next: 1,
        ..
    } = stage.answer(ticket)
    else {
        panic!("another step");
    };
    let begin = |step| {
        move |ticket| Request::Begin {
            ticket,
            writer,
            step,
            wants: vec![],
            patience: 0,
        }
    };
    let ticket = stage.ask(Peer(1), begin(0));
    assert_eq!(stage.answer(ticket), Answer::Already { next: 1 });
    let again = |checksum| {
        move |ticket| Request::Commit {
            ticket,
            writer,
            part: Part {
                step: 0,
                layout: Told::New(Arc::new(line(&[(0, 16)]))),
                slots: vec![],
                places: Places::Packed,
                attributes: vec![],
                checksum,
            },
        }
    };
    let ticket = stage.ask(Peer(1), again(7));
    assert_eq!(stage.answer(ticket), Answer::Committed, "the same again");
    let ticket = stage.ask(Peer(1), again(8));
    assert_eq!(stage.fault(ticket), Fault::Differs { rank: 0, step: 0 });
    stage.feed(Event::Lost(Peer(1)));
    stage.pass(500);
    assert_eq!(
        stage.drain(10, reader),
        [0],
        "a dead writer's committed step"
    );
    let end = stage.next(10, reader);
    assert_eq!(
        stage.answer(end),
        Answer::End(EndOfStream::WriterLost { rank: 0 })
    );
    let ticket = stage.open_writer(2, "solver", 0, 1, &config());
    assert!(matches!(stage.fault(ticket), Fault::Over { .. }));
    stage.say(Peer(10), Request::CloseReader { reader });
    assert_eq!(stage.steward.figures(), []);
    stage.writer(0, 1, &config());
}

#[test]
fn a_part_of_a_dead_rank_stays_in_the_open_step() {
    let mut stage = Stage::new(1 << 20);
    let (zero, one) = (stage.writer(0, 2, &config()), stage.writer(1, 2, &config()));
    let ticket = stage.begin(zero, 0, 128);
    let buffers = stage.buffers(ticket);
    let ticket = stage.commit(zero, 0, line(&[(0, 8)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    stage.feed(Event::Lost(Peer(0)));
    let ticket = stage.begin(one, 0, 128);
    let buffers = stage.buffers(ticket);
    let ticket = stage.commit(one, 0, line(&[(8, 16)]), &buffers);
    assert_eq!(stage.answer(ticket), Answer::Committed);
    assert_eq!(stage.steward.figures()[0].committed, 1);
    let ahead = stage.begin(one, 1, 128);
    stage.buffers(ahead);
    stage.pass(500);
    assert_eq!(
        stage.steward.figures()[0].end,
        Some(EndOfStream::WriterLost { rank: 0 })
    );
    let ticket = stage.begin(one, 1, 128);
    assert!(matches!(
        stage.fault(ticket),
        Fault::WriterLost { rank: 0, .. }
    ));
    assert_eq!(stage.buffers.len(), 2, "the committed step");
}

#[test]
fn a_dead_reader_holds_up_nobody_beyond_its_lease() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    stage.write(writer, 1);
    let hold = stage.next(10, reader);
    stage.record(hold);
    stage.feed(Event::Lost(Peer(10)));
    assert_eq!(
        stage.buffers.len(),
        1,
        "what it held is free, what it has not taken is not"
    );
    stage.write(writer, 2);
    let third = stage.begin(writer, 3, 128);
    stage.pass(400);
    assert!(stage.waits(third));
    // It comes back in time, to where its group was.
    let back = stage.reader(11, group("viewer", Policy::Block));
    assert_eq!(back, reader);
    assert_eq!(stage.drain(11, back), [1, 2]);
    stage.buffers(third);
    stage.say(Peer(0), Request::Abort { writer });
    // And not in time.
    stage.write(writer, 3);
    stage.write(writer, 4);
    stage.feed(Event::Lost(Peer(11)));
    let fifth = stage.begin(writer, 5, 128);
    stage.pass(500);
    stage.buffers(fifth);
    assert_eq!(stage.buffers.len(), 1, "of the step that was begun");
}

#[test]
fn all_ranks_of_a_group_see_the_same_steps() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let of_two = |rank| Reader {
        rank,
        size: 2,
        ..group("viewer", Policy::Latest)
    };
    let (zero, one) = (stage.reader(10, of_two(0)), stage.reader(11, of_two(1)));
    for (step, taken) in [(0, true), (1, false), (2, true)] {
        stage.write(writer, step);
        if taken {
            let hold = stage.next(10, zero);
            assert_eq!(stage.record(hold).step, step);
            stage.release(10, zero, hold);
        }
    }
    assert_eq!(stage.buffers.len(), 2, "kept for the other rank");
    assert_eq!(stage.drain(11, one), [0, 2]);
    assert!(stage.buffers.is_empty());
}

#[test]
fn a_replica_survives_its_keeper_and_a_lone_copy_does_not() {
    let mut stage = Stage::new(1 << 20);
    stage.say(
        SECOND,
        Request::Keep {
            memory: 1 << 20,
            disk: 0,
        },
    );
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    for (step, keepers) in [(0, vec![KEEPER, SECOND]), (1, vec![SECOND])] {
        let wants = keepers
            .iter()
            .map(|&keeper| Want { keeper, bytes: 128 })
            .collect();
        let ticket = stage.begin_at(writer, step, wants);
        let slot: Slot<_> = stage.buffers(ticket).iter().map(|at| at.buffer).collect();
        let ticket = stage.commit_slots(
            writer,
            step,
            Told::New(Arc::new(line(&[(0, 16)]))),
            vec![slot],
            7,
        );
        assert_eq!(stage.answer(ticket), Answer::Committed);
    }
    stage.feed(Event::Lost(SECOND));
    stage.buffers.retain(|(keeper, _)| *keeper == KEEPER);
    let hold = stage.next(10, reader);
    let record = stage.record(hold);
    assert_eq!(
        record.parts[0].slots[0]
            .iter()
            .map(|at| at.keeper)
            .collect::<Vec<_>>(),
        [KEEPER]
    );
    stage.release(10, reader, hold);
    let lost = stage.next(10, reader);
    assert_eq!(
        stage.fault(lost),
        Fault::Damaged {
            step: 1,
            keepers: vec![SECOND]
        }
    );
    stage.write(writer, 2);
    assert_eq!(stage.drain(10, reader), [2], "it goes on");
}

#[test]
fn a_keeper_that_dies_under_a_writer() {
    let mut stage = Stage::new(1 << 20);
    stage.say(
        SECOND,
        Request::Keep {
            memory: 1 << 20,
            disk: 0,
        },
    );
    let writer = stage.writer(0, 1, &config());
    let ticket = stage.begin_at(
        writer,
        0,
        vec![Want {
            keeper: SECOND,
            bytes: 128,
        }],
    );
    let buffers = stage.buffers(ticket);
    stage.feed(Event::Lost(SECOND));
    let ticket = stage.commit(writer, 0, line(&[(0, 16)]), &buffers);
    assert_eq!(
        stage.fault(ticket),
        Fault::KeeperLost {
            keeper: SECOND,
            step: 0
        }
    );
    stage.say(Peer(0), Request::Abort { writer });
    stage.write(writer, 0);
}

#[test]
fn the_end_comes_after_the_last_step() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    let reader = stage.reader(10, group("viewer", Policy::Block));
    stage.write(writer, 0);
    stage.write(writer, 1);
    stage.say(Peer(0), Request::CloseWriter { writer });
    assert_eq!(stage.drain(10, reader), [0, 1]);
    let end = stage.next(10, reader);
    assert_eq!(stage.answer(end), Answer::End(EndOfStream::Closed));
    let beyond = stage.at(10, reader, 2);
    assert_eq!(stage.answer(beyond), Answer::End(EndOfStream::Closed));
    stage.say(Peer(10), Request::CloseReader { reader });
    assert!(stage.steward.figures().is_empty() && stage.buffers.is_empty());
}

#[test]
fn an_unread_stream_lingers_and_gives_its_name_away() {
    let mut stage = Stage::new(1 << 20);
    let writer = stage.writer(0, 1, &config());
    stage.write(writer, 0);
    stage.say(Peer(0), Request::CloseWriter { writer });
    stage.pass(99);
    assert_eq!(stage.buffers.len(), 1);
    stage.pass(1);
    assert!(stage.buffers.is_empty() && stage.steward.figures().is_empty());
    let writer = stage.writer(0, 1, &config());
    stage.write(writer, 0);
    stage.say(Peer(0), Request::CloseWriter { writer });
    let writer = stage.writer(1, 2, &config());
    assert_eq!(writer.stream.0, 2, "another stream has the name");
    assert!(stage.buffers.is_empty());
}

#[test]
fn no_step_in_time() {
    let mut stage = Stage::new(1 << 20);
    stage.writer(
        0,
        1,
        &StreamConfig {
            lease: 5000,
            ..config()
        },
    );
    let reader = stage.reader(10, group("viewer", Policy::Block));
    let ticket = stage.next(10, reader);
    assert_eq!(
        stage.steward.wake_at(),
        Some(stage.now + 500),
        "early: a lease that is no longer needed"
    );
    stage.pass(999);
    assert!(stage.waits(ticket));
    assert_eq!(stage.steward.wake_at(), Some(1000));
    stage.pass(1);
    assert!(matches!(
        stage.fault(ticket),
        Fault::NoStep { committed: 0, .. }
    ));
}
