//! Kernels in Rust: the same source as a function of the program and as WebAssembly, with the same
//! answers.

use crate::{failure, runs};
use samite_fabric::Fabric;
use samite_mobile::{Cause, Limits, Mobile, Policy, Registered, Rights, Trust};
use samite_testkit::{Outcome, check, require, same};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const TARGET: &str = "install the target: rustup target add wasm32-unknown-unknown";

/// Grants 0 and 1 are for writing and reading; there is no grant 5.
#[samite_mobile::mobile(crate = "samite_mobile")]
mod kernels {
    use samite_mobile::{Context, PAYLOAD_MAX, Trap};

    const BLOCK: usize = 100_000;

    /// Applied by the number of the first byte of a payload.
    static OPERATIONS: [fn(u64, u64) -> u64; 3] = [u64::wrapping_add, u64::wrapping_mul, larger];

    pub(super) const REAL: fn(u64) -> f64 = real;

    fn real(of: u64) -> f64 {
        let of = of as f64 / 256.0;
        of.sqrt().mul_add(of.floor(), of.round_ties_even().powi(2)) - of.fract()
    }

    fn larger(a: u64, b: u64) -> u64 {
        a.max(b)
    }

    fn word(payload: &[u8], at: usize) -> Result<u64, Trap> {
        let bytes = payload.get(at * 8..at * 8 + 8);
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or_else(|| Trap::failed(40, "the payload is too short"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn echo(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
        assert!(payload.len() as u64 <= PAYLOAD_MAX);
        context.reply(payload)
    }

    /// Replies with what all accesses to segment 0 have returned.
    pub(crate) fn access(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
        let seed = word(payload, 0)?;
        context.store(0, 8, seed)?;
        let mut found = [0; 8];
        found[0] = context.load(0, 8)?;
        found[1] = context.fetch_add(0, 8, 5)?;
        found[2] = context.compare_exchange(0, 8, seed + 5, 77)?;
        found[3] = context.compare_exchange(0, 8, seed, 78)?;
        found[4] = context.load(0, 8)?;
        found[5] = context.len(0)?;
        // More than one payload, and nothing.
        let mut block = [0; BLOCK];
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = (at as u64).wrapping_mul(seed | 1) as u8;
        }
        context.write(0, 101, &block)?;
        context.write(0, 101, &[])?;
        block.fill(0);
        context.read(0, 101, &mut block)?;
        found[6] = block.iter().map(|byte| u64::from(*byte)).sum();
        context.read(0, 16, &mut block[..9])?;
        found[7] = block[..9].iter().map(|byte| u64::from(*byte)).sum();
        let mut reply = [0; 64];
        for (bytes, word) in reply.chunks_exact_mut(8).zip(found) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        context.reply(&reply)
    }

    /// Moves on through all units, and adds up the first word of segment 1 of each.
    pub(crate) fn tour(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
        let total = word(payload, 0)? + context.load(1, 0)?;
        let next = context.me() + 1;
        match next < context.units() {
            true => context.forward(next, 2, &total.to_le_bytes()),
            false => {
                let mut reply = [0; 24];
                reply[..8].copy_from_slice(&total.to_le_bytes());
                reply[8..12].copy_from_slice(&context.me().to_le_bytes());
                reply[12..16].copy_from_slice(&context.origin().to_le_bytes());
                reply[16..18].copy_from_slice(&context.limits().hops.to_le_bytes());
                context.reply(&reply)
            }
        }
    }

    /// Adds to a word of every unit, this one, too.
    pub(crate) fn scatter(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
        match payload {
            [] => {
                for unit in 0..context.units() {
                    context.spawn(unit, 3, &3_u64.to_le_bytes())?;
                }
                Ok(())
            }
            _ => {
                context.fetch_add(0, 0, word(payload, 0)?)?;
                Ok(())
            }
        }
    }

    pub(crate) fn compute(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
        let operation = OPERATIONS[payload[0] as usize];
        let result = operation(word(&payload[1..], 0)?, word(&payload[1..], 1)?);
        context.reply(&(result ^ real(result).to_bits()).to_le_bytes())
    }

    /// Goes wrong in the way that the payload says.
    pub(crate) fn wrong(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
        let way = payload.first().copied().unwrap_or_default();
        match way {
            0 => Err(Trap::failed(-7, "as it was told")),
            1 => Err(Trap::failed(0, "")),
            2 => context.load(5, 0).map(|_| ()),
            3 => context.store(1, 0, 1),
            4 => context.load(0, 1).map(|_| ()),
            5 => context.load(0, u64::MAX - 3).map(|_| ()),
            6 => context.write(0, u64::MAX - 70_000, &[1; 65_540]),
            7 => context.read(5, 0, &mut []),
            8 => context.forward(77, 0, &[]),
            9 => context.forward(0, 300, &[]),
            10 => context.reply(&[0; PAYLOAD_MAX as usize + 1]),
            11 => context.reply(&[]).and_then(|()| context.forward(0, 0, &[])),
            12 => context.define(b"no module").map(|_| ()),
            13 => context.inject(0, 0, 0, &[]),
            14 => panic!("it was told to"),
            15 => Err(Trap::failed(
                1,
                core::str::from_utf8(&[b'x'; 300]).unwrap_or_default(),
            )),
            // It goes on as if nothing had happened, or fails otherwise.
            16 => {
                let found = context.load(5, 0).unwrap_or(7);
                context.store(0, 0, found).unwrap_or_default();
                context.reply(&found.to_le_bytes()).or(Ok(()))
            }
            17 => match context.forward(77, 0, &[]) {
                Ok(()) => Ok(()),
                Err(_) => Err(Trap::failed(3, "nowhere to go")),
            },
            index => {
                let one = [0; 16][usize::from(index)];
                context.reply(&[one])
            }
        }
    }
}

/// The cause with which each way of `wrong` ends.
const CAUSES: [Cause; 19] = [
    Cause::Failed,
    Cause::Failed,
    Cause::Grant,
    Cause::Grant,
    Cause::Grant,
    Cause::Grant,
    Cause::Grant,
    Cause::Grant,
    Cause::Target,
    Cause::Target,
    Cause::Forbidden,
    Cause::Forbidden,
    Cause::Refused,
    Cause::Target,
    Cause::Other,
    Cause::Failed,
    Cause::Grant,
    Cause::Target,
    Cause::Other,
];

/// Kernels may run for long: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(60);

/// Calls a kernel, and waits for its reply.
fn call(
    mobile: &Mobile,
    to: u32,
    code: &Registered,
    entry: &str,
    payload: &[u8],
) -> samite_mobile::Result<Vec<u8>> {
    let limits = Limits {
        run: LONG,
        time: LONG,
        ..Limits::default()
    };
    mobile.call_within(to, code, entry, payload, limits)?.wait()
}

/// Units 0 and 1 run the functions, units 2 and 3 the WebAssembly.
fn runs_function(unit: u32) -> bool {
    unit < 2
}

fn both_forms(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    let write = fabric.allocate(2 << 20)?;
    let read = fabric.allocate(64)?;
    read.bytes().write(0, &u64::from(unit + 1).to_le_bytes());
    mobile.grant(0, write.bytes(), Rights::Write);
    mobile.grant(1, read.bytes(), Rights::Read);
    mobile.set_policy(Policy {
        run_max: LONG,
        ..Policy::default()
    });
    if runs_function(unit) {
        kernels::define(&mobile);
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(kernels::capsule()?)?;
        same_answers(&mobile, &code)?;
        same_failures(&mobile, &code)?;
        // From each unit on through the others, of both kinds.
        for first in 0..4 {
            let reply = call(&mobile, first, &code, "tour", &[0; 8])?;
            let total: u64 = (first..4).map(|unit| u64::from(unit + 1)).sum();
            let hops = Limits::default().hops - (3 - first) as u16;
            let expected = [&total.to_le_bytes()[..], &3_u32.to_le_bytes(), &[0; 4]].concat();
            same!(&reply[..16], &expected[..]);
            same!(&reply[16..18], &hops.to_le_bytes());
        }
        for to in 1..3 {
            call(&mobile, to, &code, "scatter", &[])?;
        }
    }
    let word = || (write.bytes().u64(0).load(Relaxed) == 6).then_some(());
    mobile.serve(fabric.deadline(), word)?;
    fabric.barrier(&members)?;
    same!(mobile.counters().compiled, u64::from(!runs_function(unit)));
    fabric.barrier(&members)?;
    Ok(())
}

/// Calls each kernel at a unit of either kind.
fn same_answers(mobile: &Mobile, code: &Registered) -> Outcome {
    let both = |entry: &str, payload: &[u8]| -> Outcome<Vec<u8>> {
        let function = call(mobile, 1, code, entry, payload)?;
        let wasm = call(mobile, 2, code, entry, payload)?;
        check!(function == wasm, "{entry}: {function:?} and {wasm:?}");
        Ok(wasm)
    };
    let mut random = fastrand::Rng::with_seed(3);
    for len in [0, 1, 7, 4096, 64 << 10] {
        let payload: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        same!(both("echo", &payload)?, payload);
    }
    for _ in 0..5 {
        let seed = random.u64(..1 << 40);
        let found = both("access", &seed.to_le_bytes())?;
        let words: Vec<u64> = (found.chunks_exact(8))
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        same!(&words[..6], &[seed, seed, seed + 5, 77, 77, 2 << 20]);
        let (a, b) = (random.u64(..), random.u64(..));
        for (operation, expected) in [a.wrapping_add(b), a.wrapping_mul(b), a.max(b)]
            .iter()
            .enumerate()
        {
            let payload = [&[operation as u8][..], &a.to_le_bytes(), &b.to_le_bytes()].concat();
            let reply = both("compute", &payload)?;
            let real = kernels::REAL(*expected).to_bits();
            same!(reply, (expected ^ real).to_le_bytes());
        }
    }
    Ok(())
}

/// Each way to go wrong ends for the same cause, and the unit goes on.
fn same_failures(mobile: &Mobile, code: &Registered) -> Outcome {
    for (way, cause) in CAUSES.into_iter().enumerate() {
        let ended = |to| failure(call(mobile, to, code, "wrong", &[way as u8]));
        let (function, wasm) = (ended(1)?, ended(2)?);
        check!(
            (function.cause, wasm.cause) == (cause, cause),
            "way {way}: {function} ({:?}), {wasm} ({:?})",
            function.cause,
            wasm.cause
        );
        // The texts of panics do not travel, and a copy is refused in the piece that is outside.
        if cause != Cause::Other && way != 6 {
            same!(function.text, wasm.text);
        }
        same!(call(mobile, 2, code, "echo", b"on")?, b"on");
    }
    let ended = failure(call(mobile, 1, code, "access", b"short"))?;
    check!(
        ended.text.contains("code 40: the payload is too short"),
        "{ended}"
    );
    Ok(())
}

on_processes!(
    functions_and_wasm_give_the_same_answers,
    |name: &str, mask| {
        if require(name, kernels::HAS_WASM, TARGET) {
            runs(4, both_forms)(name, mask);
        }
    }
);

#[samite_mobile::mobile(crate = "samite_mobile")]
fn double(context: &mut samite_mobile::Context, payload: &[u8]) -> Result<(), samite_mobile::Trap> {
    let number = payload.iter().fold(0, |sum, byte| sum + u64::from(*byte));
    context.reply(&(2 * number).to_le_bytes())
}

/// A function needs no target: it runs where it is defined.
fn defined(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    // Code that moves is refused here, functions of the program are not.
    mobile.set_policy(Policy {
        trust: Trust::Nothing,
        ..Policy::default()
    });
    if unit == 1 {
        double::define(&mobile);
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(double::capsule()?)?;
        same!(code.capsule().entries(), ["double"]);
        let reply = mobile.call(1, &code, "double", &[1, 2])?.wait()?;
        same!(reply, 6_u64.to_le_bytes());
        let ended = failure(mobile.call(2, &code, "double", &[1, 2])?.wait())?;
        same!(ended.cause, Cause::Refused);
        let text = ended.to_string();
        check!(text.contains("has not defined"), "{text}");
        check!(text.contains("suite::rust::double"), "{text}");
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(a_function_runs_where_it_is_defined, runs(3, defined));
