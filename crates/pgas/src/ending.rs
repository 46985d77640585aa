//! The end of global memory: a unit does not leave while others may still access its memory.

use crate::Result;
use crate::job::{Job, Members};
use crate::waited::tell_all;
use parking_lot::Mutex;
use samite_fabric::PeerId;
use std::collections::HashMap;
use std::sync::Arc;

/// The active message of a unit that ends. It carries the life.
const ENDED: u16 = 0xd501;

/// The members that have reported their end to this unit, with the life of their last report.
#[derive(Debug, Default)]
pub(crate) struct Ended(Arc<Mutex<HashMap<PeerId, u64>>>);

impl Ended {
    /// Starts to receive reports of members that end. One may report before this unit knows the
    /// number of the life.
    pub(crate) fn listen(members: &Members) -> Ended {
        let ended = Ended::default();
        let (kept, peers) = (ended.0.clone(), members.peers().to_vec());
        members.fabric().on(ENDED, move |from, bytes| {
            if let Some((life, [])) = bytes.split_first_chunk()
                && peers.contains(&from)
            {
                kept.lock().insert(from, u64::from_le_bytes(*life));
            }
            None
        });
        ended
    }

    /// Ends without a collective, if some members are lost: tells all members, since any may wait
    /// for this unit, and waits until each of those that may still use memory of this unit has
    /// reported its own end or is lost.
    pub(crate) fn leave_one_by_one(&self, job: &Job) -> Result<()> {
        let mut others = job.left.peers();
        others.retain(|peer| *peer != job.fabric.me());
        tell_all(&job.fabric, &job.peers, ENDED, &job.life.to_le_bytes());
        let still_there = |peer: &PeerId| {
            // Lock order: handlers run under the engine's lock and take this one, so release it
            // before using the fabric.
            let has_ended = self.0.lock().get(peer) == Some(&job.life);
            !has_ended && job.lost(*peer).is_none()
        };
        let step = || {
            others.retain(still_there);
            others.is_empty().then_some(())
        };
        Ok(job.wait_stepping("the end of the other units", &[], step, || false)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::Pgas;
    use samite_fabric::Match;
    use samite_testkit::{check, simulate};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// Unit 2 is lost. Unit 0 waits for the end of unit 1, with which it shares a part. Unit 1 has
    /// freed its own already, and tells unit 0 all the same.
    #[test]
    fn a_unit_that_shares_nothing_reports_its_end() {
        let name = "ending::tests::a_unit_that_shares_nothing_reports_its_end";
        simulate(name, 3, 0..8, |fabric, members| {
            let pgas = Pgas::new(fabric)?;
            let me = pgas.me().0;
            let few = pgas.world().split_by(u64::from(me == 2))?;
            let data = few.allocate::<u64>(10)?;
            pgas.world().barrier()?;
            match me {
                0 => {
                    drop((data, pgas));
                    fabric.send(members[1], 1, &[])?;
                }
                1 => {
                    data.release();
                    drop(pgas);
                    let soon = fabric.deadline() / 2;
                    let told = || fabric.recv(Match::from(members[0], 1), &mut []);
                    fabric.within(soon, told)?;
                }
                _ => {
                    let panics = AssertUnwindSafe(move || {
                        let _all = (few, data, pgas);
                        resume_unwind(Box::new(()));
                    });
                    check!(catch_unwind(panics).is_err());
                }
            }
            Ok(())
        });
    }
}
