//! `docs/mobile.md`: its program prints what it should, its kernels in C are compiled, and its
//! command lines do what the page says. `crates/samite/tests/suite/guide.rs` compiles the fragments
//! of programs.

use crate::examples::programs::Programs;
use crate::examples::tutorial::{Block, blocks, listings};
use samite::mobile::{Capsule, KERNEL_HEADER, Kind, clang};
use samite_testkit::{full_name, require};
use std::path::Path;
use std::process::Command;

const PAGE: &str = "docs/mobile.md";

#[test]
fn the_first_program_doubles_at_every_unit() {
    assert_eq!(listings(&blocks(PAGE)), ["double.rs"]);
    let programs = Programs::new();
    let lines = programs.run("-n 3 target/debug/double");
    let said = [0, 1, 2].map(|unit| format!("unit {unit}: 42"));
    assert_eq!(lines.of("double.0"), said);
}

/// Returns the blocks of a language that contain this.
fn with<'b>(blocks: &'b [Block], language: &str, part: &str) -> Vec<&'b str> {
    let blocks = blocks.iter().filter(|block| block.language == language);
    let texts = blocks.map(|block| block.text.as_str());
    texts.filter(|text| text.contains(part)).collect()
}

/// Runs lines as they are on the page; returns what they print.
fn shell(folder: &Path, lines: &str) -> String {
    let samite = Path::new(env!("CARGO_BIN_EXE_samite"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = samite.parent().expect("it lies in a folder").to_owned();
    let path = [own].into_iter().chain(std::env::split_paths(&path));
    let ran = Command::new("sh")
        .args(["-e", "-c", lines])
        .current_dir(folder)
        .env(
            "PATH",
            std::env::join_paths(path).expect("no folder has a colon"),
        )
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{lines}{said}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Returns the entries of a capsule, and its kinds of code.
fn parts(file: &Path) -> (Vec<String>, Vec<Kind>) {
    let bytes = std::fs::read(file).expect("the capsule was written");
    let capsule = Capsule::decode(&bytes).expect("it is one");
    let kinds = capsule.parts().iter().map(|part| part.kind).collect();
    (capsule.entries().to_vec(), kinds)
}

#[test]
fn kernels_in_c_are_compiled_by_the_lines_of_the_page() {
    let test = full_name(
        module_path!(),
        "kernels_in_c_are_compiled_by_the_lines_of_the_page",
    );
    let runs = |program: &str| {
        let ran = Command::new(program).arg("--version").output();
        ran.is_ok_and(|ran| ran.status.success())
    };
    let is_there = runs(clang::PROGRAM) && runs("wasm-ld-22");
    if !require(
        &test,
        is_there,
        "install clang-22 and lld-22: ci/packages.txt",
    ) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = folder.path();
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).expect("a file");
    let blocks = blocks(PAGE);
    let sources = with(&blocks, "c", "SAMITE_KERNEL");
    let [sum, above] = sources[..] else {
        panic!("the page has two kernels in C, not {}", sources.len());
    };
    for (name, text) in [("sum.c", sum), ("kernel.c", sum), ("above.c", above)] {
        write(name, text);
    }
    let native = [Kind::Wasm, Kind::Bitcode, Kind::Bitcode, Kind::Elf];
    let run_all = |part: &str, count: usize| -> String {
        let lines = with(&blocks, "sh", part);
        assert_eq!(lines.len(), count, "blocks with `{part}`");
        lines.into_iter().map(|lines| shell(at, lines)).collect()
    };

    let inspected = run_all("samite capsule build sum.c", 1);
    assert!(
        inspected.contains("sum") && inspected.contains("nobody"),
        "{inspected}"
    );
    assert_eq!(
        parts(&at.join("sum.capsule")),
        (vec!["sum".into()], native.to_vec())
    );
    shell(at, "samite capsule build above.c -o above.capsule");
    assert_eq!(
        parts(&at.join("above.capsule")),
        (vec!["above".into()], vec![Kind::Wasm])
    );

    // By hand; the last block takes what the one before it has made.
    write("samite_kernel.h", KERNEL_HEADER);
    run_all("clang-22", 2);
    let of_all = [Kind::Wasm, Kind::Elf, Kind::Elf].to_vec();
    assert_eq!(
        parts(&at.join("kernel.capsule")),
        (vec!["sum".into()], of_all)
    );
    shell(
        at,
        "samite capsule build kernel.bc -o kernel.capsule --entry sum",
    );

    let [signs] = with(&blocks, "sh", "samite capsule sign")[..] else {
        panic!("one block signs a capsule");
    };
    let key = shell(at, "samite capsule key team.key");
    let said = shell(at, &signs.replace("PUBLIC", key.trim()));
    assert!(said.contains(key.trim()), "{said}");
}
