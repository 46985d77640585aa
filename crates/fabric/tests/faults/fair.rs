//! One peer talks all the time: the others are heard all the same.

use samite_fabric::{Fabric, Match, PeerId};
use samite_testkit::{Outcome, Who, check, pause, point, same, units};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// As many messages as fit into a ring at once.
const FULL: u64 = 150;
const ECHO: u16 = 1;

/// Two rings are full when the receiver takes its first message, and it takes one at a time:
/// whichever ring it began with, the other one gets its turn, and so does the request that is in
/// it.
#[test]
fn a_full_ring_does_not_hide_another() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let served = Arc::new(AtomicU32::new(0u32));
        let serve = served.clone();
        fabric.on(ECHO, move |_, bytes| {
            serve.fetch_add(1, Ordering::Relaxed);
            Some(bytes.to_vec())
        });
        fabric.barrier(members)?;
        if fabric.me() != members[0] {
            let say = |numbers: Range<u64>| -> Outcome {
                for number in numbers {
                    fabric.send(members[0], 1, &number.to_le_bytes())?;
                }
                Ok(())
            };
            say(0..FULL / 6)?;
            let request = fabric.request(members[0], ECHO, b"me, too")?;
            say(FULL / 6..FULL)?;
            point("said");
            same!(request.wait()?, b"me, too");
            return Ok(fabric.barrier(members)?);
        }
        pause("full");
        let mut taken = [0; 2];
        for number in 0..2 * FULL {
            let mut bytes = [0; 8];
            let status = fabric.recv(Match::any(1), &mut bytes)?;
            let from = (status.from != members[1]) as usize;
            same!(u64::from_le_bytes(bytes), taken[from]);
            taken[from] += 1;
            let all = taken.iter().all(|count| *count > 0);
            check!(all || number < 10, "after {number} messages: {taken:?}");
            let both = served.load(Ordering::Relaxed) == 2;
            check!(
                both || number < FULL,
                "after {number} messages: {served:?} requests"
            );
        }
        Ok(fabric.barrier(members)?)
    };
    units(3).orchestrate("fair::a_full_ring_does_not_hide_another", body, |cluster| {
        cluster.wait_point(Who::Unit(0), "full");
        cluster.wait_point(Who::Unit(1), "said");
        cluster.wait_point(Who::Unit(2), "said");
        cluster.release(Who::Unit(0));
    });
}
