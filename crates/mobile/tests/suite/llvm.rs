//! Units without LLVM, with another one, and with code of a later one.

use crate::native::{can_compile, compiled};
use crate::{begin, call, failure, kernel, runs, self_bounded_policy};
use samite_fabric::Fabric;
use samite_mobile::{Capsule, Cause, Mobile, Policy, Processor, Registered, Trust, clang};
use samite_testkit::{Failed, Outcome, check, require, same};
use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library that says that it is LLVM 19.
const STUB: &str = "
void LLVMGetVersion(unsigned *major, unsigned *minor, unsigned *patch) {
    *major = 19, *minor = 1, *patch = 7;
}
";

/// Trusts all code, and has LLVM looked for there.
fn look_in(mobile: &Mobile, llvm: Option<&Path>) {
    mobile.set_policy(Policy {
        trust: Trust::Everything,
        llvm: llvm.map(Path::to_owned),
        ..self_bounded_policy()
    });
}

/// Checks that unit 1 refuses code, and says all of these.
fn refused(mobile: &Mobile, unit: u32, code: &Registered, says: &[&str]) -> Outcome {
    let failure = failure(call(mobile, 1, code, &[])?.wait())?;
    same!(failure.cause, Cause::Refused);
    same!(failure.path, [unit, 1]);
    for what in says {
        check!(failure.text.contains(what), "{what}: {failure}");
    }
    Ok(())
}

/// Two units call unit 1. Bitcode that it cannot compile is refused to both; what has another form
/// runs, and so does other code.
fn no_engine(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let folder = tempfile::tempdir()?;
    let (empty, stub) = (folder.path().join("empty"), folder.path().join("stub"));
    std::fs::create_dir(&empty)?;
    std::fs::create_dir(&stub)?;
    if unit == 1 {
        std::fs::write(stub.join("stub.c"), STUB)?;
        let mut cc = Command::new("cc");
        let cc = cc.current_dir(&stub).args(["-shared", "-fPIC", "stub.c"]);
        let ended = cc.args(["-o", "libLLVM.so.22.1"]).output()?;
        check!(ended.status.success(), "{ended:?}");
    }
    let wasm = crate::calls::wat(&kernel(""))?;
    let other = mobile.register(Capsule::builder(["run"]).wasm(wasm.clone()).build()?)?;
    // No LLVM gets as far as to read this.
    let capsule = |producer| {
        let builder = Capsule::builder(["run"]);
        builder.bitcode(Processor::HERE, producer, *b"BC\xc0\xde of some LLVM")
    };
    let places = [
        (
            &empty,
            &["libllvm22", "`Policy::llvm`", "empty/libLLVM.so.22.1: "][..],
        ),
        (
            &stub,
            &["libllvm22", "stub/libLLVM.so.22.1: it is LLVM 19.1.7"][..],
        ),
    ];
    for (place, says) in places {
        if unit == 1 {
            look_in(&mobile, Some(place));
        }
        fabric.barrier(&members)?;
        if unit != 1 {
            let later = ["bitcode: it was made by LLVM 99", "LLVM 22 and earlier"];
            for (producer, says) in [(22, says), (99, &later[..])] {
                let alone = mobile.register(capsule(producer).build()?)?;
                refused(&mobile, unit, &alone, says)?;
                let both = mobile.register(capsule(producer).wasm(wasm.clone()).build()?)?;
                same!(call(&mobile, 1, &both, &[])?.wait()?, [0_u8; 0]);
                same!(call(&mobile, 1, &other, &[])?.wait()?, [0_u8; 0]);
            }
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

on_processes!(a_unit_without_llvm_refuses_bitcode, |name: &str, mask| {
    let ran = Command::new("cc").arg("--version").output();
    let has_cc = ran.is_ok_and(|ran| ran.status.success());
    if require(name, has_cc, "install gcc: ci/packages.txt") {
        runs(3, no_engine)(name, mask);
    }
});

/// Returns the folder from which this process has loaded LLVM.
fn loaded_from() -> Outcome<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let files = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let llvm = files.into_iter().find(|file| file.contains("/libLLVM"));
    let folder = llvm.and_then(|file| Path::new(file).parent());
    let folder = folder.map(Path::to_owned);
    folder.ok_or_else(|| Failed::new("LLVM is not loaded"))
}

/// One code, while unit 1 changes where it looks for LLVM. Code of a later one is refused there,
/// whatever it is.
fn named_folder(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let folder = tempfile::tempdir()?;
    let mut codes = Vec::new();
    if unit == 0 {
        let text = r#"
            #include "samite_kernel.h"
            SAMITE_KERNEL int32_t run(uint8_t *payload, uint32_t len) {
                samite_reply(payload, len);
                return 0;
            }"#;
        let bitcode = compiled(folder.path(), text, &clang::bitcode(ARCH))?;
        for producer in [22, 23] {
            let capsule = Capsule::builder(["run"]);
            let capsule = capsule.bitcode(Processor::HERE, producer, bitcode.clone());
            codes.push(mobile.register(capsule.build()?)?);
        }
    }
    let empty = folder.path().to_owned();
    for step in 0..4 {
        let is_found = step % 2 == 0;
        if unit == 1 {
            let place = match step {
                0 => None,
                2 => Some(loaded_from()?),
                _ => Some(empty.clone()),
            };
            look_in(&mobile, place.as_deref());
        }
        fabric.barrier(&members)?;
        if let [code, later] = &codes[..] {
            match is_found {
                true => same!(call(&mobile, 1, code, b"text")?.wait()?, *b"text"),
                false => refused(&mobile, 0, code, &["or name its folder"])?,
            }
            refused(&mobile, 0, later, &["it was made by LLVM 23"])?;
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

on_processes!(
    a_unit_looks_for_llvm_where_it_is_told,
    |name: &str, mask| {
        if can_compile(name) {
            runs(2, named_folder)(name, mask);
        }
    }
);
