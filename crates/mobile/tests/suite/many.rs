//! Much of everything: codes, calls that wait, code that takes long to compile, units of a
//! prefetch.

use crate::holders::large;
use crate::{begin, call, fails, failure, kernel, runs, runs_long, self_bounded_limits};
use samite_fabric::{Fabric, Mask, Match, PeerId};
use samite_mobile::{Capsule, Cause, Error, Function, Limits, Policy, Rights, Trust};
use samite_testkit::{Cluster, Outcome, Who, check, pause, point, same, units};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Replies with a number that makes the code another one.
fn numbered(number: u64) -> Outcome<Capsule> {
    let body = format!(
        "(i64.store (local.get $at) (i64.const {number}))
        (call $reply (local.get $at) (i32.const 8))"
    );
    Ok(Capsule::from_wat(&kernel(&body))?)
}

/// Returns how many mappings this process has.
fn mappings() -> Outcome<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// 600 codes, each called twice, with all grants and with narrowed ones: the unit keeps a bounded
/// number of instances and of compiled codes.
fn many_codes(fabric: &Fabric, unit: u32) -> Outcome {
    const CODES: u64 = 600;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(2 << 20)?;
    mobile.grant(0, segment.bytes(), Rights::Read);
    let count = Function::new(|context, _| {
        let count = mappings().map_err(|_| samite_mobile::Trap::Other("no /proc".into()))?;
        context.reply(&(count as u64).to_le_bytes())
    });
    mobile.define("count", count);
    fabric.barrier(&members)?;
    if unit == 0 {
        let count = mobile.register(Capsule::of_function("count", ["run"])?)?;
        let mut counts = Vec::new();
        for number in 0..CODES {
            let code = mobile.register(numbered(number)?)?;
            for grants in [u16::MAX, 0] {
                let limits = samite_mobile::Limits {
                    grants,
                    ..self_bounded_limits()
                };
                let reply = mobile.call_within(1, &code, "run", &[0; 8], limits)?;
                same!(reply.wait()?, number.to_le_bytes());
            }
            if number % 300 == 299 {
                let reply = call(&mobile, 1, &count, &[])?.wait()?;
                counts.push(u64::from_le_bytes(reply.as_slice().try_into()?));
            }
        }
        // Without a bound, each code has at least five mappings.
        let &[half, all] = counts.as_slice() else {
            return Err(samite_testkit::Failed::new("not counted twice"));
        };
        check!(all < half + 150, "{half} mappings, then {all}");
        // The first one was dropped, and is compiled again.
        let first = mobile.register(numbered(0)?)?;
        same!(call(&mobile, 1, &first, &[0; 8])?.wait()?, [0; 8]);
    }
    fabric.barrier(&members)?;
    if unit == 1 {
        same!(mobile.counters().compiled, CODES + 1);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(many_codes_take_bounded_memory, runs_long(2, many_codes));

/// Unit 1 gets a call of code that takes long to compile, then one of code that is there: the
/// second one runs first.
fn compiles_beside(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        let segment = fabric.allocate(4096)?;
        mobile.grant(0, segment.bytes(), Rights::Write);
        fabric.barrier(members)?;
        if fabric.identity().unit == 0 {
            let count = "(i64.store (local.get $at)
                    (call $add64 (i32.const 0) (i64.const 0) (i64.const 1)))
                (call $reply (local.get $at) (i32.const 8))";
            let warm = mobile.register(Capsule::from_wat(&kernel(count))?)?;
            let cold = mobile.register(large(count)?)?;
            let call = |code| mobile.call_within(1, code, "run", &[0; 8], self_bounded_limits());
            same!(call(&warm)?.wait()?, 0_u64.to_le_bytes());
            fabric.send(members[1], 1, b"warm")?;
            pause("waits");
            let first = call(&cold)?;
            let others = [call(&warm)?, call(&warm)?];
            fabric.send(members[1], 9, b"end")?;
            samite_testkit::point("called");
            for (number, other) in others.into_iter().enumerate() {
                same!(other.wait()?, (number as u64 + 1).to_le_bytes());
            }
            same!(first.wait()?, 3_u64.to_le_bytes());
        } else {
            fabric.recv_vec(Match::any(1))?;
            pause("computes");
            fabric.recv_vec(Match::any(9))?;
        }
        fabric.barrier(members)?;
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "called");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(other_code_runs_while_one_is_compiled, compiles_beside);

/// A unit whose kernel does not return gets more calls than may wait: they fail as `Busy`, all
/// others run, and the unit goes on.
fn busy(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: usize = 400;
    const BYTES: usize = 60_000;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let (own, caller) = (fabric.clone(), members[0]);
    // While it waits for a message, frames go on arriving.
    let functions = Function::new(move |_, _| match own.recv_vec(Match::from(caller, 1)) {
        Ok(_) => Ok(()),
        Err(error) => Err(samite_mobile::Trap::Other(error.to_string())),
    });
    mobile.define("holds", functions.and(|_, _| Ok(())));
    let code = mobile.register(Capsule::of_function("holds", ["hold", "pass"])?)?;
    fabric.barrier(&members)?;
    if unit == 0 {
        let holds = mobile.call(1, &code, "hold", &[])?;
        let payload = vec![7; BYTES];
        let calls = (0..CALLS).map(|_| mobile.call(1, &code, "pass", &payload));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        fabric.send(members[1], 1, b"go on")?;
        same!(holds.wait()?, [0_u8; 0]);
        let (mut ran, mut refused) = (0, 0);
        for call in calls {
            match call.wait() {
                Ok(_) => ran += 1,
                ended => {
                    let ended = failure(ended)?;
                    check!(ended.cause == Cause::Busy, "{ended}");
                    same!(ended.path, [0, 1]);
                    refused += 1;
                }
            }
        }
        // 4 MiB of calls of one unit wait, and some that were taken before.
        check!(ran >= 69 && refused > 0, "{ran} ran, {refused} did not");
        same!(mobile.call(1, &code, "pass", &payload)?.wait()?, [0_u8; 0]);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(calls_beyond_the_inbox_fail, runs(2, busy));

/// Unit 0 makes more calls at unit 1 than may wait, while a kernel runs there: those of unit 2 find
/// room and run, and each of unit 0 runs or fails.
fn flood(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: usize = 60_000;
    const OTHERS: u64 = 100;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let (own, other) = (fabric.clone(), members[2]);
    // While it waits for a message, frames go on arriving.
    let functions = Function::new(move |_, _| match own.recv_vec(Match::from(other, 1)) {
        Ok(_) => Ok(()),
        Err(error) => Err(samite_mobile::Trap::Other(error.to_string())),
    });
    let echo = |context: &mut samite_mobile::Context, payload: &[u8]| context.reply(payload);
    mobile.define("holds", functions.and(|_, _| Ok(())).and(echo));
    let code = mobile.register(Capsule::of_function("holds", ["hold", "pass", "echo"])?)?;
    fabric.barrier(&members)?;
    match unit {
        0 => {
            let holds = mobile.call(1, &code, "hold", &[])?;
            // More than 16 MiB.
            let calls = (0..CALLS).map(|_| mobile.call(1, &code, "pass", &[7; 200]));
            let calls = calls.collect::<Result<Vec<_>, _>>()?;
            fabric.send(members[2], 3, b"queued")?;
            same!(holds.wait()?, [0_u8; 0]);
            let mut refused = 0;
            for call in calls {
                if let Err(ended) = call.wait() {
                    fails(Err(ended), Cause::Busy)?;
                    refused += 1;
                }
            }
            check!((1..CALLS).contains(&refused), "{refused} were refused");
        }
        2 => {
            fabric.recv_vec(Match::from(members[0], 3))?;
            let call = |number: u64| mobile.call(1, &code, "echo", &number.to_le_bytes());
            let calls = (0..OTHERS).map(call).collect::<Result<Vec<_>, _>>()?;
            fabric.send(members[1], 1, b"go on")?;
            for (number, call) in calls.into_iter().enumerate() {
                same!(call.wait()?, (number as u64).to_le_bytes());
            }
        }
        _ => {}
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_flood_of_calls_takes_no_room_of_others, runs(3, flood));

/// What kernels of unit 0 do at unit 1: each time one begins there, it adds one to a word.
const ATTACKS: [&str; 3] = [
    // They do not end.
    "(loop (br 0))",
    // They move on at the unit as often as they may.
    "(call $forward (call $me) (i32.const 0) (local.get $at) (i32.const 0))",
    // They start two others each, as often as they may.
    "(call $spawn (call $me) (i32.const 0) (local.get $at) (i32.const 0))
    (call $spawn (call $me) (i32.const 0) (local.get $at) (i32.const 0))",
];

/// While a function holds unit 1, unit 0 queues attacks there, and then unit 2 calls that tell how
/// often kernels of unit 0 have begun: these take turns with its calls, and so does what they have
/// started.
fn attacked(fabric: &Fabric, unit: u32) -> Outcome {
    const EACH: usize = 128;
    // At most 16 frames of unit 0 were taken out of the inbox before those of unit 2 came.
    const FIRST: u64 = 2 * 16 + TURNS;
    const CALLS: u64 = 50;
    // A call of unit 0, and one that such a call has made, for each call of unit 2.
    const TURNS: u64 = 4;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    let (own, other) = (fabric.clone(), members[2]);
    let hold = Function::new(move |_, _| match own.recv_vec(Match::from(other, 1)) {
        Ok(_) => Ok(()),
        Err(error) => Err(samite_mobile::Trap::Other(error.to_string())),
    });
    mobile.define("holds", hold);
    let hold = mobile.register(Capsule::of_function("holds", ["hold"])?)?;
    let count = "(i64.store (local.get $at) (call $load64 (i32.const 0) (i64.const 0)))
        (call $reply (local.get $at) (i32.const 8))";
    let count = mobile.register(Capsule::from_wat(&kernel(count))?)?;
    let begun = |number: u64| -> Outcome<_> {
        let payload = number.to_le_bytes();
        Ok(call(&mobile, 1, &count, &payload)?)
    };
    let number = |reply: Vec<u8>| -> Outcome<u64> { Ok(u64::from_le_bytes(reply[..].try_into()?)) };
    for attack in ATTACKS {
        let counted =
            format!("(drop (call $add64 (i32.const 0) (i64.const 0) (i64.const 1))) {attack}");
        let code = mobile.register(Capsule::from_wat(&kernel(&counted))?)?;
        if unit == 0 {
            for code in [&code, &count] {
                mobile.prefetch(code, &[1])?.wait()?;
            }
        }
        fabric.barrier(&members)?;
        match unit {
            0 => {
                let held = mobile.call(1, &hold, "hold", &[])?;
                let limits = Limits {
                    hops: 2_000,
                    ..Limits::default()
                };
                let calls = (0..EACH).map(|_| mobile.call_within(1, &code, "run", &[], limits));
                let calls = calls.collect::<Result<Vec<_>, _>>()?;
                fabric.send(members[2], 3, b"queued")?;
                same!(held.wait()?, [0_u8; 0]);
                for call in calls {
                    if let Err(ended) = call.wait() {
                        let ended = failure(Err(ended))?;
                        let expected = [Cause::Time, Cause::Forbidden, Cause::Refused];
                        check!(expected.contains(&ended.cause), "{attack}: {ended}");
                    }
                }
            }
            2 => {
                fabric.recv_vec(Match::from(members[0], 3))?;
                let calls = (0..CALLS).map(begun).collect::<Outcome<Vec<_>>>()?;
                fabric.send(members[1], 1, b"go on")?;
                let mut before = None;
                for (at, call) in calls.into_iter().enumerate() {
                    let now = number(call.wait()?)?;
                    let first = *before.get_or_insert(now.saturating_sub(TURNS));
                    let most = first + TURNS * (at as u64 + 1);
                    check!(now <= most, "{attack}: {now} had begun before call {at}");
                    check!(at > 0 || now <= FIRST, "{attack}: {now} came first");
                }
            }
            _ => {}
        }
        fabric.barrier(&members)?;
        if unit == 1 {
            segment
                .bytes()
                .u64(0)
                .store(0, std::sync::atomic::Ordering::Relaxed);
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

on_processes!(attacks_of_one_unit_hold_up_no_other, runs(3, attacked));

/// A prefetch to ten units, some of them twice, the caller among them, and one that refuses: the
/// others have the code compiled, and their next call waits for nothing.
fn prefetched(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let others: Vec<u32> = [0, 3, 1, 2, 3, 0, 4, 2, 1, 4].to_vec();
    if unit == 0 {
        let code = mobile.register(numbered(1)?)?;
        mobile.prefetch(&code, &others)?.wait()?;
        for to in 0..mobile.units() {
            same!(
                call(&mobile, to, &code, &[0; 8])?.wait()?,
                1_u64.to_le_bytes()
            );
        }
    }
    fabric.barrier(&members)?;
    let counters = mobile.counters();
    same!((counters.compiled, counters.calls), (1, 1));
    let misses = counters.misses;
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(numbered(1)?)?;
        mobile.prefetch(&code, &others)?.wait()?;
    }
    fabric.barrier(&members)?;
    same!(mobile.counters().misses, misses);
    // Unit 1 is at the top of the tree, and refuses.
    if unit == 1 {
        mobile.set_policy(Policy {
            trust: Trust::Nothing,
            ..Policy::default()
        });
    }
    fabric.barrier(&members)?;
    let code = numbered(2)?;
    if unit == 0 {
        let code = mobile.register(code)?;
        let text = fails(
            mobile.prefetch(&code, &[1, 2, 3, 4])?.wait(),
            Cause::Refused,
        )?;
        check!(text.contains("unit.1"), "{text}");
    }
    if unit > 1 {
        let compiled = || (mobile.counters().compiled == 2).then_some(());
        mobile.serve(fabric.deadline(), compiled)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_prefetch_reaches_all_units, runs(5, prefetched));

/// Unit 0 has queued a hundred calls at unit 1 when unit 2 makes one: it does not wait for all of
/// them, and those of unit 0 stay in order.
fn in_turn(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: u64 = 100;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    let (own, last) = (fabric.clone(), members[2]);
    // While it waits for a message, frames go on arriving. It takes some ticks of the clock by
    // which a unit looks for further callers.
    let functions = Function::new(move |_, _| {
        let start = Instant::now();
        let ended = own.recv_vec(Match::from(last, 1));
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        match ended {
            Ok(_) => Ok(()),
            Err(error) => Err(samite_mobile::Trap::Other(error.to_string())),
        }
    });
    let functions = functions.and(|context, _| {
        let number = context.fetch_add(0, 0, 1)?;
        context.reply(&number.to_le_bytes())
    });
    mobile.define("holds", functions);
    let code = mobile.register(Capsule::of_function("holds", ["hold", "count"])?)?;
    fabric.barrier(&members)?;
    let number = |call: samite_mobile::Call| -> Outcome<u64> {
        Ok(u64::from_le_bytes(call.wait()?.as_slice().try_into()?))
    };
    match unit {
        0 => {
            let holds = mobile.call(1, &code, "hold", &[])?;
            let calls = (0..CALLS).map(|_| mobile.call(1, &code, "count", &[]));
            let calls = calls.collect::<Result<Vec<_>, _>>()?;
            fabric.send(members[2], 3, b"queued")?;
            holds.wait()?;
            let numbers = calls.into_iter().map(number).collect::<Outcome<Vec<_>>>()?;
            check!(numbers.is_sorted(), "{numbers:?}");
        }
        2 => {
            fabric.recv_vec(Match::from(members[0], 3))?;
            let call = mobile.call(1, &code, "count", &[])?;
            fabric.send(members[1], 1, b"go on")?;
            let number = number(call)?;
            check!(number < CALLS / 2, "{number} calls ran before it");
        }
        _ => {}
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(callers_take_turns, runs(3, in_turn));

/// Unit 2 takes nothing. Calls that unit 1 sends on to it wait for room there, up to a bound; those
/// beyond it fail at unit 1 as `Busy`.
fn full_outbox(name: &str, mask: Mask) {
    const CALLS: usize = 250;
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        let go = "(if (i32.eq (call $me) (i32.const 1)) (then
            (call $forward (i32.const 2) (i32.const 0) (local.get $at) (local.get $len))))";
        let code = mobile.register(Capsule::from_wat(&kernel(go))?)?;
        fabric.barrier(members)?;
        if fabric.identity().unit > 0 {
            if fabric.identity().unit == 2 {
                pause("computes");
            }
            fabric.recv_vec(Match::from(members[0], 9))?;
            return Ok(());
        }
        pause("waits");
        let payload = vec![7; 60_000];
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            calls.push(call(&mobile, 1, &code, &payload)?);
        }
        // The last one finds no room.
        let ended = failure(calls.pop().expect("there are calls").wait())?;
        check!(ended.cause == Cause::Busy, "{ended}");
        same!(ended.path, [0, 1]);
        point("full");
        let (mut ran, mut refused) = (0, 0);
        for call in calls {
            match call.wait() {
                Ok(reply) => {
                    same!(reply, [0_u8; 0]);
                    ran += 1;
                }
                ended => {
                    fails(ended, Cause::Busy)?;
                    refused += 1;
                }
            }
        }
        // 4 MiB wait for room, and some are under way.
        check!(ran >= 69 && refused > 0, "{ran} ran, {refused} did not");
        same!(call(&mobile, 1, &code, &payload)?.wait()?, [0_u8; 0]);
        (1..3).try_for_each(|to| fabric.send(members[to], 9, b"end"))?;
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(2), "computes");
            cluster.wait_point(Who::Unit(0), "waits");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "full");
            cluster.release(Who::Unit(2));
            cluster.all_end();
        });
}

on_processes!(calls_beyond_the_outbox_fail, full_outbox);

/// Whether a task was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// A caller that takes nothing gets no more answers than wait for room: its other calls end as
/// `Late`, and later ones are answered.
fn dropped_answers(name: &str, mask: Mask) {
    // All of them leave at once, without a turn that would take answers.
    const CALLS: u64 = 160;
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let mobile = begin(fabric)?;
        let long = Function::new(|context, _| context.reply(&[7; 60_000]));
        mobile.define("long", long.and(|context, _| context.reply(b"short")));
        let code = mobile.register(Capsule::of_function("long", ["long", "short"])?)?;
        fabric.barrier(members)?;
        if fabric.identity().unit == 1 {
            let have_run = || (mobile.counters().calls >= CALLS).then_some(());
            mobile.serve(fabric.deadline(), have_run)?;
            point("ran");
            fabric.recv_vec(Match::any(9))?;
            return Ok(());
        }
        let calls = (0..CALLS).map(|_| mobile.call(1, &code, "long", &[]));
        let mut calls = calls.collect::<Result<Vec<_>, _>>()?;
        pause("called");
        // Answers leave in their order: all that were kept have come when this one has, unless
        // there was no room for it yet.
        let short = Duration::from_millis(100);
        let mut rounds = 0..600;
        let has_come = rounds.any(|_| {
            let call = mobile.call(1, &code, "short", &[]);
            call.and_then(|call| call.wait_within(short)) == Ok(b"short".to_vec())
        });
        check!(has_come);
        let mut answered = 0;
        calls.retain_mut(|call| {
            let ended = call.test();
            answered += u64::from(ended == Some(Ok(vec![7; 60_000])));
            ended.is_none()
        });
        let dropped = calls.len() as u64;
        same!(answered + dropped, CALLS);
        check!(answered >= 69 && dropped > 0, "{answered} were answered");
        let late = calls.pop().map(|call| call.wait_within(short));
        check!(matches!(late, Some(Err(Error::Late { .. }))), "{late:?}");
        // Awaited, it is late as well, and its task is woken to learn that.
        if let Some(mut call) = calls.pop() {
            let flag = Arc::new(Flag::default());
            let waker = Waker::from(flag.clone());
            let context = &mut Context::from_waker(&waker);
            let begun = fabric.within(short, || Pin::new(&mut call).poll(context));
            same!(begun, Poll::Pending);
            mobile.serve(fabric.deadline(), || flag.0.load(SeqCst).then_some(()))?;
            // The deadline is that of the first poll.
            match Pin::new(&mut call).poll(context) {
                Poll::Ready(Err(Error::Late { after, .. })) => same!(after, short),
                late => check!(false, "{late:?}"),
            }
        }
        fabric.send(members[1], 9, b"end")?;
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(0), "called");
            cluster.wait_point(Who::Unit(1), "ran");
            cluster.release(Who::Unit(0));
            cluster.all_end();
        });
}

on_processes!(answers_beyond_the_outbox_are_dropped, dropped_answers);

/// Unit 0 has queued many calls at unit 1 that run to their limit when unit 2 makes one: it is
/// answered between them.
fn loops_between(fabric: &Fabric, unit: u32) -> Outcome {
    const LOOPS: u64 = 40;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(4096)?;
    mobile.grant(0, segment.bytes(), Rights::Write);
    let (own, last) = (fabric.clone(), members[2]);
    // While it waits for a message, frames go on arriving.
    let holds = Function::new(move |_, _| match own.recv_vec(Match::from(last, 1)) {
        Ok(_) => Ok(()),
        Err(error) => Err(samite_mobile::Trap::Other(error.to_string())),
    });
    let count = |context: &mut samite_mobile::Context, _: &[u8]| {
        let count = context.load(0, 0)?;
        context.reply(&count.to_le_bytes())
    };
    mobile.define("holds", holds.and(count));
    let code = mobile.register(Capsule::of_function("holds", ["hold", "count"])?)?;
    fabric.barrier(&members)?;
    match unit {
        0 => {
            let body = "(drop (call $add64 (i32.const 0) (i64.const 0) (i64.const 1)))
                (if (local.get $len) (then (loop (br 0))))";
            let loops = mobile.register(Capsule::from_wat(&kernel(body))?)?;
            same!(call(&mobile, 1, &loops, &[])?.wait()?, [0_u8; 0]);
            let holds = mobile.call(1, &code, "hold", &[])?;
            // So little time that the code is not rejected.
            let limits = Limits {
                run: Duration::from_millis(5),
                ..Limits::default()
            };
            let calls = (0..LOOPS).map(|_| mobile.call_within(1, &loops, "run", b"x", limits));
            let calls = calls.collect::<Result<Vec<_>, _>>()?;
            fabric.send(members[2], 3, b"queued")?;
            holds.wait()?;
            for call in calls {
                fails(call.wait(), Cause::Time)?;
            }
        }
        2 => {
            fabric.recv_vec(Match::from(members[0], 3))?;
            let call = mobile.call(1, &code, "count", &[])?;
            fabric.send(members[1], 1, b"go on")?;
            let count = u64::from_le_bytes(call.wait()?.as_slice().try_into()?);
            check!(count < LOOPS / 2, "{count} calls ran before it");
        }
        _ => {}
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(calls_are_answered_between_loops, runs(3, loops_between));

/// Unit 1 has sent many calls to unit 0, of 5 ms each, when unit 0 calls code there that it does
/// not have: its request for the code is not behind these calls.
fn busy_caller(fabric: &Fabric, unit: u32) -> Outcome {
    const CALLS: u32 = 2000;
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let ran = Arc::new(AtomicU32::new(0));
    let (ends, runs) = (has_ended.clone(), ran.clone());
    let slow = Function::new(move |_, _| {
        if !ends.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5)); // What it computes.
        }
        runs.fetch_add(1, SeqCst);
        Ok(())
    });
    mobile.define("slow", slow);
    let slow = mobile.register(Capsule::of_function("slow", ["run"])?)?;
    fabric.barrier(&members)?;
    if unit == 1 {
        for _ in 0..CALLS {
            mobile.send(0, &slow, "run", &[])?;
        }
        fabric.send(members[0], 9, b"sent")?;
    } else {
        fabric.recv_vec(Match::from(members[1], 9))?;
        let code = mobile.register(numbered(7)?)?;
        let reply = call(&mobile, 1, &code, &[0; 8])?.wait()?;
        same!(reply, 7_u64.to_le_bytes());
        check!(ran.load(SeqCst) < CALLS, "all calls have run before");
        has_ended.store(true, SeqCst);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(code_does_not_wait_for_calls, runs(2, busy_caller));
