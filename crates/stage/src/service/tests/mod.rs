mod disk;
mod stopped;

use super::clients::Clients;
use super::*;
use crate::protocol::{
    self, Action, Answer, BlockOffsets, BlockStoreInfo, Event, Fault, LONGEST, Layout, LayoutRef,
    Notice, Part, Policy, Reader, ReaderId, Request, Start, StepRecord, StreamConfig, Ticket,
    WriterId,
};
use envelope::Packed;
use samite_fabric::Match;
use samite_fabric::rpc::{Life, ServiceId};
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Config, Identity};
use std::sync::Arc;

/// In ms: longer than a test.
const LONG: u64 = 1 << 30;

fn alone() -> Fabric {
    Fabric::alone(Identity::by_hand("service"), Config::default()).expect("it is alone")
}

fn open_writer(ticket: u64, stream: &str, config: StreamConfig) -> Request {
    Request::OpenWriter {
        ticket: Ticket(ticket),
        stream: stream.into(),
        program: "solver".into(),
        rank: 0,
        size: 1,
        config: Box::new(config),
        timeout: LONG,
        gives_up: false,
    }
}

fn open_reader(ticket: u64, stream: &str, (rank, size): (u32, u32)) -> Request {
    let reader = Reader {
        group: "analysis".into(),
        rank,
        size,
        start: Start::Earliest,
        policy: Policy::Block,
        limits: None,
        lease: LONG,
        only: None,
    };
    Request::OpenReader {
        ticket: Ticket(ticket),
        stream: stream.into(),
        reader: Box::new(reader),
        timeout: LONG,
        gives_up: false,
    }
}

fn next(ticket: u64, reader: ReaderId) -> Request {
    Request::Next {
        ticket: Ticket(ticket),
        reader,
        timeout: LONG,
    }
}

/// Returns the immediate answer of a coordinator, without sending it.
fn asked(coordinator: &mut CoordinatorService, from: Peer, request: Request) -> Option<Answer> {
    let actions = coordinator
        .coordinator
        .on_event(0, Event::Said(from, request));
    actions
        .into_iter()
        .find_map(|Action::Send(to, notice)| match notice {
            Notice::Answer { answer, .. } if to == from => Some(answer),
            _ => None,
        })
}

/// A stream, its writer, and a reader whose request for the first step waits.
struct Waited {
    coordinator: CoordinatorService,
    writer: (Peer, WriterId),
    reader: Peer,
}

impl Waited {
    fn new(fabric: &Fabric, reader: Peer) -> Waited {
        let solver = Peer::new(5, 1);
        let mut coordinator = CoordinatorService::new(fabric);
        let opened = open_writer(1, "field", StreamConfig::default());
        let Some(Answer::Writing { writer, .. }) = asked(&mut coordinator, solver, opened) else {
            panic!("the name is free");
        };
        let opened = open_reader(1, "field", (0, 1));
        let Some(Answer::Reading { reader: id, .. }) = asked(&mut coordinator, reader, opened)
        else {
            panic!("the stream is there");
        };
        assert_eq!(asked(&mut coordinator, reader, next(2, id)), None);
        let writer = (solver, writer);
        Waited {
            coordinator,
            writer,
            reader,
        }
    }

    /// Makes the reader stop taking its messages.
    fn is_slow(&mut self) {
        self.coordinator.clients.is_slow(self.reader);
    }

    fn commit(&mut self) {
        let (solver, writer) = self.writer;
        let begin = Request::Begin {
            ticket: Ticket(2),
            writer,
            step: 0,
            wants: Vec::new(),
            timeout: LONG,
        };
        self.coordinator.happened(Event::Said(solver, begin));
        let part = Part {
            step: 0,
            layout: LayoutRef::New(Arc::new(Layout {
                variables: Vec::new(),
            })),
            slots: Vec::new(),
            places: BlockOffsets::Packed,
            attributes: Vec::new(),
            checksum: 0,
        };
        let commit = Request::Commit {
            ticket: Ticket(3),
            writer,
            part,
            keep: false,
        };
        self.coordinator.happened(Event::Said(solver, commit));
        assert_eq!(self.coordinator.figures()[0].committed, 1);
    }

    /// Returns the number of steps that the reader was given.
    fn taken(&self) -> u64 {
        self.coordinator.figures()[0].groups[0].taken
    }
}

/// The coordinator learns which peers are slow before any other event, and without one when they no
/// longer are.
#[test]
fn whoever_is_slow_is_given_a_step_when_it_is_so_no_more() {
    let fabric = alone();
    let mut waited = Waited::new(&fabric, own(&fabric));
    waited.is_slow();
    waited.commit();
    assert_eq!(waited.taken(), 0, "a step for a process that takes nothing");
    // Now it takes its messages.
    waited.coordinator.send_again();
    assert!(!waited.coordinator.clients.are_late());
    assert_eq!(waited.taken(), 1);
}

/// A process that is gone is given nothing: its step remains for the next life of the reader.
#[test]
fn a_dead_process_that_was_slow_has_taken_nothing() {
    let fabric = alone();
    // No process has this slot: to the service, the peer has just died.
    let mut waited = Waited::new(&fabric, Peer::new(6, 1));
    waited.is_slow();
    waited.commit();
    waited.coordinator.send_again();
    assert_eq!(waited.taken(), 0, "a step for one that is not yet lost");
    waited.coordinator.forget(waited.reader);
    assert_eq!(waited.taken(), 0, "a step for one that is lost");
    let again = Peer::new(6, 2);
    let opened = open_reader(1, "field", (0, 1));
    let Some(Answer::Reading {
        reader, taken: 0, ..
    }) = asked(&mut waited.coordinator, again, opened)
    else {
        panic!("its rank is free, and has taken nothing");
    };
    let first = asked(&mut waited.coordinator, again, next(2, reader));
    let is_first = |answer: &Answer| matches!(answer, Answer::Step(StepRecord { step: 0, .. }));
    assert!(first.as_ref().is_some_and(is_first), "{first:?}");
}

/// A peer takes its answers more slowly than they are produced. Others are served meanwhile, and it
/// gets all of them in the end.
#[test]
fn nobody_is_waited_for() {
    // More than the simulated network accepts at a time.
    const ANSWERS: usize = 300;
    const EACH: usize = 4000;
    let serve = |fabric: &Fabric| -> samite_fabric::Result<()> {
        let mut clients = Clients::<u8>::new(fabric, ServiceId::COORDINATOR);
        let all = || (clients.waiting() == ANSWERS).then_some(());
        fabric.wait_stepping("requests", &[], all, || false)?;
        let asked: Vec<_> = std::iter::from_fn(|| clients.take()).collect();
        let before = fabric.now();
        for heard in asked {
            let answer = Packed::response(heard.id.expect("a request"), vec![7; EACH]);
            clients.send(heard.from, answer);
        }
        assert!(clients.are_late(), "it has taken all of them at once");
        let waited = fabric.now() - before;
        assert!(waited < SOON, "{waited:?} of simulated time");
        let all = || {
            clients.send_again();
            (!clients.are_late()).then_some(())
        };
        fabric.wait_stepping("a slow peer", &[], all, || false)?;
        fabric.recv(Match::any(1), &mut []).map(|_| ())
    };
    let ask = |fabric: &Fabric| -> samite_fabric::Result<()> {
        let (deadline, server) = (fabric.deadline(), fabric.job()?[0]);
        let peers = fabric.peers();
        let server = peers.iter().find(|info| info.peer == server);
        let server = server.map(|info| Life {
            peer: info.peer,
            incarnation: info.incarnation,
        });
        let server = server.expect("it is there");
        let call = |_| fabric.call(ServiceId::COORDINATOR, server, deadline, |_| vec![0]);
        let calls: Vec<_> = (0..ANSWERS).map(call).collect();
        for call in calls {
            let answer = call?.wait(deadline, "an answer")?;
            assert_eq!(answer, vec![7; EACH]);
        }
        fabric.send(server.peer, 1, &[])
    };
    let ends = Scenario::new(7, 2).run(|fabric| match fabric.identity().unit {
        0 => serve(fabric),
        _ => ask(fabric),
    });
    ends.into_iter()
        .for_each(|end| end.expect("nobody is lost"));
}

/// An answer that is too long for a message becomes an error, or its requester would wait for ever.
/// The state machine produces none, so this tests the service.
#[test]
fn an_answer_that_no_message_can_carry_is_an_error() {
    const BLOCK_STORES: usize = 4 << 20;
    let fabric = alone();
    let mut clients = Clients::<Request>::new(&fabric, ServiceId::COORDINATOR);
    let (me, deadline) = (own(&fabric), Duration::from_secs(30));
    let asked = fabric.call(ServiceId::COORDINATOR, life(me), deadline, |_| vec![0]);
    let mut asked = asked.expect("the service is there");
    let block_store = BlockStoreInfo {
        peer: Peer(u64::MAX),
        capacity: u64::MAX,
    };
    let block_stores = vec![block_store; BLOCK_STORES];
    let answer = Packed::answer(Ticket(asked.id()), &Answer::BlockStores { block_stores });
    clients.send(me, answer);
    let answer = asked.wait(deadline, "an answer").expect("it comes");
    let answer = protocol::decode(&answer);
    let Some(Answer::Failed(Fault::AnswerTooLong { bytes, most })) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(most, LONGEST as u64);
    assert!(bytes > most, "{bytes}");
}
