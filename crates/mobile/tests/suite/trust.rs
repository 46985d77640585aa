//! Code that a unit does not trust, or that is no code.

use crate::{begin, call, fails, kernel, patient_policy, runs};
use samite_fabric::Fabric;
use samite_mobile::{Capsule, Cause, Policy, Processor, SigningKey, Trust};
use samite_testkit::{Outcome, check, same};

fn trusted(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let key = SigningKey::from_bytes(&[3; 32]);
    if unit == 1 {
        mobile.set_policy(Policy {
            trust: Trust::SignedWasm,
            keys: vec![*key.verifying_key().as_bytes()],
            ..patient_policy()
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
        let file = r#"(module (import "wasi" "fd_write" (func)) (func (export "run")))"#;
        for code in [b"\0asm\x01\0\0\0?".to_vec(), super::calls::wat(file)?] {
            let capsule = Capsule::builder(["run"]).wasm(code).build()?;
            let code = mobile.register(capsule)?;
            fails(call(&mobile, 2, &code, &[])?.wait(), Cause::Refused)?;
        }
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(only_trusted_code_runs, runs(3, trusted));
