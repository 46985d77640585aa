//! Order, for a transport that does not keep it: frames are numbered per peer, class and
//! incarnation, and delivered by number.
//!
//! It wraps such a transport, and numbers the frames to peers whose [`Caps::is_ordered`] is false;
//! frames of other peers pass unchanged. A frame that arrives early is kept, at most [`KEPT_MAX`]
//! bytes per peer. A peer that sends more before the missing frame has broken the rules (T1), and
//! is shut out. What is kept when a peer is lost was sent after a frame that was lost with it, so
//! it is dropped (T4).

use super::{
    AnyTransport, Caps, Change, Class, Clock, Completed, Incoming, NotStarted, Outgoing, Push,
    RawFrame, Registration, RemoteKey, RmaVerb, Sink, Sleep, Transport,
};
use crate::{PeerId, PeerInfo};
use samite_mem::{Corrupt, SharedBytes};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Bytes of frames of one peer that may wait for a missing frame.
pub(crate) const KEPT_MAX: u64 = 16 << 20;
/// What a frame takes besides its bytes.
const ENTRY: u64 = 128;
/// The prefix: number and class, and both incarnations.
pub(crate) const PREFIX: usize = 16;
/// The bit of the number that holds the class.
const IS_REPLY: u64 = 1 << 63;

/// A transport that keeps order; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Ordered {
    inner: Box<AnyTransport>,
    numbering: Numbering,
}

/// The numbers of all peers.
#[derive(Debug)]
struct Numbering {
    incarnation: u32,
    peers: HashMap<PeerId, Lanes>,
    /// Where the last frame was delivered: kept frames that follow it come next.
    current: Option<(PeerId, usize)>,
}

/// The numbers of one incarnation of a peer: of requests and of replies.
#[derive(Debug, Default)]
struct Lanes {
    incarnation: u32,
    /// Whether it broke the rules: nothing is accepted or kept any more.
    is_shut: bool,
    sent: [u64; 2],
    arrived: [Lane; 2],
    kept_bytes: u64,
}

#[derive(Debug, Default)]
struct Lane {
    next: u64,
    kept: BTreeMap<u64, RawFrame>,
}

impl Ordered {
    /// Wraps the transport of this incarnation of this process.
    pub(crate) fn new(inner: AnyTransport, incarnation: u32) -> Ordered {
        Ordered {
            inner: Box::new(inner),
            numbering: Numbering {
                incarnation,
                peers: HashMap::new(),
                current: None,
            },
        }
    }

    /// Returns the transport that it puts in order.
    pub(super) fn inner(&mut self) -> &mut AnyTransport {
        &mut self.inner
    }

    fn ordering<'a>(&'a mut self, sink: &'a mut dyn Sink) -> (&'a mut AnyTransport, Ordering<'a>) {
        let numbering = &mut self.numbering;
        (&mut self.inner, Ordering { sink, numbering })
    }
}

impl Transport for Ordered {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        let own = self.numbering.incarnation;
        let Some(lanes) = self.numbering.peers.get_mut(&to) else {
            return self.inner.push(to, frame);
        };
        let is_reply = frame.class == Class::Reply;
        let sent = &mut lanes.sent[usize::from(is_reply)];
        let number = *sent | if is_reply { IS_REPLY } else { 0 };
        let lives = u64::from(own) | u64::from(lanes.incarnation) << 32;
        let mut inline: SmallVec<[u8; 512]> = SmallVec::from_slice(&number.to_le_bytes());
        inline.extend_from_slice(&lives.to_le_bytes());
        inline.extend_from_slice(frame.inline);
        let numbered = Outgoing {
            inline: &inline,
            ..*frame
        };
        let push = self.inner.push(to, &numbered);
        *sent += u64::from(push == Push::Done);
        push
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        let (inner, mut ordering) = self.ordering(sink);
        // A panicking handler may have ended the last poll among the kept frames.
        ordering.go_on() + inner.poll(&mut ordering)
    }

    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        let (inner, mut ordering) = self.ordering(sink);
        inner.announce(peer, &mut ordering);
    }

    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        self.inner.announce_sleep(there)
    }

    fn waker(&self, peer: PeerId) -> Option<super::sim::Waker> {
        self.inner.waker(peer)
    }

    fn leave(&mut self) {
        self.inner.leave();
    }

    fn yield_now(&mut self) {
        self.inner.yield_now();
    }

    fn oversubscribed(&self) -> bool {
        self.inner.oversubscribed()
    }

    fn register(&mut self, bytes: &SharedBytes) -> Option<(Registration, RemoteKey)> {
        self.inner.register(bytes)
    }

    fn deregister(&mut self, registration: Registration) {
        self.inner.deregister(registration);
    }

    fn start(&mut self, to: PeerId, id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        self.inner.start(to, id, verb)
    }
}

/// A sink that puts frames in order.
struct Ordering<'a> {
    sink: &'a mut dyn Sink,
    numbering: &'a mut Numbering,
}

impl Ordering<'_> {
    fn joined(&mut self, info: PeerInfo, mut caps: Caps) {
        self.numbering.peers.remove(&info.peer);
        if !caps.is_ordered {
            caps.is_ordered = true;
            caps.inline_max = caps.inline_max.saturating_sub(PREFIX as u64);
            let lanes = Lanes {
                incarnation: info.incarnation,
                ..Lanes::default()
            };
            self.numbering.peers.insert(info.peer, lanes);
        }
        self.sink.change(Change::Joined(info, caps));
    }

    /// Delivers the kept frames that are next; returns their number.
    fn go_on(&mut self) -> usize {
        let mut count = 0;
        while let Some((from, lane)) = self.numbering.current {
            let lanes = self.numbering.peers.get_mut(&from);
            let Some(kept) = lanes.and_then(|lanes| lanes.next_of(lane)) else {
                self.numbering.current = None;
                break;
            };
            self.sink.frame(kept.incoming(from));
            count += 1;
        }
        count
    }
}

impl Sink for Ordering<'_> {
    fn frame(&mut self, frame: Incoming<'_>) {
        let (own, from) = (self.numbering.incarnation, frame.from);
        let Some(lanes) = self.numbering.peers.get_mut(&from) else {
            return self.sink.frame(frame);
        };
        match lanes.take(frame, own) {
            Ok(None) => {}
            Ok(Some((lane, frame))) => {
                self.numbering.current = Some((from, lane));
                self.sink.frame(frame);
                self.go_on();
            }
            Err(what) => {
                *lanes = Lanes {
                    is_shut: true,
                    ..Lanes::default()
                };
                self.sink.change(Change::Corrupt { peer: from, what });
            }
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Joined(info, caps) => self.joined(info, caps),
            Change::Lost { peer, .. } => {
                self.numbering.peers.remove(&peer);
                self.sink.change(change);
            }
            other => self.sink.change(other),
        }
    }

    fn completed(&mut self, completed: Completed) {
        self.sink.completed(completed);
    }

    fn satisfied(&self) -> bool {
        self.sink.satisfied()
    }
}

impl Lanes {
    /// Takes a frame. Returns it without its number, with its lane, if it is the next one there;
    /// `None` if it is kept, from another incarnation, or from a peer that is shut out.
    fn take<'a>(
        &mut self,
        frame: Incoming<'a>,
        own: u32,
    ) -> Result<Option<(usize, Incoming<'a>)>, Corrupt> {
        if self.is_shut {
            return Ok(None);
        }
        let broken = |what, value| Err(Corrupt { what, value });
        let word = |at: usize| frame.inline.get(at..)?.first_chunk().copied();
        let (Some(number), Some(lives)) = (word(0), word(8)) else {
            return broken("a frame without a number", frame.inline.len() as u64);
        };
        let (number, lives) = (u64::from_le_bytes(number), u64::from_le_bytes(lives));
        // A late frame of a former process, of either side.
        if lives != u64::from(self.incarnation) | u64::from(own) << 32 {
            return Ok(None);
        }
        let frame = Incoming {
            inline: &frame.inline[PREFIX..],
            ..frame
        };
        let index = usize::from(number & IS_REPLY != 0);
        let number = number & !IS_REPLY;
        let lane = &mut self.arrived[index];
        if number == lane.next {
            lane.next += 1;
            return Ok(Some((index, frame)));
        }
        if number < lane.next || lane.kept.contains_key(&number) {
            return broken("a number of a frame that was there", number);
        }
        // Early frames are kept up to a limit, so that a peer cannot exhaust memory (T1).
        let bytes = self.kept_bytes + ENTRY + frame.inline.len() as u64 + frame.body.len();
        if bytes > KEPT_MAX {
            let missing = lane.next;
            return broken("more frames than are kept for one that is missing", missing);
        }
        self.kept_bytes = bytes;
        lane.kept.insert(number, RawFrame::arrived(&frame));
        Ok(None)
    }

    /// Returns the next frame of a lane, if it was kept.
    fn next_of(&mut self, lane: usize) -> Option<RawFrame> {
        let lane = &mut self.arrived[lane];
        let kept = lane.kept.remove(&lane.next)?;
        lane.next += 1;
        self.kept_bytes -= ENTRY + kept.len();
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_mem::ring::Body;

    fn frame(number: u64, lives: u64, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut inline = number.to_le_bytes().to_vec();
        inline.extend_from_slice(&lives.to_le_bytes());
        (inline, body.to_vec())
    }

    const LIVES: u64 = 3 | 7 << 32;

    fn take(
        lanes: &mut Lanes,
        (inline, body): &(Vec<u8>, Vec<u8>),
    ) -> Result<Option<usize>, Corrupt> {
        let frame = Incoming {
            from: PeerId(5),
            kind: 1,
            arg: 0,
            inline,
            body: Body::Slice(body),
        };
        let taken = lanes.take(frame, 7)?;
        Ok(taken.map(|(lane, _)| lane))
    }

    fn lanes() -> Lanes {
        Lanes {
            incarnation: 3,
            ..Lanes::default()
        }
    }

    /// Any order of arrival of six frames yields the order in which they were sent; replies are
    /// ordered separately.
    #[test]
    fn every_order_becomes_that_of_the_sender() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let mut arrivals: Vec<u64> = (0..6).chain((0..3).map(|n| n | IS_REPLY)).collect();
            random.shuffle(&mut arrivals);
            let (mut lanes, mut seen) = (lanes(), [Vec::new(), Vec::new()]);
            for number in arrivals {
                let sent = frame(number, LIVES, &[(number & 0xff) as u8]);
                let Some(lane) = take(&mut lanes, &sent).unwrap() else {
                    continue;
                };
                seen[lane].push(sent.1[0]);
                while let Some(kept) = lanes.next_of(lane) {
                    seen[lane].push(kept.body[0]);
                }
            }
            assert_eq!(seen, [vec![0, 1, 2, 3, 4, 5], vec![0, 1, 2]]);
            assert_eq!(lanes.kept_bytes, 0);
        }
    }

    /// A frame of another incarnation of either side is dropped, and uses no number.
    #[test]
    fn another_life_has_other_numbers() {
        let mut lanes = lanes();
        for lives in [2 | 7 << 32, 3 | 8 << 32] {
            assert_eq!(take(&mut lanes, &frame(0, lives, b"x")), Ok(None));
        }
        assert_eq!(take(&mut lanes, &frame(0, LIVES, b"x")), Ok(Some(0)));
    }

    /// What waits for a missing frame is bounded in bytes, and each number is accepted once.
    #[test]
    fn a_gap_that_is_not_filled_is_the_end_of_it() {
        let mut lanes = lanes();
        let body = vec![0; 1 << 20];
        let kept =
            (1..100).take_while(|number| take(&mut lanes, &frame(*number, LIVES, &body)).is_ok());
        assert_eq!(kept.count(), 15);
        assert!(lanes.kept_bytes <= KEPT_MAX);
        assert!(take(&mut lanes, &frame(3, LIVES, b"")).is_err(), "twice");
        assert!(take(&mut lanes, &(vec![0; 9], Vec::new())).is_err());
    }

    /// Counts the reports that a peer broke the rules.
    #[derive(Default)]
    struct Heard(usize);

    impl Sink for Heard {
        fn frame(&mut self, _frame: Incoming<'_>) {
            panic!("the first frame is missing");
        }
        fn change(&mut self, change: Change) {
            self.0 += usize::from(matches!(change, Change::Corrupt { .. }));
        }
    }

    /// A peer that broke the rules is reported once, and nothing from it is kept.
    #[test]
    fn a_peer_is_shut_out_once() {
        let mut heard = Heard::default();
        let mut numbering = Numbering {
            incarnation: 7,
            peers: HashMap::from([(PeerId(5), lanes())]),
            current: None,
        };
        for number in [1, 1, 2, 2, 0] {
            let (inline, body) = frame(number, LIVES, b"x");
            let mut ordering = Ordering {
                sink: &mut heard,
                numbering: &mut numbering,
            };
            ordering.frame(Incoming {
                from: PeerId(5),
                kind: 1,
                arg: 0,
                inline: &inline,
                body: Body::Slice(&body),
            });
        }
        assert_eq!((heard.0, numbering.peers[&PeerId(5)].kept_bytes), (1, 0));
    }
}
