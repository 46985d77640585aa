//! What everybody takes of the coordinator's own memory, as sums that are always up to date.
//!
//! Whatever a peer has opened, asked or committed and that stays here has a [`Charge`], which counts for that peer as long as it
//! exists. So whether somebody may have more is one look-up, however much there is, and nothing that is dropped stays counted.

use super::{Fault, Peer, StreamId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// Most that one process may cost, and all of them together, in bytes.
const MOST_OF_ONE: u64 = 64 << 20;
const MOST_OF_ALL: u64 = 1 << 30;

/// The sums. Clones are the same ledger.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Rc<RefCell<Sums>>);

#[derive(Debug, Default)]
struct Sums {
    /// Of those who have something.
    peers: BTreeMap<Peer, Own>,
    all: u64,
    /// The streams in which somebody waits for less, and whether there was less since they were asked for.
    waiting: BTreeSet<StreamId>,
    is_less: bool,
}

/// What a peer has here, and what of it is in steps.
#[derive(Debug, Default)]
struct Own {
    bytes: u64,
    steps: u64,
}

impl Ledger {
    /// Counts so many bytes for that peer, until the charge is dropped. Whether it may have them was found out before.
    pub(super) fn charge(&self, peer: Peer, bytes: u64) -> Charge {
        self.charge_as(peer, bytes, false)
    }

    /// The same for its part of a step, which comes free when nobody needs the step any more.
    pub(super) fn charge_step(&self, peer: Peer, bytes: u64) -> Charge {
        self.charge_as(peer, bytes, true)
    }

    fn charge_as(&self, peer: Peer, bytes: u64, is_step: bool) -> Charge {
        let mut sums = self.0.borrow_mut();
        let own = sums.peers.entry(peer).or_default();
        own.bytes += bytes;
        own.steps += u64::from(is_step);
        sums.all += bytes;
        Charge {
            ledger: self.clone(),
            peer,
            bytes,
            is_step,
        }
    }

    /// Whether a peer has parts of steps here, of whichever stream.
    pub(super) fn has_steps(&self, peer: Peer) -> bool {
        let sums = self.0.borrow();
        sums.peers.get(&peer).is_some_and(|own| own.steps > 0)
    }

    /// In that stream somebody waits until there is less.
    pub(super) fn wait(&self, stream: StreamId) {
        self.0.borrow_mut().waiting.insert(stream);
    }

    /// The streams in which somebody has waited, if there is less than when it was asked last: these look again.
    pub(super) fn who_may_look_again(&self) -> BTreeSet<StreamId> {
        let mut sums = self.0.borrow_mut();
        match std::mem::take(&mut sums.is_less) {
            true => std::mem::take(&mut sums.waiting),
            false => BTreeSet::new(),
        }
    }

    /// Whether what a peer has here may be so much more, and what all peers have.
    ///
    /// # Errors
    /// [`Fault::TooMuchOpen`], of the process or of the domain.
    pub(super) fn check(&self, peer: Peer, more: u64) -> Result<(), Fault> {
        self.check_within(peer, more, 1)
    }

    /// As [`Ledger::check`], for what a peer was let begin and comes to more than was expected: there is as much again for that.
    pub(super) fn check_begun(&self, peer: Peer, more: u64) -> Result<(), Fault> {
        self.check_within(peer, more, 2)
    }

    /// Whether a peer could ever have that, if it had nothing else.
    pub(super) fn is_possible(more: u64) -> bool {
        more <= MOST_OF_ONE
    }

    fn check_within(&self, peer: Peer, more: u64, times: u64) -> Result<(), Fault> {
        let sums = self.0.borrow();
        let of = |of: &str, bytes: u64, most| match bytes.saturating_add(more) {
            bytes if bytes > most => Err(Fault::TooMuchOpen {
                of: of.to_owned(),
                bytes,
                most,
            }),
            _ => Ok(()),
        };
        let own = sums.peers.get(&peer).map_or(0, |own| own.bytes);
        of("this process", own, times * MOST_OF_ONE)?;
        // Streams outlive those who opened them.
        of("the domain", sums.all, times * MOST_OF_ALL)
    }
}

/// Bytes that count for a peer as long as this exists.
pub(super) struct Charge {
    ledger: Ledger,
    peer: Peer,
    bytes: u64,
    is_step: bool,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut sums = self.ledger.0.borrow_mut();
        sums.all -= self.bytes;
        sums.is_less = true;
        if let Some(own) = sums.peers.get_mut(&self.peer) {
            own.bytes -= self.bytes;
            own.steps -= u64::from(self.is_step);
            if own.bytes == 0 {
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
        let sums = ledger.0.borrow();
        assert!(sums.peers.is_empty() && sums.all == 0, "{sums:?}");
    }

    #[test]
    fn who_waits_looks_again_when_there_is_less() {
        let ledger = Ledger::default();
        let (one, two) = (ledger.charge_step(ONE, 10), ledger.charge(ONE, 10));
        ledger.wait(StreamId(7));
        assert!(ledger.who_may_look_again().is_empty());
        assert!(ledger.has_steps(ONE) && !ledger.has_steps(OTHER));
        drop(one);
        assert!(!ledger.has_steps(ONE));
        assert_eq!(ledger.who_may_look_again(), BTreeSet::from([StreamId(7)]));
        drop(two);
        assert!(ledger.who_may_look_again().is_empty(), "nobody waits");
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
        assert!(ledger.check(ONE, u64::MAX).is_err());
        // What was let begin may become more, there, too.
        assert_eq!(ledger.check_begun(ONE, MOST_OF_ONE), Ok(()));
        assert!(ledger.check_begun(ONE, MOST_OF_ALL + 1).is_err());
    }
}
