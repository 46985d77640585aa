//! Environments that are no text: those of others are not looked at, ours are refused by name.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

const NO_TEXT: &[u8] = b"caf\xe9";

/// Joins in a process of its own that has this variable; what it says.
fn join_with(test: &str, variable: &[u8]) -> String {
    join_with_values(test, &[(variable, NO_TEXT)])
}

fn join_with_values(test: &str, variables: &[(&[u8], &[u8])]) -> String {
    const CHILD: &str = "SAMITE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        match samite::init() {
            Ok(_) => println!("it joined"),
            Err(error) => println!("refused: {error}"),
        }
        std::process::exit(0);
    }
    let ended = Command::new(std::env::current_exe().expect("a test binary has a path"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .envs(
            variables
                .iter()
                .map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))),
        )
        .output()
        .expect("a test binary can be started again");
    let said = [ended.stdout, ended.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn variables_of_others_need_not_be_text() {
    for variable in [&b"MENU"[..], NO_TEXT] {
        let said = join_with(
            "environment::variables_of_others_need_not_be_text",
            variable,
        );
        assert!(said.contains("it joined"), "{said}");
    }
}

/// They name files.
#[test]
fn variables_of_workloads_need_not_be_text() {
    for variable in ["SAMITE_LAMMPS", "SAMITE_PYTHON"] {
        let test = "environment::variables_of_workloads_need_not_be_text";
        let said = join_with(test, variable.as_bytes());
        assert!(said.contains("it joined"), "{said}");
    }
}

/// A unit whose identity is wrong does not become a domain of one.
#[test]
fn an_identity_that_cannot_be_is_refused() {
    let test = "environment::an_identity_that_cannot_be_is_refused";
    let said = join_with(test, b"SAMITE_DOMAIN");
    assert!(
        said.contains("refused: ") && said.contains("SAMITE_DOMAIN"),
        "{said}"
    );
    for variable in ["SAMITE_RANK", "SAMITE_JOB", "SAMITE_PROGRAM"] {
        let said = join_with(test, variable.as_bytes());
        assert!(said.contains(&format!("{variable}: ")), "{said}");
    }
    let said = join_with_values(test, &[(b"SAMITE_RANK", b"2"), (b"SAMITE_SIZE", b"2")]);
    assert!(
        said.contains("SAMITE_RANK is 2, but SAMITE_SIZE is 2"),
        "{said}"
    );
}

#[test]
fn a_setting_that_is_no_text_is_refused_by_name() {
    let test = "environment::a_setting_that_is_no_text_is_refused_by_name";
    let said = join_with(test, b"SAMITE_STAGE_FOLDER");
    assert!(
        said.contains("SAMITE_STAGE_FOLDER: its value is not UTF-8"),
        "{said}"
    );
}
