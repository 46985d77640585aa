//! Parts that this unit has dropped while others may still use them.
//!
//! A unit that drops a segment cannot know who is still at its part. So the part stays, offered as before, until
//! * all members have dropped theirs: each tells the others, when some of them allocate together, which it has
//!   dropped;
//! * or the end of this unit's [`crate::Pgas`], which comes after that of all others.
//!
//! [`crate::Segment::free`] meets the others, and needs neither.

use super::phase::Own;
use crate::job::Job;
use parking_lot::Mutex;
use samite_fabric::PeerId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// This unit's part of a segment whose other parts may be used by others. Dropped it is left behind.
#[derive(Debug)]
pub(crate) struct Kept {
    own: Option<Own>,
    /// The members.
    peers: Arc<[PeerId]>,
    job: Arc<Job>,
    /// Nobody uses it any more.
    unused: AtomicBool,
}

impl Kept {
    pub(super) fn new(own: Own, job: &Arc<Job>, peers: &Arc<[PeerId]>) -> Kept {
        Kept {
            own: Some(own),
            peers: peers.clone(),
            job: job.clone(),
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

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(own) = self.own.take().filter(|_| !*self.unused.get_mut()) {
            self.job.left.add(own, &self.peers);
        }
    }
}

/// What this unit has left behind.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    parts: Vec<(Own, Arc<[PeerId]>)>,
    /// All units have ended.
    is_over: bool,
}

impl LeftBehind {
    fn add(&self, own: Own, peers: &Arc<[PeerId]>) {
        let mut left = self.0.lock();
        if peers.len() > 1 && !left.is_over {
            left.parts.push((own, peers.clone()));
        }
    }

    /// The numbers of the parts, as bits of so many words.
    pub(super) fn numbers(&self, words: usize) -> Vec<u64> {
        let mut numbers = vec![0; words];
        for (own, _) in &self.0.lock().parts {
            let number = own.key().segment;
            if let Some(word) = numbers.get_mut(number as usize / 64) {
                *word |= 1 << (number % 64);
            }
        }
        numbers
    }

    /// Lets go of the parts that all their members have left. `has_left(peer, number)`: whether a peer says so;
    /// `None` of one that does not say anything.
    pub(super) fn let_go(&self, has_left: impl Fn(PeerId, u32) -> Option<bool>) {
        self.0.lock().parts.retain(|(own, peers)| {
            let number = own.key().segment;
            !peers
                .iter()
                .all(|peer| has_left(*peer, number) == Some(true))
        });
    }

    /// With whom this unit shares what it has left.
    pub(crate) fn peers(&self) -> Vec<PeerId> {
        let left = self.0.lock();
        let all = left
            .parts
            .iter()
            .flat_map(|(_, peers)| peers.iter().copied());
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
