//! The contract of RMA, on the transport itself: T7 to T12.

use super::*;
use crate::Fabric;
use crate::transport::{Class, Completed, Incoming, RmaAddress, RmaError};
use crate::{Atomic, Width};
use samite_mem::lend::{ReadBuf, WriteBuf};
use samite_mem::ring::Body;

/// What a transport has reported, in order.
#[derive(Default)]
struct Heard {
    frames: Vec<(u64, Vec<u8>)>,
    ended: Vec<(u64, Result<u64, RmaError>, Vec<u8>)>,
    lost: bool,
    /// Number of operations that ended after the loss was reported.
    late: usize,
}

impl Sink for Heard {
    fn frame(&mut self, frame: Incoming<'_>) {
        self.frames.push((frame.arg, frame.inline.to_vec()));
    }
    fn change(&mut self, change: Change) {
        self.lost |= matches!(change, Change::Lost { .. });
    }
    fn completed(&mut self, completed: Completed) {
        let bytes = match completed.verb {
            RmaVerb::Put(_, buf) => buf.into_owned(),
            RmaVerb::Get(_, buf) => buf.into_owned(),
            _ => None,
        };
        let end = (completed.id, completed.result, bytes.unwrap_or_default());
        self.ended.push(end);
        self.late += usize::from(self.lost);
    }
}

/// A unit's transport, and what it has reported.
struct End<'a> {
    fabric: &'a Fabric,
    heard: Heard,
}

impl End<'_> {
    fn of(fabric: &Fabric) -> End<'_> {
        let heard = Heard::default();
        let end = End { fabric, heard };
        fabric.caps_to(end.other()); // The transport sends to those that it has announced.
        end
    }

    fn other(&self) -> PeerId {
        PeerId::new(1 - self.fabric.me().node(), 0)
    }

    fn until(&mut self, is_there: impl Fn(&Heard) -> bool) {
        while !is_there(&self.heard) {
            self.fabric
                .0
                .core()
                .unwrap()
                .transport
                .poll(&mut self.heard);
        }
    }

    /// Lets time pass without a poll.
    fn compute(&self) {
        self.fabric.0.core().unwrap().transport.yield_now();
    }

    fn tell(&self, arg: u64, inline: &[u8]) {
        let frame = Outgoing {
            class: Class::Request,
            kind: 1,
            arg,
            inline,
            body: Body::Slice(&[]),
        };
        let push = self
            .fabric
            .0
            .core()
            .unwrap()
            .transport
            .push(self.other(), &frame);
        assert_eq!(push, Push::Done);
    }

    fn start(&self, id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        self.fabric
            .0
            .core()
            .unwrap()
            .transport
            .start(self.other(), id, verb)
    }

    /// Registers words and sends their key to the other unit.
    fn offer(&self, words: &SharedBytes) -> Registration {
        let registered = self.fabric.0.core().unwrap().transport.register(words);
        let (registration, key) = registered.expect("it can do RMA");
        self.tell(0, key.as_bytes());
        registration
    }

    fn key(&mut self) -> RemoteKey {
        self.until(|heard| !heard.frames.is_empty());
        RemoteKey::of(&self.heard.frames.remove(0).1).unwrap()
    }
}

fn put(key: &RemoteKey, offset: u64, value: u64) -> RmaVerb {
    let place = RmaAddress {
        key: key.clone(),
        offset,
    };
    RmaVerb::Put(place, ReadBuf::owned(value.to_le_bytes().to_vec()))
}

fn word(words: &SharedBytes, index: u64) -> u64 {
    let mut bytes = [0; 8];
    words.read(index * 8, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Runs the two units on two nodes, for both kinds of RMA and several seeds.
fn both_kinds(seeds: u64, unit: impl Fn(&mut End<'_>, bool, Rma) -> u64 + Sync) -> Vec<Vec<u64>> {
    let kinds = [Rma::Bypasses, Rma::NeedsProgress];
    let runs = kinds
        .iter()
        .flat_map(|rma| (0..seeds).map(move |seed| (*rma, seed)));
    let run = |(rma, seed)| {
        let scenario = Scenario::new(seed, 2).with_rma(rma);
        let is_target = |fabric: &Fabric| fabric.me().node() == 1;
        scenario.run(|fabric| unit(&mut End::of(fabric), is_target(fabric), rma))
    };
    runs.map(run).collect()
}

/// T7: puts overtake each other and frames. What a flush has ended is visible, and so is every
/// earlier put.
#[test]
fn a_flush_is_the_only_order() {
    let found = both_kinds(30, |end, is_target, _| {
        if is_target {
            let words = SharedBytes::adopt(vec![0u64; 4]);
            end.offer(&words);
            end.until(|heard| heard.frames.iter().any(|(arg, _)| *arg == 1));
            let overtaken = u64::from(word(&words, 1) == 0);
            end.until(|heard| heard.frames.iter().any(|(arg, _)| *arg == 2));
            assert_eq!(word(&words, 1), 9, "it was flushed");
            assert!([7, 8].contains(&word(&words, 0)));
            return overtaken | u64::from(word(&words, 0) == 7) << 1;
        }
        let key = end.key();
        for (id, offset, value) in [(1, 0, 7), (2, 0, 8), (3, 8, 9)] {
            end.start(id, put(&key, offset, value)).unwrap();
        }
        end.tell(1, &[]);
        end.start(4, RmaVerb::Flush).unwrap();
        end.until(|heard| heard.ended.iter().any(|(id, ..)| *id == 4));
        // The flush ended last, and every buffer was returned.
        assert_eq!(end.heard.ended.last().map(|(id, ..)| *id), Some(4));
        let mut ended: Vec<_> = end
            .heard
            .ended
            .iter()
            .map(|(id, r, b)| (*id, *r, b.len()))
            .collect();
        ended.sort_unstable_by_key(|(id, ..)| *id);
        assert_eq!(
            ended,
            [(1, Ok(0), 8), (2, Ok(0), 8), (3, Ok(0), 8), (4, Ok(0), 0)]
        );
        end.tell(2, &[]);
        0
    });
    for bit in [1, 2] {
        assert!(
            found.iter().any(|units| units[1] & bit != 0),
            "nothing was overtaken"
        );
        assert!(found.iter().any(|units| units[1] & bit == 0));
    }
}

/// T12: with bypass, a put becomes visible and a get is answered while the target does nothing;
/// without, only when the target polls. Then there are atomics, whose old value is available when
/// they complete (T8).
#[test]
fn what_bypasses_needs_nothing_of_its_target() {
    both_kinds(5, |end, is_target, rma| {
        if is_target {
            let words = SharedBytes::adopt(vec![0u64, 5, 7]);
            end.offer(&words);
            for _ in 0..100 {
                end.compute();
            }
            assert_eq!(word(&words, 0), if rma == Rma::Bypasses { 3 } else { 0 });
            end.until(|heard| !heard.frames.is_empty());
            assert_eq!(word(&words, 0), 3);
            assert_eq!(word(&words, 2), if rma == Rma::Bypasses { 7 } else { 9 });
            return 0;
        }
        let key = end.key();
        let place = |offset| RmaAddress {
            key: key.clone(),
            offset,
        };
        end.start(1, put(&key, 0, 3)).unwrap();
        let get = RmaVerb::Get(place(8), WriteBuf::owned(vec![0; 8]));
        end.start(2, get).unwrap();
        if rma == Rma::NeedsProgress {
            let add = (Atomic::Add, Width::W64);
            end.start(3, RmaVerb::Atomic(place(16), add, (2, 0)))
                .unwrap();
        }
        end.start(4, RmaVerb::Flush).unwrap();
        end.until(|heard| heard.ended.iter().any(|(id, ..)| *id == 4));
        let ended = |of| end.heard.ended.iter().find(|(id, ..)| *id == of);
        assert_eq!(ended(2).unwrap().2, 5u64.to_le_bytes());
        let old = ended(3).map(|(_, old, _)| *old);
        assert_eq!(old, (rma == Rma::NeedsProgress).then_some(Ok(7)));
        end.tell(1, &[]);
        0
    });
}

/// T9: a transport without capacity leaves the operation unchanged and accepts it later.
#[test]
fn a_refused_start_has_no_effect() {
    both_kinds(2, |end, is_target, _| {
        if is_target {
            let words = SharedBytes::adopt(vec![0u64; 200]);
            end.offer(&words);
            end.until(|heard| !heard.frames.is_empty());
            assert!((0..200).all(|index| word(&words, index) == index + 1));
            return 0;
        }
        let (key, mut refused) = (end.key(), 0);
        for index in 0..200 {
            let mut verb = put(&key, index * 8, index + 1);
            while let Err(back) = end.start(index, verb) {
                assert_eq!(back.0, Push::Full);
                verb = back.1;
                refused += 1;
                let ended = end.heard.ended.len();
                end.until(|heard| heard.ended.len() > ended);
            }
        }
        assert!(refused > 0);
        end.until(|heard| heard.ended.len() == 200);
        end.start(200, RmaVerb::Flush).unwrap();
        end.until(|heard| heard.ended.len() == 201);
        end.tell(1, &[]);
        0
    });
}

/// T10: an operation towards a lost unit ends once, and before the loss is reported, even if it was
/// started at the last moment.
#[test]
fn operations_end_before_the_loss() {
    let ended = both_kinds(10, |end, is_target, _| {
        if is_target {
            end.offer(&SharedBytes::adopt(vec![0u64; 64]));
            return 0;
        }
        let key = end.key();
        let mut started = 0;
        while !end.heard.lost {
            for verb in [put(&key, started % 64 * 8, 1), RmaVerb::Flush] {
                started += u64::from(end.start(started, verb).is_ok());
                end.compute(); // The news may come now.
            }
            end.fabric.0.core().unwrap().transport.poll(&mut end.heard);
        }
        assert_eq!(end.heard.late, 0);
        let mut ids: Vec<u64> = end.heard.ended.iter().map(|(id, ..)| *id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..started).collect::<Vec<_>>());
        let lost = |(_, result, _): &&(u64, Result<u64, RmaError>, Vec<u8>)| {
            *result == Err(RmaError::Lost)
        };
        end.heard.ended.iter().filter(lost).count() as u64
    });
    assert!(
        ended.iter().any(|units| units[0] > 0),
        "nothing was in flight"
    );
}

/// T11: after a registration has ended, nothing writes to the range. Late operations are refused.
#[test]
fn nothing_reaches_what_is_deregistered() {
    let refused = both_kinds(20, |end, is_target, _| {
        if is_target {
            let words = SharedBytes::adopt(vec![0u64; 40]);
            let registration = end.offer(&words);
            (0..4).for_each(|_| end.compute());
            end.fabric.0.core().unwrap().transport.poll(&mut end.heard);
            end.fabric
                .0
                .core()
                .unwrap()
                .transport
                .deregister(registration);
            words.fill(0xee);
            end.until(|heard| !heard.frames.is_empty());
            let mut bytes = [0; 320];
            words.read(0, &mut bytes);
            assert_eq!(bytes, [0xee; 320]);
            return 0;
        }
        let key = end.key();
        for id in 0..40 {
            end.start(id, put(&key, id * 8, 1)).unwrap();
            end.compute();
        }
        end.start(40, RmaVerb::Flush).unwrap();
        end.until(|heard| heard.ended.len() == 41);
        end.tell(1, &[]);
        let refused = end.heard.ended.iter();
        let refused = refused.filter(|(_, result, _)| *result == Err(RmaError::Refused));
        refused.count() as u64
    });
    assert!(refused.iter().any(|units| units[0] > 0 && units[0] < 40));
}

/// The length of a key is bounded, whatever a peer sends.
#[test]
fn a_key_is_bounded() {
    assert!(RemoteKey::of(&[]).is_none());
    assert!(RemoteKey::of(&[1; RemoteKey::MAX + 1]).is_none());
    assert_eq!(RemoteKey::of(&[1; 64]).unwrap().as_bytes(), [1; 64]);
}
