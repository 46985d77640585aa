//! Compiles kernels in C, with the flags of [`samite_engines::clang`].

use samite_engines::bitcode::Bitcode;
use samite_engines::clang;
use samite_testkit::require;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A source, compiled for each engine.
pub(crate) struct Built {
    pub(crate) wasm: Vec<u8>,
    pub(crate) bitcode: Vec<u8>,
    pub(crate) elf: Vec<u8>,
}

/// The flags of bitcode for this machine.
pub(crate) fn bitcode() -> Vec<&'static str> {
    clang::bitcode(std::env::consts::ARCH)
}

/// The flags of a shared object for this machine.
pub(crate) fn elf() -> Vec<&'static str> {
    clang::elf(std::env::consts::ARCH)
}

/// Returns true if there is a compiler, and LLVM for what it compiles; otherwise the test is
/// skipped by name.
pub(crate) fn can_build(test: &str) -> bool {
    let runs = |program: &str| {
        let ran = Command::new(program).arg("--version").output();
        ran.is_ok_and(|ran| ran.status.success())
    };
    let present = runs(clang::PROGRAM) && runs("wasm-ld-22") && Bitcode::new(None).is_ok();
    let packages = "clang-22, lld-22 and libllvm22";
    require(
        test,
        present,
        &format!("install {packages}: ci/packages.txt"),
    )
}

/// Compiles a source.
pub(crate) fn compile(source: &Path, flags: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let strict = [&["-Wall", "-Wextra", "-Werror"][..], flags].concat();
    clang::compile(source, &strict, folder.path()).unwrap()
}

/// Compiles a source that is given as text.
pub(crate) fn compile_text(text: &str, flags: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("kernel.c");
    std::fs::write(&source, text).unwrap();
    compile(&source, flags)
}

/// Returns the kernels of the tests, compiled once.
pub(crate) fn kernels(test: &str) -> Option<&'static Built> {
    static BUILT: OnceLock<Built> = OnceLock::new();
    can_build(test).then(|| {
        BUILT.get_or_init(|| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite");
            let source = PathBuf::from(folder).join("kernels.c");
            Built {
                wasm: compile(&source, &clang::wasm()),
                bitcode: compile(&source, &bitcode()),
                elf: compile(&source, &elf()),
            }
        })
    })
}
