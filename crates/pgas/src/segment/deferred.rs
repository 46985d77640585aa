//! Parts that this unit has dropped while others may still use them.
//!
//! A unit that drops a segment cannot know who is still at its part. So the part stays, offered as
//! before, until
//! * all members have dropped theirs: each tells the others, when some of them allocate together,
//!   which it has dropped. A part whose number this unit is telling stays until that is over, so
//!   that the number does not become that of another segment before the last member has heard of
//!   it;
//! * or the end of this unit's [`crate::Pgas`], which comes after that of all others.
//!
//! [`crate::Segment::free`] meets the others, and needs neither.

use super::own::Own;
use crate::Result;
use parking_lot::Mutex;
use samite_fabric::PeerId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// This unit's part of a segment whose other parts may be used by others. Dropped it is left
/// behind.
#[derive(Debug)]
pub(crate) struct OwnPart {
    own: Option<Own>,
    /// The members.
    peers: Arc<[PeerId]>,
    left: Arc<DeferredFrees>,
    /// Nobody uses it any more.
    unused: AtomicBool,
}

impl OwnPart {
    pub(super) fn new(own: Own, left: &Arc<DeferredFrees>, peers: &Arc<[PeerId]>) -> OwnPart {
        OwnPart {
            own: Some(own),
            peers: peers.clone(),
            left: left.clone(),
            unused: AtomicBool::new(false),
        }
    }

    /// All members have met since they used it last: it goes as soon as it is dropped.
    pub(crate) fn nobody_uses_it(&self) {
        // ORDERING: Relaxed: it is asked in `drop`, which comes after all uses.
        self.unused.store(true, Ordering::Relaxed);
    }

    /// Whether it is registered memory.
    pub(super) fn is_registered(&self) -> bool {
        self.own.as_ref().is_some_and(Own::is_registered)
    }

    /// Out of it, for another phase.
    pub(super) fn take(mut self) -> Option<Own> {
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

/// What this unit has left behind.
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
    /// How many threads are telling others of it.
    told_by: u32,
    /// All members have left theirs.
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

    /// Tells the members of a team what this unit has left, hears the same of them, and lets go of
    /// the parts that all their members have left. `exchange` tells the numbers of the parts, as
    /// bits of so many words, and returns what it hears; `has_left(heard, peer, number)`: whether a
    /// peer has left a part.
    pub(super) fn exchange(
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
        let heard = exchange(&numbers);
        self.0.lock().parts.retain_mut(|part| {
            let number = part.own.key().segment;
            // It is still the part that had the number before.
            if numbers[number as usize / 64] >> (number % 64) & 1 == 1 {
                part.told_by -= 1;
                let all_left = |heard: &Vec<u64>| {
                    let mut peers = part.peers.iter();
                    peers.all(|peer| has_left(heard, *peer, number))
                };
                part.is_unused |= heard.as_ref().is_ok_and(all_left);
            }
            part.told_by > 0 || !part.is_unused
        });
        heard
    }

    /// With whom this unit shares what it has left.
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

    /// All units have ended: everything goes, now and later.
    pub(crate) fn end(&self) {
        let mut left = self.0.lock();
        left.is_over = true;
        left.parts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::{Config, Fabric, Identity};
    use samite_testkit::{Outcome, check};

    /// Two threads tell of a part at the same time, and one of them hears that all have left it.
    /// The other one is still telling its number.
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
        check!(is_free(3) && !is_free(4));
        exchange(&|peer, _| peer == fabric.me())?;
        check!(!is_free(4), "a member has not left it");
        exchange(&|_, _| true)?;
        check!(is_free(4));
        Ok(())
    }
}
