//! Calls, replies, and how code comes to where it is called.

use crate::{begin, call, fails, kernel, runs, self_bounded_limits};
use samite_fabric::{Fabric, Mask, Match, PeerId};
use samite_mobile::{Capsule, Cause, Function, Limits, Mobile, Policy, Rights, Trust};
use samite_testkit::{Cluster, Failed, Outcome, Who, check, pause, point, same, units};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::{Context, Poll, Wake, Waker};

/// Adds the unit's number to the payload, a number.
const ADD: &str = "(i64.store (local.get $at)
    (i64.add (i64.load (local.get $at)) (i64.extend_i32_u (call $me))))
    (call $reply (local.get $at) (i32.const 8))";

/// Unit 0 calls all others: the code travels to each once, however often it is called.
fn code_travels_once(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: u64 = 50;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        let code = mobile.register(Capsule::from_wat(&kernel(ADD))?)?;
        let bytes = code.capsule().bytes().len() as u64;
        for round in 0..CALLS {
            let seed = fabric.identity().units as u64 * 1000 + round;
            let calls: Vec<_> = (0..mobile.units())
                .map(|to| call(&mobile, to, &code, &seed.to_le_bytes()))
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
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let code = Capsule::from_wat(&kernel(ADD))?;
    let hash = code.hash();
    for round in 0..3_u64 {
        if unit == 0 {
            let code = mobile.register(code.clone())?;
            for _ in 0..3 {
                let reply = call(&mobile, 1, &code, &round.to_le_bytes())?.wait()?;
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
        let ended = call(&mobile, 1, &code, &[0; 8])?.wait();
        fails(ended, Cause::NoCode)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(code_that_was_evicted_is_sent_again, runs(2, evicted));

/// Before the first call of code, it can be brought to all units along a tree.
fn prefetched(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    if unit == 0 {
        let code = mobile.register(Capsule::from_wat(&kernel(ADD))?)?;
        let others: Vec<u32> = (1..mobile.units()).collect();
        mobile.prefetch(&code, &others)?.wait()?;
        // It went from unit to unit: this one has sent it to two of four.
        let bytes = code.capsule().bytes().len() as u64;
        same!(mobile.counters().code_sent, 2 * bytes);
        mobile.prefetch(&code, &[])?.wait()?;
        // More units than a frame can name.
        let many: Vec<u32> = others.iter().copied().cycle().take(40_000).collect();
        mobile.prefetch(&code, &many)?.wait()?;
    }
    fabric.barrier(&members)?;
    same!(mobile.counters().compiled, u64::from(unit != 0));
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_prefetch_goes_down_a_tree, runs(5, prefetched));

/// A capsule that names functions of the program runs them, where the program has them.
fn functions(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
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
        for round in 0..10_u64 {
            let reply = call(&mobile, 1, &code, b"abc")?.wait()?;
            same!(reply, (round * 3).to_le_bytes());
        }
        let text = fails(call(&mobile, 2, &code, &[])?.wait(), Cause::Refused)?;
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

/// A kernel makes a predicate of a template, with a number that it finds in a segment of its unit
/// in place of a constant, and has another unit run it: code that neither that one nor the caller
/// has.
fn injected(fabric: &Fabric, unit: u32) -> Outcome {
    const WORDS: u64 = 100;
    const BOUND: u64 = 1_234_567;
    /// A constant whose encoding has as many bytes as any of its type may have.
    const TEMPLATE: u32 = 0x0fff_ffff;
    let value = |at: u64| at * 7919 * 13 % (2 * BOUND);
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    for at in 0..WORDS {
        segment.bytes().write(at * 8, &value(at).to_le_bytes());
    }
    if unit == 2 {
        segment.bytes().write(0, &BOUND.to_le_bytes());
    }
    mobile.grant(0, segment.bytes(), Rights::Write);
    fabric.barrier(&members)?;
    if unit == 0 {
        // Counts the words below the constant, and leaves their number, plus one, behind them.
        let predicate = format!(
            "(local $n i64) (local $o i64)
            (loop
                (if (i64.lt_u (call $load64 (i32.const 0) (local.get $o))
                        (i64.extend_i32_u (i32.const {TEMPLATE})))
                    (then (local.set $n (i64.add (local.get $n) (i64.const 1)))))
                (local.set $o (i64.add (local.get $o) (i64.const 8)))
                (br_if 0 (i64.lt_u (local.get $o) (i64.const {}))))
            (call $store64 (i32.const 0) (local.get $o)
                (i64.add (local.get $n) (i64.const 1)))",
            8 * WORDS
        );
        let module = wat(&kernel(&predicate))?;
        let constant = [0x41, 0xff, 0xff, 0xff, 0xff, 0];
        let places: Vec<_> = (0..module.len())
            .filter(|at| module[*at..].starts_with(&constant))
            .collect();
        let &[place] = places.as_slice() else {
            return Err(Failed::new(format!("not one constant: {places:?}")));
        };
        // The payload is the place of the constant, and the module. Seven bits a byte, all but the
        // last with a mark.
        let byte = |at: u32| {
            let mark = if at < 4 { 0x80 } else { 0 };
            format!(
                "(i32.store8 offset={} (local.get $p) (i32.or (i32.const {mark})
                    (i32.and (i32.const 127)
                        (i32.shr_u (local.get $v) (i32.const {})))))",
                4 + at,
                7 * at
            )
        };
        let inject = format!(
            "(local $p i32) (local $v i32)
            (local.set $v (i32.wrap_i64 (call $load64 (i32.const 0) (i64.const 0))))
            (local.set $p (i32.add (local.get $at) (i32.load (local.get $at))))
            {}
            (call $inject (i32.const 1)
                (call $define (i32.add (local.get $at) (i32.const 4))
                    (i32.sub (local.get $len) (i32.const 4)))
                (i32.const 0) (local.get $at) (i32.const 0))",
            (0..5).map(byte).collect::<String>()
        );
        let code = mobile.register(Capsule::from_wat(&kernel(&inject))?)?;
        let payload = [&(place as u32 + 1).to_le_bytes()[..], &module].concat();
        call(&mobile, 2, &code, &payload)?.wait()?;
        let forbidden = Limits {
            may_define: false,
            ..self_bounded_limits()
        };
        let ended = mobile
            .call_within(2, &code, "run", &payload, forbidden)?
            .wait();
        fails(ended, Cause::Forbidden)?;
        let garbage = call(&mobile, 2, &code, b"\x08\0\0\0 no module at all")?.wait();
        fails(garbage, Cause::Refused)?;
    }
    if unit == 1 {
        let word = segment.bytes().u64(8 * WORDS);
        let load = || word.load(std::sync::atomic::Ordering::Acquire);
        let count = mobile.serve(fabric.deadline(), || (load() > 0).then(load))?;
        let expected = (0..WORDS).filter(|at| value(*at) < BOUND).count() as u64;
        check!(0 < expected && expected < WORDS);
        same!(count, expected + 1);
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

/// Calls from two threads of each unit to every unit. Unit 2 evicts the code again and again, and
/// asks for it again.
fn many_threads(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: u64 = 300;
    const EVICTIONS: u64 = 20;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let capsule = Capsule::from_wat(&kernel(ADD))?;
    let code = match unit {
        2 => None,
        _ => Some(mobile.register(capsule.clone())?),
    };
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let calls = |thread: u64| {
            let (mobile, code) = (&mobile, &code);
            move || -> Outcome {
                let Some(code) = code else { return Ok(()) };
                for number in 0..CALLS {
                    let to = (number + thread) % u64::from(mobile.units());
                    let number = number << 8 | thread << 4 | u64::from(unit);
                    let called = call(mobile, to as u32, code, &number.to_le_bytes())?;
                    same!(called.wait()?, (number + to).to_le_bytes());
                }
                Ok(())
            }
        };
        // Each time when the code was compiled: so calls run between two evictions.
        let evicts = || {
            let mut evicted = 0;
            while !has_ended.load(std::sync::atomic::Ordering::Acquire) {
                let compiled = mobile.counters().compiled;
                if evicted < EVICTIONS && compiled > evicted && mobile.evict(capsule.hash()) {
                    evicted += 1;
                }
                std::thread::yield_now();
            }
        };
        if unit == 2 {
            scope.spawn(evicts);
        }
        let other = scope.spawn(calls(1));
        let ended = calls(0)();
        let other = other.join().expect("no thread panics");
        let barrier = fabric.barrier(&members);
        has_ended.store(true, std::sync::atomic::Ordering::Release);
        ended.and(other)?;
        Ok(barrier?)
    })?;
    if unit == 2 {
        let counters = mobile.counters();
        same!(counters.calls, CALLS / 3 * 4);
        check!(counters.compiled > 2, "{} times", counters.compiled);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(several_threads_call, runs(3, many_threads));

/// What is sent runs, at another unit and at this one, in the order of calls.
fn sent(fabric: &Fabric, unit: u32) -> Outcome {
    const SENDS: u64 = 5;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    fabric.barrier(&members)?;
    if unit == 0 {
        let count = "(i64.store (local.get $at)
                (call $add64 (i32.const 0) (i64.const 0) (i64.const 1)))
            (call $reply (local.get $at) (i32.const 8))";
        let code = mobile.register(Capsule::from_wat(&kernel(count))?)?;
        for to in [1, 0] {
            let count = || call(&mobile, to, &code, &[0; 8])?.wait();
            same!(count()?, 0_u64.to_le_bytes());
            for _ in 0..SENDS {
                mobile.send(to, &code, "run", &[0; 8])?;
            }
            same!(count()?, (SENDS + 1).to_le_bytes());
        }
    }
    fabric.barrier(&members)?;
    same!(mobile.counters().calls, SENDS + 2);
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(what_is_sent_runs, runs(2, sent));

/// Wakes the thread that awaits.
struct Awaiting(std::thread::Thread);

impl Wake for Awaiting {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A call is awaited by a thread that sleeps, while another one makes progress. Unit 1 answers only
/// when the call waits.
fn awaited(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        let code = mobile.register(Capsule::from_wat(&kernel(ADD))?)?;
        fabric.barrier(members)?;
        if fabric.identity().unit == 1 {
            pause("computes");
            fabric.recv_vec(Match::any(9))?;
            return Ok(());
        }
        pause("begins");
        let has_ended = &AtomicBool::new(false);
        std::thread::scope(|scope| -> Outcome {
            scope.spawn(|| {
                while !has_ended.load(Acquire) {
                    fabric.progress();
                    std::thread::yield_now();
                }
            });
            let awaits = || -> Outcome<Vec<u8>> {
                let mut call = pin!(call(&mobile, 1, &code, &[0; 8])?);
                let waker = Waker::from(Arc::new(Awaiting(std::thread::current())));
                let context = &mut Context::from_waker(&waker);
                check!(call.as_mut().poll(context).is_pending());
                point("awaits");
                loop {
                    std::thread::park();
                    if let Poll::Ready(ended) = call.as_mut().poll(context) {
                        return Ok(ended?);
                    }
                }
            };
            let ended = awaits();
            has_ended.store(true, Release);
            same!(ended?, 1_u64.to_le_bytes());
            Ok(())
        })?;
        fabric.send(members[1], 9, b"end")?;
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(0), "begins");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "awaits");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(a_call_is_awaited, awaited);
