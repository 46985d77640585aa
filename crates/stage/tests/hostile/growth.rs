//! What one process can make the coordinator keep: each kind of thing that it can ask for, again
//! and again, and taking nothing back.

use samite_stage::Dtype;
use samite_stage::protocol::{
    Action, Answer, Attribute, BlockOffsets, Coordinator, Event, Fault, Interest, LONGEST_LEASE,
    Layout, LayoutRef, Limits, MOST_NEWS, Notice, Part, Peer, Policy, Reader, Request, Retain,
    Start, StreamConfig, Ticket, Unread, Variable, Want,
};
use samite_stage::space::{Dims, MAX_DIMS};
use std::sync::Arc;

pub(crate) const LIAR: Peer = Peer(9);
pub(crate) const HONEST: Peer = Peer(10);

/// What one process may cost, and the coordinator's own tables.
pub(crate) const MOST: usize = 80 << 20;

pub(crate) fn said(coordinator: &mut Coordinator, from: Peer, request: Request) -> Option<Answer> {
    let actions = coordinator
        .on_event(0, Event::Said(from, request))
        .into_iter();
    let mut answers = actions.filter_map(|Action::Send(_, notice)| match notice {
        Notice::Answer { answer, .. } => Some(answer),
        Notice::Order(_) => None,
    });
    answers.next()
}

pub(crate) fn reader(group: String, size: u32) -> Reader {
    Reader {
        group,
        rank: 0,
        size,
        start: Start::Earliest,
        policy: Policy::Block,
        limits: Some(Limits { steps: 1, bytes: 1 }),
        lease: u64::MAX,
        only: None,
    }
}

pub(crate) fn writer(stream: String, size: u32) -> Request {
    Request::OpenWriter {
        ticket: Ticket(1),
        stream,
        program: "p".into(),
        rank: 0,
        size,
        config: Box::new(StreamConfig {
            unread: Unread::Discard,
            lease: u64::MAX,
            linger: u64::MAX,
            ..StreamConfig::default()
        }),
        timeout: 0,
        gives_up: false,
    }
}

/// Says it so often; from some time on it is refused for what it costs. Returns what was refused.
fn again_and_again(times: u64, request: impl Fn(u64) -> Request) -> u64 {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let opened = said(&mut coordinator, HONEST, writer("s".into(), 1));
    assert!(matches!(opened, Some(Answer::Writing { .. })), "{opened:?}");
    let mut refused = 0;
    let kept = crate::retained(|| {
        for number in 0..times {
            match said(&mut coordinator, LIAR, request(number)) {
                Some(Answer::Failed(Fault::TooMuchOpen { bytes, most, .. })) => {
                    assert!(bytes > most, "{bytes} of {most}");
                    refused += 1;
                }
                Some(Answer::Failed(fault)) => panic!("{fault}"),
                _ => {}
            }
        }
    });
    assert!(kept < MOST, "{kept} bytes");
    // Others are not in its way.
    let opened = said(&mut coordinator, HONEST, writer("t".into(), 1));
    assert!(matches!(opened, Some(Answer::Writing { .. })), "{opened:?}");
    // With its process goes what it waited for.
    coordinator.on_event(0, Event::Lost(LIAR));
    refused
}

#[test]
fn who_waits_for_streams_that_never_come() {
    let refused = again_and_again(5000, |number| Request::OpenReader {
        ticket: Ticket(number),
        stream: "never".into(),
        reader: Box::new(reader("g".into(), 1)),
        timeout: u64::MAX,
        gives_up: false,
    });
    assert!(refused > 4000, "{refused}");
}

#[test]
fn streams_of_many_ranks() {
    let refused = again_and_again(2000, |number| writer(format!("s{number}"), 4096));
    assert!(refused > 1900, "{refused}");
}

#[test]
fn groups_of_many_ranks() {
    let refused = again_and_again(2000, |number| Request::OpenReader {
        ticket: Ticket(number),
        stream: "s".into(),
        reader: Box::new(reader(format!("g{number}"), 4096)),
        timeout: 0,
        gives_up: false,
    });
    assert!(refused > 1900, "{refused}");
}

#[test]
fn subscriptions_of_many_news() {
    let refused = again_and_again(2000, |number| Request::OpenWatch {
        ticket: Ticket(number),
        stream: "s".into(),
        interest: Box::new(Interest {
            variable: "u".into(),
            region: None,
        }),
        start: Start::Earliest,
        most: MOST_NEWS,
        timeout: 0,
    });
    assert!(refused > 1900, "{refused}");
}

/// Of one rank, and of one subscription.
#[test]
fn questions_that_wait() {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    said(&mut coordinator, HONEST, writer("s".into(), 1));
    let opened = said(
        &mut coordinator,
        LIAR,
        Request::OpenReader {
            ticket: Ticket(1),
            stream: "s".into(),
            reader: Box::new(reader("g".into(), 1)),
            timeout: 0,
            gives_up: false,
        },
    );
    let Some(Answer::Reading { reader, .. }) = opened else {
        panic!("{opened:?}");
    };
    let opened = said(
        &mut coordinator,
        LIAR,
        Request::OpenWatch {
            ticket: Ticket(1),
            stream: "s".into(),
            interest: Box::new(Interest {
                variable: "u".into(),
                region: None,
            }),
            start: Start::Earliest,
            most: 1,
            timeout: 0,
        },
    );
    let Some(Answer::Watching { watch, .. }) = opened else {
        panic!("{opened:?}");
    };
    let mut busy = 0;
    let kept = crate::retained(|| {
        for number in 0..50_000 {
            let (ticket, timeout) = (Ticket(2 + number), u64::MAX);
            let next = Request::Next {
                ticket,
                reader,
                timeout,
            };
            let news = Request::Watch {
                ticket,
                watch,
                timeout,
            };
            for request in [next, news] {
                match said(&mut coordinator, LIAR, request) {
                    None => {}
                    Some(Answer::Failed(Fault::Busy)) => busy += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    });
    assert!(busy > 99_000, "{busy}");
    assert!(kept < 1 << 20, "{kept} bytes");
}

/// One stream of one rank, whose config is that, and commits that have nothing in them but
/// attributes; how many have waited for room.
fn steps_of_attributes(times: u64, config: StreamConfig) -> u64 {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let request = Request::OpenWriter {
        ticket: Ticket(1),
        stream: "s".into(),
        program: "p".into(),
        rank: 0,
        size: 1,
        config: Box::new(config),
        timeout: 0,
        gives_up: false,
    };
    let Some(Answer::Writing { writer, .. }) = said(&mut coordinator, LIAR, request) else {
        panic!("it is open");
    };
    let mut late = 0;
    let kept = crate::retained(|| {
        let mut step = 0;
        for number in 0..times {
            let ticket = Ticket(2 + number);
            let begin = Request::Begin {
                ticket,
                writer,
                step,
                wants: Vec::new(),
                timeout: 0,
            };
            let commit = Request::Commit {
                ticket,
                writer,
                part: Part {
                    step,
                    layout: LayoutRef::New(Arc::new(Layout::default())),
                    slots: Vec::new(),
                    places: BlockOffsets::Packed,
                    attributes: vec![("a".into(), Attribute::Text("x".repeat(10 << 10)))],
                    checksum: 0,
                },
                keep: false,
            };
            let begun = said(&mut coordinator, LIAR, begin);
            let answers = match begun {
                Some(Answer::Begun { .. }) => said(&mut coordinator, LIAR, commit),
                other => other,
            };
            match answers {
                Some(Answer::Committed) => step += 1,
                // It waits until somebody takes what there is.
                None => {
                    said(&mut coordinator, LIAR, Request::Abort { writer });
                    late += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    });
    assert!(kept < MOST, "{kept} bytes");
    late
}

/// They have no bytes that a limit or a budget would count.
#[test]
fn steps_of_attributes_that_are_retained() {
    let retain = Retain {
        steps: u64::MAX,
        bytes: 0,
    };
    let config = StreamConfig {
        unread: Unread::Discard,
        retain,
        ..StreamConfig::default()
    };
    assert_eq!(steps_of_attributes(20_000, config), 0, "the oldest yield");
}

#[test]
fn steps_of_attributes_that_nobody_takes() {
    let limits = Some(Limits {
        steps: u64::MAX,
        bytes: u64::MAX,
    });
    let config = StreamConfig {
        limits,
        ..StreamConfig::default()
    };
    let late = steps_of_attributes(20_000, config);
    assert!((12_000..19_000).contains(&late), "{late}");
}

/// What comes back in every answer is short.
#[test]
fn names_and_shapes_are_short() {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let long = || "x".repeat(5000);
    let refused = said(&mut coordinator, LIAR, writer(long(), 1));
    let too_long = |answer: &Option<Answer>| {
        matches!(
            answer,
            Some(Answer::Failed(Fault::NameTooLong { bytes: 5000, .. }))
        )
    };
    assert!(too_long(&refused), "{refused:?}");
    let open = |coordinator: &mut Coordinator, reader| {
        let opening = Request::OpenReader {
            ticket: Ticket(1),
            stream: "s".into(),
            reader: Box::new(reader),
            timeout: 0,
            gives_up: false,
        };
        said(coordinator, LIAR, opening)
    };
    let refused = open(&mut coordinator, reader(long(), 1));
    assert!(too_long(&refused), "{refused:?}");
    let only = Interest {
        variable: long(),
        region: None,
    };
    let only = Reader {
        only: Some(only),
        ..reader("g".into(), 1)
    };
    let refused = open(&mut coordinator, only);
    assert!(too_long(&refused), "{refused:?}");
    let shaped = |dims: usize| Layout {
        variables: vec![Variable {
            name: "u".into(),
            dtype: Dtype::U8,
            shape: Dims::from_elem(1, dims),
            attributes: Vec::new(),
            blocks: Vec::new(),
        }],
    };
    assert_eq!(shaped(MAX_DIMS).check(0), Ok(()));
    assert!(matches!(
        shaped(MAX_DIMS + 1).check(0),
        Err(Fault::TooManyDimensions { dims: 17, .. })
    ));
}

#[test]
fn buffers_without_number() {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let keep = Request::Keep {
        memory: u64::MAX,
        buffers: u64::MAX,
        disk: 0,
    };
    said(&mut coordinator, LIAR, keep);
    let opened = said(&mut coordinator, LIAR, writer("s".into(), 1));
    let Some(Answer::Writing { writer, .. }) = opened else {
        panic!("{opened:?}");
    };
    let mut begin = |wants: usize| {
        let want = Want {
            block_store: LIAR,
            bytes: 1,
        };
        let request = Request::Begin {
            ticket: Ticket(2),
            writer,
            step: 0,
            wants: vec![want; wants],
            timeout: 0,
        };
        said(&mut coordinator, LIAR, request)
    };
    let many = begin(100_000);
    assert!(
        matches!(many, Some(Answer::Failed(Fault::TooManyBuffers { .. }))),
        "{many:?}"
    );
    let more = begin(1_000_000);
    assert!(
        matches!(more, Some(Answer::Failed(Fault::TooMuchOpen { .. }))),
        "{more:?}"
    );
}

/// Each of many requests waits for the memory of a step that has many buffers already.
#[test]
fn requests_that_wait_beside_many_buffers() {
    const RANKS: u32 = 512;
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let keep = Request::Keep {
        memory: 1 << 20,
        buffers: u64::MAX,
        disk: 0,
    };
    said(&mut coordinator, LIAR, keep);
    let mut writers = Vec::new();
    for rank in 0..RANKS {
        let mut open = writer("s".into(), RANKS);
        if let Request::OpenWriter { rank: of, .. } = &mut open {
            *of = rank;
        }
        match said(&mut coordinator, LIAR, open) {
            Some(Answer::Writing { writer, .. }) => writers.push(writer),
            other => panic!("{other:?}"),
        }
    }
    let opened = said(&mut coordinator, HONEST, writer("t".into(), 1));
    let Some(Answer::Writing { writer: other, .. }) = opened else {
        panic!("{opened:?}");
    };
    let mut begin = |from, writer, wants: usize, bytes| {
        let block_store = LIAR;
        let request = Request::Begin {
            ticket: Ticket(2),
            writer,
            step: 0,
            wants: vec![Want { block_store, bytes }; wants],
            timeout: u64::MAX,
        };
        assert_eq!(said(&mut coordinator, from, request), None, "it waits");
    };
    begin(HONEST, other, 1, 1 << 19);
    begin(LIAR, writers[0], 20_000, 1);
    let kept = crate::retained(|| {
        for &writer in &writers[1..] {
            begin(LIAR, writer, 1, 1 << 19);
        }
    });
    assert!(kept < 4 << 20, "{kept} bytes");
}

/// A lease of any length ends after a day at the latest.
#[test]
fn streams_of_the_dead_end_some_day() {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    said(&mut coordinator, LIAR, writer("s".into(), 1));
    coordinator.on_event(0, Event::Lost(LIAR));
    coordinator.on_event(LONGEST_LEASE - 1, Event::Tick);
    assert_eq!(coordinator.figures().len(), 1);
    coordinator.on_event(LONGEST_LEASE, Event::Tick);
    assert_eq!(coordinator.figures(), []);
}

/// Groups without a limit, each of which has every step in its queue.
#[test]
fn queues_of_many_steps() {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let opened = said(&mut coordinator, LIAR, writer("s".into(), 1));
    let Some(Answer::Writing { writer, .. }) = opened else {
        panic!("{opened:?}");
    };
    let mut refused = 0;
    let kept = crate::retained(|| {
        for number in 0..2000 {
            let reader = Reader {
                limits: Some(Limits {
                    steps: u64::MAX,
                    bytes: u64::MAX,
                }),
                ..reader(format!("g{number}"), 1)
            };
            let open = Request::OpenReader {
                ticket: Ticket(number),
                stream: "s".into(),
                reader: Box::new(reader),
                timeout: 0,
                gives_up: false,
            };
            match said(&mut coordinator, LIAR, open) {
                Some(Answer::Reading { .. }) => {}
                Some(Answer::Failed(Fault::TooMuchOpen { .. })) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        for step in 0..20_000 {
            let begin = Request::Begin {
                ticket: Ticket(1),
                writer,
                step,
                wants: Vec::new(),
                timeout: 0,
            };
            if said(&mut coordinator, LIAR, begin) != Some(Answer::Begun { buffers: vec![] }) {
                break;
            }
            let commit = Request::Commit {
                ticket: Ticket(1),
                writer,
                part: Part {
                    step,
                    layout: LayoutRef::New(Arc::new(Layout::default())),
                    slots: Vec::new(),
                    places: BlockOffsets::Packed,
                    attributes: Vec::new(),
                    checksum: 0,
                },
                keep: false,
            };
            said(&mut coordinator, LIAR, commit);
        }
    });
    assert!(refused > 1900, "{refused}");
    assert!(kept < MOST, "{kept} bytes");
}
