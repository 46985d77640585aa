//! Starting is a collective act: programs that meet and leave, units that never join.

use std::process::{Command, Output};

#[allow(clippy::duplicate_mod, reason = "the tests of examples run it, too")]
#[path = "../../../crates/samite/examples/hello.rs"]
mod hello;

/// This test binary as a program under `samite run`: it becomes the example.
const PROGRAM: &str = "starting::the_first_program_ends_well";

fn run(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_samite"))
        .arg("run")
        .args(arguments)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .output();
    output.expect("samite can be started")
}

fn this() -> String {
    let path = std::env::current_exe().expect("a test binary has a path");
    path.display().to_string()
}

#[test]
fn the_first_program_ends_well() {
    if std::env::var("SAMITE_RANK").is_ok() {
        return hello::main().expect("all units have joined");
    }
    let program = this();
    for _ in 0..10 {
        let command = ["-n", "3", &program, "--exact", PROGRAM, "--nocapture"];
        let output = run(&command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}{errors}");
        for unit in 0..3 {
            assert!(said.contains(&format!("unit {unit} of 3\n")), "{said}");
        }
    }
}

/// The others hear at once that one of them ended before it joined: nobody would wait for the
/// deadline.
#[test]
fn a_unit_that_never_joins_is_named() {
    let script = format!(
        "[ $SAMITE_RANK = 1 ] || exec {} --exact {PROGRAM} --nocapture",
        this()
    );
    let deadline = ["--config", "fabric.deadline=1h"];
    let output = run(&[&deadline[..], &["-n", "3", "sh", "-c", &script]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        errors.contains("sh.1") && errors.contains("ended") && errors.contains("Absent"),
        "{errors}"
    );
}
