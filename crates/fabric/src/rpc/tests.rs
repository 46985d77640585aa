use super::*;
use crate::fabric::Fabric;
use crate::{Config, Error, Identity};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(20);

fn alone() -> (Fabric, Life) {
    let fabric = Fabric::alone(Identity::by_hand("test"), Config::default()).unwrap();
    let me = Life {
        peer: fabric.me(),
        incarnation: fabric.incarnation(),
    };
    (fabric, me)
}

fn ask(fabric: &Fabric, to: Life, bytes: &[u8]) -> Call {
    let asked = fabric.call(ServiceId::COORDINATOR, to, LONG, |_| bytes.to_vec());
    asked.unwrap()
}

/// Returns the response of a server that echoes.
fn answered(call: &mut Call, server: &Server) -> Vec<u8> {
    let serve = || {
        while let Some(asked) = server.take() {
            let id = asked.id.expect("it is a request");
            server.respond(asked.from, id, &asked.bytes, LONG).unwrap();
        }
        false
    };
    call.wait_stepping(LONG, "a response", serve).unwrap()
}

#[test]
fn a_request_waits_for_a_service_and_is_told_if_there_is_none() {
    let (fabric, me) = alone();
    let mut call = ask(&fabric, me, b"early");
    let refused = call.wait(SHORT, "a response");
    assert!(
        matches!(&refused, Err(Error::NoHandler { handler, .. })
            if *handler == ServiceId::COORDINATOR.number()),
        "{refused:?}"
    );
    let server = fabric.serve(ServiceId::COORDINATOR, 1 << 10);
    assert_eq!(answered(&mut call, &server), b"early");
    // Its response is returned once.
    assert!(matches!(
        call.wait(SHORT, "a response"),
        Err(Error::Cancelled)
    ));
    drop(server);
    let mut call = ask(&fabric, me, b"late");
    let refused = call.wait(SHORT, "a response");
    assert!(
        matches!(refused, Err(Error::NoHandler { .. })),
        "{refused:?}"
    );
}

#[test]
fn an_empty_request_only_asks_whether_somebody_serves() {
    let (fabric, me) = alone();
    let server = fabric.serve(ServiceId::COORDINATOR, 1 << 10);
    assert_eq!(ask(&fabric, me, b"").wait(LONG, "a response").unwrap(), b"");
    assert_eq!(server.waiting(), 0);
    // An empty note.
    fabric.note(ServiceId::COORDINATOR, me, LONG, b"").unwrap();
    let noted = server.take().unwrap();
    assert!(noted.id.is_none() && noted.bytes.is_empty());
}

#[test]
fn an_inbox_is_bounded_in_bytes_by_peer() {
    let (fabric, me) = alone();
    let server = fabric.serve(ServiceId::COORDINATOR, 1000);
    let mut calls: Vec<Call> = (0..9).map(|n| ask(&fabric, me, &[n; 300])).collect();
    // With the cost of each, the third exceeds the limit.
    assert_eq!(server.waiting(), 3);
    // Notes may be twice as many. A note to oneself waits for room, then is refused.
    let note = || fabric.note(ServiceId::COORDINATOR, me, SHORT, &[7; 300]);
    for _ in 0..3 {
        note().unwrap();
    }
    let refused = note();
    assert!(matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
    assert_eq!(server.waiting(), 6);
    let first: Vec<Inbound> = std::iter::from_fn(|| server.take()).collect();
    assert!(
        first[..3]
            .iter()
            .all(|asked| asked.id.is_some() && asked.from == me)
    );
    assert!(
        first[3..]
            .iter()
            .all(|asked| asked.id.is_none() && asked.bytes == [7; 300])
    );
    for asked in &first[..3] {
        let id = asked.id.expect("it is a request");
        server.respond(me, id, &asked.bytes, LONG).unwrap();
    }
    // Refused requests arrive later, each once.
    for (number, call) in (0..).zip(&mut calls) {
        assert_eq!(answered(call, &server), [number; 300]);
    }
    assert_eq!(server.waiting(), 0);
}

/// A peer that asks endlessly does not delay another peer's request.
#[test]
fn peers_have_their_turns_in_an_inbox() {
    let (fabric, _) = alone();
    let server = fabric.serve(ServiceId::COORDINATOR, 1 << 20);
    let services = fabric.0.core().unwrap().engine.services.clone();
    let inbox = &services[&ServiceId::COORDINATOR.number()];
    let push = |peer: u32, number: u8| {
        let from = Life {
            peer: PeerId(peer),
            incarnation: 1,
        };
        let (id, bytes) = (None, vec![number]);
        assert!(Inbox::push(inbox, Inbound { from, id, bytes }));
    };
    for number in 0..100 {
        push(5, number);
    }
    push(3, 0);
    push(7, 0);
    push(7, 1);
    let take = || {
        server
            .take()
            .map(|asked| (asked.from.peer.0, asked.bytes[0]))
    };
    let taken: Vec<_> = std::iter::from_fn(take).collect();
    assert_eq!(taken[..5], [(3, 0), (5, 0), (7, 0), (5, 1), (7, 1)]);
    let rest: Vec<_> = (2..100).map(|number| (5, number)).collect();
    assert_eq!(taken[5..], rest);
    assert_eq!(server.waiting(), 0);
}

#[test]
fn calls_that_are_dropped_or_could_not_be_sent_are_forgotten() {
    let (fabric, me) = alone();
    let server = fabric.serve(ServiceId::COORDINATOR, 1 << 20);
    let another = Life {
        incarnation: me.incarnation + 1,
        ..me
    };
    for _ in 0..10 {
        drop(ask(&fabric, me, b"dropped"));
        let lost = fabric.call(ServiceId::COORDINATOR, another, LONG, |_| vec![1]);
        assert!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
        let told = fabric.note(ServiceId::COORDINATOR, another, LONG, &[1]);
        assert!(matches!(told, Err(Error::PeerLost { .. })), "{told:?}");
    }
    assert_eq!(fabric.0.core().unwrap().engine.ops.running().count(), 0);
    fabric.progress();
    // A response that nobody waits for does no harm.
    while let Some(asked) = server.take() {
        let id = asked.id.expect("it is a request");
        server.respond(asked.from, id, b"late", LONG).unwrap();
        let lost = server.respond(another, id, b"late", LONG);
        assert!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
    }
    assert_eq!(answered(&mut ask(&fabric, me, b"next"), &server), b"next");
}

#[test]
fn a_timeout_leaves_the_request_open() {
    let (fabric, me) = alone();
    let server = fabric.serve(ServiceId::COORDINATOR, 1 << 20);
    let mut call = ask(&fabric, me, b"slow");
    let late = call.wait(SHORT, "a response");
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    assert_eq!(answered(&mut call, &server), b"slow");
}

#[test]
fn numbers_of_services_are_not_for_users() {
    let (fabric, me) = alone();
    let told = fabric.tell(me.peer, KEPT, b"forged");
    assert!(
        matches!(told, Err(Error::NoHandler { handler: KEPT, .. })),
        "{told:?}"
    );
    let asked = fabric.request(me.peer, KEPT, b"forged").map(drop);
    assert!(matches!(asked, Err(Error::NoHandler { .. })), "{asked:?}");
    fabric.on(KEPT - 1, |_, _| None);
    let kept = std::panic::AssertUnwindSafe(|| fabric.on(KEPT, |_, _| None));
    assert!(std::panic::catch_unwind(kept).is_err());
}

#[test]
fn a_response_that_is_too_long_is_refused_at_the_server() {
    let (fabric, me) = alone();
    let server = fabric.serve(ServiceId::COORDINATOR, 1 << 20);
    let long = vec![0; crate::proto::active::LONG_MAX as usize + 1];
    let refused = server.respond(me, 7, &long, LONG);
    assert!(matches!(refused, Err(Error::TooLong { .. })), "{refused:?}");
}
