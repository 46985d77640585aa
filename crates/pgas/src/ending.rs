//! The end of global memory: a unit does not leave while others may still access its memory.

use crate::Result;
use crate::job::Job;
use parking_lot::Mutex;
use samite_fabric::PeerId;
use std::sync::Arc;

/// The active message of a unit that ends. It carries the life.
const ENDED: u16 = 0xd501;

/// The units that have reported their end to this one.
#[derive(Debug, Default)]
pub(crate) struct Ended(Arc<Mutex<Vec<PeerId>>>);

impl Ended {
    /// Starts to receive reports of units that end in this life.
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

    /// Ends without a collective, if some units are lost: tells the peers that share memory with
    /// this unit, and waits until each has reported its own end or is lost.
    pub(crate) fn leave_one_by_one(&self, job: &Job) -> Result<()> {
        let mut others = job.left.peers();
        others.retain(|peer| *peer != job.fabric.me());
        let life = job.layer.life().to_le_bytes();
        for peer in &others {
            // A peer that is gone does not need the message.
            let _ = job.fabric.tell(*peer, ENDED, &life);
        }
        let still_there = |peer: &PeerId| {
            // Lock order: handlers run under the engine's lock and take this one, so release it
            // before using the fabric.
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
