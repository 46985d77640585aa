//! How clang compiles a kernel in C for each engine. `samite capsule build`, the bench and the
//! tests use these flags, and `include/samite_kernel.h` names them.
//!
//! To them come `-I` and the folder of the header, the source, and `-o` and the output.

use crate::KERNEL_HEADER;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

/// The compiler.
pub const PROGRAM: &str = "clang-22";

/// The major version of its LLVM.
pub const LLVM: u16 = 22;

const ALL: [&str; 2] = ["-O3", "-ffreestanding"];

/// Returns the flags of WebAssembly. It is linked by lld.
pub fn wasm() -> Vec<&'static str> {
    let own = [
        "--target=wasm32",
        "-mbulk-memory",
        "-msimd128",
        // Otherwise zeroes are written when the module starts, and modules do nothing then.
        "-fno-zero-initialized-in-bss",
        "-nostdlib",
        // As much as kernels in Rust have.
        "-Wl,--no-entry,--export-dynamic,-z,stack-size=1048576",
        "-Xlinker",
        "--import-memory=samite,memory",
    ];
    [&ALL[..], &own].concat()
}

/// Returns the flags of LLVM bitcode for a processor, named as in `std::env::consts::ARCH`. Loops
/// are left as they are: the processor on which they run has longer vectors than the least one of
/// its kind, for which this compiles.
pub fn bitcode(arch: &str) -> Vec<&'static str> {
    let own = ["-fno-vectorize", "-fno-slp-vectorize", "-emit-llvm", "-c"];
    [&ALL[..], target(arch), &own].concat()
}

/// Returns the flags of a shared object for a processor, named as in `std::env::consts::ARCH`. The
/// linker has to know that processor.
pub fn elf(arch: &str) -> Vec<&'static str> {
    let own = [
        "-fPIC",
        "-shared",
        "-nostdlib",
        "-fvisibility=hidden",
        "-DSAMITE_ELF",
    ];
    [&ALL[..], target(arch), &own].concat()
}

/// Compiles a source, and returns the output. That and the header are written to `folder`. What
/// clang says goes to the standard error of this process.
///
/// # Errors
/// Those of the file system; the text says so if clang is missing or refuses the source.
pub fn compile(source: &Path, flags: &[&str], folder: &Path) -> io::Result<Vec<u8>> {
    let output = folder.join("kernel.out");
    fs::write(folder.join("samite_kernel.h"), KERNEL_HEADER)?;
    let mut clang = Command::new(PROGRAM);
    clang.args(flags).arg("-I").arg(folder).arg(source);
    let ended = clang.arg("-o").arg(&output).status().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "{PROGRAM} cannot be started ({error}): install it \
                 (apt-get install {PROGRAM} lld-{LLVM})"
            ),
        )
    })?;
    match ended.success() {
        true => fs::read(&output),
        false => Err(io::Error::other(format!("{PROGRAM} could not compile it"))),
    }
}

fn target(arch: &str) -> &'static [&'static str] {
    match arch {
        // Atomic builtins are instructions, and not calls into a library that no engine offers.
        "aarch64" => &["--target=aarch64-linux-gnu", "-mno-outline-atomics"],
        _ => &["--target=x86_64-linux-gnu"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_the_same_flags() {
        for flag in [wasm(), bitcode("aarch64"), elf("aarch64")].concat() {
            assert!(KERNEL_HEADER.contains(flag), "{flag}");
        }
    }
}
