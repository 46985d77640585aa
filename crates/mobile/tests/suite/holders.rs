//! Units that have code, and those that lack it: who is asked, when one that was asked is lost,
//! computes, or has the code no more.

use crate::{begin, call, fails, kernel, runs, runs_long, self_bounded_policy};
use samite_fabric::{Fabric, Mask, Match};
use samite_mobile::{Call, Capsule, Cause, Function, Policy, Rights, SigningKey, Trust};
use samite_testkit::{Cluster, Outcome, Who, check, pause, point, same, units};
use std::sync::atomic::Ordering::Acquire;

/// Replies with a number that makes the code another one.
fn numbered(number: u64) -> Outcome<Capsule> {
    let body = format!(
        "(i64.store (local.get $at) (i64.const {number}))
        (call $reply (local.get $at) (i32.const 8))"
    );
    Ok(Capsule::from_wat(&kernel(&body))?)
}

/// Replies with a number, and has a part of so many bytes that no unit accepts.
pub(crate) fn long(number: u8, bytes: usize) -> Outcome<Capsule> {
    let body = format!(
        "(i64.store (local.get $at) (i64.const {number}))
        (call $reply (local.get $at) (i32.const 8))"
    );
    let wasm = crate::calls::wat(&kernel(&body))?;
    let capsule = Capsule::builder(["run"]).wasm(wasm);
    let capsule = capsule.elf(samite_mobile::Processor::HERE, vec![number; bytes]);
    Ok(capsule.build()?)
}

fn replies(call: Call, number: u64) -> Outcome {
    same!(call.wait()?, number.to_le_bytes());
    Ok(())
}

/// Serves until unit 0 or another one says that it ends.
fn serve_to_the_end(fabric: &Fabric) -> Outcome {
    fabric.recv_vec(Match::any(9))?;
    Ok(())
}

/// A caller dies before the unit that it called has taken its call. Its code is asked of the next
/// caller, not of the dead one for ever.
fn caller_dies(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[_]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        match fabric.identity().unit {
            0 => {
                let code = mobile.register(numbered(1)?)?;
                pause("waits");
                let _called = call(&mobile, 1, &code, &[0; 8])?;
                pause("called");
            }
            1 => {
                pause("busy");
                serve_to_the_end(fabric)?;
            }
            _ => {
                let code = mobile.register(numbered(1)?)?;
                pause("waits");
                while fabric.lost(members[0]).is_none() {
                    fabric.progress();
                }
                point("seen");
                for _ in 0..3 {
                    replies(call(&mobile, 1, &code, &[0; 8])?, 1)?;
                }
                fabric.send(members[1], 9, b"end")?;
            }
        }
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "busy");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "called");
            cluster.kill(Who::Unit(0));
            cluster.wait_point(Who::Unit(2), "waits");
            cluster.release(Who::Unit(2));
            cluster.wait_point(Who::Unit(2), "seen");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(a_caller_dies_before_its_call_is_taken, caller_dies);

/// Unit 1 calls code and computes, so it does not answer when it is asked for it. Calls of the same
/// code by unit 0 run meanwhile.
fn caller_computes(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[_]| {
        let mobile = begin(fabric)?;
        fabric.barrier(members)?;
        match fabric.identity().unit {
            0 => {
                let code = mobile.register(numbered(1)?)?;
                pause("waits");
                replies(call(&mobile, 2, &code, &[0; 8])?, 1)?;
                point("done");
                serve_to_the_end(fabric)?;
            }
            1 => {
                let code = mobile.register(numbered(1)?)?;
                let call = call(&mobile, 2, &code, &[0; 8])?;
                pause("computes");
                replies(call, 1)?;
                [0, 2]
                    .iter()
                    .try_for_each(|to| fabric.send(members[*to], 9, b"end"))?;
            }
            _ => {
                let has_missed = || (mobile.counters().misses > 0).then_some(());
                mobile.serve(fabric.deadline(), has_missed)?;
                point("asked");
                serve_to_the_end(fabric)?;
                same!(mobile.counters().compiled, 1);
            }
        }
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(2), "asked");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "done");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(a_caller_that_computes_holds_nobody_up, caller_computes);

/// Unit 1 calls more codes than may be fetched for it, and computes. Others are served.
fn many_fetches(name: &str, mask: Mask) {
    const CALLS: u64 = 70;
    const MOST: usize = 64;
    let body = |fabric: &Fabric, members: &[_]| {
        let mobile = begin(fabric)?;
        let segment = fabric.allocate(4096)?;
        mobile.grant(0, segment.bytes(), Rights::Write);
        let mark = mobile.register(Capsule::of_function("mark", ["run"])?)?;
        let marks = |context: &mut samite_mobile::Context, _: &[u8]| context.store(0, 0, 1);
        mobile.define("mark", Function::new(marks));
        fabric.barrier(members)?;
        match fabric.identity().unit {
            0 => {
                let code = mobile.register(numbered(1000)?)?;
                pause("waits");
                replies(call(&mobile, 2, &code, &[0; 8])?, 1000)?;
                point("done");
                serve_to_the_end(fabric)?;
            }
            1 => {
                let calls = (0..CALLS).map(|number| -> Outcome<Call> {
                    let code = mobile.register(numbered(number)?)?;
                    Ok(call(&mobile, 2, &code, &[0; 8])?)
                });
                let calls = calls.collect::<Outcome<Vec<_>>>()?;
                let mark = call(&mobile, 2, &mark, &[])?;
                pause("computes");
                mark.wait()?;
                let ends: Vec<_> = calls.into_iter().map(Call::wait).collect();
                for (number, ended) in ends.into_iter().enumerate() {
                    match number < MOST {
                        true => same!(ended?, (number as u64).to_le_bytes()),
                        false => _ = fails(ended, Cause::Busy)?,
                    }
                }
                [0, 2]
                    .iter()
                    .try_for_each(|to| fabric.send(members[*to], 9, b"end"))?;
            }
            _ => {
                let word = || (segment.bytes().u64(0).load(Acquire) == 1).then_some(());
                mobile.serve(fabric.deadline(), word)?;
                point("asked");
                serve_to_the_end(fabric)?;
            }
        }
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(2), "asked");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "done");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(one_caller_takes_no_fetches_from_others, many_fetches);

/// A hundred calls at once of code that the target lacks: it is sent once, in several parts.
fn at_once(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        let code = mobile.register(long(7, 100_000)?)?;
        let calls: Vec<_> = (0..100)
            .map(|_| call(&mobile, 1, &code, &[0; 8]))
            .collect::<Result<_, _>>()?;
        for call in calls {
            replies(call, 7)?;
        }
        let bytes = code.capsule().bytes().len() as u64;
        same!(mobile.counters().code_sent, bytes);
    }
    fabric.barrier(&members)?;
    if unit == 1 {
        let counters = mobile.counters();
        same!((counters.calls, counters.compiled), (100, 1));
        check!(counters.misses > 0);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(many_calls_at_once_fetch_once, runs(2, at_once));

/// A unit asks for code first where the call came from. When the unit that has sent a call on
/// evicts its code, the origin has it.
fn evicted_on_the_way(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[_]| {
        let mobile = begin(fabric)?;
        let go = "(if (i32.eq (call $me) (i32.const 1)) (then
            (call $forward (i32.const 2) (i32.const 0) (local.get $at) (i32.const 0))))";
        let capsule = Capsule::from_wat(&kernel(go))?;
        let kept = Capsule::from_wat(&kernel(&format!("(drop (call $hops)) {go}")))?;
        let bytes = |capsule: &Capsule| capsule.bytes().len() as u64;
        fabric.barrier(members)?;
        match fabric.identity().unit {
            0 => {
                let first = mobile.register(kept.clone())?;
                same!(call(&mobile, 1, &first, &[])?.wait()?, [0_u8; 0]);
                same!(mobile.counters().code_sent, bytes(&kept));
                pause("first");
                let code = mobile.register(capsule.clone())?;
                same!(call(&mobile, 1, &code, &[])?.wait()?, [0_u8; 0]);
                let sent = bytes(&kept) + 2 * bytes(&capsule);
                same!(mobile.counters().code_sent, sent);
                (1..3).try_for_each(|to| fabric.send(members[to], 9, b"end"))?;
            }
            1 => {
                let has_gone = || (mobile.counters().forwards == 2).then_some(());
                mobile.serve(fabric.deadline(), has_gone)?;
                check!(mobile.evict(capsule.hash()));
                point("evicted");
                serve_to_the_end(fabric)?;
                same!(mobile.counters().code_sent, bytes(&kept));
            }
            _ => {
                let has_run = || (mobile.counters().calls == 1).then_some(());
                mobile.serve(fabric.deadline(), has_run)?;
                pause("waits");
                serve_to_the_end(fabric)?;
            }
        }
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(2), "waits");
            cluster.wait_point(Who::Unit(0), "first");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(1), "evicted");
            cluster.release(Who::Unit(2));
            cluster.all_end();
        });
}

on_processes!(the_origin_is_asked_after_the_sender, evicted_on_the_way);

/// A unit that has refused code without a signature asks a further caller, whose capsule is signed.
fn signed_later(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let key = SigningKey::from_bytes(&[3; 32]);
    if unit == 2 {
        mobile.set_policy(Policy {
            trust: Trust::SignedWasm,
            keys: vec![*key.verifying_key().as_bytes()],
            ..self_bounded_policy()
        });
    }
    let plain = numbered(5)?;
    let bytes = plain.bytes().len() as u64;
    let code = match unit {
        1 => mobile.register(plain.sign(&key)?)?,
        _ => mobile.register(plain)?,
    };
    if unit == 2 {
        check!(mobile.evict(code.hash()));
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        for _ in 0..3 {
            fails(call(&mobile, 2, &code, &[0; 8])?.wait(), Cause::Refused)?;
        }
        same!(mobile.counters().code_sent, bytes);
    }
    fabric.barrier(&members)?;
    if unit == 1 {
        replies(call(&mobile, 2, &code, &[0; 8])?, 5)?;
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        replies(call(&mobile, 2, &code, &[0; 8])?, 5)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(
    a_signed_capsule_is_fetched_after_one_without,
    runs(3, signed_later)
);

/// Code that takes long to compile.
pub(crate) fn large(body: &str) -> Outcome<Capsule> {
    let more: String = (0..200)
        .map(|number| {
            format!(
                "(func (param i64) (result i64) (local i64)
                (loop (local.set 1 (i64.add (local.get 1) (i64.const {number})))
                    (local.set 0 (i64.mul (local.get 0) (local.get 1)))
                    (br_if 0 (i64.lt_u (local.get 0) (local.get 1))))
                (local.get 0))"
            )
        })
        .collect();
    let text = kernel(body);
    let module = text.strip_suffix(')').unwrap_or(&text);
    Ok(Capsule::from_wat(&format!("{module} {more})"))?)
}

/// While code is being compiled, the unit decides to trust none: the code does not run.
fn policy_changes(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(large("")?)?;
        let ended = call(&mobile, 1, &code, &[0; 8])?.wait();
        let text = fails(ended, Cause::Refused)?;
        check!(text.contains("no moved code"), "{text}");
    } else {
        let compiles = || (mobile.counters().compiled == 1).then_some(());
        mobile.serve(fabric.deadline(), compiles)?;
        mobile.set_policy(Policy {
            trust: Trust::Nothing,
            ..self_bounded_policy()
        });
    }
    fabric.barrier(&members)?;
    same!(mobile.counters().calls, 0);
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(
    a_policy_holds_for_code_that_is_being_compiled,
    runs_long(2, policy_changes)
);
