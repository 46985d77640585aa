//! The requests of a server: limits, and what remains of a process that is fenced.

use super::world::process;
use crate::protocol::server::{Server, ServerAction, ServerEvent};
use crate::protocol::{
    Answer, ChunkId, Fault, GuardId, Kind, Mode, Process, Protocol, Request, ServerId, Ticket,
    Version,
};

/// The first one of the first life of the agent.
const CHUNK: ChunkId = ChunkId(1 << 32);
const NEVER: u64 = 1 << 40;

fn kind(name: &str) -> Kind {
    Kind {
        name: name.to_owned(),
        size: 8,
    }
}

/// A server with one chunk, and a function that asks it.
struct Asked(Server);

impl Asked {
    fn new() -> Asked {
        let mut asked = Asked(Server::new(process(0), ServerId::default()));
        asked.ask(process(1), 1, open(kind("u64"), 16));
        asked
    }

    fn ask(&mut self, from: Process, ticket: u64, request: Request) -> Vec<ServerAction> {
        let ticket = Some(Ticket(ticket));
        let request = ServerEvent::Request {
            from,
            ticket,
            request,
        };
        self.0.on_event(0, request)
    }

    fn note(&mut self, from: Process, request: Request) -> Vec<ServerAction> {
        let request = ServerEvent::Request {
            from,
            ticket: None,
            request,
        };
        self.0.on_event(0, request)
    }
}

fn open(kind: Kind, bytes: u64) -> Request {
    Request::Open {
        name: "chunk".to_owned(),
        kind,
        bytes: Some(bytes),
        protocol: Protocol::default(),
        replicas: None,
        timeout: NEVER,
    }
}

fn acquire(mode: Mode) -> Request {
    Request::Acquire {
        chunk: CHUNK,
        mode,
        in_place: false,
        timeout: NEVER,
    }
}

fn commit(guard: GuardId) -> Request {
    Request::Commit {
        chunk: CHUNK,
        guard,
        tag: 7,
        data: Some(vec![1; 16]),
        under: None,
    }
}

/// Returns the guard that a request was given.
fn given(actions: &[ServerAction], to: Process, ticket: u64) -> Option<GuardId> {
    actions.iter().find_map(|action| match action {
        ServerAction::Give {
            to: of,
            ticket: by,
            guard,
            ..
        } if (*of, by.0) == (to, ticket) => Some(*guard),
        _ => None,
    })
}

fn answer(actions: &[ServerAction], ticket: u64) -> Option<&Answer> {
    actions.iter().find_map(|action| match action {
        ServerAction::Answer {
            ticket: of, answer, ..
        } if of.0 == ticket => Some(answer),
        _ => None,
    })
}

/// A process whose other requests all wait can end its guard by a commit.
#[test]
fn a_commit_is_not_refused_because_others_wait() {
    let (mut server, one) = (Asked::new(), process(1));
    let guard = given(&server.ask(one, 2, acquire(Mode::Write)), one, 2).expect("nobody has one");
    let next = acquire(Mode::Read);
    let mut ticket = 3;
    while answer(&server.ask(one, ticket, next.clone()), ticket).is_none() {
        ticket += 1;
    }
    let snapshot = server.ask(one, ticket + 1, Request::Snapshot { chunk: CHUNK });
    assert!(matches!(snapshot[..], [ServerAction::Show { .. }]));
    let committed = server.ask(one, ticket + 2, commit(guard));
    let version = Version(1);
    assert_eq!(
        answer(&committed, ticket + 2),
        Some(&Answer::Committed {
            version,
            draft: None
        })
    );
}

/// The lease of a process ends, and the next request for a guard is its own, too. If that request
/// is given up, nobody waits for its guard.
#[test]
fn a_guard_that_follows_a_fenced_one_can_be_given_up() {
    let (mut server, one, other) = (Asked::new(), process(1), process(2));
    given(&server.ask(one, 2, acquire(Mode::Write)), one, 2).expect("nobody has one");
    assert_eq!(server.ask(one, 3, acquire(Mode::Write)), []);
    assert_eq!(server.ask(other, 1, acquire(Mode::Write)), []);
    let fenced = server.0.on_event(0, ServerEvent::Fence(one));
    let guard = given(&fenced, one, 3).expect("it is the next");
    assert!(server.0.has_guard(one, CHUNK, guard));
    let forget = Request::Forget { ticket: Ticket(3) };
    let actions = server.note(one, forget);
    given(&actions, other, 1).expect("the other one is next");
    // What the first one commits is refused.
    let late = server.ask(one, 4, commit(guard));
    let fenced = Answer::Failed(Fault::Fenced);
    assert_eq!(answer(&late, 4), Some(&fenced));
}

#[test]
fn types_of_elements_have_limits() {
    let (mut server, one) = (Asked::new(), process(1));
    let malformed = Answer::Failed(Fault::Malformed);
    for (kind, bytes) in [(kind(&"T".repeat(5000)), 16), (kind("u64"), 13)] {
        let actions = server.ask(one, 2, open(kind, bytes));
        assert_eq!(answer(&actions, 2), Some(&malformed));
    }
}

/// A guard is of one chunk: a request that names another one does not end it.
#[test]
fn a_guard_is_released_with_its_chunk() {
    let (mut server, one) = (Asked::new(), process(1));
    let mut other = open(kind("u64"), 16);
    if let Request::Open { name, .. } = &mut other {
        name.push('2');
    }
    server.ask(one, 2, other);
    let guard = given(&server.ask(one, 3, acquire(Mode::Write)), one, 3).expect("nobody has one");
    let other = ChunkId(CHUNK.0 + 1);
    assert_eq!(server.0.bytes(other), Some(16));
    let chunk = other;
    server.note(one, Request::Release { chunk, guard });
    assert!(server.0.has_guard(one, CHUNK, guard));
    let chunk = CHUNK;
    server.note(one, Request::Release { chunk, guard });
    assert!(!server.0.has_guard(one, CHUNK, guard));
}

/// What the processes of a meeting bring is bounded: each of them gets all of it.
#[test]
fn a_meeting_has_a_limit() {
    const EACH: usize = 256 << 10;
    let mut server = Asked::new();
    let meet = |bytes: usize| Request::Meet {
        name: "all".to_owned(),
        count: 100,
        bytes: vec![0; bytes],
        timeout: NEVER,
    };
    for number in 1..=16 {
        assert_eq!(server.ask(process(number), 1, meet(EACH)), []);
    }
    let refused = server.ask(process(17), 1, meet(1));
    let fault = |action: &ServerAction| {
        matches!(action, ServerAction::Answer { answer, .. }
            if matches!(answer, Answer::Failed(Fault::NoMemory { .. })))
    };
    assert!(refused.iter().any(fault), "{refused:?}");
    assert_eq!(server.ask(process(17), 2, meet(0)), []);
}
