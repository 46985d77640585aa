//! One source in C, moved as WebAssembly, as bitcode and as a shared object: the same answers.

use crate::{begin, fails, runs, self_bounded_limits, self_bounded_policy};
use samite_fabric::Fabric;
use samite_mobile::{Capsule, Cause, Policy, Processor, Rights, SigningKey, Trust, clang};
use samite_testkit::{Outcome, require, same};
use std::env::consts::ARCH;
use std::path::Path;
use std::process::Command;

/// Adds up the words of segment 0 on every unit, moving on, and replies with the sum.
const SUM: &str = r#"
#include "samite_kernel.h"
SAMITE_KERNEL int32_t sum(uint8_t *payload, uint32_t len) {
    uint64_t *total = (uint64_t *)payload;
    if (len != 8)
        return 1;
    for (uint64_t at = 0; at < samite_len(0); at += 8)
        *total += samite_load64(0, at);
    if (samite_me() + 1 < samite_units())
        samite_forward(samite_me() + 1, 0, payload, 8);
    else
        samite_reply(payload, 8);
    return 0;
}
SAMITE_KERNEL int32_t wrong(uint8_t *payload, uint32_t len) {
    (void)payload, (void)len;
    samite_store64(0, 0, 1);
    return 0;
}
"#;

/// Compiles kernels in C.
pub(crate) fn compiled(folder: &Path, text: &str, flags: &[&str]) -> Outcome<Vec<u8>> {
    let source = folder.join("kernels.c");
    std::fs::write(&source, text)?;
    Ok(clang::compile(&source, flags, folder)?)
}

fn each_engine(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(64)?;
    for at in 0..8 {
        let word = u64::from(unit) * 100 + at;
        segment.bytes().write(at * 8, &word.to_le_bytes());
    }
    mobile.grant(0, segment.bytes(), Rights::Read);
    mobile.set_policy(Policy {
        trust: Trust::Everything,
        ..self_bounded_policy()
    });
    fabric.barrier(&members)?;
    if unit == 0 {
        let folder = tempfile::tempdir()?;
        let code = |flags: Vec<&str>| compiled(folder.path(), SUM, &flags);
        let wasm = code(clang::wasm())?;
        let bitcode = code(clang::bitcode(ARCH))?;
        let elf = code(clang::elf(ARCH))?;
        let of = || Capsule::builder(["sum", "wrong"]);
        let here = Processor::HERE;
        let capsules = [
            of().wasm(wasm.clone()),
            of().bitcode(here, 22, bitcode.clone()),
            of().elf(here, elf.clone()),
            of().wasm(wasm).bitcode(here, 22, bitcode).elf(here, elf),
        ];
        for capsule in capsules {
            let code = mobile.register(capsule.build()?)?;
            let reply = mobile
                .call_within(0, &code, "sum", &7_u64.to_le_bytes(), self_bounded_limits())?
                .wait()?;
            same!(reply, (7_u64 + 2400 + 3 * 28).to_le_bytes());
            fails(
                mobile
                    .call_within(1, &code, "wrong", &[], self_bounded_limits())?
                    .wait(),
                Cause::Grant,
            )?;
        }
    }
    fabric.barrier(&members)?;
    Ok(())
}

/// Returns true if there is a compiler; otherwise the test is skipped by name.
pub(crate) fn can_compile(test: &str) -> bool {
    let runs_clang = |program: &str| {
        let ran = Command::new(program).arg("--version").output();
        ran.is_ok_and(|ran| ran.status.success())
    };
    let present = runs_clang(clang::PROGRAM) && runs_clang("wasm-ld-22");
    let packages = "install clang-22, lld-22 and libllvm22: ci/packages.txt";
    require(test, present, packages)
}

on_processes!(the_same_answers_on_all_engines, |name: &str, mask| {
    if can_compile(name) {
        runs(3, each_engine)(name, mask);
    }
});

/// Native code that is signed by a key which a unit knows runs there, and other native code does
/// not.
fn signed(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(64)?;
    segment.bytes().write(0, &9_u64.to_le_bytes());
    mobile.grant(0, segment.bytes(), Rights::Read);
    let key = SigningKey::from_bytes(&[3; 32]);
    mobile.set_policy(Policy {
        trust: Trust::ListedNative,
        keys: vec![*key.verifying_key().as_bytes()],
        ..self_bounded_policy()
    });
    fabric.barrier(&members)?;
    if unit == 0 {
        let folder = tempfile::tempdir()?;
        let code = |flags: Vec<&str>| compiled(folder.path(), SUM, &flags);
        let elf = code(clang::elf(ARCH))?;
        let bitcode = code(clang::bitcode(ARCH))?;
        let here = Processor::HERE;
        let other = SigningKey::from_bytes(&[4; 32]);
        for (signer, runs) in [(None, false), (Some(&other), false), (Some(&key), true)] {
            // A name that no unit defines makes it another capsule: a caller is asked once.
            let name = format!("signed by {:?}", signer.map(SigningKey::to_bytes));
            let of = || Capsule::builder(["sum", "wrong"]).function(&name);
            let [elf, bitcode] = [elf.clone(), bitcode.clone()];
            for capsule in [of().elf(here, elf), of().bitcode(here, 22, bitcode)] {
                let mut capsule = capsule.build()?;
                if let Some(signer) = signer {
                    capsule = capsule.sign(signer)?;
                }
                let code = mobile.register(capsule)?;
                let payload = 7_u64.to_le_bytes();
                let ended = mobile.call_within(1, &code, "sum", &payload, self_bounded_limits())?;
                match runs {
                    true => same!(ended.wait()?, (7_u64 + 9).to_le_bytes()),
                    false => _ = fails(ended.wait(), Cause::Refused)?,
                }
            }
        }
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(signed_native_code_runs, |name: &str, mask| {
    if can_compile(name) {
        runs(2, signed)(name, mask);
    }
});
