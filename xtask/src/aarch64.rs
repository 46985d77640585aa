//! `cargo xtask aarch64`: the engines of moved code on another processor, which is emulated.

use crate::arrows;
use crate::command::{cargo_with, output, succeeds};
use crate::parts::PARTS;
use anyhow::{Result, bail};
use std::path::Path;

/// The name of the part that this needs.
pub(crate) const PART: &str = "aarch64";
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// What tests need to find the program that is built for it.
const PROGRAM: &str = "SAMITE_TEST_AARCH64";
/// The test that compares the answers of both processors.
const COMPARISON: &str = "processors::the_same_answers_on_aarch64";
/// Has the test runner list the tests instead of running them.
const LIST: [&str; 2] = ["--list", "--format=terse"];
/// The linker, and the compiler for the one file of wasmtime that is in C.
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
/// The system of the compiler: what programs need, and no more.
const OF_COMPILER: &str = "/usr/aarch64-linux-gnu";
/// Where LLVM for aarch64 lies, as Debian installs it beside the libraries of this machine.
const LLVM: &str = "/usr/lib/aarch64-linux-gnu/libLLVM.so.22.1";
const LOADER: &str = "lib/ld-linux-aarch64.so.1";

/// Returns true if programs for aarch64 can be built, and emulated.
pub(crate) fn is_present() -> bool {
    let libraries = format!("ls \"$(rustc --print target-libdir --target {TARGET})\"/libcore-*");
    succeeds("sh", &["-c", &libraries])
        && succeeds(COMPILER, &["--version"])
        && succeeds(EMULATOR, &["--version"])
        && Path::new(OF_COMPILER).join(LOADER).exists()
}

/// Returns true if they find LLVM.
pub(crate) fn has_llvm() -> bool {
    Path::new(LLVM).exists()
}

/// Returns the root of the system that programs find in the emulator: this machine, if it has a
/// loader for aarch64. That comes with LLVM, which is then loaded with the C library beside it.
/// (The test `processors` does the same.)
fn system() -> &'static str {
    match Path::new("/").join(LOADER).exists() {
        true => "/",
        false => OF_COMPILER,
    }
}

/// Runs the tests of the engines in the emulator, and then the test that compares the answers of
/// both processors.
pub(crate) fn aarch64() -> Result<()> {
    if let Some(part) = PARTS
        .iter()
        .find(|part| part.name == PART && !part.is_present())
    {
        bail!("{PART} cannot be emulated: {}", part.install);
    }
    let line = ["test", "--package", "samite-mobile", "--test", "suite"];
    let line = [&line[..], &["--", "--exact", COMPARISON]].concat();
    check_listed(&output("cargo", &[&line[..], &LIST].concat())?)?;
    let (name, program) = emulated()?;
    cargo_with(&[(name, &program)], &line)
}

/// Fails if a list of the test runner lacks the comparison: the runner takes no test for a success.
fn check_listed(listed: &str) -> Result<()> {
    let test = format!("{COMPARISON}: test");
    match listed.lines().any(|line| line == test) {
        true => Ok(()),
        false => bail!(
            "xtask/src/aarch64.rs runs `{COMPARISON}`, but the suite of samite-mobile has no test of \
             this name"
        ),
    }
}

/// Runs the tests beside the code of the engines in the emulator, and builds the program that the
/// test `processors` starts there. Returns the variable that names it, and its path.
pub(crate) fn emulated() -> Result<(&'static str, String)> {
    let runner = format!("{EMULATOR} -L {}", system());
    let environment = [
        ("CC_aarch64_unknown_linux_gnu", COMPILER),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner),
        // The compiler of WebAssembly is large, and runs for a moment only.
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
    ];
    // The test hashes megabytes, which takes minutes if that is not optimised.
    let hashes = "profile.dev.package.blake3.opt-level=3";
    let common = ["--config", hashes, "--target", TARGET];
    let tests = ["--package", "samite-engines", "--package", "samite-mobile"];
    let line = [&["test"], &common[..], &tests, &["--lib"]].concat();
    cargo_with(&environment, &line)?;
    let program = ["--package", "samite-mobile", "--example", "answers"];
    let line = [&["build"], &common[..], &program].concat();
    cargo_with(&environment, &line)?;
    let folder = arrows::metadata()?.target_directory;
    Ok((PROGRAM, format!("{folder}/{TARGET}/debug/examples/answers")))
}

#[cfg(test)]
mod comparison {
    use super::*;

    #[test]
    fn a_test_that_was_renamed_is_found() {
        let listed = |name: &str| format!("processors::another: test\n{name}: test\n");
        check_listed(&listed(COMPARISON)).expect("it is there");
        for other in ["processor::the_same_answers_on_aarch64", "processors::the"] {
            let error = check_listed(&listed(other)).expect_err("it is not there");
            assert!(error.to_string().contains("`processors::"), "{error}");
        }
    }
}
