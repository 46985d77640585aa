//! One peer talks all the time: the others are heard all the same.

use samite_fabric::rpc::{Life, ServiceId};
use samite_fabric::{Fabric, Match, PeerId};
use samite_testkit::{ONE_NODE, Outcome, Who, check, pause, point, same, units};
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
    units(3).orchestrate(
        "faults::fair::a_full_ring_does_not_hide_another",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(0), "full");
            cluster.wait_point(Who::Unit(1), "said");
            cluster.wait_point(Who::Unit(2), "said");
            cluster.release(Who::Unit(0));
        },
    );
}

/// Runs `rounds` of `act` at the first member, which meanwhile does nothing else with the fabric.
/// The other member polls; each round begins when it has read all of the last one.
fn beside_a_reader(
    fabric: &Fabric,
    members: &[PeerId],
    rounds: u32,
    mut act: impl FnMut() -> Outcome,
) -> Outcome {
    let (acts, me) = (members[0], fabric.me());
    let segment = fabric.allocate(16)?;
    let (polls, ended) = (segment.bytes().u64(0), segment.bytes().u64(8));
    if me == acts {
        fabric.send(members[1], 100, &segment.key().to_bytes())?;
        fabric.recv(Match::from(members[1], 101), &mut [])?;
        let acted = (0..rounds).try_for_each(|_| {
            act()?;
            let all_read = polls.load(Ordering::Acquire) + 40;
            while polls.load(Ordering::Acquire) < all_read {
                std::thread::yield_now();
            }
            Ok(())
        });
        // Also after an error, which the test then reports.
        ended.store(1, Ordering::Release);
        return acted;
    }
    let mut key = [0; 24];
    fabric.recv(Match::from(acts, 100), &mut key)?;
    let remote = fabric.attach(samite_fabric::SegmentKey::from_bytes(&key))?;
    let Some(words) = remote.mapped() else {
        return Err(samite_testkit::Failed::new("it is not mapped"));
    };
    fabric.send(acts, 101, &[])?;
    while words.u64(8).load(Ordering::Acquire) == 0 {
        fabric.progress();
        words.u64(0).fetch_add(1, Ordering::Release);
    }
    Ok(())
}

/// A program that starts sends and cancels them, and does nothing else with the fabric, is not
/// taken for one that reads nothing.
#[test]
fn who_cancels_everything_is_not_shut_out() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        beside_a_reader(fabric, members, 60, || {
            for _ in 0..100 {
                fabric.isend(members[1], 1, vec![0; 128 << 10])?.cancel();
            }
            Ok(())
        })?;
        Ok(fabric.barrier(members)?)
    };
    units(2)
        .mask(ONE_NODE)
        .run("faults::fair::who_cancels_everything_is_not_shut_out", body);
}

/// Calls to a service that is busy, made one after the other without a look at the responses, all
/// end.
#[test]
fn calls_to_a_busy_service_end() {
    const CALLS: usize = 1500;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (service, deadline) = (ServiceId::COORDINATOR, fabric.deadline());
        let serves = fabric.me() == members[1];
        let server = serves.then(|| fabric.serve(service, 1));
        fabric.barrier(members)?;
        let unit = fabric.job_lives()?[1];
        let to = Life {
            peer: unit.peer,
            incarnation: unit.incarnation,
        };
        let mut calls = Vec::new();
        beside_a_reader(fabric, members, CALLS as u32 / 100, || {
            for _ in 0..100 {
                let bytes = |_| calls.len().to_le_bytes().to_vec();
                let call = fabric.call(service, to, deadline, bytes)?;
                calls.push(call);
            }
            Ok(())
        })?;
        for (number, mut call) in calls.into_iter().enumerate() {
            same!(call.wait(deadline, "a response")?, number.to_le_bytes());
        }
        let mut left = if serves { CALLS } else { 0 };
        while let Some(server) = server.as_ref().filter(|_| left > 0) {
            let taken = || {
                fabric.progress();
                server.take()
            };
            let asked = fabric.wait_stepping("a request", &members[..1], taken, || false)?;
            let id = asked.id.unwrap_or(0);
            server.respond(asked.from, id, &asked.bytes, deadline)?;
            left -= 1;
        }
        Ok(fabric.barrier(members)?)
    };
    units(2)
        .mask(ONE_NODE)
        .run("faults::fair::calls_to_a_busy_service_end", body);
}
