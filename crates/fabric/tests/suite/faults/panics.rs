//! A handler that panics: whoever catches it has whole messages, own buffers and a fabric that goes
//! on. And other things that a program of one process can do wrong.

use samite_fabric::{Config, Error, Fabric, Identity, Match, PeerId};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

fn alone() -> Fabric {
    Fabric::alone(Identity::by_hand("panics"), Config::default()).unwrap()
}

/// The first message to it is a panic.
fn panics_once(fabric: &Fabric) {
    let mut calls = 0;
    fabric.on(1, move |_: PeerId, _: &[u8]| {
        calls += 1;
        assert!(calls != 1, "a handler");
        Some(vec![calls])
    });
    fabric.tell(fabric.me(), 1, b"").unwrap();
}

/// The scope ends by unwinding, and only after the receive into its buffer has ended.
#[test]
fn a_scope_keeps_its_buffers_through_a_panic() {
    let fabric = alone();
    panics_once(&fabric);
    let (out, mut into) = ([7; 8], [0; 8]);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        fabric.scope(|scope| -> samite_fabric::Result<()> {
            scope.irecv(Match::any(7), &mut into)?;
            scope.isend(fabric.me(), 7, &out)?;
            Ok(())
        })
    }));
    assert!(ended.is_err(), "the panic is told");
    assert_eq!(into, out);
    // The frame that was the panic was taken: what follows is not the same one.
    let reply = fabric.request(fabric.me(), 1, b"").unwrap().wait().unwrap();
    assert_eq!(reply, [2]);
}

/// Whoever asks a handler that panics hears so, more often than there are credits.
#[test]
fn a_handler_that_panics_answers() {
    let fabric = alone();
    fabric.on(1, |_: PeerId, _: &[u8]| {
        resume_unwind(Box::new("a handler"))
    });
    for _ in 0..600 {
        let request = fabric.request(fabric.me(), 1, b"").unwrap();
        while catch_unwind(AssertUnwindSafe(|| fabric.progress())).is_ok() {}
        let (peer, handler) = (fabric.me().into(), 1);
        assert_eq!(
            request.wait(),
            Err(Error::HandlerPanicked { peer, handler })
        );
    }
}

/// What a handler owned may use the fabric when another one takes its place.
#[test]
fn a_handler_is_dropped_outside() {
    struct Tells(Fabric);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(self.0.me(), 7, &[]).unwrap();
        }
    }
    let fabric = alone();
    let tells = Tells(fabric.clone());
    fabric.on(1, move |_: PeerId, _: &[u8]| {
        let _ = &tells;
        None
    });
    fabric.on(1, |_: PeerId, _: &[u8]| None);
    assert_eq!(fabric.recv(Match::any(7), &mut []).unwrap().len, 0);
}

/// A blocking receive, and one into a buffer that dies with the panic.
#[test]
fn a_receive_keeps_its_buffer_through_a_panic() {
    let fabric = alone();
    panics_once(&fabric);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut into = vec![0; 8];
        fabric.recv(Match::any(7), &mut into)
    }));
    assert!(ended.is_err());
    // Nobody receives it: the receive was given up.
    fabric.send(fabric.me(), 7, &[7; 8]).unwrap();
    assert_eq!(fabric.probe(Match::any(7)).unwrap().len, 8);
    let mut into = [0; 8];
    fabric.recv(Match::any(7), &mut into).unwrap();
    assert_eq!(into, [7; 8]);
}

/// As above, of receives that have no buffer of their caller, one of them of a message that lies
/// where it was sent from.
#[test]
fn a_receive_that_ends_by_a_panic_takes_no_other_message() {
    let fabric = alone();
    let me = fabric.me();
    type Receive = fn(&Fabric) -> samite_fabric::Result<u64>;
    let ways: [Receive; 2] = [
        |fabric| Ok(fabric.recv_vec(Match::any(7))?.1.len() as u64),
        |fabric| Ok(fabric.recv_view(Match::any(7))?.bytes().len()),
    ];
    for receive in ways {
        panics_once(&fabric);
        assert!(catch_unwind(AssertUnwindSafe(|| receive(&fabric))).is_err());
        fabric.send(me, 7, &[7; 8]).unwrap();
        assert_eq!(receive(&fabric), Ok(8));
    }
}

/// The message comes with the panic, in one turn: it is there for the next receive, before what
/// came after it, and its sender hears that it was taken.
#[test]
fn a_message_that_comes_with_a_panic_is_not_lost() {
    const LARGE: usize = 1 << 20;
    let fabric = alone();
    let me = fabric.me();
    // As long as a receive is posted, a turn goes on behind the message that another one got.
    let _posted = fabric.irecv(Match::any(99), vec![0; 1]).unwrap();
    type Receive = fn(&Fabric) -> samite_fabric::Result<Vec<u8>>;
    let ways: [Receive; 2] = [
        |fabric| Ok(fabric.recv_vec(Match::any(7))?.1),
        |fabric| {
            let view = fabric.recv_view(Match::any(7))?;
            let mut bytes = vec![0; view.bytes().len() as usize];
            view.bytes().read(0, &mut bytes);
            Ok(bytes)
        },
    ];
    for (way, receive) in ways.into_iter().enumerate() {
        let sent = [(6, vec![1; 80]), (7, vec![way as u8; 80]), (7, vec![3; 8])];
        for (tag, bytes) in &sent {
            fabric.send(me, *tag, bytes).unwrap();
        }
        panics_once(&fabric);
        assert!(catch_unwind(AssertUnwindSafe(|| receive(&fabric))).is_err());
        for (tag, bytes) in sent {
            let of_both = Match::any(6).masked(!1);
            let length = fabric.probe(of_both).unwrap().len;
            let (status, got) = fabric.recv_vec(of_both).unwrap();
            assert_eq!(
                (status.tag, status.incarnation),
                (tag, fabric.incarnation())
            );
            assert_eq!((length, got), (bytes.len() as u64, bytes));
        }
        assert!(fabric.probe(Match::any(0).masked(0)).is_none());
    }
    // Where it lies with the sender, who may change it then.
    let segment = fabric.allocate(LARGE as u64).unwrap();
    let sent: Vec<u8> = (0..LARGE).map(|at| (at % 251) as u8).collect();
    segment.bytes().write(0, &sent);
    let whole = segment.bytes().slice(0, LARGE as u64);
    let send = fabric.isend_shared(me, 7, whole).unwrap();
    panics_once(&fabric);
    assert!(catch_unwind(AssertUnwindSafe(|| ways[1](&fabric))).is_err());
    send.wait().unwrap();
    segment.bytes().write(0, &vec![0; LARGE]);
    assert!(ways[1](&fabric).unwrap() == sent);
}

/// The panic comes while the fabric is dropped: it is told, once.
#[test]
fn leaving_survives_a_panic() {
    let fabric = alone();
    panics_once(&fabric);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(fabric))).is_err());
    let fabric = alone();
    panics_once(&fabric);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let _dropped_while_unwinding = fabric;
        panic!("the program's");
    }));
    let payload = ended.unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the program's"));
}

/// Two scopes, one in another: the deadline of the inner one is over, that of the outer one has not
/// begun.
#[test]
fn an_inner_scope_gives_up_its_own_operations() {
    let fabric = alone();
    let (mut outer, mut inner) = ([0; 8], [0; 8]);
    let ended = fabric.scope(|around| -> samite_fabric::Result<()> {
        around.irecv(Match::any(1), &mut outer)?;
        fabric.set_deadline(Duration::from_millis(50));
        let late = fabric.scope(|scope| -> samite_fabric::Result<()> {
            scope.irecv(Match::any(2), &mut inner)?;
            Ok(())
        });
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        fabric.set_deadline(Duration::from_secs(30));
        fabric.send(fabric.me(), 1, &[7; 8])
    });
    ended.unwrap();
    assert_eq!((outer, inner), ([7; 8], [0; 8]));
}

/// What was told of an operation once is not waited for again.
#[test]
fn a_result_is_told_once() {
    let fabric = alone();
    fabric.send(fabric.me(), 1, b"hello").unwrap();
    let mut receive = fabric.irecv(Match::any(1), vec![0; 8]).unwrap();
    let first = loop {
        if let Some(ended) = receive.test() {
            break ended.unwrap();
        }
    };
    assert_eq!(first.0.len, 5);
    assert!(matches!(receive.test(), Some(Err(Error::Cancelled))));
    let ended = receive.wait();
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
}

/// Numbers that no peer can have.
#[test]
fn nobody_is_nobody() {
    let fabric = alone();
    for number in [1, 447, 448, 500, 1 << 20, u32::MAX] {
        fabric.bell(PeerId(number)).nudge();
        assert_eq!(fabric.reads_private(PeerId(number), 1 << 20), None);
        assert!(fabric.lost(PeerId(number)).is_some());
        assert!(fabric.signal(PeerId(number), 1).is_err());
    }
}

/// Keys that barriers have. Whoever sent one would pass another's barrier, or be taken for a liar.
#[test]
fn keys_of_barriers_are_not_for_signals() {
    let fabric = alone();
    for key in [1 << 63, 1 << 63 | 2 << 61 | 1, u64::MAX] {
        assert_eq!(fabric.signal(fabric.me(), key), Err(Error::NoSuchKey(key)));
        assert_eq!(
            fabric.await_signal(fabric.me(), key),
            Err(Error::NoSuchKey(key))
        );
    }
    let last = (1 << 63) - 1;
    fabric.signal(fabric.me(), last).unwrap();
    fabric.await_signal(fabric.me(), last).unwrap();
}
