//! The units on the way of a call that fails, for each cause.

use crate::{begin, call, failure, kernel, runs, self_bounded_limits, self_bounded_policy};
use samite_fabric::{Fabric, Mask, Match, PeerId};
use samite_mobile::{Capsule, Cause, Failure, Limits, Policy, Processor, Rights, Trust};
use samite_testkit::{Cluster, Outcome, Who, check, pause, point, same, units};

/// Moves from unit to unit; at unit 3 it does what is given.
fn chain(end: &str) -> Outcome<Capsule> {
    let go = format!(
        "(if (i32.lt_u (call $me) (i32.const 3)) (then
            (call $forward (i32.add (call $me) (i32.const 1)) (i32.const 0)
                (local.get $at) (i32.const 0)))
        (else {end}))"
    );
    Ok(Capsule::from_wat(&kernel(&go))?)
}

fn way(failure: &Failure) -> (&[u32], bool) {
    (&failure.path, failure.is_part)
}

fn each_cause(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let read = fabric.allocate(4096)?;
    mobile.grant(0, read.bytes(), Rights::Read);
    if unit == 3 {
        mobile.set_policy(Policy {
            trust: Trust::SignedWasm,
            ..self_bounded_policy()
        });
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        // The last unit does not trust the code.
        let code = mobile.register(chain("")?)?;
        let ended = failure(call(&mobile, 1, &code, &[])?.wait())?;
        same!(ended.cause, Cause::Refused);
        check!(way(&ended) == (&[0, 1, 2, 3][..], false), "{ended}");
    }
    fabric.barrier(&members)?;
    for trust in [
        Trust::Nothing,
        Trust::SignedWasm,
        Trust::Wasm,
        Trust::ListedNative,
    ] {
        if unit == 1 {
            mobile.set_policy(Policy {
                trust,
                ..self_bounded_policy()
            });
        }
        fabric.barrier(&members)?;
        if unit == 0 {
            // Native code that nobody has signed.
            let native = Capsule::builder(["run"]).elf(Processor::HERE, *b"\x7fELF");
            let code = mobile.register(native.build()?)?;
            let ended = failure(call(&mobile, 1, &code, &[])?.wait())?;
            same!(ended.cause, Cause::Refused);
            check!(way(&ended) == (&[0, 1][..], false), "{trust}: {ended}");
        }
        fabric.barrier(&members)?;
    }
    if unit == 1 {
        mobile.set_policy(self_bounded_policy());
    }
    fabric.barrier(&members)?;
    if unit == 3 {
        mobile.set_policy(self_bounded_policy());
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        for (end, cause) in [
            ("(loop (br 0))", Cause::Time),
            ("(drop (i32.load (i32.const 0x70000000)))", Cause::Memory),
            ("(drop (memory.grow (i32.const 1)))", Cause::Memory),
            (
                "(drop (call $load64 (i32.const 5) (i64.const 0)))",
                Cause::Grant,
            ),
            (
                "(call $forward (i32.const 0) (i32.const 9) (local.get $at) (i32.const 0))
                (call $reply (local.get $at) (i32.const 0))",
                Cause::Forbidden,
            ),
            (
                "(call $forward (i32.const 77) (i32.const 0) (local.get $at) (i32.const 0))",
                Cause::Target,
            ),
            (
                "(call $store64 (i32.const 0) (i64.const 0) (i64.const 1))",
                Cause::Grant,
            ),
            (
                "(call $reply (local.get $at) (i32.const 0x7fffffff))",
                Cause::Forbidden,
            ),
            ("(return (i32.const 5))", Cause::Failed),
            ("(unreachable)", Cause::Other),
            (
                "(drop (call $define (local.get $at) (i32.const 8)))",
                Cause::Refused,
            ),
        ] {
            let code = mobile.register(chain(end)?)?;
            let limits = match cause {
                Cause::Time => Limits::default(),
                _ => self_bounded_limits(),
            };
            let called = mobile.call_within(1, &code, "run", &[], limits)?;
            let ended = failure(called.wait())?;
            check!(ended.cause == cause, "{end}");
            check!(way(&ended) == (&[0, 1, 2, 3][..], false), "{end}: {ended}");
        }
        // The hops end at unit 2.
        let code = mobile.register(chain("")?)?;
        let limits = Limits {
            hops: 1,
            ..self_bounded_limits()
        };
        let ended = failure(mobile.call_within(1, &code, "run", &[], limits)?.wait())?;
        same!(ended.cause, Cause::Forbidden);
        same!(way(&ended), (&[0, 1, 2][..], false));
        // Through a unit that calls itself: payload of one byte more each time.
        let here = "(if (i32.lt_u (local.get $len) (i32.const 2)) (then
                (call $forward (call $me) (i32.const 0)
                    (local.get $at) (i32.add (local.get $len) (i32.const 1))))
            (else (if (i32.lt_u (call $me) (i32.const 2)) (then
                (call $forward (i32.const 2) (i32.const 0) (local.get $at) (i32.const 1)))
            (else (unreachable)))))";
        let code = mobile.register(Capsule::from_wat(&kernel(here))?)?;
        let ended = failure(call(&mobile, 1, &code, b"x")?.wait())?;
        check!(way(&ended) == (&[0, 1, 1, 2, 2][..], false), "{ended}");
        let ended = failure(call(&mobile, 0, &code, b"x")?.wait())?;
        check!(way(&ended) == (&[0, 0, 2, 2][..], false), "{ended}");
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_failure_has_the_whole_way, runs(4, each_cause));

/// Unit 3 is lost. A call that would move there fails at the unit before it; one that was called
/// there, or went there, names the lost unit and the whole way. A call elsewhere goes on.
fn lost(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        match fabric.identity().unit {
            0 => {
                let code = mobile.register(chain("")?)?;
                let good = mobile.register(Capsule::from_wat(&kernel(""))?)?;
                pause("waits");
                // Unit 3 computes: it has none of these calls taken.
                let there = call(&mobile, 3, &code, &[])?;
                let stays = Limits {
                    hops: 0,
                    ..self_bounded_limits()
                };
                let stays = mobile.call_within(3, &code, "run", &[], stays)?;
                let go = "(call $forward (i32.add (call $me) (i32.const 1)) (i32.const 0)
                    (local.get $at) (i32.const 0))";
                let goes = mobile.register(Capsule::from_wat(&kernel(go))?)?;
                let goes = call(&mobile, 1, &goes, &[])?;
                let elsewhere = call(&mobile, 4, &good, &[])?;
                fabric.recv_vec(Match::from(members[2], 2))?;
                point("called");
                for (call, expected) in [
                    (there, &[0, 3][..]),
                    (stays, &[0, 3][..]),
                    (goes, &[0, 1, 2, 3][..]),
                ] {
                    let ended = failure(call.wait())?;
                    check!(ended.cause == Cause::Lost, "{ended}");
                    check!(way(&ended) == (expected, false), "{ended}");
                    check!(ended.to_string().contains("unit.3"), "{ended}");
                }
                point("lost");
                same!(elsewhere.wait()?, [0_u8; 0]);
                // Unit 2 has seen the loss, too.
                fabric.recv_vec(Match::from(members[2], 1))?;
                let ended = failure(call(&mobile, 1, &code, &[])?.wait())?;
                check!(ended.cause == Cause::Lost, "{ended}");
                check!(way(&ended) == (&[0, 1, 2][..], false), "{ended}");
                check!(ended.text.contains("unit.3"), "{ended}");
                for to in [1, 2, 4] {
                    fabric.send(members[to], 9, b"end")?;
                }
            }
            3 => _ = pause("computes"),
            4 => {
                pause("computes");
                fabric.recv_vec(Match::from(members[0], 9))?;
            }
            unit => {
                if unit == 2 {
                    let has_gone = || (mobile.counters().forwards == 1).then_some(());
                    mobile.serve(fabric.deadline(), has_gone)?;
                    fabric.send(members[0], 2, b"gone")?;
                }
                while fabric.lost(members[3]).is_none() {
                    fabric.progress();
                }
                if unit == 2 {
                    fabric.send(members[0], 1, b"seen")?;
                }
                fabric.recv_vec(Match::from(members[0], 9))?;
            }
        }
        Ok(())
    };
    units(5)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(3), "computes");
            cluster.wait_point(Who::Unit(4), "computes");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "called");
            cluster.kill(Who::Unit(3));
            cluster.wait_point(Who::Unit(0), "lost");
            cluster.release(Who::Unit(4));
            cluster.all_end();
        });
}

on_processes!(a_failure_names_the_lost_unit, lost);
