//! `samite run` as a person meets it: whole processes, good days and bad ones.
//!
//! Files: this one (programs, workflows, mistakes) · `ends` (failures, signals, launchers that are
//! killed) · `limits` (of the system) · `settings` (what is set, and where it is from) · `flow`
//! (what a workflow file can say of its programs) · `hosts` (jobs on several machines) ·
//! `connections` (of a launcher with them).

mod connections;
mod ends;
mod flow;
mod hosts;
mod limits;
mod settings;

use rustix::process::{Pid, test_kill_process};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

fn samite() -> Command {
    isolated(Command::new(env!("CARGO_BIN_EXE_samite")))
}

/// Without the settings of whoever runs the tests.
fn isolated(mut command: Command) -> Command {
    command
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG");
    command
}

fn output(arguments: &[&str]) -> Output {
    samite()
        .args(arguments)
        .output()
        .expect("samite can be started")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("units print ASCII")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are text")
}

fn workflow(folder: &Path, text: &str) -> String {
    let path = folder.join("flow.toml");
    std::fs::write(&path, text).expect("a scratch folder can be written");
    path.display().to_string()
}

/// Waits until none of these processes runs; one that is dead and not reaped does not.
fn wait_until_gone(pids: &[Pid]) {
    for &pid in pids {
        // Killed processes of a dead launcher are reaped by the system, in its own time.
        let zombie = || {
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                .is_ok_and(|stat| stat.contains(") Z "))
        };
        while test_kill_process(pid).is_ok() && !zombie() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn units_of_a_program() {
    let output = output(&["run", "-n", "4", "/bin/echo", "hi", "--there"]);
    let mut lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    lines.sort();
    let expected: Vec<_> = (0..4)
        .map(|rank| format!("[echo.{rank}] hi --there"))
        .collect();
    assert_eq!(lines, expected);
    assert!(output.status.success());
}

#[test]
fn lines_can_be_shown_without_names() {
    let output = output(&["run", "--tag-output", "no", "echo", "hi"]);
    assert_eq!(stdout(&output), "hi\n");
}

#[test]
fn a_workflow_takes_its_parameters_as_options() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = workflow(
        folder.path(),
        r#"
        parameters = { size = { default = 8, help = "rows" }, units = 1 }
        [[program]]
        name = "a"
        command = "sh"
        args = ["-c", "echo $SAMITE_SIZE {size}; echo \"$SAMITE_CONFIG\" | grep ^deadline"]
        units = "{units}"
        prefix = false
        [config.fabric]
        deadline = "7s"
        "#,
    );
    let shown = |arguments: &[&str]| {
        let arguments: Vec<_> = ["run"].iter().chain(arguments).copied().collect();
        let output = output(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let from_file = "deadline = \"7s\"\n";
    assert_eq!(shown(&[&file]), format!("1 8\n{from_file}"));
    assert_eq!(shown(&[&file, "--size", "9"]), format!("1 9\n{from_file}"));
    assert_eq!(shown(&["--size=9", &file]), format!("1 9\n{from_file}"));
    assert_eq!(
        shown(&[&file, "--set", "size=10"]),
        format!("1 10\n{from_file}")
    );
    // The last word counts.
    let (set, size) = (["--set", "size=10"], ["--size", "9"]);
    let both = |first: [&'static str; 2], then: [&'static str; 2]| {
        shown(&[&[file.as_str()], &first[..], &then[..]].concat())
    };
    assert_eq!(both(set, size), format!("1 9\n{from_file}"));
    assert_eq!(both(size, set), format!("1 10\n{from_file}"));
    assert_eq!(
        shown(&[&file, "--config", "fabric.deadline=9s"]),
        "1 8\ndeadline = \"9s\"\n"
    );
    assert!(shown(&[&file, "--units", "2"]).contains("2 8\n"));
    assert!(shown(&[&file, "--help"]).contains("rows [default: 8]"));
    let wrong = output(&["run", &file, "--sise", "9"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("--size"), "{}", stderr(&wrong));
}

/// Only the options of this command are taken.
#[test]
fn a_parameter_may_have_the_name_of_another_commands_option() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = "[[program]]\nname = \"a\"\ncommand = \"echo\"\nprefix = false\n";
    let text = "parameters = { json = 1, target = 2 }\n";
    let args = "args = [\"{json}\", \"{target}\"]\n";
    let file = workflow(folder.path(), &[text, program, args].concat());
    let shown = output(&["run", &file, "--json", "3", "--target=4"]);
    assert_eq!(stdout(&shown), "3 4\n", "{}", stderr(&shown));
    let refused = output(&["doctor", &file]);
    let why = "the parameter `json` is an option of `samite doctor` already";
    assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
}

#[test]
fn a_program_whose_path_is_no_text_is_run() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
    std::os::unix::fs::symlink("/bin/echo", &path).expect("a scratch folder can be written");
    let mut command = samite();
    let command = command
        .args(["run", "--tag-output", "no"])
        .arg(path)
        .arg("hi");
    let output = command.output().expect("samite can be started");
    assert_eq!(stdout(&output), "hi\n", "{}", stderr(&output));
}

#[test]
fn mistakes_in_files_and_names_are_explained() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let refused = |text: &str, expected: &str| {
        let file = workflow(folder.path(), text);
        let output = output(&["run", &file]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(stdout(&output).is_empty());
    };
    let program = "[[program]]\nname = \"a\"\ncommand = \"echo\"\n";
    refused(
        &format!("{program}unit = 2\n"),
        "flow.toml:4: [[program]] has no key `unit`; did you mean `units`?",
    );
    refused(
        &format!("{program}[config.fabric]\ndeadlin = \"1s\"\n"),
        "flow.toml:5: there is no setting `fabric.deadlin`; did you mean `fabric.deadline`?",
    );
    // The first program must not run when the second does not exist.
    refused(
        &format!("{program}[[program]]\nname = \"b\"\ncommand = \"laplace-solvr\"\n"),
        "b: there is no program `laplace-solvr` (looked in PATH, did you mean `laplace-solver`?); nothing was started",
    );
    let missing = output(&["run", "nowhere.toml"]);
    assert!(
        stderr(&missing).contains("cannot read the workflow nowhere.toml"),
        "{}",
        stderr(&missing)
    );
    assert_eq!(missing.status.code(), Some(2));
    let variable = samite()
        .args(["run", "true"])
        .env("SAMITE_FABRIC_EAGER", "1 KiB")
        .output();
    let variable = variable.expect("samite can be started");
    assert_eq!(variable.status.code(), Some(2));
    assert!(
        stderr(&variable).contains("SAMITE_FABRIC_EAGER"),
        "{}",
        stderr(&variable)
    );
}

#[test]
fn without_arguments_there_is_help() {
    let output = output(&[]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("samite run workflows/laplace.toml"));
}
