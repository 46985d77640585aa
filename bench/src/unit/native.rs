//! Kernels in C, which clang compiles when a command needs them: [`crate::mobile`].

use anyhow::{Context, Result};
use samite::mobile::{Capsule, Policy, Processor, SigningKey, Trust, clang};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// A kernel: its only entry, and its source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel(&'static str, &'static str);

pub(super) const ADD: Kernel = Kernel("add", include_str!("add.c"));
pub(super) const BELOW: Kernel = Kernel("below", include_str!("below.c"));

/// A form of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Wasm,
    /// For any processor of this architecture: LLVM optimises it where it runs.
    Bitcode,
    /// Compiled for this very processor.
    Ahead,
}

/// Returns whether the compiler is installed.
pub(super) fn has_clang() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let mut clang = Command::new(clang::PROGRAM);
        let clang = clang.arg("--version").stdout(Stdio::null());
        clang.status().is_ok_and(|ended| ended.success())
    })
}

/// Lets a unit run native code of this bench.
pub(super) fn policy() -> Policy {
    Policy {
        trust: Trust::ListedNative,
        keys: vec![key().verifying_key().to_bytes()],
        run_max: Duration::from_secs(10),
        ..Policy::default()
    }
}

/// Who signs the capsules.
fn key() -> SigningKey {
    SigningKey::from_bytes(b"the kernels of samite bench mobi")
}

/// Compiles a kernel, with these values of its macros.
pub(super) fn capsule(form: Form, kernel: Kernel, defined: &[(&str, u32)]) -> Result<Capsule> {
    let Kernel(entry, text) = kernel;
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("kernel.c");
    std::fs::write(&source, text)?;
    let arch = Processor::HERE.arch().context("a processor")?;
    let defined: Vec<String> = (defined.iter())
        .map(|(name, value)| format!("-D{name}={value}"))
        .collect();
    let compiled = |flags: Vec<&str>| -> Result<Vec<u8>> {
        let flags: Vec<&str> = (flags.into_iter())
            .chain(defined.iter().map(String::as_str))
            .collect();
        Ok(clang::compile(&source, &flags, folder.path())?)
    };
    let builder = Capsule::builder([entry]);
    let builder = match form {
        Form::Wasm => builder.wasm(compiled(clang::wasm())?),
        Form::Bitcode => {
            let code = compiled(clang::bitcode(arch))?;
            builder.bitcode(Processor::HERE, clang::LLVM, code)
        }
        Form::Ahead => {
            let code = compiled([&clang::elf(arch)[..], &["-march=native"]].concat())?;
            builder.elf(Processor::HERE, code)
        }
    };
    Ok(builder.build()?.sign(&key())?)
}
