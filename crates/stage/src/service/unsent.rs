//! Messages that live peers have not taken yet.

use super::envelope::Packed;
use crate::protocol::Peer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum bytes that wait for a peer, behind a first message of any length, before its requests
/// are rejected.
const MOST: usize = 16 << 20;

/// With more waiting bytes than this, a peer is slow: it is given no more steps.
const SLOW: usize = 1 << 20;

/// The cost of a message besides its bytes.
const EACH: usize = 64;

/// The waiting messages, by peer.
#[derive(Default)]
pub(super) struct Unsent {
    peers: BTreeMap<Peer, Waiting>,
    slow: BTreeSet<Peer>,
    /// The set of slow peers has changed since the last report.
    has_news: bool,
}

#[derive(Default)]
struct Waiting {
    envelopes: VecDeque<Packed>,
    bytes: usize,
}

impl Waiting {
    /// Returns true if too much is waiting, not counting the first message.
    fn is_full(&self) -> bool {
        let first = self.envelopes.front().map_or(0, Packed::len);
        self.bytes > MOST + first
    }
}

impl Unsent {
    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Returns true if messages wait for a peer, so that the next one has to wait, too.
    pub(super) fn waits_for(&self, peer: Peer) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Returns true if so much waits for a peer that it is not served any more.
    pub(super) fn is_full(&self, peer: Peer) -> bool {
        self.peers.get(&peer).is_some_and(Waiting::is_full)
    }

    /// Returns the slow peers, if they have changed since the last call.
    pub(super) fn who_is_slow(&mut self) -> Option<BTreeSet<Peer>> {
        std::mem::take(&mut self.has_news).then(|| self.slow.clone())
    }

    /// Queues a message that a peer has not taken. Returns `false`, and drops the message, if too
    /// much is already waiting for the peer.
    #[must_use]
    pub(super) fn push(&mut self, to: Peer, envelope: Packed) -> bool {
        if self.is_full(to) {
            return false;
        }
        let waiting = self.peers.entry(to).or_default();
        waiting.bytes += envelope.len() + EACH;
        waiting.envelopes.push_back(envelope);
        if waiting.bytes > SLOW {
            self.has_news |= self.slow.insert(to);
        }
        true
    }

    /// Forgets a peer that is gone.
    pub(super) fn forget(&mut self, peer: Peer) {
        self.peers.remove(&peer);
        self.has_news |= self.slow.remove(&peer);
    }

    /// Retries the waiting messages in order, for each peer up to the first one that is not taken.
    pub(super) fn try_again(&mut self, mut is_taken: impl FnMut(Peer, &Packed) -> bool) {
        self.peers.retain(|&to, waiting| {
            while let Some(envelope) = waiting.envelopes.front() {
                if !is_taken(to, envelope) {
                    return true;
                }
                waiting.bytes -= envelope.len() + EACH;
                waiting.envelopes.pop_front();
            }
            false
        });
        let before = self.slow.len();
        let peers = &self.peers;
        let is_slow = |peer: &Peer| peers.get(peer).is_some_and(|waiting| waiting.bytes > SLOW);
        self.slow.retain(is_slow);
        self.has_news |= self.slow.len() != before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_takes_nothing_is_full_and_one_that_takes_again_is_not() {
        let (deaf, other) = (Peer(1), Peer(2));
        let mut unsent = Unsent::default();
        let envelope = |number: u8| Packed::of_bytes(vec![number; 1 << 20]);
        let mut pushed = 0;
        while unsent.push(deaf, envelope(pushed)) {
            pushed += 1;
        }
        assert!((17..=18).contains(&pushed), "{pushed}");
        assert!(unsent.is_full(deaf));
        let kept = unsent.peers[&deaf].bytes;
        assert!(!unsent.push(deaf, Packed::of_bytes(Vec::new())));
        assert_eq!(
            unsent.peers[&deaf].bytes, kept,
            "what is refused is not kept"
        );
        assert!(unsent.waits_for(deaf) && !unsent.waits_for(other) && !unsent.is_full(other));
        // Small messages count, too.
        let mut small = 0;
        while unsent.push(other, Packed::of_bytes(Vec::new())) {
            small += 1;
        }
        assert!(small <= MOST / EACH + 1, "{small}");
        unsent.forget(other);
        let mut taken = Vec::new();
        unsent.try_again(|_, envelope| {
            taken.push(envelope.bytes()[0]);
            taken.len() < 5
        });
        assert_eq!(taken, [0, 1, 2, 3, 4], "the fifth was not taken");
        assert!(!unsent.is_full(deaf) && unsent.waits_for(deaf));
        unsent.try_again(|_, _| true);
        assert!(unsent.is_empty());
    }

    /// A stopped peer gets more than one long message when it continues, and is slow until it has
    /// taken them.
    #[test]
    fn long_letters_make_a_peer_slow_before_it_has_too_much() {
        let (stopped, other) = (Peer(1), Peer(2));
        let mut unsent = Unsent::default();
        assert!(unsent.push(other, Packed::of_bytes(vec![0; 1000])));
        assert_eq!(unsent.who_is_slow(), None);
        assert!(unsent.push(stopped, Packed::of_bytes(vec![1; 40 << 20])));
        assert_eq!(unsent.who_is_slow(), Some(BTreeSet::from([stopped])));
        assert!(!unsent.is_full(stopped), "it may ask");
        assert!(unsent.push(stopped, Packed::of_bytes(vec![2; 40 << 20])));
        assert_eq!(unsent.who_is_slow(), None, "nothing new");
        assert!(unsent.is_full(stopped));
        assert!(!unsent.push(stopped, Packed::of_bytes(vec![3; 1])));
        unsent.try_again(|_, envelope| envelope.bytes()[0] == 1);
        assert_eq!(unsent.who_is_slow(), None);
        unsent.try_again(|_, _| true);
        assert_eq!(unsent.who_is_slow(), Some(BTreeSet::new()));
        assert!(unsent.push(stopped, Packed::of_bytes(vec![1; 2 << 20])));
        assert!(unsent.who_is_slow().is_some());
        unsent.forget(stopped);
        assert_eq!(unsent.who_is_slow(), Some(BTreeSet::new()));
    }
}
