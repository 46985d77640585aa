//! Calls, replies, and how code comes to where it is called.

use crate::{fails, kernel, runs};
use samite_fabric::Fabric;
use samite_mobile::{Capsule, Cause, Function, Limits, Mobile, Policy, Rights, Trust};
use samite_testkit::{Outcome, check, same};

/// Adds the unit's number to the payload, a number.
const ADD: &str = "(i64.store (local.get $at)
    (i64.add (i64.load (local.get $at)) (i64.extend_i32_u (call $me))))
    (call $reply (local.get $at) (i32.const 8))";

/// Unit 0 calls all others: the code travels to each once, however often it is called.
fn code_travels_once(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: u64 = 50;
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        let code = mobile.register(Capsule::from_wat(&kernel(ADD))?)?;
        let bytes = code.capsule().bytes().len() as u64;
        for call in 0..CALLS {
            let seed = fabric.identity().units as u64 * 1000 + call;
            let calls: Vec<_> = (0..mobile.units())
                .map(|to| mobile.call(to, &code, "run", &seed.to_le_bytes()))
                .collect::<Result<_, _>>()?;
            for (to, call) in calls.into_iter().enumerate() {
                same!(call.wait()?, (seed + to as u64).to_le_bytes());
            }
        }
        let others = u64::from(mobile.units() - 1);
        same!(mobile.counters().code_sent, bytes * others);
    }
    fabric.barrier(&members)?;
    let counters = mobile.counters();
    same!((counters.calls, counters.compiled), (CALLS, 1));
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(the_code_travels_once, runs(3, code_travels_once));

/// Code that was evicted is asked for again, and the call goes on.
fn evicted(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let code = Capsule::from_wat(&kernel(ADD))?;
    let hash = code.hash();
    for round in 0..3_u64 {
        if unit == 0 {
            let code = mobile.register(code.clone())?;
            for _ in 0..3 {
                let reply = mobile.call(1, &code, "run", &round.to_le_bytes())?.wait()?;
                same!(reply, (round + 1).to_le_bytes());
            }
        }
        fabric.barrier(&members)?;
        if unit == 1 {
            same!(mobile.counters().compiled, round + 1);
            check!(mobile.evict(hash));
        }
        fabric.barrier(&members)?;
    }
    if unit == 0 {
        // Nobody has it any more.
        let code = mobile.register(code)?;
        check!(mobile.evict(hash));
        let ended = mobile.call(1, &code, "run", &[0; 8])?.wait();
        fails(ended, Cause::NoCode)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(code_that_was_evicted_is_sent_again, runs(2, evicted));

/// Before the first call of code, it can be brought to all units along a tree.
fn prefetched(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        let code = mobile.register(Capsule::from_wat(&kernel(ADD))?)?;
        let others: Vec<u32> = (1..mobile.units()).collect();
        mobile.prefetch(&code, &others)?.wait()?;
        // It went from unit to unit: this one has sent it to two of four.
        let bytes = code.capsule().bytes().len() as u64;
        same!(mobile.counters().code_sent, 2 * bytes);
        mobile.prefetch(&code, &[])?.wait()?;
    }
    fabric.barrier(&members)?;
    same!(mobile.counters().compiled, u64::from(unit != 0));
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_prefetch_goes_down_a_tree, runs(5, prefetched));

/// A capsule that names functions of the program runs them, where the program has them.
fn functions(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    if unit != 2 {
        let count = Function::new(|context, payload| {
            let old = context.fetch_add(0, 8, payload.len() as u64)?;
            context.reply(&old.to_le_bytes())
        });
        mobile.define("count", count);
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(Capsule::of_function("count", ["run"])?)?;
        for call in 0..10_u64 {
            let reply = mobile.call(1, &code, "run", b"abc")?.wait()?;
            same!(reply, (call * 3).to_le_bytes());
        }
        let text = fails(mobile.call(2, &code, "run", &[])?.wait(), Cause::Refused)?;
        check!(text.contains("unit.2"), "{text}");
    }
    fabric.barrier(&members)?;
    same!(
        segment
            .bytes()
            .u64(8)
            .load(std::sync::atomic::Ordering::Relaxed),
        match unit {
            1 => 30,
            _ => 0,
        }
    );
    fabric.barrier(&members)?;
    Ok(())
}

samite_testkit::everywhere!(functions_of_the_program, 3, |fabric: &Fabric, _: &[_]| {
    functions(fabric, fabric.identity().unit)
});

/// A capsule with both forms runs as the function where that is defined, otherwise as WebAssembly
/// if it is trusted.
fn function_or_wasm(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let answers = |answer: &'static [u8]| Function::new(move |context, _| context.reply(answer));
    match unit {
        1 => mobile.define("either", answers(b"function")),
        3 => mobile.set_policy(Policy {
            trust: Trust::Nothing,
            ..Policy::default()
        }),
        _ => mobile.define("other", answers(b"other")),
    }
    fabric.barrier(&members)?;
    let wasm = "(i32.store (local.get $at) (i32.const 0x6d736177))
        (call $reply (local.get $at) (i32.const 4))";
    let capsule = Capsule::builder(["run"]).wasm(wat(&kernel(wasm))?);
    let capsule = capsule.function("either").build()?;
    let code = mobile.register(capsule)?;
    if unit == 0 {
        for (to, expected) in [(0, &b"wasm"[..]), (1, b"function"), (2, b"wasm")] {
            same!(mobile.call(to, &code, "run", &[0; 4])?.wait()?, expected);
        }
        let text = fails(
            mobile.call(3, &code, "run", &[0; 4])?.wait(),
            Cause::Refused,
        )?;
        check!(text.contains("has not defined `either`"), "{text}");
        check!(
            text.contains("code for wasm, and this unit accepts no"),
            "{text}"
        );
    }
    fabric.barrier(&members)?;
    // It is decided again when a function is defined.
    mobile.define("either", answers(b"function"));
    fabric.barrier(&members)?;
    if unit == 0 {
        for to in 0..4 {
            same!(mobile.call(to, &code, "run", &[0; 4])?.wait()?, b"function");
        }
    }
    fabric.barrier(&members)?;
    same!(
        mobile.counters().compiled,
        u64::from(unit.is_multiple_of(2))
    );
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_function_goes_before_wasm, runs(4, function_or_wasm));

/// A kernel makes new code, with a number of its payload in it, and calls it elsewhere.
fn injected(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    fabric.barrier(&members)?;
    if unit == 0 {
        // The payload is a module; the number in its constant is replaced before it is defined.
        let store = "(call $store64 (i32.const 0) (i64.const 16) (i64.const 0x1111))";
        let module = wat(&kernel(store))?;
        let inject = "(i32.store8 (i32.add (local.get $at) (local.get $len)) (i32.const 0))
            (call $inject (i32.const 1) (call $define (local.get $at) (local.get $len))
                (i32.const 0) (local.get $at) (i32.const 0))";
        let code = mobile.register(Capsule::from_wat(&kernel(inject))?)?;
        mobile.call(2, &code, "run", &module)?.wait()?;
        let forbidden = Limits {
            may_define: false,
            ..Limits::default()
        };
        let ended = mobile
            .call_within(2, &code, "run", &module, forbidden)?
            .wait();
        fails(ended, Cause::Forbidden)?;
        let garbage = mobile.call(2, &code, "run", b"no module")?.wait();
        fails(garbage, Cause::Refused)?;
    }
    if unit == 1 {
        let word = || {
            segment
                .bytes()
                .u64(16)
                .load(std::sync::atomic::Ordering::Acquire)
        };
        mobile.serve(fabric.deadline(), || (word() == 0x1111).then_some(()))?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

/// Returns a module in text as bytes.
pub(crate) fn wat(text: &str) -> Outcome<Vec<u8>> {
    let capsule = Capsule::from_wat(text)?;
    Ok(capsule.part(&capsule.parts()[0]).to_vec())
}

on_processes!(a_kernel_makes_new_code, runs(3, injected));

/// Calls from two threads of each unit to every unit, while code is evicted again and again.
fn many_threads(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: u64 = 100;
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let code = mobile.register(Capsule::from_wat(&kernel(ADD))?)?;
    std::thread::scope(|scope| -> Outcome {
        let calls = |thread: u64| {
            let (mobile, code) = (&mobile, &code);
            move || -> Outcome {
                for call in 0..CALLS {
                    let to = (call + thread) % u64::from(mobile.units());
                    let number = call << 8 | thread << 4 | u64::from(unit);
                    let call = mobile.call(to as u32, code, "run", &number.to_le_bytes())?;
                    same!(call.wait()?, (number + to).to_le_bytes());
                }
                Ok(())
            }
        };
        let other = scope.spawn(calls(1));
        calls(0)()?;
        other.join().expect("no thread panics")
    })?;
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(several_threads_call, runs(3, many_threads));
