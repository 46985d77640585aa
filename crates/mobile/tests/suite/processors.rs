//! One capsule on two processors: this one, and aarch64 in an emulator.

#[path = "../../examples/answers/answers.rs"]
mod answers;

use crate::native::{can_compile, compiled};
use answers::{Answer, FUNCTIONS, answers, call_of, called};
use samite_mobile::{Capsule, Kind, Processor, clang};
use samite_testkit::{Failed, Outcome, check, full_name, require, same};
use std::path::Path;
use std::process::Command;

/// Where `cargo xtask` has built the example `answers` for aarch64.
const PROGRAM: &str = "SAMITE_TEST_AARCH64";
const EMULATOR: &str = "qemu-aarch64-static";
/// What brings LLVM for aarch64, which also runs here then.
const LLVM: &str = "install LLVM 22 for aarch64: `dpkg --add-architecture arm64`, then \
    `apt-get update` and `apt-get install libllvm22:arm64`, as ci/setup does";

/// Returns the root of the system that the program finds in the emulator: that of this machine if
/// it has a loader and a C library for aarch64 (`libc6:arm64`, which comes with `libllvm22:arm64`),
/// otherwise that of the compiler for aarch64. So both libraries are of one system.
fn system() -> &'static str {
    match Path::new("/lib/ld-linux-aarch64.so.1").exists() {
        true => "/",
        false => "/usr/aarch64-linux-gnu",
    }
}

/// The processors with native code, and the compiler's flags for them.
const NATIVE: [(Processor, &str); 2] = [(Processor::X86, "x86_64"), (Processor::Arm, "aarch64")];

/// Makes a capsule with code for both processors.
fn capsule(folder: &Path) -> Outcome<Capsule> {
    let compiled = |flags: &[&str]| compiled(folder, include_str!("answers.c"), flags);
    let wasm = compiled(&clang::wasm())?;
    let entries = samite_engines::wasm::entries(&wasm)?;
    let mut builder = Capsule::builder(entries).wasm(wasm);
    for (processor, arch) in NATIVE {
        let bitcode = compiled(&clang::bitcode(arch))?;
        let elf = compiled(&[&clang::elf(arch)[..], &["-fuse-ld=lld"]].concat())?;
        builder = builder.bitcode(processor, 22, bitcode);
        builder = builder.elf(processor, elf);
    }
    Ok(builder.build()?)
}

/// Runs the capsule on aarch64.
fn emulated(program: &Path, file: &Path) -> Outcome<Vec<Answer>> {
    let mut line = Command::new(EMULATOR);
    let ran = line.args(["-L", system()]).args([program, file]).output()?;
    let errors = String::from_utf8_lossy(&ran.stderr);
    check!(ran.status.success(), "{}: {errors}", ran.status);
    let mut all = Vec::new();
    for line in std::str::from_utf8(&ran.stdout)?.lines() {
        let mut fields = line.splitn(3, '\t').map(str::to_owned);
        let fields = (fields.next(), fields.next(), fields.next());
        let (Some(engine), Some(call), Some(did)) = fields else {
            return Err(Failed::new(format!("not an answer: {line}")));
        };
        all.push(Answer { engine, call, did });
    }
    Ok(all)
}

/// The answers of one engine.
fn of(kind: Kind, all: &[Answer]) -> Vec<&Answer> {
    let of_it = |answer: &&Answer| answer.engine == kind.name();
    all.iter().filter(of_it).collect()
}

/// Checks that an engine has done the same.
fn compare(wanted: &[&Answer], kind: Kind, all: &[Answer]) -> Outcome {
    let found = of(kind, all);
    if let [only] = &found[..] {
        check!(only.call != "refused", "{only}");
    }
    same!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        same!(found.call, wanted.call);
        check!(found.did == wanted.did, "{found}\n{wanted}");
    }
    Ok(())
}

/// What units that called code of one kind were told.
fn calls_of(kind: Kind, all: &[Answer]) -> Vec<&Answer> {
    let engine = call_of(kind);
    all.iter()
        .filter(|answer| answer.engine == engine)
        .collect()
}

/// Checks that calls of two kinds of code, or on two processors, have ended in the same way: two of
/// four entries reply, one fails and one is stopped.
fn compare_calls(found: &[&Answer], wanted: &[&Answer]) -> Outcome {
    same!(found.len(), wanted.len());
    let replies = wanted
        .iter()
        .filter(|answer| answer.did.starts_with("replied "));
    check!(
        replies.count() * 2 == wanted.len() && !wanted.is_empty(),
        "{wanted:?}"
    );
    for (found, wanted) in found.iter().zip(wanted) {
        same!(found.call, wanted.call);
        check!(found.did == wanted.did, "{found}\n{wanted}");
    }
    Ok(())
}

/// Returns whether there was LLVM in the emulator.
fn has_llvm(all: &[Answer]) -> bool {
    let is_missing = |answer: &&Answer| {
        let starts = "LLVM bitcode needs the library of LLVM 22: install it (Debian: libllvm22)";
        answer.call == "refused" && answer.did.starts_with(starts)
    };
    !of(Kind::Bitcode, all).iter().any(is_missing)
}

fn compared(test: &str, program: &Path) -> Outcome {
    let folder = tempfile::tempdir()?;
    let capsule = capsule(folder.path())?;
    let file = folder.path().join("kernels.capsule");
    std::fs::write(&file, capsule.bytes())?;

    let here = answers(&capsule);
    let wanted = of(Kind::Wasm, &here);
    // Each kernel ends as it is meant to, and what it does depends on its payload.
    same!(wanted.len(), 3 * capsule.entries().len());
    for answer in &wanted {
        let (entry, _) = answer.call.split_once('(').unwrap_or_default();
        let ends = match entry {
            "fails" => "Err(Failed",
            "forbidden" => "Err(Rights",
            _ => "Ok(()), ",
        };
        check!(answer.did.starts_with(ends), "{answer}");
    }
    let is_function = |answer: &&&Answer| {
        let (entry, _) = answer.call.split_once('(').unwrap_or_default();
        FUNCTIONS.contains(&entry)
    };
    let functions: Vec<&Answer> = wanted.iter().filter(is_function).copied().collect();
    same!(functions.len(), 3 * FUNCTIONS.len());
    compare(&functions, Kind::Function, &here)?;
    compare(&wanted, Kind::Bitcode, &here)?;
    compare(&wanted, Kind::Elf, &here)?;

    let there = emulated(program, &file)?;
    compare(&functions, Kind::Function, &there)?;
    compare(&wanted, Kind::Wasm, &there)?;
    compare(&wanted, Kind::Elf, &there)?;
    let calls = called(&capsule);
    let of_wasm = calls_of(Kind::Wasm, &calls);
    compare_calls(&calls_of(Kind::Bitcode, &calls), &of_wasm)?;
    compare_calls(&calls_of(Kind::Elf, &calls), &of_wasm)?;
    compare_calls(&calls_of(Kind::Wasm, &there), &of_wasm)?;
    compare_calls(&calls_of(Kind::Elf, &there), &of_wasm)?;
    // All but this needs no more than the program.
    if require(test, has_llvm(&there), LLVM) {
        compare(&wanted, Kind::Bitcode, &there)?;
        compare_calls(&calls_of(Kind::Bitcode, &there), &of_wasm)?;
    }
    Ok(())
}

#[test]
fn the_same_answers_on_aarch64() {
    let test = full_name(module_path!(), "the_same_answers_on_aarch64");
    let program = std::env::var_os(PROGRAM);
    let built = "run `cargo xtask aarch64`, which builds the program that it needs";
    if !can_compile(&test) || !require(&test, program.is_some(), built) {
        return;
    }
    let program = program.unwrap_or_default();
    if let Err(failed) = compared(&test, Path::new(&program)) {
        panic!("{failed:?}");
    }
}
