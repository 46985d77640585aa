//! Capsules whose code is damaged, and modules that nobody can start.

use crate::{begin, call, fails, kernel, runs};
use samite_fabric::{Fabric, Mask};
use samite_mobile::{Capsule, Cause, Error, Limits, Mobile, Registered, Rights};
use samite_testkit::fuzz::{self, Rng};
use samite_testkit::{Failed, Outcome, check, same, units};
use std::time::Duration;

/// Bytes of each granted segment. They are mapped in WebAssembly.
const GRANTED: u64 = 2 << 20;

/// Rounds of a short run.
const ROUNDS: u64 = 150;

/// What the segment for reading has, byte by byte.
fn kept() -> Vec<u8> {
    (0..GRANTED).map(|at| (at % 251) as u8).collect()
}

/// A kernel with some of everything: loops, its own memory and granted segments, messages, code.
fn module() -> Outcome<Vec<u8>> {
    let body = "(local $n i32)
        (loop (i32.store (local.get $n) (i32.add (local.get $at) (local.get $n)))
            (local.set $n (i32.add (local.get $n) (i32.const 8)))
            (br_if 0 (i32.lt_u (local.get $n) (i32.const 800))))
        (i64.store (call $base (i32.const 1)) (i64.const 7))
        (drop (call $add64 (i32.const 1) (i64.const 8) (i64.load (call $base (i32.const 0)))))
        (if (i32.eqz (local.get $len)) (then
            (i64.store (call $base (i32.const 0)) (i64.const 7))
            (call $store64 (i32.const 0) (i64.const 8) (i64.const 7))
            (drop (call $define (local.get $at) (i32.const 64)))
            (call $inject (i32.const 0) (i32.const 0) (i32.const 0) (local.get $at) (i32.const 8))
            (call $forward (i32.const 0) (i32.const 0) (local.get $at) (i32.const 4))))
        (call $spawn (call $me) (i32.const 0) (local.get $at) (local.get $len))
        (call $reply (local.get $at) (local.get $len))";
    Ok(wat::parse_str(kernel(body))?)
}

/// Changes a capsule; or its module, if what comes out is no capsule.
fn changed(whole: &Capsule, module: &[u8], random: &mut Rng) -> Outcome<Capsule> {
    let mut change = |bytes: &mut Vec<u8>| match random.bool() {
        true => {
            let at = random.usize(8..bytes.len());
            bytes[at] = random.u8(..);
        }
        false => fuzz::mutate(random, bytes),
    };
    let mut bytes = whole.bytes().to_vec();
    change(&mut bytes);
    if let Ok(changed) = Capsule::decode(&bytes) {
        return Ok(changed);
    }
    let mut module = module.to_vec();
    change(&mut module);
    Ok(Capsule::builder(["run"]).wasm(module).build()?)
}

/// How the calls of changed code have ended.
#[derive(Debug, Default)]
struct Ended {
    rounds: u64,
    replied: u32,
    refused: u32,
    stopped: u32,
}

impl Ended {
    /// Calls changed code at unit 1, and then good code.
    fn round(&mut self, mobile: &Mobile, changed: Capsule, good: &Registered) -> Outcome {
        self.rounds += 1;
        let code = mobile.register(changed)?;
        let limits = Limits {
            hops: 3,
            ..Limits::default()
        };
        for payload in [&b"abcdefgh"[..], b""] {
            let called = match mobile.call_entry(1, &code, 0, payload, limits) {
                Err(Error::NoEntry { .. }) => break,
                called => called?,
            };
            match called.wait() {
                Ok(_) => self.replied += 1,
                Err(Error::Failed(failure)) => {
                    check!(failure.path.starts_with(&[0, 1]), "{failure}");
                    match failure.cause {
                        Cause::Refused => self.refused += 1,
                        _ => self.stopped += 1,
                    }
                }
                other => {
                    return Err(Failed::new(format!(
                        "neither a reply nor a failure: {other:?}"
                    )));
                }
            }
            same!(call(mobile, 1, good, b"good")?.wait()?, *b"good");
        }
        mobile.evict(code.hash());
        Ok(())
    }
}

fn mutated(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[_]| -> Outcome {
        let mobile = begin(fabric)?;
        let (read, write) = (fabric.allocate(GRANTED)?, fabric.allocate(GRANTED)?);
        let guard = fabric.allocate(GRANTED)?; // Not granted.
        for segment in [&read, &guard] {
            segment.bytes().write(0, &kept());
        }
        mobile.grant(0, read.bytes(), Rights::Read);
        mobile.grant(1, write.bytes(), Rights::Write);
        fabric.barrier(members)?;
        if fabric.identity().unit == 0 {
            let good = mobile.register(super::echo()?)?;
            let module = module()?;
            let plain = Capsule::builder(["run"]).wasm(module.clone());
            let several = Capsule::builder(["run"]).function("nobody has it");
            let several = several.wasm(module.clone()).wasm(module.clone());
            let whole = [plain.build()?, several.build()?];
            let mut ended = Ended::default();
            fuzz::rounds(name, ROUNDS, |_, random| {
                let whole = &whole[random.usize(..whole.len())];
                let changed = changed(whole, &module, random);
                let done = changed.and_then(|changed| ended.round(&mobile, changed, &good));
                done.unwrap_or_else(|failed| panic!("{failed:?}"));
            });
            println!("{ended:?}");
            let is_varied = ended.replied > 0 && ended.refused > 0 && ended.stopped > 0;
            check!(is_varied || ended.rounds < ROUNDS, "{ended:?}");
        }
        fabric.barrier(members)?;
        let mut bytes = vec![0; GRANTED as usize];
        for segment in [&read, &guard] {
            segment.bytes().read(0, &mut bytes);
            check!(bytes == kept(), "a kernel has written where it may not");
        }
        fabric.barrier(members)?;
        Ok(())
    };
    let time = fuzz::minutes().unwrap_or_default() + Duration::from_secs(120);
    let units = units(2).mask(mask).timeout(time + Duration::from_secs(60));
    let units = units.config(|config| config.deadline = time);
    units.run(name, body);
}

on_processes!(mutated_capsules_harm_nobody, mutated);

/// A module that imports what is not there is refused when it comes, also by a prefetch, and not at
/// each call.
fn unstartable(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    fabric.barrier(&members)?;
    if unit == 0 {
        for (item, says) in [
            (r#"(import "samite" "nope" (func))"#, "imports samite.nope"),
            (r#"(import "samite" "me" (func))"#, "samite.me as () -> ()"),
            (
                r#"(import "wasi" "fd_write" (func))"#,
                "imports wasi.fd_write",
            ),
            ("(memory 1)", "a memory of its own"),
        ] {
            let entry = r#"(func (export "run") (param i32 i32) (result i32) (i32.const 0))"#;
            let text = match item.starts_with("(memory") {
                true => format!("(module {entry} {item})"),
                false => format!("(module {item} {entry})"),
            };
            let capsule = Capsule::builder(["run"]).wasm(wat::parse_str(text)?);
            let code = mobile.register(capsule.build()?)?;
            let text = fails(mobile.prefetch(&code, &[1])?.wait(), Cause::Refused)?;
            check!(text.contains(says), "{text}");
            let text = fails(call(&mobile, 1, &code, &[])?.wait(), Cause::Refused)?;
            check!(text.contains(says), "{text}");
        }
    }
    fabric.barrier(&members)?;
    same!(mobile.counters().traps, 0);
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(what_cannot_start_is_refused_at_once, runs(2, unstartable));
