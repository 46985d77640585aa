//! One capsule on two processors: this one, and aarch64 in an emulator.

#[path = "../../examples/answers/answers.rs"]
mod answers;

use crate::native::{can_compile, compiled};
use answers::{Answer, FUNCTIONS, answers};
use samite_mobile::{Capsule, Kind, Processor, clang};
use samite_testkit::{Failed, Outcome, check, full_name, require, same};
use std::path::Path;
use std::process::Command;

/// Where `cargo xtask` has built the example `answers` for aarch64.
const PROGRAM: &str = "SAMITE_TEST_AARCH64";
const EMULATOR: &str = "qemu-aarch64-static";
/// The folder of its system's libraries.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

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
    let ran = line
        .args(["-L", LIBRARIES])
        .args([program, file])
        .output()?;
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

/// Checks that an engine has done the same; if it may be missing, that it says so instead.
fn compare(wanted: &[&Answer], kind: Kind, all: &[Answer], may_lack: bool) -> Outcome {
    let found = of(kind, all);
    if let ([only], true) = (&found[..], may_lack)
        && only.call == "refused"
    {
        let starts = "LLVM bitcode needs the library of LLVM 22: install it (Debian: libllvm22)";
        check!(only.did.starts_with(starts), "{only}");
        return Ok(());
    }
    same!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        same!(found.call, wanted.call);
        check!(found.did == wanted.did, "{found}\n{wanted}");
    }
    Ok(())
}

fn compared(program: &Path) -> Outcome {
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
    compare(&functions, Kind::Function, &here, false)?;
    compare(&wanted, Kind::Bitcode, &here, false)?;
    compare(&wanted, Kind::Elf, &here, false)?;

    let there = emulated(program, &file)?;
    compare(&functions, Kind::Function, &there, false)?;
    compare(&wanted, Kind::Wasm, &there, false)?;
    compare(&wanted, Kind::Elf, &there, false)?;
    compare(&wanted, Kind::Bitcode, &there, true)
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
    if let Err(failed) = compared(Path::new(&program)) {
        panic!("{failed:?}");
    }
}
