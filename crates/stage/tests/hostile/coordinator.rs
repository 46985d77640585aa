//! A coordinator with an honest writer, reader and block store, and a peer that says their words
//! again, changed.

use samite_stage::protocol::{
    Action, Answer, Block, BlockOffsets, BufferId, Coordinator, Event, Handle, Lack, Layout,
    LayoutHash, LayoutRef, Notice, Order, Part, Peer, Policy, Reader, Report, Request, Slot, Start,
    StreamConfig, StreamId, Ticket, Variable, Want, WriterId, decode_request, encode,
};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Region};
use samite_testkit::fuzz::{self, Rng, mutate};
use std::collections::VecDeque;
use std::sync::Arc;

const BLOCK_STORE: Peer = Peer(1);
const WRITER: Peer = Peer(2);
const READER: Peer = Peer(3);
const LIAR: Peer = Peer(9);
const STEPS: u64 = 6;

/// What one event may allocate beside what it says itself, in bytes: a program may have many ranks.
const MOST: usize = 16 << 20;

struct World {
    coordinator: Coordinator,
    now: u64,
    random: Rng,
    to_say: VecDeque<(Peer, Request)>,
    /// What was said, as it travelled.
    said: Vec<Vec<u8>>,
    tickets: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let keep = Request::Keep {
            memory: 64 << 20,
            buffers: 1000,
            disk: 1 << 20,
        };
        let mut world = World {
            coordinator: Coordinator::new(),
            now: 0,
            random: Rng::with_seed(seed),
            to_say: VecDeque::from([(BLOCK_STORE, keep)]),
            said: Vec::new(),
            tickets: 0,
        };
        let ticket = world.ticket();
        world.say(WRITER, |_| Request::OpenWriter {
            ticket,
            stream: "s".into(),
            program: "p".into(),
            rank: 0,
            size: 1,
            config: Box::new(StreamConfig::default()),
            timeout: 1000,
            gives_up: false,
        });
        let ticket = world.ticket();
        world.say(READER, |world| Request::OpenReader {
            ticket,
            stream: "s".into(),
            reader: Box::new(Reader {
                group: "g".into(),
                rank: 0,
                size: 1,
                start: Start::Earliest,
                policy: *world
                    .random
                    .choice(&[Policy::Block, Policy::Latest, Policy::Spill])
                    .unwrap_or(&Policy::Block),
                limits: None,
                lease: 100,
                only: None,
            }),
            timeout: 1000,
            gives_up: false,
        });
        world
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn say(&mut self, from: Peer, what: impl FnOnce(&mut World) -> Request) {
        let request = what(self);
        self.to_say.push_back((from, request));
    }

    fn happen(&mut self, event: Event, bytes: usize) {
        let (coordinator, now) = (&mut self.coordinator, self.now);
        let mut actions = Vec::new();
        let text = format!("{event:?}");
        let cost = crate::allocated(|| actions = coordinator.on_event(now, event));
        assert!(cost < MOST + 100 * bytes, "{cost} bytes for {text:.500}");
        for Action::Send(to, notice) in actions {
            // As long as it is, it can travel.
            let _ = encode(&notice);
            self.heard(to, notice);
        }
    }

    fn heard(&mut self, to: Peer, notice: Notice) {
        match notice {
            Notice::Order(order) if to == BLOCK_STORE => self.obey(order),
            Notice::Answer { answer, .. } if to == WRITER => self.write(answer),
            Notice::Answer { ticket, answer } if to == READER => self.read(ticket, answer),
            _ => {}
        }
    }

    fn obey(&mut self, order: Order) {
        let report = match order {
            Order::Allocate { buffer, .. } if self.random.u32(..20) > 0 => {
                let handle = Handle::default();
                Report::Allocated { buffer, handle }
            }
            Order::Allocate { buffer, .. } => {
                let lack = match self.random.bool() {
                    true => Lack::Memory,
                    false => Lack::Numbers(self.random.u64(..)),
                };
                Report::Refused { buffer, lack }
            }
            Order::Seal { buffer } => Report::Sealed { buffer },
            Order::Spill { buffer } => Report::Spilled { buffer },
            Order::Free { .. } => return,
        };
        self.say(BLOCK_STORE, |_| Request::Report(report));
    }

    fn write(&mut self, answer: Answer) {
        let ticket = self.ticket();
        let request = match answer {
            Answer::Writing { writer, next, .. } if next < STEPS => Request::Begin {
                ticket,
                writer,
                step: next,
                wants: vec![Want {
                    block_store: BLOCK_STORE,
                    bytes: 4096,
                }],
                timeout: 50,
            },
            Answer::Begun { buffers } if !buffers.is_empty() => {
                let stream = buffers[0].buffer.stream;
                let writer = samite_stage::protocol::WriterId { stream, rank: 0 };
                let slots = buffers.iter().map(|at| [at.buffer].into_iter().collect());
                let part = Part {
                    step: self.random.u64(..STEPS),
                    layout: LayoutRef::New(layout().into()),
                    slots: slots.collect(),
                    places: BlockOffsets::Packed,
                    attributes: Vec::new(),
                    checksum: 1,
                };
                let keep = self.random.bool();
                Request::Commit {
                    ticket,
                    writer,
                    part,
                    keep,
                }
            }
            Answer::Committed => {
                let mut step = 0;
                for figures in self.coordinator.figures() {
                    step = step.max(figures.committed);
                }
                let stream = samite_stage::protocol::StreamId(0);
                let writer = samite_stage::protocol::WriterId { stream, rank: 0 };
                if step >= STEPS {
                    Request::CloseWriter { ticket, writer }
                } else {
                    let wants = vec![Want {
                        block_store: BLOCK_STORE,
                        bytes: 4096,
                    }];
                    Request::Begin {
                        ticket,
                        writer,
                        step,
                        wants,
                        timeout: 50,
                    }
                }
            }
            _ => return,
        };
        self.say(WRITER, |_| request);
    }

    fn read(&mut self, hold: Ticket, answer: Answer) {
        let ticket = self.ticket();
        let reader = |rank| samite_stage::protocol::ReaderId {
            stream: samite_stage::protocol::StreamId(0),
            group: 0,
            rank,
        };
        match answer {
            Answer::Reading { reader, .. } => {
                self.say(READER, |_| Request::Next {
                    ticket,
                    reader,
                    timeout: 50,
                });
            }
            Answer::Step(_) => {
                self.say(READER, |_| Request::Release {
                    reader: reader(0),
                    hold,
                    read: 0,
                });
                self.say(READER, |_| Request::Next {
                    ticket,
                    reader: reader(0),
                    timeout: 50,
                });
            }
            _ => {}
        }
    }

    /// Something that was said, changed, said by the liar; or whatever it is as bytes.
    fn lie(&mut self) {
        let Some(known) = self.random.choice(&self.said) else {
            return;
        };
        let mut bytes = known.clone();
        mutate(&mut self.random, &mut bytes);
        let mut request = None;
        let cost = crate::allocated(|| request = decode_request::<Request>(&bytes));
        assert!(
            cost < 4096 + 100 * bytes.len(),
            "{cost} bytes to decode {}",
            bytes.len()
        );
        if let Some(request) = request {
            self.happen(Event::Said(LIAR, request), bytes.len());
        }
    }

    fn run(&mut self) {
        for _ in 0..300 {
            match self.random.u32(..12) {
                0 => self.happen(Event::Lost(LIAR), 0),
                1 => {
                    self.now += self.random.u64(..30);
                    if self
                        .coordinator
                        .wake_at()
                        .is_some_and(|due| due <= self.now)
                    {
                        self.happen(Event::Tick, 0);
                    }
                }
                2..=6 => self.lie(),
                _ => {
                    if let Some((from, request)) = self.to_say.pop_front() {
                        let bytes = encode(&request);
                        let length = bytes.len();
                        self.said.push(bytes);
                        self.happen(Event::Said(from, request), length);
                    }
                }
            }
        }
        for peer in [LIAR, READER, WRITER, BLOCK_STORE] {
            self.happen(Event::Lost(peer), 0);
        }
        self.now += 1 << 30;
        self.happen(Event::Tick, 0);
    }
}

fn layout() -> Layout {
    let block = Block {
        region: Region::new(&[0], &[512]).expect("a box"),
        slot: 0,
    };
    let variable = Variable {
        name: "u".into(),
        dtype: Dtype::F64,
        shape: Dims::from_slice(&[512]),
        attributes: Vec::new(),
        blocks: vec![block],
    };
    Layout {
        variables: vec![variable],
    }
}

#[test]
fn no_message_breaks_the_coordinator() {
    let _alone = crate::alone();
    fuzz::rounds(
        "coordinator::no_message_breaks_the_coordinator",
        600,
        |seed, _| {
            World::new(seed).run();
        },
    );
}

/// A message of lists whose elements take one or two bytes each there, and many more in memory.
#[test]
fn a_message_of_many_small_elements() {
    let _alone = crate::alone();
    let buffer = BufferId {
        stream: StreamId(0),
        number: 0,
    };
    let commit = |layout, slots| {
        encode(&Request::Commit {
            ticket: Ticket(1),
            writer: WriterId {
                stream: StreamId(0),
                rank: 0,
            },
            part: Part {
                step: 0,
                layout,
                slots,
                places: BlockOffsets::Packed,
                attributes: Vec::new(),
                checksum: 0,
            },
            keep: false,
        })
    };
    let of_slots = |slots: Vec<Slot<BufferId>>| commit(LayoutRef::Same(LayoutHash(0)), slots);
    let of_shape = |shape: &[u64]| {
        let mut layout = layout();
        layout.variables[0].shape = Dims::from_slice(shape);
        commit(LayoutRef::New(Arc::new(layout)), Vec::new())
    };
    let of_slot = |copies| of_slots(vec![Slot::from_elem(buffer, copies)]);
    // The messages with none and with one of the elements, the bytes of one, and how many.
    let lists = [
        (of_slots(Vec::new()), of_slots(vec![Slot::new()]), 1, 16),
        (of_slot(0), of_slot(1), 2, 24),
        (of_shape(&[]), of_shape(&[0]), 1, 40),
    ];
    for (none, one, bytes, millions) in lists {
        let mut pairs = none.iter().zip(&one);
        let count = pairs.position(|(none, one)| none != one).expect("a count");
        let many = millions << 20;
        let message = [
            &none[..count],
            &encode(&many),
            &vec![0; many * bytes],
            &none[count + 1..],
        ]
        .concat();
        let mut decoded = None;
        let cost = crate::allocated(|| decoded = decode_request::<Request>(&message));
        assert_eq!(decoded, None);
        assert!(
            cost < 32 * message.len(),
            "{cost} bytes for {}",
            message.len()
        );
    }
    // A few are accepted.
    for few in [
        of_slots(vec![Slot::new(); 1000]),
        of_slot(1000),
        of_shape(&[0; 1000]),
    ] {
        assert!(decode_request::<Request>(&few).is_some());
    }
}
