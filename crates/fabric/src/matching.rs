//! Tag matching with the semantics of MX: a receive names a source (or any), a 64-bit tag and a
//! mask; a message matches if the bits under the mask are equal. Messages of one pair match in the
//! order in which they were sent, receives in the order in which they were posted. There is one
//! exception: a message that is returned ([`Matcher::put_back`]) goes behind later messages of its
//! sender whose tags its receive did not want.
//!
//! Pure: no IO and no message bytes. Posted receives and unexpected messages are kept per source,
//! so the usual case (directed, few outstanding) searches one short queue. A counter orders the
//! "any source" queue relative to the others.

use crate::PeerId;
use crate::peer::PeerMap;
use std::collections::VecDeque;

/// The messages that a receive accepts.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let peer = fabric.me();
/// use samite_fabric::Match;
/// fabric.send(peer, 0x105, b"row 5")?;
/// let rows = Match::any(0x100).masked(0xff00); // tags from 0x100 to 0x1ff, from any source
/// let (status, bytes) = fabric.recv_vec(rows)?;
/// assert_eq!((status.tag, &bytes[..]), (0x105, &b"row 5"[..]));
/// # Ok::<(), samite_fabric::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The source; `None` for any source.
    pub source: Option<PeerId>,
    /// The tag.
    pub tag: u64,
    /// The bits of the tag that are compared.
    pub mask: u64,
}

impl Match {
    /// The highest byte of the tags that the layers above the fabric use for themselves, such as
    /// collectives.
    pub const LAYERS: u64 = 0xd5;

    /// Matches messages with exactly this tag from this peer.
    pub fn from(source: PeerId, tag: u64) -> Match {
        Match {
            source: Some(source),
            tag,
            mask: u64::MAX,
        }
    }

    /// Matches messages with exactly this tag from any peer.
    pub fn any(tag: u64) -> Match {
        Match {
            source: None,
            tag,
            mask: u64::MAX,
        }
    }

    /// Restricts the comparison to the bits under `mask`.
    pub fn masked(self, mask: u64) -> Match {
        Match { mask, ..self }
    }

    #[inline(always)]
    fn accepts_tag(&self, tag: u64) -> bool {
        (self.tag ^ tag) & self.mask == 0
    }

    /// Returns true if a message matches.
    #[inline(always)]
    pub fn accepts(&self, from: PeerId, tag: u64) -> bool {
        self.accepts_tag(tag) && self.source.is_none_or(|source| source == from)
    }
}

#[derive(Debug)]
struct Posted<P> {
    order: u64,
    wants: Match,
    item: P,
}

#[derive(Debug)]
struct Unexpected<U> {
    order: u64,
    tag: u64,
    item: U,
}

/// Where an unexpected message is kept: in the queue of its sender, or with the messages of
/// departed processes.
#[derive(Debug)]
enum Position {
    Of(PeerId, usize),
    Departed(usize),
}

/// Receives that wait for messages, and messages that wait for receives.
#[derive(Debug)]
pub struct Matcher<P, U> {
    directed: PeerMap<VecDeque<Posted<P>>>,
    any: VecDeque<Posted<P>>,
    unexpected: PeerMap<VecDeque<Unexpected<U>>>,
    /// Messages of processes whose peer numbers were reassigned, in order: only for receives from
    /// any source.
    departed: VecDeque<(PeerId, Unexpected<U>)>,
    order: u64,
    posted_len: usize,
    unexpected_len: usize,
}

impl<P, U> Default for Matcher<P, U> {
    fn default() -> Self {
        Matcher::new(0)
    }
}

impl<P, U> Matcher<P, U> {
    /// Creates a matcher for a process on this node; access to messages of the same node is
    /// fastest.
    pub fn new(node: u32) -> Self {
        Matcher {
            directed: PeerMap::new(node),
            any: VecDeque::new(),
            unexpected: PeerMap::new(node),
            departed: VecDeque::new(),
            order: 0,
            posted_len: 0,
            unexpected_len: 0,
        }
    }
}

/// Removes an element; the first one is the usual case.
#[inline(always)]
fn take<T>(queue: &mut VecDeque<T>, index: usize) -> Option<T> {
    if index == 0 {
        queue.pop_front()
    } else {
        queue.remove(index)
    }
}

impl<P, U> Matcher<P, U> {
    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// Takes the oldest unexpected message that a receive wants, and returns its source, tag and
    /// item.
    pub fn take_unexpected(&mut self, wants: Match) -> Option<(PeerId, u64, U)> {
        let (peer, found) = match self.find_unexpected(wants)? {
            Position::Of(peer, index) => (peer, take(self.unexpected.get_mut(peer)?, index)?),
            Position::Departed(index) => take(&mut self.departed, index)?,
        };
        self.unexpected_len -= 1;
        Some((peer, found.tag, found.item))
    }

    /// Returns, without taking it, the oldest unexpected message that a receive would take.
    pub fn peek_unexpected(&self, wants: Match) -> Option<(PeerId, u64, &U)> {
        let (peer, found) = match self.find_unexpected(wants)? {
            Position::Of(peer, index) => (peer, self.unexpected.get(peer)?.get(index)?),
            Position::Departed(index) => {
                let (peer, found) = &self.departed[index];
                (*peer, found)
            }
        };
        Some((peer, found.tag, &found.item))
    }

    #[inline]
    fn find_unexpected(&self, wants: Match) -> Option<Position> {
        if self.unexpected_len == 0 {
            return None;
        }
        let in_queue = |(peer, queue): (PeerId, &VecDeque<Unexpected<U>>)| {
            let index = queue.iter().position(|u| wants.accepts_tag(u.tag))?;
            Some((queue[index].order, Position::Of(peer, index)))
        };
        let in_departed = || {
            let is_it = |(_, u): &(PeerId, Unexpected<U>)| wants.accepts_tag(u.tag);
            let index = self.departed.iter().position(is_it)?;
            Some((self.departed[index].1.order, Position::Departed(index)))
        };
        let found = match wants.source {
            Some(peer) => self
                .unexpected
                .get(peer)
                .and_then(|queue| in_queue((peer, queue))),
            None => self
                .unexpected
                .iter()
                .filter_map(in_queue)
                .chain(in_departed())
                .min_by_key(|(order, _)| *order),
        };
        found.map(|(_, place)| place)
    }

    /// Posts a receive for which there is no unexpected message.
    pub fn post(&mut self, wants: Match, item: P) {
        let posted = Posted {
            order: self.next_order(),
            wants,
            item,
        };
        self.posted_len += 1;
        match wants.source {
            Some(peer) => self.directed.entry(peer).push_back(posted),
            None => self.any.push_back(posted),
        }
    }

    /// Takes the oldest posted receive that a message with `tag` from `from` matches.
    #[inline]
    pub fn take_posted(&mut self, from: PeerId, tag: u64) -> Option<P> {
        let oldest = |queue: &VecDeque<Posted<P>>| {
            let index = queue.iter().position(|p| p.wants.accepts_tag(tag))?;
            Some((queue[index].order, index))
        };
        let of_peer = self.directed.get_mut(from);
        let directed = of_peer.as_deref().and_then(oldest);
        let any = match self.any.is_empty() {
            true => None,
            false => oldest(&self.any),
        };
        let (queue, index) = match (directed, any) {
            (Some((order, index)), any) if any.is_none_or(|(any, _)| order < any) => {
                (of_peer?, index)
            }
            (_, Some((_, index))) => (&mut self.any, index),
            _ => return None,
        };
        self.posted_len -= 1;
        take(queue, index).map(|posted| posted.item)
    }

    /// As [`Matcher::take_posted`], for a message of a departed process: only receives from any
    /// source match it.
    pub fn take_posted_any(&mut self, tag: u64) -> Option<P> {
        let is_it = |posted: &Posted<P>| posted.wants.accepts_tag(tag);
        let index = self.any.iter().position(is_it)?;
        self.posted_len -= 1;
        take(&mut self.any, index).map(|posted| posted.item)
    }

    /// Keeps a message that no posted receive wants.
    pub fn keep(&mut self, from: PeerId, tag: u64, item: U) {
        let order = self.next_order();
        self.unexpected_len += 1;
        self.unexpected
            .entry(from)
            .push_back(Unexpected { order, tag, item });
    }

    /// Keeps a message again that a receive with `wants` had taken. It goes before the messages of
    /// the same sender that this receive would have taken after it. `departed`: the peer number of
    /// the sender has been reassigned.
    pub fn put_back(&mut self, wants: Match, (from, tag): (PeerId, u64), item: U, departed: bool) {
        let order = self.next_order();
        self.unexpected_len += 1;
        if departed {
            let is_next =
                |(of, next): &(PeerId, Unexpected<U>)| *of == from && wants.accepts_tag(next.tag);
            let next = self.departed.iter().position(is_next);
            let index = next.unwrap_or(self.departed.len());
            let order = self
                .departed
                .get(index)
                .map_or(order, |(_, next)| next.order);
            self.departed
                .insert(index, (from, Unexpected { order, tag, item }));
        } else {
            let queue = self.unexpected.entry(from);
            let next = queue.iter().position(|next| wants.accepts_tag(next.tag));
            let index = next.unwrap_or(queue.len());
            let order = queue.get(index).map_or(order, |next| next.order);
            queue.insert(index, Unexpected { order, tag, item });
        }
    }

    /// Returns what a posted receive accepts.
    pub fn find(&self, mut is: impl FnMut(&P) -> bool) -> Option<Match> {
        let directed = self.directed.iter().map(|(_, queue)| queue);
        let mut posted = directed.chain([&self.any]).flatten();
        posted
            .find(|posted| is(&posted.item))
            .map(|posted| posted.wants)
    }

    /// Returns some tags of the oldest unexpected messages of a source, or of all. Tags of layers
    /// ([`Match::LAYERS`]) are left out.
    pub fn unexpected_tags(&self, source: Option<PeerId>) -> Vec<u64> {
        const MOST: usize = 4;
        // There may be very many, and each of very many expired receives looks.
        const LOOKS: usize = 256;
        let mut tags = Vec::new();
        let queues = self.unexpected.iter();
        let of_source = queues.filter(|(peer, _)| source.is_none_or(|source| source == *peer));
        for unexpected in of_source.flat_map(|(_, queue)| queue).take(LOOKS) {
            if tags.len() == MOST {
                break;
            }
            if !tags.contains(&unexpected.tag) && unexpected.tag >> 56 != Match::LAYERS {
                tags.push(unexpected.tag);
            }
        }
        tags
    }

    /// Cancels a posted receive.
    pub fn cancel(&mut self, mut is: impl FnMut(&P) -> bool) -> Option<P> {
        for queue in self.directed.values_mut().chain([&mut self.any]) {
            if let Some(index) = queue.iter().position(|posted| is(&posted.item)) {
                self.posted_len -= 1;
                return queue.remove(index).map(|posted| posted.item);
            }
        }
        None
    }

    /// Cancels all receives that only this peer could have satisfied, and returns them.
    pub fn take_directed(&mut self, from: PeerId) -> Vec<P> {
        let all = self
            .directed
            .get_mut(from)
            .map(std::mem::take)
            .unwrap_or_default();
        self.posted_len -= all.len();
        all.into_iter().map(|posted| posted.item).collect()
    }

    /// Drops the unexpected messages of a peer for which `which` returns true.
    pub fn drop_unexpected(&mut self, from: PeerId, mut which: impl FnMut(&U) -> bool) {
        if let Some(queue) = self.unexpected.get_mut(from) {
            let before = queue.len();
            queue.retain(|unexpected| !which(&unexpected.item));
            self.unexpected_len -= before - queue.len();
        }
    }

    /// The number of a process is reassigned: its messages, converted by `departed`, are from now
    /// on only for receives from any source.
    pub fn depart(&mut self, from: PeerId, mut departed: impl FnMut(U) -> U) {
        let Some(queue) = self.unexpected.get_mut(from) else {
            return;
        };
        let queue = std::mem::take(queue).into_iter().map(|unexpected| {
            let item = departed(unexpected.item);
            (from, Unexpected { item, ..unexpected })
        });
        self.departed.extend(queue);
        let in_order = self.departed.make_contiguous();
        in_order.sort_by_key(|(_, unexpected)| unexpected.order);
    }

    /// Drops the oldest message of a departed process ([`Matcher::depart`]) for which `which`
    /// returns true.
    pub fn drop_departed(&mut self, which: impl Fn(&U) -> bool) -> Option<U> {
        let is_it = |(_, unexpected): &(PeerId, Unexpected<U>)| which(&unexpected.item);
        let oldest = self.departed.iter().position(is_it)?;
        let (_, unexpected) = self.departed.remove(oldest)?;
        self.unexpected_len -= 1;
        Some(unexpected.item)
    }

    /// Returns the number of unexpected messages.
    #[inline(always)]
    pub fn unexpected_len(&self) -> usize {
        self.unexpected_len
    }

    /// Returns true if any receives are posted.
    #[inline(always)]
    pub fn has_posted(&self) -> bool {
        self.posted_len > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An expired receive names some other tags that came, and does not look through all messages.
    #[test]
    fn some_other_tags_are_found() {
        let mut matcher: Matcher<u32, u32> = Matcher::new(0);
        let (one, two) = (PeerId(1), PeerId(2));
        for tag in [Match::LAYERS << 56, 5, 5, 6] {
            matcher.keep(one, tag, 0);
        }
        assert_eq!(matcher.unexpected_tags(Some(one)), [5, 6]);
        assert!(matcher.unexpected_tags(Some(two)).is_empty());
        for tag in 0..10 {
            matcher.keep(two, tag, 0);
        }
        assert_eq!(matcher.unexpected_tags(Some(two)), [0, 1, 2, 3]);
        let mut matcher: Matcher<u32, u32> = Matcher::new(0);
        for tag in [[7; 1000].as_slice(), &[8]].concat() {
            matcher.keep(one, tag, 0);
        }
        assert_eq!(matcher.unexpected_tags(None), [7], "it looked at all");
    }

    /// The simplest correct implementation: two lists in order.
    #[derive(Default)]
    struct Oracle {
        posted: Vec<(Match, u32)>,
        /// Source (none if its number was reassigned), tag and item.
        unexpected: Vec<(Option<PeerId>, u64, u32)>,
    }

    impl Oracle {
        fn post(&mut self, wants: Match, item: u32) -> Option<u32> {
            let fits = |(from, tag, _): &(Option<PeerId>, u64, u32)| {
                wants.source.is_none_or(|s| Some(s) == *from) && (wants.tag ^ tag) & wants.mask == 0
            };
            match self.unexpected.iter().position(fits) {
                Some(index) => Some(self.unexpected.remove(index).2),
                None => {
                    self.posted.push((wants, item));
                    None
                }
            }
        }
        fn arrive(&mut self, from: PeerId, tag: u64, item: u32) -> Option<u32> {
            let fits = |(wants, _): &(Match, u32)| {
                wants.source.is_none_or(|s| s == from) && (wants.tag ^ tag) & wants.mask == 0
            };
            match self.posted.iter().position(fits) {
                Some(index) => Some(self.posted.remove(index).1),
                None => {
                    self.unexpected.push((Some(from), tag, item));
                    None
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Post(Option<u32>, u64, u64),
        Arrive(u32, u64),
        Cancel(u32),
        Depart(u32),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let masks = prop_oneof![Just(u64::MAX), Just(1), Just(0), Just(2)];
        let op = prop_oneof![
            (proptest::option::of(0u32..3), 0u64..4, masks).prop_map(|(s, t, m)| Op::Post(s, t, m)),
            (0u32..3, 0u64..4).prop_map(|(s, t)| Op::Arrive(s, t)),
            (0u32..40).prop_map(Op::Cancel),
            (0u32..3).prop_map(Op::Depart),
        ];
        proptest::collection::vec(op, 1..120)
    }

    /// A message that was returned is taken again in its turn, and hides no earlier message.
    #[test]
    fn what_was_put_back_is_next() {
        for departed in [false, true] {
            let mut matcher = Matcher::<u32, u32>::default();
            let from = PeerId(2);
            for (item, tag) in [(0, 1), (1, 7), (2, 1), (3, 7), (4, 7)] {
                matcher.keep(from, tag, item);
            }
            let seven = Match::any(7);
            assert_eq!(matcher.take_unexpected(seven), Some((from, 7, 1)));
            if departed {
                matcher.depart(from, |item| item);
            }
            matcher.put_back(seven, (from, 7), 1, departed);
            assert_eq!(matcher.unexpected_len(), 5);
            let own = matcher.peek_unexpected(Match {
                source: Some(from),
                ..seven
            });
            assert_eq!(own.is_none(), departed);
            assert_eq!(matcher.take_unexpected(seven), Some((from, 7, 1)));
            matcher.put_back(seven, (from, 7), 1, departed);
            let all = Match::any(0).masked(0);
            let left: Vec<u32> = (0..5)
                .filter_map(|_| Some(matcher.take_unexpected(all)?.2))
                .collect();
            // Behind the message that this receive did not want, because their order is not
            // recorded.
            assert_eq!(left, [0, 2, 1, 3, 4]);
        }
    }

    proptest! {
        #[test]
        fn matches_like_two_lists(ops in ops()) {
            let (mut matcher, mut oracle) = (Matcher::<u32, u32>::default(), Oracle::default());
            for (item, op) in ops.into_iter().enumerate() {
                let item = item as u32;
                match op {
                    Op::Post(source, tag, mask) => {
                        let wants = Match { source: source.map(PeerId), tag, mask };
                        let got = matcher.take_unexpected(wants).map(|(_, _, item)| item);
                        if got.is_none() {
                            matcher.post(wants, item);
                        }
                        prop_assert_eq!(got, oracle.post(wants, item));
                    }
                    Op::Arrive(from, tag) => {
                        let got = matcher.take_posted(PeerId(from), tag);
                        if got.is_none() {
                            matcher.keep(PeerId(from), tag, item);
                        }
                        prop_assert_eq!(got, oracle.arrive(PeerId(from), tag, item));
                    }
                    Op::Cancel(item) => {
                        let got = matcher.cancel(|posted| *posted == item);
                        let index = oracle.posted.iter().position(|(_, i)| *i == item);
                        prop_assert_eq!(got, index.map(|index| oracle.posted.remove(index).1));
                    }
                    Op::Depart(from) => {
                        matcher.depart(PeerId(from), |item| item);
                        for (of, ..) in &mut oracle.unexpected {
                            of.take_if(|of| of.0 == from);
                        }
                    }
                }
                prop_assert_eq!(matcher.unexpected_len(), oracle.unexpected.len());
            }
        }
    }
}
