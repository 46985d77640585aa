//! Whatever a peer sends, what it can make this process keep, allocate or do at once is bounded.

use super::*;
use crate::Match;
use crate::fabric::Core;
use crate::membership::NodeLife;
use crate::proto::active::{CREDITS, LONG_MAX};
use crate::rpc::ServiceId;
use crate::transport::Transport;
use crate::wire::Offer;
use std::time::Duration;

/// Returns a process alone, with a short deadline.
fn alone(config: Config) -> Fabric {
    let config = Config {
        deadline: Duration::from_millis(300),
        budget: Some(64 << 20),
        ..config
    };
    Fabric::alone(Identity::by_hand("test"), config).unwrap()
}

/// Returns the inline bytes of the offer of a long active message.
fn long(len: u64, handler: u64) -> Vec<u8> {
    let offer = Offer {
        send: 1,
        len,
        address: 4096,
        place: handler,
        claim: 0,
        offset: 0,
    };
    offer.words().bytes().to_vec()
}

/// Returns the bytes that are being fetched.
fn coming(world: &World) -> u64 {
    let bytes = |op: &crate::ops::Op| match &op.work {
        Work::Pull(pull) => pull.buf.len(),
        Work::Collect(collect) => collect.buf.len(),
        _ => 0,
    };
    world.engine.ops.running().map(bytes).sum()
}

#[test]
fn a_long_active_message_takes_no_memory_on_a_word() {
    let mut world = World::new();
    world.say(kind::ACTIVE_RTS, 0, &long(LONG_MAX + 1, 1), &[]);
    assert!(world.is_turned_away(), "longer than there are any");
    assert_eq!(coming(&world), 0);
    // There is no handler: nothing is fetched, and a requester of a reply is told so.
    world.join(1);
    world.say(kind::ACTIVE_RTS, 7, &long(LONG_MAX, 99), &[]);
    assert_eq!(coming(&world), 0);
    assert!(!world.is_turned_away());
    // The bound holds for any number of offers.
    let mut most = 0;
    for offered in 0..300 {
        world.say(kind::ACTIVE_RTS, 0, &long(LONG_MAX, 1), &[]);
        most = most.max(coming(&world));
        assert!(most <= 2 * LONG_MAX, "{most} bytes after {offered} offers");
    }
    assert!(most >= LONG_MAX, "one may come");
    assert!(world.is_turned_away());
}

#[test]
fn a_reply_takes_no_memory_on_a_word() {
    let mut world = World::new();
    let peer = Some(world.peer(1));
    let key = world.engine.ops.add(peer, "test", Work::Reply);
    world.say(kind::REPLY, key, &Words([0, LONG_MAX]).bytes(), &[1; 64]);
    assert!(world.is_turned_away());
    let ended = world.engine.ops.take(key);
    let corrupt = matches!(ended, Some(Err(Error::PeerCorrupt { .. })));
    assert!(corrupt, "{ended:?}");
}

/// An honest sender gets an error, on either side, before anything has moved.
#[test]
fn what_is_too_long_is_an_error() {
    let fabric = alone(Config::default());
    fabric.on(1, |_, _| Some(vec![0; LONG_MAX as usize + 1]));
    let too_long = |error: &Error| {
        let expected = (LONG_MAX + 1, LONG_MAX);
        matches!(error, Error::TooLong { bytes, most, .. } if (*bytes, *most) == expected)
    };
    let reply = fabric.request(fabric.me(), 1, b"").unwrap().wait();
    assert!(too_long(&reply.unwrap_err()));
    let bytes = vec![0; LONG_MAX as usize + 1];
    assert!(too_long(&fabric.tell(fabric.me(), 1, &bytes).unwrap_err()));
    let request = fabric.request(fabric.me(), 1, &bytes).map(|_| ());
    assert!(too_long(&request.unwrap_err()));
}

#[test]
fn who_reads_no_answers_to_what_it_withdraws_is_turned_away() {
    let offer = long(8, 99);
    for (kind, inline) in [(kind::WITHDRAW, &[][..]), (kind::ACTIVE_RTS, &offer)] {
        let mut world = World::new();
        let mut said = 0;
        while !world.is_turned_away() {
            said += 1;
            assert!(said <= 10_000, "kind {kind}: all of them are answered");
            // Active messages without a reply take no credits.
            let arg = if kind == kind::WITHDRAW { said } else { 0 };
            world.say(kind, arg, inline, &[]);
        }
        assert!(said > 1000, "kind {kind}: turned away after {said}");
    }
}

/// A missing service refuses many requests while its peer reads nothing: that costs the peer no
/// credit.
#[test]
fn refusals_of_services_are_no_answers_to_requests() {
    let mut world = World::new();
    let service = Words([ServiceId::COORDINATOR.number().into()]).bytes();
    for request in 1..=1000 {
        world.say(kind::ACTIVE, request, &service, &[1]);
    }
    let handler = Words([1]).bytes();
    for request in 1..=u64::from(CREDITS) {
        world.say(kind::ACTIVE, request, &handler, &[]);
        assert!(!world.is_turned_away(), "request {request}");
    }
    world.say(kind::ACTIVE, 1, &handler, &[]);
    assert!(world.is_turned_away(), "one more than there are credits");
}

/// With all of its gets unanswered, a peer may still send frames that take no credit, however long.
#[test]
fn what_takes_no_credit_needs_none() {
    let mut world = World::new();
    let [a, b, c] = place(world.infos[0].incarnation);
    for request in 1..=u64::from(CREDITS) {
        world.say(kind::GET, request, &Words([a, b, c, BYTES, 0]).bytes(), &[]);
    }
    let service = ServiceId::COORDINATOR.number().into();
    world.say(kind::ACTIVE_RTS, 0, &long(1 << 20, 1), &[]);
    world.say(kind::ACTIVE_RTS, 7, &long(1 << 20, service), &[]);
    assert!(!world.is_turned_away());
    world.say(kind::ACTIVE_RTS, 7, &long(1 << 20, 1), &[]);
    assert!(world.is_turned_away(), "a request without a credit");
}

/// A program that starts and cancels sends, and waits for nothing, still takes the answers to its
/// withdrawals.
#[test]
fn who_only_cancels_looks_at_what_comes() {
    let fabric = alone(Config::default());
    for number in 0..5000 {
        let mut send = fabric.isend(fabric.me(), 1, vec![0; 128 << 10]).unwrap();
        send.cancel();
        drop(send);
        let core = fabric.0.core().unwrap();
        assert!(!core.engine.must_poll(), "after {number} of them");
    }
    assert!(fabric.lost(fabric.me()).is_none());
}

/// A message that is shown in a view is withdrawn only when its program drops the view. However
/// many of these wait, what is sent afterwards arrives.
#[test]
fn withdrawals_of_what_is_viewed_delay_nothing() {
    let fabric = alone(Config::default());
    let (me, segment) = (fabric.me(), fabric.allocate(64 << 10).unwrap());
    let send = |_| {
        let bytes = segment.bytes().clone();
        let send = fabric.isend_shared(me, 1, bytes).unwrap();
        (send, fabric.recv_view(Match::any(1)).unwrap())
    };
    let (mut sends, views): (Vec<_>, Vec<_>) = (0..1100).map(send).unzip();
    sends.iter_mut().for_each(crate::Handle::cancel);
    fabric.send(me, 2, b"after").unwrap();
    fabric.recv(Match::any(2), &mut [0; 5]).unwrap();
    drop(views);
    for send in sends {
        let ended = send.wait();
        assert!(!matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    }
}

/// A peer hears its pace before the replies that wait for it, however many they are.
#[test]
fn a_pace_does_not_wait_behind_replies() {
    let fabric = alone(Config::default());
    let core = &mut *fabric.0.core().unwrap();
    let me = fabric.me();
    for _ in 0..2000 {
        core.engine.post_unasked(me, kind::ATS, 0).unwrap();
    }
    core.engine.post_pace(me, Pace::Stop as u64);
    core.engine.flush(&mut core.transport);
    core.transport.poll(&mut core.engine);
    assert_eq!(core.engine.peer(me).pace, Pace::Stop);
}

/// A send that is given up before it has left leaves nothing to be sent, nor its claim word.
#[test]
fn what_has_not_left_is_taken_back() {
    let fabric = alone(Config::default());
    let core = &mut *fabric.0.core().unwrap();
    let me = fabric.me();
    let heap = core.engine.node.heap.clone();
    let word = core.engine.words.take(&heap);
    assert!(word.is_some());
    let work = Work::Send {
        tag: 1,
        buf: samite_mem::lend::ReadBuf::owned(vec![0; 64]),
        word,
    };
    let key = core.engine.ops.add(Some(me), "test", work);
    core.engine.queue_send(me, key);
    core.engine.give_up(key, Error::Cancelled);
    assert_eq!(core.engine.flush(&mut core.transport), 0);
    assert_eq!(core.engine.ops.running().count(), 0);
}

/// A message that a panic gives back goes to a receive that is waiting for it in another thread.
#[test]
fn what_comes_back_finds_a_posted_receive() {
    let fabric = alone(Config::default());
    for incarnation in [fabric.incarnation(), fabric.incarnation() + 1] {
        let waits = fabric.irecv(Match::any(7), vec![0; 3]).unwrap();
        let status = crate::Status {
            from: fabric.me(),
            incarnation,
            tag: 7,
            len: 3,
        };
        let back = |core: &mut Core| {
            core.engine.put_back(Match::any(7), status, b"abc".to_vec());
        };
        fabric.0.with(back).unwrap();
        let (found, bytes) = waits.wait().unwrap();
        assert_eq!((found, bytes), (status, Some(b"abc".to_vec())));
    }
}

/// A handler that would panic does not run when a send is cancelled during an unwind: that would
/// abort the process.
#[test]
fn a_cancel_in_an_unwind_takes_no_turn() {
    let fabric = alone(Config::default());
    fabric.on(1, |_, _| panic!("a handler"));
    struct CancelsIn<'a>(crate::Handle<crate::Sent>, &'a crate::Fabric);
    impl Drop for CancelsIn<'_> {
        fn drop(&mut self) {
            self.1.tell(self.1.me(), 1, b"").unwrap();
            self.1.0.with(|core| core.engine.unpolled = 0);
            self.0.cancel();
        }
    }
    let unwinds = || {
        let send = fabric.isend(fabric.me(), 1, vec![0; 128 << 10]).unwrap();
        let _cancels = CancelsIn(send, &fabric);
        panic!("the program");
    };
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(unwinds));
    assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"the program"));
    let handled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fabric.progress()));
    assert_eq!(handled.unwrap_err().downcast_ref(), Some(&"a handler"));
}

/// Returns the pace that a peer was last told.
fn told(world: &mut World) -> Pace {
    let from = world.peer(1);
    world.engine.peer(from).told
}

#[test]
fn what_is_kept_of_a_peer_is_bounded_and_it_hears_so() {
    let mut world = World::new();
    let from = world.peer(1);
    let body = [7; 16 << 10];
    let mut said = 0;
    while told(&mut world) == Pace::Go {
        assert!(said <= 64, "1 MiB of it is kept, and it has heard nothing");
        world.say(kind::EAGER, said, &[], &body);
        said += 1;
    }
    assert_eq!(told(&mut world), Pace::Offer);
    // Receives take half of them: it may continue.
    for tag in 0..said.div_ceil(2) + 1 {
        assert_eq!(told(&mut world), Pace::Offer, "after {tag}");
        let wants = crate::Match::from(from, tag);
        let (_, _, arrived) = world.engine.matcher.take_unexpected(wants).unwrap();
        world.engine.unkeep(from, &arrived);
        if told(&mut world) == Pace::Go {
            break;
        }
    }
    assert_eq!(told(&mut world), Pace::Go);
    // A peer that ignores its pace, whatever it sends.
    let offer = Offer {
        send: 1,
        len: 1 << 20,
        address: 4096,
        place: 0,
        claim: 0,
        offset: 0,
    };
    let offer = offer.words().bytes();
    for (kind, inline, body) in [
        (kind::EAGER, &[][..], &body[..]),
        (kind::RTS, &offer, &[]),
        (kind::SIGNAL, &[], &[]),
    ] {
        let mut world = World::new();
        let (mut said, mut was_told) = (0u64, false);
        while !world.is_turned_away() {
            said += 1;
            assert!(said < 1 << 20, "kind {kind}: all of them are kept");
            world.say(kind, said, inline, body);
            was_told |= told(&mut world) == Pace::Stop;
        }
        assert!(was_told, "kind {kind}");
    }
}

#[test]
fn signals_that_nobody_awaits_are_kept_as_messages_are() {
    let mut world = World::new();
    let from = world.peer(1);
    let mut keys = 0;
    while told(&mut world) != Pace::Stop {
        world.say(kind::SIGNAL, keys, &[], &[]);
        world.say(kind::SIGNAL, keys, &[], &[]);
        keys += 1;
    }
    for key in 0..keys {
        assert!(world.engine.take_signal(from, key) && world.engine.take_signal(from, key));
        assert!(!world.engine.take_signal(from, key));
    }
    assert_eq!(told(&mut world), Pace::Go);
}

/// A process that was told to stop sends no messages, but everything else.
#[test]
fn who_is_told_to_stop_does_so() {
    let fabric = alone(Config::default());
    let me = fabric.me();
    let tell = |pace: u64| {
        let core = &mut *fabric.0.core().unwrap();
        core.engine.frame(Incoming {
            from: me,
            kind: kind::PACE,
            arg: pace,
            inline: &[],
            body: Body::Slice(&[]),
        });
    };
    tell(2);
    let signal = fabric.within(Duration::from_millis(5), || fabric.signal(me, 7));
    assert!(matches!(signal, Err(Error::Timeout { .. })), "{signal:?}");
    let send = fabric.isend(me, 1, vec![1; 8]).unwrap();
    for _ in 0..10 {
        fabric.progress();
    }
    assert!(!send.is_over() && fabric.probe(Match::any(1)).is_none());
    // As an offer, which ends when it is received; empty messages, too.
    tell(1);
    let empty = fabric.isend(me, 2, Vec::new()).unwrap();
    for _ in 0..10 {
        fabric.progress();
    }
    assert!(!send.is_over() && !empty.is_over());
    assert_eq!(fabric.recv(Match::any(2), &mut []).unwrap().len, 0);
    let mut bytes = [0; 8];
    assert_eq!(fabric.recv(Match::any(1), &mut bytes).unwrap().len, 8);
    assert_eq!(bytes, [1; 8]);
    assert_eq!(send.wait().unwrap(), Some(vec![1; 8]));
    empty.wait().unwrap();
    tell(0);
    let send = fabric.isend(me, 1, vec![2; 8]).unwrap();
    assert!(send.is_over(), "at once again");
    fabric.recv(Match::any(1), &mut bytes).unwrap();
    fabric.signal(me, 7).unwrap();
    fabric.await_signal(me, 7).unwrap();
}

/// Frames left in a corrupt peer's ring do not reach a receive that reads the ring itself.
#[test]
fn nothing_of_a_corrupt_peer_passes_the_engine() {
    use crate::transport::{Push, Transport};
    use crate::wire::frame;
    let fabric = alone(Config::default());
    let me = fabric.me();
    {
        let core = &mut *fabric.0.core().unwrap();
        let body = Body::Slice(&[]);
        let send = |core: &mut crate::fabric::Core| {
            let late = frame(kind::EAGER, 5, b"late", body);
            assert_eq!(core.transport.push(me, &late), Push::Done);
        };
        send(core);
        send(core);
        core.engine.frame(Incoming {
            from: me,
            kind: 0xee,
            arg: 0,
            inline: &[],
            body,
        });
        assert!(matches!(
            core.engine.gone(me),
            Some(Error::PeerCorrupt { .. })
        ));
    }
    for _ in 0..2 {
        let got = fabric.recv(Match::any(5), &mut [0; 8]);
        assert!(matches!(got, Err(Error::Timeout { .. })), "{got:?}");
    }
}

/// Empty pieces would be sent forever.
#[test]
fn figures_of_costs_may_say_anything() {
    let costs = crate::CostModel {
        stream_piece: 0,
        ..crate::CostModel::default()
    };
    let config = Config {
        costs,
        mask: crate::Mask::MESSAGES_ONLY,
        ..Config::default()
    };
    let fabric = alone(config);
    let sent: Vec<u8> = (0..100_000)
        .map(|at: u32| (at * 7 + at / 256) as u8)
        .collect();
    let receive = fabric.irecv(Match::any(1), vec![0; sent.len()]).unwrap();
    let send = fabric.isend(fabric.me(), 1, sent.clone()).unwrap();
    // One byte per turn, which takes long.
    fabric.set_deadline(Duration::from_secs(30));
    assert_eq!(receive.wait().unwrap().1, Some(sent));
    send.wait().unwrap();
}

#[test]
fn no_budget_is_more_than_can_be_counted() {
    for budget in [u64::MAX, u64::MAX - (1 << 21)] {
        assert!(Node::create(NodeLife::HEAD, budget).is_err());
    }
}

/// A peer that reads as fast as this process sends gets only a part of a large get in one flush.
#[cfg(feature = "testing")]
#[test]
fn one_flush_sends_a_bounded_part() {
    struct Reads;
    impl crate::testing::Tamper for Reads {
        fn outgoing(
            &mut self,
            _to: PeerId,
            _frame: crate::testing::RawFrame,
            _send: &mut dyn FnMut(PeerId, crate::testing::RawFrame),
        ) {
        }
        fn incoming(&mut self, _from: PeerId, _frame: &crate::testing::RawFrame) -> bool {
            true
        }
    }
    let fabric = alone(Config::default());
    crate::testing::tamper(&fabric, Box::new(Reads));
    let core = &mut *fabric.0.core().unwrap();
    let bytes = SharedBytes::adopt(vec![7u64; 2 << 20]);
    let (len, body_max) = (bytes.len(), core.engine.route(core.engine.me).caps.body_max);
    let offered = Offered {
        registered: None,
        generation: GENERATION,
        bytes: Access::Shared(bytes),
    };
    core.engine.offered.insert(SEGMENT, offered);
    let [a, b, c] = place(fabric.incarnation());
    core.engine.frame(Incoming {
        from: fabric.me(),
        kind: kind::GET,
        arg: 1,
        inline: &Words([a, b, c, len, 0]).bytes(),
        body: Body::Slice(&[]),
    });
    let mut sent = Vec::new();
    while core.engine.has_unsent() {
        sent.push(core.engine.flush(&mut core.transport) as u64);
    }
    let all: u64 = sent.iter().sum();
    assert_eq!(all, len.div_ceil(body_max), "all of it leaves in the end");
    let most = (1 << 20) / body_max;
    assert!(sent.iter().all(|frames| *frames <= most), "{sent:?}");
}

/// Processes join, send much, and leave, and each time the number is reassigned: what nobody
/// receives is bounded.
#[test]
fn last_words_of_many_lives_are_bounded() {
    const LIVES: u64 = 200;
    const SAID: usize = 1 << 20;
    let mut world = World::new();
    let from = world.peer(1);
    for life in 1..=LIVES {
        world.infos[1].incarnation = life as u32;
        world.join(1);
        for tag in 0..2 {
            world.say(kind::EAGER, tag, &[], &vec![life as u8; SAID / 2]);
        }
        world.engine.change(Change::Lost {
            peer: from,
            incarnation: life as u32,
        });
    }
    world.join(1);
    world.say(kind::EAGER, 0, &[1], &[]);
    let matcher = &mut world.engine.matcher;
    // A message of the process itself.
    let found = matcher.take_unexpected(Match::from(from, 0));
    assert!(matches!(found, Some((_, 0, Arrived::Bytes(bytes))) if bytes.len() == 1));
    assert!(matcher.take_unexpected(Match::from(from, 0)).is_none());
    let mut lives = Vec::new();
    while let Some((_, _, arrived)) = matcher.take_unexpected(Match::any(1)) {
        match arrived {
            Arrived::Departed(life, bytes) if bytes[0] == life as u8 => lives.push(u64::from(life)),
            other => panic!("{other:?}"),
        }
    }
    let kept = lives.len() as u64;
    assert!((32..=64).contains(&kept), "{kept} MiB are kept");
    let last: Vec<u64> = (LIVES - kept + 1..=LIVES).collect();
    assert_eq!(lives, last, "the last ones, in order");
}
