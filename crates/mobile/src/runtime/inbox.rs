//! Frames that have arrived and wait for their turn, by their senders.
//!
//! A sender that has frames here has one turn for each turn of every other one, so what it has sent
//! holds up the others by one frame each (X7), and takes no room from them (X3). Calls wait apart
//! from the other frames, which end what waits elsewhere and do not wait for kernels (X8).

use super::{Arrived, EACH, INBOX_MAX, Payload};
use crate::calls::CALLS_MAX;
use crate::error::Failure;
use crate::frame::{self, Head};
use samite_fabric::rpc::Life;
use samite_mem::ring::Body;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The most bytes of calls that wait from one unit.
pub(super) const FROM_ONE: u64 = INBOX_MAX / 4;
/// The most bytes of failures of one unit for which nobody waits.
const UNWAITED_FROM_ONE: u64 = FROM_ONE / 8;
/// The most bytes of heads of calls that wait to be refused: as many from one unit as a process has
/// unanswered calls, and those of four such units.
const REFUSED_FROM_ONE: u64 = (CALLS_MAX * Head::BYTES) as u64;
const REFUSED_MAX: u64 = 4 * REFUSED_FROM_ONE;
/// The most places that an empty queue keeps.
const SPARE: usize = 64;

/// What waits from one sender, in its order, each with what it costs.
#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<(u64, T)>,
    cost: u64,
}

/// Queues of senders that take turns.
#[derive(Debug)]
pub(super) struct Turns<T> {
    /// Without empty queues.
    of_senders: HashMap<Life, Queue<T>, foldhash::fast::RandomState>,
    /// Their senders, in the order of their turns.
    turns: VecDeque<Life>,
    cost: u64,
    /// An empty queue: a sender whose frames are taken one by one has none allocated each time.
    spare: VecDeque<(u64, T)>,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns {
            of_senders: HashMap::default(),
            turns: VecDeque::new(),
            cost: 0,
            spare: VecDeque::new(),
        }
    }
}

impl<T> Turns<T> {
    /// Returns whether a sender may add so much, if what waits from it costs at most `of_one`, and
    /// what waits from all senders at most `of_all`.
    #[inline]
    fn has_room(&self, from: Life, cost: u64, of_one: u64, of_all: u64) -> bool {
        let queue = self.of_senders.get(&from);
        let waits = queue.map_or(0, |queue| queue.cost);
        waits + cost <= of_one && self.cost + cost <= of_all
    }

    #[inline]
    fn add(&mut self, from: Life, cost: u64, item: T) {
        let (spare, turns) = (&mut self.spare, &mut self.turns);
        let queue = self.of_senders.entry(from).or_insert_with(|| {
            turns.push_back(from);
            Queue {
                items: std::mem::take(spare),
                cost: 0,
            }
        });
        queue.items.push_back((cost, item));
        queue.cost += cost;
        self.cost += cost;
    }

    /// Takes the first frame of the sender whose turn it is.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(Life, T)> {
        let from = self.turns.pop_front()?;
        let queue = self.of_senders.get_mut(&from)?;
        let (cost, item) = queue.items.pop_front()?;
        queue.cost -= cost;
        self.cost -= cost;
        match queue.items.is_empty() {
            false => self.turns.push_back(from),
            true => {
                let gone = self.of_senders.remove(&from);
                self.spare = gone.map_or_else(VecDeque::new, |gone| gone.items);
                self.spare.shrink_to(SPARE);
            }
        }
        Some((from, item))
    }

    /// Takes the first frame of the next sender for which `may` returns true.
    pub(super) fn next_if(&mut self, may: impl Fn(Life) -> bool) -> Option<(Life, T)> {
        let at = self.turns.iter().position(|from| may(*from))?;
        self.turns.rotate_left(at);
        self.next()
    }

    /// Takes what a sender has here and `is_it` returns true for, in its order.
    pub(super) fn take_of(&mut self, from: Life, is_it: impl Fn(&T) -> bool) -> Vec<T> {
        let Some(queue) = self.of_senders.get_mut(&from) else {
            return Vec::new();
        };
        let all = std::mem::take(&mut queue.items).into_iter();
        let (taken, left): (VecDeque<_>, _) = all.partition(|(_, item)| is_it(item));
        let cost: u64 = taken.iter().map(|(cost, _)| *cost).sum();
        queue.items = left;
        queue.cost -= cost;
        self.cost -= cost;
        if queue.items.is_empty() {
            self.of_senders.remove(&from);
            self.turns.retain(|sender| *sender != from);
        }
        taken.into_iter().map(|(_, item)| item).collect()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    #[cfg(test)]
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) calls: Turns<Arrived>,
    /// Failures, requests for code, and code.
    pub(super) others: Turns<Arrived>,
    /// Calls whose units are to be told that they failed.
    pub(super) refused: Turns<Refused>,
}

/// A call that has failed here, and whose unit was not told yet.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) head: [u8; Head::BYTES],
    /// `None`: it has found no room.
    pub(super) why: Option<Arc<Failure>>,
}

impl Inbox {
    /// Keeps a frame, or the head of a call that finds no room. Requests for code, code and
    /// failures have as much room again: they end what waits.
    #[inline]
    pub(super) fn keep(&mut self, from: Life, word: u64, bytes: &[u8], rest: &Body<'_>) {
        let Some(kind) = bytes.first().copied() else {
            return;
        };
        let len = bytes.len() as u64 + rest.len();
        let cost = len + EACH;
        let frames = match kind {
            kind if frame::is_call(kind) => &mut self.calls,
            frame::REPLY | frame::FAIL | frame::FETCH | frame::CODE => &mut self.others,
            _ => return tracing::warn!(from = %from.peer, kind, "an unknown frame"),
        };
        // What somebody waits for has room beside them.
        let is_unwaited = kind == frame::FAIL && frame::is_one_way(bytes);
        let of_one = if is_unwaited {
            UNWAITED_FROM_ONE
        } else {
            FROM_ONE
        };
        if frames.has_room(from, cost, of_one, INBOX_MAX) {
            let mut all = Payload::with_capacity(len as usize);
            all.extend_from_slice(bytes);
            all.resize(len as usize, 0);
            rest.copy_to(0, &mut all[bytes.len()..]);
            let arrived = Arrived {
                from,
                kind,
                word,
                bytes: all,
            };
            return frames.add(from, cost, arrived);
        }
        match bytes.first_chunk() {
            Some(head) if frame::is_answered(bytes) && self.refuse(from, *head, None) => {}
            _ => tracing::warn!(from = %from.peer, kind, "a frame was dropped: too many wait"),
        }
    }

    /// Has a unit be told that its call failed, when there is room for that. Returns whether that
    /// many may wait.
    pub(super) fn refuse(
        &mut self,
        from: Life,
        head: [u8; Head::BYTES],
        why: Option<Arc<Failure>>,
    ) -> bool {
        let cost = Head::BYTES as u64;
        let may = (self.refused).has_room(from, cost, REFUSED_FROM_ONE, REFUSED_MAX);
        if may {
            self.refused.add(from, cost, Refused { head, why });
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::PeerId;
    use samite_fabric::rpc::Life;

    fn life(peer: u32) -> Life {
        Life {
            peer: PeerId(peer),
            incarnation: 1,
        }
    }

    /// The head of a call for whose result somebody waits, or of another frame.
    fn head(kind: u8) -> [u8; Head::BYTES] {
        let mut head = [0; Head::BYTES];
        head[0] = kind;
        head
    }

    fn cost(inbox: &Inbox) -> u64 {
        inbox.calls.cost() + inbox.others.cost()
    }

    fn fill(inbox: &mut Inbox, from: Life, kind: u8, payload: &[u8]) {
        loop {
            let before = cost(inbox);
            inbox.keep(from, 0, &head(kind), &Body::Slice(payload));
            if cost(inbox) == before {
                return;
            }
        }
    }

    /// One sender has a part of the room, and three of them do not take all of it. What ends calls
    /// has room of its own.
    #[test]
    fn a_sender_leaves_room_to_others() {
        let mut inbox = Inbox::default();
        for peer in 0..3 {
            fill(&mut inbox, life(peer), frame::CALL, &[0; 60_000]);
            let all = FROM_ONE * (u64::from(peer) + 1);
            assert!((all - 4 * 60_200..=all).contains(&cost(&inbox)));
        }
        let before = cost(&inbox);
        inbox.keep(life(3), 0, &head(frame::CALL), &Body::Slice(&[0; 60_000]));
        inbox.keep(life(0), 0, &head(frame::CODE), &Body::Slice(&[0; 8_000]));
        assert_eq!(cost(&inbox) - before, 68_000 + 2 * (24 + EACH));
        for peer in 3..8 {
            fill(&mut inbox, life(peer), frame::CALL, &[0; 60_000]);
        }
        assert!((INBOX_MAX - 60_200..=INBOX_MAX).contains(&cost(&inbox)));
        for peer in 0..8 {
            fill(&mut inbox, life(peer), frame::FAIL, &[0; 60_000]);
        }
        assert!((2 * INBOX_MAX - 2 * 60_200..=2 * INBOX_MAX).contains(&cost(&inbox)));
    }

    /// Failures for which nobody waits leave room to those for which somebody does.
    #[test]
    fn what_nobody_waits_for_has_less_room() {
        let mut inbox = Inbox::default();
        let mut unwaited = head(frame::FAIL);
        unwaited[frame::FLAGS] = frame::ONE_WAY as u8;
        for _ in 0..FROM_ONE / EACH {
            inbox.keep(life(1), 0, &unwaited, &Body::Slice(&[]));
        }
        let kept = cost(&inbox);
        assert!((UNWAITED_FROM_ONE - 200..=UNWAITED_FROM_ONE).contains(&kept));
        fill(&mut inbox, life(1), frame::FAIL, &[]);
        assert!((FROM_ONE - 200..=FROM_ONE).contains(&cost(&inbox)));
    }

    /// All calls of a unit that find no room are told so, also if another unit makes more of them
    /// than it may.
    #[test]
    fn refused_calls_of_one_unit_leave_room_to_others() {
        let mut inbox = Inbox::default();
        for peer in [1, 2] {
            fill(&mut inbox, life(peer), frame::CALL, &[]);
        }
        for _ in 0..2 * CALLS_MAX {
            inbox.keep(life(1), 0, &head(frame::CALL), &Body::Slice(&[]));
        }
        for _ in 1..CALLS_MAX {
            inbox.keep(life(2), 0, &head(frame::CALL), &Body::Slice(&[]));
        }
        let refused = std::iter::from_fn(|| inbox.refused.next());
        let (one, two): (Vec<_>, Vec<_>) = refused.partition(|(from, _)| *from == life(1));
        assert_eq!((one.len(), two.len()), (CALLS_MAX, CALLS_MAX));
    }

    /// Senders take turns, those of one stay in order, and nothing stays of those that have none.
    #[test]
    fn senders_take_turns() {
        let mut inbox = Inbox::default();
        for (peer, word) in [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0)] {
            let call = head(frame::CALL);
            inbox.keep(life(peer), word, &call, &Body::Slice(&[]));
        }
        let next = |inbox: &mut Inbox| {
            let (from, arrived) = inbox.calls.next()?;
            Some((from.peer.0, arrived.word))
        };
        let first: Vec<_> = std::iter::from_fn(|| next(&mut inbox)).take(4).collect();
        assert_eq!(first, [(1, 0), (2, 0), (3, 0), (1, 1)]);
        inbox.keep(life(3), 1, &head(frame::CALL), &Body::Slice(&[]));
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut inbox)).collect();
        assert_eq!(rest, [(2, 1), (1, 2), (3, 1), (1, 3)]);
        assert_eq!(cost(&inbox), 0);
        assert!(inbox.calls.of_senders.is_empty() && inbox.calls.turns.is_empty());
    }

    /// What ends a wait elsewhere is not behind the calls of its sender, and stays in order.
    #[test]
    fn what_ends_waits_is_not_behind_calls() {
        let mut inbox = Inbox::default();
        for word in 0..100 {
            inbox.keep(life(1), word, &head(frame::CALL), &Body::Slice(&[]));
        }
        for kind in [frame::FETCH, frame::FAIL, frame::CODE] {
            inbox.keep(life(1), 7, &head(kind), &Body::Slice(&[]));
        }
        let others: Vec<u8> = std::iter::from_fn(|| inbox.others.next())
            .map(|(_, arrived)| arrived.kind)
            .collect();
        assert_eq!(others, [frame::FETCH, frame::FAIL, frame::CODE]);
        let is_even = |arrived: &Arrived| arrived.word.is_multiple_of(2);
        assert_eq!(inbox.calls.take_of(life(1), is_even).len(), 50);
        assert_eq!(cost(&inbox), 50 * (24 + EACH));
        let left: Vec<_> = std::iter::from_fn(|| inbox.calls.next()).collect();
        assert!(left.iter().all(|(_, arrived)| !is_even(arrived)));
    }
}
