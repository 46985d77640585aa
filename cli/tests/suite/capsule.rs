//! `samite capsule`: what is built can be inspected, signed and verified; what is wrong is said.

use crate::domain::samite;
use std::path::Path;
use std::process::Output;

const KERNEL: &str = r#"(module
  (import "samite" "memory" (memory 1))
  (func (export "nothing") (param i32 i32) (result i32) (i32.const 0)))"#;

fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = samite(words);
    command
        .current_dir(folder)
        .output()
        .expect("samite can be started")
}

fn shown(folder: &Path, words: &[&str]) -> String {
    let ran = run(folder, words);
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{words:?}: {error}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

fn error(folder: &Path, words: &[&str]) -> String {
    let ran = run(folder, words);
    assert!(!ran.status.success(), "{words:?}");
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

#[test]
fn a_capsule_is_built_signed_and_verified() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    std::fs::write(at.join("kernel.wat"), KERNEL).expect("a file");
    let built = shown(at, &["capsule", "build", "kernel.wat", "-o", "one.capsule"]);
    assert!(
        built.contains("nothing") && built.contains("wasm"),
        "{built}"
    );
    assert!(built.contains("nobody"), "{built}");
    let unsigned = error(at, &["capsule", "verify", "one.capsule"]);
    assert!(unsigned.contains("no signature"), "{unsigned}");

    let key = shown(at, &["capsule", "key", "team.key"]);
    assert_eq!(shown(at, &["capsule", "key", "team.key"]), key);
    shown(
        at,
        &[
            "capsule",
            "sign",
            "one.capsule",
            "--key",
            "team.key",
            "-o",
            "two.capsule",
        ],
    );
    let verified = shown(
        at,
        &["capsule", "verify", "two.capsule", "--key", key.trim()],
    );
    assert!(verified.contains(key.trim()), "{verified}");
    let other = error(at, &["capsule", "verify", "two.capsule", "--key", "00"]);
    assert!(other.contains("not by 00"), "{other}");
    // The same code, with and without its signature, has the same name.
    let hash = |text: &str| text.split_whitespace().nth(1).map(str::to_owned);
    let inspected = shown(at, &["capsule", "inspect", "two.capsule"]);
    assert_eq!(hash(&inspected), hash(&built));

    let mut bytes = std::fs::read(at.join("two.capsule")).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(at.join("bad.capsule"), bytes).expect("a file");
    let bad = error(at, &["capsule", "verify", "bad.capsule"]);
    assert!(bad.contains("signature"), "{bad}");
}

#[test]
fn what_is_no_capsule_or_kernel_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    std::fs::write(at.join("text.wat"), "(module (oops))").expect("a file");
    let error_of = |words: &[&str]| error(at, words);
    let bad = error_of(&["capsule", "build", "text.wat", "-o", "x"]);
    assert!(bad.contains("text.wat"), "{bad}");
    let missing = error_of(&["capsule", "build", "none.wasm", "-o", "x"]);
    assert!(missing.contains("none.wasm"), "{missing}");
    let kind = error_of(&["capsule", "build", "text.txt", "-o", "x"]);
    assert!(kind.contains(".wat"), "{kind}");
    let none = error_of(&["capsule", "inspect", "text.wat"]);
    assert!(none.contains("no capsule"), "{none}");
    // The capsule is one; what is called its key is none.
    std::fs::write(at.join("kernel.wat"), KERNEL).expect("a file");
    shown(at, &["capsule", "build", "kernel.wat", "-o", "one.capsule"]);
    for text in ["", "00", &"x".repeat(64), &"0".repeat(63), &"0".repeat(65)] {
        std::fs::write(at.join("bad.key"), text).expect("a file");
        let key = error_of(&["capsule", "sign", "one.capsule", "--key", "bad.key"]);
        assert!(key.contains("bad.key is no secret key"), "{text}: {key}");
    }
    let key = error_of(&["capsule", "sign", "one.capsule", "--key", "none.key"]);
    assert!(key.contains("none.key cannot be read"), "{key}");
    assert!(!at.join("x").exists());
}
