//! The end of global memory: a unit does not leave while others may still be at its memory.

use crate::Result;
use crate::job::Job;
use parking_lot::Mutex;
use samite_fabric::PeerId;
use std::sync::Arc;

/// The active message of a unit that ends: the life.
const ENDED: u16 = 0xd501;

/// Units that have ended, as far as this one has been told.
#[derive(Debug, Default)]
pub(crate) struct Ended(Arc<Mutex<Vec<PeerId>>>);

impl Ended {
    /// Listens to who ends in this life.
    pub(crate) fn listen(job: &Job) -> Ended {
        let (ended, life) = (Ended::default(), job.layer.life());
        let kept = ended.0.clone();
        job.fabric.on(ENDED, move |from, bytes| {
            let mut kept = kept.lock();
            if bytes == life.to_le_bytes() && !kept.contains(&from) {
                kept.push(from);
            }
            None
        });
        ended
    }

    /// Where the units do not end together, since some are lost: tells those that this one shares
    /// memory with, and waits until each has told the same, or is lost.
    pub(crate) fn leave_one_by_one(&self, job: &Job) -> Result<()> {
        let mut others = job.left.peers();
        others.retain(|peer| *peer != job.fabric.me());
        let life = job.layer.life().to_le_bytes();
        for peer in &others {
            // Who is gone need not hear it.
            let _ = job.fabric.tell(*peer, ENDED, &life);
        }
        let still_there = |peer: &PeerId| {
            // Handlers run with the engine's lock, and take this one: not the other way round.
            let has_ended = self.0.lock().contains(peer);
            !has_ended && job.lost(*peer).is_none()
        };
        let step = || {
            others.retain(still_there);
            others.is_empty().then_some(())
        };
        Ok(job.wait_stepping("the end of the other units", &[], step, || false)?)
    }
}
