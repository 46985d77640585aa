//! What one process can make the coordinator keep: each kind of thing that it can ask for, again and again, and taking nothing back.

use samite_stage::protocol::{
    Action, Answer, Event, Fault, Interest, Limits, MOST_NEWS, Notice, Peer, Policy, Reader,
    Request, Start, Steward, StreamConfig, Ticket, Unread,
};

const LIAR: Peer = Peer(9);
const HONEST: Peer = Peer(10);

/// What one process may cost, and the coordinator's own tables.
const MOST: usize = 80 << 20;

fn said(steward: &mut Steward, from: Peer, request: Request) -> Option<Answer> {
    let actions = steward.on_event(0, Event::Said(from, request)).into_iter();
    let mut answers = actions.filter_map(|Action::Send(_, notice)| match notice {
        Notice::Answer { answer, .. } => Some(answer),
        Notice::Order(_) => None,
    });
    answers.next()
}

fn reader(group: String, size: u32) -> Reader {
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

fn writer(stream: String, size: u32) -> Request {
    Request::OpenWriter {
        ticket: Ticket(1),
        stream,
        program: "p".into(),
        rank: 0,
        size,
        config: StreamConfig {
            unread: Unread::Discard,
            lease: u64::MAX,
            linger: u64::MAX,
            ..StreamConfig::default()
        },
        patience: 0,
    }
}

/// Says it so often; from some time on it is refused for what it costs. Returns what was refused.
fn again_and_again(times: u64, request: impl Fn(u64) -> Request) -> u64 {
    let _alone = crate::alone();
    let mut steward = Steward::new();
    let opened = said(&mut steward, HONEST, writer("s".into(), 1));
    assert!(matches!(opened, Some(Answer::Writing { .. })), "{opened:?}");
    let mut refused = 0;
    let kept = crate::retained(|| {
        for number in 0..times {
            match said(&mut steward, LIAR, request(number)) {
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
    let opened = said(&mut steward, HONEST, writer("t".into(), 1));
    assert!(matches!(opened, Some(Answer::Writing { .. })), "{opened:?}");
    // With its process goes what it waited for.
    steward.on_event(0, Event::Lost(LIAR));
    refused
}

#[test]
fn who_waits_for_streams_that_never_come() {
    let refused = again_and_again(5000, |number| Request::OpenReader {
        ticket: Ticket(number),
        stream: "never".into(),
        reader: reader("g".into(), 1),
        patience: u64::MAX,
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
        reader: reader(format!("g{number}"), 4096),
        patience: 0,
    });
    assert!(refused > 1900, "{refused}");
}

#[test]
fn subscriptions_of_many_news() {
    let refused = again_and_again(2000, |number| Request::OpenWatch {
        ticket: Ticket(number),
        stream: "s".into(),
        interest: Interest {
            variable: "u".into(),
            region: None,
        },
        start: Start::Earliest,
        most: MOST_NEWS,
        patience: 0,
    });
    assert!(refused > 1900, "{refused}");
}

/// Of one rank, and of one subscription.
#[test]
fn questions_that_wait() {
    let _alone = crate::alone();
    let mut steward = Steward::new();
    said(&mut steward, HONEST, writer("s".into(), 1));
    let opened = said(
        &mut steward,
        LIAR,
        Request::OpenReader {
            ticket: Ticket(1),
            stream: "s".into(),
            reader: reader("g".into(), 1),
            patience: 0,
        },
    );
    let Some(Answer::Reading { reader, .. }) = opened else {
        panic!("{opened:?}");
    };
    let opened = said(
        &mut steward,
        LIAR,
        Request::OpenWatch {
            ticket: Ticket(1),
            stream: "s".into(),
            interest: Interest {
                variable: "u".into(),
                region: None,
            },
            start: Start::Earliest,
            most: 1,
            patience: 0,
        },
    );
    let Some(Answer::Watching { watch }) = opened else {
        panic!("{opened:?}");
    };
    let mut busy = 0;
    let kept = crate::retained(|| {
        for number in 0..50_000 {
            let (ticket, patience) = (Ticket(2 + number), u64::MAX);
            let next = Request::Next {
                ticket,
                reader,
                patience,
            };
            let news = Request::Watch {
                ticket,
                watch,
                patience,
            };
            for request in [next, news] {
                match said(&mut steward, LIAR, request) {
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
