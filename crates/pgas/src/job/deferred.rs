//! Parts that this unit has dropped while other members may still use them.
//!
//! A unit that drops a segment does not know which units still use its part. So the part stays,
//! offered as before, until
//! * all members have dropped theirs: whenever some members allocate together, each announces which
//!   parts it has dropped. A part whose number this unit is announcing stays until the exchange is
//!   over, so that the number is not reused for another segment before the last member has received
//!   it;
//! * or the end of this unit's [`crate::Pgas`], which comes after that of all others.
//!
//! [`crate::Segment::free`] synchronises with the others and needs neither.

use super::own::Own;
use crate::Result;
use parking_lot::Mutex;
use samite_fabric::PeerId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// This unit's part of a segment whose other parts may still be in use. If it is dropped, freeing
/// it is deferred.
#[derive(Debug)]
pub(crate) struct OwnPart {
    own: Option<Own>,
    /// The members.
    peers: Arc<[PeerId]>,
    left: Arc<DeferredFrees>,
    /// No member uses it any more.
    unused: AtomicBool,
}

impl OwnPart {
    pub(crate) fn new(own: Own, left: &Arc<DeferredFrees>, peers: &Arc<[PeerId]>) -> OwnPart {
        OwnPart {
            own: Some(own),
            peers: peers.clone(),
            left: left.clone(),
            unused: AtomicBool::new(false),
        }
    }

    /// Lets the part be freed as soon as it is dropped: all members have synchronised since they
    /// last used it.
    pub(crate) fn nobody_uses_it(&self) {
        // ORDERING: Relaxed: it is read in `drop`, which comes after all uses.
        self.unused.store(true, Ordering::Relaxed);
    }

    /// Returns true if it is registered memory.
    pub(crate) fn is_registered(&self) -> bool {
        self.own.as_ref().is_some_and(Own::is_registered)
    }

    /// Takes the memory out, for another phase.
    pub(crate) fn take(mut self) -> Option<Own> {
        self.own.take()
    }
}

impl Drop for OwnPart {
    fn drop(&mut self) {
        if let Some(own) = self.own.take().filter(|_| !*self.unused.get_mut()) {
            self.left.add(own, &self.peers);
        }
    }
}

/// The parts whose freeing this unit has deferred.
#[derive(Debug, Default)]
pub(crate) struct DeferredFrees(Mutex<Deferred>);

#[derive(Debug, Default)]
struct Deferred {
    parts: Vec<Part>,
    /// All units have ended.
    is_over: bool,
}

#[derive(Debug)]
struct Part {
    own: Own,
    /// The members.
    peers: Arc<[PeerId]>,
    /// How many threads are announcing it to others.
    told_by: u32,
    /// All members have dropped theirs.
    is_unused: bool,
}

impl DeferredFrees {
    fn add(&self, own: Own, peers: &Arc<[PeerId]>) {
        let mut left = self.0.lock();
        if peers.len() > 1 && !left.is_over {
            left.parts.push(Part {
                own,
                peers: peers.clone(),
                told_by: 0,
                is_unused: false,
            });
        }
    }

    /// Announces to the members of a team which parts this unit has dropped, receives the same from
    /// them, and frees the parts that all of their members have dropped. `exchange` sends the
    /// numbers of the parts, as bits in `words` words, and returns what it receives.
    /// `has_left(heard, peer, number)` returns true if a peer has dropped a part.
    pub(crate) fn exchange(
        &self,
        words: usize,
        exchange: impl FnOnce(&[u64]) -> Result<Vec<u64>>,
        has_left: impl Fn(&[u64], PeerId, u32) -> bool,
    ) -> Result<Vec<u64>> {
        let mut numbers = vec![0; words];
        for part in &mut self.0.lock().parts {
            let number = part.own.key().segment;
            numbers[number as usize / 64] |= 1 << (number % 64);
            part.told_by += 1;
        }
        let told = Told {
            left: self,
            numbers,
        };
        let heard = exchange(&told.numbers)?;
        for part in &mut self.0.lock().parts {
            let number = part.own.key().segment;
            let all_left = || {
                part.peers
                    .iter()
                    .all(|peer| has_left(&heard, *peer, number))
            };
            part.is_unused |= told.has(number) && all_left();
        }
        Ok(heard)
    }

    /// Returns the peers with which this unit shares deferred parts.
    pub(crate) fn peers(&self) -> Vec<PeerId> {
        let left = self.0.lock();
        let all = left
            .parts
            .iter()
            .flat_map(|part| part.peers.iter().copied());
        let mut all: Vec<PeerId> = all.collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Frees everything, now and later, because all units have ended.
    pub(crate) fn end(&self) {
        let mut left = self.0.lock();
        left.is_over = true;
        left.parts.clear();
    }
}

/// The numbers of the parts that a thread is announcing. When it is dropped, also by a panic, those
/// that nobody uses are freed.
struct Told<'d> {
    left: &'d DeferredFrees,
    numbers: Vec<u64>,
}

impl Told<'_> {
    /// Returns true if this is one of the numbers: the part is still the one that had it before.
    fn has(&self, number: u32) -> bool {
        self.numbers[number as usize / 64] >> (number % 64) & 1 == 1
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.left.0.lock().parts.retain_mut(|part| {
            part.told_by -= u32::from(self.has(part.own.key().segment));
            part.told_by > 0 || !part.is_unused
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::{Config, Fabric, Identity};
    use samite_testkit::{Outcome, check};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// Two threads announce a part at the same time, and one of them learns that all members have
    /// dropped it. The other one is still announcing its number.
    #[test]
    fn a_number_is_not_used_again_while_it_is_told() -> Outcome {
        let fabric = Fabric::alone(Identity::by_hand("leave"), Config::default())?;
        let is_free = |number: u32| fabric.free_segments()[0] >> number & 1 == 1;
        let left = DeferredFrees::default();
        let peers: Arc<[PeerId]> = [fabric.me(), PeerId(7)].into();
        for number in [3, 4] {
            left.add(Own::Phased(fabric.allocate_phased(number, 64)?), &peers);
        }
        let words = fabric.free_segments().len();
        let exchange = |has_left: &dyn Fn(PeerId, u32) -> bool| {
            let has_left = |_: &[u64], peer, number| has_left(peer, number);
            left.exchange(words, |_| Ok(Vec::new()), has_left)
        };
        let late = |_: &[u64]| {
            exchange(&|_, number| number == 3)?;
            assert!(!is_free(3), "another thread is telling its number");
            Ok(Vec::new())
        };
        left.exchange(words, late, |_, _, _| false)?;
        let panics = |_: &[u64]| resume_unwind(Box::new("a handler"));
        let told = || left.exchange(words, panics, |_, _, _| false);
        check!(catch_unwind(AssertUnwindSafe(told)).is_err());
        check!(is_free(3) && !is_free(4));
        exchange(&|peer, _| peer == fabric.me())?;
        check!(!is_free(4), "a member has not left it");
        exchange(&|_, _| true)?;
        check!(is_free(4));
        Ok(())
    }
}
