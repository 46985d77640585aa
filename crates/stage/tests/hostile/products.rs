//! How long one event takes of a coordinator that has much of two things: as long as the sum of
//! both, and not as their product.
//!
//! What is measured is the time of the processor that the thread has had, so a loaded machine
//! changes nothing. Of four times as much, a sum takes four times as long, and a product sixteen
//! times.

use rustix::time::{ClockId, clock_gettime};
use samite_stage::protocol::{
    Action, Answer, Attribute, Block, BlockOffsets, BufferId, Coordinator, Event, Fault, Handle,
    Interest, Layout, LayoutRef, Limits, Notice, Order, Part, Peer, Policy, Reader, ReaderId,
    Report, Request, Retain, Slot, Start, StreamConfig, Ticket, Unread, Variable, Want, WriterId,
};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Region};
use std::sync::Arc;

const LIAR: Peer = Peer(9);

/// What one process may cost.
const MOST: u64 = 64 << 20;

/// Nanoseconds that this thread has had of its processor.
pub(crate) fn ran() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How many times as long an event takes of four times as much: the least of some runs of each.
pub(crate) fn growth(few: u64, event: impl Fn(u64) -> u64) -> f64 {
    let _alone = crate::alone();
    let least = |much: u64| (0..3).map(|_| event(much)).min().unwrap_or(0);
    least(4 * few) as f64 / least(few) as f64
}

fn say(coordinator: &mut Coordinator, request: Request) -> Option<Answer> {
    let actions = coordinator
        .on_event(0, Event::Said(LIAR, request))
        .into_iter();
    let mut answers = actions.filter_map(|Action::Send(_, notice)| match notice {
        Notice::Answer { answer, .. } => Some(answer),
        Notice::Order(_) => None,
    });
    answers.next()
}

/// A stream of one rank that keeps its steps.
fn stream(coordinator: &mut Coordinator, name: &str) -> WriterId {
    match say(coordinator, open(name, 0, 1)) {
        Some(Answer::Writing { writer, .. }) => writer,
        other => panic!("{other:?}"),
    }
}

fn open(name: &str, rank: u32, size: u32) -> Request {
    Request::OpenWriter {
        ticket: Ticket(1),
        stream: name.into(),
        program: "p".into(),
        rank,
        size,
        config: Box::new(StreamConfig {
            unread: Unread::Discard,
            retain: Retain {
                steps: u64::MAX,
                bytes: 0,
            },
            ..StreamConfig::default()
        }),
        timeout: 0,
        gives_up: false,
    }
}

/// A rank of a group that is given no steps.
fn open_reader(name: &str, rank: u32, size: u32) -> Request {
    Request::OpenReader {
        ticket: Ticket(1),
        stream: name.into(),
        reader: Box::new(Reader {
            group: "viewer".into(),
            rank,
            size,
            start: Start::Latest,
            policy: Policy::Block,
            limits: None,
            lease: 1000,
            only: Some(Interest {
                variable: "never".into(),
                region: None,
            }),
        }),
        timeout: 0,
        gives_up: false,
    }
}

fn begin(coordinator: &mut Coordinator, writer: WriterId, step: u64, wants: u64) -> Option<Answer> {
    let want = Want {
        block_store: LIAR,
        bytes: 1,
    };
    let begin = Request::Begin {
        ticket: Ticket(2),
        writer,
        step,
        wants: vec![want; wants as usize],
        timeout: 0,
    };
    say(coordinator, begin)
}

/// A step of nothing, of the one rank.
fn write(coordinator: &mut Coordinator, writer: WriterId, step: u64) {
    let begun = begin(coordinator, writer, step, 0);
    assert!(matches!(begun, Some(Answer::Begun { .. })), "{begun:?}");
    assert_eq!(
        say(coordinator, text(writer, step, 0)),
        Some(Answer::Committed)
    );
}

/// A part that is nothing but a text of so many bytes.
fn text(writer: WriterId, step: u64, bytes: u64) -> Request {
    let text = Attribute::Text("x".repeat(bytes as usize));
    Request::Commit {
        ticket: Ticket(2),
        writer,
        part: Part {
            step,
            layout: LayoutRef::New(Arc::new(Layout::default())),
            slots: Vec::new(),
            places: BlockOffsets::Packed,
            attributes: match bytes {
                0 => Vec::new(),
                _ => vec![("text".into(), text)],
            },
            checksum: 0,
        },
        keep: false,
    }
}

/// A subscription for which as many news may wait.
fn watch(coordinator: &mut Coordinator, most: u64) {
    let watch = Request::OpenWatch {
        ticket: Ticket(2),
        stream: "s".into(),
        interest: Box::new(Interest {
            variable: "u".into(),
            region: None,
        }),
        start: Start::Latest,
        most: most as u32,
        timeout: 0,
    };
    let opened = say(coordinator, watch);
    assert!(
        matches!(opened, Some(Answer::Watching { .. })),
        "{opened:?}"
    );
}

/// What a buffer costs that is asked for.
fn cost_of_want(coordinator: &mut Coordinator, probe: WriterId) -> u64 {
    let mut of = |wants| match begin(coordinator, probe, 0, wants) {
        Some(Answer::Failed(Fault::TooMuchOpen { bytes, .. })) => bytes,
        other => panic!("{other:?}"),
    };
    of(MOST / 64 + 1) - of(MOST / 64)
}

/// What the liar costs, as it is told when it asks for too much.
fn cost(coordinator: &mut Coordinator, probe: WriterId, want: u64) -> u64 {
    let wants = MOST / want + 1; // It never fits, so nobody waits for room for it.
    match begin(coordinator, probe, 0, wants) {
        Some(Answer::Failed(Fault::TooMuchOpen { bytes, .. })) => bytes - wants * want,
        other => panic!("{other:?}"),
    }
}

/// Every retained step gave way to a step of many buffers, and for each of them all streams were
/// added up.
#[test]
fn steps_give_way_beside_many_streams() {
    let growth = growth(400, |much| {
        let mut coordinator = Coordinator::new();
        let probe = stream(&mut coordinator, "probe");
        let writer = stream(&mut coordinator, "s");
        let want = cost_of_want(&mut coordinator, probe);
        write(&mut coordinator, writer, 0);
        let before = cost(&mut coordinator, probe, want);
        for step in 1..much {
            write(&mut coordinator, writer, step);
        }
        let steps = cost(&mut coordinator, probe, want) - before;
        for number in 0..much {
            stream(&mut coordinator, &number.to_string());
        }
        // Most of the rest is taken, so that what gives way is not for a great many buffers.
        while let free @ 1_000_000.. = MOST - cost(&mut coordinator, probe, want) {
            watch(&mut coordinator, (free - 500_000) / 600);
        }
        let rest = cost(&mut coordinator, probe, want) - steps;
        // It fits when all but a few steps are gone.
        let wants = (MOST - rest) / want - 10;
        let from = ran();
        let begun = begin(&mut coordinator, writer, much, wants);
        let took = ran() - from;
        // There is no such block store.
        assert_eq!(
            begun,
            Some(Answer::Failed(Fault::NoBlockStore {
                block_store: LIAR.into()
            }))
        );
        let stored = coordinator.figures()[1].stored;
        assert!(stored < much / 4, "{stored} steps are left");
        took
    });
    assert!(growth < 8.0, "{growth} times as long");
}

fn keeps(coordinator: &mut Coordinator, memory: u64) {
    let (buffers, disk) = (u64::MAX, 0);
    let keep = Request::Keep {
        memory,
        buffers,
        disk,
    };
    assert_eq!(say(coordinator, keep), None);
}

fn begin_at_once(writer: WriterId, step: u64, bytes: u64, timeout: u64) -> Event {
    let want = Want {
        block_store: LIAR,
        bytes,
    };
    let begin = Request::Begin {
        ticket: Ticket(2),
        writer,
        step,
        wants: vec![want],
        timeout,
    };
    Event::Said(LIAR, begin)
}

/// At a deadline each stream was looked at for each that waited for memory.
#[test]
fn a_deadline_beside_many_streams_that_wait_for_memory() {
    let growth = growth(200, |streams| {
        let mut coordinator = Coordinator::new();
        keeps(&mut coordinator, 1000);
        let first = stream(&mut coordinator, "first");
        coordinator.on_event(0, begin_at_once(first, 0, 600, 0));
        for number in 0..streams {
            let writer = stream(&mut coordinator, &number.to_string());
            let timeout = if number == 0 { 10 } else { u64::MAX };
            coordinator.on_event(0, begin_at_once(writer, 0, 600, timeout));
        }
        let from = ran();
        coordinator.on_event(10, Event::Tick);
        ran() - from
    });
    // What does not fit into a cache takes longer, too.
    assert!(growth < 12.0, "{growth} times as long");
}

/// A step of one byte, of a block store that does what it is told, except that it does not spill:
/// returns what it should.
fn write_a_byte(coordinator: &mut Coordinator, writer: WriterId, step: u64) -> Vec<BufferId> {
    let ordered = coordinator.on_event(0, begin_at_once(writer, step, 1, 0));
    let [Action::Send(_, Notice::Order(Order::Allocate { buffer, .. }))] = ordered[..] else {
        panic!("{ordered:?}");
    };
    let handle = Handle::default();
    let held = Request::Report(Report::Allocated { buffer, handle });
    assert!(matches!(say(coordinator, held), Some(Answer::Begun { .. })));
    let block = Block {
        region: Region::at(&[0], &[1]).expect("a box"),
        slot: 0,
    };
    let variable = Variable {
        name: "u".into(),
        dtype: Dtype::U8,
        shape: Dims::from_slice(&[1]),
        attributes: Vec::new(),
        blocks: vec![block],
    };
    let layout = Layout {
        variables: vec![variable],
    };
    let commit = Request::Commit {
        ticket: Ticket(3),
        writer,
        part: Part {
            step,
            layout: LayoutRef::New(Arc::new(layout)),
            slots: vec![Slot::from_elem(buffer, 1)],
            places: BlockOffsets::Packed,
            attributes: Vec::new(),
            checksum: 1,
        },
        keep: false,
    };
    assert_eq!(say(coordinator, commit), Some(Answer::Committed));
    let sealed = Request::Report(Report::Sealed { buffer });
    let actions = coordinator.on_event(0, Event::Said(LIAR, sealed));
    let spills = actions.into_iter().map(|action| match action {
        Action::Send(_, Notice::Order(Order::Spill { buffer })) => buffer,
        other => panic!("{other:?}"),
    });
    spills.collect()
}

/// Blocks that are in the same place but for one dimension, which is not the one that tells most of
/// them apart, were compared pair by pair.
#[test]
fn a_part_of_many_blocks_beside_each_other() {
    let growth = growth(2000, |much| {
        let mut coordinator = Coordinator::new();
        let writer = stream(&mut coordinator, "s");
        keeps(&mut coordinator, 1 << 20);
        let ordered = coordinator.on_event(0, begin_at_once(writer, 0, 2 * much, 0));
        let [Action::Send(_, Notice::Order(Order::Allocate { buffer, .. }))] = ordered[..] else {
            panic!("{ordered:?}");
        };
        let handle = Handle::default();
        let allocated = Request::Report(Report::Allocated { buffer, handle });
        assert!(say(&mut coordinator, allocated).is_some());
        let block = |at| Block {
            region: Region::new(&[0, at, at], &[1, at + 1, much]).expect("a box"),
            slot: 0,
        };
        let blocks: Vec<Block> = (0..much).map(block).collect();
        let places = BlockOffsets::Listed(vec![0; blocks.len()].into());
        let variable = Variable {
            name: "u".into(),
            dtype: Dtype::U8,
            shape: Dims::from_slice(&[1, much, much]),
            attributes: Vec::new(),
            blocks,
        };
        let layout = Layout {
            variables: vec![variable],
        };
        let commit = Request::Commit {
            ticket: Ticket(3),
            writer,
            part: Part {
                step: 0,
                layout: LayoutRef::New(Arc::new(layout)),
                slots: vec![Slot::from_elem(buffer, 1)],
                places,
                attributes: Vec::new(),
                checksum: 1,
            },
            keep: false,
        };
        let from = ran();
        assert_eq!(say(&mut coordinator, commit), Some(Answer::Committed));
        ran() - from
    });
    assert!(growth < 8.0, "{growth} times as long");
}

/// For each retained step that gave way to one which needs all memory all buffers were added up.
#[test]
fn steps_give_way_beside_many_buffers() {
    let growth = growth(1000, |steps| {
        let mut coordinator = Coordinator::new();
        keeps(&mut coordinator, 1 << 40);
        let writer = stream(&mut coordinator, "s");
        for step in 0..steps {
            write_a_byte(&mut coordinator, writer, step);
        }
        assert_eq!(coordinator.figures()[0].stored, steps);
        let from = ran();
        coordinator.on_event(0, begin_at_once(writer, steps, 1 << 40, 0));
        let took = ran() - from;
        assert_eq!(coordinator.figures()[0].stored, 0);
        took
    });
    // What does not fit into a cache takes longer, too.
    assert!(growth < 12.0, "{growth} times as long");
}

/// Where somebody was late, the steps that each rank of a group had still to take were gathered
/// rank by rank.
#[test]
fn a_deadline_beside_many_readers_that_are_behind() {
    let growth = growth(500, |much| {
        let mut coordinator = Coordinator::new();
        let writer = stream(&mut coordinator, "s");
        let open = |rank| Request::OpenReader {
            ticket: Ticket(2),
            stream: "s".into(),
            reader: Box::new(Reader {
                group: "viewer".into(),
                rank,
                size: much as u32,
                start: Start::Earliest,
                policy: Policy::Block,
                limits: Some(Limits {
                    steps: much,
                    bytes: u64::MAX,
                }),
                lease: 1000,
                only: None,
            }),
            timeout: 0,
            gives_up: false,
        };
        let mut first = None;
        for rank in 0..much as u32 {
            match say(&mut coordinator, open(rank)) {
                Some(Answer::Reading { reader, .. }) => first = first.or(Some(reader)),
                other => panic!("{other:?}"),
            }
        }
        let reader = first.expect("there are ranks");
        for step in 0..much {
            write(&mut coordinator, writer, step);
            let next = Request::Next {
                ticket: Ticket(step),
                reader,
                timeout: 0,
            };
            assert!(matches!(say(&mut coordinator, next), Some(Answer::Step(_))));
        }
        // The group is full: what its first rank has taken the others have not.
        let late = Request::Begin {
            ticket: Ticket(2),
            writer,
            step: much,
            wants: Vec::new(),
            timeout: 10,
        };
        assert_eq!(say(&mut coordinator, late), None);
        let from = ran();
        let answers = coordinator.on_event(10, Event::Tick);
        let took = ran() - from;
        assert_eq!(answers.len(), 1, "{answers:?}");
        took
    });
    // What does not fit into a cache takes longer, too.
    assert!(growth < 12.0, "{growth} times as long");
}

/// A stream and a group of as many ranks each, which may be so many steps behind.
fn many(coordinator: &mut Coordinator, ranks: u32, steps: u64) -> (Vec<WriterId>, Vec<ReaderId>) {
    let write = |rank| match say(coordinator, open("s", rank, ranks)) {
        Some(Answer::Writing { writer, .. }) => writer,
        other => panic!("{other:?}"),
    };
    let writers = (0..ranks).map(write).collect();
    let read = |rank| {
        let open = with(open_reader("s", rank, ranks), |reader| {
            reader.only = None;
            reader.limits = Some(Limits {
                steps,
                bytes: u64::MAX,
            });
        });
        match say(coordinator, open) {
            Some(Answer::Reading { reader, .. }) => reader,
            other => panic!("{other:?}"),
        }
    };
    (writers, (0..ranks).map(read).collect())
}

/// Holds of a reader: so few that those of all readers stay in the cache, where four times as many
/// take four times as long to walk.
const HOLDS: u64 = 50;

/// Each of them holds step 0 so often.
fn hold(coordinator: &mut Coordinator, readers: &[ReaderId], times: u64) {
    for ticket in 0..times {
        for &reader in readers {
            let at = Request::At {
                ticket: Ticket(10 + ticket),
                reader,
                step: 0,
                timeout: 0,
            };
            assert!(matches!(say(coordinator, at), Some(Answer::Step(_))));
        }
    }
}

/// Where many ranks of one process waited for less to be in use, each walked all that readers hold,
/// in every event of anybody.
#[test]
fn many_ranks_that_wait_beside_many_holds() {
    const TEXT: u64 = 16 << 10;
    let growth = growth(100, |much| {
        let ranks = much as u32;
        let mut coordinator = Coordinator::new();
        let probe = stream(&mut coordinator, "probe");
        let (writers, readers) = many(&mut coordinator, ranks, 10);
        for &writer in &writers {
            begin(&mut coordinator, writer, 0, 0);
            let committed = say(&mut coordinator, text(writer, 0, TEXT));
            assert_eq!(committed, Some(Answer::Committed));
        }
        hold(&mut coordinator, &readers, HOLDS);
        // All that is left but for half a part.
        let filler = stream(&mut coordinator, "filler");
        begin(&mut coordinator, filler, 0, 0);
        let want = cost_of_want(&mut coordinator, probe);
        let rest = MOST - cost(&mut coordinator, probe, want);
        let committed = say(&mut coordinator, text(filler, 0, rest - TEXT / 2));
        assert_eq!(committed, Some(Answer::Committed));
        for &writer in &writers {
            assert_eq!(
                begin(&mut coordinator, writer, 1, 0),
                None,
                "there is no room"
            );
        }
        // Somebody else asks for something, and gives it back.
        let nothing = open_reader("none", 0, 1);
        let from = ran();
        let answers = coordinator.on_event(0, Event::Said(Peer(1), nothing));
        let took = ran() - from;
        assert_eq!(answers.len(), 1);
        took
    });
    assert!(growth < 12.0, "{growth} times as long");
}

/// Where a group is full, each rank that wanted to begin a step walked all that readers hold.
#[test]
fn many_ranks_that_wait_for_a_full_group() {
    let growth = growth(100, |much| {
        let ranks = much as u32;
        let mut coordinator = Coordinator::new();
        let (writers, readers) = many(&mut coordinator, ranks, 1);
        for &writer in &writers {
            begin(&mut coordinator, writer, 0, 0);
            let committed = say(&mut coordinator, text(writer, 0, 0));
            assert_eq!(committed, Some(Answer::Committed));
        }
        hold(&mut coordinator, &readers, HOLDS);
        let mut ask = |writer| begin(&mut coordinator, writer, 1, 0);
        assert!(
            writers.iter().all(|&writer| ask(writer).is_none()),
            "it is full"
        );
        let from = ran();
        let writer = writers[0];
        coordinator.on_event(0, Event::Said(LIAR, Request::Abort { writer }));
        assert_eq!(coordinator.on_event(0, Event::Tick).len() as u64, much - 1);
        ran() - from
    });
    assert!(growth < 12.0, "{growth} times as long");
}

/// Where a group is drawn out, each rank that wanted its next step added up all that it has taken.
#[test]
fn many_ranks_that_wait_for_the_last_one() {
    let growth = growth(200, |much| {
        let mut coordinator = Coordinator::new();
        let writer = stream(&mut coordinator, "s");
        let ranks = much as u32;
        let open = |rank| {
            with(open_reader("s", rank, ranks), |reader| {
                reader.policy = Policy::DropOldest;
                reader.only = None;
                reader.limits = Some(Limits {
                    steps: much,
                    bytes: u64::MAX,
                });
            })
        };
        let read = |coordinator: &mut Coordinator, rank| match say(coordinator, open(rank)) {
            Some(Answer::Reading { reader, .. }) => reader,
            other => panic!("{other:?}"),
        };
        let mut readers: Vec<ReaderId> = (0..ranks)
            .map(|rank| read(&mut coordinator, rank))
            .collect();
        let next = |ticket, reader| Request::Next {
            ticket: Ticket(ticket),
            reader,
            timeout: u64::MAX,
        };
        for step in 0..much {
            write(&mut coordinator, writer, step);
            let taken = say(&mut coordinator, next(step, readers[0]));
            assert!(matches!(taken, Some(Answer::Step(_))));
        }
        // But for two, all come again, and are where the first one is.
        for rank in 2..ranks {
            let reader = readers[rank as usize];
            coordinator.on_event(0, Event::Said(LIAR, Request::CloseReader { reader }));
            readers[rank as usize] = read(&mut coordinator, rank);
        }
        write(&mut coordinator, writer, much);
        for &reader in &readers[2..] {
            assert_eq!(
                say(&mut coordinator, next(much, reader)),
                None,
                "it waits for the last one"
            );
        }
        let from = ran();
        write(&mut coordinator, writer, much + 1);
        ran() - from
    });
    assert!(growth < 12.0, "{growth} times as long");
}

fn with(mut request: Request, change: impl FnOnce(&mut Reader)) -> Request {
    if let Request::OpenReader { reader, .. } = &mut request {
        change(reader);
    }
    request
}

fn with_config(mut request: Request, change: impl FnOnce(&mut StreamConfig)) -> Request {
    if let Request::OpenWriter { config, .. } = &mut request {
        change(config);
    }
    request
}

/// When a group came or went, each stored step was looked for in all that one rank of a group had
/// taken and another had not.
#[test]
fn a_group_comes_beside_many_steps_that_are_taken() {
    let growth = growth(2000, |much| {
        let mut coordinator = Coordinator::new();
        let open = with_config(open("s", 0, 1), |config| config.retain.steps = 1);
        let Some(Answer::Writing { writer, .. }) = say(&mut coordinator, open) else {
            panic!("it is open");
        };
        let readers = [0, 1].map(|rank| {
            let open = with(open_reader("s", rank, 2), |reader| {
                reader.only = None;
                reader.limits = Some(Limits {
                    steps: much + 1,
                    bytes: u64::MAX,
                });
            });
            match say(&mut coordinator, open) {
                Some(Answer::Reading { reader, .. }) => reader,
                other => panic!("{other:?}"),
            }
        });
        let reader = readers[0];
        for step in 0..much {
            write(&mut coordinator, writer, step);
            let hold = Ticket(step);
            let next = Request::Next {
                ticket: hold,
                reader,
                timeout: 0,
            };
            assert!(matches!(say(&mut coordinator, next), Some(Answer::Step(_))));
            let read = u64::MAX;
            say(&mut coordinator, Request::Release { reader, hold, read });
        }
        let another = with(open_reader("s", 0, 1), |reader| {
            reader.group = "another".into();
        });
        let from = ran();
        let opened = say(&mut coordinator, another);
        let took = ran() - from;
        assert!(matches!(opened, Some(Answer::Reading { .. })), "{opened:?}");
        assert_eq!(coordinator.figures()[0].stored, much);
        took
    });
    assert!(growth < 8.0, "{growth} times as long");
}

/// For each rank that waited for memory, all ranks were looked at.
#[test]
fn many_ranks_that_wait_for_memory() {
    let growth = growth(200, |much| {
        let mut coordinator = Coordinator::new();
        keeps(&mut coordinator, 1000);
        let first = stream(&mut coordinator, "first");
        coordinator.on_event(0, begin_at_once(first, 0, 600, u64::MAX));
        let mut last = first;
        for rank in 0..much as u32 {
            last = match say(&mut coordinator, open("s", rank, much as u32)) {
                Some(Answer::Writing { writer, .. }) => writer,
                other => panic!("{other:?}"),
            };
            coordinator.on_event(0, begin_at_once(last, 0, 600, u64::MAX));
        }
        let from = ran();
        let abort = Request::Abort { writer: last };
        let answers = coordinator.on_event(0, Event::Said(LIAR, abort));
        let took = ran() - from;
        assert_eq!(answers.len(), 1, "{answers:?}");
        took
    });
    assert!(growth < 12.0, "{growth} times as long");
}

/// With every message of a stream, all its steps beyond the limit were looked at again, although
/// they are on disk.
#[test]
fn many_steps_that_are_on_disk() {
    let growth = growth(150, |much| {
        let mut coordinator = Coordinator::new();
        let keep = Request::Keep {
            memory: 1 << 20,
            buffers: u64::MAX,
            disk: 1 << 20,
        };
        assert_eq!(say(&mut coordinator, keep), None);
        let open = with_config(open("s", 0, 1), |config| config.retain.steps = 0);
        let Some(Answer::Writing { writer, .. }) = say(&mut coordinator, open) else {
            panic!("it is open");
        };
        let open = with(open_reader("s", 0, 1), |reader| {
            (reader.policy, reader.only) = (Policy::Spill, None);
            reader.limits = Some(Limits {
                steps: 1,
                bytes: u64::MAX,
            });
        });
        assert!(matches!(
            say(&mut coordinator, open),
            Some(Answer::Reading { .. })
        ));
        let from = ran();
        for step in 0..much {
            for buffer in write_a_byte(&mut coordinator, writer, step) {
                let spilled = Request::Report(Report::Spilled { buffer });
                assert_eq!(say(&mut coordinator, spilled), None);
            }
        }
        let took = ran() - from;
        assert_eq!(coordinator.figures()[0].stored, much);
        assert_eq!(
            coordinator.admission().used_at(LIAR),
            1,
            "the others are on disk"
        );
        took
    });
    assert!(growth < 8.0, "{growth} times as long");
}
