//! A process that says nothing but well-formed words, in every role at once: it keeps, writes,
//! reads and watches its own streams and those of others, with numbers at every border, tickets
//! that it has used before, and reports of orders that it may never have got.

use samite_stage::protocol::{
    Action, Answer, Block, BlockOffsets, BufferId, Coordinator, Event, Handle, Interest, Lack,
    Layout, LayoutRef, Limits, Notice, Order, Part, Peer, Policy, Reader, ReaderId, Report,
    Request, Retain, Slot, Start, StreamConfig, Ticket, Unread, Variable, Want, WatchId, WriterId,
};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Region};
use samite_testkit::fuzz::{self, Rng, word};

const PEERS: [Peer; 3] = [Peer(1), Peer(2), Peer(3)];
const STREAMS: [&str; 2] = ["s", "t"];
/// Longer than anything in a round.
const LONG: u64 = 1 << 40;

/// What the schemers were told, and say again.
struct World {
    coordinator: Coordinator,
    now: u64,
    random: Rng,
    /// Each with who it is.
    writers: Vec<(Peer, WriterId, u64)>,
    readers: Vec<(Peer, ReaderId)>,
    watches: Vec<(Peer, WatchId)>,
    buffers: Vec<BufferId>,
    orders: Vec<(Peer, Order)>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            coordinator: Coordinator::new(),
            now: 0,
            random: Rng::with_seed(seed),
            writers: Vec::new(),
            readers: Vec::new(),
            watches: Vec::new(),
            buffers: Vec::new(),
            orders: Vec::new(),
        }
    }

    fn happen(&mut self, event: Event) {
        for Action::Send(to, notice) in self.coordinator.on_event(self.now, event) {
            match notice {
                Notice::Order(order) => self.orders.push((to, order)),
                Notice::Answer { answer, .. } => self.hear(to, answer),
            }
        }
    }

    fn hear(&mut self, to: Peer, answer: Answer) {
        match answer {
            Answer::Writing { writer, next, .. } => self.writers.push((to, writer, next)),
            Answer::Reading { reader, .. } => self.readers.push((to, reader)),
            Answer::Watching { watch, .. } => self.watches.push((to, watch)),
            Answer::Begun { buffers } => self.buffers.extend(buffers.iter().map(|at| at.buffer)),
            Answer::Committed => self.writers.iter_mut().for_each(|(peer, _, next)| {
                *next += u64::from(*peer == to);
            }),
            _ => {}
        }
    }

    fn number(&mut self) -> u64 {
        word(&mut self.random)
    }

    /// Used before, as likely as not.
    fn ticket(&mut self) -> Ticket {
        Ticket(self.random.u64(..4))
    }

    fn peer(&mut self) -> Peer {
        PEERS[self.random.usize(..PEERS.len())]
    }

    /// Of a question, or a lease. It ends.
    fn timeout(&mut self) -> u64 {
        match self.random.bool() {
            true => self.random.u64(..40),
            false => self.number().min(LONG),
        }
    }

    fn wants(&mut self) -> Vec<Want> {
        let count = self.random.usize(..4);
        let want = |world: &mut World| Want {
            block_store: world.peer(),
            bytes: match world.random.u32(..3) {
                0 => u64::MAX,
                1 => world.number(),
                _ => 128,
            },
        };
        (0..count).map(|_| want(self)).collect()
    }

    fn limits(&mut self) -> Option<Limits> {
        let (steps, bytes) = (self.number(), self.number());
        self.random.bool().then_some(Limits { steps, bytes })
    }

    fn policy(&mut self) -> Policy {
        let n = self.number();
        let all = [
            Policy::Block,
            Policy::DropOldest,
            Policy::DropNewest,
            Policy::Latest,
            Policy::Every(n),
            Policy::Spill,
        ];
        all[self.random.usize(..all.len())]
    }

    fn start(&mut self) -> Start {
        match self.random.u32(..3) {
            0 => Start::Earliest,
            1 => Start::Latest,
            _ => Start::Step(self.number()),
        }
    }

    fn config(&mut self) -> StreamConfig {
        let (steps, bytes) = (self.number(), self.number());
        let memory = self.number();
        StreamConfig {
            limits: self.limits(),
            memory: self.random.bool().then_some(memory),
            retain: Retain { steps, bytes },
            precious_first: self.random.bool(),
            unread: match self.random.bool() {
                true => Unread::Block,
                false => Unread::Discard,
            },
            lease: self.timeout(),
            linger: self.timeout(),
            expected: Vec::new(),
        }
    }

    /// One more word of a peer; nothing where it would need what nobody was told yet.
    fn request(&mut self, from: Peer) -> Option<Request> {
        let ticket = self.ticket();
        let stream = STREAMS[self.random.usize(..STREAMS.len())].to_owned();
        let timeout = self.timeout();
        let own = |peer: &Peer| *peer == from;
        let mut writers = self.writers.iter().rev();
        let writer = writers.find(|(peer, ..)| own(peer)).copied();
        let mut readers = self.readers.iter().rev();
        let reader = readers.find(|(peer, _)| own(peer)).map(|(_, id)| *id);
        let mut watches = self.watches.iter().rev();
        let watch = watches.find(|(peer, _)| own(peer)).map(|(_, id)| *id);
        Some(match self.random.u32(..22) {
            0 => Request::Keep {
                memory: self.number() | self.number(),
                buffers: self.number(),
                disk: self.number(),
            },
            1 | 2 => Request::OpenWriter {
                ticket,
                stream,
                program: "p".into(),
                rank: self.random.u32(..2),
                size: self.random.u32(1..3),
                config: Box::new(self.config()),
                timeout,
                gives_up: self.random.bool(),
            },
            3 | 4 => Request::OpenReader {
                ticket,
                stream,
                reader: Box::new(Reader {
                    group: format!("g{}", self.random.u32(..2)),
                    rank: self.random.u32(..2),
                    size: self.random.u32(1..3),
                    start: self.start(),
                    policy: self.policy(),
                    limits: self.limits(),
                    lease: self.timeout(),
                    only: None,
                }),
                timeout,
                gives_up: self.random.bool(),
            },
            5..=7 => Request::Begin {
                ticket,
                writer: writer?.1,
                step: writer?.2,
                wants: self.wants(),
                timeout,
            },
            8 => Request::Reserve {
                ticket,
                writer: writer?.1,
                wants: self.wants(),
                timeout,
            },
            9..=11 => Request::Commit {
                ticket,
                writer: writer?.1,
                part: self.part(writer?.2),
                keep: self.random.bool(),
            },
            12 => Request::Abort { writer: writer?.1 },
            13 => Request::CloseWriter {
                ticket,
                writer: writer?.1,
            },
            14 => Request::LeaveWriter { writer: writer?.1 },
            15..=17 => Request::Next {
                ticket,
                reader: reader?,
                timeout,
            },
            18 => Request::At {
                ticket,
                reader: reader?,
                step: self.random.u64(..3),
                timeout,
            },
            19 => match self.random.u32(..3) {
                0 => Request::CloseReader { reader: reader? },
                _ => Request::Release {
                    reader: reader?,
                    hold: ticket,
                    read: self.random.u64(..),
                },
            },
            20 => Request::OpenWatch {
                ticket,
                stream,
                interest: Box::new(Interest {
                    variable: "u".into(),
                    region: None,
                }),
                start: self.start(),
                most: self.random.u32(..3),
                timeout,
            },
            _ => match self.random.u32(..3) {
                0 => Request::Figures { ticket },
                1 => Request::CloseWatch { watch: watch? },
                _ => Request::Watch {
                    ticket,
                    watch: watch?,
                    timeout,
                },
            },
        })
    }

    fn part(&mut self, step: u64) -> Part {
        let some = self.random.usize(..3).min(self.buffers.len());
        let last = self.buffers.len() - some..;
        let slots: Vec<Slot<BufferId>> = self.buffers[last]
            .iter()
            .map(|buffer| Slot::from_elem(*buffer, 1))
            .collect();
        let blocks = (0..slots.len() as u32).map(|slot| Block {
            region: Region::at(&[u64::from(slot)], &[1]).expect("a box"),
            slot,
        });
        let variable = Variable {
            name: "u".into(),
            dtype: Dtype::U8,
            shape: Dims::from_slice(&[8]),
            attributes: Vec::new(),
            blocks: blocks.collect(),
        };
        Part {
            step,
            layout: LayoutRef::New(
                Layout {
                    variables: vec![variable],
                }
                .into(),
            ),
            slots,
            places: BlockOffsets::Packed,
            attributes: Vec::new(),
            checksum: 1,
        }
    }

    /// What it says of an order, right or wrong, once or twice.
    fn report(&mut self) {
        if self.orders.is_empty() {
            return;
        }
        let at = self.random.usize(..self.orders.len());
        let (block_store, order) = match self.random.u32(..8) {
            0 => self.orders[at],
            _ => self.orders.swap_remove(at),
        };
        let (Order::Allocate { buffer, .. }
        | Order::Seal { buffer }
        | Order::Spill { buffer }
        | Order::Free { buffer }) = order;
        let lie = match self.random.u32(..7) {
            0 => Report::Refused {
                buffer,
                lack: Lack::Memory,
            },
            1 => Report::Sealed { buffer },
            2 => Report::Spilled { buffer },
            3 => Report::SpillFailed { buffer },
            4 => Report::Full {
                buffer,
                had_by: Some(block_store),
            },
            5 => Report::Working {
                buffer,
                parts: self.number(),
            },
            _ => Report::Allocated {
                buffer,
                handle: Handle::default(),
            },
        };
        let truth = match order {
            Order::Allocate { .. } => Report::Allocated {
                buffer,
                handle: Handle::default(),
            },
            Order::Seal { .. } => Report::Sealed { buffer },
            Order::Spill { .. } => Report::Spilled { buffer },
            Order::Free { .. } => lie,
        };
        let report = match self.random.u32(..6) {
            0 => lie,
            _ => truth,
        };
        self.happen(Event::Said(block_store, Request::Report(report)));
    }

    fn run(&mut self) {
        for peer in PEERS {
            let (memory, buffers, disk) = (u64::MAX, 9, u64::MAX);
            let keep = Request::Keep {
                memory,
                buffers,
                disk,
            };
            self.happen(Event::Said(peer, keep));
        }
        for _ in 0..400 {
            match self.random.u32(..16) {
                0 if self.random.u32(..6) == 0 => {
                    let peer = self.peer();
                    self.happen(Event::Lost(peer));
                }
                0 => {
                    self.now += self.random.u64(..60);
                    self.happen(Event::Tick);
                }
                1..=6 => self.report(),
                _ => {
                    let from = self.peer();
                    if let Some(request) = self.request(from) {
                        self.happen(Event::Said(from, request));
                    }
                }
            }
        }
        for peer in PEERS {
            self.happen(Event::Lost(peer));
        }
        // The end of a stream begins the time in which readers may come.
        for _ in 0..2 {
            self.now += 2 * LONG;
            self.happen(Event::Tick);
        }
        assert_eq!(self.coordinator.figures(), [], "streams are left");
        assert_eq!(self.coordinator.subscriptions(), 0);
        let used = PEERS.map(|peer| self.coordinator.admission().used_at(peer));
        assert_eq!(used, [0; PEERS.len()]);
    }
}

#[test]
fn no_legal_words_break_the_books() {
    let _alone = crate::alone();
    fuzz::rounds(
        "schemer::no_legal_words_break_the_books",
        1500,
        |seed, _| {
            World::new(seed).run();
        },
    );
}
