//! The end of global memory: a unit does not leave while others may still be at its memory.

use crate::collective::Kind;
use crate::job::Job;
use crate::unfinished::while_unwinding;
use crate::{Pgas, Result};
use parking_lot::Mutex;
use samite_fabric::{Fabric, PeerId};
use std::sync::Arc;

/// The active message of a unit that ends: the life.
const ENDED: u16 = 0xd501;

/// Units that have ended, as far as this one has been told.
pub(crate) type Ended = Arc<Mutex<Vec<PeerId>>>;

/// Listens to who ends in this life.
pub(crate) fn listen(fabric: &Fabric, life: u32) -> Ended {
    let ended = Ended::default();
    let kept = ended.clone();
    fabric.on(ENDED, move |from, bytes| {
        let mut kept = kept.lock();
        if bytes == life.to_le_bytes() && !kept.contains(&from) {
            kept.push(from);
        }
        None
    });
    ended
}

impl Drop for Pgas {
    /// Waits for the other units to end, too; see [`Pgas`].
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::debug!("global memory is left by a panic, without waiting for the others");
            while_unwinding(|| self.job.unfinished.finish(&self.job.fabric));
        } else {
            self.end();
        }
        self.job.unfinished.end();
        self.job.left.end();
    }
}

impl Pgas {
    fn end(&self) {
        if let Err(error) = self.job.flush(None) {
            tracing::warn!(%error, "operations that nobody has waited for have failed");
        }
        let Err(error) = self.world().meet(Kind::End) else {
            return;
        };
        tracing::debug!(%error, "not all units end together");
        if let Err(error) = self.job.leave_one_by_one() {
            tracing::warn!(%error, "a unit is left that may still use the memory of this one");
        }
    }
}

impl Job {
    /// Where the units do not end together, since some are lost: tells those that this one shares memory with,
    /// and waits until each has told the same, or is lost.
    fn leave_one_by_one(&self) -> Result<()> {
        let mut others = self.left.peers();
        others.retain(|peer| *peer != self.fabric.me());
        let life = self.layer.life().to_le_bytes();
        for peer in &others {
            // Who is gone need not hear it.
            let _ = self.fabric.tell(*peer, ENDED, &life);
        }
        let still_there = |peer: &PeerId| {
            // Handlers run with the engine's lock, and take this one: not the other way round.
            let has_ended = self.ended.lock().contains(peer);
            !has_ended && self.fabric.lost(*peer).is_none()
        };
        let step = || {
            others.retain(still_there);
            others.is_empty().then_some(())
        };
        Ok(self.wait_stepping("the end of the other units", &[], step, || false)?)
    }
}
