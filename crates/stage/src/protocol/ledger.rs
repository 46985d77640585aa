//! How much of the coordinator's own memory each peer uses, as sums that are always up to date.
//!
//! Everything that a peer has opened, requested or committed, and that is stored here, has a
//! [`Charge`], which counts for that peer as long as it exists. So a check whether a peer may have
//! more is one look-up, whatever the number of entries, and nothing that was dropped stays counted.
//!
//! Answers are not stored, but all answers of one event exist before the first is sent. So these
//! are counted as well ([`Ledger::say`]), over all streams. When none are left, the remaining
//! requests are answered in the next event.

use super::{Fault, Peer, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum bytes that one process may use, and all of them together. Steps and waits that were
/// already admitted may use up to twice as much.
const MOST_OF_ONE: u64 = 64 << 20;
const MOST_OF_ALL: u64 = 1 << 30;

/// Maximum bytes of the answers of one event, except for the last one; and the minimum that counts
/// for each, because it may contain names.
const MOST_SAID: u64 = 16 << 20;
const LEAST_SAID: u64 = 16 << 10;

/// The sums. Clones share one ledger.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<Sums>>);

#[derive(Debug, Default)]
struct Sums {
    /// The peers that use memory.
    peers: BTreeMap<Peer, Own>,
    all: u64,
    /// The streams in which a request waits for memory, and whether any was freed since they were
    /// last returned.
    waiting: BTreeSet<StreamId>,
    is_less: bool,
    /// Bytes in answers of this event.
    said: u64,
}

/// The bytes of a peer, and how many steps hold a part of it, by stream.
#[derive(Debug, Default)]
struct Own {
    bytes: u64,
    steps: BTreeMap<StreamId, u64>,
}

impl Ledger {
    /// Locks the sums. No code panics while a sum is incomplete, so a poisoned lock is safe to use.
    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `bytes` for the peer until the charge is dropped. The caller has checked the limits.
    pub(super) fn charge(&self, peer: Peer, bytes: u64) -> Charge {
        self.charge_as(peer, bytes, None)
    }

    /// As [`charge`](Self::charge), for the peer's part of a step of the stream, which is freed
    /// when the step is no longer needed.
    pub(super) fn charge_step(&self, peer: Peer, stream: StreamId, bytes: u64) -> Charge {
        self.charge_as(peer, bytes, Some(stream))
    }

    fn charge_as(&self, peer: Peer, bytes: u64, step_of: Option<StreamId>) -> Charge {
        let mut sums = self.sums();
        let own = sums.peers.entry(peer).or_default();
        own.bytes += bytes;
        if let Some(stream) = step_of {
            *own.steps.entry(stream).or_default() += 1;
        }
        sums.all += bytes;
        Charge {
            ledger: self.clone(),
            peer,
            bytes,
            step_of,
        }
    }

    /// Returns the streams that store steps with a part of this peer.
    pub(super) fn streams_of(&self, peer: Peer) -> Vec<StreamId> {
        let sums = self.sums();
        let own = sums.peers.get(&peer);
        own.into_iter()
            .flat_map(|own| own.steps.keys().copied())
            .collect()
    }

    /// Returns the peers that have parts of stored steps of this stream.
    pub(super) fn writers_of(&self, stream: StreamId) -> Vec<Peer> {
        let sums = self.sums();
        let has = sums
            .peers
            .iter()
            .filter(|(_, own)| own.steps.contains_key(&stream));
        has.map(|(&peer, _)| peer).collect()
    }

    /// Returns true if a peer could have `more` after the steps that are stored now are freed.
    pub(super) fn may_have(&self, peer: Peer, more: u64) -> bool {
        let sums = self.sums();
        let has_steps = |peer| {
            sums.peers
                .get(peer)
                .is_some_and(|own| !own.steps.is_empty())
        };
        let own = sums.own(peer, more) <= MOST_OF_ONE || has_steps(&peer);
        let all = sums.all(more) <= MOST_OF_ALL || sums.peers.keys().any(has_steps);
        Self::is_possible(more) && own && all
    }

    /// Begins an event, without any answers yet.
    pub(super) fn begin_event(&self) {
        self.sums().said = 0;
    }

    /// Counts an answer of `bytes`, or of the minimum.
    pub(super) fn say(&self, bytes: u64) {
        let mut sums = self.sums();
        sums.said = sums.said.saturating_add(bytes.max(LEAST_SAID));
    }

    /// Returns the number of short answers that this event may still have.
    pub(super) fn answers_left(&self) -> usize {
        let left = MOST_SAID.saturating_sub(self.sums().said);
        left.div_ceil(LEAST_SAID) as usize
    }

    /// Notes that a request of this stream waits for memory.
    pub(super) fn wait(&self, stream: StreamId) {
        self.sums().waiting.insert(stream);
    }

    /// If memory was freed since the last call, returns the streams with waiting requests, which
    /// then retry.
    pub(super) fn who_may_look_again(&self) -> BTreeSet<StreamId> {
        let mut sums = self.sums();
        match std::mem::take(&mut sums.is_less) {
            true => std::mem::take(&mut sums.waiting),
            false => BTreeSet::new(),
        }
    }

    /// Checks that a peer, and all peers together, may use `more`.
    ///
    /// # Errors
    /// [`Fault::TooMuchOpen`], which names the process or the domain.
    pub(super) fn check(&self, peer: Peer, more: u64) -> Result<(), Fault> {
        self.check_own(peer, more)?;
        self.check_all(more)
    }

    /// Checks the limit of the peer alone.
    pub(super) fn check_own(&self, peer: Peer, more: u64) -> Result<(), Fault> {
        within("this process", self.sums().own(peer, more), MOST_OF_ONE)
    }

    /// Checks the limit of all peers together.
    pub(super) fn check_all(&self, more: u64) -> Result<(), Fault> {
        // Streams outlive the processes that opened them.
        within("the domain", self.sums().all(more), MOST_OF_ALL)
    }

    /// As [`Ledger::check`], for something already admitted that turns out larger than expected:
    /// its limits are twice as high.
    pub(super) fn check_begun(&self, peer: Peer, more: u64) -> Result<(), Fault> {
        let sums = self.sums();
        within("this process", sums.own(peer, more), 2 * MOST_OF_ONE)?;
        within("the domain", sums.all(more), 2 * MOST_OF_ALL)
    }

    /// As [`Ledger::check`], but if the excess is due to steps that are freed once they are read,
    /// the limits are twice as high.
    pub(super) fn check_beside_steps(&self, peer: Peer, more: u64) -> Result<(), Fault> {
        let checked = self.check(peer, more);
        match self.may_have(peer, more) {
            true => checked.or_else(|_| self.check_begun(peer, more)),
            false => checked,
        }
    }

    /// Returns true if a peer could ever use that much, with nothing else in use.
    pub(super) fn is_possible(more: u64) -> bool {
        more <= MOST_OF_ONE
    }
}

impl Sums {
    /// Returns the bytes of a peer, plus `more`.
    fn own(&self, peer: Peer, more: u64) -> u64 {
        let own = self.peers.get(&peer).map_or(0, |own| own.bytes);
        own.saturating_add(more)
    }

    /// Returns the bytes of all peers, plus `more`.
    fn all(&self, more: u64) -> u64 {
        self.all.saturating_add(more)
    }
}

fn within(of: &str, bytes: u64, most: u64) -> Result<(), Fault> {
    match bytes <= most {
        true => Ok(()),
        false => Err(Fault::TooMuchOpen {
            of: of.to_owned(),
            bytes,
            most,
        }),
    }
}

/// Bytes that count for a peer as long as this exists.
pub(super) struct Charge {
    ledger: Ledger,
    peer: Peer,
    bytes: u64,
    step_of: Option<StreamId>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut sums = self.ledger.sums();
        sums.all -= self.bytes;
        sums.is_less |= self.bytes > 0;
        if let Some(own) = sums.peers.get_mut(&self.peer) {
            own.bytes -= self.bytes;
            if let Some(stream) = self.step_of
                && let Some(steps) = own.steps.get_mut(&stream)
            {
                *steps -= 1;
                if *steps == 0 {
                    own.steps.remove(&stream);
                }
            }
            if own.bytes == 0 && own.steps.is_empty() {
                sums.peers.remove(&self.peer);
            }
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes, self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Peer = Peer(1);
    const OTHER: Peer = Peer(2);

    #[test]
    fn what_is_dropped_is_given_back() {
        let ledger = Ledger::default();
        let half = ledger.charge(ONE, MOST_OF_ONE / 2);
        let rest = ledger.charge(ONE, MOST_OF_ONE / 2);
        let Err(Fault::TooMuchOpen { bytes, most, .. }) = ledger.check(ONE, 1) else {
            panic!("there is no room");
        };
        assert_eq!((bytes, most), (MOST_OF_ONE + 1, MOST_OF_ONE));
        assert_eq!(ledger.check(OTHER, MOST_OF_ONE), Ok(()));
        drop(half);
        assert_eq!(ledger.check(ONE, MOST_OF_ONE / 2), Ok(()));
        assert!(ledger.check(ONE, MOST_OF_ONE / 2 + 1).is_err());
        drop(rest);
        let sums = ledger.sums();
        assert!(sums.peers.is_empty() && sums.all == 0, "{sums:?}");
    }

    #[test]
    fn who_waits_looks_again_when_there_is_less() {
        let ledger = Ledger::default();
        let stream = StreamId(3);
        let (one, two) = (ledger.charge_step(ONE, stream, 10), ledger.charge(ONE, 10));
        ledger.wait(StreamId(7));
        drop(ledger.charge(ONE, 0));
        assert!(ledger.who_may_look_again().is_empty());
        assert_eq!(ledger.streams_of(ONE), [stream]);
        assert_eq!(ledger.writers_of(stream), [ONE]);
        assert!(ledger.may_have(ONE, MOST_OF_ONE) && !ledger.may_have(ONE, MOST_OF_ONE + 1));
        drop(one);
        assert_eq!(
            (ledger.streams_of(ONE), ledger.writers_of(stream)),
            (vec![], vec![])
        );
        assert!(!ledger.may_have(ONE, MOST_OF_ONE), "nothing goes");
        assert_eq!(ledger.who_may_look_again(), BTreeSet::from([StreamId(7)]));
        drop(two);
        assert!(ledger.who_may_look_again().is_empty(), "nobody waits");
    }

    #[test]
    fn an_event_has_so_many_answers() {
        let ledger = Ledger::default();
        assert_eq!(ledger.answers_left(), 1024);
        ledger.say(10);
        assert_eq!(ledger.answers_left(), 1023);
        ledger.say(MOST_SAID);
        assert_eq!(ledger.answers_left(), 0);
        ledger.begin_event();
        assert_eq!(ledger.answers_left(), 1024);
    }

    #[test]
    fn all_together_have_a_limit() {
        let ledger = Ledger::default();
        let peers = MOST_OF_ALL / MOST_OF_ONE;
        let charges = (0..peers).map(|peer| ledger.charge(Peer(10 + peer), MOST_OF_ONE));
        let _charges: Vec<Charge> = charges.collect();
        assert_eq!(ledger.check(ONE, 0), Ok(()));
        let Err(Fault::TooMuchOpen { of, .. }) = ledger.check(ONE, 1) else {
            panic!("there is no room");
        };
        assert_eq!(of, "the domain");
        assert!(!ledger.may_have(ONE, 1), "nothing goes");
        let step = ledger.charge_step(OTHER, StreamId(1), 1);
        assert!(ledger.may_have(ONE, 1), "a step of somebody else");
        drop(step);
        assert!(ledger.check(ONE, u64::MAX).is_err());
        // Also here, what was already admitted may grow.
        assert_eq!(ledger.check_begun(ONE, MOST_OF_ONE), Ok(()));
        assert!(ledger.check_begun(ONE, MOST_OF_ALL + 1).is_err());
    }
}
