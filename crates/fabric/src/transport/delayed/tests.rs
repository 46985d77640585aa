//! What a process does with frames of a link that are not due for an hour, or are due at once.

use super::*;
use crate::node;
use crate::transport::Class;
use crate::transport::shm::Shm;
use samite_mem::ring::Body;
use std::panic::{AssertUnwindSafe, catch_unwind};

const HOUR: Duration = Duration::from_secs(3600);
const PEER: PeerId = PeerId(5);
const CAPS: Caps = Caps {
    inline_max: 272,
    body_max: 64 << 10,
    fragment: 0,
    map: true,
    kernel_copy: true,
    sleeps: true,
    rma: Rma::Bypasses,
    atomics: true,
    is_ordered: true,
    reports_loss: true,
};

/// Returns the transport of a process without peers, behind a link with this delay.
fn delayed(delay: Duration) -> Box<Delayed> {
    let identity = Identity::by_hand("delayed");
    let config = Config {
        mask: Mask::MESSAGES_ONLY,
        link: Some(Link {
            delay,
            ..Link::default()
        }),
        ..Config::default()
    };
    let node = node::start_alone(&identity, &config).unwrap();
    let shm = AnyTransport::Shm(Box::new(Shm::new(&node, None)));
    match Delayed::put_before(shm, &node, &identity, &config) {
        AnyTransport::Delayed(mut delayed) => {
            // It announces itself.
            delayed.poll(&mut Heard::default());
            delayed
        }
        other => panic!("no link: {other:?}"),
    }
}

/// The kind of frames in which a handler panics.
const PANICS: u8 = 9;

/// Everything that was delivered, in order.
#[derive(Debug, Default)]
struct Heard(Vec<String>);

impl Sink for Heard {
    fn frame(&mut self, frame: Incoming<'_>) {
        let Incoming { kind, arg, .. } = frame;
        self.0
            .push(format!("frame {kind} {arg} {:?}", frame.inline));
        assert_ne!(kind, PANICS, "a handler panics for the test");
    }
    fn change(&mut self, change: Change) {
        self.0.push(match change {
            Change::Joined(info, _) => format!("joined {}", info.incarnation),
            Change::Lost { incarnation, .. } => format!("lost {incarnation}"),
            Change::Corrupt { what, .. } => format!("corrupt: {}", what.what),
            other => format!("{other:?}"),
        });
    }
}

impl Delayed {
    /// Passes what the inner transport brings; returns what is delivered.
    fn brings(&mut self, bring: impl FnOnce(&mut Receiving<'_>)) -> Vec<String> {
        let mut heard = Heard::default();
        bring(&mut self.receiving(&mut heard).1);
        heard.0
    }

    /// Does the same where a handler panics; returns what was delivered until then.
    fn brings_panic(&mut self, bring: impl FnOnce(&mut Receiving<'_>)) -> Vec<String> {
        let mut heard = Heard::default();
        let brought = catch_unwind(AssertUnwindSafe(|| {
            bring(&mut self.receiving(&mut heard).1);
        }));
        assert!(brought.is_err(), "no handler panicked: {heard:?}");
        heard.0
    }

    /// Returns what a poll delivers.
    fn polled(&mut self) -> Vec<String> {
        let mut heard = Heard::default();
        self.poll(&mut heard);
        heard.0
    }

    fn info(&self, incarnation: u32) -> PeerInfo {
        let identity = Identity {
            job: self.ends.job.clone(),
            ..Identity::by_hand("peer")
        };
        PeerInfo {
            peer: PEER,
            incarnation,
            identity,
            pid: 1,
        }
    }

    fn joined(&mut self, incarnation: u32) -> Vec<String> {
        let info = self.info(incarnation);
        self.brings(|receiving| receiving.change(Change::Joined(info, CAPS)))
    }

    fn frame(&mut self, kind: u8, arg: u64) -> Vec<String> {
        let inline = self.stamped();
        self.brings(|receiving| receiving.frame(incoming(kind, arg, &inline)))
    }

    /// Returns the inline part of a frame that departs now.
    fn stamped(&self) -> Vec<u8> {
        let now = self.ends.clock.now().as_nanos() as u64;
        [&now.to_le_bytes()[..], &[7]].concat()
    }

    /// Makes the frames of `PEER` due that are queued.
    fn pass_time(&mut self) {
        let arrivals = &mut self.ends.end(PEER).unwrap().arrivals;
        arrivals.make_due();
        self.ends.next = Some(Duration::ZERO);
    }
}

fn incoming(kind: u8, arg: u64, inline: &[u8]) -> Incoming<'_> {
    Incoming {
        from: PEER,
        kind,
        arg,
        inline,
        body: Body::Slice(&[]),
    }
}

fn lost(incarnation: u32) -> Change {
    let peer = PEER;
    Change::Lost { peer, incarnation }
}

/// The loss of a peer waits for its last frames, and nothing is sent meanwhile to whoever has its
/// number. When that one is announced, both come at once, before it.
#[test]
fn a_loss_follows_the_last_frames() {
    let mut delayed = delayed(HOUR);
    assert_eq!(delayed.joined(1), ["joined 1"]);
    assert!(delayed.frame(3 | STAMPED, 1).is_empty());
    assert!(delayed.frame(4 | STAMPED, 2).is_empty());
    assert!(
        delayed
            .brings(|receiving| receiving.change(lost(1)))
            .is_empty()
    );
    let mut heard = Heard::default();
    assert_eq!(delayed.poll(&mut heard), 0);
    assert!(
        !heard.0.iter().any(|what| what.contains("lost")),
        "{heard:?}"
    );
    let frame = Outgoing {
        class: Class::Request,
        kind: 1,
        arg: 0,
        inline: &[],
        body: Body::Slice(&[]),
    };
    assert_eq!(delayed.push(PEER, &frame), Push::Gone);
    let all = ["frame 3 1 [7]", "frame 4 2 [7]", "lost 1", "joined 2"];
    assert_eq!(delayed.joined(2), all);
    // The next life has a link of its own.
    assert!(delayed.frame(5 | STAMPED, 3).is_empty());
    assert_eq!(delayed.ends.waiting, [PEER]);
}

/// L5: a handler that panics in the last frames of a lost peer keeps neither what follows them nor
/// the process that has the number from being reported.
#[test]
fn a_panic_loses_no_announcement() {
    let mut delayed = delayed(HOUR);
    delayed.joined(1);
    for (kind, arg) in [(3, 1), (PANICS, 2), (4, 3), (PANICS, 4), (5, 5)] {
        assert!(delayed.frame(kind | STAMPED, arg).is_empty());
    }
    assert!(
        delayed
            .brings(|receiving| receiving.change(lost(1)))
            .is_empty()
    );
    let info = delayed.info(2);
    let first = delayed.brings_panic(|receiving| receiving.change(Change::Joined(info, CAPS)));
    assert_eq!(first, ["frame 3 1 [7]", "frame 9 2 [7]"]);
    let mut heard = Heard::default();
    let second = catch_unwind(AssertUnwindSafe(|| delayed.poll(&mut heard)));
    assert!(second.is_err());
    assert_eq!(heard.0, ["frame 4 3 [7]", "frame 9 4 [7]"]);
    assert_eq!(delayed.polled(), ["frame 5 5 [7]", "lost 1", "joined 2"]);
    assert_eq!(delayed.ends.next_due(PEER), None);
    assert!(delayed.frame(6 | STAMPED, 6).is_empty(), "a new link");
}

/// L5: a frame that comes while a handler panics in an earlier one is kept.
#[test]
fn a_panic_loses_no_frame() {
    let mut delayed = delayed(HOUR);
    delayed.joined(1);
    delayed.frame(PANICS | STAMPED, 1);
    delayed.pass_time();
    let inline = delayed.stamped();
    let heard = delayed.brings_panic(|receiving| {
        receiving.frame(incoming(4 | STAMPED, 2, &inline));
    });
    assert_eq!(heard, ["frame 9 1 [7]"]);
    delayed.pass_time();
    assert_eq!(delayed.polled(), ["frame 4 2 [7]"]);
}

/// A frame that comes while many are due lets some of them pass, and not all.
#[test]
fn a_poll_takes_turns() {
    const FRAMES: u64 = 3 * TURN as u64;
    let mut delayed = delayed(HOUR);
    delayed.joined(1);
    for number in 0..FRAMES {
        delayed.frame(3 | STAMPED, number);
    }
    delayed.pass_time();
    assert_eq!(delayed.frame(3 | STAMPED, FRAMES).len(), TURN);
    assert_eq!(delayed.polled().len(), TURN);
}

/// A peer that sends no departures is reported once, and nothing from it is kept.
#[test]
fn a_peer_without_departures_is_shut_out() {
    let mut delayed = delayed(HOUR);
    delayed.joined(1);
    assert!(delayed.frame(3 | STAMPED, 1).is_empty());
    let reported = delayed.frame(3, 2);
    assert!(
        reported[0].starts_with("corrupt: a frame without"),
        "{reported:?}"
    );
    assert!(delayed.frame(3 | STAMPED, 3).is_empty());
    assert_eq!(delayed.ends.next_due(PEER), None);
    let left = delayed.brings(|receiving| receiving.change(lost(1)));
    assert_eq!(left, ["lost 1"]);
}

/// Peers of other jobs, and the agent, are not behind the link.
#[test]
fn the_link_lies_between_units_of_a_job() {
    let mut delayed = delayed(HOUR);
    let mut infos = [delayed.info(1), delayed.info(1)];
    infos[0].identity.job = "another".to_owned();
    infos[1].identity = agent::identity();
    for info in infos {
        delayed.brings(|receiving| receiving.change(Change::Joined(info, CAPS)));
        assert_eq!(delayed.frame(3, 1).len(), 1);
    }
}

/// T5: a sleep ends before the next frame is due, and none begins shortly before that.
#[test]
fn nobody_sleeps_past_a_frame() {
    let mut far = delayed(HOUR);
    far.joined(1);
    far.frame(3 | STAMPED, 1);
    match far.announce_sleep(&mut || false) {
        Some(Sleep::Until(_, left)) => assert!(left <= HOUR - EARLY, "{left:?}"),
        other => panic!("{other:?}"),
    }
    let mut near = delayed(EARLY / 2);
    near.joined(1);
    let due = near.ends.clock.now() + EARLY / 2;
    near.ends.next = Some(due);
    assert!(near.announce_sleep(&mut || false).is_none());
}
