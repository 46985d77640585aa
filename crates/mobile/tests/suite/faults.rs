//! Kernels that go wrong, and units that die: each call ends, and the others are not harmed.

use crate::{begin, call, fails, failure, kernel, runs, self_bounded_limits};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_mobile::{Capsule, Cause, Error, Limits, Rights};
use samite_testkit::{Cluster, Outcome, Unit, Who, check, pause, point, same, units};
use std::time::Duration;

/// Kernels that fail, and why. Grant 0 is for reading and mapped, 1 for writing.
const BAD: [(&str, Cause); 16] = [
    ("(loop (br 0))", Cause::Time),
    // Endless forwarding: the hops end.
    (
        "(call $forward (i32.const 1) (i32.const 0) (local.get $at) (i32.const 0))",
        Cause::Forbidden,
    ),
    (
        "(loop (call $spawn (i32.const 1) (i32.const 0) (local.get $at) (i32.const 0)) (br 0))",
        Cause::Forbidden,
    ),
    ("(drop (i32.load (i32.const 0x70000000)))", Cause::Memory),
    (
        "(drop (call $run (local.get $at) (local.get $len)))",
        Cause::Memory,
    ),
    (
        "(i64.store (call $base (i32.const 0)) (i64.const 1))",
        Cause::Memory,
    ),
    (
        "(call $store64 (i32.const 0) (i64.const 0) (i64.const 1))",
        Cause::Grant,
    ),
    (
        "(drop (call $load64 (i32.const 5) (i64.const 0)))",
        Cause::Grant,
    ),
    (
        "(drop (call $load64 (i32.const 1) (i64.const 1)))",
        Cause::Grant,
    ),
    (
        "(drop (call $load64 (i32.const 1) (i64.const 0x7fffffffffffffff)))",
        Cause::Grant,
    ),
    (
        "(call $forward (i32.const 77) (i32.const 0) (local.get $at) (i32.const 0))",
        Cause::Target,
    ),
    (
        "(call $forward (i32.const 1) (i32.const 9) (local.get $at) (i32.const 0))",
        Cause::Target,
    ),
    // A payload that lies about its length.
    (
        "(call $reply (local.get $at) (i32.const 0x7fffffff))",
        Cause::Forbidden,
    ),
    (
        "(call $reply (i32.const 0x6000000) (i32.const 8))",
        Cause::Memory,
    ),
    ("(drop (memory.grow (i32.const -1)))", Cause::Memory),
    ("(unreachable)", Cause::Other),
];

fn bad_kernels(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let read = fabric.allocate(2 << 20)?;
    let write = fabric.allocate(4096)?;
    mobile.grant(0, read.bytes(), Rights::Read);
    mobile.grant(1, write.bytes(), Rights::Write);
    fabric.barrier(&members)?;
    if unit == 0 {
        let good = "(drop (call $add64 (i32.const 1) (i64.const 8) (i64.const 1)))";
        let good = mobile.register(Capsule::from_wat(&kernel(good))?)?;
        for (at, (body, cause)) in BAD.into_iter().enumerate() {
            let capsule = Capsule::from_wat(&kernel(body))?;
            let code = mobile.register(capsule)?;
            let limits = Limits {
                hops: 20,
                ..match cause {
                    Cause::Time => Limits::default(),
                    _ => self_bounded_limits(),
                }
            };
            let ended = failure(mobile.call_within(1, &code, "run", &[], limits)?.wait())?;
            check!(ended.cause == cause, "kernel {at}: {ended}");
            // The one that moves on and on is at unit 1 all the time, at last without hops; another
            // fails when it has moved there once more.
            let is_there = match at {
                11 => ended.path == [0, 1, 1],
                1 => ended.path.len() == 16 && ended.path.iter().all(|unit| *unit == 1),
                _ => ended.path == [0, 1],
            };
            check!(
                is_there && ended.is_part == (at == 1),
                "kernel {at}: {ended}"
            );
            // The unit goes on, for this code and for others.
            call(&mobile, 1, &good, &[])?.wait()?;
        }
        // More pages at once than a kernel may have.
        let large = kernel("").replace("(memory 1)", "(memory 257)");
        let large = Capsule::builder(["run"])
            .wasm(wat::parse_str(large)?)
            .build()?;
        let large = mobile.register(large)?;
        let text = fails(call(&mobile, 1, &large, &[])?.wait(), Cause::Refused)?;
        check!(text.contains("256 pages"), "{text}");
        call(&mobile, 1, &good, &[])?.wait()?;
        let text = "(i32.store (local.get $at) (i32.const 0x6f6e))
            (call $fail (i32.const 7) (local.get $at) (i32.const 2))";
        let code = mobile.register(Capsule::from_wat(&kernel(text))?)?;
        let text = fails(call(&mobile, 1, &code, &[])?.wait(), Cause::Failed)?;
        check!(text.contains("code 7: no"), "{text}");
    }
    fabric.barrier(&members)?;
    if unit == 1 {
        let count = write
            .bytes()
            .u64(8)
            .load(std::sync::atomic::Ordering::Relaxed);
        same!(count, BAD.len() as u64 + 1);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(bad_kernels_fail_alone, runs(2, bad_kernels));

/// A call that fails far away says through which units it went.
fn path(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        // From unit to unit, up to the last one.
        let go = "(if (i32.lt_u (i32.add (call $me) (i32.const 1)) (call $units))
          (then (call $forward (i32.add (call $me) (i32.const 1)) (i32.const 0)
            (local.get $at) (i32.const 0)))
          (else (unreachable)))";
        let code = mobile.register(Capsule::from_wat(&kernel(go))?)?;
        let ended = failure(call(&mobile, 1, &code, &[])?.wait())?;
        same!(
            (ended.cause, &ended.path[..]),
            (Cause::Other, &[0, 1, 2, 3][..])
        );
        let way = "unit.0 -> unit.1 -> unit.2 -> unit.3";
        check!(ended.to_string().contains(way), "{ended}");
        // Of a long way, the end is known.
        let round = "(call $forward (i32.rem_u (i32.add (call $me) (i32.const 1)) (call $units))
            (i32.const 0) (local.get $at) (i32.const 0))";
        let code = mobile.register(Capsule::from_wat(&kernel(round))?)?;
        let limits = Limits {
            hops: 1001,
            ..self_bounded_limits()
        };
        let ended = failure(mobile.call_within(1, &code, "run", &[], limits)?.wait())?;
        same!((ended.cause, ended.path.len()), (Cause::Forbidden, 16));
        check!(
            ended
                .path
                .windows(2)
                .all(|pair| pair[1] == (pair[0] + 1) % 4)
        );
        check!(ended.to_string().contains("... -> "), "{ended}");
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_failure_tells_the_way, runs(4, path));

/// Returns whether a call ended since its unit was lost, before it was sent or afterwards.
fn is_lost(ended: &samite_mobile::Result<Vec<u8>>) -> bool {
    match ended {
        Err(Error::Failed(failure)) => failure.cause == Cause::Lost,
        Err(Error::Fabric(error)) => matches!(error, samite_fabric::Error::PeerLost { .. }),
        _ => false,
    }
}

/// Unit 2 dies while it has the chain: the origin hears of it, whoever had sent the chain there.
fn holder_dies(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let mobile = begin(fabric)?;
        let members = fabric.job()?;
        let segment = fabric.allocate(4096)?;
        mobile.grant(0, segment.bytes(), Rights::Write);
        fabric.barrier(&members)?;
        match fabric.identity().unit {
            0 => {
                // To unit 2 by way of unit 1; there it says that it runs, and does not end.
                let go = "(if (i32.eq (call $me) (i32.const 1))
                  (then (call $forward (i32.const 2) (i32.const 0)
                    (local.get $at) (i32.const 0)))
                  (else
                    (drop (call $add64 (i32.const 0) (i64.const 0) (i64.const 1)))
                    (loop (br 0))))";
                let code = mobile.register(Capsule::from_wat(&kernel(go))?)?;
                let chain = call(&mobile, 1, &code, &[])?;
                let ended = failure(chain.wait())?;
                same!(
                    (ended.cause, &ended.path[..]),
                    (Cause::Lost, &[0, 1, 2][..])
                );
                check!(!ended.is_part && ended.to_string().contains("unit.2"));
                let direct = call(&mobile, 2, &code, &[]).and_then(|call| call.wait());
                check!(is_lost(&direct), "a call to a lost unit: {direct:?}");
                // The others go on.
                let ok = mobile.register(Capsule::from_wat(&kernel(""))?)?;
                same!(call(&mobile, 1, &ok, &[])?.wait()?, [0_u8; 0]);
                fabric.send(members[1], 1, b"end")?;
            }
            1 => {
                let end = samite_fabric::Match::from(members[0], 1);
                fabric.recv_vec(end)?;
            }
            _ => std::thread::scope(|scope| -> Outcome {
                scope.spawn(|| {
                    // The other thread runs the kernel meanwhile.
                    let word = segment.bytes().u64(0);
                    while word.load(std::sync::atomic::Ordering::Acquire) == 0 {
                        std::thread::yield_now();
                    }
                    point("holds");
                });
                mobile.serve(Duration::from_secs(60), || None::<()>)?;
                Ok(())
            })?,
        }
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(2), "holds");
            cluster.kill(Who::Unit(2));
            cluster.all_end();
        });
}

on_processes!(a_unit_dies_with_the_chain, holder_dies);

/// What a unit has said before it died counts: a failure that it has sent is not taken for its
/// loss.
fn last_words(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        if fabric.identity().unit == 1 {
            let have_failed = || (mobile.counters().traps == 2).then_some(());
            mobile.serve(fabric.deadline(), have_failed)?;
            pause("failed");
            return Ok(());
        }
        let code = mobile.register(Capsule::from_wat(&kernel("(unreachable)"))?)?;
        same!(
            failure(call(&mobile, 1, &code, &[])?.wait())?.cause,
            Cause::Other
        );
        let last = call(&mobile, 1, &code, &[])?;
        pause("called"); // It makes no progress until the other one is dead.
        let ended = failure(last.wait())?;
        same!((ended.cause, &ended.path[..]), (Cause::Other, &[0, 1][..]));
        let next = call(&mobile, 1, &code, &[]).and_then(|call| call.wait());
        check!(is_lost(&next), "a call to a lost unit: {next:?}");
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(0), "called");
            cluster.wait_point(Who::Unit(1), "failed");
            cluster.kill(Who::Unit(1));
            cluster.wait_gone(Who::Unit(1));
            cluster.release(Who::Unit(0));
            cluster.all_end();
        });
}

on_processes!(what_a_unit_said_last_counts, last_words);

/// A unit that was started again is another incarnation: it has no code, asks for it, and the calls
/// go on.
fn restarted(name: &str, mask: Mask) {
    let body = |unit: &Unit| -> Outcome {
        let fabric = &unit.join()?;
        let mobile = begin(fabric)?;
        if fabric.identity().unit == 1 {
            point("serves");
            let end = samite_fabric::Match::any(1);
            fabric.recv_vec(end)?;
            return Ok(());
        }
        let code = mobile.register(Capsule::from_wat(&kernel(""))?)?;
        let bytes = code.capsule().bytes().len() as u64;
        same!(call(&mobile, 1, &code, &[])?.wait()?, [0_u8; 0]);
        same!(mobile.counters().code_sent, bytes);
        pause("called");
        // Until this unit has seen the new life, a call ends as lost.
        let again = loop {
            match call(&mobile, 1, &code, &[]).and_then(|call| call.wait()) {
                ended if is_lost(&ended) => _ = fabric.progress(),
                ended => break ended,
            }
        };
        same!(again?, [0_u8; 0]);
        same!(mobile.counters().code_sent, 2 * bytes);
        let lives = fabric.peers();
        let other = lives
            .iter()
            .find(|info| info.identity.unit == 1 && info.peer != fabric.me());
        let other = other.map(|info| info.peer).expect("it lives again");
        fabric.send(other, 1, b"end")?;
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate_bare(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "serves");
            cluster.wait_point(Who::Unit(0), "called");
            cluster.kill(Who::Unit(1));
            cluster.start_again(Who::Unit(1));
            cluster.wait_point(Who::Unit(1), "serves");
            cluster.release(Who::Unit(0));
            cluster.all_end();
        });
}

on_processes!(a_unit_is_started_again, restarted);

/// A unit is killed with a call that it has not run, and started again: the call ends as lost with
/// the life to which it was sent, and the next life does not run it.
fn restarted_with_a_call(name: &str, mask: Mask) {
    let body = |unit: &Unit| -> Outcome {
        let fabric = &unit.join()?;
        let mobile = begin(fabric)?;
        let count = fabric.allocate(4096)?;
        mobile.grant(1, count.bytes(), Rights::Write);
        if fabric.identity().unit == 1 {
            // The first life is killed here.
            pause("computes");
            let end = samite_fabric::Match::any(1);
            fabric.recv_vec(end)?;
            let mut added = [0; 8];
            count.bytes().read(0, &mut added);
            same!(u64::from_le_bytes(added), 10);
            return Ok(());
        }
        let add = "(drop (call $add64 (i32.const 1) (i64.const 0) (i64.load (local.get $at))))";
        let code = mobile.register(Capsule::from_wat(&kernel(add))?)?;
        let first = call(&mobile, 1, &code, &1_u64.to_le_bytes())?;
        pause("called");
        let ended = failure(first.wait())?;
        same!(ended.cause, Cause::Lost);
        check!(ended.to_string().contains("unit.1"), "{ended}");
        let again = loop {
            let ten = 10_u64.to_le_bytes();
            match call(&mobile, 1, &code, &ten).and_then(|call| call.wait()) {
                ended if is_lost(&ended) => _ = fabric.progress(),
                ended => break ended,
            }
        };
        same!(again?, [0_u8; 0]);
        let lives = fabric.peers();
        let mut others = lives.iter().filter(|info| info.peer != fabric.me());
        let other = others.next().expect("it lives again").peer;
        fabric.send(other, 1, b"end")?;
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate_bare(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(0), "called");
            cluster.kill(Who::Unit(1));
            cluster.start_again(Who::Unit(1));
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.release(Who::Unit(1));
            cluster.release(Who::Unit(0));
            cluster.all_end();
        });
}

on_processes!(a_unit_is_started_again_with_a_call, restarted_with_a_call);

/// Unit 1 dies with a prefetch that it should pass on to unit 2: the caller hears of it. Later
/// prefetches that name the lost unit fail, too, and reach the units behind it all the same.
fn prefetch_dies(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        let end = samite_fabric::Match::from(members[0], 9);
        match fabric.identity().unit {
            0 => {
                let first = mobile.register(Capsule::from_wat(&kernel(""))?)?;
                let second = kernel("(drop (call $me))");
                let second = mobile.register(Capsule::from_wat(&second)?)?;
                pause("waits");
                let prefetch = mobile.prefetch(&first, &[1, 2, 3])?;
                point("called");
                let ended = failure(prefetch.wait())?;
                same!(ended.cause, Cause::Lost);
                check!(ended.to_string().contains("unit.1"), "{ended}");
                let ended = failure(mobile.prefetch(&second, &[1, 2, 3])?.wait())?;
                same!(ended.cause, Cause::Lost);
                fabric.recv_vec(samite_fabric::Match::from(members[2], 1))?;
                for code in [&first, &second] {
                    mobile.prefetch(code, &[2, 3])?.wait()?;
                }
                for to in [2, 3] {
                    same!(call(&mobile, to, &first, &[])?.wait()?, [0_u8; 0]);
                }
                for to in [2, 3] {
                    fabric.send(members[to], 9, b"end")?;
                }
            }
            1 => _ = pause("computes"),
            2 => {
                let has_second = || (mobile.counters().compiled == 1).then_some(());
                mobile.serve(fabric.deadline(), has_second)?;
                fabric.send(members[0], 1, b"it came")?;
                fabric.recv_vec(end)?;
                same!(mobile.counters().compiled, 2);
            }
            _ => {
                fabric.recv_vec(end)?;
                same!(mobile.counters().compiled, 2);
            }
        }
        Ok(())
    };
    units(4)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "called");
            cluster.kill(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(a_unit_dies_with_a_prefetch, prefetch_dies);
