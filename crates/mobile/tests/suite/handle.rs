//! The handle: what it refuses, and how calls end at their origin.

use crate::{begin, call, fails, failure, kernel, runs, self_bounded_limits};
use samite_fabric::{Fabric, Mask, Match, PeerId};
use samite_mobile::{
    CAPSULE_MAX, Capsule, Cause, Error, Function, Limits, Mobile, PAYLOAD_MAX, Processor,
};
use samite_testkit::{Cluster, Outcome, Who, check, pause, point, same, units};
use std::time::Duration;

fn misused(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    same!(Mobile::new(fabric).map(|_| ()), Err(Error::Second));
    mobile.define(
        "panics",
        Function::new(|_, payload| match payload.first() {
            None => Ok(()),
            Some(0) => panic!("on purpose"),
            Some(other) => panic!("with {other}"),
        }),
    );
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(Capsule::of_function("panics", ["run", "other"])?)?;
        let ended = call(&mobile, 5, &code, &[]).map(|_| ());
        same!(ended, Err(Error::NoUnit { unit: 5, units: 2 }));
        let ended = mobile.call(1, &code, "walk", &[]).map(|_| ());
        let entry = "walk".to_owned();
        let entries = "run, other".to_owned();
        same!(ended, Err(Error::NoEntry { entry, entries }));
        let long = vec![0; PAYLOAD_MAX as usize + 1];
        let (bytes, most) = (PAYLOAD_MAX + 1, PAYLOAD_MAX);
        let too_long = Err(Error::TooLong { bytes, most });
        same!(call(&mobile, 1, &code, &long).map(|_| ()), too_long);
        same!(mobile.send(1, &code, "run", &long), too_long);
        let ended = mobile.prefetch(&code, &[1, 9]).map(|_| ());
        same!(ended, Err(Error::NoUnit { unit: 9, units: 2 }));
        // The name is there, the function is not.
        let ended = mobile.call(1, &code, "other", &[])?.wait();
        fails(ended, Cause::Target)?;
        for (payload, text) in [(0, "on purpose"), (9, "with 9")] {
            let said = fails(call(&mobile, 1, &code, &[payload])?.wait(), Cause::Other)?;
            check!(said.contains(text), "{said}");
            // Also at this unit.
            fails(call(&mobile, 0, &code, &[payload])?.wait(), Cause::Other)?;
        }
        same!(call(&mobile, 1, &code, &[])?.wait()?, [0_u8; 0]);
        let huge = Capsule::builder(["run"]).elf(Processor::HERE, vec![0; CAPSULE_MAX as usize]);
        check!(matches!(huge.build(), Err(Error::BadCapsule(_))));
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(wrong_uses_are_refused, runs(2, misused));

/// Code that the unit runs itself: what a call leaves in its memory, the next one finds, unless
/// that call has failed.
fn ran_here(fabric: &Fabric, _: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let body = "(i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (i32.const 1)))
        (if (local.get $len) (then unreachable))
        (call $reply (i32.const 64) (i32.const 4))";
    let code = mobile.register(Capsule::from_wat(&kernel(body))?)?;
    let mut local = mobile.local(&code)?;
    for calls in [1_u32, 2] {
        same!(local.call(0, &[])?, calls.to_le_bytes());
    }
    for _ in 0..2 {
        let failed = local.call(0, &[1]).map(<[u8]>::to_vec);
        check!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
    }
    same!(local.call(0, &[])?, 1_u32.to_le_bytes());
    Ok(())
}

on_processes!(
    a_local_instance_is_not_used_after_a_failure,
    runs(1, ran_here)
);

/// Unit 1 computes: a call ends late, goes on all the same, and its answer harms no later call.
fn late(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        if fabric.identity().unit == 0 {
            let echo = "(call $reply (local.get $at) (local.get $len))";
            let code = mobile.register(Capsule::from_wat(&kernel(echo))?)?;
            pause("waits");
            let called = call(&mobile, 1, &code, b"late")?;
            let soon = Duration::from_millis(20);
            match called.wait_within(soon) {
                Err(Error::Late { entry, to, after }) => {
                    same!((&entry[..], after), ("run", soon));
                    check!(to.contains("unit.1"), "{to}");
                }
                other => check!(false, "{other:?}"),
            }
            drop(call(&mobile, 1, &code, b"dropped")?);
            point("late");
            for round in 0..20_u64 {
                let reply = call(&mobile, 1, &code, &round.to_le_bytes())?.wait()?;
                same!(reply, round.to_le_bytes());
            }
            fabric.send(members[1], 9, b"end")?;
        } else {
            pause("computes");
            fabric.recv_vec(Match::any(9))?;
            same!(mobile.counters().calls, 22);
        }
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "late");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(a_late_call_harms_no_other, late);

/// A call survives the loss of a unit at which it never was, whether it may move or not. One that
/// does not end in the time for which it may run has been lost, as far as anybody knows.
fn not_there(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        match fabric.identity().unit {
            0 => {
                let code = mobile.register(Capsule::from_wat(&kernel(""))?)?;
                pause("waits");
                let stays = Limits {
                    hops: 0,
                    ..self_bounded_limits()
                };
                let stays = mobile.call_within(1, &code, "run", &[], stays)?;
                let moves = call(&mobile, 1, &code, &[])?;
                let brief = Limits {
                    time: Duration::from_millis(1),
                    ..self_bounded_limits()
                };
                let brief = mobile.call_within(1, &code, "run", &[], brief)?;
                point("called");
                let ended = failure(brief.wait())?;
                same!((ended.cause, &ended.path[..]), (Cause::Lost, &[2][..]));
                check!(ended.is_part && ended.text.contains("unit.2"), "{ended}");
                point("lost");
                for call in [stays, moves] {
                    same!(call.wait()?, [0_u8; 0]);
                }
                fabric.send(members[1], 9, b"end")?;
            }
            1 => {
                pause("computes");
                fabric.recv_vec(Match::from(members[0], 9))?;
            }
            _ => _ = pause("is killed"),
        }
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(2), "is killed");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "called");
            cluster.kill(Who::Unit(2));
            cluster.wait_point(Who::Unit(0), "lost");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(a_call_survives_units_where_it_never_was, not_there);

/// Unit 2 computes: a prefetch that it should take is late, and names it.
fn late_prefetch(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        match fabric.identity().unit {
            0 => {
                let code = mobile.register(Capsule::from_wat(&kernel(""))?)?;
                pause("waits");
                let prefetch = mobile.prefetch(&code, &[1, 2])?;
                match prefetch.wait_within(Duration::from_millis(20)) {
                    Err(Error::Late { to, .. }) => {
                        check!(to.contains("unit.2") && !to.contains("unit.0"), "{to}");
                    }
                    other => check!(false, "{other:?}"),
                }
                point("late");
                mobile.prefetch(&code, &[1, 2])?.wait()?;
                members[1..]
                    .iter()
                    .try_for_each(|unit| fabric.send(*unit, 9, b"end"))?;
            }
            unit => {
                if unit == 2 {
                    pause("computes");
                }
                fabric.recv_vec(Match::any(9))?;
            }
        }
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(2), "computes");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "late");
            cluster.release(Who::Unit(2));
            cluster.all_end();
        });
}

on_processes!(a_late_prefetch_names_its_units, late_prefetch);
