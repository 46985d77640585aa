//! What a call may use: it only shrinks, and nobody else pays for it.

use crate::{begin, fails, failure, kernel, runs, self_bounded_limits};
use samite_fabric::Fabric;
use samite_mobile::{Capsule, Cause, FAILURES_KEPT, Function, Limits, Mobile, Policy, Rights};
use samite_testkit::{Outcome, check, same};
use std::time::Duration;

/// How many calls run in all, if one with so many hops starts `wide` others as long as it can.
fn model(hops: u64, wide: u64) -> u64 {
    match hops < wide {
        true => 1,
        false => 1 + wide * model((hops - wide) / wide, wide),
    }
}

/// Kernels that start others everywhere, as often as they may: at most as many calls run as the
/// first one had hops, besides itself. Each adds one to a word of its unit.
fn tree(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    let read = Function::new(|context, _| {
        let count = context.load(0, 0)?;
        context.store(0, 0, 0)?;
        context.reply(&count.to_le_bytes())
    });
    mobile.define("read", read);
    fabric.barrier(&members)?;
    if unit == 0 {
        let read = mobile.register(Capsule::of_function("read", ["run"])?)?;
        let sum = || -> Outcome<u64> {
            let counts = (0..mobile.units()).map(|to| -> Outcome<u64> {
                let reply = mobile.call(to, &read, "run", &[])?.wait()?;
                Ok(u64::from_le_bytes(reply.as_slice().try_into()?))
            });
            Ok(counts.collect::<Outcome<Vec<_>>>()?.iter().sum())
        };
        for (wide, hops) in [
            (1, 0),
            (1, 1),
            (1, 100),
            (2, 1000),
            (3, 1000),
            (64, 65),
            (64, 64),
        ] {
            let body = format!(
                "(local $n i32)
                (drop (call $add64 (i32.const 0) (i64.const 0) (i64.const 1)))
                (if (i32.ge_u (call $hops) (i32.const {wide})) (then (loop
                    (call $spawn
                        (i32.rem_u (i32.add (call $me) (local.get $n)) (call $units))
                        (i32.const 0) (local.get $at) (i32.const 0))
                    (local.set $n (i32.add (local.get $n) (i32.const 1)))
                    (br_if 0 (i32.lt_u (local.get $n) (i32.const {wide}))))))"
            );
            let code = mobile.register(Capsule::from_wat(&kernel(&body))?)?;
            let limits = Limits {
                hops,
                ..self_bounded_limits()
            };
            mobile.call_within(1, &code, "run", &[], limits)?.wait()?;
            let expected = model(u64::from(hops), wide);
            check!(expected <= u64::from(hops) + 1);
            let mut ran = 0;
            while ran < expected {
                ran += sum()?;
            }
            // A kernel that has run has sent what it starts, and calls between two units run in
            // their order: this finds those that ran too much, if they started others, too.
            for _ in 0..4 {
                ran += sum()?;
            }
            check!(ran == expected, "{wide} at a time, {hops} hops");
        }
        // A bomb: it starts others as long as it can, and once more. The first one has replied by
        // then; its origin hears how the last ones failed.
        let bomb = "(drop (call $add64 (i32.const 0) (i64.const 0) (i64.const 1)))
            (call $spawn (i32.rem_u (i32.add (call $me) (i32.const 1)) (call $units))
                (i32.const 0) (local.get $at) (i32.const 0))
            (call $spawn (call $me) (i32.const 0) (local.get $at) (i32.const 0))";
        let bomb = mobile.register(Capsule::from_wat(&kernel(bomb))?)?;
        let limits = Limits {
            hops: 1000,
            ..self_bounded_limits()
        };
        same!(mobile.take_failures(), []);
        let before = mobile.counters().unwaited_failures;
        mobile.call_within(1, &bomb, "run", &[], limits)?.wait()?;
        // Those that may start none fail, all others succeed.
        let (mut all, mut failed) = (model(1000, 2), 0);
        let mut has_failed = || {
            failed = mobile.counters().unwaited_failures - before;
            (failed == all.div_ceil(2)).then_some(())
        };
        mobile.serve(fabric.deadline(), &mut has_failed)?;
        let failures = mobile.take_failures();
        same!(failures.len(), FAILURES_KEPT);
        for failure in failures {
            check!(failure.cause == Cause::Forbidden, "{failure}");
            check!(!failure.path.is_empty(), "{failure}");
        }
        while all > 0 {
            all -= sum()?;
        }
        // One that starts more than it has hops starts none.
        let two = "(drop (call $add64 (i32.const 0) (i64.const 0) (i64.const 1)))
            (call $spawn (i32.const 0) (i32.const 0) (local.get $at) (i32.const 0))
            (call $forward (i32.const 2) (i32.const 0) (local.get $at) (i32.const 0))";
        let code = mobile.register(Capsule::from_wat(&kernel(two))?)?;
        let limits = Limits {
            hops: 1,
            ..self_bounded_limits()
        };
        fails(
            mobile.call_within(1, &code, "run", &[], limits)?.wait(),
            Cause::Forbidden,
        )?;
        same!(sum()?, 1);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(calls_are_at_most_as_many_as_hops, runs(3, tree));

/// Loops if it has a payload.
const LOOPS: &str = "(if (local.get $len) (then (loop (br 0))))";

/// Calls that have little time do not have their code refused; those that have enough do, eight
/// times in a row, for the unit that called.
fn timeouts(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        let code = mobile.register(Capsule::from_wat(&kernel(LOOPS))?)?;
        let ends = |count: usize, limits: Limits| -> Outcome<Vec<Cause>> {
            // All of them at once.
            let calls = (0..count).map(|_| mobile.call_within(1, &code, "run", b"x", limits));
            let calls = calls.collect::<Result<Vec<_>, _>>()?;
            let causes = calls
                .into_iter()
                .map(|call| Ok(failure(call.wait())?.cause));
            causes.collect()
        };
        let good = || {
            mobile
                .call_within(1, &code, "run", &[], self_bounded_limits())?
                .wait()
        };
        let millisecond = Duration::from_millis(1);
        for short in [
            Limits {
                time: millisecond,
                ..Limits::default()
            },
            Limits {
                run: millisecond,
                ..Limits::default()
            },
        ] {
            same!(ends(12, short)?, [Cause::Time; 12]);
            same!(good()?, [0_u8; 0]);
        }
        // Seven in a row are not enough, twice.
        for _ in 0..2 {
            same!(ends(7, Limits::default())?, [Cause::Time; 7]);
            same!(good()?, [0_u8; 0]);
        }
        // Those that were stopped by `time` have none refused that have more of it.
        let second = Duration::from_secs(1);
        let by_time = Limits {
            run: second,
            time: Limits::default().run,
            ..Limits::default()
        };
        same!(ends(8, by_time)?, [Cause::Time; 8]);
        let more = Limits {
            run: second,
            ..Limits::default()
        };
        let more = mobile.call_within(1, &code, "run", &[], more)?;
        same!(more.wait()?, [0_u8; 0]);
        let mut expected = [Cause::Time; 12];
        expected[8..].fill(Cause::Refused);
        same!(ends(12, Limits::default())?, expected);
        let short = mobile.call_within(1, &code, "run", &[], Limits::default())?;
        let text = fails(short.wait(), Cause::Refused)?;
        check!(text.contains("give the call more time"), "{text}");
        // Those that have more time run.
        same!(good()?, [0_u8; 0]);
    }
    fabric.barrier(&members)?;
    if unit == 2 {
        // Calls of other units go on.
        let code = mobile.register(Capsule::from_wat(&kernel(LOOPS))?)?;
        let good = mobile.call_within(1, &code, "run", &[], self_bounded_limits())?;
        same!(good.wait()?, [0_u8; 0]);
    }
    fabric.barrier(&members)?;
    if unit == 1 {
        same!(mobile.counters().calls, 2 * 13 + 2 * 8 + 9 + 8 + 2);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(code_is_refused_after_eight_timeouts, runs(3, timeouts));

/// What a call defines is read within its time.
fn many_definitions(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        let define = |times: u32| {
            let one = "(drop (call $define (local.get $at) (local.get $len)))";
            Capsule::from_wat(&kernel(&one.repeat(times as usize)))
        };
        // It takes more than a millisecond to read this 32 times.
        let functions = "(func)".repeat(4000);
        let entry = r#"(func (export "run") (param i32 i32) (result i32) (i32.const 0))"#;
        let filler = format!("(data \"{}\")", "x".repeat(30_000));
        let module = wat::parse_str(format!("(module {entry} {functions} {filler})"))?;
        let one = mobile.register(define(1)?)?;
        same!(
            mobile
                .call_within(1, &one, "run", &module, self_bounded_limits())?
                .wait()?,
            [0_u8; 0]
        );
        let many = mobile.register(define(32)?)?;
        let millisecond = Limits {
            run: Duration::from_millis(1),
            ..self_bounded_limits()
        };
        let call = mobile.call_within(1, &many, "run", &module, millisecond)?;
        fails(call.wait(), Cause::Time)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(
    definitions_are_read_within_the_time,
    runs(2, many_definitions)
);

/// What is left of the limits at the end of a chain of units.
fn shrinking(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    mobile.grant(1, segment.bytes(), Rights::Write);
    fabric.barrier(&members)?;
    if unit == 0 {
        // From unit to unit; at the last one it does what the test says.
        let chain = |end: &str| {
            let go = format!(
                "(if (i32.lt_u (call $me) (i32.const 3)) (then
                    (call $forward (i32.add (call $me) (i32.const 1)) (i32.const 0)
                        (local.get $at) (i32.const 0)))
                (else {end}))"
            );
            mobile.register(Capsule::from_wat(&kernel(&go))?)
        };
        let run = |end: &str, limits| -> Outcome<_> {
            Ok(mobile
                .call_within(1, &chain(end)?, "run", &[], limits)?
                .wait())
        };
        let hops = "(i64.store (local.get $at) (i64.extend_i32_u (call $hops)))
            (call $reply (local.get $at) (i32.const 8))";
        let nine = Limits {
            hops: 9,
            ..self_bounded_limits()
        };
        same!(run(hops, nine)??, 7_u64.to_le_bytes());
        let one = Limits {
            hops: 1,
            ..self_bounded_limits()
        };
        fails(run(hops, one)?, Cause::Forbidden)?;
        let add = "(drop (call $add64 (i32.const 1) (i64.const 0) (i64.const 1)))";
        same!(run(add, self_bounded_limits())??, [0_u8; 0]);
        let narrow = Limits {
            grants: !2,
            ..self_bounded_limits()
        };
        let text = fails(run(add, narrow)?, Cause::Grant)?;
        check!(text.contains("unit.3"), "{text}");
        let spawn = "(call $spawn (i32.const 0) (i32.const 0) (local.get $at) (i32.const 0))";
        let alone = Limits {
            may_spawn: false,
            ..self_bounded_limits()
        };
        fails(run(spawn, alone)?, Cause::Forbidden)?;
        let define = "(drop (call $define (local.get $at) (i32.const 8)))";
        let fixed = Limits {
            may_define: false,
            ..self_bounded_limits()
        };
        fails(run(define, fixed)?, Cause::Forbidden)?;
    }
    fabric.barrier(&members)?;
    if unit == 3 {
        let word = segment.bytes().u64(0);
        same!(word.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(limits_shrink_on_the_way, runs(4, shrinking));

/// Time is charged on all units together: functions that compute for a while, and move on.
fn time_on_the_way(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let spins = Function::new(|context, _| {
        // By the clock that charges it.
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        let next = 1 + context.me() % 2;
        context.forward(next, 0, &[])
    });
    mobile.define("spins", spins);
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(Capsule::of_function("spins", ["run"])?)?;
        let limits = Limits {
            time: Duration::from_secs(2),
            ..Limits::default()
        };
        let ended = failure(mobile.call_within(1, &code, "run", &[], limits)?.wait())?;
        same!(ended.cause, Cause::Time);
        // It ran on both, and not on and on.
        check!(ended.path.len() > 2, "{ended}");
        check!(
            ended.path.contains(&1) && ended.path.contains(&2),
            "{ended}"
        );
    }
    fabric.barrier(&members)?;
    let calls = mobile.counters().calls;
    check!(unit == 0 || (1..=12).contains(&calls), "{calls} calls");
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(time_is_charged_on_all_units, runs(3, time_on_the_way));

/// The unit has the last word on how long a call runs at once.
fn run_max(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    if unit == 1 {
        mobile.set_policy(Policy {
            run_max: Duration::from_millis(3),
            ..Policy::default()
        });
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(Capsule::from_wat(&kernel(LOOPS))?)?;
        let mut causes = Vec::new();
        for _ in 0..9 {
            let call = mobile.call_within(1, &code, "run", b"x", self_bounded_limits())?;
            causes.push(failure(call.wait())?.cause);
        }
        // It counts as enough time.
        let mut expected = [Cause::Time; 9];
        expected[8] = Cause::Refused;
        same!(causes, expected);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_unit_bounds_the_time_of_calls, runs(2, run_max));

/// A call whose grants are narrowed sees no address of the others; one that remembers an address
/// from another call finds nothing there. A segment that is revoked is not there any more.
fn narrowed(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let (zero, one) = (fabric.allocate(2 << 20)?, fabric.allocate(2 << 20)?);
    mobile.grant(0, zero.bytes(), Rights::Write);
    mobile.grant(1, one.bytes(), Rights::Write);
    one.bytes().write(0, &42_u64.to_le_bytes());
    fabric.barrier(&members)?;
    let base = "(i64.store (local.get $at) (i64.extend_i32_u (call $base (i32.const 1))))
        (call $reply (local.get $at) (i32.const 8))";
    // The payload is an address.
    let load = "(i64.store (local.get $at) (i64.load (i32.wrap_i64 (i64.load (local.get $at)))))
        (call $reply (local.get $at) (i32.const 8))";
    let both = format!("(if (i32.eqz (local.get $len)) (then {base}) (else {load}))");
    let code = Capsule::from_wat(&kernel(&both))?;
    if unit == 0 {
        let code = mobile.register(code.clone())?;
        let call = |payload: &[u8], grants| {
            let limits = Limits {
                grants,
                ..self_bounded_limits()
            };
            mobile.call_within(1, &code, "run", payload, limits)?.wait()
        };
        let address = call(&[], u16::MAX)?;
        check!(address != [0; 8]);
        same!(call(&address, u16::MAX)?, 42_u64.to_le_bytes());
        same!(call(&[], !2)?, [0; 8]);
        fails(call(&address, !2), Cause::Memory)?;
        same!(call(&address, u16::MAX)?, 42_u64.to_le_bytes());
        fabric.barrier(&members)?; //  the other one revokes it
        fabric.barrier(&members)?;
        same!(call(&[], u16::MAX)?, [0; 8]);
        fails(call(&address, u16::MAX), Cause::Memory)?;
    } else {
        fabric.barrier(&members)?;
        mobile.revoke(1);
        fabric.barrier(&members)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(what_is_narrowed_or_revoked_is_not_mapped, runs(2, narrowed));
