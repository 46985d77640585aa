//! Words that broke the books of the coordinator, one by one.

use samite_stage::protocol::{
    Action, Answer, Block, BlockOffsets, Coordinator, Event, Fault, Handle, Layout, LayoutRef,
    Notice, Order, Part, Peer, Policy, Reader, ReaderId, Report, Request, Slot, Start,
    StreamConfig, Ticket, Unread, Variable, Want, WriterId,
};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Region};

/// Says something, and returns what is answered.
fn said(coordinator: &mut Coordinator, from: Peer, request: Request) -> Vec<Notice> {
    let actions = coordinator
        .on_event(0, Event::Said(from, request))
        .into_iter();
    actions.map(|Action::Send(_, notice)| notice).collect()
}

fn answered(notices: Vec<Notice>) -> Answer {
    let mut answers = notices.into_iter().filter_map(|notice| match notice {
        Notice::Answer { answer, .. } => Some(answer),
        Notice::Order(_) => None,
    });
    answers.next().expect("it is answered at once")
}

/// A stream of one rank, which needs no reader, and a reader of it.
fn own_stream(coordinator: &mut Coordinator, liar: Peer) -> (WriterId, ReaderId) {
    let ticket = Ticket(1);
    let (stream, timeout) = ("s".to_owned(), 0);
    let opened = Request::OpenWriter {
        ticket,
        stream: stream.clone(),
        program: "p".into(),
        rank: 0,
        size: 1,
        config: Box::new(StreamConfig {
            unread: Unread::Discard,
            ..StreamConfig::default()
        }),
        timeout,
        gives_up: false,
    };
    let Answer::Writing { writer, .. } = answered(said(coordinator, liar, opened)) else {
        panic!("the name is free");
    };
    let reader = Reader {
        group: "g".into(),
        rank: 0,
        size: 1,
        start: Start::Earliest,
        policy: Policy::Block,
        limits: None,
        lease: 0,
        only: None,
    };
    let opened = Request::OpenReader {
        ticket,
        stream,
        reader: Box::new(reader),
        timeout,
        gives_up: false,
    };
    let Answer::Reading { reader, .. } = answered(said(coordinator, liar, opened)) else {
        panic!("the stream is there");
    };
    (writer, reader)
}

/// Two buffers of 2^64 - 1 bytes were granted as one, and freed as two.
#[test]
fn a_step_of_more_than_64_bits_is_refused() {
    let _alone = crate::alone();
    let (mut coordinator, liar) = (Coordinator::new(), Peer(9));
    let (memory, buffers, disk) = (u64::MAX, 9, 0);
    let keep = Request::Keep {
        memory,
        buffers,
        disk,
    };
    said(&mut coordinator, liar, keep);
    let (writer, _) = own_stream(&mut coordinator, liar);
    let want = Want {
        block_store: liar,
        bytes: u64::MAX,
    };
    let begin = Request::Begin {
        ticket: Ticket(2),
        writer,
        step: 0,
        wants: vec![want, want],
        timeout: 10,
    };
    let refused = answered(said(&mut coordinator, liar, begin));
    assert!(
        matches!(refused, Answer::Failed(Fault::TooLarge { .. })),
        "{refused:?}"
    );
    said(&mut coordinator, liar, Request::Abort { writer });
    let ticket = Ticket(3);
    let closed = said(
        &mut coordinator,
        liar,
        Request::CloseWriter { ticket, writer },
    );
    assert_eq!(answered(closed), Answer::Closed);
    assert_eq!(coordinator.admission().used_at(liar), 0);
}

/// Two steps that are held under one ticket would be released once.
#[test]
fn a_ticket_is_of_one_question() {
    let _alone = crate::alone();
    let (mut coordinator, liar) = (Coordinator::new(), Peer(9));
    let (memory, buffers, disk) = (1 << 20, 9, 0);
    let keep = Request::Keep {
        memory,
        buffers,
        disk,
    };
    said(&mut coordinator, liar, keep);
    let (writer, reader) = own_stream(&mut coordinator, liar);
    for step in 0..2 {
        let want = Want {
            block_store: liar,
            bytes: 128,
        };
        let begin = Request::Begin {
            ticket: Ticket(2),
            writer,
            step,
            wants: vec![want],
            timeout: 10,
        };
        let ordered = said(&mut coordinator, liar, begin);
        let [Notice::Order(Order::Allocate { buffer, .. })] = ordered[..] else {
            panic!("{ordered:?}");
        };
        let handle = Handle::default();
        let held = Request::Report(Report::Allocated { buffer, handle });
        said(&mut coordinator, liar, held);
        let block = Block {
            region: Region::at(&[0], &[8]).expect("a box"),
            slot: 0,
        };
        let variable = Variable {
            name: "u".into(),
            dtype: Dtype::U8,
            shape: Dims::from_slice(&[8]),
            attributes: Vec::new(),
            blocks: vec![block],
        };
        let layout = Layout {
            variables: vec![variable],
        };
        let part = Part {
            step,
            layout: LayoutRef::New(layout.into()),
            slots: vec![Slot::from_elem(buffer, 1)],
            places: BlockOffsets::Packed,
            attributes: Vec::new(),
            checksum: 1,
        };
        let (ticket, keep) = (Ticket(3), false);
        let commit = Request::Commit {
            ticket,
            writer,
            part,
            keep,
        };
        said(&mut coordinator, liar, commit);
        let sealed = Request::Report(Report::Sealed { buffer });
        said(&mut coordinator, liar, sealed);
    }
    let next = || Request::Next {
        ticket: Ticket(4),
        reader,
        timeout: 10,
    };
    let first = answered(said(&mut coordinator, liar, next()));
    assert!(matches!(first, Answer::Step(_)), "{first:?}");
    let second = answered(said(&mut coordinator, liar, next()));
    assert_eq!(second, Answer::Failed(Fault::Busy));
    let ticket = Ticket(5);
    let closed = said(
        &mut coordinator,
        liar,
        Request::CloseWriter { ticket, writer },
    );
    assert_eq!(answered(closed), Answer::Closed);
    said(&mut coordinator, liar, Request::CloseReader { reader });
    assert_eq!(coordinator.admission().used_at(liar), 0);
    assert_eq!(coordinator.figures(), []);
}
