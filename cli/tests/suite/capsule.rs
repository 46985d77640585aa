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
    let of_file = shown(
        at,
        &["capsule", "verify", "two.capsule", "--key", "team.key"],
    );
    assert_eq!(of_file, verified);
    let zeroes = "0".repeat(64);
    for (key, says) in [("00", "is no public key"), (&zeroes, "not by 0000")] {
        let other = error(at, &["capsule", "verify", "two.capsule", "--key", key]);
        assert!(other.contains(says), "{other}");
    }
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
    for name in ["bytes.wasm", "bytes.so", "bytes.bc", "bytes.wat"] {
        std::fs::write(at.join(name), b"\xfftwelve bytes").expect("a file");
    }
    let before = ["capsule", "build", "-o", "x", "--entry", "run"];
    for (words, says) in [
        (&["bytes.wasm"][..], "bytes.wasm"),
        (&["bytes.wat"], "bytes.wat"),
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

/// Bitcode says which LLVM has made it, also behind the header that some tools put before it. Of
/// one processor, a capsule has bitcode of several versions.
#[test]
fn bitcode_says_who_made_it() {
    const NEW: [u8; 32] = *b"BC\xc0\xde\x35\x14\0\0\x05\0\0\0\x62\x0c\x30\x24\
        \x4a\x59\xbe\xa6\x6d\xfb\xb5\xcf\x0b\x51\x80\x4c\x01\0\0\0";
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    let mut old = NEW;
    old[20] = 0x5d; // A digit: "LLVM21.1.8".
    let words = [0x0b17_c0de, 0, 20, 32, 7].map(u32::to_le_bytes);
    let wrapped = [words.as_flattened(), &NEW[..]].concat();
    for (name, bytes) in [
        ("new.bc", &NEW[..]),
        ("old.bc", &old),
        ("wrapped.bc", &wrapped),
        ("other.bc", b"BC\xc0\xde\x21\x0c\0\0"),
    ] {
        std::fs::write(at.join(name), bytes).expect("a file");
    }
    let before = ["capsule", "build", "-o", "x", "--entry", "run"];
    for (inputs, producers) in [
        (&["wrapped.bc"][..], &["LLVM 22"][..]),
        (&["other.bc"], &["an unknown compiler"]),
        (&["old.bc", "new.bc"], &["LLVM 21", "LLVM 22"]),
        (
            &["x86-64:new.bc", "aarch64:new.bc"],
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
    let said = error(at, &[&before[..], &["new.bc", "wrapped.bc"]].concat());
    assert!(said.contains("two inputs for bitcode of"), "{said}");
    assert!(
        said.contains("by LLVM 22") && said.contains("first that it accepts"),
        "{said}"
    );
}

/// A kernel in C becomes WebAssembly, and with `--native` machine code as well; what clang refuses
/// is shown with its place.
#[test]
fn a_kernel_in_c_is_compiled() {
    let has_clang = std::process::Command::new(clang::PROGRAM)
        .arg("--version")
        .output()
        .is_ok_and(|ran| ran.status.success());
    let name = full_name(module_path!(), "a_kernel_in_c_is_compiled");
    if !require(
        &name,
        has_clang,
        "install clang-22 and lld-22: ci/packages.txt",
    ) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    let source = "#include \"samite_kernel.h\"\n\
        SAMITE_KERNEL int32_t twice(uint8_t *payload, uint32_t len) {\n\
            samite_reply(payload, 2 * len);\n\
            return 0;\n\
        }\n";
    std::fs::write(at.join("twice.c"), source).expect("a file");
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
    std::fs::write(at.join("wrong.c"), source.replace("return 0", "return")).expect("a file");
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
