//! Frames that leave. Each goes out at once, or waits here for room (X4).

use super::{EACH, INBOX_MAX, Own, Payload, Runtime, Work, locked, name};
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use crate::runtime::Arrived;
use samite_fabric::rpc::Life;
use samite_fabric::{Fabric, PeerId};
use std::collections::VecDeque;

/// The most bytes of frames to one peer that wait for room.
const OUT_MAX: u64 = 4 << 20;
/// If the frames to all peers are more bytes than these, no peer gets more than its part of them.
pub(super) const OUT_ALL_MAX: u64 = 64 << 20;

/// A frame that leaves when there is room.
#[derive(Debug)]
struct Out {
    to: Life,
    word: u64,
    head: Vec<u8>,
    payload: Vec<u8>,
}

/// Frames to a peer that wait for room.
#[derive(Debug, Default)]
pub(super) struct Queue {
    frames: VecDeque<Out>,
    bytes: u64,
}

impl Out {
    fn cost(&self) -> u64 {
        self.payload.len() as u64 + EACH
    }
}

impl Work {
    /// Sends what waits for room, to those who have some.
    pub(super) fn flush(&mut self, runtime: &Runtime, fabric: &Fabric) {
        if self.out.is_empty() {
            return;
        }
        let peers: Vec<PeerId> = self.out.keys().copied().collect();
        for peer in peers {
            while let Some(out) = self.out.get_mut(&peer).and_then(|of| of.frames.pop_front()) {
                let posted = fabric.post_upcall(out.to, out.word, &out.head, &out.payload);
                let Some(queue) = self.out.get_mut(&peer) else {
                    break;
                };
                if posted == Ok(false) {
                    queue.frames.push_front(out);
                    break;
                }
                queue.bytes -= out.cost();
                self.out_bytes -= out.cost();
                if let Err(error) = posted {
                    let unsent = (out.word, &out.head[..], &out.payload[..]);
                    self.not_sent(runtime, fabric, out.to, unsent, error.into());
                }
            }
            if self
                .out
                .get(&peer)
                .is_some_and(|queue| queue.frames.is_empty())
            {
                self.out.remove(&peer);
            }
        }
    }

    /// Returns whether little waits for a peer: then what nobody waits for may be sent to it.
    pub(super) fn has_much_room(&self, to: Life) -> bool {
        let waits = self.out.get(&to.peer).map_or(0, |queue| queue.bytes);
        waits < OUT_MAX / 8
    }

    /// Sends a frame, or keeps it until there is room.
    #[inline]
    pub(crate) fn post(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        to: Life,
        word: u64,
        head: &[u8],
        payload: &[u8],
    ) {
        if frame::is_answered(head) {
            self.trail.sent(to);
        }
        if to == self.me {
            return self.post_here(runtime, fabric, word, head, payload);
        }
        if !self.out.contains_key(&to.peer) {
            match fabric.post_upcall(to, word, head, payload) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    let unsent = (word, head, payload);
                    return self.not_sent(runtime, fabric, to, unsent, error.into());
                }
            }
        }
        self.wait_for_room(runtime, fabric, to, word, head, payload);
    }

    #[cold]
    pub(super) fn wait_for_room(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        to: Life,
        word: u64,
        head: &[u8],
        payload: &[u8],
    ) {
        let out = Out {
            to,
            word,
            head: head.to_vec(),
            payload: payload.to_vec(),
        };
        let is_much = self.out_bytes + out.cost() > OUT_ALL_MAX;
        let units = (self.units.len() as u64).max(1);
        let most = match is_much {
            true => OUT_MAX.min(OUT_ALL_MAX / units),
            false => OUT_MAX,
        };
        let queue = self.out.entry(to.peer).or_default();
        if queue.bytes + out.cost() > most {
            let name = name(fabric, to);
            let text = format!(
                "{name} does not receive: what waits for it here has no more room; it has to make \
                 progress, or be called less"
            );
            let why = Failure::new(Cause::Busy, text);
            let unsent = (word, head, payload);
            // A queue that was made for it holds nothing up.
            if queue.frames.is_empty() {
                self.out.remove(&to.peer);
            }
            return self.not_sent(runtime, fabric, to, unsent, NotSent::Full(why));
        }
        queue.bytes += out.cost();
        self.out_bytes += out.cost();
        queue.frames.push_back(out);
    }

    /// A frame from this unit to itself.
    pub(crate) fn post_here(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        word: u64,
        head: &[u8],
        payload: &[u8],
    ) {
        let kind = head.first().copied().unwrap_or(0);
        if kind == frame::REPLY {
            if let Some(slot) = frame::word(head, 4) {
                locked(&runtime.calls).answer(slot, self.me, Ok(payload.to_vec()));
                self.has_ended_here = true;
            }
            return;
        }
        let mut bytes = Payload::with_capacity(head.len() + payload.len());
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(payload);
        let cost = bytes.len() as u64 + EACH;
        let makes_more = frame::is_call(kind);
        if self.own_bytes + cost > INBOX_MAX && makes_more {
            let text = format!(
                "{} MiB of calls of this unit to itself wait already: make fewer at a time",
                INBOX_MAX >> 20
            );
            let why = NotSent::Full(Failure::new(Cause::Busy, text));
            let (me, unsent) = (self.me, (word, head, payload));
            return self.not_sent(runtime, fabric, me, unsent, why);
        }
        self.own_bytes += cost;
        self.own.push_back(Own::Sent(Arrived {
            from: self.me,
            kind,
            word,
            bytes,
        }));
    }

    /// A frame could not be sent: its call fails, as if it had failed here.
    #[cold]
    fn not_sent(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        to: Life,
        (word, head, payload): (u64, &[u8], &[u8]),
        why: NotSent,
    ) {
        let is_full = matches!(why, NotSent::Full(_));
        let failure = match why {
            NotSent::Full(failure) => failure,
            NotSent::Fabric(error @ samite_fabric::Error::TooLong { .. }) => {
                Failure::new(Cause::Forbidden, error.to_string())
            }
            NotSent::Fabric(error) => Failure::new(Cause::Lost, error.to_string()),
        };
        let Some(kind) = head.first().copied() else {
            return;
        };
        match (kind, Head::decode(head)) {
            (frame::CALL, Some((head, _))) if head.one_way => {
                self.fail(runtime, fabric, &head, runtime.me, failure);
            }
            (frame::CALL, Some((head, _))) => self.goes_back(runtime, fabric, head, failure),
            (frame::PREFETCH, Some((head, _))) => {
                self.goes_back(runtime, fabric, head, failure);
                // The units below that one get the code from this one.
                self.pass_on(runtime, fabric, &head, word, payload);
            }
            // A failure that cannot go back along its way goes to the origin.
            (frame::FAIL, Some((head, _))) if head.origin != to => {
                if let Some(mut failure) = Failure::decode(payload) {
                    failure.is_part = true;
                    self.fail_to_origin(runtime, fabric, &head, &failure);
                }
            }
            // One for which there was no room is repeated (`fetch`); others are asked now.
            (frame::FETCH, _) if is_full => self.ask_next(runtime, fabric, word),
            (frame::FETCH, _) => self.not_asked(runtime, fabric, word, to),
            _ => tracing::debug!(to = %to.peer, %failure, "a frame of moved code was not sent"),
        }
    }
}

/// Why a frame was not sent.
enum NotSent {
    Fabric(samite_fabric::Error),
    Full(Failure),
}

impl From<samite_fabric::Error> for NotSent {
    fn from(error: samite_fabric::Error) -> NotSent {
        NotSent::Fabric(error)
    }
}
