//! `cargo xtask stress` itself, over small shell programs.
#![forbid(unsafe_code)]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

fn stress(arguments: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .arg("stress")
        .args(arguments)
        .args(["--", "sh", "-c", script]);
    command
}

fn ended(mut command: Command) -> (Output, String) {
    let output = command.output().expect("xtask can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn processes_are_stopped_and_go_on() {
    // Ends only when its child was stopped, and went on after that.
    let script = r#"
        sleep 1000 & child=$!
        state() { IFS=') ' read -r pid name state rest < /proc/$child/stat; echo $state; }
        until [ "$(state)" = T ]; do :; done
        while [ "$(state)" = T ]; do :; done
        kill $child"#;
    let (output, text) = ended(stress(&["--only", "stops", "--seed", "7"], script));
    assert!(output.status.success(), "{text}");
    let again = r#"cargo xtask stress --only stops --seed 7 -- "sh" "-c""#;
    assert!(text.contains(again), "{text}");
}

#[test]
fn a_failure_is_one() {
    let (output, text) = ended(stress(&[], "exit 3"));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("exit status: 3"), "{text}");
}

#[test]
fn what_does_not_end_has_failed() {
    let (output, text) = ended(stress(&["--limit", "0", "--only", "stops"], "sleep 1000"));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("not done in time"), "{text}");
}

/// The processes hold a pipe open for as long as one of them lives, orphans included.
#[test]
fn an_interrupt_ends_everything() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo can be started").success());
    let script = format!(
        "exec 3>'{}'; (setsid sleep 1000 &); sleep 1000 & echo up >&3; kill -STOP $$; wait",
        pipe.display()
    );
    for kind in ["stops", "spinners"] {
        let mut command = stress(&["--only", kind], &script);
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut command = quiet.spawn().expect("xtask can be started");
        let opened = std::fs::File::open(&pipe).expect("the program opens the other end");
        let mut lines = BufReader::new(opened);
        let mut line = String::new();
        lines
            .read_line(&mut line)
            .expect("the program writes a line");
        assert_eq!(line, "up\n");
        kill_process(Pid::from_child(&command), Signal::INT).expect("xtask runs");
        assert!(!command.wait().expect("it is ours").success());
        let rest = lines.read_to_string(&mut line).expect("all have ended");
        assert_eq!(rest, 0);
    }
}
