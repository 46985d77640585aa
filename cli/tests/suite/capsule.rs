//! `samite capsule`: what is built can be inspected, signed and verified; what is wrong is said.

use crate::domain::samite;
use samite::mobile::{Capsule, clang};
use samite_testkit::{full_name, require};
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

    let made = run(at, &["capsule", "key", "team.key"]);
    let note = String::from_utf8_lossy(&made.stderr);
    assert!(note.contains("team.key is a new secret key"), "{note}");
    let key = String::from_utf8_lossy(&made.stdout).into_owned();
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
    let of_file = shown(
        at,
        &["capsule", "verify", "two.capsule", "--key", "team.key"],
    );
    assert_eq!(of_file, verified);
    // The file of a public key verifies, and does not sign.
    std::fs::write(at.join("team.pub"), &key).expect("a file");
    let public = ["capsule", "verify", "two.capsule", "--key", "team.pub"];
    assert_eq!(shown(at, &public), verified);
    let said = error(at, &["capsule", "sign", "one.capsule", "--key", "team.pub"]);
    assert!(said.contains("looks like a public one"), "{said}");
    // What a file has is not shown, as it may be a secret; and no capsule takes its place.
    std::fs::write(at.join("old.key"), "7".repeat(64)).expect("a file");
    let old = ["capsule", "verify", "two.capsule", "--key", "old.key"];
    let said = error(at, &old);
    assert!(said.contains("not by the key old.key"), "{said}");
    assert!(!said.contains("7777777"), "{said}");
    let had = std::fs::read(at.join("team.key")).expect("a file");
    for words in [
        &["build", "kernel.wat", "-o", "team.key"][..],
        &["sign", "one.capsule", "--key", "team.key", "-o", "team.key"],
    ] {
        let said = error(at, &[&["capsule"], words].concat());
        assert!(said.contains("team.key has a secret key"), "{said}");
    }
    assert_eq!(std::fs::read(at.join("team.key")).expect("a file"), had);
    let zeroes = "0".repeat(64);
    for (key, says) in [("00", "is no public key"), (&zeroes, "not by the key 0000")] {
        let other = error(at, &["capsule", "verify", "two.capsule", "--key", key]);
        assert!(other.contains(says), "{other}");
    }
    // The same code, with and without its signature, has the same name.
    let hash = |text: &str| {
        let mut lines = text.lines().map(str::split_whitespace);
        let line = lines.find(|line| line.clone().next() == Some("hash"));
        line.expect("a hash").nth(1).map(str::to_owned)
    };
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
    std::fs::write(at.join("good.wat"), KERNEL).expect("a file");
    for (words, says) in [
        (&["good.wat", "-o", "good.wat"][..], "is an input"),
        (
            &["good.wat", "-o", "x", "--entry", "nothign"],
            "has no entry `nothign`",
        ),
        (
            &["good.wat", "good.wat", "-o", "x"],
            "two inputs for WebAssembly",
        ),
    ] {
        let said = error_of(&[&["capsule", "build"], words].concat());
        assert!(said.contains(says), "{said}");
    }
    let good = std::fs::read_to_string(at.join("good.wat")).expect("it is still there");
    assert_eq!(good, KERNEL);
    let missing = error_of(&["capsule", "build", "none.wasm", "-o", "x"]);
    assert!(missing.contains("none.wasm"), "{missing}");
    let kind = error_of(&["capsule", "build", "text.txt", "-o", "x"]);
    assert!(kind.contains(".wat"), "{kind}");
    let none = error_of(&["capsule", "inspect", "text.wat"]);
    assert!(none.contains("not a valid capsule"), "{none}");
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
    let unnamed = error_of(&["capsule", "sign", "text.wat", "--key", "text.wat"]);
    assert!(unnamed.contains("not a valid capsule"), "{unnamed}");
    assert!(!at.join("x").exists());
}

/// A file that is no key is neither taken for one, nor replaced by one; the error does not propose
/// the command that has just failed.
#[test]
fn a_file_that_is_no_key_is_said_to_be_none() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    std::fs::write(at.join("notes.txt"), "no key").expect("a file");
    std::fs::write(at.join("kernel.wat"), KERNEL).expect("a file");
    shown(at, &["capsule", "build", "kernel.wat", "-o", "a.capsule"]);
    for words in [
        &["capsule", "key", "notes.txt"][..],
        &["capsule", "sign", "a.capsule", "--key", "notes.txt"],
    ] {
        let said = error(at, words);
        assert!(said.contains("notes.txt is no secret key"), "{said}");
        assert!(said.contains("a new file"), "{said}");
        assert!(!said.contains("capsule key notes.txt"), "{said}");
    }
    let notes = std::fs::read(at.join("notes.txt")).expect("a file");
    assert_eq!(notes, b"no key");
}

/// The headers of a shared object for aarch64.
fn object() -> Vec<u8> {
    let mut bytes = vec![0; 64 + 3 * 56];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (bytes[16], bytes[18], bytes[20]) = (3, 183, 1);
    (bytes[32], bytes[52], bytes[54], bytes[56]) = (64, 64, 56, 3);
    for (at, kind) in [(0, 1_u32), (1, 2), (2, 0x6474_e551)] {
        bytes[64 + 56 * at..][..4].copy_from_slice(&kind.to_le_bytes());
    }
    bytes
}

/// What is packed is what its name says; an error names the file.
#[test]
fn what_is_packed_is_checked() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    std::fs::write(at.join("other.so"), object()).expect("a file");
    for name in ["a:kernel.wat", "kernel.wat"] {
        std::fs::write(at.join(name), KERNEL).expect("a file");
    }
    std::fs::write(at.join("text.wasm"), KERNEL).expect("a file");
    for name in ["bytes.wasm", "bytes.so", "bytes.bc", "bytes.wat"] {
        std::fs::write(at.join(name), b"\xfftwelve bytes").expect("a file");
    }
    let before = ["capsule", "build", "-o", "x", "--entry", "run"];
    for (words, says) in [
        (&["bytes.wasm"][..], "bytes.wasm"),
        (&["bytes.wat"], "bytes.wat"),
        (&["text.wasm"], "it is a module as text: name it .wat"),
        (&["bytes.so"], "bytes.so"),
        (&["bytes.bc"], "bytes.bc"),
        (&["x86-64:other.so"], "it is for aarch64, not for x86-64"),
        (&["x86-64:other.so"], "other.so"),
        (&["aarch64:kernel.wat"], "for .bc and .so files only"),
        (&["aarch64:kernel.c"], "for .bc and .so files only"),
        (&["mips:other.so"], "`mips` is not a processor"),
        (&["--native", "kernel.wat"], "no input is a .c file"),
    ] {
        let said = error(at, &[&before[..], words].concat());
        assert!(said.contains(says), "{words:?}: {said}");
        assert!(!at.join("x").exists(), "{words:?}");
    }
    for words in [&["other.so"][..], &["aarch64:other.so"]] {
        let built = shown(at, &[&before[..], words].concat());
        assert!(built.contains("aarch64"), "{built}");
    }
    shown(at, &["capsule", "build", "a:kernel.wat", "-o", "y"]);
}

/// WebAssembly that no unit can start is refused when it is packed.
#[test]
fn a_module_that_no_unit_runs_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    for (item, says) in [
        (
            r#"(import "wasi" "fd_write" (func))"#,
            "imports wasi.fd_write",
        ),
        (r#"(import "samite" "nope" (func))"#, "imports samite.nope"),
        (r#"(import "samite" "me" (func))"#, "samite.me as () -> ()"),
        ("(memory 1)", "import `samite.memory`"),
    ] {
        let memory = r#"(import "samite" "memory" (memory 1))"#;
        let kernel = match item.starts_with("(memory") {
            true => KERNEL.replace(memory, item),
            false => KERNEL.replace(memory, &format!("{memory} {item}")),
        };
        std::fs::write(at.join("kernel.wat"), kernel).expect("a file");
        for entry in [&[][..], &["--entry", "nothing"]] {
            let words = [&["capsule", "build", "kernel.wat", "-o", "x"], entry].concat();
            let said = error(at, &words);
            assert!(said.contains("kernel.wat") && said.contains(says), "{said}");
        }
        assert!(!at.join("x").exists(), "{item}");
    }
}

const SOURCE: &str = "#include \"samite_kernel.h\"\n\
    SAMITE_KERNEL int32_t twice(uint8_t *payload, uint32_t len) {\n\
        samite_reply(payload, 2 * len);\n\
        return 0;\n\
    }\n";

/// Returns true if kernels in C can be compiled and their bitcode be read; otherwise the test is
/// skipped by name.
fn has_clang(test: &str) -> bool {
    let ran = std::process::Command::new(clang::PROGRAM)
        .arg("--version")
        .output();
    let name = full_name(module_path!(), test);
    let is_there = ran.is_ok_and(|ran| ran.status.success());
    let packages = "install clang-22, lld-22 and libllvm22: ci/packages.txt";
    require(&name, is_there, packages)
}

/// Compiles the kernel of these tests.
fn compiled(folder: &Path, flags: &[&str]) -> Vec<u8> {
    let source = folder.join("twice.c");
    std::fs::write(&source, SOURCE).expect("a file");
    clang::compile(&source, flags, folder).expect("it compiles")
}

/// Bitcode says which LLVM has made it, also behind the header that some tools put before it. Of
/// one processor, a capsule has bitcode of several versions.
#[test]
fn bitcode_says_who_made_it() {
    if !has_clang("bitcode_says_who_made_it") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    let bitcode = |arch| compiled(at, &clang::bitcode(arch));
    let (new, arm) = (bitcode("x86_64"), bitcode("aarch64"));
    let mut old = new.clone();
    assert_eq!(old[20], 0x6d, "a digit of \"LLVM22\"");
    old[20] = 0x5d; // "LLVM21".
    let words = [0x0b17_c0de, 0, 20, new.len() as u32, 7].map(u32::to_le_bytes);
    let wrapped = [words.as_flattened(), &new[..]].concat();
    for (name, bytes) in [
        ("new.bc", &new),
        ("old.bc", &old),
        ("wrapped.bc", &wrapped),
        ("arm.bc", &arm),
    ] {
        std::fs::write(at.join(name), bytes).expect("a file");
    }
    let before = ["capsule", "build", "-o", "x", "--entry", "twice"];
    for (inputs, producers) in [
        (&["x86-64:wrapped.bc"][..], &["LLVM 22"][..]),
        (&["x86-64:old.bc", "x86-64:new.bc"], &["LLVM 21", "LLVM 22"]),
        (
            &["x86-64:new.bc", "aarch64:arm.bc"],
            &["LLVM 22", "LLVM 22"],
        ),
    ] {
        shown(at, &[&before[..], inputs].concat());
        let inspected = shown(at, &["capsule", "inspect", "x"]);
        let found: Vec<&str> = (inspected.lines())
            .filter(|line| line.contains("bitcode"))
            .collect();
        assert_eq!(found.len(), producers.len(), "{inspected}");
        for (line, producer) in found.iter().zip(producers) {
            assert!(line.contains(producer), "{inspected}");
        }
    }
    let twice = ["x86-64:new.bc", "x86-64:wrapped.bc"];
    let said = error(at, &[&before[..], &twice].concat());
    assert!(said.contains("two inputs for bitcode of"), "{said}");
    assert!(
        said.contains("by LLVM 22") && said.contains("first that it accepts"),
        "{said}"
    );
}

/// Native code that no unit would run is refused when it is packed: it is truncated, for another
/// processor than its name says, lacks an entry, or calls what is not offered.
#[test]
fn native_code_that_no_unit_runs_is_refused() {
    if !has_clang("native_code_that_no_unit_runs_is_refused") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    let bitcode = compiled(at, &clang::bitcode("x86_64"));
    let elf = compiled(at, &clang::elf(std::env::consts::ARCH));
    let mut unbound = elf.clone();
    // Its name is in the tables of symbols for the loader and for others.
    while let Some(name) = unbound.windows(11).position(|of| of == b"samite_bind") {
        unbound[name] = b'z';
    }
    for (name, bytes) in [
        ("whole.bc", &bitcode[..]),
        ("cut.bc", &bitcode[..bitcode.len() - 40]),
        ("whole.so", &elf),
        ("cut.so", &elf[..elf.len() - 40]),
        ("unbound.so", &unbound),
    ] {
        std::fs::write(at.join(name), bytes).expect("a file");
    }
    let before = ["capsule", "build", "-o", "x", "--entry"];
    for (words, says) in [
        (&["twice", "x86-64:cut.bc"][..], "cut.bc: no unit would run"),
        (&["twice", "aarch64:whole.bc"], "not for Linux on aarch64"),
        (&["thrice", "x86-64:whole.bc"], "no function `thrice`"),
        (&["twice", "cut.so"], "cut.so: "),
        (&["thrice", "whole.so"], "no function `thrice`"),
        (&["twice", "unbound.so"], "does not export `samite_bind`"),
    ] {
        let said = error(at, &[&before[..], words].concat());
        assert!(said.contains(says), "{words:?}: {said}");
        assert!(!at.join("x").exists(), "{words:?}");
    }
    for input in ["x86-64:whole.bc", "whole.so"] {
        shown(at, &[&before[..], &["twice", input]].concat());
    }
    let calls = SOURCE.replace("return 0", "return (int)__builtin_sqrt(len)");
    std::fs::write(at.join("root.c"), calls).expect("a file");
    let said = error(at, &["capsule", "build", "root.c", "-o", "y", "--native"]);
    assert!(said.contains("imports sqrt"), "{said}");
    assert!(!at.join("y").exists());
}

/// A kernel in C becomes WebAssembly, and with `--native` machine code as well; what clang refuses
/// is shown with its place.
#[test]
fn a_kernel_in_c_is_compiled() {
    if !has_clang("a_kernel_in_c_is_compiled") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    std::fs::write(at.join("twice.c"), SOURCE).expect("a file");
    for (native, kinds) in [
        (&[][..], &["wasm"][..]),
        (&["--native"], &["wasm", "bitcode", "bitcode", "elf"]),
    ] {
        let words = [&["capsule", "build", "twice.c", "-o", "c"], native].concat();
        let built = shown(at, &words);
        assert!(built.contains("twice"), "{built}");
        let bytes = std::fs::read(at.join("c")).expect("a capsule");
        let capsule = Capsule::decode(&bytes).expect("a capsule");
        assert_eq!(capsule.entries(), ["twice"]);
        let found: Vec<&str> = (capsule.parts().iter())
            .map(|part| part.kind.name())
            .collect();
        assert_eq!(found, kinds);
    }
    std::fs::write(at.join("wrong.c"), SOURCE.replace("return 0", "return")).expect("a file");
    let said = error(at, &["capsule", "build", "wrong.c", "-o", "d"]);
    assert!(said.contains("wrong.c:4"), "{said}");
    assert!(said.contains("clang-22 could not compile it"), "{said}");
    assert!(!at.join("d").exists());
}

/// A capsule cannot make the terminal do anything.
#[test]
fn names_of_entries_are_harmless() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    std::fs::write(at.join("kernel.wat"), KERNEL).expect("a file");
    shown(at, &["capsule", "build", "kernel.wat", "-o", "one"]);
    let mut bytes = std::fs::read(at.join("one")).expect("a file");
    let name = bytes.windows(7).position(|bytes| bytes == b"nothing");
    bytes[name.expect("its entry")] = 0x1b;
    std::fs::write(at.join("two"), bytes).expect("a file");
    let said = error(at, &["capsule", "inspect", "two"]);
    assert!(said.contains("printable ASCII"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
}
