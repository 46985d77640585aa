//! Code that a unit does not trust, or that is no code.

use crate::{begin, call, fails, kernel, runs, self_bounded_policy};
use samite_fabric::{Config, Fabric, Identity};
use samite_mobile::{Capsule, Cause, Mobile, Policy, Processor, SigningKey, Trust};
use samite_testkit::{Outcome, check, same};

fn trusted(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let key = SigningKey::from_bytes(&[3; 32]);
    if unit == 1 {
        mobile.set_policy(Policy {
            trust: Trust::SignedWasm,
            keys: vec![*key.verifying_key().as_bytes()],
            ..self_bounded_policy()
        });
    }
    fabric.barrier(&members)?;
    if unit == 0 {
        let plain = Capsule::from_wat(&kernel(""))?;
        let code = mobile.register(plain)?;
        let text = fails(call(&mobile, 1, &code, &[])?.wait(), Cause::Refused)?;
        check!(text.contains("signed or listed WebAssembly only"), "{text}");
        same!(call(&mobile, 2, &code, &[])?.wait()?, [0_u8; 0]);

        let signed = Capsule::from_wat(&kernel("(drop (call $me))"))?.sign(&key)?;
        let code = mobile.register(signed)?;
        same!(call(&mobile, 1, &code, &[])?.wait()?, [0_u8; 0]);

        // Native code without a signature, at the default level.
        let native = Capsule::builder(["run"]).elf(Processor::HERE, *b"\x7fELF");
        let code = mobile.register(native.build()?)?;
        let text = fails(call(&mobile, 2, &code, &[])?.wait(), Cause::Refused)?;
        check!(text.contains("elf") && text.contains("sign"), "{text}");

        // What is no code, or wants too much.
        let file = r#"(module (import "wasi" "fd_write" (func))
            (func (export "run") (param i32 i32) (result i32) (i32.const 0)))"#;
        for code in [b"\0asm\x01\0\0\0?".to_vec(), wat::parse_str(file)?] {
            let capsule = Capsule::builder(["run"]).wasm(code).build()?;
            let code = mobile.register(capsule)?;
            fails(call(&mobile, 2, &code, &[])?.wait(), Cause::Refused)?;
        }
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(only_trusted_code_runs, runs(3, trusted));

/// At each level of trust, plain, signed and listed code of both kinds: it runs, or is tried, or is
/// not trusted. No compiler is needed: the shared objects are none.
fn each_level(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let key = SigningKey::from_bytes(&[3; 32]);
    let elf = |text: &[u8; 5]| {
        let capsule = Capsule::builder(["run"]).elf(Processor::HERE, *text);
        capsule.build()
    };
    let plain = Capsule::from_wat(&kernel(""))?;
    let signed = Capsule::from_wat(&kernel("(drop (call $me))"))?.sign(&key)?;
    let wasm = [plain, signed];
    let native = [elf(b"plain")?, elf(b"signs")?.sign(&key)?, elf(b"lists")?];
    let levels = [
        (Trust::Nothing, [false; 2], [false; 3]),
        (Trust::SignedWasm, [false, true], [false; 3]),
        (Trust::Wasm, [true; 2], [false; 3]),
        (Trust::ListedNative, [true; 2], [false, true, true]),
        (Trust::Everything, [true; 2], [true; 3]),
    ];
    for (trust, runs, tries) in levels {
        if unit == 1 {
            mobile.set_policy(Policy {
                trust,
                keys: vec![*key.verifying_key().as_bytes()],
                hashes: vec![native[2].hash()],
                ..self_bounded_policy()
            });
        }
        fabric.barrier(&members)?;
        if unit == 0 {
            for (capsule, runs) in wasm.iter().zip(runs) {
                let code = mobile.register(capsule.clone())?;
                let ended = call(&mobile, 1, &code, &[])?.wait();
                match runs {
                    true => same!(ended?, [0_u8; 0]),
                    false => _ = fails(ended, Cause::Refused)?,
                }
            }
            for (capsule, tries) in native.iter().zip(tries) {
                let code = mobile.register(capsule.clone())?;
                let text = fails(call(&mobile, 1, &code, &[])?.wait(), Cause::Refused)?;
                let tried = text.contains("elf: the code is not valid");
                let untrusted = text.contains(&format!("this unit accepts {trust}"));
                check!((tried, untrusted) == (tries, !tries), "{trust}: {text}");
            }
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

on_processes!(each_level_of_trust_between_units, runs(2, each_level));

/// Parts that cannot be loaded are passed over, also several of one kind.
fn next_part(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    mobile.set_policy(Policy {
        trust: Trust::Everything,
        ..self_bounded_policy()
    });
    let members = fabric.job()?;
    fabric.barrier(&members)?;
    if unit == 0 {
        let wasm = crate::calls::wat(&kernel(""))?;
        let here = Processor::HERE;
        let bad = || {
            let capsule = Capsule::builder(["run"]).elf(here, *b"no object");
            let capsule = capsule.bitcode(here, 99, *b"BC\xc0\xde of a later LLVM");
            capsule
                .bitcode(here, 22, *b"no bitcode")
                .wasm(*b"no module")
        };
        let code = mobile.register(bad().wasm(wasm).build()?)?;
        same!(call(&mobile, 1, &code, &[])?.wait()?, [0_u8; 0]);
        // Each of them says why.
        let code = mobile.register(bad().build()?)?;
        let text = fails(call(&mobile, 1, &code, &[])?.wait(), Cause::Refused)?;
        let whys = ["elf: ", "bitcode: ", "wasm: "].map(|kind| text.matches(kind).count());
        same!(whys, [1, 2, 1]);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(
    parts_that_cannot_be_loaded_are_passed_over,
    runs(2, next_part)
);

/// Keeps the texts of warnings.
#[derive(Clone, Default)]
struct Warnings(std::sync::Arc<std::sync::Mutex<String>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut texts = self.0.lock().unwrap();
        event.record(
            &mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                texts.push_str(&format!("{value:?}"));
            },
        );
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_unit_that_trusts_everything_says_so() {
    let fabric = Fabric::alone(Identity::by_hand("trust"), Config::default()).unwrap();
    let mobile = Mobile::new(&fabric).unwrap();
    let warnings = Warnings::default();
    let said = |trust| {
        let policy = Policy {
            trust,
            ..Policy::default()
        };
        tracing::subscriber::with_default(warnings.clone(), || mobile.set_policy(policy));
        std::mem::take(&mut *warnings.0.lock().unwrap())
    };
    assert_eq!(said(Trust::ListedNative), "");
    let text = said(Trust::Everything);
    assert!(text.contains("without a sandbox"), "{text}");
}
