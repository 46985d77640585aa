//! What one process can make the coordinator say, and hold for it: many answers of one event, long
//! ones, steps under many tickets.

use crate::growth::{HONEST, LIAR, MOST, reader, said, writer};
use samite_stage::protocol::{
    Action, Answer, Attribute, BlockOffsets, Coordinator, Event, Fault, Interest, Layout,
    LayoutRef, Notice, Part, Peer, Reader, ReaderId, Request, Retain, Start, StreamConfig, Ticket,
    Unread, WriterId, encode,
};
use std::sync::Arc;

/// Begins and commits a step that has nothing in it but one attribute of so many bytes; what
/// follows from the commit.
fn commit_text(
    coordinator: &mut Coordinator,
    writer: WriterId,
    step: u64,
    bytes: usize,
) -> Vec<Action> {
    let ticket = Ticket(2);
    let begin = Request::Begin {
        ticket,
        writer,
        step,
        wants: Vec::new(),
        timeout: 0,
    };
    let begun = said(coordinator, LIAR, begin);
    assert!(matches!(begun, Some(Answer::Begun { .. })), "{begun:?}");
    coordinator.on_event(0, Event::Said(LIAR, commit(writer, step, bytes)))
}

fn commit(writer: WriterId, step: u64, bytes: usize) -> Request {
    Request::Commit {
        ticket: Ticket(2),
        writer,
        part: Part {
            step,
            layout: LayoutRef::New(Arc::new(Layout::default())),
            slots: Vec::new(),
            places: BlockOffsets::Packed,
            attributes: vec![("a".into(), Attribute::Text("x".repeat(bytes)))],
            checksum: 0,
        },
        keep: false,
    }
}

fn steps_in(actions: &[Action]) -> usize {
    let is_step = |action: &&Action| {
        let Action::Send(_, notice) = action;
        let answer = match notice {
            Notice::Answer { answer, .. } => answer,
            Notice::Order(_) => return false,
        };
        matches!(answer, Answer::Step(record) if record.parts[0].attributes.len() == 1)
    };
    actions.iter().filter(is_step).count()
}

/// One process is many ranks of a group, all of which wait for a step: what that says is there
/// once, and not as often as it is told, and no event gives more than some of the answers.
#[test]
fn one_step_for_many_ranks_of_one_process() {
    const RANKS: u32 = 1500;
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let opened = said(&mut coordinator, LIAR, writer("s".into(), 1));
    let Some(Answer::Writing { writer, .. }) = opened else {
        panic!("{opened:?}");
    };
    for rank in 0..RANKS {
        let request = Request::OpenReader {
            ticket: Ticket(2),
            stream: "s".into(),
            reader: Box::new(Reader {
                rank,
                ..reader("g".into(), RANKS)
            }),
            timeout: 0,
            gives_up: false,
        };
        let opened = said(&mut coordinator, LIAR, request);
        let Some(Answer::Reading { reader, .. }) = opened else {
            panic!("{opened:?}");
        };
        let (ticket, timeout) = (Ticket(3), u64::MAX);
        let next = Request::Next {
            ticket,
            reader,
            timeout,
        };
        assert_eq!(said(&mut coordinator, LIAR, next), None);
    }
    let mut actions = Vec::new();
    let allocated =
        crate::allocated(|| actions = commit_text(&mut coordinator, writer, 0, 1 << 20));
    assert!(allocated < 8 << 20, "{allocated} bytes in one event");
    let mut given = steps_in(&actions);
    assert!((1..=1100).contains(&given), "{given} in one event");
    while given < RANKS as usize {
        assert_eq!(coordinator.wake_at(), Some(0), "after {given}");
        let more = steps_in(&coordinator.on_event(0, Event::Tick));
        assert!((1..=1100).contains(&more), "{more} in one event");
        given += more;
    }
    assert_eq!(given, RANKS as usize);
}

/// A step that no message can carry is refused whom it becomes too long by, before anybody can be
/// given it; and what is let in is no longer than a message, as it is told to who knows nothing of
/// it.
#[test]
fn a_step_that_no_message_can_carry_is_not_committed() {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let mut writers = Vec::new();
    for rank in 0..2 {
        let open = Request::OpenWriter {
            ticket: Ticket(1),
            stream: "s".into(),
            program: "p".into(),
            rank,
            size: 2,
            config: Box::default(),
            timeout: 0,
            gives_up: false,
        };
        match said(&mut coordinator, LIAR, open) {
            Some(Answer::Writing { writer, .. }) => writers.push(writer),
            other => panic!("{other:?}"),
        }
    }
    let open = Request::OpenReader {
        ticket: Ticket(1),
        stream: "s".into(),
        reader: Box::new(reader("g".into(), 1)),
        timeout: 0,
        gives_up: false,
    };
    let Some(Answer::Reading { reader, .. }) = said(&mut coordinator, HONEST, open) else {
        panic!("the stream is there");
    };
    let half = 33 << 20;
    for (step, second) in [(0, 30 << 20), (1, 100)] {
        let committed = commit_text(&mut coordinator, writers[0], step, half);
        assert_eq!(committed, [answer(LIAR, 2, Answer::Committed)]);
        let refused = commit_text(&mut coordinator, writers[1], step, half);
        let [Action::Send(LIAR, Notice::Answer { answer, .. })] = &refused[..] else {
            panic!("{refused:?}");
        };
        let Answer::Failed(fault @ Fault::StepTooLong { bytes, most, .. }) = answer else {
            panic!("{answer:?}");
        };
        assert!((*bytes, *most) > (66 << 20, 64 << 20), "{fault}");
        // It has begun it, and may commit less.
        coordinator.on_event(0, Event::Said(LIAR, commit(writers[1], step, second)));
        let next = Request::Next {
            ticket: Ticket(10 + step),
            reader,
            timeout: 0,
        };
        let taken = said(&mut coordinator, HONEST, next);
        assert!(matches!(taken, Some(Answer::Step(_))), "{step}");
        assert!(encode(&taken).len() + 64 < 64 << 20);
        let release = Request::Release {
            reader,
            hold: Ticket(10 + step),
            read: 0,
        };
        coordinator.on_event(0, Event::Said(HONEST, release));
    }
}

fn answer(to: Peer, ticket: u64, answer: Answer) -> Action {
    let ticket = Ticket(ticket);
    Action::Send(to, Notice::Answer { ticket, answer })
}

/// What is told at deadlines comes in parts, too, however many of them are over in one moment, in
/// however many streams.
#[test]
fn deadlines_of_many_ranks_of_one_process() {
    const STREAMS: usize = 20;
    const RANKS: u32 = 50;
    const EACH: u64 = 4;
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let mut readers = Vec::new();
    for stream in 0..STREAMS {
        let name = format!("{stream:-<4096}");
        readers.extend(many_ranks(&mut coordinator, &name, RANKS));
    }
    for (ticket, &reader) in (0..EACH).flat_map(|at| readers.iter().map(move |reader| (at, reader)))
    {
        let next = Request::Next {
            ticket: Ticket(3 + ticket),
            reader,
            timeout: 10,
        };
        assert_eq!(said(&mut coordinator, LIAR, next), None);
    }
    let mut told = 0;
    while told < readers.len() * EACH as usize {
        assert_eq!(coordinator.wake_at(), Some(10), "after {told}");
        let mut actions = Vec::new();
        let allocated = crate::allocated(|| actions = coordinator.on_event(10, Event::Tick));
        assert!(allocated < 16 << 20, "{allocated} bytes in one event");
        assert!((1..=1100).contains(&actions.len()), "{}", actions.len());
        told += actions.len();
    }
    assert_eq!(told, readers.len() * EACH as usize);
}

/// A stream, and a group of so many ranks, all of one process.
fn many_ranks(coordinator: &mut Coordinator, name: &str, ranks: u32) -> Vec<ReaderId> {
    let opened = said(coordinator, LIAR, writer(name.into(), 1));
    assert!(matches!(opened, Some(Answer::Writing { .. })), "{opened:?}");
    let mut open = |rank| {
        let request = Request::OpenReader {
            ticket: Ticket(2),
            stream: name.into(),
            reader: Box::new(Reader {
                rank,
                ..reader("g".repeat(4096), ranks)
            }),
            timeout: 0,
            gives_up: false,
        };
        match said(coordinator, LIAR, request) {
            Some(Answer::Reading { reader, .. }) => reader,
            other => panic!("{other:?}"),
        }
    };
    (0..ranks).map(&mut open).collect()
}

/// The same of subscriptions.
#[test]
fn deadlines_of_many_subscriptions_of_one_process() {
    const STREAMS: usize = 20;
    const WATCHES: usize = 32;
    const EACH: usize = 4;
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let mut due = 0;
    for stream in 0..STREAMS {
        let name = format!("{stream:-<4096}");
        many_ranks(&mut coordinator, &name, 1);
        for _ in 0..WATCHES {
            let open = Request::OpenWatch {
                ticket: Ticket(1),
                stream: name.clone(),
                interest: Box::new(Interest {
                    variable: "u".into(),
                    region: None,
                }),
                start: Start::Earliest,
                most: 1,
                timeout: 0,
            };
            let Some(Answer::Watching { watch, .. }) = said(&mut coordinator, LIAR, open) else {
                panic!("it is open");
            };
            for ticket in 0..EACH as u64 {
                let ask = Request::Watch {
                    ticket: Ticket(ticket),
                    watch,
                    timeout: 10,
                };
                assert_eq!(said(&mut coordinator, LIAR, ask), None);
                due += 1;
            }
        }
    }
    while due > 0 {
        assert_eq!(coordinator.wake_at(), Some(10), "{due} are due");
        let actions = coordinator.on_event(10, Event::Tick);
        assert!((1..=1100).contains(&actions.len()), "{}", actions.len());
        due -= actions.len();
    }
}

/// What the end of a stream tells its subscribers comes in parts as well, also after the stream is
/// forgotten because nobody reads it.
#[test]
fn the_end_of_a_stream_of_many_subscriptions() {
    const WATCHES: usize = 3000;
    for reads in [true, false] {
        let _alone = crate::alone();
        let mut coordinator = Coordinator::new();
        let opened = said(&mut coordinator, LIAR, writer("s".into(), 1));
        let Some(Answer::Writing { writer, .. }) = opened else {
            panic!("{opened:?}");
        };
        if reads {
            let open = Request::OpenReader {
                ticket: Ticket(2),
                stream: "s".into(),
                reader: Box::new(reader("g".into(), 1)),
                timeout: 0,
                gives_up: false,
            };
            said(&mut coordinator, HONEST, open);
        }
        for _ in 0..WATCHES {
            let open = Request::OpenWatch {
                ticket: Ticket(1),
                stream: "s".into(),
                interest: Box::new(Interest {
                    variable: "u".into(),
                    region: None,
                }),
                start: Start::Earliest,
                most: 1,
                timeout: 0,
            };
            let Some(Answer::Watching { watch, .. }) = said(&mut coordinator, LIAR, open) else {
                panic!("it is open");
            };
            let (ticket, timeout) = (Ticket(3), u64::MAX);
            let ask = Request::Watch {
                ticket,
                watch,
                timeout,
            };
            assert_eq!(said(&mut coordinator, LIAR, ask), None);
        }
        let ticket = Ticket(2);
        let close = Request::CloseWriter { ticket, writer };
        let mut actions = coordinator.on_event(0, Event::Said(LIAR, close));
        let mut told = 0;
        loop {
            assert!((1..=1100).contains(&actions.len()), "{}", actions.len());
            told += actions.len();
            if told > WATCHES {
                break;
            }
            assert_eq!(coordinator.wake_at(), Some(0), "after {told}");
            actions = coordinator.on_event(0, Event::Tick);
        }
        assert_eq!(told, WATCHES + 1);
        assert_ne!(coordinator.wake_at(), Some(0));
    }
}

/// One stream whose questions are always due does not keep those of another one from their answers.
#[test]
fn a_stream_of_many_answers_holds_no_other_up() {
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let many = many_ranks(&mut coordinator, "many", 1500);
    let few = many_ranks(&mut coordinator, "few", 1);
    let next = |ticket, reader| Request::Next {
        ticket: Ticket(ticket),
        reader,
        timeout: 0,
    };
    assert_eq!(said(&mut coordinator, LIAR, next(7, few[0])), None);
    // The liar asks again whenever it was answered.
    for round in 0..10 {
        for &reader in &many {
            said(&mut coordinator, LIAR, next(3, reader));
        }
        let actions = coordinator.on_event(0, Event::Tick);
        let is_it = |action: &Action| {
            let ticket = Ticket(7);
            matches!(action, Action::Send(_, Notice::Answer { ticket: of, .. }) if *of == ticket)
        };
        if actions.iter().any(is_it) {
            return;
        }
        assert!(actions.len() > 1000, "{} in round {round}", actions.len());
    }
    panic!("nobody has answered it");
}

/// Who asks how everything stands is told of some of those who wait, and how many more there are.
#[test]
fn figures_of_many_that_wait() {
    const RANKS: u32 = 4000;
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let mut waiting = 0u32;
    for stream in 0..5 {
        for reader in many_ranks(&mut coordinator, &format!("{stream:-<4096}"), RANKS) {
            let next = Request::Next {
                ticket: Ticket(3),
                reader,
                timeout: u64::MAX,
            };
            assert_eq!(said(&mut coordinator, LIAR, next), None);
            waiting += 1;
        }
    }
    let mut figures = None;
    let allocated = crate::allocated(|| {
        figures = said(
            &mut coordinator,
            HONEST,
            Request::Figures { ticket: Ticket(1) },
        );
    });
    assert!(allocated < 64 << 20, "{allocated} bytes in one event");
    let Some(Answer::Figures(figures)) = figures else {
        panic!("{figures:?}");
    };
    let waits = figures.streams.iter().map(|stream| stream.waits.len());
    let listed: usize = waits.sum();
    assert_eq!(waiting, 5 * RANKS);
    assert!(figures.more > 0);
    assert!(listed > 1000, "{listed}");
}

/// A long step is sent to some in an event, and to the others in the next ones.
#[test]
fn a_long_step_for_many() {
    const RANKS: u32 = 64;
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let readers = many_ranks(&mut coordinator, "s", RANKS);
    for &reader in &readers {
        let next = Request::Next {
            ticket: Ticket(3),
            reader,
            timeout: u64::MAX,
        };
        assert_eq!(said(&mut coordinator, LIAR, next), None);
    }
    let writer = WriterId {
        stream: readers[0].stream,
        rank: 0,
    };
    let mut given = steps_in(&commit_text(&mut coordinator, writer, 0, 1 << 20));
    assert!((1..=17).contains(&given), "{given} in one event");
    while given < RANKS as usize {
        assert_eq!(coordinator.wake_at(), Some(0), "after {given}");
        let more = steps_in(&coordinator.on_event(0, Event::Tick));
        assert!((1..=17).contains(&more), "{more} in one event");
        given += more;
    }
}

/// A process that is many ranks, and holds a step under as many tickets as each of them may have.
#[test]
fn holds_of_many_ranks() {
    const RANKS: u32 = 40;
    let _alone = crate::alone();
    let mut coordinator = Coordinator::new();
    let request = Request::OpenWriter {
        ticket: Ticket(1),
        stream: "s".into(),
        program: "p".into(),
        rank: 0,
        size: 1,
        config: Box::new(StreamConfig {
            unread: Unread::Discard,
            retain: Retain { steps: 1, bytes: 0 },
            ..StreamConfig::default()
        }),
        timeout: 0,
        gives_up: false,
    };
    let Some(Answer::Writing { writer, .. }) = said(&mut coordinator, LIAR, request) else {
        panic!("it is open");
    };
    commit_text(&mut coordinator, writer, 0, 10);
    let mut readers = Vec::new();
    for rank in 0..RANKS {
        let request = Request::OpenReader {
            ticket: Ticket(2),
            stream: "s".into(),
            reader: Box::new(Reader {
                rank,
                ..reader("g".into(), RANKS)
            }),
            timeout: 0,
            gives_up: false,
        };
        match said(&mut coordinator, LIAR, request) {
            Some(Answer::Reading { reader, .. }) => readers.push(reader),
            other => panic!("{other:?}"),
        }
    }
    let mut refused = 0;
    let kept = crate::retained(|| {
        for ticket in 0..16_000 {
            for &reader in &readers {
                let at = Request::At {
                    ticket: Ticket(ticket),
                    reader,
                    step: 0,
                    timeout: 0,
                };
                match said(&mut coordinator, LIAR, at) {
                    Some(Answer::Step(_)) => {}
                    Some(Answer::Failed(Fault::TooMuchOpen { .. })) => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    });
    assert!(refused > 100_000, "{refused}");
    assert!(kept < MOST, "{kept} bytes");
    coordinator.on_event(0, Event::Lost(LIAR));
    let opened = said(&mut coordinator, HONEST, self::writer("t".into(), 1));
    assert!(matches!(opened, Some(Answer::Writing { .. })), "{opened:?}");
}
